//! The words of the verbs API as Rust types: work requests, completions, states and attributes.

use bitflags::bitflags;
use smallvec::SmallVec;

bitflags! {
    /// Access rights of a memory region or of a remote operation (`enum ibv_access_flags`; same bits).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The device may write it (receive buffers, read responses).
        const LOCAL_WRITE = 1;
        /// A peer may RDMA WRITE it.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may RDMA READ it.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute atomics on it.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero.
        const ZERO_BASED = 1 << 5;
        /// Pages need not be resident when registered.
        const ON_DEMAND = 1 << 6;
        /// Huge pages.
        const HUGETLB = 1 << 7;
        /// FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be placed out of order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// How far data is to be flushed (`enum ibv_placement_type`; same bits).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Placement: u8 {
        /// Everything at the peer sees it.
        const GLOBAL = 1;
        /// It outlives a loss of power.
        const PERSISTENT = 1 << 1;
    }
}

impl Placement {
    /// The rights that it needs (annex A19).
    pub const fn rights(self) -> Access {
        let global =
            if self.contains(Self::GLOBAL) { Access::FLUSH_GLOBAL } else { Access::empty() };
        if self.contains(Self::PERSISTENT) {
            global.union(Access::FLUSH_PERSISTENT)
        } else {
            global
        }
    }
}

/// What is to be flushed (`enum ibv_selectivity_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushScope {
    /// This range of the region.
    Range {
        /// First byte.
        va: u64,
        /// Bytes.
        len: u32,
    },
    /// All of the region.
    Region,
}

bitflags! {
    /// `enum ibv_send_flags`; same bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics of this queue pair.
        const FENCE = 1;
        /// Report a completion although the queue pair is not `sq_sig_all`.
        const SIGNALED = 1 << 1;
        /// Solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// The data was copied when posted.
        const INLINE = 1 << 3;
        /// Checksum offload: means nothing here, accepted.
        const IP_CSUM = 1 << 4;
    }
}

/// `struct ibv_sge`, in the same layout: the C interface passes lists on without copying them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Start, in the address space of the region `lkey`.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Local key.
    pub lkey: u32,
}

/// Scatter/gather lists kept inside a work queue element.
pub type Sges = SmallVec<[Sge; 4]>;

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SendOp {
    Send,
    /// Immediate data in wire order, as `imm_data` is.
    SendImm([u8; 4]),
    SendInv {
        rkey: u32,
    },
    Write {
        va: u64,
        rkey: u32,
    },
    WriteImm {
        va: u64,
        rkey: u32,
        imm: [u8; 4],
    },
    Read {
        va: u64,
        rkey: u32,
    },
    CompareSwap {
        va: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        va: u64,
        rkey: u32,
        add: u64,
    },
    /// 8 bytes, written at once and after all before it.
    AtomicWrite {
        va: u64,
        rkey: u32,
    },
    /// What was written before it is placed as far as asked for before this completes.
    Flush {
        rkey: u32,
        scope: FlushScope,
        placement: Placement,
    },
    /// Type 2 window or fast registered region made unusable; purely local.
    LocalInv {
        rkey: u32,
    },
    /// Memory window bind; executed in order, purely local. The host carries it out.
    BindMw {
        mw: u32,
        rkey: u32,
    },
}

/// The payload of a posted send.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory, read when transmitted.
    Sges(&'a [Sge]),
    /// Copied at post time (`IBV_SEND_INLINE`).
    Inline(&'a [u8]),
}

/// Where a UD send goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The way there; the host resolved the address handle.
    pub path: crate::PathId,
    /// Remote queue pair number, 24 bits.
    pub qpn: u32,
    /// Q_Key; if its highest bit is set the queue pair's own is sent instead (IBTA 10.2.5).
    pub qkey: u32,
}

/// A send work request (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// With what.
    pub data: SendData<'a>,
    /// UD only.
    pub ud: Option<UdDestination>,
}

/// A receive work request (`struct ibv_recv_wr`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where received data goes.
    pub sges: Sges,
}

/// `enum ibv_wc_status`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    RemAbortErr = 16,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

/// `enum ibv_wc_opcode`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// One completion (`struct ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Why, for people: see [`crate::Cause`] numbers; 0 when successful.
    pub vendor_err: u32,
    /// Bytes received or read (UD: with the 40 bytes of the GRH).
    pub byte_len: u32,
    /// Immediate data in wire order.
    pub imm: Option<[u8; 4]>,
    /// The key that the peer asked to invalidate and that was.
    pub invalidated_rkey: Option<u32>,
    /// Local queue pair.
    pub qpn: u32,
    /// Remote queue pair (UD).
    pub src_qpn: u32,
    /// The header that is in the first 40 bytes (UD).
    pub grh: Option<NetworkHeader>,
    /// The sender asked for a solicited event (or it is an error).
    pub solicited: bool,
}

/// The network header of a received datagram (IBTA A17.4.5.1: part of the remote address information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// In the last 20 of the 40 bytes.
    Ipv4,
    /// In all 40 bytes.
    Ipv6,
}

impl NetworkHeader {
    /// Tells it from the 40 bytes; those before an IPv4 header are zero.
    pub fn of(header: &[u8; 40]) -> Self {
        if header[0] >> 4 == 6 { Self::Ipv6 } else { Self::Ipv4 }
    }
}

/// Which completion queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CqSide {
    Send,
    Recv,
}

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
