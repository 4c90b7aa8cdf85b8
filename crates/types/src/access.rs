//! Access rights of memory, and how far written data is to be flushed.

use bitflags::bitflags;

bitflags! {
    /// Access rights of a memory region or of a remote operation (`enum ibv_access_flags`; same bits).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The device may write to the memory (receive buffers, READ responses).
        const LOCAL_WRITE = 1;
        /// A peer may write to the memory by RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read the memory by RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may execute atomics on the memory.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses in the region count from zero.
        const ZERO_BASED = 1 << 5;
        /// Pages need not be resident when the region is registered.
        const ON_DEMAND = 1 << 6;
        /// The memory consists of huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may FLUSH the memory to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may FLUSH the memory to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be placed in another order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

bitflags! {
    /// The depth to which a FLUSH places data (`enum ibv_placement_type`; same bits).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Placement: u8 {
        /// Global visibility: everything at the peer sees the data.
        const GLOBAL = 1;
        /// Persistence: the data survives a loss of power.
        const PERSISTENT = 1 << 1;
    }
}

impl Placement {
    /// The rights that a FLUSH with this placement needs (annex A19).
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

/// The memory that a FLUSH covers (`enum ibv_selectivity_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushScope {
    /// A range of the region.
    Range {
        /// Virtual address of the first byte.
        va: u64,
        /// Length in bytes.
        len: u32,
    },
    /// The whole region.
    Region,
}
