//! Regions of pages that lie anywhere in the process, in their own order, like the memory of a
//! virtual machine's guest.
//!
//! For queue pairs such a region is as contiguous as any other: its segments have addresses from a
//! range that no process uses, numbered continuously across pages. The access looks up where the
//! pages lie. That costs a lock and a look-up. For other regions it costs only a comparison with a
//! constant result.
//!
//! From the highest bit on, an address consists of a 1, the number of the list (23 bits), and the
//! byte (40 bits).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use polypath_verbs::{Error, Result};

use super::probe;

const EFAULT: i32 = 14;
/// The addresses of processes are below this.
const LISTED: u64 = 1 << 63;
const BYTE_BITS: u32 = 40;
const NUMBER_MAX: u32 = (1 << 23) - 1;
/// The smallest page.
const PAGE_MIN: usize = 4096;

static LISTS: LazyLock<RwLock<Lists>> = LazyLock::new(RwLock::default);

#[derive(Debug, Default)]
struct Lists {
    by_number: HashMap<u32, PageList>,
    /// The number that was assigned last.
    last: u32,
}

/// The pages of a region, in their order.
#[derive(Clone, Debug)]
pub struct PageList {
    pages: Arc<[usize]>,
    shift: u32,
}

/// A list that accesses can find. The region's addresses are valid as long as this lives.
#[derive(Debug)]
pub(super) struct Listed {
    number: u32,
}

/// Whether an address belongs to a page list.
#[inline]
pub(super) const fn is_listed(addr: u64) -> bool {
    addr >= LISTED
}

impl PageList {
    /// Creates a list of pages of `page_size` bytes.
    ///
    /// # Errors
    /// `EINVAL` if the size is not a power of two of at least 4096, there are more than 2^40 bytes,
    /// or a page does not begin at a multiple of its size or ends beyond the address space.
    pub fn new(pages: &[usize], page_size: usize) -> Result<Self> {
        if !page_size.is_power_of_two() || page_size < PAGE_MIN {
            return Err(Error::invalid(format!(
                "pages have a power of two of at least {PAGE_MIN} bytes, not {page_size}"
            )));
        }
        let shift = page_size.trailing_zeros();
        if pages.len() as u64 > (1 << BYTE_BITS) >> shift {
            return Err(Error::invalid("a region of pages has at most 2^40 bytes"));
        }
        let in_place =
            |page: &usize| page.is_multiple_of(page_size) && page.checked_add(page_size).is_some();
        if let Some(page) = pages.iter().find(|page| !in_place(page) || is_listed(**page as u64)) {
            return Err(Error::invalid(format!(
                "a page at {page:#x} does not begin at a multiple of {page_size}"
            )));
        }
        Ok(Self { pages: pages.into(), shift })
    }

    /// The total size of the pages in bytes.
    fn bytes(&self) -> u64 {
        (self.pages.len() as u64) << self.shift
    }

    /// The run of adjacent pages from a byte on, of at most `most` bytes: address and length.
    pub(super) fn run(&self, byte: u64, most: usize) -> Option<(usize, usize)> {
        let size = 1 << self.shift;
        let mut page = (byte >> self.shift) as usize;
        let within = byte as usize & (size - 1);
        let (addr, mut len) = (*self.pages.get(page)? + within, size - within);
        while len < most && self.pages.get(page + 1) == Some(&(self.pages[page] + size)) {
            page += 1;
            len += size;
        }
        Some((addr, len.min(most)))
    }

    /// Checks that `len` bytes from `offset` on are present and, if `write`, writable.
    pub(super) fn check(&self, offset: usize, len: usize, write: bool) -> Result<()> {
        let end = (offset as u64).checked_add(len as u64).filter(|end| *end <= self.bytes());
        if end.is_none() || offset >> self.shift != 0 {
            return Err(Error::invalid(
                "the region is longer than its pages, or does not begin in the first of them",
            ));
        }
        let mut done = 0;
        while done < len
            && let Some((addr, run)) = self.run((offset + done) as u64, len - done)
        {
            if !probe::accessible(addr, run, write) {
                return Err(Error::new(
                    EFAULT,
                    format!(
                        "the pages from {addr:#x} on are not mapped, or are read-only and LOCAL_WRITE \
                         was asked for"
                    ),
                ));
            }
            done += run;
        }
        Ok(())
    }

    /// Makes the list known to accesses as long as the result lives.
    pub(super) fn list(self) -> Result<Listed> {
        let mut lists = LISTS.write().unwrap_or_else(PoisonError::into_inner);
        if lists.by_number.len() >= NUMBER_MAX as usize {
            return Err(Error::no_memory("too many regions of pages in one process"));
        }
        loop {
            lists.last = if lists.last == NUMBER_MAX { 0 } else { lists.last + 1 };
            let number = lists.last;
            if let Entry::Vacant(place) = lists.by_number.entry(number) {
                place.insert(self);
                return Ok(Listed { number });
            }
        }
    }
}

impl Listed {
    /// The address of a byte.
    pub(super) fn address(&self, byte: usize) -> u64 {
        LISTED | u64::from(self.number) << BYTE_BITS | byte as u64
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut lists = LISTS.write().unwrap_or_else(PoisonError::into_inner);
        lists.by_number.remove(&self.number);
    }
}

/// The list that an address belongs to, and the byte within it.
pub(super) fn find(addr: u64) -> Option<(PageList, u64)> {
    let number = u32::try_from((addr & !LISTED) >> BYTE_BITS).ok()?;
    let lists = LISTS.read().unwrap_or_else(PoisonError::into_inner);
    Some((lists.by_number.get(&number)?.clone(), addr & ((1 << BYTE_BITS) - 1)))
}
