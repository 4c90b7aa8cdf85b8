//! Registration of regions that consist of pages: see `page_list`.

use std::sync::Arc;

use polypath_transport::Access;
use polypath_verbs::{Error, Result};

use super::names::refuse_nameless;
use super::page_list::PageList;
use super::region::{Backing, Grant, Region};
use super::table::{MemoryTable, check_range};

/// The part of its pages that is a region.
#[derive(Clone, Copy, Debug)]
pub struct PageRange {
    /// The offset of the first byte within the first page.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
    /// The address that work requests use for the first byte.
    pub iova: u64,
}

impl MemoryTable {
    /// Registers a region that consists of these pages in their order. Its key is `key`, which
    /// peers may already know, or a new one. It can't be reregistered.
    ///
    /// # Errors
    /// Those of [`MemoryTable::register_with_key`], and `EINVAL` if the pages do not have the
    /// range, or for `ON_DEMAND`.
    pub fn register_pages(
        &self,
        pd: u32,
        pages: PageList,
        range: PageRange,
        access: Access,
        key: Option<u32>,
    ) -> Result<Arc<Region>> {
        if let Some(key) = key {
            refuse_nameless(key)?;
        }
        if access.contains(Access::ON_DEMAND) {
            return Err(Error::invalid("the pages of a list are there: ON_DEMAND means nothing"));
        }
        let PageRange { offset, len, iova } = range;
        let start = check_range(len, iova, access)?;
        pages.check(offset, len, access.contains(Access::LOCAL_WRITE))?;
        let listed = pages.list()?;
        let grant = Grant {
            key: key.unwrap_or(0),
            pd,
            base: listed.address(offset),
            start,
            len: len as u64,
            access,
            qpn: None,
            window: false,
            backing: Backing::Resident,
        };
        self.insert(grant, Some(Box::new(listed)))
    }
}

#[cfg(test)]
mod tests {
    use polypath_transport::{AtomicOp, Fault, Segment as _, Sge};

    use super::*;
    use crate::memory::tests::remote;
    use crate::memory::{BindInfo, WindowType, access, atomic, atomic_write};

    const PD: u32 = 3;
    const ALL: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::MW_BIND);
    const SIZE: usize = 4096;

    /// Pages of the test: as many as there are numbers, in the order of the numbers.
    struct Own {
        bytes: Box<[u64]>,
        order: Vec<usize>,
    }

    impl Own {
        fn new(order: &[usize]) -> Self {
            let words = (order.len() + 1) * SIZE / 8;
            Self { bytes: vec![0; words].into_boxed_slice(), order: order.to_vec() }
        }

        fn pages(&self) -> Vec<usize> {
            let first = (self.bytes.as_ptr() as usize).next_multiple_of(SIZE);
            self.order.iter().map(|page| first + page * SIZE).collect()
        }

        /// The contents of the pages, in their order.
        fn content(&self) -> Vec<u8> {
            let copy = |page: usize| {
                // SAFETY: this is a page of the box, within its bounds.
                unsafe { std::slice::from_raw_parts(page as *const u8, SIZE) }.to_vec()
            };
            self.pages().into_iter().flat_map(copy).collect()
        }
    }

    fn range(offset: usize, len: usize, iova: u64) -> PageRange {
        PageRange { offset, len, iova }
    }

    #[test]
    fn what_is_stored_lies_in_the_pages_in_their_order_and_is_read_from_there() {
        // Two adjacent pages, and two that lie before them.
        let own = Own::new(&[2, 3, 0, 1]);
        let table = MemoryTable::new();
        let list = PageList::new(&own.pages(), SIZE).unwrap();
        let region = table.register_pages(PD, list, range(100, 3 * SIZE, 0x7000), ALL, None);
        let region = region.unwrap();
        let mut model = vec![0; 4 * SIZE];
        for (n, (at, len)) in
            [(0, 3 * SIZE), (1, 1), (3995, 3), (3996, 8), (SIZE - 100, SIZE), (7, 9000)]
                .into_iter()
                .enumerate()
        {
            let sge = Sge { addr: 0x7000 + at as u64, len: len as u32, lkey: region.key() };
            let segment = table.resolve(PD, sge, Access::LOCAL_WRITE).unwrap();
            assert_eq!(segment.len() as usize, len);
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + n * 31 + 1) as u8).collect();
            access::store(segment, &data).unwrap();
            model[100 + at..][..len].copy_from_slice(&data);
            assert_eq!(own.content(), model, "{len} bytes at {at}");
            let mut out = vec![0; len];
            assert_eq!(access::copy_out(segment, &mut out), Ok(len));
            assert_eq!(out, data);
            let skip = len / 3;
            let part = segment.part(skip as u32, (len - skip) as u32);
            assert_eq!(access::copy_out(part, &mut out[skip..]), Ok(len - skip));
            assert_eq!(out, data, "and a part of it");
        }
    }

    #[test]
    fn ranges_rights_and_windows_are_checked_as_those_of_any_region() {
        let own = Own::new(&[1, 0]);
        let table = MemoryTable::new();
        let list = || PageList::new(&own.pages(), SIZE).unwrap();
        let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND;
        let register =
            |access| table.register_pages(PD, list(), range(8, 5000, 0x100), access, None);
        let region = register(read_only).unwrap();
        let key = region.key();
        let at = |va, len, rights| table.resolve_remote(&remote(PD, 9, key, va, len, rights));
        assert!(at(0x100, 5000, Access::REMOTE_READ).is_ok());
        assert_eq!(at(0x100, 8, Access::REMOTE_WRITE), Err(Fault::Rights));
        for (va, len) in [(0xff, 1), (0x100, 5001), (0x100 + 5000, 1), (u64::MAX, 2)] {
            assert_eq!(at(va, len, Access::REMOTE_READ), Err(Fault::Range));
        }
        let (window, rkey) = table.alloc_window(PD, WindowType::Type1).unwrap();
        let info = BindInfo { region: key, addr: 4000, len: 500, access: Access::REMOTE_READ };
        let bound = polypath_transport::RemoteKey { pd: PD, qpn: 9, rkey };
        table.stage_bind(window, bound, info).unwrap();
        table.bind(window, bound).unwrap();
        let by_window =
            |va| table.resolve_remote(&remote(PD, 9, rkey, va, 400, Access::REMOTE_READ));
        let direct = at(4050, 400, Access::REMOTE_READ);
        assert_eq!(by_window(4050), direct, "the same bytes");
        assert_eq!(by_window(4150), Err(Fault::Range));
        assert_eq!(table.deregister(key, || ()).unwrap_err().errno, libc::EBUSY);
        assert_eq!(
            table.reregister(key, Some(4), None, None, || ()).unwrap_err().errno,
            libc::EINVAL
        );
    }

    #[test]
    fn atomics_are_on_the_word_where_it_lies() {
        let own = Own::new(&[1, 0]);
        let table = MemoryTable::new();
        let list = PageList::new(&own.pages(), SIZE).unwrap();
        let region = table.register_pages(PD, list, range(0, 2 * SIZE, 0), ALL, None).unwrap();
        let word = |va| {
            let access = remote(PD, 9, region.key(), va, 8, Access::REMOTE_ATOMIC);
            table.resolve_remote(&access)
        };
        atomic_write(word(4096).unwrap(), 40).unwrap();
        assert_eq!(atomic(word(4096).unwrap(), AtomicOp::FetchAdd { add: 2 }), Ok(40));
        assert_eq!(own.content()[4096..][..8], 42u64.to_ne_bytes());
        assert_eq!(word(4092), Err(Fault::Range), "not aligned");
        assert_eq!(word(8192 - 4), Err(Fault::Range), "beyond the end");
    }

    #[test]
    fn a_segment_that_outlives_its_region_reaches_nothing() {
        let own = Own::new(&[0]);
        let table = MemoryTable::new();
        let list = PageList::new(&own.pages(), SIZE).unwrap();
        let region = table.register_pages(PD, list, range(0, SIZE, 0), ALL, None).unwrap();
        let key = region.key();
        let sge = Sge { addr: 0, len: 16, lkey: key };
        let segment = table.resolve(PD, sge, Access::LOCAL_WRITE).unwrap();
        drop(region);
        drop(table.deregister(key, || ()).unwrap());
        assert_eq!(access::store(segment, &[1; 16]), Err(Fault::Gone));
        assert_eq!(access::copy_out(segment, &mut [0; 16]), Err(Fault::Gone));
        assert_eq!(atomic(segment, AtomicOp::FetchAdd { add: 1 }), Err(Fault::Gone));
        assert!(own.content().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let own = Own::new(&[0, 1]);
        let pages = own.pages();
        let refused = |pages: &[usize], size| PageList::new(pages, size).unwrap_err().errno;
        for size in [0, 2048, 5000] {
            assert_eq!(refused(&pages, size), libc::EINVAL);
        }
        assert_eq!(refused(&[pages[0] + 8], SIZE), libc::EINVAL);
        assert_eq!(refused(&[usize::MAX & !(SIZE - 1)], SIZE), libc::EINVAL);
        let table = MemoryTable::new();
        let register = |pages: &[usize], at, access, key| {
            let list = PageList::new(pages, SIZE).unwrap();
            table.register_pages(PD, list, at, access, key).map(drop).map_err(|e| e.errno)
        };
        let whole = range(0, 2 * SIZE, 0);
        assert_eq!(register(&pages, range(1, 2 * SIZE, 0), ALL, None), Err(libc::EINVAL));
        assert_eq!(register(&pages, range(SIZE, 1, 0), ALL, None), Err(libc::EINVAL));
        assert_eq!(register(&pages, range(0, 8, u64::MAX), ALL, None), Err(libc::EINVAL));
        assert_eq!(register(&pages, whole, ALL | Access::ON_DEMAND, None), Err(libc::EINVAL));
        assert_eq!(register(&pages, whole, Access::REMOTE_WRITE, None), Err(libc::EINVAL));
        assert_eq!(register(&[pages[0], SIZE], whole, ALL, None), Err(libc::EFAULT));
        assert_eq!(register(&pages, whole, ALL, Some(0x1234_5678)), Ok(()));
        assert_eq!(register(&pages, whole, ALL, Some(0x1234_5678)), Err(libc::EADDRINUSE));
        assert_eq!(
            register(&[], range(0, 0, 0), ALL, None),
            Ok(()),
            "an empty one, as others may be"
        );
    }
}
