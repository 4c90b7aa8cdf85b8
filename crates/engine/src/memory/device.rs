//! Memory that the device provides to programs: device memory (`man 3 ibv_alloc_dm`), and mappings
//! of DMA-BUFs that others created (`man 3 ibv_reg_dmabuf_mr`).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr::{NonNull, copy_nonoverlapping, null_mut};

use polypath_verbs::{Error, Result};

/// The `f_type` of the file system of DMA-BUFs (`DMA_BUF_MAGIC`).
pub(super) const DMA_BUF_MAGIC: i64 = 0x444d_4142;

/// Zeroed memory of the device. Programs access it only by copies and by regions.
#[derive(Debug)]
pub struct DeviceBytes {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to the value, regardless of the thread that has it.
unsafe impl Send for DeviceBytes {}
// SAFETY: this is plain memory. Concurrent copies by programs race as they do on hardware.
unsafe impl Sync for DeviceBytes {}

impl DeviceBytes {
    /// Allocates `len` bytes, at least 1, aligned to `1 << log_align` and at least to a page, so
    /// that no other memory shares its pages.
    ///
    /// # Errors
    /// `EINVAL` for an impossible alignment or 0 bytes; `ENOMEM`.
    pub fn new(len: usize, log_align: u32) -> Result<Self> {
        const PAGE_LOG: u32 = 12;
        let layout = 1usize
            .checked_shl(log_align.max(PAGE_LOG))
            .and_then(|align| Layout::from_size_align(len, align).ok())
            .filter(|_| len != 0)
            .ok_or_else(|| Error::invalid("device memory of no such length and alignment"))?;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(layout) };
        let at = NonNull::new(at).ok_or_else(|| Error::no_memory("no memory left"))?;
        Ok(Self { at, layout })
    }

    /// Address of the first byte.
    pub fn addr(&self) -> usize {
        self.at.as_ptr() as usize
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Always false, because device memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn inside(&self, offset: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        offset.checked_add(len).filter(|&end| end <= self.len()).map(|_| offset)
    }

    /// Copies into it. Returns false and copies nothing if the range is not within it.
    pub fn write(&self, offset: u64, data: &[u8]) -> bool {
        let Some(offset) = self.inside(offset, data.len()) else { return false };
        // SAFETY: the range was checked. `data` is other memory, because no slice of this memory
        // exists.
        unsafe { copy_nonoverlapping(data.as_ptr(), self.at.as_ptr().add(offset), data.len()) };
        true
    }

    /// Copies out of it. Returns false and copies nothing if the range is not within it.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> bool {
        let Some(offset) = self.inside(offset, data.len()) else { return false };
        // SAFETY: as in `write`.
        unsafe { copy_nonoverlapping(self.at.as_ptr().add(offset), data.as_mut_ptr(), data.len()) };
        true
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and no region of it is left, because a region
        // keeps it.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// A mapped part of a DMA-BUF.
#[derive(Debug)]
pub struct DmaBuf {
    base: usize,
    len: usize,
    skip: usize,
    /// Keeps the DMA-BUF open, as a registration in the kernel would.
    _file: File,
}

impl DmaBuf {
    /// Maps `len` bytes of a DMA-BUF from `offset` on.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the descriptor is negative: programs (NCCL, UCX) ask this way whether the
    /// device can access the memory of other devices, which it cannot, because only memory that a
    /// processor can map is accessible. `EBADF` if there is no such descriptor. `EINVAL` if it is
    /// not a DMA-BUF, or has no such range. Otherwise the error of the DMA-BUF's driver for mapping
    /// it; `EOPNOTSUPP` if it can't be mapped.
    pub fn map(fd: RawFd, offset: u64, len: usize, write: bool) -> Result<Self> {
        Self::map_of(DMA_BUF_MAGIC, fd, offset, len, write)
    }

    /// Does the same with files of another kind, to test on machines that create no DMA-BUFs.
    pub(super) fn map_of(
        magic: i64,
        fd: RawFd,
        offset: u64,
        len: usize,
        write: bool,
    ) -> Result<Self> {
        let file = Self::file(magic, fd)?;
        // A seek to the end of a DMA-BUF returns its size.
        let size = (&file).seek(SeekFrom::End(0)).unwrap_or(0);
        let end = offset.checked_add(len as u64);
        if len == 0 || end.is_none_or(|end| end > size) {
            return Err(Error::invalid("the range is not within the DMA-BUF"));
        }
        let skip = (offset % 4096) as usize;
        let from = libc::off_t::try_from(offset - skip as u64)
            .map_err(|_| Error::invalid("the range is not within the DMA-BUF"))?;
        let prot = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let fd = file.as_raw_fd();
        // SAFETY: this is a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(null_mut(), len + skip, prot, libc::MAP_SHARED, fd, from) };
        if base == libc::MAP_FAILED {
            let errno = match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ENODEV | libc::ENOTTY) | None => libc::EOPNOTSUPP,
                Some(errno) => errno,
            };
            return Err(Error::new(
                errno,
                "the DMA-BUF's driver refuses to map it; use memory that the processor can map",
            ));
        }
        Ok(Self { base: base as usize, len: len + skip, skip, _file: file })
    }

    /// Duplicates the descriptor, if it is a DMA-BUF's.
    fn file(magic: i64, fd: RawFd) -> Result<File> {
        if fd < 0 {
            let why =
                "adapters' memory is not accessible: use a DMA-BUF that the processor can map";
            return Err(Error::new(libc::EOPNOTSUPP, why));
        }
        // SAFETY: zeroes are valid for statfs, which the call fills in. Nobody else has the new
        // descriptor.
        unsafe {
            let mut stat: libc::statfs = std::mem::zeroed();
            if libc::fstatfs(fd, &mut stat) != 0 {
                return Err(Error::new(libc::EBADF, "no such file descriptor"));
            }
            if stat.f_type != magic {
                return Err(Error::invalid("the file descriptor is not a DMA-BUF"));
            }
            match libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) {
                -1 => Err(Error::new(libc::EMFILE, "no file descriptor left")),
                own => Ok(File::from_raw_fd(own)),
            }
        }
    }

    /// Address of the first byte of the requested range.
    pub fn addr(&self) -> usize {
        self.base + self.skip
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no region of it is left, because a region
        // keeps it.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;

    use polypath_transport::{Access, Sge};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::memory::{MemoryTable, copy_out, store};

    /// The `f_type` of memory files.
    const TMPFS_MAGIC: i64 = 0x0102_1994;

    #[test]
    fn device_memory_is_zeroed_aligned_and_checked_to_the_byte() {
        for log_align in [0, 6, 16] {
            let memory = DeviceBytes::new(100, log_align).unwrap();
            assert!(memory.addr().is_multiple_of(1 << log_align.max(12)));
            let mut out = [1; 100];
            assert!(memory.read(0, &mut out));
            assert_eq!(out, [0; 100]);
            assert!(memory.write(96, b"abcd") && memory.read(96, &mut out[..4]));
            assert_eq!(&out[..4], b"abcd");
            assert!(memory.write(100, b"") && !memory.write(100, b"a"));
            assert!(!memory.write(97, b"abcd") && !memory.read(97, &mut out[..4]));
            assert!(!memory.write(u64::MAX, b"a") && !memory.read(u64::MAX, &mut out[..1]));
        }
        for (len, log_align) in [(0, 0), (1, 63), (1, 64), (1, u32::MAX), (usize::MAX, 0)] {
            assert_eq!(DeviceBytes::new(len, log_align).unwrap_err().errno, libc::EINVAL);
        }
    }

    #[test]
    fn a_region_keeps_its_memory_until_it_is_deregistered_and_cannot_be_changed() {
        let table = MemoryTable::new();
        let memory = Arc::new(DeviceBytes::new(64, 0).unwrap());
        let access = Access::LOCAL_WRITE | Access::ZERO_BASED;
        let range = (memory.addr() + 16, 32);
        let region = table.register_kept(1, range, 0, access, Box::new(memory.clone())).unwrap();
        let key = region.key();
        let sge = Sge { addr: 0, len: 32, lkey: key };
        store(table.resolve(1, sge, Access::LOCAL_WRITE).unwrap(), &[7; 32]).unwrap();
        let mut out = [1; 64];
        assert!(memory.read(0, &mut out));
        assert_eq!((out[15], out[16], out[47], out[48]), (0, 7, 7, 0));
        assert!(table.resolve(1, Sge { addr: 1, ..sge }, Access::empty()).is_err());
        assert_eq!(table.reregister(key, None, None, Some(access), || ()).unwrap_err().errno, 22);
        drop(region);
        assert_eq!(Arc::strong_count(&memory), 2);
        table.deregister(key, || assert_eq!(Arc::strong_count(&memory), 2)).unwrap();
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    /// A file of three pages that is used in place of a DMA-BUF.
    fn file() -> File {
        let mut file = File::from(memfd_create("dmabuf", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(&[3; 3 * 4096]).unwrap();
        file
    }

    #[test]
    fn a_mapped_buffer_shares_its_bytes_and_outlives_its_descriptor() {
        let (mut theirs, table) = (file(), MemoryTable::new());
        let mapped = DmaBuf::map_of(TMPFS_MAGIC, theirs.as_raw_fd(), 4096 + 8, 4096, true).unwrap();
        let mut second = theirs.try_clone().unwrap();
        let range = (mapped.addr(), 4096);
        let access = Access::LOCAL_WRITE;
        let region = table.register_kept(1, range, 8, access, Box::new(mapped)).unwrap();
        let sge = Sge { addr: 8, len: 4096, lkey: region.key() };
        store(table.resolve(1, sge, Access::LOCAL_WRITE).unwrap(), &[5; 4096]).unwrap();
        let mut bytes = vec![0; 3 * 4096];
        theirs.seek(SeekFrom::Start(0)).unwrap();
        theirs.read_exact(&mut bytes).unwrap();
        drop(theirs);
        assert_eq!((bytes[4103], bytes[4104], bytes[8199], bytes[8200]), (3, 5, 5, 3));
        second.seek(SeekFrom::Start(4104)).unwrap();
        second.write_all(b"new").unwrap();
        let mut out = [0; 3];
        let head = Sge { len: 3, ..sge };
        copy_out(table.resolve(1, head, Access::empty()).unwrap(), &mut out).unwrap();
        assert_eq!(&out, b"new");
        table.deregister(region.key(), || ()).unwrap();
    }

    #[test]
    fn what_is_no_dma_buf_or_beyond_it_is_refused() {
        let file = file();
        let fd = file.as_raw_fd();
        let errno = |magic, fd, offset, len| {
            DmaBuf::map_of(magic, fd, offset, len, false).unwrap_err().errno
        };
        assert_eq!(errno(TMPFS_MAGIC, -1, 0, 1), libc::EOPNOTSUPP);
        assert_eq!(errno(TMPFS_MAGIC, i32::MAX, 0, 1), libc::EBADF);
        assert_eq!(DmaBuf::map(fd, 0, 1, false).unwrap_err().errno, libc::EINVAL);
        let size = 3 * 4096;
        for (offset, len) in [(0, 0), (0, size + 1), (8, size), (size as u64, 1), (u64::MAX, 2)] {
            assert_eq!(errno(TMPFS_MAGIC, fd, offset, len), libc::EINVAL, "{offset} {len}");
        }
        assert!(DmaBuf::map_of(TMPFS_MAGIC, fd, 4095, size - 4095, false).is_ok());
    }

    /// A DMA-BUF that the kernel creates from the pages of `file`.
    fn udmabuf(file: &File, bytes: u64) -> std::io::Result<File> {
        #[repr(C)]
        struct Create {
            memfd: u32,
            flags: u32,
            offset: u64,
            size: u64,
        }
        /// `_IOW('u', 0x42, struct udmabuf_create)`.
        const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;
        let device = File::options().read(true).write(true).open("/dev/udmabuf")?;
        let memfd = file.as_raw_fd().cast_unsigned();
        let create = Create { memfd, flags: 0, offset: 0, size: bytes };
        // SAFETY: both descriptors are open, and the structure is the kernel's. Nobody else has the
        // returned descriptor.
        unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
            match libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) {
                -1 => Err(std::io::Error::last_os_error()),
                fd => Ok(File::from_raw_fd(fd)),
            }
        }
    }

    #[test]
    fn a_dma_buf_of_the_kernel_is_mapped_and_shares_its_bytes() {
        // SAFETY: the name is valid, and nobody else has the descriptor.
        let mut pages = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            File::from_raw_fd(libc::memfd_create(c"pages".as_ptr(), flags))
        };
        pages.write_all(&[3; 3 * 4096]).unwrap();
        let buffer = match udmabuf(&pages, 3 * 4096) {
            Ok(buffer) => buffer,
            Err(e) => {
                let test = "a_dma_buf_of_the_kernel_is_mapped_and_shares_its_bytes";
                eprintln!("skipped: {test}: no DMA-BUF from /dev/udmabuf: {e}");
                return;
            }
        };
        let (table, fd) = (MemoryTable::new(), buffer.as_raw_fd());
        let mapped = DmaBuf::map(fd, 4096 + 8, 4096, true).unwrap();
        drop(buffer);
        let range = (mapped.addr(), 4096);
        let access = Access::LOCAL_WRITE;
        let region = table.register_kept(1, range, 8, access, Box::new(mapped)).unwrap();
        let sge = Sge { addr: 8, len: 4096, lkey: region.key() };
        store(table.resolve(1, sge, Access::LOCAL_WRITE).unwrap(), &[5; 4096]).unwrap();
        let mut bytes = vec![0; 3 * 4096];
        pages.seek(SeekFrom::Start(0)).unwrap();
        pages.read_exact(&mut bytes).unwrap();
        assert_eq!((bytes[4103], bytes[4104], bytes[8199], bytes[8200]), (3, 5, 5, 3));
        table.deregister(region.key(), || ()).unwrap();
    }
}
