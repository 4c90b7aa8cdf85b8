//! All counters. The tables in `docs/counters.md` say the same; a test compares them.

use serde::{Deserialize, Serialize};

use crate::counter::counters;

counters! {
    /// The counters of the broker.
    #[of("broker")]
    #[named("")]
    pub struct BrokerCounters {
        /// Management datagrams received (queue pair 1).
        #[unit(Messages)]
        pub qp1_mads_received: u64,
        /// Management datagrams sent.
        #[unit(Messages)]
        pub qp1_mads_sent: u64,
        /// Management datagrams that the kernel did not send: no route, address gone, buffer full.
        #[unit(Messages)]
        pub qp1_mads_send_failed: u64,
        /// Programs' connections to the broker; those that only ask for the status are not
        /// counted.
        #[unit(Times)]
        pub clients_accepted: u64,
        /// Connections refused: another user's, or too many.
        #[unit(Times)]
        pub clients_refused: u64,
        /// Connections closed because of an invalid message.
        #[unit(Times)]
        pub clients_nonsense: u64,
        /// Connections closed because the program did not read its messages.
        #[unit(Times)]
        pub clients_slow: u64,
        /// Requests answered with an error.
        #[unit(Times)]
        pub requests_refused: u64,
        /// TCP connections of other hosts that were given to a program.
        #[unit(Times)]
        pub streams_accepted: u64,
        /// TCP connections of other hosts that were refused: no preamble, another one, no such lane, or too
        /// many at once. Those that a program refused are not counted here.
        #[unit(Times)]
        pub streams_refused: u64,
        /// TCP connections to other hosts that were not made.
        #[unit(Times)]
        pub streams_failed: u64,
        /// TCP connections to other hosts' brokers, for messages of the connection manager.
        #[unit(Times)]
        pub mad_streams_opened: u64,
        /// TCP connections of other hosts' brokers, for messages of the connection manager.
        #[unit(Times)]
        pub mad_streams_accepted: u64,
        /// Those of either kind that brought something else than such messages, and were ended.
        #[unit(Times)]
        pub mad_streams_broken: u64,
        /// Management datagrams received by TCP.
        #[unit(Messages)]
        pub mad_streams_received: u64,
        /// Management datagrams given to TCP.
        #[unit(Messages)]
        pub mad_streams_sent: u64,
        /// Management datagrams that were not sent by TCP, because too many waited.
        #[unit(Messages)]
        pub mad_streams_full: u64,
        /// Times that a program was told of changed interfaces or addresses.
        #[unit(Times)]
        pub tables_pushed: u64,
        /// Packets for the broker longer than any management datagram.
        #[unit(Packets)]
        pub qp1_dropped_too_long: u64,
        /// Packets from or to an address that is not unicast.
        #[unit(Packets)]
        pub qp1_dropped_not_unicast: u64,
        /// Packets that are no RoCEv2 packets.
        #[unit(Packets)]
        pub qp1_dropped_malformed: u64,
        /// Packets with a wrong invariant CRC: corrupt, or sent by something that is not RoCEv2.
        #[unit(Packets)]
        pub qp1_dropped_icrc_wrong: u64,
        /// Packets for a queue pair number below 0x10000 that is not 1.
        #[unit(Packets)]
        pub qp1_dropped_no_such_qp: u64,
        /// Packets for queue pair 1 that are no UD SEND.
        #[unit(Packets)]
        pub qp1_dropped_wrong_service: u64,
        /// Packets with another Q_Key than that of queue pair 1.
        #[unit(Packets)]
        pub qp1_dropped_qkey_wrong: u64,
        /// Packets of another partition than the default one.
        #[unit(Packets)]
        pub qp1_dropped_pkey_wrong: u64,
        /// Packets for queue pair 1 whose payload is not 256 bytes.
        #[unit(Packets)]
        pub qp1_dropped_not_a_mad: u64,
        /// Handshakes for a program that had ended without taking leave, to which this broker has said so.
        #[unit(Packets)]
        pub endings_told: u64,
        /// Packets between two hosts that look for each other, which this broker has passed on as their
        /// rendezvous.
        #[unit(Packets)]
        pub rendezvous_passed_on: u64,
        /// Packets to the rendezvous for somebody whom it has not heard for two minutes.
        #[unit(Packets)]
        pub rendezvous_unknown: u64,
        /// Packets to the rendezvous that are damaged or that nobody sends who looks for another one.
        #[unit(Packets)]
        pub rendezvous_invalid: u64,
        /// Packets for queue pairs of programs that have ended.
        #[unit(Packets)]
        pub packets_dropped_slot_unowned: u64,
        /// Packets that the kernel dropped because the broker's receive buffer was full.
        #[unit(Packets)]
        pub qp1_overflows: u64,
    }
}

counters! {
    /// The counters of the connection manager.
    #[of("broker")]
    #[named("cm_")]
    pub struct CmCounters {
        /// Connection manager messages received.
        #[unit(Messages)]
        pub mads_received: u64,
        /// Connection manager messages sent.
        #[unit(Messages)]
        pub mads_sent: u64,
        /// Connection manager messages dropped because too many waited to be sent.
        #[unit(Messages)]
        pub mads_not_sent: u64,
        /// Connection manager messages that could not be parsed.
        #[unit(Messages)]
        pub mads_malformed: u64,
        /// Messages that fit no connection, or not the state of their connection.
        #[unit(Messages)]
        pub mads_unmatched: u64,
        /// Messages of a connection that arrived twice.
        #[unit(Messages)]
        pub mads_duplicate: u64,
        /// Messages sent again because no answer came: packets are lost, or the peer is slow.
        #[unit(Messages)]
        pub mads_retried: u64,
        /// Connection requests refused because nobody listens on the port.
        #[unit(Messages)]
        pub requests_unserved: u64,
        /// Connection requests refused because the peer's queue pair is in another connection
        /// here, which then ends.
        #[unit(Messages)]
        pub requests_stale: u64,
        /// Connection requests dropped because a backlog or a table was full; the peer tries
        /// again.
        #[unit(Messages)]
        pub requests_dropped: u64,
        /// Events of a program's own (`rdma_write_cm_event`) refused because it did not read those
        /// before.
        #[unit(Times)]
        pub events_dropped: u64,
        /// Alternate paths that both ends agreed on.
        #[unit(Times)]
        pub alternates_loaded: u64,
        /// Alternate paths that a peer asked for and this end refused.
        #[unit(Times)]
        pub alternates_refused: u64,
        /// Migrations of queue pairs to their alternate path.
        #[unit(Times)]
        pub paths_migrated: u64,
        /// Connections that were asked to change to their alternate path, so that the ports carry
        /// equally many (`POLYPATH_APM=balance`).
        #[unit(Times)]
        pub paths_balanced: u64,
    }
}

counters! {
    /// The packets and bytes that a lane received and sent.
    #[of("lane")]
    #[named("")]
    pub struct LaneCounters {
        /// Packets received, control packets and those dropped included.
        #[unit(Packets)]
        pub received_packets: u64,
        /// UDP payload of the packets received.
        #[unit(Bytes)]
        pub received_bytes: u64,
        /// Packets that the kernel accepted for sending, control packets included.
        #[unit(Packets)]
        pub sent_packets: u64,
        /// UDP payload of the packets sent.
        #[unit(Bytes)]
        pub sent_bytes: u64,
        /// Packets sent that were larger than the MTU of the interface, and left in fragments.
        #[unit(Packets)]
        pub fragmented_packets: u64,
        /// Packets of path management received.
        #[unit(Packets)]
        pub control_received: u64,
        /// Packets of path management given to the kernel.
        #[unit(Packets)]
        pub control_sent: u64,
    }
}

counters! {
    /// Packets that a lane dropped, by reason.
    #[of("lane")]
    #[named("")]
    pub struct LaneDrops {
        /// Packets with a wrong invariant CRC.
        #[unit(Packets)]
        pub icrc_wrong: u64,
        /// Packets that are too short, or whose headers are invalid.
        #[unit(Packets)]
        pub malformed: u64,
        /// Packets for a queue pair that does not exist (any more).
        #[unit(Packets)]
        pub unknown_qp: u64,
        /// Packets from addresses that are no path of the queue pair.
        #[unit(Packets)]
        pub wrong_source: u64,
        /// Packets of another partition.
        #[unit(Packets)]
        pub wrong_pkey: u64,
        /// Further copies of packets to multicast groups, which came by another interface of the device.
        #[unit(Packets)]
        pub group_copies: u64,
        /// Further copies of datagrams that the peer sent by two paths, which came after the first one.
        #[unit(Packets)]
        pub datagram_copies: u64,
        /// Packets that the kernel refused to send; the path's `send_errors` say why.
        #[unit(Packets)]
        pub unsent: u64,
        /// Times that the kernel returned an error instead of packets.
        #[unit(Times)]
        pub receive_failed: u64,
        /// Packets not sent because no socket could be opened for the path.
        #[unit(Packets)]
        pub unsendable: u64,
        /// Times that opening a socket for a path failed; it is tried again.
        #[unit(Times)]
        pub flows_failed: u64,
    }
}

counters! {
    /// Faults put on a lane's packets on purpose, both sent and received ones.
    #[of("process")]
    #[named("fault_")]
    pub struct FaultCounters {
        /// Packets lost on purpose (`--fault`).
        #[unit(Packets)]
        pub lost: u64,
        /// Packets lost on purpose because their interface is cut.
        #[unit(Packets)]
        pub cut: u64,
        /// Packets damaged on purpose.
        #[unit(Packets)]
        pub corrupted: u64,
        /// Packets doubled on purpose.
        #[unit(Packets)]
        pub duplicated: u64,
        /// Packets held back on purpose until others have overtaken them.
        #[unit(Packets)]
        pub reordered: u64,
        /// Packets held back on purpose for a time.
        #[unit(Packets)]
        pub delayed: u64,
    }
}

counters! {
    /// Packets of path management that a lane dropped, by reason.
    #[of("lane")]
    #[named("control_")]
    pub struct ControlDrops {
        /// Path management packets with impossible fields.
        #[unit(Packets)]
        pub malformed: u64,
        /// Path management packets of a version that is not supported.
        #[unit(Packets)]
        pub version: u64,
        /// Handshakes for queue pairs that are not connected to each other.
        #[unit(Packets)]
        pub no_queue_pair: u64,
        /// Path management packets from addresses that are not the peer's.
        #[unit(Packets)]
        pub unknown_source: u64,
        /// Packets of an association that does not exist (any more).
        #[unit(Packets)]
        pub no_association: u64,
        /// Path management packets with a wrong authentication code: forged, or of a peer that has
        /// restarted.
        #[unit(Packets)]
        pub authentication: u64,
        /// Path management packets seen before, or too old.
        #[unit(Packets)]
        pub replay: u64,
        /// Packets with a path number that is not in use.
        #[unit(Packets)]
        pub unknown_path: u64,
        /// Packets sent before their path was given up: usual after a fail-over.
        #[unit(Packets)]
        pub generation: u64,
        /// Answers to no request.
        #[unit(Packets)]
        pub unsolicited: u64,
        /// Handshakes of a peer that has an `mp` device, received where there is none.
        #[unit(Packets)]
        pub disabled: u64,
        /// Handshakes refused because a table is full.
        #[unit(Packets)]
        pub limit: u64,
    }
}

counters! {
    /// The traffic of one path of a lane to a peer, and how often the path was given up.
    #[of("path")]
    #[named("")]
    pub struct PathCounters {
        /// UDP payload sent, of all services, answers and control packets.
        #[unit(Bytes)]
        pub sent_bytes: u64,
        /// UDP payload received in packets that were not refused.
        #[unit(Bytes)]
        pub received_bytes: u64,
        /// Payload of requests that was acknowledged, and 128 bytes for each of their packets.
        #[unit(Bytes)]
        pub acked_bytes: u64,
        /// Payload of requests that had to be sent again, and 128 bytes for each of their packets.
        #[unit(Bytes)]
        pub resent_bytes: u64,
        /// Packets received with a mark of congestion (ECN).
        #[unit(Packets)]
        pub marked_received: u64,
        /// Answers which say that packets of the path were marked, or that were marked themselves.
        #[unit(Packets)]
        pub marks: u64,
        /// Probes sent.
        #[unit(Packets)]
        pub probes_sent: u64,
        /// Probes that the peer answered.
        #[unit(Packets)]
        pub probes_answered: u64,
        /// Times the path was given up, whether it carried traffic then or not.
        #[unit(Times)]
        pub given_up: u64,
        /// Times the path got another UDP source port, because it did not answer by the one that it had, or
        /// went back to its first one.
        #[unit(Times)]
        pub port_changes: u64,
    }
}

counters! {
    /// The counters of one queue pair since it was created.
    #[of("qp")]
    #[named("")]
    pub struct QpCounters {
        /// Packets sent, acknowledgements included.
        #[unit(Packets)]
        pub sent_packets: u64,
        /// Payload sent, retransmissions included.
        #[unit(Bytes)]
        pub sent_bytes: u64,
        /// Packets received.
        #[unit(Packets)]
        pub received_packets: u64,
        /// Payload of the packets received.
        #[unit(Bytes)]
        pub received_bytes: u64,
        /// Request packets sent again, for whatever reason.
        #[unit(Packets)]
        pub retransmitted_packets: u64,
        /// Times the local ACK timeout expired: the peer or the network did not answer.
        #[unit(Times)]
        pub timeouts: u64,
        /// Times the first unacknowledged packet was sent again early, to find out whether the
        /// last ones were lost.
        #[unit(Times)]
        pub tail_probes: u64,
        /// Times that everything outstanding on a dead path was sent on another.
        #[unit(Times)]
        pub failovers: u64,
        /// Times it changed to its alternate path (automatic path migration).
        #[unit(Times)]
        pub migrations: u64,
        /// NAKs "PSN sequence error" received: the peer missed a packet.
        #[unit(Packets)]
        pub naks_sequence_received: u64,
        /// RNR NAKs received: the peer had no receive posted.
        #[unit(Packets)]
        pub naks_rnr_received: u64,
        /// Other NAKs received; they end the queue pair.
        #[unit(Packets)]
        pub naks_fatal_received: u64,
        /// NAKs "PSN sequence error" sent.
        #[unit(Packets)]
        pub naks_sequence_sent: u64,
        /// RNR NAKs sent: no receive was posted here.
        #[unit(Packets)]
        pub naks_rnr_sent: u64,
        /// Other NAKs sent: the peer's request was refused.
        #[unit(Packets)]
        pub naks_fatal_sent: u64,
        /// Acknowledgements sent.
        #[unit(Packets)]
        pub acks_sent: u64,
        /// Requests received again that had been executed.
        #[unit(Packets)]
        pub duplicate_requests: u64,
        /// Responses and acknowledgements that said nothing new, or that answer a failed request.
        #[unit(Packets)]
        pub duplicate_responses: u64,
        /// Copies of request packets sent by a second path (`policy=redundant`).
        #[unit(Packets)]
        pub copies_sent: u64,
        /// Copies of request packets that were left out because the second path was full.
        #[unit(Packets)]
        pub copies_left_out: u64,
        /// Packets that came second of two that were sent by different paths, and were ignored.
        #[unit(Packets)]
        pub copies_second: u64,
        /// Request packets that arrived before one of their predecessors.
        #[unit(Packets)]
        pub out_of_order: u64,
        /// Request packets of these whose data went into memory before its turn, because the region has
        /// `IBV_ACCESS_RELAXED_ORDERING`.
        #[unit(Packets)]
        pub placed_early: u64,
        /// Work requests that completed successfully.
        #[unit(Requests)]
        pub completions: u64,
        /// Packets dropped because the queue pair's state does not allow them.
        #[unit(Packets)]
        pub dropped_state: u64,
        /// Packets whose operation is not of this transport service.
        #[unit(Packets)]
        pub dropped_service: u64,
        /// Packets of a path that was given up: usual after a fail-over.
        #[unit(Packets)]
        pub dropped_generation: u64,
        /// Packets that came by the alternate path while the primary one was in use: usual for a moment
        /// after a migration.
        #[unit(Packets)]
        pub dropped_inactive_path: u64,
        /// Packets that the reorder buffer could not take, and READs and atomics that were repeated
        /// while too many answers waited.
        #[unit(Packets)]
        pub dropped_reorder: u64,
        /// Repeated READs, atomics, ATOMIC WRITEs or FLUSHes whose original is not remembered.
        #[unit(Packets)]
        pub dropped_no_original: u64,
        /// Packets with a wrong Q_Key.
        #[unit(Packets)]
        pub dropped_qkey: u64,
        /// Packets dropped because there was no receive work request (UC, UD).
        #[unit(Packets)]
        pub dropped_no_receive: u64,
        /// UD messages longer than the port's MTU: reported as sent, and dropped.
        #[unit(Packets)]
        pub dropped_too_long: u64,
        /// Packets with a wrong length, sequence or header, answers to PSNs that were never sent,
        /// refused WRITEs (UC), and messages whose receive could not store them (UC, UD;
        /// if its memory is not valid, the queue pair ends, too).
        #[unit(Packets)]
        pub dropped_malformed: u64,
    }
}

impl QpCounters {
    /// The number of packets that were dropped, for whatever reason.
    pub const fn dropped(&self) -> u64 {
        self.dropped_state
            + self.dropped_service
            + self.dropped_generation
            + self.dropped_inactive_path
            + self.dropped_reorder
            + self.dropped_no_original
            + self.dropped_qkey
            + self.dropped_no_receive
            + self.dropped_too_long
            + self.dropped_malformed
    }
}
