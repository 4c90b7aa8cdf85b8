//! Buffers that the library allocates (`ibv_alloc_buf`, rdma-core 65), and `ibv_reg_mr_ex`, which
//! may name one.
//!
//! `struct ibv_buf` is opaque, and nothing in it reliably identifies its provider. So our buffers
//! are in a table, and a buffer that is not there belongs to the real library. A handle is the
//! address of one of our allocations, which no other buffer can have while it lives.

use core::ptr::null_mut;
use std::collections::BTreeMap;

use libc::{c_int, c_void, size_t};
use polypath_verbs::{Access, Error, Result};

use crate::forward::real_fn;
use crate::guard::{self, null_argument};
use crate::layout::{Pointer, ibv_mr, ibv_mr_init_attr, ibv_pd};
use crate::lock::Lock;
use crate::memory::{access, register, register_dmabuf};
use crate::pd::{Allocators, pd_of};

/// The largest number of buffers in a process.
const MAX_BUFFERS: usize = 1 << 20;
/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;
/// The purpose of the memory, for allocators: neither a driver of the kernel's list nor a code.
const RESOURCE_TYPE: u64 = 0;

/// `struct ibv_buf`, whose contents programs do not use.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_buf {
    pd: *mut ibv_pd,
    addr: Pointer,
    /// The number of bytes that the program asked for.
    size: usize,
    /// The functions that free it; `None` if it is our own mapping.
    allocators: Option<Allocators>,
    /// If a program passes this to the real library with a protection domain of its own, that
    /// library reads these words. It finds no domain that it knows, and refuses.
    spare: [usize; 16],
}

/// The buffers that are not freed yet, by handle.
pub(crate) struct Table(BTreeMap<usize, Box<ibv_buf>>);

// SAFETY: the pointers are only stored. Any thread may use a buffer.
unsafe impl Send for Table {}

pub(crate) static BUFFERS: Lock<Table> = Lock::new(Table(BTreeMap::new()));

/// The description of a buffer; `None` if it is not ours.
fn find(buf: *const ibv_buf) -> Option<ibv_buf> {
    BUFFERS.lock().0.get(&buf.addr()).map(|buffer| **buffer)
}

/// The size of the mapping for a buffer of `size` bytes: whole pages, at least one. `None` if it is
/// too large.
fn mapped(size: usize) -> Option<usize> {
    // SAFETY: this reads a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    size.max(1).checked_next_multiple_of(page)
}

fn no_memory() -> Error {
    Error::new(libc::ENOMEM, "no memory for the buffer")
}

/// Maps new zeroed memory, aligned to a page.
fn map(size: usize) -> Result<Pointer> {
    let len = mapped(size).ok_or_else(no_memory)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: this is a new mapping at an address that the kernel chooses.
    let addr = unsafe { libc::mmap(null_mut(), len, prot, flags, -1, 0) };
    if addr == libc::MAP_FAILED {
        return Err(Error::new(guard::errno(), "no memory for the buffer"));
    }
    Ok(addr)
}

/// Allocates memory for a buffer. Also returns the functions that free it.
///
/// # Safety
/// `pd` is one of ours.
unsafe fn allocate(pd: *mut ibv_pd, size: usize) -> Result<(Pointer, Option<Allocators>)> {
    // SAFETY: the caller promises it. The program's function is called as the header specifies.
    unsafe {
        if let Some(allocators) = pd_of(pd).allocators() {
            // Align to a page, like buffers without an allocator.
            let alignment = mapped(1).unwrap_or(4096);
            let addr = (allocators.alloc)(pd, allocators.context, size, alignment, RESOURCE_TYPE);
            if addr.is_null() {
                return Err(Error::new(
                    libc::ENOMEM,
                    "the parent domain's allocator returned no memory",
                ));
            }
            if addr.addr() != USE_DEFAULT {
                return Ok((addr, Some(allocators)));
            }
        }
        Ok((map(size)?, None))
    }
}

/// Frees a buffer's memory. No lock is held, because this calls the program's own functions, which
/// may also be hooks of `munmap`.
///
/// # Safety
/// `buffer` was removed from the table.
unsafe fn release(buffer: &ibv_buf) {
    match buffer.allocators {
        // SAFETY: the memory came from the program's allocator. The function is called as the
        // header specifies.
        Some(allocators) => unsafe {
            (allocators.free)(buffer.pd, allocators.context, buffer.addr, RESOURCE_TYPE);
        },
        None => {
            let len = mapped(buffer.size).unwrap_or_default();
            // SAFETY: this is the mapping that `map` made, with the same length.
            unsafe { libc::munmap(buffer.addr, len) };
        }
    }
}

/// Implements `ibv_alloc_buf`. Returns the memory's address, and stores a handle in `buf`. The
/// memory is zeroed and consists of whole pages.
///
/// # Safety
/// `pd` is one of ours; `buf` is null or valid for a pointer.
pub(crate) unsafe extern "C-unwind" fn alloc_buf(
    pd: *mut ibv_pd,
    size: size_t,
    buf: *mut *mut ibv_buf,
) -> Pointer {
    guard::pointer("ibv_alloc_buf", || {
        if buf.is_null() {
            return Err(null_argument("buf"));
        }
        // SAFETY: the trampoline passes only our domains.
        let (addr, allocators) = unsafe { allocate(pd, size)? };
        let mut buffer = Box::new(ibv_buf { pd, addr, size, allocators, spare: [0; 16] });
        let handle: *mut ibv_buf = &raw mut *buffer;
        let mut table = BUFFERS.lock();
        if table.0.len() >= MAX_BUFFERS {
            drop(table);
            // SAFETY: it was never in the table.
            unsafe { release(&buffer) };
            return Err(Error::new(libc::ENOMEM, format!("more than {MAX_BUFFERS} buffers")));
        }
        table.0.insert(handle.addr(), buffer);
        drop(table);
        // SAFETY: it is not null, so the caller promises room for a pointer.
        unsafe { buf.write(handle) };
        Ok(addr)
    })
}

/// Implements `ibv_free_buf`. Null is allowed.
///
/// # Safety
/// `buf` is null or a buffer of any provider, not freed yet.
pub(crate) unsafe extern "C-unwind" fn free_buf(buf: *mut ibv_buf) {
    let ours = guard::run(true, || {
        if buf.is_null() {
            return true;
        }
        let buffer = BUFFERS.lock().0.remove(&buf.addr());
        // SAFETY: it was just removed from the table.
        buffer.is_some_and(|buffer| unsafe {
            release(&buffer);
            true
        })
    });
    let real = real_fn!(c"ibv_free_buf", c"IBVERBS_1.17", fn(*mut ibv_buf));
    if let Some(real) = real
        && !ours
    {
        // SAFETY: the buffer is not ours, so the program got it from the real library and has not
        // freed it.
        unsafe { real(buf) };
    }
}

/// Implements `ibv_export_buf_dmabuf_fd`. Our buffers are ordinary memory, so it fails with
/// `ENODATA`, as the man page says.
///
/// # Safety
/// `buf` is null or a buffer of any provider.
pub(crate) unsafe extern "C-unwind" fn export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    let ours = buf.is_null() || guard::run(true, || find(buf).is_some());
    let real = real_fn!(c"ibv_export_buf_dmabuf_fd", c"IBVERBS_1.18", fn(*mut ibv_buf) -> c_int);
    match real {
        // SAFETY: the buffer is not ours, so the program got it from the real library.
        Some(real) if !ours => unsafe { real(buf) },
        _ => guard::minus_one("ibv_export_buf_dmabuf_fd", || {
            if buf.is_null() {
                return Err(null_argument("buf"));
            }
            Err(Error::new(libc::ENODATA, "the buffer is not backed by a DMA-BUF"))
        }),
    }
}

/// `ibv_reg_buf_mr`.
///
/// # Safety
/// `pd` is one of ours; `buf` is null or a buffer of any provider.
pub(crate) unsafe extern "C-unwind" fn reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: Pointer,
    length: size_t,
    flags: c_int,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_buf_mr", || {
        check_range(pd, buf, addr, length)?;
        let rights = access(flags.cast_unsigned())?;
        // SAFETY: the caller promises that the domain is ours. The range lies within one of our
        // buffers, which the program gives to the device by this call.
        unsafe { register(pd_of(pd), addr, length, first_address(addr, rights), rights) }
    })
}

/// The address of the first byte in work requests, if the program does not specify it.
fn first_address(addr: Pointer, rights: Access) -> u64 {
    if rights.contains(Access::ZERO_BASED) { 0 } else { addr.addr() as u64 }
}

/// Checks that a region's buffer is ours and was allocated with the region's domain, and that the
/// region is within it.
fn check_range(
    pd: *mut ibv_pd,
    buf: *const ibv_buf,
    addr: *mut c_void,
    length: usize,
) -> Result<()> {
    if buf.is_null() {
        return Err(null_argument("buf"));
    }
    let buffer = find(buf).ok_or_else(|| Error::invalid("the buffer is not of this device"))?;
    if buffer.pd != pd {
        return Err(Error::invalid("the buffer was allocated with another protection domain"));
    }
    let offset = addr.addr().checked_sub(buffer.addr.addr());
    if offset.and_then(|offset| offset.checked_add(length)).is_none_or(|end| end > buffer.size) {
        return Err(Error::invalid("the region is not within the buffer"));
    }
    Ok(())
}

/// Bits of `comp_mask` of [`ibv_mr_init_attr`].
mod mask {
    pub(super) const IOVA: u64 = 1;
    pub(super) const ADDR: u64 = 1 << 1;
    pub(super) const FD: u64 = 1 << 2;
    pub(super) const FD_OFFSET: u64 = 1 << 3;
    pub(super) const DMAH: u64 = 1 << 4;
    pub(super) const BUF: u64 = 1 << 5;
    pub(super) const ALL: u64 = (BUF << 1) - 1;
}

/// Implements `ibv_reg_mr_ex`, which combines all ways of registering. DMA handles are not
/// supported.
///
/// # Safety
/// `pd` is one of ours; `attr` is null or valid as far as its `comp_mask` says.
pub(crate) unsafe extern "C-unwind" fn reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *const ibv_mr_init_attr,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_mr_ex", || {
        if attr.is_null() {
            return Err(null_argument("mr_init_attr"));
        }
        // SAFETY: the caller promises that these three fields are always present, and the others if
        // the mask says so. No reference is made to a structure that may be shorter than ours.
        let (length, flags, given) = unsafe { ((*attr).length, (*attr).access, (*attr).comp_mask) };
        let has = |bits: u64| given & bits != 0;
        // Check for contradictions first, because they are errors on every device.
        if has(mask::FD | mask::FD_OFFSET) && has(mask::BUF | mask::ADDR) {
            return Err(Error::invalid("ibv_mr_init_attr has both a descriptor and an address"));
        }
        if given & !mask::ALL != 0 {
            return guard::unsupported("ibv_mr_init_attr has an unknown comp_mask");
        }
        if has(mask::DMAH) {
            return guard::unsupported("DMA handles are not supported");
        }
        if has(mask::FD | mask::FD_OFFSET) {
            let needed = mask::FD | mask::FD_OFFSET | mask::IOVA;
            if given & needed != needed {
                return Err(Error::invalid("a DMA-BUF needs fd, fd_offset and iova"));
            }
            let rights = access(flags.cast_unsigned())?;
            // SAFETY: the domain is ours, and the mask says that these fields are present.
            return unsafe {
                let place = ((*attr).fd, (*attr).fd_offset);
                register_dmabuf(pd_of(pd), place, length, (*attr).iova, rights)
            };
        }
        if !has(mask::ADDR) {
            return Err(Error::invalid("ibv_mr_init_attr has no address"));
        }
        let rights = access(flags.cast_unsigned())?;
        // SAFETY: the domain is ours, the mask says that the fields that are read are present, and
        // the program gives the range to the device by this call.
        unsafe {
            let addr = (*attr).addr;
            if has(mask::BUF) {
                check_range(pd, (*attr).buf.cast(), addr, length)?;
            }
            let iova = if has(mask::IOVA) { (*attr).iova } else { first_address(addr, rights) };
            register(pd_of(pd), addr, length, iova, rights)
        }
    })
}

#[cfg(test)]
mod tests {
    use core::mem::zeroed;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::double;
    use crate::layout::{ibv_context, ibv_parent_domain_init_attr};
    use crate::memory::dereg_mr;
    use crate::open::close_device;
    use crate::pd::{alloc_parent_domain, alloc_pd, dealloc_pd};

    const LOCAL_WRITE: c_int = 1;

    /// Runs a test with two protection domains.
    fn with_domains(test: impl FnOnce(*mut ibv_context, *mut ibv_pd, *mut ibv_pd)) {
        let context = double::open();
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let (one, other) = (alloc_pd(context), alloc_pd(context));
            test(context, one, other);
            assert_eq!(dealloc_pd(one), 0);
            assert_eq!(dealloc_pd(other), 0);
            close_device(context);
        }
    }

    fn allocated(pd: *mut ibv_pd, size: usize) -> (Pointer, *mut ibv_buf) {
        let mut buf = null_mut();
        // SAFETY: a domain of ours.
        let addr = unsafe { alloc_buf(pd, size, &raw mut buf) };
        assert!(!addr.is_null() && !buf.is_null());
        (addr, buf)
    }

    /// The errno of a registration that must fail.
    fn refused(mr: *mut ibv_mr) -> c_int {
        assert!(mr.is_null());
        guard::errno()
    }

    #[test]
    fn a_buffer_is_zeroed_whole_pages_and_gone_when_freed() {
        with_domains(|_, pd, _| {
            let (addr, buf) = allocated(pd, 5000);
            assert_eq!(addr.addr() % 4096, 0);
            // SAFETY: two pages of ours, freed once.
            unsafe {
                assert!(
                    core::slice::from_raw_parts(addr.cast::<u8>(), 8192).iter().all(|&b| b == 0)
                );
                free_buf(buf);
                let mut resident = [0; 2];
                assert_eq!(libc::mincore(addr, 8192, resident.as_mut_ptr()), -1, "unmapped");
            }
            assert!(find(buf).is_none());
            // SAFETY: null is allowed.
            unsafe { free_buf(null_mut()) };
        });
    }

    #[test]
    fn a_buffer_too_large_is_enomem_and_an_empty_one_a_page() {
        with_domains(|_, pd, _| {
            let mut buf = null_mut();
            for size in [usize::MAX, usize::MAX / 2] {
                // SAFETY: a domain of ours.
                assert!(unsafe { alloc_buf(pd, size, &raw mut buf) }.is_null());
                assert_eq!(guard::errno(), libc::ENOMEM);
            }
            // SAFETY: a domain of ours; null is refused.
            assert!(unsafe { alloc_buf(pd, 1, null_mut()) }.is_null());
            assert_eq!(guard::errno(), libc::EINVAL);
            let (_, buf) = allocated(pd, 0);
            // SAFETY: a buffer of ours.
            unsafe { free_buf(buf) };
        });
    }

    #[test]
    fn a_region_of_a_buffer_is_of_its_domain_and_within_it() {
        with_domains(|_, pd, other| {
            let (addr, buf) = allocated(pd, 8192);
            // SAFETY: objects of ours, each freed once.
            unsafe {
                let part = addr.byte_add(4096);
                let mr = reg_buf_mr(pd, buf, part, 4096, LOCAL_WRITE);
                assert_eq!(((*mr).addr, (*mr).length, (*mr).pd), (part, 4096, pd));
                assert_eq!(dereg_mr(mr), 0);
                let wrong = [
                    reg_buf_mr(other, buf, addr, 1, LOCAL_WRITE),
                    reg_buf_mr(pd, buf, addr, 8193, LOCAL_WRITE),
                    reg_buf_mr(pd, buf, part, 4097, LOCAL_WRITE),
                    reg_buf_mr(pd, buf, part, usize::MAX, LOCAL_WRITE),
                    reg_buf_mr(pd, buf, addr.wrapping_byte_sub(1), 1, LOCAL_WRITE),
                    reg_buf_mr(pd, null_mut(), addr, 1, LOCAL_WRITE),
                    reg_buf_mr(pd, addr.cast(), addr, 1, LOCAL_WRITE),
                ];
                assert!(wrong.iter().all(|&mr| refused(mr) == libc::EINVAL));
                free_buf(buf);
            }
        });
    }

    #[test]
    fn the_extended_registration_is_each_of_the_others() {
        with_domains(|_, pd, _| {
            let (addr, buf) = allocated(pd, 4096);
            // SAFETY: objects of ours, each freed once; zero is a valid start for the attributes.
            unsafe {
                let try_with = |comp_mask: u64| {
                    let mut attr: ibv_mr_init_attr = zeroed();
                    attr.length = 4096;
                    attr.access = LOCAL_WRITE;
                    attr.comp_mask = comp_mask;
                    attr.addr = addr;
                    attr.iova = 0x1000;
                    attr.buf = buf.cast();
                    reg_mr_ex(pd, &raw const attr)
                };
                for good in [2, 2 | 1, 2 | 32, 2 | 32 | 1] {
                    let mr = try_with(good);
                    assert!(!mr.is_null(), "comp_mask {good:#x}");
                    assert_eq!(((*mr).addr, (*mr).length), (addr, 4096));
                    assert_eq!(dereg_mr(mr), 0);
                }
                for contradictory in [0, 1, 32, 4, 2 | 4, 2 | 8, 2 | 32 | 4, 4 | 8, 8 | 1] {
                    let errno = refused(try_with(contradictory));
                    assert_eq!(errno, libc::EINVAL, "comp_mask {contradictory:#x}");
                }
                let of_dmabuf = try_with(4 | 8 | 1);
                assert_eq!(((*of_dmabuf).addr.addr(), (*of_dmabuf).length), (0, 4096));
                assert_eq!(dereg_mr(of_dmabuf), 0);
                for absent in [2 | 16, 2 | 64] {
                    let errno = refused(try_with(absent));
                    assert_eq!(errno, libc::EOPNOTSUPP, "comp_mask {absent:#x}");
                }
                free_buf(buf);
            }
        });
    }

    #[test]
    fn a_buffer_of_ours_is_no_dma_buf() {
        with_domains(|_, pd, _| {
            let (_, buf) = allocated(pd, 64);
            // SAFETY: a buffer of ours, freed once.
            unsafe {
                assert_eq!(export_buf_dmabuf_fd(buf), -1);
                assert_eq!(guard::errno(), libc::ENODATA);
                assert_eq!(export_buf_dmabuf_fd(null_mut()), -1);
                assert_eq!(guard::errno(), libc::EINVAL);
                free_buf(buf);
            }
        });
    }

    /// The requests to a program's allocators, behind `pd_context`.
    #[derive(Default)]
    struct Asked {
        bytes: AtomicUsize,
        freed: AtomicUsize,
    }

    unsafe extern "C-unwind" fn program_alloc(
        _pd: *mut ibv_pd,
        context: Pointer,
        size: usize,
        alignment: usize,
        _resource: u64,
    ) -> Pointer {
        // SAFETY: this is the test's own context.
        unsafe { (*context.cast::<Asked>()).bytes.fetch_add(size, Ordering::Relaxed) };
        match size {
            1 => null_mut(),
            2 => core::ptr::without_provenance_mut(USE_DEFAULT),
            // SAFETY: the alignment is a power of two, and not zero.
            _ => unsafe { libc::memalign(alignment, size) },
        }
    }

    unsafe extern "C-unwind" fn program_free(
        _pd: *mut ibv_pd,
        context: Pointer,
        addr: Pointer,
        _resource: u64,
    ) {
        // SAFETY: this is the test's own context, and memory from the function above.
        unsafe {
            (*context.cast::<Asked>()).freed.fetch_add(1, Ordering::Relaxed);
            libc::free(addr);
        }
    }

    #[test]
    fn a_parent_domain_s_allocators_are_used_unless_they_decline() {
        with_domains(|context, pd, _| {
            let asked = Asked::default();
            let attr = ibv_parent_domain_init_attr {
                pd,
                td: null_mut(),
                comp_mask: 1 | 2 | 4,
                alloc: program_alloc as *const c_void as Pointer,
                free: program_free as *const c_void as Pointer,
                pd_context: (&raw const asked).cast_mut().cast(),
            };
            // SAFETY: objects of ours, each freed once.
            unsafe {
                let parent = alloc_parent_domain(context, &attr);
                let (_, buf) = allocated(parent, 100);
                free_buf(buf);
                let (_, buf) = allocated(parent, 2);
                free_buf(buf);
                let mut buf = null_mut();
                assert!(alloc_buf(parent, 1, &raw mut buf).is_null());
                assert_eq!(guard::errno(), libc::ENOMEM);
                assert_eq!(asked.bytes.load(Ordering::Relaxed), 103);
                assert_eq!(asked.freed.load(Ordering::Relaxed), 1);
                assert_eq!(dealloc_pd(parent), 0);
            }
        });
    }
}
