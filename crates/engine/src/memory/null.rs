//! What a null region stands on (`man 3 ibv_alloc_null_mr`): reads give zeros, writes vanish.
//!
//! The data path wants an address in the process for every segment. So there are two ranges of the
//! address space, as long as the longest segment: one that is only read, all of it the kernel's one
//! page of zeros, and one that is only written, the same few megabytes over and over. What is
//! written there is never read. Both are made when the first null region is, and kept.

use std::ptr::null_mut;
use std::sync::OnceLock;

/// Bytes of either range: a segment's length has 32 bits.
const REACH: usize = 1 << 32;
/// Bytes of memory under the range that is written: as many as may become resident.
const SINK: usize = 4 << 20;

/// Addresses of the two ranges.
#[derive(Clone, Copy, Debug)]
struct Ranges {
    zeros: usize,
    sink: usize,
}

static RANGES: OnceLock<Option<Ranges>> = OnceLock::new();

/// Makes the ranges, if they are not there yet. False: the system does not give the address space.
pub(super) fn prepare() -> bool {
    RANGES.get_or_init(make).is_some()
}

/// Where a segment of any length lies that is read, or written if `write`. `None` before
/// [`prepare`].
#[inline]
pub(super) fn address(write: bool) -> Option<u64> {
    let ranges = (*RANGES.get()?)?;
    Some(if write { ranges.sink } else { ranges.zeros } as u64)
}

fn make() -> Option<Ranges> {
    let zeros = reserve(libc::PROT_READ)?;
    let Some(sink) = reserve(libc::PROT_NONE).filter(|&sink| fill(sink)) else {
        // SAFETY: the range of above, which nobody knows yet.
        unsafe { libc::munmap(zeros as *mut libc::c_void, REACH) };
        return None;
    };
    Some(Ranges { zeros, sink })
}

/// [`REACH`] bytes of address space without memory of their own.
fn reserve(protection: libc::c_int) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever there is room.
    let at = unsafe { libc::mmap(null_mut(), REACH, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // Where pages are huge, zeros would be too: one small page of them is enough. Where that is not
    // known, it costs memory only.
    // SAFETY: the mapping of above.
    unsafe { libc::madvise(at, REACH, libc::MADV_NOHUGEPAGE) };
    Some(at as usize)
}

/// Puts the same [`SINK`] bytes of memory under all of the range; gives the range back if it fails.
fn fill(sink: usize) -> bool {
    // SAFETY: the name is a C string; the descriptor is closed below; every mapping lies within the
    // range that `reserve` gave, which nobody else knows.
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
        // The result of an atomic may go there too.
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
        table.stage_bind(1, window, rkey, bind).unwrap();
        assert_eq!(table.bind(window, named(1, 2, rkey)), Err(Fault::Rights));
        table.deregister(key, || ()).unwrap();
    }
}
