//! Work requests, and why one is not taken.

use bitflags::bitflags;
use smallvec::SmallVec;

use crate::{FlushScope, PathId, Placement, QpState};

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

impl SendData<'_> {
    /// Its length in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| sge.len as usize).sum(),
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// Where a UD send goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The way there; the host resolved the address handle. [`PathId::NONE`] if the address handle is
    /// of another protection domain than the queue pair: the work request then fails.
    pub path: PathId,
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
    /// Whether it is signaled, fenced, solicited, and the like.
    pub flags: SendFlags,
    /// The payload, or where it lies.
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

/// Why a work request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full (`ENOMEM`).
    #[error("the work queue is full: poll the completion queue first")]
    Full,
    /// The work request makes no sense (`EINVAL`).
    #[error("invalid work request: {0}")]
    Invalid(&'static str),
    /// The queue pair's state takes none (`EINVAL`).
    #[error("a queue pair in state {0:?} takes no such work request")]
    State(QpState),
}

impl PostError {
    /// The `errno` that `ibv_post_send` or `ibv_post_recv` returns.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Full => 12,
            Self::Invalid(_) | Self::State(_) => 22,
        }
    }
}
