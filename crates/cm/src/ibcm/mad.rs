//! Builds the CM messages of connections, and fills in the fields that the kernel fills in.

use polypath_wire::cm::{
    CmMad, CmPath, CmService, Drep, Dreq, Failover, Info, Mra, Mraed, Rej, RejectReason, Rejected,
    Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus,
};
use polypath_wire::mad::MadHeader;
use polypath_wire::{Gid, Psn};

use super::connection::{Connection, State};
use crate::abi::command::{ConnParam, Ece};
use crate::ids::QpType;
use crate::path::{Path, ack_timeout};

/// The time that either side may take for an answer, as an exponent: 4.3 s
/// (`CMA_CM_RESPONSE_TIMEOUT`).
pub(super) const RESPONSE_TIMEOUT: u8 = 20;

/// How often a message is sent again (`CMA_MAX_CM_RETRIES`).
pub(super) const MAX_RETRIES: u8 = 15;

/// The time an MRA asks for, as an exponent: 69 s (`CMA_CM_MRA_SETTING`).
const SERVICE_TIMEOUT: u8 = 24;

/// A whole message. The vendors' options are in fields that used to be reserved (as Linux does
/// since 5.8).
pub(super) type Mad = [u8; 256];

const DATA: usize = MadHeader::LEN;
const ATTR_MOD: usize = 20;

/// The offsets of the vendor id's three bytes.
const REQ_VENDOR: [usize; 3] = [DATA + 5, DATA + 6, DATA + 7];
const REP_VENDOR: [usize; 3] = [DATA + 15, DATA + 19, DATA + 23];

fn put_ece(mad: &mut Mad, vendor: [usize; 3], ece: Ece) {
    let [_, id @ ..] = ece.vendor_id.to_be_bytes();
    for (at, byte) in vendor.into_iter().zip(id) {
        mad[at] = byte;
    }
    mad[ATTR_MOD..DATA].copy_from_slice(&ece.attr_mod.to_be_bytes());
}

fn ece(mad: &Mad, vendor: [usize; 3]) -> Ece {
    let [a, b, c] = vendor.map(|at| mad[at]);
    let attr_mod = [mad[20], mad[21], mad[22], mad[23]];
    Ece { vendor_id: u32::from_be_bytes([0, a, b, c]), attr_mod: u32::from_be_bytes(attr_mod) }
}

pub(super) fn req_ece(mad: &Mad) -> Ece {
    ece(mad, REQ_VENDOR)
}

pub(super) fn rep_ece(mad: &Mad) -> Ece {
    ece(mad, REP_VENDOR)
}

/// Private data, padded to its field. Callers have already refused data that does not fit.
fn field<const N: usize>(data: &[u8]) -> [u8; N] {
    polypath_wire::cm::private_data(data).unwrap_or([0; N])
}

pub(super) fn req(c: &Connection, param: &ConnParam, private: &[u8], local_ece: Ece) -> Mad {
    let path = &c.path;
    let (service, extended_transport) = match c.qp_type {
        QpType::Uc => (CmService::Uc, 0),
        QpType::XrcSend => (CmService::Extended, Req::EXTENDED_XRC),
        QpType::Rc | QpType::Ud | QpType::XrcRecv => (CmService::Rc, 0),
    };
    let mut req = Req {
        local_comm_id: c.local_id,
        service_id: c.service_id,
        local_ca_guid: c.local_guid,
        local_qpn: c.qp.local_qpn,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        remote_cm_response_timeout: RESPONSE_TIMEOUT,
        service,
        extended_transport,
        flow_control: param.flow_control,
        starting_psn: Psn::new(c.qp.rq_psn),
        local_cm_response_timeout: RESPONSE_TIMEOUT,
        retry_count: param.retry_count,
        pkey: path.pkey,
        mtu: path.mtu,
        rnr_retry_count: param.rnr_retry_count,
        max_cm_retries: MAX_RETRIES,
        srq: param.srq,
        primary: CmPath {
            local_gid: Gid(path.sgid),
            remote_gid: Gid(path.dgid),
            flow_label: path.flow_label,
            packet_rate: path.rate,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            sl: path.sl,
            ack_timeout: ack_timeout(c.ack_delay, path.packet_life_time),
            ..CmPath::default()
        },
        // Without LIDs, managers that know no migration see no alternate path.
        alternate: c.migration.offered.as_ref().map(|path| path.on_wire(0)),
        sap_supported: c.migration.enabled,
        private_data: field(private),
        ..Req::default()
    };
    if c.qp_type == QpType::XrcSend {
        // These fields are of the responder half, which an initiator does not have.
        (req.responder_resources, req.retry_count, req.rnr_retry_count, req.srq) = (0, 0, 0, false);
    }
    let mut mad = CmMad::new(c.tid, req).to_bytes();
    put_ece(&mut mad, REQ_VENDOR, local_ece);
    mad
}

/// The path of a REQ, from the receiver's point of view.
pub(super) fn path_of_req(req: &Req) -> Path {
    let primary = &req.primary;
    Path {
        service_id: req.service_id,
        sgid: primary.remote_gid.0,
        dgid: primary.local_gid.0,
        flow_label: primary.flow_label,
        hop_limit: primary.hop_limit,
        traffic_class: primary.traffic_class,
        pkey: req.pkey,
        sl: primary.sl,
        mtu: req.mtu,
        rate: primary.packet_rate,
        packet_life_time: primary.ack_timeout.saturating_sub(1),
    }
}

pub(super) fn rep(c: &Connection, param: &ConnParam, local_ece: Ece) -> Mad {
    let mut rep = Rep {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        local_qpn: c.qp.local_qpn,
        starting_psn: Psn::new(c.qp.rq_psn),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        target_ack_delay: c.ack_delay,
        flow_control: param.flow_control,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq,
        local_ca_guid: c.local_guid,
        failover: match (c.migration.is_on(), c.migration.refused_offer) {
            (_, false) => Failover::Accepted,
            (true, true) => Failover::Rejected,
            (false, true) => Failover::NotSupported,
        },
        lap_supported: c.migration.is_on(),
        private_data: field(&param.private_data),
        ..Rep::default()
    };
    if c.qp_type == QpType::XrcRecv {
        // A target has no requester. Its number is in the field of the end-to-end context (annex
        // A14).
        (rep.local_qpn, rep.local_eecn) = (0, c.qp.local_qpn);
        (rep.initiator_depth, rep.flow_control, rep.srq) = (0, false, true);
    }
    let mut mad = CmMad::new(c.tid, rep).to_bytes();
    put_ece(&mut mad, REP_VENDOR, local_ece);
    mad
}

/// An RTU. It lists the addresses of this end if there are several.
pub(super) fn rtu(c: &Connection) -> Mad {
    rtu_with(c, &c.alternates.list())
}

pub(super) fn rtu_with(c: &Connection, data: &[u8]) -> Mad {
    let rtu =
        Rtu { local_comm_id: c.local_id, remote_comm_id: c.remote_id, private_data: field(data) };
    CmMad::new(c.tid, rtu).to_bytes()
}

pub(super) fn dreq(c: &Connection, tid: u64) -> Mad {
    let dreq = Dreq {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        remote_qpn: c.qp.remote_qpn,
        private_data: field(&[]),
    };
    CmMad::new(tid, dreq).to_bytes()
}

/// A DREP. It needs no connection, because a peer whose connection is long gone here gets one too.
pub(super) fn drep(tid: u64, local_comm_id: u32, remote_comm_id: u32) -> Mad {
    CmMad::new(tid, Drep { local_comm_id, remote_comm_id, private_data: field(&[]) }).to_bytes()
}

pub(super) fn mra(c: &Connection, mraed: Mraed) -> Mad {
    let mra = Mra {
        local_comm_id: c.local_id,
        remote_comm_id: c.remote_id,
        mraed,
        service_timeout: SERVICE_TIMEOUT,
        private_data: field(&[]),
    };
    CmMad::new(c.tid, mra).to_bytes()
}

/// A REJ of the message that was received last, as the connection's state tells.
pub(super) fn rej(c: &Connection, reason: RejectReason, info: &[u8], private: &[u8]) -> Mad {
    let (local_comm_id, rejected) = match c.state {
        State::ReqRcvd => (0, Rejected::Req),
        State::MraReqSent => (c.local_id, Rejected::Req),
        State::RepRcvd => (c.local_id, Rejected::Rep),
        _ => (c.local_id, Rejected::Other),
    };
    let rej = Rej {
        local_comm_id,
        remote_comm_id: c.remote_id,
        rejected,
        reason,
        info: Info::new(info).unwrap_or(Info::EMPTY),
        private_data: field(private),
    };
    CmMad::new(c.tid, rej).to_bytes()
}

/// A REJ of a message that begins no connection here. The ids are as this end writes them: its own
/// first, which is 0 if the message names none.
pub(super) fn rej_unknown(
    tid: u64,
    (local_comm_id, remote_comm_id): (u32, u32),
    rejected: Rejected,
    reason: RejectReason,
) -> Mad {
    let rej = Rej {
        local_comm_id,
        remote_comm_id,
        rejected,
        reason,
        info: Info::EMPTY,
        private_data: field(&[]),
    };
    CmMad::new(tid, rej).to_bytes()
}

pub(super) fn sidr_req(c: &Connection, private: &[u8]) -> Mad {
    let req = SidrReq {
        request_id: c.local_id,
        pkey: c.path.pkey,
        service_id: c.service_id,
        private_data: field(private),
    };
    CmMad::new(c.tid, req).to_bytes()
}

pub(super) fn sidr_rep(
    tid: u64,
    request_id: u32,
    service_id: u64,
    status: SidrStatus,
    (qpn, qkey): (u32, u32),
    private: &[u8],
) -> Mad {
    let rep = SidrRep {
        request_id,
        status,
        qpn,
        service_id,
        qkey,
        info: Info::EMPTY,
        private_data: field(private),
    };
    CmMad::new(tid, rep).to_bytes()
}
