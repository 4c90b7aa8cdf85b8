//! Converts queue pair attributes between the C structures and the traits.

use libc::c_int;
use polypath_verbs::{
    Access, AhAttr, Error, MigState, QpAttr, QpAttrMask, QpState, QpType, Result,
};

use crate::ah::{address, c_address};
use crate::layout::{ibv_qp_attr, ibv_qp_cap};
use crate::memory::OPTIONAL;
use crate::query::mtu_code;

/// The rights that apply to a queue pair. Programs also pass rights of their regions; rxe and
/// hardware ignore those.
const QP_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// The largest number of retries, and the one of RNR retries that means without end.
const RETRIES_MAX: u8 = 7;

/// `enum ibv_qp_type`.
pub(crate) fn qp_type(code: c_int) -> Result<QpType> {
    match code {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        9 => Ok(QpType::XrcSend),
        10 => Ok(QpType::XrcRecv),
        8 => Err(Error::unsupported(
            "raw packet queue pairs would need the interface itself, past the kernel's stack",
        )),
        0xff => Err(Error::unsupported("only RC, UC, UD and XRC queue pairs are supported")),
        _ => Err(Error::new(libc::EINVAL, format!("there is no queue pair type {code}"))),
    }
}

/// `enum ibv_qp_state`.
fn state(code: u32) -> Result<QpState> {
    Ok(match code {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        _ => return Err(Error::invalid(format!("{code} is not a queue pair state"))),
    })
}

fn migration(code: u32) -> Result<MigState> {
    Ok(match code {
        0 => MigState::Migrated,
        1 => MigState::Rearm,
        2 => MigState::Armed,
        _ => return Err(Error::invalid(format!("{code} is not a migration state"))),
    })
}

/// `enum ibv_mtu` in bytes.
fn mtu(code: u32) -> Result<u32> {
    match code {
        1..=5 => Ok(128 << code),
        _ => Err(Error::invalid(format!("{code} is not a path MTU: use an `enum ibv_mtu`"))),
    }
}

/// Converts a field if the mask has its bit. Fields without their bit may contain anything.
fn masked<T>(given: bool, otherwise: T, value: impl FnOnce() -> Result<T>) -> Result<T> {
    if given { value() } else { Ok(otherwise) }
}

/// Converts the attributes of `ibv_modify_qp`.
pub(crate) fn attributes(attr: &ibv_qp_attr, mask: c_int) -> Result<(QpAttr, QpAttrMask)> {
    let mask = QpAttrMask::from_bits(mask.cast_unsigned())
        .ok_or_else(|| Error::invalid(format!("unknown bits in attr_mask {mask:#x}")))?;
    let has = |bit: QpAttrMask| mask.contains(bit);
    let av = |bit, of| if has(bit) { address(of) } else { AhAttr::default() };
    let converted = QpAttr {
        state: masked(has(QpAttrMask::STATE), QpState::Reset, || state(attr.qp_state))?,
        cur_state: masked(has(QpAttrMask::CUR_STATE), QpState::Reset, || state(attr.cur_qp_state))?,
        path_mtu: masked(has(QpAttrMask::PATH_MTU), 0, || mtu(attr.path_mtu))?,
        path_mig_state: masked(has(QpAttrMask::PATH_MIG_STATE), MigState::Migrated, || {
            migration(attr.path_mig_state)
        })?,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qpn: attr.dest_qp_num,
        access: masked(has(QpAttrMask::ACCESS_FLAGS), Access::empty(), || {
            let known = Access::all().bits();
            Access::from_bits(attr.qp_access_flags & (known | !OPTIONAL))
                .map(|access| access & QP_ACCESS)
                .ok_or_else(|| Error::invalid("unknown bits in qp_access_flags"))
        })?,
        ah: av(QpAttrMask::AV, &attr.ah_attr),
        alt_ah: av(QpAttrMask::ALT_PATH, &attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: false,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        // The wire has five bits for it. Adapters and rxe ignore any others.
        min_rnr_timer: attr.min_rnr_timer & 0x1f,
        port_num: attr.port_num,
        timeout: attr.timeout,
        // They have three bits (IBTA 11.2.5.2). Linux takes larger numbers, so programs have them. RNR
        // retries stay finite then.
        retry_cnt: attr.retry_cnt.min(RETRIES_MAX),
        rnr_retry: if attr.rnr_retry > RETRIES_MAX { RETRIES_MAX - 1 } else { attr.rnr_retry },
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        max_send_wr: attr.cap.max_send_wr,
        max_recv_wr: attr.cap.max_recv_wr,
        max_send_sge: attr.cap.max_send_sge,
        max_recv_sge: attr.cap.max_recv_sge,
        max_inline: attr.cap.max_inline_data,
    };
    Ok((converted, mask))
}

/// The sizes in the attributes.
pub(crate) fn capacities(attr: &QpAttr) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: attr.max_send_wr,
        max_recv_wr: attr.max_recv_wr,
        max_send_sge: attr.max_send_sge,
        max_recv_sge: attr.max_recv_sge,
        max_inline_data: attr.max_inline,
    }
}

/// Converts the attributes for `ibv_query_qp`.
pub(crate) fn c_attributes(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.cur_state as u32,
        path_mtu: mtu_code(attr.path_mtu),
        path_mig_state: attr.path_mig_state as u32,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access.bits(),
        cap: capacities(attr),
        ah_attr: c_address(&attr.ah),
        alt_ah_attr: c_address(&attr.alt_ah),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_without_their_bit_are_not_looked_at() {
        let rubbish = ibv_qp_attr {
            qp_state: 99,
            path_mtu: 99,
            qp_access_flags: u32::MAX,
            ..ibv_qp_attr::default()
        };
        assert!(attributes(&rubbish, 0).is_ok());
        for bit in [1, 1 << 3, 1 << 8] {
            assert_eq!(attributes(&rubbish, bit).unwrap_err().errno, libc::EINVAL);
        }
        assert_eq!(attributes(&ibv_qp_attr::default(), 1 << 30).unwrap_err().errno, libc::EINVAL);
    }

    #[test]
    fn optional_rights_of_regions_are_ignored() {
        let access = |bits| {
            let given = ibv_qp_attr { qp_access_flags: bits, ..ibv_qp_attr::default() };
            attributes(&given, QpAttrMask::ACCESS_FLAGS.bits().cast_signed())
                .map(|(attr, _)| attr.access)
        };
        let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        assert_eq!(access(write.bits() | OPTIONAL).unwrap(), write);
        assert_eq!(access(write.bits() | 1 << 30).unwrap_err().errno, libc::EINVAL);
    }

    #[test]
    fn the_rnr_timer_has_five_bits_and_retries_have_three() {
        let given = ibv_qp_attr { min_rnr_timer: 0x20 | 12, ..ibv_qp_attr::default() };
        let bits = QpAttrMask::MIN_RNR_TIMER.bits().cast_signed();
        assert_eq!(attributes(&given, bits).unwrap().0.min_rnr_timer, 12);
        let bits = (QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY).bits().cast_signed();
        let many = ibv_qp_attr { retry_cnt: 12, rnr_retry: 10, ..ibv_qp_attr::default() };
        let taken = attributes(&many, bits).unwrap().0;
        assert_eq!((taken.retry_cnt, taken.rnr_retry), (7, 6), "not without end");
    }

    #[test]
    fn what_is_set_is_what_is_queried() {
        let given = ibv_qp_attr {
            qp_state: 2,
            path_mtu: 4,
            dest_qp_num: 0x12_3456,
            timeout: 14,
            ..ibv_qp_attr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN;
        let (attr, _) = attributes(&given, mask.bits().cast_signed()).unwrap();
        assert_eq!((attr.state, attr.path_mtu), (QpState::Rtr, 2048));
        let back = c_attributes(&attr);
        assert_eq!((back.qp_state, back.path_mtu, back.dest_qp_num), (2, 4, 0x12_3456));
    }
}
