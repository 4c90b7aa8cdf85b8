//! What a check gives: a piece of memory that may be accessed.

use core::ops::Range;

/// A piece of this process' memory that was checked against its region.
///
/// Only the checks of [`MemoryTable`](super::MemoryTable) and [`KeyCache`](super::KeyCache) make one, so
/// whoever holds one may access that memory, for as long as it holds the lane's lock; see the
/// [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    addr: u64,
    len: u32,
}

impl Segment {
    /// Of no bytes.
    pub(super) const EMPTY: Self = Self { addr: 0, len: 0 };

    /// What a check has found. The caller has looked at the region: the range is within it.
    #[inline]
    pub(super) const fn checked(addr: u64, len: u32) -> Self {
        Self { addr, len }
    }

    /// The address in this process.
    #[inline]
    pub fn addr(&self) -> usize {
        self.addr as usize
    }

    /// Its length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.len as usize
    }

    /// Memory of a test or benchmark that stays for as long as the segment is used.
    ///
    /// # Safety
    /// `len` bytes at `addr` can be read, and written if the segment is written to, until it is used for
    /// the last time.
    pub unsafe fn assume(addr: *const u8, len: u32) -> Self {
        Self { addr: addr as u64, len }
    }
}

impl polypath_transport::Segment for Segment {
    #[inline]
    fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn span(&self) -> Range<u64> {
        self.addr..self.addr.saturating_add(u64::from(self.len))
    }

    #[inline]
    fn part(self, skip: u32, len: u32) -> Self {
        debug_assert!(
            skip.checked_add(len).is_some_and(|end| end <= self.len),
            "{skip} + {len} bytes of {self:?}"
        );
        Self { addr: self.addr + u64::from(skip), len }
    }
}
