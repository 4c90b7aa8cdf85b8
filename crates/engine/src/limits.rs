//! The limits of the device. `ibv_query_device` reports each of them. Going beyond one gives the
//! error that the man pages name.

/// Completion queue entries.
pub(crate) const MAX_CQE: u32 = 1 << 20;
/// Work requests of a send or receive queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 16;
/// Elements of a scatter/gather list.
pub(crate) const MAX_SGE: u32 = 32;
/// Work requests of a shared receive queue.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 20;
/// Inline data of a send, bytes.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Queue pairs of a lane. There are 16-bit indexes without 0, of which enough stay free that a
/// random free number is found quickly.
pub(crate) const MAX_QP_PER_LANE: usize = 48 * 1024;
/// Protection domains of a context.
pub(crate) const MAX_PD: u32 = 1 << 16;
/// Device memory of a context, bytes (`max_dm_size`).
pub(crate) const MAX_DM_BYTES: u64 = 8 << 20;
/// Allocations of device memory of a context.
pub(crate) const MAX_DM: usize = 4096;
/// Completion queues of a context.
pub(crate) const MAX_CQ: u32 = 1 << 16;
/// Shared receive queues of a context.
pub(crate) const MAX_SRQ: u32 = 1 << 16;
/// Address handles of a context.
pub(crate) const MAX_AH: u32 = 1 << 16;
/// Largest message, bytes (IBTA 9.3.3: 2^31).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
/// READs and atomics in flight per queue pair and direction.
pub(crate) const MAX_RD_ATOMIC: u32 = 128;
/// Multicast groups of a queue pair.
pub(crate) const MAX_MCAST_PER_QP: usize = 8192;
