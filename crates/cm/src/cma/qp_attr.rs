//! The attributes with which an application moves its queue pair from state to state.

use crate::abi::qp_attr::{AhAttr, QP_ATTR_LEN, QpAttr, mask};
use crate::apm::AlternatePath;
use crate::env::FileId;
use crate::ibcm::{Connection, State};
use crate::ids::{CmId, QpType};
use crate::{Cm, errno};

/// `enum ibv_qp_state`.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;

/// `IBV_MIG_REARM`.
const MIG_REARM: u32 = 1;

/// `enum ibv_access_flags`.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
const FLUSH_GLOBAL: u32 = 1 << 8;
const FLUSH_PERSISTENT: u32 = 1 << 9;

impl Cm {
    pub(super) fn init_qp_attr(
        &mut self,
        file: FileId,
        id: u32,
        state: u32,
        out_len: usize,
    ) -> Result<Vec<u8>, i32> {
        if out_len < QP_ATTR_LEN {
            return Err(errno::ENOSPC);
        }
        let id = self.ids.named_with_device(file, id)?;
        let connection = id.connection.and_then(|c| self.ib.get(c));
        let mut attr = match connection {
            Some(connection) if id.qp_type != QpType::Ud => {
                connected(id, connection, state).ok_or(errno::EINVAL)?
            }
            _ => unconnected(id)?,
        };
        attr.state = state;
        if let Some(alternate) = connection.and_then(|c| c.migration.alternate) {
            with_alternate(&mut attr, id, &alternate);
        }
        if state == RTR {
            attr.rq_psn = id.first_psn;
        }
        if let (Some(timeout), true) = (id.options.ack_timeout, attr.mask & mask::TIMEOUT != 0) {
            attr.timeout = timeout;
        }
        Ok(attr.encode())
    }
}

/// Adds the alternate path on which REQ and REP agreed, so that the application arms its queue pair
/// although it knows nothing of migration. A path of another device is the host's alone to load.
fn with_alternate(attr: &mut QpAttr, id: &CmId, alternate: &AlternatePath) {
    let device = id.attachment.map(|a| a.device.node_guid);
    if !matches!(attr.state, RTR | RTS) || device != Some(alternate.device.node_guid) {
        return;
    }
    attr.mask |= mask::ALT_PATH;
    attr.alt_ah_attr = Some(AhAttr {
        dgid: alternate.remote_gid,
        flow_label: alternate.flow_label,
        sgid_index: alternate.device.gid_index,
        hop_limit: alternate.hop_limit,
        traffic_class: alternate.traffic_class,
        port_num: alternate.device.port_num,
        ..AhAttr::default()
    });
    attr.alt_pkey_index = alternate.pkey_index;
    attr.alt_timeout = alternate.ack_timeout;
    if attr.state == RTS {
        attr.mask |= mask::PATH_MIG_STATE;
        attr.path_mig_state = MIG_REARM;
    }
}

/// The attributes of an id without a connection. A datagram queue pair needs no more than these.
fn unconnected(id: &mut CmId) -> Result<QpAttr, i32> {
    let port_num = id.attachment.map_or(0, |a| a.device.port_num);
    let attr =
        QpAttr { mask: mask::STATE | mask::PKEY_INDEX | mask::PORT, port_num, ..QpAttr::default() };
    Ok(match id.qp_type {
        QpType::Ud => QpAttr { mask: attr.mask | mask::QKEY, qkey: id.settle_qkey(0)?, ..attr },
        _ => QpAttr { mask: attr.mask | mask::ACCESS_FLAGS, ..attr },
    })
}

/// The attributes of a transition, if enough is known about the peer.
fn connected(id: &CmId, c: &Connection, to: u32) -> Option<QpAttr> {
    let knows_peer = match c.state {
        State::ReqRcvd
        | State::MraReqSent
        | State::RepRcvd
        | State::RepSent
        | State::MraRepRcvd
        | State::Established => true,
        State::ReqSent | State::MraReqRcvd => false,
        _ => return None,
    };
    match to {
        INIT => Some(init(id, c)),
        RTR if knows_peer => rtr(id, c),
        RTS if knows_peer => Some(rts(c)),
        _ => None,
    }
}

fn init(id: &CmId, c: &Connection) -> QpAttr {
    let reads = match c.qp.responder_resources {
        0 => 0,
        _ => REMOTE_READ | REMOTE_ATOMIC | FLUSH_GLOBAL | FLUSH_PERSISTENT,
    };
    QpAttr {
        mask: mask::STATE | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT,
        access_flags: REMOTE_WRITE | reads,
        port_num: id.attachment.map_or(0, |a| a.device.port_num),
        ..QpAttr::default()
    }
}

fn rtr(id: &CmId, c: &Connection) -> Option<QpAttr> {
    let attr = QpAttr {
        mask: mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN,
        ah_attr: Some(c.path.ah_attr(&id.attachment?.device)),
        path_mtu: c.path.mtu.into(),
        dest_qp_num: c.qp.remote_qpn,
        rq_psn: c.qp.rq_psn,
        ..QpAttr::default()
    };
    Some(match c.qp_type {
        QpType::Rc | QpType::XrcRecv => QpAttr {
            mask: attr.mask | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
            max_dest_rd_atomic: c.qp.responder_resources,
            min_rnr_timer: 0,
            ..attr
        },
        QpType::Uc | QpType::Ud | QpType::XrcSend => attr,
    })
}

fn rts(c: &Connection) -> QpAttr {
    let attr =
        QpAttr { mask: mask::STATE | mask::SQ_PSN, sq_psn: c.qp.sq_psn, ..QpAttr::default() };
    match c.qp_type {
        QpType::Rc | QpType::XrcSend => QpAttr {
            mask: attr.mask
                | mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC,
            timeout: c.qp.ack_timeout,
            retry_cnt: c.qp.retry_count,
            rnr_retry: c.qp.rnr_retry_count,
            max_rd_atomic: c.qp.initiator_depth,
            ..attr
        },
        QpType::XrcRecv => {
            QpAttr { mask: attr.mask | mask::TIMEOUT, timeout: c.qp.ack_timeout, ..attr }
        }
        QpType::Uc | QpType::Ud => attr,
    }
}
