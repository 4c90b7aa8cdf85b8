//! Registered memory as queue pairs see it: checked first, then accessed.

use core::fmt;
use core::ops::Range;

use polypath_types::{Access, FlushScope, Sge};

/// A piece of memory that a [`Memory`] has checked. Only that can make one, and it is valid within the
/// call of the queue pair in which it was made.
pub trait Segment: Copy + fmt::Debug {
    /// Bytes.
    fn len(&self) -> u32;
    /// Nothing to access.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Addresses of the host that it covers. Segments that share bytes share addresses. An atomic needs
    /// a start that is a multiple of 8.
    fn span(&self) -> Range<u64>;
    /// `len` bytes of it from byte `skip` on; `skip + len` is at most [`Segment::len`].
    #[must_use]
    fn part(self, skip: u32, len: u32) -> Self;
}

/// Why a key, address and length were not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No such key, or of another protection domain.
    #[error("no memory region has this key in this protection domain")]
    Key,
    /// Outside of the region.
    #[error("the range is not within the memory region")]
    Range,
    /// The region was not registered for it.
    #[error("the memory region does not allow this access")]
    Rights,
    /// Checked, and yet it can't be accessed: the memory went away under the region.
    #[error(
        "the memory of the region is gone: it was unmapped, or its file cut, before ibv_dereg_mr"
    )]
    Gone,
}

/// An atomic on 8 bytes (IBTA 9.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

impl AtomicOp {
    /// What a word of this value becomes.
    #[must_use]
    pub fn apply(self, before: u64) -> u64 {
        match self {
            Self::FetchAdd { add } => before.wrapping_add(add),
            Self::CompareSwap { compare, swap } if before == compare => swap,
            Self::CompareSwap { .. } => before,
        }
    }
}

/// A key that a peer named, or a local request that makes it unusable, and for whom it has to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey {
    /// The protection domain that the key has to be of.
    pub pd: u32,
    /// The number of the queue pair that the request came to.
    pub qpn: u32,
    /// The key.
    pub rkey: u32,
}

/// What a peer asks to access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess {
    /// By which key.
    pub key: RemoteKey,
    /// From which address on, as the region counts them.
    pub va: u64,
    /// Bytes, 1 to 2^31.
    pub len: u32,
    /// The rights that it takes.
    pub rights: Access,
}

/// Registered memory: checks, and the accesses to what was checked.
pub trait Memory {
    /// Memory that was checked.
    type Segment: Segment;

    /// Checks a local scatter/gather element; its segment is as long as it.
    fn resolve(&mut self, pd: u32, sge: Sge, rights: Access) -> Result<Self::Segment, Fault>;
    /// Checks a remote request's key, address and length; its segment has that length.
    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<Self::Segment, Fault>;
    /// Copies received data into checked memory (`data.len() <= segment.len()`). With
    /// [`Fault::Gone`], a part of it may have been copied.
    fn store(&mut self, segment: Self::Segment, data: &[u8]) -> Result<(), Fault>;
    /// Copies checked memory out (`out.len() <= segment.len()`).
    fn load(&mut self, segment: Self::Segment, out: &mut [u8]) -> Result<(), Fault>;
    /// Executes an atomic on 8 aligned bytes; gives what was there before. Native byte order.
    fn atomic(&mut self, segment: Self::Segment, op: AtomicOp) -> Result<u64, Fault>;
    /// Writes 8 aligned bytes of checked memory at once, native byte order, after everything that was
    /// stored before.
    fn atomic_write(&mut self, segment: Self::Segment, value: u64) -> Result<(), Fault>;
    /// FLUSH: checks key and rights, and for a range that it is within the region; what was stored
    /// there is visible to everything when it returns, and as persistent as the region's rights say.
    fn flush(&mut self, key: RemoteKey, scope: FlushScope, rights: Access) -> Result<(), Fault>;
    /// Makes a key unusable (SEND with invalidate, local invalidate).
    fn invalidate(&mut self, key: RemoteKey) -> Result<(), Fault>;
    /// Binds a memory window (posted bind), which has this key from then on.
    fn bind_mw(&mut self, mw: u32, key: RemoteKey) -> Result<(), Fault>;
    /// A posted bind that [`Memory::bind_mw`] was not called for never will be: it was flushed.
    fn cancel_bind(&mut self, _mw: u32, _rkey: u32) {}
}
