//! The headers of request packets.

use polypath_wire::bth::Bth;
use polypath_wire::ext::{AtomicEth, Feth, Ieth, ImmDt, MpHeader, Reth, XrcEth};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, pad_for};

use super::psn;
use crate::common::Core;
use crate::sq::Wqe;
use polypath_types::{FlushScope, PathTag, QpType, SendFlags, SendOp, Twin};

/// What all packets sent in one call have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// If present, send multi-path packets.
    pub(crate) tag: Option<PathTag>,
    /// The path that takes a copy of each packet, if there is one.
    pub(crate) twin: Option<Twin>,
    pub(crate) now_us: u32,
}

/// The headers of packet `k` of a SEND or WRITE.
#[inline]
pub(super) fn data(core: &Core, wqe: &Wqe, k: u32, ack_req: bool, stamp: Stamp) -> Headers {
    let mtu = core.attr.path_mtu;
    let (first, last) = (k == 0, k + 1 == wqe.packets);
    let opcode = opcode(wqe.op, first, last);
    let mut bth = core.bth(opcode, psn(wqe.first + u64::from(k)));
    bth.ack_req = ack_req;
    bth.solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
    bth.pad = pad_for(wqe.packet_len(k, mtu) as usize);
    let mut headers = Headers::new(bth);
    headers.xrc = receive_queue(core, wqe);
    match wqe.op {
        // Multi-path WRITEs carry their destination in every packet.
        SendOp::Write { va, rkey } | SendOp::WriteImm { va, rkey, .. }
            if first || stamp.tag.is_some() =>
        {
            headers.reth = Some(Reth { va, rkey, len: wqe.len });
        }
        _ => {}
    }
    if last {
        match wqe.op {
            SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } => {
                headers.imm = Some(ImmDt(imm));
            }
            SendOp::SendInv { rkey } => headers.ieth = Some(Ieth { rkey }),
            _ => {}
        }
    }
    with_path(headers, wqe, k * mtu, stamp)
}

/// The headers of the request for packets `k..k + n` of a READ's answer.
pub(super) fn read(core: &Core, wqe: &Wqe, k: u32, n: u32, stamp: Stamp) -> Headers {
    let mtu = core.attr.path_mtu;
    let mut headers = Headers::new(request_bth(core, wqe, k, Opcode::RC_READ_REQUEST));
    headers.xrc = receive_queue(core, wqe);
    if let SendOp::Read { va, rkey } = wqe.op {
        let start = k * mtu;
        let len = (wqe.len - start).min(n * mtu);
        headers.reth = Some(Reth { va: va.wrapping_add(u64::from(start)), rkey, len });
    }
    with_path(headers, wqe, k * mtu, stamp)
}

/// The headers of an atomic.
pub(super) fn atomic(core: &Core, wqe: &Wqe, stamp: Stamp) -> Headers {
    let (opcode, eth) = match wqe.op {
        SendOp::CompareSwap { va, rkey, compare, swap } => {
            (Opcode::RC_CMP_SWAP, AtomicEth { va, rkey, swap_add: swap, compare })
        }
        SendOp::FetchAdd { va, rkey, add } => {
            (Opcode::RC_FETCH_ADD, AtomicEth { va, rkey, swap_add: add, compare: 0 })
        }
        _ => (Opcode::RC_FETCH_ADD, AtomicEth::default()),
    };
    let mut headers = Headers::new(request_bth(core, wqe, 0, opcode));
    headers.xrc = receive_queue(core, wqe);
    headers.atomic = Some(eth);
    with_path(headers, wqe, 0, stamp)
}

/// The headers of an ATOMIC WRITE or a FLUSH.
pub(super) fn placement(core: &Core, wqe: &Wqe, stamp: Stamp) -> Headers {
    let (opcode, feth, reth) = match wqe.op {
        SendOp::Flush { rkey, scope, placement } => {
            let (selectivity, va, len) = match scope {
                FlushScope::Range { va, len } => (0, va, len),
                FlushScope::Region => (1, 0, 0),
            };
            let feth = Feth { placement: placement.bits(), selectivity };
            (Opcode::RC_FLUSH, Some(feth), Reth { va, rkey, len })
        }
        SendOp::AtomicWrite { va, rkey } => {
            (Opcode::RC_ATOMIC_WRITE, None, Reth { va, rkey, len: wqe.len })
        }
        _ => (Opcode::RC_ATOMIC_WRITE, None, Reth::default()),
    };
    let mut headers = Headers::new(request_bth(core, wqe, 0, opcode));
    headers.xrc = receive_queue(core, wqe);
    headers.feth = feth;
    headers.reth = Some(reth);
    with_path(headers, wqe, 0, stamp)
}

/// XRC: every request names a shared receive queue, which its rights are checked against too.
#[inline]
fn receive_queue(core: &Core, wqe: &Wqe) -> Option<XrcEth> {
    (core.config.qp_type == QpType::XrcSend).then_some(XrcEth { srqn: wqe.srqn })
}

fn request_bth(core: &Core, wqe: &Wqe, k: u32, opcode: Opcode) -> Bth {
    let mut bth = core.bth(opcode, psn(wqe.first + u64::from(k)));
    bth.ack_req = true;
    bth
}

#[inline]
fn with_path(mut headers: Headers, wqe: &Wqe, offset: u32, stamp: Stamp) -> Headers {
    if let Some(tag) = stamp.tag {
        headers.bth.opcode = headers.bth.opcode.to_mp();
        headers.mp = Some(MpHeader {
            flags: if stamp.twin.is_some() { MpHeader::TWICE } else { 0 },
            path_id: tag.id,
            generation: tag.generation,
            msg: wqe.msg,
            offset,
            recv: wqe.recv,
            timestamp: stamp.now_us,
        });
    }
    headers
}

/// The opcode of a packet of a SEND or WRITE.
#[inline]
fn opcode(op: SendOp, first: bool, last: bool) -> Opcode {
    use Opcode as O;
    match (op, first, last) {
        (SendOp::Write { .. }, true, true) => O::RC_WRITE_ONLY,
        (SendOp::WriteImm { .. }, true, true) => O::RC_WRITE_ONLY_IMM,
        (SendOp::Write { .. } | SendOp::WriteImm { .. }, true, false) => O::RC_WRITE_FIRST,
        (SendOp::Write { .. } | SendOp::WriteImm { .. }, false, false) => O::RC_WRITE_MIDDLE,
        (SendOp::Write { .. }, false, true) => O::RC_WRITE_LAST,
        (SendOp::WriteImm { .. }, false, true) => O::RC_WRITE_LAST_IMM,
        (SendOp::SendImm(_), true, true) => O::RC_SEND_ONLY_IMM,
        (SendOp::SendInv { .. }, true, true) => O::RC_SEND_ONLY_INV,
        (_, true, true) => O::RC_SEND_ONLY,
        (_, true, false) => O::RC_SEND_FIRST,
        (_, false, false) => O::RC_SEND_MIDDLE,
        (SendOp::SendImm(_), false, true) => O::RC_SEND_LAST_IMM,
        (SendOp::SendInv { .. }, false, true) => O::RC_SEND_LAST_INV,
        (_, false, true) => O::RC_SEND_LAST,
    }
}
