//! Registered memory as queue pairs see it: checked first, then accessed.

use core::fmt;
use core::ops::Range;

use polypath_types::{Access, FlushScope, Sge};

/// A piece of memory that a [`Memory`] has checked. Only a `Memory` can make one, and it is valid
/// only during the call of the queue pair in which it was made.
pub trait Segment: Copy + fmt::Debug {
    /// The length in bytes.
    fn len(&self) -> u32;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The host's addresses that it covers. Segments that share bytes share addresses. An atomic
    /// needs a start that is a multiple of 8.
    fn span(&self) -> Range<u64>;
    /// `len` bytes of it from byte `skip` on; `skip + len` is at most [`Segment::len`].
    #[must_use]
    fn part(self, skip: u32, len: u32) -> Self;
}

/// Why a key, address and length were not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no such key in this protection domain.
    #[error("no memory region has this key in this protection domain")]
    Key,
    /// The range is not within the region.
    #[error("the range is not within the memory region")]
    Range,
    /// The region was not registered for this access.
    #[error("the memory region does not allow this access")]
    Rights,
    /// The range was checked, but can't be accessed: the memory went away under the region.
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
    /// The value that the word has afterwards, if it was `before`.
    #[must_use]
    pub fn apply(self, before: u64) -> u64 {
        match self {
            Self::FetchAdd { add } => before.wrapping_add(add),
            Self::CompareSwap { compare, swap } if before == compare => swap,
            Self::CompareSwap { .. } => before,
        }
    }
}

/// A key that a peer named, or that a local request makes unusable, and the queue pair that it has
/// to be valid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey {
    /// The protection domain that the key has to belong to.
    pub pd: u32,
    /// The number of the queue pair that received the request.
    pub qpn: u32,
    /// The key.
    pub rkey: u32,
}

/// The memory that a peer asks to access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess {
    /// The key.
    pub key: RemoteKey,
    /// The first address, as the region counts them.
    pub va: u64,
    /// The length in bytes, 1 to 2^31.
    pub len: u32,
    /// The rights that the access needs.
    pub rights: Access,
}

/// Registered memory: checks, and accesses to memory that was checked.
pub trait Memory {
    /// Memory that was checked.
    type Segment: Segment;

    /// Checks a local scatter/gather element; the segment has the same length.
    fn resolve(&mut self, pd: u32, sge: Sge, rights: Access) -> Result<Self::Segment, Fault>;
    /// Checks a remote request's key, address and length; the segment has the same length.
    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<Self::Segment, Fault>;
    /// Copies received data into checked memory (`data.len() <= segment.len()`). After
    /// [`Fault::Gone`], a part of it may have been copied.
    fn store(&mut self, segment: Self::Segment, data: &[u8]) -> Result<(), Fault>;
    /// Copies checked memory out (`out.len() <= segment.len()`).
    fn load(&mut self, segment: Self::Segment, out: &mut [u8]) -> Result<(), Fault>;
    /// Executes an atomic on 8 aligned bytes and returns the value before. Native byte order.
    fn atomic(&mut self, segment: Self::Segment, op: AtomicOp) -> Result<u64, Fault>;
    /// Writes 8 aligned bytes of checked memory at once, in native byte order, after everything
    /// that was stored before.
    fn atomic_write(&mut self, segment: Self::Segment, value: u64) -> Result<(), Fault>;
    /// Executes a FLUSH: checks key and rights, and for a range that it is within the region. When it
    /// returns, what was stored there is visible to everything, and as persistent as the region's rights
    /// say.
    fn flush(&mut self, key: RemoteKey, scope: FlushScope, rights: Access) -> Result<(), Fault>;
    /// Makes a key unusable (SEND with invalidate, local invalidate).
    fn invalidate(&mut self, key: RemoteKey) -> Result<(), Fault>;
    /// Binds a memory window (posted bind), which has this key from then on.
    fn bind_mw(&mut self, mw: u32, key: RemoteKey) -> Result<(), Fault>;
    /// Says that a posted bind was flushed, and that [`Memory::bind_mw`] will not be called for it.
    fn cancel_bind(&mut self, _mw: u32, _key: RemoteKey) {}
}
