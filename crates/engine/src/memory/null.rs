//! The memory behind null regions (`man 3 ibv_alloc_null_mr`): reads return zeroes, writes have no
//! effect.
//!
//! The data path needs an address in the process for every segment. So there are two ranges of
//! address space, each as long as the longest segment. One is only read; all of it is the kernel's
//! single page of zeroes. The other one is only written; it maps the same few megabytes repeatedly,
//! and what is written there is never read. Both are created with the first null region, and kept.

use std::ptr::null_mut;
use std::sync::OnceLock;

/// The size of each range: the length of a segment has 32 bits.
const REACH: usize = 1 << 32;
/// The size of the memory behind the range for writing, which is the most that can become resident.
const SINK: usize = 4 << 20;

/// Addresses of the two ranges.
#[derive(Clone, Copy, Debug)]
struct Ranges {
    zeros: usize,
    sink: usize,
}

static RANGES: OnceLock<Option<Ranges>> = OnceLock::new();

/// Creates the ranges, if they do not exist yet. Returns false if the system has not enough address
/// space.
pub(super) fn prepare() -> bool {
    RANGES.get_or_init(make).is_some()
}

/// The address of a segment of any length that is read or, if `write`, written. `None` before
/// [`prepare`].
#[inline]
pub(super) fn address(write: bool) -> Option<u64> {
    let ranges = (*RANGES.get()?)?;
    Some(if write { ranges.sink } else { ranges.zeros } as u64)
}

fn make() -> Option<Ranges> {
    let zeros = reserve(libc::PROT_READ)?;
    let Some(sink) = reserve(libc::PROT_NONE).filter(|&sink| fill(sink)) else {
        // SAFETY: this is the range from above, which nobody uses yet.
        unsafe { libc::munmap(zeros as *mut libc::c_void, REACH) };
        return None;
    };
    Some(Ranges { zeros, sink })
}

/// Reserves [`REACH`] bytes of address space without memory.
fn reserve(protection: libc::c_int) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: this is a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(null_mut(), REACH, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // Huge pages would make huge pages of zeroes, but one small page of zeroes is enough. If the
    // kernel does not know this advice, that only costs memory.
    // SAFETY: this is the mapping from above.
    unsafe { libc::madvise(at, REACH, libc::MADV_NOHUGEPAGE) };
    Some(at as usize)
}

/// Maps the same [`SINK`] bytes of memory into the whole range. Releases the range if that fails.
fn fill(sink: usize) -> bool {
    // SAFETY: the name is a C string, and the descriptor is closed below. Every mapping lies within
    // the range from `reserve`, which nobody else uses.
    unsafe {
        let fd = libc::memfd_create(c"polypath-null".as_ptr(), libc::MFD_CLOEXEC);
        let sized = fd >= 0 && libc::ftruncate(fd, SINK as libc::off_t) == 0;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let filled = sized
            && (0..REACH).step_by(SINK).all(|at| {
                let at = (sink + at) as *mut libc::c_void;
                libc::mmap(at, SINK, prot, flags, fd, 0) != libc::MAP_FAILED
            });
        if fd >= 0 {
            libc::close(fd);
        }
        if !filled {
            libc::munmap(sink as *mut libc::c_void, REACH);
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use polypath_transport::{Access, AtomicOp, Fault, Segment as _, Sge};

    use crate::memory::tests::{named, remote};
    use crate::memory::{MemoryTable, WindowType, atomic, copy_out, store};

    const WRITE: Access = Access::LOCAL_WRITE;

    #[test]
    fn a_null_region_reads_as_zero_whatever_was_written() {
        let table = MemoryTable::new();
        let region = table.register_null(1).unwrap();
        let at = |addr, len, access| {
            table.resolve(1, Sge { addr, len, lkey: region.key() }, access).unwrap()
        };
        for addr in [0, 7, 1 << 40, u64::MAX - 9000] {
            store(at(addr, 9000, WRITE), &[0xa5; 9000]).unwrap();
            let mut out = vec![1; 9000];
            assert_eq!(copy_out(at(addr, 9000, Access::empty()), &mut out), Ok(9000));
            assert!(out.iter().all(|&b| b == 0), "at {addr:#x}");
        }
    }

    #[test]
    fn every_byte_of_the_longest_segment_can_be_written_and_read() {
        let table = MemoryTable::new();
        let region = table.register_null(1).unwrap();
        let sge = Sge { addr: 0, len: u32::MAX, lkey: region.key() };
        let whole = table.resolve(1, sge, WRITE).unwrap();
        for at in [0, super::SINK as u64 - 4, u64::from(u32::MAX) - 8] {
            store(whole.part(at as u32, 8), &[1; 8]).unwrap();
        }
        let zeros = table.resolve(1, sge, Access::empty()).unwrap();
        let mut out = [1; 8];
        copy_out(zeros.part(u32::MAX - 8, 8), &mut out).unwrap();
        assert_eq!(out, [0; 8]);
        // The result of an atomic operation may be written there too.
        let word = whole.part(0, 8);
        atomic(word, AtomicOp::FetchAdd { add: 1 }).unwrap();
    }

    #[test]
    fn a_null_region_is_no_peers_and_stays_as_it_is() {
        let table = MemoryTable::new();
        let key = table.register_null(1).unwrap().key();
        for access in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(table.resolve_remote(&remote(1, 2, key, 0, 8, access)), Err(Fault::Rights));
        }
        let other_pd = Sge { addr: 0, len: 1, lkey: key };
        assert_eq!(table.resolve(2, other_pd, WRITE), Err(Fault::Key));
        assert_eq!(table.reregister(key, Some(2), None, None, || ()).unwrap_err().errno, 22);
        let (window, rkey) = table.alloc_window(1, WindowType::Type1).unwrap();
        let bind =
            crate::memory::BindInfo { region: key, addr: 0, len: 8, access: Access::REMOTE_READ };
        table.stage_bind(window, named(1, 2, rkey), bind).unwrap();
        assert_eq!(table.bind(window, named(1, 2, rkey)), Err(Fault::Rights));
        table.deregister(key, || ()).unwrap();
    }
}
