//! Counts since the start.

/// Counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// MADs that came in.
    pub mads_received: u64,
    /// MADs that were handed to the host to send.
    pub mads_sent: u64,
    /// MADs dropped because too many waited to be sent.
    pub mads_not_sent: u64,
    /// MADs dropped because they could not be parsed or hold what no MAD may hold.
    pub mads_malformed: u64,
    /// MADs dropped because they fit no connection, or not the state it is in.
    pub mads_unmatched: u64,
    /// MADs of a connection that came in twice.
    pub mads_duplicate: u64,
    /// MADs sent again after a timeout.
    pub mads_retried: u64,
    /// Requests refused because nobody listens on the service id.
    pub requests_unserved: u64,
    /// Requests refused because the peer's queue pair is in another connection here, which then is
    /// taken down.
    pub requests_stale: u64,
    /// Requests dropped because a backlog or a table was full; the peer tries again.
    pub requests_dropped: u64,
    /// Events dropped because a file's queue was full.
    pub events_dropped: u64,
}
