//! Work requests, and the errors of posting them.

use bitflags::bitflags;
use smallvec::SmallVec;

use crate::{FlushScope, PathId, Placement, QpState};

bitflags! {
    /// `enum ibv_send_flags`; same bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// The request waits for earlier READs and atomics of this queue pair.
        const FENCE = 1;
        /// A completion is reported although the queue pair is not `sq_sig_all`.
        const SIGNALED = 1 << 1;
        /// The receiver gets a solicited event.
        const SOLICITED = 1 << 2;
        /// The data is copied when the request is posted.
        const INLINE = 1 << 3;
        /// Checksum offload; accepted, and without effect here.
        const IP_CSUM = 1 << 4;
    }
}

/// `struct ibv_sge`, in the same layout: the C interface passes lists on without copying them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the address space of the region `lkey`.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// A scatter/gather list inside a work queue element. Lists of up to four elements need no allocation.
pub type Sges = SmallVec<[Sge; 4]>;

/// The operation of a send work request.
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
    /// Writes 8 bytes at once, after all requests before it.
    AtomicWrite {
        va: u64,
        rkey: u32,
    },
    /// Flushes: it completes once everything written before it is placed as far as `placement` asks.
    Flush {
        rkey: u32,
        scope: FlushScope,
        placement: Placement,
    },
    /// Makes the key of a type 2 window or of a fast registered region invalid. It sends no packet.
    LocalInv {
        rkey: u32,
    },
    /// Binds a memory window. It is executed in order and sends no packet; the host carries it out.
    BindMw {
        mw: u32,
        rkey: u32,
    },
}

/// The payload of a posted send.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory, which is read when the packets are sent.
    Sges(&'a [Sge]),
    /// Data that is copied when the request is posted (`IBV_SEND_INLINE`).
    Inline(&'a [u8]),
}

impl SendData<'_> {
    /// The length in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        match self {
            Self::Sges(sges) => sges.iter().map(|sge| sge.len as usize).sum(),
            Self::Inline(bytes) => bytes.len(),
        }
    }
}

/// The destination of a UD send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The path to the destination, which the host resolved from the address handle. It is
    /// [`PathId::NONE`] if the address handle belongs to another protection domain than the queue pair;
    /// the work request then fails.
    pub path: PathId,
    /// The path of the second copy, if the datagram is to be sent by two; else [`PathId::NONE`].
    pub twin: PathId,
    /// Remote queue pair number, 24 bits.
    pub qpn: u32,
    /// The Q_Key. If its highest bit is set, the queue pair's own Q_Key is sent instead (IBTA 10.2.5).
    pub qkey: u32,
}

/// A send work request (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The program's identifier, which the completion contains.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The flags: whether it is signaled, fenced, solicited, inline.
    pub flags: SendFlags,
    /// The payload, or the list of its memory.
    pub data: SendData<'a>,
    /// The destination; UD only.
    pub ud: Option<UdDestination>,
}

/// A receive work request (`struct ibv_recv_wr`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvWr {
    /// The program's identifier, which the completion contains.
    pub wr_id: u64,
    /// The scatter list for received data.
    pub sges: Sges,
}

/// The reason why a work request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The work queue is full (`ENOMEM`).
    #[error("the work queue is full: poll the completion queue first")]
    Full,
    /// The work request is invalid (`EINVAL`).
    #[error("invalid work request: {0}")]
    Invalid(&'static str),
    /// The queue pair's state does not allow such work requests (`EINVAL`).
    #[error("a queue pair in state {0:?} accepts no such work request")]
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
