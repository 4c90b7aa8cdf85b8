//! What a lane counts.

use polypath_ipc::status::Counter;

/// Counters of a lane; each drop has its reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
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
    /// The transport service is not the queue pair's.
    pub(crate) wrong_service: u64,
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
            ("wrong_service", self.wrong_service),
            ("wrong_pkey", self.wrong_pkey),
            ("unsendable", self.unsendable),
            ("flows_failed", self.flows_failed),
        ]
        .into_iter()
        .map(|(name, value)| Counter { name: name.to_owned(), value })
        .collect()
    }
}
