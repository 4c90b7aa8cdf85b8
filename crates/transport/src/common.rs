//! What both halves of a queue pair know.

use polypath_wire::bth::Bth;
use polypath_wire::ext::Reth;
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Headers;
use polypath_wire::psn::Psn;

use crate::burst::Burst;
use crate::explanation::{Explanation, What};
use crate::host::{Host, Unread};
use crate::memory::{RemoteAccess, RemoteKey};
use crate::migration::Migration;
use crate::responder::REORDER_LIMIT;
use polypath_telemetry::QpCounters;
use polypath_types::{Access, PathId, PeerId, QpAttr, QpConfig, QpEvent, QpState, QpType, Twin};

/// The limit of sequence numbers in flight to a peer that has not said how many it takes.
///
/// A plain peer throws away all that follows a lost packet, so that most of a larger flight would
/// be sent twice. It also can't say how much its receive buffer takes.
const PSNS_MIN: u32 = REORDER_LIMIT as u32;
/// The limit of sequence numbers in flight to any peer: far below half of the 2^24, so that old and
/// new are never confused.
const PSNS_MAX: u32 = 1 << 16;

/// Configuration, attributes and counters of a queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    pub(crate) config: QpConfig,
    pub(crate) attr: QpAttr,
    pub(crate) peer: Option<PeerId>,
    pub(crate) multipath: bool,
    /// The most sequence numbers in flight.
    pub(crate) in_flight_max: u32,
    /// Whether the peer reads the blocks of an acknowledgement.
    pub(crate) reads_blocks: bool,
    /// Whether the peer takes requests for parts of a READ for one request.
    pub(crate) joins_reads: bool,
    pub(crate) migration: Migration,
    pub(crate) counters: QpCounters,
    /// The protection domain that the peer's requests are checked against: our own, or for an XRC
    /// target that of the shared receive queue that the current request names (IBTA A14.2).
    pub(crate) peer_pd: u32,
    /// The bits that the opcodes of this transport service have in addition to those of RC.
    service: u8,
    /// Whether one half met an error that ends the queue pair: it goes to the error state before
    /// the call that found the error returns.
    pub(crate) broken: bool,
    /// Whether COMM_EST was raised.
    established: bool,
}

impl Core {
    pub(crate) fn new(config: QpConfig) -> Self {
        Self {
            config,
            attr: fresh_attributes(&config),
            peer: None,
            multipath: false,
            in_flight_max: PSNS_MIN,
            reads_blocks: false,
            joins_reads: false,
            migration: Migration::default(),
            counters: QpCounters::default(),
            peer_pd: config.pd,
            service: service(config.qp_type),
            broken: false,
            established: false,
        }
    }

    /// Goes back to the state after creation.
    pub(crate) fn reset(&mut self) {
        self.attr = fresh_attributes(&self.config);
        self.peer = None;
        self.multipath = false;
        self.in_flight_max = PSNS_MIN;
        self.reads_blocks = false;
        self.joins_reads = false;
        self.migration = Migration::default();
        self.broken = false;
        self.established = false;
    }

    /// The number of sequence numbers that `reach` bytes are at this queue pair's path MTU.
    pub(crate) fn psns(&self, reach: u32) -> u32 {
        (reach / self.attr.path_mtu.max(1)).clamp(PSNS_MIN, PSNS_MAX)
    }

    /// Whether COMM_EST was raised, or can't be any more.
    pub(crate) fn is_established(&self) -> bool {
        self.established
    }

    pub(crate) fn set_established(&mut self, established: bool) {
        self.established = established;
    }

    /// Whether the limit of packets in flight is one that a peer can have agreed to.
    pub(crate) fn has_valid_reach(&self) -> bool {
        (PSNS_MIN..=PSNS_MAX).contains(&self.in_flight_max)
    }

    /// A base transport header to the peer; `opcode` may be RC's for the same operation.
    #[inline]
    pub(crate) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth {
            mig_req: self.migration.mig_req(self.attr.path_mig_state),
            dest_qpn: self.attr.dest_qpn,
            psn,
            ..Bth::new(Opcode(opcode.0 | self.service))
        }
    }

    /// A key that came with a request, checked in protection domain `pd`.
    #[inline]
    pub(crate) fn key(&self, pd: u32, rkey: u32) -> RemoteKey {
        RemoteKey { pd, qpn: self.config.qpn, rkey }
    }

    /// The memory that a RETH names, checked in protection domain `pd`.
    #[inline]
    pub(crate) fn remote(&self, pd: u32, reth: &Reth, rights: Access) -> RemoteAccess {
        RemoteAccess { key: self.key(pd, reth.rkey), va: reth.va, len: reth.len, rights }
    }

    /// Hands a burst to the host and counts it.
    #[inline]
    pub(crate) fn transmit<H: Host>(
        &mut self,
        burst: &Burst<'_, H::Segment>,
        host: &mut H,
    ) -> Result<(), Unread> {
        let done = host.transmit(burst);
        let (packets, bytes) = match done {
            Ok(()) => (burst.packets, burst.payload.len()),
            Err(Unread { sent }) => (sent, sent * burst.mtu),
        };
        self.counters.sent_packets += u64::from(packets);
        self.counters.sent_bytes += u64::from(bytes);
        done
    }

    /// The same, and sends a copy of the burst by another path, if one is named.
    #[inline]
    pub(crate) fn transmit_by<H: Host>(
        &mut self,
        burst: &Burst<'_, H::Segment>,
        twin: Option<Twin>,
        host: &mut H,
    ) -> Result<(), Unread> {
        self.transmit(burst, host)?;
        if let Some(twin) = twin {
            self.transmit_copy(burst, twin, host);
        }
        Ok(())
    }

    /// Sends a copy of a burst by another path. If its payload is gone by now, the first one was sent
    /// nevertheless.
    fn transmit_copy<H: Host>(&mut self, burst: &Burst<'_, H::Segment>, twin: Twin, host: &mut H) {
        let by = |headers: &Headers| {
            let mut headers = *headers;
            if let Some(mp) = &mut headers.mp {
                (mp.path_id, mp.generation) = (twin.tag.id, twin.tag.generation);
            }
            headers
        };
        let first = by(burst.first);
        let rest = (burst.packets > 1).then(|| (by(burst.middle), by(burst.last)));
        let (middle, last) =
            rest.as_ref().map_or((&first, &first), |(middle, last)| (middle, last));
        let copy = Burst { path: twin.path, first: &first, middle, last, ..*burst };
        self.counters.copies_sent += match self.transmit(&copy, host) {
            Ok(()) => u64::from(copy.packets),
            Err(Unread { sent }) => u64::from(sent),
        };
    }

    /// Notes that a request arrived: the first one in RTR means that the connection is established
    /// (IBTA 11.6.3.1).
    #[inline]
    pub(crate) fn note_request<H: Host>(&mut self, host: &mut H) {
        if !self.established {
            self.established = true;
            if self.attr.state == QpState::Rtr {
                host.event(QpEvent::CommEstablished);
            }
        }
    }

    /// Reports what went wrong with this queue pair.
    pub(crate) fn explain<H: Host>(&self, host: &mut H, path: Option<PathId>, what: What) {
        let (qpn, dest) = (self.config.qpn, self.attr.dest_qpn);
        host.explain(Explanation { qpn, dest, path, what });
    }
}

/// The bits of an opcode that name the service.
const fn service(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Rc => 0,
        QpType::Uc => Opcode::UC_SEND_FIRST.0,
        QpType::Ud => Opcode::UD_SEND_ONLY.0 & 0xe0,
        QpType::XrcSend | QpType::XrcRecv => Opcode::RC_SEND_FIRST.to_xrc().0,
    }
}

fn fresh_attributes(config: &QpConfig) -> QpAttr {
    let mut attr = QpAttr::new(QpState::Reset);
    attr.max_send_wr = config.max_send_wr;
    attr.max_recv_wr = config.max_recv_wr;
    attr.max_send_sge = config.max_send_sge;
    attr.max_recv_sge = config.max_recv_sge;
    attr.max_inline = config.max_inline;
    attr
}
