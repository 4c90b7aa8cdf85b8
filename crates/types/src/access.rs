//! What may be done with memory, and how far what was written is to get.

use bitflags::bitflags;

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
