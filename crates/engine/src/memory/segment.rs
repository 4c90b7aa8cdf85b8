//! The result of a check: a piece of memory that may be accessed.

use core::ops::Range;

use polypath_transport::Fault;

use super::page_list;

/// A piece of this process' memory that was checked against its region.
///
/// Only the checks of [`MemoryTable`](super::MemoryTable) and [`KeyCache`](super::KeyCache) create
/// a segment. So a caller that has one may access that memory as long as it holds the lane's lock;
/// see the [module](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    addr: u64,
    len: u32,
}

impl Segment {
    /// A segment of no bytes.
    pub(super) const EMPTY: Self = Self { addr: 0, len: 0 };

    /// Creates the result of a check. The caller has checked that the range is within its region.
    #[inline]
    pub(super) const fn checked(addr: u64, len: u32) -> Self {
        Self { addr, len }
    }

    /// The address in this process, unless it is [listed](Self::is_listed).
    #[inline]
    pub fn addr(&self) -> usize {
        debug_assert!(!self.is_listed(), "{self:?} lies in pages");
        self.addr as usize
    }

    /// The address of either kind. Its alignment is that of the bytes in the process.
    #[inline]
    pub(super) fn start(&self) -> u64 {
        self.addr
    }

    /// Whether it lies in the pages of a list. [`Self::together`] then returns the part that is in
    /// one place.
    #[inline]
    pub fn is_listed(&self) -> bool {
        page_list::is_listed(self.addr)
    }

    /// The first bytes of the segment, as far as they are adjacent in the process.
    ///
    /// # Errors
    /// [`Fault::Gone`] if the region was deregistered.
    #[inline]
    pub fn together(self) -> Result<Self, Fault> {
        if self.is_listed() { self.first_pages() } else { Ok(self) }
    }

    #[cold]
    fn first_pages(self) -> Result<Self, Fault> {
        // A list is dropped after its region, and the region only after the last user of a segment.
        let (list, byte) = page_list::find(self.addr).ok_or(Fault::Gone)?;
        let (addr, len) = list.run(byte, self.bytes()).ok_or(Fault::Range)?;
        Ok(Self::checked(addr as u64, len as u32))
    }

    /// Its length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.len as usize
    }

    /// Creates a segment of memory in a test or benchmark, which must stay as long as the segment
    /// is used.
    ///
    /// # Safety
    /// Until the last use of the segment, `len` bytes at `addr` must be readable and, if the
    /// segment is written, writable.
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
