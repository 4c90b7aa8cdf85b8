//! How a frozen queue pair writes attributes, work requests and packets.

use polypath_types::{
    Access, AhAttr, FlushScope, MigState, PathId, Placement, QpAttr, QpConfig, QpState, QpType,
    RecvWr, SendFlags, SendOp, Sge, Sges, UdDestination, WcStatus,
};
use polypath_wire::ext::Reth;
use polypath_wire::packet::{Headers, MAX_HEADERS_LEN};

use super::bytes::{Reader, Writer};
use super::error::ThawError;
use crate::cause::Cause;
use crate::state::{MAX_MESSAGE, MAX_RD_ATOMIC};

type Result<T> = core::result::Result<T, ThawError>;

/// The most elements of a scatter/gather list, on any device.
const SGES_MAX: usize = 1 << 10;
/// The most bytes of inline data, and of a packet's payload.
pub(crate) const PAYLOAD_MAX: usize = 1 << 16;
/// The most work requests of a queue, on any device.
const DEPTH_MAX: u32 = 1 << 24;

pub(super) fn put_config(out: &mut Writer, config: &QpConfig) {
    out.u32(config.qpn);
    out.u8(config.qp_type as u8);
    out.u32(config.pd);
    out.flag(config.sq_sig_all);
    out.flag(config.srq);
    for most in [config.max_send_wr, config.max_recv_wr] {
        out.u32(most);
    }
    for most in [config.max_send_sge, config.max_recv_sge, config.max_inline] {
        out.u32(most);
    }
}

pub(super) fn config(from: &mut Reader<'_>) -> Result<QpConfig> {
    Ok(QpConfig {
        qpn: from.at_most(0xff_ffff, "a queue pair number has 24 bits")?,
        qp_type: match from.u8()? {
            2 => QpType::Rc,
            3 => QpType::Uc,
            4 => QpType::Ud,
            9 => QpType::XrcSend,
            10 => QpType::XrcRecv,
            _ => return Err(from.wrong("there is no such transport service")),
        },
        pd: from.u32()?,
        sq_sig_all: from.flag()?,
        srq: from.flag()?,
        max_send_wr: from.at_most(DEPTH_MAX, "the send queue is too long")?,
        max_recv_wr: from.at_most(DEPTH_MAX, "the receive queue is too long")?,
        max_send_sge: from.at_most(SGES_MAX as u32, "gather lists are too long")?,
        max_recv_sge: from.at_most(SGES_MAX as u32, "scatter lists are too long")?,
        max_inline: from.at_most(PAYLOAD_MAX as u32, "there is too much inline data")?,
    })
}

fn put_ah(out: &mut Writer, ah: &AhAttr) {
    out.raw(&ah.dgid);
    out.u32(ah.flow_label);
    out.raw(&[ah.sgid_index, ah.hop_limit, ah.traffic_class]);
    out.u16(ah.dlid);
    out.raw(&[ah.sl, ah.src_path_bits, ah.static_rate]);
    out.flag(ah.is_global);
    out.u8(ah.port_num);
}

fn ah(from: &mut Reader<'_>) -> Result<AhAttr> {
    Ok(AhAttr {
        dgid: from.array()?,
        flow_label: from.u32()?,
        sgid_index: from.u8()?,
        hop_limit: from.u8()?,
        traffic_class: from.u8()?,
        dlid: from.u16()?,
        sl: from.u8()?,
        src_path_bits: from.u8()?,
        static_rate: from.u8()?,
        is_global: from.flag()?,
        port_num: from.u8()?,
    })
}

/// Writes all attributes except the sizes, which belong to the configuration.
pub(super) fn put_attr(out: &mut Writer, attr: &QpAttr) {
    out.u8(attr.state as u8);
    out.u32(attr.path_mtu);
    out.u8(attr.path_mig_state as u8);
    for word in [attr.qkey, attr.rq_psn, attr.sq_psn, attr.dest_qpn, attr.access.bits()] {
        out.u32(word);
    }
    put_ah(out, &attr.ah);
    put_ah(out, &attr.alt_ah);
    out.u16(attr.pkey_index);
    out.u16(attr.alt_pkey_index);
    out.flag(attr.en_sqd_async_notify);
    out.flag(attr.sq_draining);
    out.raw(&[attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer]);
    out.raw(&[attr.port_num, attr.timeout, attr.retry_cnt, attr.rnr_retry]);
    out.raw(&[attr.alt_port_num, attr.alt_timeout]);
}

fn state(from: &mut Reader<'_>) -> Result<QpState> {
    Ok(match from.u8()? {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        _ => return Err(from.wrong("there is no such state")),
    })
}

fn small(from: &mut Reader<'_>, most: u8, what: &'static str) -> Result<u8> {
    let value = from.u8()?;
    from.ensure(value <= most, what)?;
    Ok(value)
}

/// Reads into attributes that have the sizes already.
pub(super) fn attr(from: &mut Reader<'_>, qp_type: QpType, attr: &mut QpAttr) -> Result<()> {
    attr.state = state(from)?;
    attr.cur_state = attr.state;
    let unreliable = matches!(qp_type, QpType::Uc | QpType::Ud);
    from.ensure(attr.state != QpState::Sqe || unreliable, "RC has no SQE state")?;
    attr.path_mtu = from.u32()?;
    let mtu = match qp_type {
        // The MTU of the port, which the host has set.
        QpType::Ud => (1..=PAYLOAD_MAX as u32).contains(&attr.path_mtu),
        _ => matches!(attr.path_mtu, 256 | 512 | 1024 | 2048 | 4096),
    };
    from.ensure(mtu, "a path MTU is 256, 512, 1024, 2048 or 4096")?;
    attr.path_mig_state = match from.u8()? {
        0 => MigState::Migrated,
        1 => MigState::Rearm,
        2 => MigState::Armed,
        _ => return Err(from.wrong("there is no such migration state")),
    };
    attr.qkey = from.u32()?;
    attr.rq_psn = from.at_most(0xff_ffff, "a PSN has 24 bits")?;
    attr.sq_psn = from.at_most(0xff_ffff, "a PSN has 24 bits")?;
    attr.dest_qpn = from.at_most(0xff_ffff, "a queue pair number has 24 bits")?;
    attr.access =
        Access::from_bits(from.u32()?).ok_or_else(|| from.wrong("there is no such right"))?;
    attr.ah = ah(from)?;
    attr.alt_ah = ah(from)?;
    attr.pkey_index = from.u16()?;
    attr.alt_pkey_index = from.u16()?;
    attr.en_sqd_async_notify = from.flag()?;
    attr.sq_draining = from.flag()?;
    attr.max_rd_atomic = small(from, MAX_RD_ATOMIC, "too many READs and atomics in flight")?;
    attr.max_dest_rd_atomic = small(from, MAX_RD_ATOMIC, "too many READs and atomics to answer")?;
    attr.min_rnr_timer = small(from, 31, "an RNR timer is 0 to 31")?;
    attr.port_num = from.u8()?;
    attr.timeout = small(from, 31, "a timeout is 0 to 31")?;
    attr.retry_cnt = small(from, 7, "a retry count is 0 to 7")?;
    attr.rnr_retry = small(from, 7, "an RNR retry count is 0 to 7")?;
    attr.alt_port_num = from.u8()?;
    attr.alt_timeout = small(from, 31, "a timeout is 0 to 31")?;
    Ok(())
}

pub(crate) fn put_sges(out: &mut Writer, sges: &[Sge]) {
    out.count(sges.len());
    for sge in sges {
        out.u64(sge.addr);
        out.u32(sge.len);
        out.u32(sge.lkey);
    }
}

pub(crate) fn sges(from: &mut Reader<'_>) -> Result<Sges> {
    let count = from.count(SGES_MAX, "a scatter/gather list is too long")?;
    let one = |from: &mut Reader<'_>| -> Result<Sge> {
        Ok(Sge { addr: from.u64()?, len: from.u32()?, lkey: from.u32()? })
    };
    (0..count).map(|_| one(from)).collect()
}

/// Reads inline data.
pub(crate) fn inline<'a>(from: &mut Reader<'a>) -> Result<&'a [u8]> {
    from.bytes(PAYLOAD_MAX, "there is too much inline data")
}

pub(crate) fn put_receive(out: &mut Writer, wr: &RecvWr) {
    out.u64(wr.wr_id);
    put_sges(out, &wr.sges);
}

pub(crate) fn receive(from: &mut Reader<'_>) -> Result<RecvWr> {
    Ok(RecvWr { wr_id: from.u64()?, sges: sges(from)? })
}

pub(crate) fn put_op(out: &mut Writer, op: &SendOp) {
    let remote = |out: &mut Writer, number: u8, va: u64, rkey: u32| {
        out.u8(number);
        out.u64(va);
        out.u32(rkey);
    };
    match *op {
        SendOp::Send => out.u8(0),
        SendOp::SendImm(imm) => {
            out.u8(1);
            out.raw(&imm);
        }
        SendOp::SendInv { rkey } => {
            out.u8(2);
            out.u32(rkey);
        }
        SendOp::Write { va, rkey } => remote(out, 3, va, rkey),
        SendOp::WriteImm { va, rkey, imm } => {
            remote(out, 4, va, rkey);
            out.raw(&imm);
        }
        SendOp::Read { va, rkey } => remote(out, 5, va, rkey),
        SendOp::CompareSwap { va, rkey, compare, swap } => {
            remote(out, 6, va, rkey);
            out.u64(compare);
            out.u64(swap);
        }
        SendOp::FetchAdd { va, rkey, add } => {
            remote(out, 7, va, rkey);
            out.u64(add);
        }
        SendOp::AtomicWrite { va, rkey } => remote(out, 8, va, rkey),
        SendOp::Flush { rkey, scope, placement } => {
            out.u8(9);
            out.u32(rkey);
            let range = match scope {
                FlushScope::Range { va, len } => Some((va, len)),
                FlushScope::Region => None,
            };
            out.option(range, |out, (va, len)| {
                out.u64(va);
                out.u32(len);
            });
            out.u8(placement.bits());
        }
        SendOp::LocalInv { rkey } => {
            out.u8(10);
            out.u32(rkey);
        }
        SendOp::BindMw { mw, rkey } => {
            out.u8(11);
            out.u32(mw);
            out.u32(rkey);
        }
    }
}

pub(crate) fn op(from: &mut Reader<'_>) -> Result<SendOp> {
    Ok(match from.u8()? {
        0 => SendOp::Send,
        1 => SendOp::SendImm(from.array()?),
        2 => SendOp::SendInv { rkey: from.u32()? },
        3 => SendOp::Write { va: from.u64()?, rkey: from.u32()? },
        4 => SendOp::WriteImm { va: from.u64()?, rkey: from.u32()?, imm: from.array()? },
        5 => SendOp::Read { va: from.u64()?, rkey: from.u32()? },
        6 => SendOp::CompareSwap {
            va: from.u64()?,
            rkey: from.u32()?,
            compare: from.u64()?,
            swap: from.u64()?,
        },
        7 => SendOp::FetchAdd { va: from.u64()?, rkey: from.u32()?, add: from.u64()? },
        8 => SendOp::AtomicWrite { va: from.u64()?, rkey: from.u32()? },
        9 => {
            let rkey = from.u32()?;
            let range = from.option(|from| Ok((from.u64()?, from.u32()?)))?;
            let scope = range.map_or(FlushScope::Region, |(va, len)| FlushScope::Range { va, len });
            let placement = Placement::from_bits(from.u8()?)
                .ok_or_else(|| from.wrong("there is no such placement"))?;
            SendOp::Flush { rkey, scope, placement }
        }
        10 => SendOp::LocalInv { rkey: from.u32()? },
        11 => SendOp::BindMw { mw: from.u32()?, rkey: from.u32()? },
        _ => return Err(from.wrong("there is no such operation")),
    })
}

pub(crate) fn flags(from: &mut Reader<'_>) -> Result<SendFlags> {
    SendFlags::from_bits(from.u32()?).ok_or_else(|| from.wrong("there is no such send flag"))
}

pub(crate) fn put_destination(out: &mut Writer, to: UdDestination) {
    out.u32(to.path.0);
    out.u32(to.qpn);
    out.u32(to.qkey);
}

pub(crate) fn destination(from: &mut Reader<'_>) -> Result<UdDestination> {
    let path = PathId(from.u32()?);
    Ok(UdDestination { path, twin: PathId::NONE, qpn: from.u32()?, qkey: from.u32()? })
}

/// Writes how a work request that can't succeed any more is to complete.
pub(crate) fn put_failure(out: &mut Writer, (status, cause): (WcStatus, Cause)) {
    out.u32(status as u32);
    out.u32(cause.number());
}

pub(crate) fn failure(from: &mut Reader<'_>) -> Result<(WcStatus, Cause)> {
    let status = from.u32()?;
    let known = [
        WcStatus::LocLenErr,
        WcStatus::LocQpOpErr,
        WcStatus::LocEecOpErr,
        WcStatus::LocProtErr,
        WcStatus::WrFlushErr,
        WcStatus::MwBindErr,
        WcStatus::BadRespErr,
        WcStatus::LocAccessErr,
        WcStatus::RemInvReqErr,
        WcStatus::RemAccessErr,
        WcStatus::RemOpErr,
        WcStatus::RetryExcErr,
        WcStatus::RnrRetryExcErr,
        WcStatus::RemAbortErr,
        WcStatus::FatalErr,
        WcStatus::RespTimeoutErr,
        WcStatus::GeneralErr,
    ];
    let status = known.into_iter().find(|known| *known as u32 == status);
    let status = status.ok_or_else(|| from.wrong("no work request fails like that"))?;
    let cause = from.u32()?;
    let cause = Cause::ALL.into_iter().find(|known| known.number() == cause);
    Ok((status, cause.ok_or_else(|| from.wrong("there is no such cause"))?))
}

pub(crate) fn put_reth(out: &mut Writer, reth: &Reth) {
    out.raw(&reth.to_bytes());
}

/// Reads a RETH as on the wire; no message is longer than 2^31 bytes.
pub(crate) fn reth(from: &mut Reader<'_>) -> Result<Reth> {
    let reth = Reth::parse(from.raw(Reth::LEN)?).map_err(|_| from.wrong("a RETH"))?;
    from.ensure(u64::from(reth.len) <= MAX_MESSAGE, "a message is longer than 2^31 bytes")?;
    Ok(reth)
}

/// Writes a packet's headers as on the wire.
pub(crate) fn put_headers(out: &mut Writer, headers: &Headers) {
    let mut buffer = [0; MAX_HEADERS_LEN];
    let len = headers.emit(&mut buffer);
    out.bytes(&buffer[..len]);
}

pub(crate) fn headers(from: &mut Reader<'_>) -> Result<Headers> {
    let bytes = from.bytes(MAX_HEADERS_LEN, "a packet's headers are too long")?;
    let headers = Headers::parse(bytes).map_err(|_| from.wrong("a packet's headers"))?;
    from.ensure(headers.len() == bytes.len(), "a packet's headers are too long")?;
    Ok(headers)
}

/// Reads a packet's payload, or the part of memory that stands for it.
pub(crate) fn payload<'a>(from: &mut Reader<'a>) -> Result<&'a [u8]> {
    from.bytes(PAYLOAD_MAX, "a packet's payload is too long")
}
