//! What a queue pair counts, for `polypath status` and for tests.

/// Counters of one queue pair since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Packets sent, acknowledgements included.
    pub sent_packets: u64,
    /// Payload bytes sent, retransmissions included.
    pub sent_bytes: u64,
    /// Packets received that were addressed to this queue pair.
    pub received_packets: u64,
    /// Payload bytes of those.
    pub received_bytes: u64,
    /// Request packets sent again, for whatever reason.
    pub retransmitted_packets: u64,
    /// Times the local ACK timeout expired.
    pub timeouts: u64,
    /// Tail-loss probes: first unacknowledged packets sent again early.
    pub tail_probes: u64,
    /// Times that everything outstanding on a dead path was sent by another.
    pub failovers: u64,
    /// NAK "PSN sequence error" received.
    pub naks_sequence_received: u64,
    /// RNR NAKs received.
    pub naks_rnr_received: u64,
    /// Other NAKs received, of what is outstanding: they end the queue pair.
    pub naks_fatal_received: u64,
    /// NAK "PSN sequence error" sent.
    pub naks_sequence_sent: u64,
    /// RNR NAKs sent.
    pub naks_rnr_sent: u64,
    /// Other NAKs sent.
    pub naks_fatal_sent: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Requests received again that had been executed.
    pub duplicate_requests: u64,
    /// Responses and acknowledgements that told nothing new.
    pub duplicate_responses: u64,
    /// Request packets that arrived before one of their predecessors.
    pub out_of_order: u64,
    /// Work requests that completed successfully.
    pub completions: u64,
    /// Packets dropped because the queue pair's state takes none.
    pub dropped_state: u64,
    /// Packets dropped because their operation is not of this transport service.
    pub dropped_service: u64,
    /// Packets dropped because their path's generation is over (late packets after a fence).
    pub dropped_generation: u64,
    /// Packets dropped because the reorder buffer could not take them, or because two with the same PSN
    /// contradicted each other.
    pub dropped_reorder: u64,
    /// Requests behind the expected PSN that were dropped because no READ, atomic, ATOMIC WRITE or FLUSH
    /// is remembered that they repeat.
    pub dropped_no_original: u64,
    /// Packets dropped because of a wrong Q_Key.
    pub dropped_qkey: u64,
    /// Packets dropped for want of a receive work request (UC, UD).
    pub dropped_no_receive: u64,
    /// UD messages longer than the MTU of the port: reported as sent, and dropped.
    pub dropped_too_long: u64,
    /// Packets dropped because they fit nothing: wrong length, sequence, header.
    pub dropped_malformed: u64,
}

impl QpCounters {
    /// All packets that were dropped.
    pub const fn dropped(&self) -> u64 {
        self.dropped_state
            + self.dropped_service
            + self.dropped_generation
            + self.dropped_reorder
            + self.dropped_no_original
            + self.dropped_qkey
            + self.dropped_no_receive
            + self.dropped_too_long
            + self.dropped_malformed
    }

    /// All counters with their names, for reports.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        [
            ("sent_packets", self.sent_packets),
            ("sent_bytes", self.sent_bytes),
            ("received_packets", self.received_packets),
            ("received_bytes", self.received_bytes),
            ("retransmitted_packets", self.retransmitted_packets),
            ("timeouts", self.timeouts),
            ("tail_probes", self.tail_probes),
            ("failovers", self.failovers),
            ("naks_sequence_received", self.naks_sequence_received),
            ("naks_rnr_received", self.naks_rnr_received),
            ("naks_fatal_received", self.naks_fatal_received),
            ("naks_sequence_sent", self.naks_sequence_sent),
            ("naks_rnr_sent", self.naks_rnr_sent),
            ("naks_fatal_sent", self.naks_fatal_sent),
            ("acks_sent", self.acks_sent),
            ("duplicate_requests", self.duplicate_requests),
            ("duplicate_responses", self.duplicate_responses),
            ("out_of_order", self.out_of_order),
            ("completions", self.completions),
            ("dropped_state", self.dropped_state),
            ("dropped_service", self.dropped_service),
            ("dropped_generation", self.dropped_generation),
            ("dropped_reorder", self.dropped_reorder),
            ("dropped_no_original", self.dropped_no_original),
            ("dropped_qkey", self.dropped_qkey),
            ("dropped_no_receive", self.dropped_no_receive),
            ("dropped_too_long", self.dropped_too_long),
            ("dropped_malformed", self.dropped_malformed),
        ]
        .into_iter()
    }
}
