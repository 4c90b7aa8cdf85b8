//! What a run came to.

use core::time::Duration;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The virtual time at the end.
    pub time: Duration,
    /// The number of requests that completed, successfully or with the error that they had to have.
    pub requests: u64,
    /// The number of queue pairs that ended in the error state, as they had to.
    pub errors: u64,
    /// The number of fail-overs of all hosts.
    pub failovers: u64,
    /// The number of migrations of all queue pairs.
    pub migrations: u64,
    /// The longest interruption by a fail-over, outages of all paths included.
    pub blackout_max: Duration,
    /// The number of paths that were given up.
    pub deaths: u64,
    /// The number of datagrams sent.
    pub sent: u64,
    /// The number of datagrams lost on the way.
    pub dropped: u64,
    /// The number of datagrams corrupted on the way.
    pub corrupted: u64,
    /// The number of datagrams marked by links.
    pub marked: u64,
    /// The number of packets that queue pairs sent again, for whatever reason.
    pub resent: u64,
    /// The number of packets refused, for example because of an old generation.
    pub refused: u64,
    /// The largest number of paths that carried data of one host to one peer.
    pub carriers: usize,
    /// A digest of every packet that was sent, and when.
    pub digest: u64,
}
