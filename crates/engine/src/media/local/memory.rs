//! The memory that two processes share.
//!
//! The other process may change any byte at any time, so no reference to its bytes is ever made: words are
//! accessed as atomics, and everything else is copied. It cannot take the memory away: seals forbid changing
//! its size, and they are checked here, not only by whoever made it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::SealFlags;

use crate::memory::{self, Segment};

/// Shared memory, mapped into this process.
#[derive(Debug)]
pub(super) struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
    /// A page that is zero in children after `fork()`.
    own: NonNull<u8>,
}

/// The size of the page that tells this process from its children.
const PAGE: usize = 4096;

// SAFETY: the mappings stay until this is dropped, and all access is by atomics and copies, which any thread
// may do.
unsafe impl Send for SharedMemory {}
// SAFETY: as for `Send`. Copies at the same place by several threads are excluded by the rings, each end of
// which has one owner; if the other process breaks that rule, bytes are wrong and nothing else.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps `len` bytes. The memory must have exactly that size and be sealed against a change of it, or an
    /// access could end this process.
    ///
    /// # Errors
    /// `EINVAL` if it is not such memory; those of `mmap(2)` and `madvise(2)`.
    pub(super) fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let wanted = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
        let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(wanted);
        let size = rustix::fs::fstat(fd)?.st_size;
        if !sealed || u64::try_from(size) != Ok(len as u64) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let start = map(len, libc::MAP_SHARED, fd.as_raw_fd())?;
        let own = match map(PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) {
            Ok(own) => own,
            Err(error) => {
                unmap(start, len);
                return Err(error);
            }
        };
        let memory = Self { start, len, own };
        // The child has no use for the ring. Where it would touch it all the same, it finds the other page
        // empty first.
        advise(own, PAGE, libc::MADV_WIPEONFORK)?;
        advise(start, len, libc::MADV_DONTFORK)?;
        // SAFETY: the page was mapped for writing above, and no other thread has it yet.
        unsafe { own.as_ptr().write(1) };
        Ok(memory)
    }

    /// Whether this process mapped it, and not one that it was forked from. Nothing else here may be called
    /// if not.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        // SAFETY: the page is mapped as long as `self` lives, in a child too; it is written only before
        // `self` is complete, and by the kernel at a fork. The read is volatile because of that.
        unsafe { self.own.as_ptr().read_volatile() == 1 }
    }

    /// A word that both processes use.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at <= self.len - 8, "a word within the memory");
        // SAFETY: the word is within the mapping, which is aligned to a page and lives as long as `self`.
        // Whatever the other process does there, every value is a valid one, and it is only accessed as an
        // atomic in this process.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// A half word that both processes use.
    #[inline]
    pub(super) fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at <= self.len - 4, "a half word within the memory");
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Copies bytes into the memory.
    #[inline]
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len && at <= self.len - bytes.len(), "bytes within the memory");
        // SAFETY: the destination is within the mapping, and does not overlap `bytes`, because no reference
        // into the mapping exists. The other process may read or write there meanwhile; then what ends up
        // there is not what was written, which it could also bring about afterwards.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
        }
    }

    /// Copies checked memory of this process into the memory. Returns false if it can't be read.
    #[inline]
    pub(super) fn write_segment(&self, at: usize, segment: Segment) -> bool {
        let len = segment.bytes();
        assert!(len <= self.len && at <= self.len - len, "bytes within the memory");
        // SAFETY: the destination is within the mapping, which is not registered memory: only this module
        // knows where it is. For the other process holds what `write` says.
        unsafe { memory::copy_out_to(segment, self.start.as_ptr().add(at), len) }.is_ok()
    }

    /// Copies bytes out of the memory. Any bytes may come out, so look at the copy only.
    #[inline]
    pub(super) fn read(&self, at: usize, out: &mut [u8]) {
        assert!(out.len() <= self.len && at <= self.len - out.len(), "bytes within the memory");
        // SAFETY: the source is within the mapping, and does not overlap `out`, because no reference into the
        // mapping exists. If the other process writes there meanwhile, the copy holds some bytes or others,
        // and every value of a byte is valid.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr().add(at), out.as_mut_ptr(), out.len());
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // A child does not have the ring; something else may be mapped there by now.
        if self.is_ours() {
            unmap(self.start, self.len);
        }
        unmap(self.own, PAGE);
    }
}

fn map(len: usize, flags: i32, fd: i32) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses changes no other one.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

fn advise(start: NonNull<u8>, len: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the range is a mapping of this module. The advice takes effect in children only.
    let done = unsafe { libc::madvise(start.as_ptr().cast(), len, advice) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: the range was mapped by `map`, is unmapped once, and no reference into it is left.
    unsafe { libc::munmap(start.as_ptr().cast(), len) };
}
