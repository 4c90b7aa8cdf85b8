//! Queue pairs: kinds, states, attributes, events.

use bitflags::bitflags;

use crate::Access;

/// `enum ibv_qp_type`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum QpType {
    Rc = 2,
    Uc = 3,
    Ud = 4,
    /// Initiator: sends, has no receive side.
    XrcSend = 9,
    /// Target: what it receives goes to the shared receive queue that the request names.
    XrcRecv = 10,
}

impl QpType {
    /// Extended reliable connection, either side (IBTA annex A14).
    pub const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcRecv)
    }
}

/// `enum ibv_qp_state`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

/// `enum ibv_mig_state`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum MigState {
    Migrated = 0,
    Rearm = 1,
    Armed = 2,
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its number, 24 bits.
    pub qpn: u32,
    /// Its transport service.
    pub qp_type: QpType,
    /// Protection domain; opaque here, handed back to the host with every key. An XRC target has
    /// none: that of the shared receive queue counts.
    pub pd: u32,
    /// Every send is signaled.
    pub sq_sig_all: bool,
    /// Receives come from a shared receive queue of the host.
    pub srq: bool,
    /// Most send work requests outstanding.
    pub max_send_wr: u32,
    /// Most receive work requests outstanding.
    pub max_recv_wr: u32,
    /// Most elements of a send gather list.
    pub max_send_sge: u32,
    /// Most elements of a receive scatter list.
    pub max_recv_sge: u32,
    /// Most bytes of inline data.
    pub max_inline: u32,
}

bitflags! {
    /// `enum ibv_qp_attr_mask`; same bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QpAttrMask: u32 {
        /// `IBV_QP_STATE`.
        const STATE = 1;
        /// `IBV_QP_CUR_STATE`.
        const CUR_STATE = 1 << 1;
        /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `IBV_QP_ACCESS_FLAGS`.
        const ACCESS_FLAGS = 1 << 3;
        /// `IBV_QP_PKEY_INDEX`.
        const PKEY_INDEX = 1 << 4;
        /// `IBV_QP_PORT`.
        const PORT = 1 << 5;
        /// `IBV_QP_QKEY`.
        const QKEY = 1 << 6;
        /// `IBV_QP_AV`.
        const AV = 1 << 7;
        /// `IBV_QP_PATH_MTU`.
        const PATH_MTU = 1 << 8;
        /// `IBV_QP_TIMEOUT`.
        const TIMEOUT = 1 << 9;
        /// `IBV_QP_RETRY_CNT`.
        const RETRY_CNT = 1 << 10;
        /// `IBV_QP_RNR_RETRY`.
        const RNR_RETRY = 1 << 11;
        /// `IBV_QP_RQ_PSN`.
        const RQ_PSN = 1 << 12;
        /// `IBV_QP_MAX_QP_RD_ATOMIC`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `IBV_QP_ALT_PATH`.
        const ALT_PATH = 1 << 14;
        /// `IBV_QP_MIN_RNR_TIMER`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `IBV_QP_SQ_PSN`.
        const SQ_PSN = 1 << 16;
        /// `IBV_QP_MAX_DEST_RD_ATOMIC`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `IBV_QP_PATH_MIG_STATE`.
        const PATH_MIG_STATE = 1 << 18;
        /// `IBV_QP_CAP`.
        const CAP = 1 << 19;
        /// `IBV_QP_DEST_QPN`.
        const DEST_QPN = 1 << 20;
        /// `IBV_QP_RATE_LIMIT`.
        const RATE_LIMIT = 1 << 25;
    }
}

/// `struct ibv_ah_attr`, as far as RoCE uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AhAttr {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// 20 bits; non-zero: chooses the UDP source port.
    pub flow_label: u32,
    /// Index of the local GID.
    pub sgid_index: u8,
    /// TTL.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Kept for queries.
    pub dlid: u16,
    /// Service level; kept for queries.
    pub sl: u8,
    /// Kept for queries.
    pub src_path_bits: u8,
    /// Kept for queries.
    pub static_rate: u8,
    /// A GRH is there; RoCE wants it so.
    pub is_global: bool,
    /// Port, from 1.
    pub port_num: u8,
}

/// `struct ibv_qp_attr`; fields valid as the mask says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QpAttr {
    pub state: QpState,
    pub cur_state: QpState,
    /// Bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    pub path_mig_state: MigState,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qpn: u32,
    pub access: Access,
    pub ah: AhAttr,
    pub alt_ah: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics answered as responder.
    pub max_dest_rd_atomic: u8,
    /// Encoded as in the RNR NAK, 0–31.
    pub min_rnr_timer: u8,
    pub port_num: u8,
    /// 4.096 µs × 2^timeout; 0: for ever. 0–31.
    pub timeout: u8,
    /// 0–7.
    pub retry_cnt: u8,
    /// 0–7; 7: for ever.
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
}

impl QpAttr {
    /// Attributes of a queue pair in `state`: everything zero, the path MTU its smallest, the
    /// migration state MIGRATED, as after creation.
    pub fn new(state: QpState) -> Self {
        Self {
            state,
            cur_state: state,
            path_mtu: 256,
            path_mig_state: MigState::Migrated,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qpn: 0,
            access: Access::empty(),
            ah: AhAttr::default(),
            alt_ah: AhAttr::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            alt_port_num: 0,
            alt_timeout: 0,
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline: 0,
        }
    }
}

/// Asynchronous events that a queue pair raises (`enum ibv_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum QpEvent {
    Fatal,
    RequestError,
    AccessError,
    CommEstablished,
    SqDrained,
    PathMig,
    PathMigError,
    LastWqeReached,
}
