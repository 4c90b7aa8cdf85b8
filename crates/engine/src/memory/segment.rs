//! What a check gives: a piece of memory that may be accessed.

use core::ops::Range;

use polypath_transport::Fault;

use super::page_list;

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

    /// The address in this process, unless it is [listed](Self::is_listed).
    #[inline]
    pub fn addr(&self) -> usize {
        debug_assert!(!self.is_listed(), "{self:?} lies in pages");
        self.addr as usize
    }

    /// The address, whatever it counts: as aligned as the bytes are in the process.
    #[inline]
    pub(super) fn start(&self) -> u64 {
        self.addr
    }

    /// Whether it lies in the pages of a list, and [`Self::together`] gives what of it is in one place.
    #[inline]
    pub fn is_listed(&self) -> bool {
        page_list::is_listed(self.addr)
    }

    /// Its first bytes, as far as they lie together in the process.
    ///
    /// # Errors
    /// [`Fault::Gone`]: the region was deregistered.
    #[inline]
    pub fn together(self) -> Result<Self, Fault> {
        if self.is_listed() { self.first_pages() } else { Ok(self) }
    }

    #[cold]
    fn first_pages(self) -> Result<Self, Fault> {
        // A list goes after its region, and that after everybody who holds a segment of it.
        let (list, byte) = page_list::find(self.addr).ok_or(Fault::Gone)?;
        let (addr, len) = list.run(byte, self.bytes()).ok_or(Fault::Range)?;
        Ok(Self::checked(addr as u64, len as u32))
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
