//! Queue pairs: types, states, attributes and events.

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
    /// XRC initiator: it sends requests and has no receive queue.
    XrcSend = 9,
    /// XRC target: messages that it receives go to the shared receive queue that the request names.
    XrcRecv = 10,
}

impl QpType {
    /// Whether it is an extended reliable connection, initiator or target (IBTA annex A14).
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

/// The parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Its queue pair number, 24 bits.
    pub qpn: u32,
    /// Its transport service.
    pub qp_type: QpType,
    /// Its protection domain, an opaque number that is passed to the host with every key. An XRC target
    /// has none: that of the shared receive queue is used.
    pub pd: u32,
    /// Whether every send is signaled.
    pub sq_sig_all: bool,
    /// Whether it takes receives from a shared receive queue of the host.
    pub srq: bool,
    /// The largest number of outstanding send work requests.
    pub max_send_wr: u32,
    /// The largest number of outstanding receive work requests.
    pub max_recv_wr: u32,
    /// The largest number of elements of a send gather list.
    pub max_send_sge: u32,
    /// The largest number of elements of a receive scatter list.
    pub max_recv_sge: u32,
    /// The largest number of bytes of inline data.
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

/// `struct ibv_ah_attr`, with the fields that RoCE uses or queries return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AhAttr {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Flow label, 20 bits. If it is not zero, it determines the UDP source port.
    pub flow_label: u32,
    /// Index of the local GID.
    pub sgid_index: u8,
    /// Hop limit or TTL.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Destination LID; kept for queries.
    pub dlid: u16,
    /// Service level; kept for queries.
    pub sl: u8,
    /// Source path bits; kept for queries.
    pub src_path_bits: u8,
    /// Static rate; kept for queries.
    pub static_rate: u8,
    /// Whether there is a GRH; RoCE requires it.
    pub is_global: bool,
    /// Port number, from 1.
    pub port_num: u8,
}

/// `struct ibv_qp_attr`. The mask says which fields are valid. Fields without a description are as in
/// `ibv_modify_qp(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QpAttr {
    /// The state to enter, or the present state of a query.
    pub state: QpState,
    /// The state that the program takes the queue pair to be in.
    pub cur_state: QpState,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
    pub path_mig_state: MigState,
    /// Q_Key (UD).
    pub qkey: u32,
    /// The first PSN that it expects, 24 bits.
    pub rq_psn: u32,
    /// The first PSN that it sends, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair number, 24 bits.
    pub dest_qpn: u32,
    pub access: Access,
    pub ah: AhAttr,
    pub alt_ah: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    /// The largest number of outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// The largest number of READs and atomics that it answers at a time as responder.
    pub max_dest_rd_atomic: u8,
    /// The least RNR NAK timer, 0 to 31, encoded as in the RNR NAK (IBTA table 45).
    pub min_rnr_timer: u8,
    pub port_num: u8,
    /// Local ACK timeout, 0 to 31: 4.096 µs × 2^timeout; 0 means no timeout.
    pub timeout: u8,
    /// Retry count, 0 to 7.
    pub retry_cnt: u8,
    /// RNR retry count, 0 to 7; 7 means without limit.
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
    /// The attributes of a new queue pair, in `state`: the path MTU is 256 bytes, the migration state
    /// is MIGRATED, and everything else is zero.
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
