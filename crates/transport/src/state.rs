//! Which state changes a queue pair allows, and with which attributes.
//!
//! The table is IBTA 11.2.5.2 as the Linux kernel enforces it for every device; anything else fails
//! with `EINVAL`.

use polypath_types::{Access, MigState, QpAttr, QpAttrMask as M, QpState as S, QpType};

/// The most READs and atomics in flight, each way; a device may report it as `max_qp_rd_atom`.
pub const MAX_RD_ATOMIC: u8 = 128;

/// The longest message, in bytes (IBTA 9.7.8).
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// Why `modify` changed nothing. Each of these is `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// This state can't follow the current one.
    #[error("a queue pair does not go from {from:?} to {to:?}")]
    Transition {
        /// The state that the change was checked from.
        from: S,
        /// The state asked for.
        to: S,
    },
    /// The state change needs these attributes as well.
    #[error("going from {from:?} to {to:?} needs {missing:?} too")]
    Missing {
        /// The state that the change was checked from.
        from: S,
        /// The state asked for.
        to: S,
        /// The attributes that the mask lacks.
        missing: M,
    },
    /// The state change does not accept these attributes.
    #[error("going from {from:?} to {to:?} can't set {excess:?}")]
    Excess {
        /// The state that the change was checked from.
        from: S,
        /// The state asked for.
        to: S,
        /// The attributes that the mask has in excess.
        excess: M,
    },
    /// `cur_qp_state` is not the state of the queue pair, or not one that may be named.
    #[error("cur_qp_state is {claimed:?}, the queue pair is in {actual:?}")]
    CurrentState {
        /// The state that the caller named.
        claimed: S,
        /// The state of the queue pair.
        actual: S,
    },
    /// The send queue is still draining.
    #[error("the send queue is still draining: wait for the SQ_DRAINED event")]
    Draining,
    /// The migration state does not change like that.
    #[error("path_mig_state does not go from {now:?} to {wish:?}: {why}")]
    Migration {
        /// The migration state.
        now: MigState,
        /// The one asked for.
        wish: MigState,
        /// What to do instead.
        why: &'static str,
    },
    /// An attribute's value is out of range.
    #[error("{what} is out of range: {value}")]
    Value {
        /// Which attribute.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}

impl ModifyError {
    /// The `errno` that `ibv_modify_qp` returns.
    pub const fn errno(&self) -> i32 {
        22 // EINVAL
    }
}

/// The attributes that a state change needs, and those that it accepts in addition. `None` if the
/// change is not allowed.
fn attributes(from: S, to: S, qp_type: QpType) -> Option<(M, M)> {
    use QpType::{Rc, Uc, Ud, XrcRecv, XrcSend};
    let none = M::empty();
    let init = match qp_type {
        Ud => M::PKEY_INDEX | M::PORT | M::QKEY,
        Uc | Rc | XrcSend | XrcRecv => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
    };
    // Attributes that may change whenever the queue pair goes to RTS.
    let to_rts = match qp_type {
        Ud => M::CUR_STATE | M::QKEY,
        Uc | XrcSend => M::CUR_STATE | M::ALT_PATH | M::ACCESS_FLAGS | M::PATH_MIG_STATE,
        Rc | XrcRecv => {
            M::CUR_STATE | M::ALT_PATH | M::ACCESS_FLAGS | M::MIN_RNR_TIMER | M::PATH_MIG_STATE
        }
    };
    Some(match (from, to) {
        (_, S::Reset) => (none, none),
        (S::Reset, S::Err) => return None,
        (_, S::Err) => (none, none),
        (S::Reset, S::Init) => (init, none),
        (S::Init, S::Init) => (none, init),
        (S::Init, S::Rtr) => match qp_type {
            Ud => (none, M::PKEY_INDEX | M::QKEY),
            Uc | XrcSend => (
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
                M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX,
            ),
            Rc | XrcRecv => (
                M::AV
                    | M::PATH_MTU
                    | M::DEST_QPN
                    | M::RQ_PSN
                    | M::MAX_DEST_RD_ATOMIC
                    | M::MIN_RNR_TIMER,
                M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX,
            ),
        },
        (S::Rtr, S::Rts) => match qp_type {
            Ud | Uc => (M::SQ_PSN, to_rts),
            XrcRecv => (M::TIMEOUT | M::SQ_PSN, to_rts),
            Rc | XrcSend => {
                (M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC, to_rts)
            }
        },
        (S::Rts | S::Sqd, S::Rts) => (none, to_rts),
        (S::Sqe, S::Rts) => match qp_type {
            Ud => (none, M::CUR_STATE | M::QKEY),
            Uc => (none, M::CUR_STATE | M::ACCESS_FLAGS),
            Rc | XrcSend | XrcRecv => return None,
        },
        (S::Rts, S::Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (S::Sqd, S::Sqd) => match qp_type {
            Ud => (none, M::PKEY_INDEX | M::QKEY),
            Uc => (none, M::AV | M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX | M::PATH_MIG_STATE),
            Rc => (
                none,
                M::PORT
                    | M::AV
                    | M::TIMEOUT
                    | M::RETRY_CNT
                    | M::RNR_RETRY
                    | M::MAX_QP_RD_ATOMIC
                    | M::MAX_DEST_RD_ATOMIC
                    | M::ALT_PATH
                    | M::ACCESS_FLAGS
                    | M::PKEY_INDEX
                    | M::MIN_RNR_TIMER
                    | M::PATH_MIG_STATE,
            ),
            XrcSend => (
                none,
                M::PORT
                    | M::AV
                    | M::TIMEOUT
                    | M::RETRY_CNT
                    | M::RNR_RETRY
                    | M::MAX_QP_RD_ATOMIC
                    | M::ALT_PATH
                    | M::ACCESS_FLAGS
                    | M::PKEY_INDEX
                    | M::PATH_MIG_STATE,
            ),
            XrcRecv => (
                none,
                M::PORT
                    | M::AV
                    | M::TIMEOUT
                    | M::MAX_DEST_RD_ATOMIC
                    | M::ALT_PATH
                    | M::ACCESS_FLAGS
                    | M::PKEY_INDEX
                    | M::MIN_RNR_TIMER
                    | M::PATH_MIG_STATE,
            ),
        },
        _ => return None,
    })
}

/// The attributes that a queue pair of this type looks at. Programs set those of RC for both sides
/// of XRC; attributes that only the other side has are ignored, as the Linux kernel does.
pub(crate) fn relevant(qp_type: QpType, mask: M) -> M {
    match qp_type {
        QpType::XrcSend => mask - (M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
        QpType::XrcRecv => mask - (M::MAX_QP_RD_ATOMIC | M::RETRY_CNT | M::RNR_RETRY),
        QpType::Rc | QpType::Uc | QpType::Ud => mask,
    }
}

/// Checks a call of `modify` and returns the resulting state.
pub(crate) fn check(
    qp_type: QpType,
    actual: S,
    draining: bool,
    attr: &QpAttr,
    mask: M,
) -> Result<S, ModifyError> {
    let from = if mask.contains(M::CUR_STATE) {
        // Only these states can be entered without the consumer knowing (IBTA 11.2.5.2).
        let nameable = matches!(attr.cur_state, S::Rtr | S::Rts | S::Sqd | S::Sqe);
        if !nameable || attr.cur_state != actual {
            return Err(ModifyError::CurrentState { claimed: attr.cur_state, actual });
        }
        attr.cur_state
    } else {
        actual
    };
    let to = if mask.contains(M::STATE) { attr.state } else { from };
    let (needs, takes) =
        attributes(from, to, qp_type).ok_or(ModifyError::Transition { from, to })?;
    if !mask.contains(needs) {
        return Err(ModifyError::Missing { from, to, missing: needs - mask });
    }
    let excess = mask - (needs | takes | M::STATE);
    if !excess.is_empty() {
        return Err(ModifyError::Excess { from, to, excess });
    }
    if mask.contains(M::STATE) && from == S::Sqd && draining && !matches!(to, S::Err | S::Reset) {
        return Err(ModifyError::Draining);
    }
    check_values(attr, mask)?;
    Ok(to)
}

fn check_values(attr: &QpAttr, mask: M) -> Result<(), ModifyError> {
    let check = |set: M, what, value: u64, ok: bool| {
        if mask.contains(set) && !ok { Err(ModifyError::Value { what, value }) } else { Ok(()) }
    };
    let small = |set, what, value: u8, most: u8| check(set, what, u64::from(value), value <= most);
    check(
        M::PATH_MTU,
        "path_mtu",
        attr.path_mtu.into(),
        matches!(attr.path_mtu, 256 | 512 | 1024 | 2048 | 4096),
    )?;
    check(M::PORT, "port_num", attr.port_num.into(), attr.port_num != 0)?;
    check(M::ALT_PATH, "alt_port_num", attr.alt_port_num.into(), attr.alt_port_num != 0)?;
    check(M::PKEY_INDEX, "pkey_index", attr.pkey_index.into(), attr.pkey_index == 0)?;
    check(M::ALT_PATH, "alt_pkey_index", attr.alt_pkey_index.into(), attr.alt_pkey_index == 0)?;
    check(M::DEST_QPN, "dest_qp_num", attr.dest_qpn.into(), attr.dest_qpn <= 0xff_ffff)?;
    check(M::AV, "ah_attr.is_global", 0, attr.ah.is_global)?;
    check(M::ALT_PATH, "alt_ah_attr.is_global", 0, attr.alt_ah.is_global)?;
    check(
        M::ACCESS_FLAGS,
        "qp_access_flags",
        attr.access.bits().into(),
        (Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND
            | Access::FLUSH_GLOBAL
            | Access::FLUSH_PERSISTENT)
            .contains(attr.access),
    )?;
    small(M::TIMEOUT, "timeout", attr.timeout, 31)?;
    small(M::ALT_PATH, "alt_timeout", attr.alt_timeout, 31)?;
    small(M::RETRY_CNT, "retry_cnt", attr.retry_cnt, 7)?;
    small(M::RNR_RETRY, "rnr_retry", attr.rnr_retry, 7)?;
    small(M::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31)?;
    small(M::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic, MAX_RD_ATOMIC)?;
    small(M::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic, MAX_RD_ATOMIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [S; 7] = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err];
    const TYPES: [QpType; 5] =
        [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

    fn attr(state: S) -> QpAttr {
        let mut a = QpAttr::new(state);
        a.path_mtu = 1024;
        a.port_num = 1;
        a.alt_port_num = 1;
        a.ah.is_global = true;
        a.alt_ah.is_global = true;
        a
    }

    /// Exactly the attributes the transition needs.
    fn needed(from: S, to: S, t: QpType) -> Option<M> {
        attributes(from, to, t).map(|(needs, _)| needs | M::STATE)
    }

    #[test]
    fn any_state_goes_to_reset_and_all_but_reset_to_error() {
        for t in TYPES {
            for from in STATES {
                assert_eq!(check(t, from, true, &attr(S::Reset), M::STATE), Ok(S::Reset));
                let err = check(t, from, true, &attr(S::Err), M::STATE);
                assert_eq!(err.is_ok(), from != S::Reset);
            }
        }
    }

    #[test]
    fn only_the_transitions_of_the_table_exist() {
        // IBTA figure 124: besides RESET and ERR, which the test above covers.
        let legal = [
            (S::Reset, S::Init),
            (S::Init, S::Init),
            (S::Init, S::Rtr),
            (S::Rtr, S::Rts),
            (S::Rts, S::Rts),
            (S::Rts, S::Sqd),
            (S::Sqd, S::Sqd),
            (S::Sqd, S::Rts),
            (S::Sqe, S::Rts),
        ];
        for t in TYPES {
            let has_sqe = matches!(t, QpType::Uc | QpType::Ud);
            for from in STATES {
                for to in STATES.into_iter().filter(|s| !matches!(s, S::Reset | S::Err)) {
                    let expected =
                        legal.contains(&(from, to)) && (has_sqe || (from, to) != (S::Sqe, S::Rts));
                    let mask = needed(from, to, t).unwrap_or(M::STATE);
                    let got = check(t, from, false, &attr(to), mask);
                    assert_eq!(got.is_ok(), expected, "{t:?} {from:?} to {to:?}: {got:?}");
                }
            }
        }
    }

    #[test]
    fn every_required_attribute_is_required() {
        for t in TYPES {
            for (from, to) in [(S::Reset, S::Init), (S::Init, S::Rtr), (S::Rtr, S::Rts)] {
                let needs = needed(from, to, t).unwrap();
                for one in (needs - M::STATE).iter() {
                    let got = check(t, from, false, &attr(to), needs - one);
                    assert_eq!(got, Err(ModifyError::Missing { from, to, missing: one }));
                }
            }
        }
    }

    #[test]
    fn xrc_passes_over_what_only_the_other_side_has() {
        let both = M::MAX_QP_RD_ATOMIC | M::MAX_DEST_RD_ATOMIC | M::AV;
        assert_eq!(relevant(QpType::XrcSend, both), M::MAX_QP_RD_ATOMIC | M::AV);
        assert_eq!(relevant(QpType::XrcRecv, both), M::MAX_DEST_RD_ATOMIC | M::AV);
        assert_eq!(relevant(QpType::Rc, both), both);
        // What RC needs for RTS is enough for either side, and is not too much.
        let rc = needed(S::Rtr, S::Rts, QpType::Rc).unwrap();
        for t in [QpType::XrcSend, QpType::XrcRecv] {
            assert_eq!(check(t, S::Rtr, false, &attr(S::Rts), relevant(t, rc)), Ok(S::Rts));
        }
    }

    #[test]
    fn attributes_that_do_not_belong_are_refused() {
        let a = attr(S::Init);
        let mask = needed(S::Reset, S::Init, QpType::Rc).unwrap() | M::QKEY;
        let got = check(QpType::Rc, S::Reset, false, &a, mask);
        assert_eq!(got, Err(ModifyError::Excess { from: S::Reset, to: S::Init, excess: M::QKEY }));
        assert_eq!(got.unwrap_err().errno(), 22);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let mask = needed(S::Init, S::Rtr, QpType::Rc).unwrap();
        let mut a = attr(S::Rtr);
        assert!(check(QpType::Rc, S::Init, false, &a, mask).is_ok());
        a.path_mtu = 1500;
        assert_eq!(
            check(QpType::Rc, S::Init, false, &a, mask),
            Err(ModifyError::Value { what: "path_mtu", value: 1500 })
        );
        let mask = needed(S::Rtr, S::Rts, QpType::Rc).unwrap();
        let mut a = attr(S::Rts);
        a.timeout = 32;
        assert!(check(QpType::Rc, S::Rtr, false, &a, mask).is_err());
        a.timeout = 31;
        a.retry_cnt = 8;
        assert!(check(QpType::Rc, S::Rtr, false, &a, mask).is_err());
    }

    #[test]
    fn a_draining_queue_goes_nowhere_but_to_error_or_reset() {
        let got = check(QpType::Rc, S::Sqd, true, &attr(S::Rts), M::STATE);
        assert_eq!(got, Err(ModifyError::Draining));
        assert!(check(QpType::Rc, S::Sqd, false, &attr(S::Rts), M::STATE).is_ok());
    }

    #[test]
    fn a_wrong_current_state_is_refused() {
        let mut a = attr(S::Rts);
        a.cur_state = S::Sqd;
        let got = check(QpType::Rc, S::Rts, false, &a, M::STATE | M::CUR_STATE);
        assert!(matches!(got, Err(ModifyError::CurrentState { .. })));
    }
}
