//! What a lane counts.

use polypath_ipc::status::Counter;

/// Counters of a lane; each drop has its reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    /// Taken by the kernel, control packets included.
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    /// Those of them that leave in fragments, since they are larger than the interface's MTU.
    pub(crate) fragmented_packets: u64,
    /// Refused by the kernel; each path has the reasons.
    pub(crate) unsent: u64,
    /// Calls to receive that failed.
    pub(crate) receive_failed: u64,
    pub(crate) control_received: u64,
    pub(crate) control_sent: u64,
    /// The invariant CRC was wrong.
    pub(crate) icrc_wrong: u64,
    /// Too short, or headers that make no sense.
    pub(crate) malformed: u64,
    /// No queue pair has the destination's number.
    pub(crate) unknown_qp: u64,
    /// The source is not of the queue pair's path set.
    pub(crate) wrong_source: u64,
    /// A P_Key that is not ours.
    pub(crate) wrong_pkey: u64,
    /// No socket could be had for the path.
    pub(crate) unsendable: u64,
    /// Opening a socket failed.
    pub(crate) flows_failed: u64,
}

impl Counters {
    /// The drops, for the status report.
    pub(crate) fn drops(&self) -> Vec<Counter> {
        [
            ("icrc_wrong", self.icrc_wrong),
            ("malformed", self.malformed),
            ("unknown_qp", self.unknown_qp),
            ("wrong_source", self.wrong_source),
            ("wrong_pkey", self.wrong_pkey),
            ("unsent", self.unsent),
            ("receive_failed", self.receive_failed),
            ("unsendable", self.unsendable),
            ("flows_failed", self.flows_failed),
        ]
        .into_iter()
        .map(|(name, value)| Counter { name: name.to_owned(), value })
        .collect()
    }
}
