//! Memory regions and windows.

use core::cell::UnsafeCell;
use std::sync::Arc;

use libc::{c_int, size_t};
use polypath_verbs::{Access, Error, MemoryRegion, MrRequest, Result};

use crate::context::{Tie, checked, is_usable};
use crate::guard::{self, null_argument};
use crate::layout::{Pointer, ibv_mr, ibv_mw, ibv_pd, ibv_sge};
use crate::ours::Ours;
use crate::pd::{CPd, pd_of};

/// Access bits that a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
pub(crate) const OPTIONAL: u32 = 0x3ff0_0000;

/// A memory region.
#[repr(C)]
struct CMr {
    public: UnsafeCell<ibv_mr>,
    inner: Arc<dyn MemoryRegion>,
    tie: Tie,
}

/// Converts the access rights of a registration. Optional bits that we do not know are ignored.
pub(crate) fn access(bits: u32) -> Result<Access> {
    if bits & Access::FLUSH_PERSISTENT.bits() != 0 {
        return guard::unsupported("memory here is not persistent: use FLUSH to global visibility");
    }
    let known = Access::all().bits();
    match Access::from_bits(bits & (known | !OPTIONAL)) {
        Some(access) => Ok(access),
        None => Err(Error::invalid(format!("unknown access flags {:#x}", bits & !known))),
    }
}

/// Registers memory.
///
/// # Safety
/// The program gives the range to the device (`man 3 ibv_reg_mr`).
pub(crate) unsafe fn register(
    pd: &CPd,
    addr: Pointer,
    len: usize,
    iova: u64,
    access: Access,
) -> Result<*mut ibv_mr> {
    let request = MrRequest { pd: pd.number(), addr: addr.addr(), len, iova, access };
    // SAFETY: the program gives the range to the device until the region is deregistered.
    let inner = unsafe { pd.context().inner().reg_mr(&request)? };
    Ok(show(pd, addr, inner))
}

/// Creates the C structure of a memory region.
pub(crate) fn show(pd: &CPd, addr: Pointer, inner: Arc<dyn MemoryRegion>) -> *mut ibv_mr {
    let public = ibv_mr {
        context: pd.context().public(),
        pd: pd.public(),
        addr,
        length: inner.len(),
        handle: inner.lkey(),
        lkey: inner.lkey(),
        rkey: inner.rkey(),
    };
    let tie = Tie::new(pd.context());
    Box::leak(Box::new(CMr { public: UnsafeCell::new(public), inner, tie })).public.get()
}

/// Frees only the structure. The region stays.
///
/// # Safety
/// `mr` is one of ours, and not used any more.
pub(crate) unsafe fn forget_mr(mr: *mut ibv_mr) {
    // SAFETY: this is the box that `show` leaked.
    drop(unsafe { Box::from_raw(mr.cast::<CMr>()) });
}

/// `ibv_reg_mr`.
///
/// # Safety
/// `pd` is one of ours.
pub(crate) unsafe extern "C-unwind" fn reg_mr(
    pd: *mut ibv_pd,
    addr: Pointer,
    len: size_t,
    flags: c_int,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_mr", || {
        let access = access(flags.cast_unsigned())?;
        let zero_based = access.contains(Access::ZERO_BASED);
        let iova = if zero_based { 0 } else { addr.addr() as u64 };
        // SAFETY: the caller promises that the domain is ours, and that the program gives the range
        // to the device.
        unsafe { register(pd_of(pd), addr, len, iova, access) }
    })
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// `pd` is one of ours.
pub(crate) unsafe extern "C-unwind" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: Pointer,
    len: size_t,
    iova: u64,
    flags: c_int,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_mr_iova", || {
        let access = access(flags.cast_unsigned())?;
        // SAFETY: the caller promises that the domain is ours, and that the program gives the range
        // to the device.
        unsafe { register(pd_of(pd), addr, len, iova, access) }
    })
}

/// Implements `ibv_reg_mr_iova2`. The `ibv_reg_mr` macro calls it if the flags are not constant.
///
/// # Safety
/// `pd` is one of ours.
pub(crate) unsafe extern "C-unwind" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: Pointer,
    len: size_t,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_mr_iova2", || {
        let access = access(flags)?;
        let zero_based = access.contains(Access::ZERO_BASED) && iova == addr.addr() as u64;
        let iova = if zero_based { 0 } else { iova };
        // SAFETY: the caller promises that the domain is ours, and that the program gives the range
        // to the device.
        unsafe { register(pd_of(pd), addr, len, iova, access) }
    })
}

/// Implements `ibv_rereg_mr`. Returns 0, or an `enum ibv_rereg_mr_err_code` with `errno`.
///
/// # Safety
/// `mr` is one of ours, and the program gives the new range to the device (`man 3 ibv_rereg_mr`).
pub(crate) unsafe extern "C-unwind" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: Pointer,
    len: size_t,
    access_flags: c_int,
) -> c_int {
    const TRANSLATION: c_int = 1;
    const PD: c_int = 2;
    const ACCESS: c_int = 4;
    const ERR_INPUT: c_int = -1;
    const ERR_CMD: c_int = -4;
    // SAFETY: the domain of any provider begins with its context.
    let is_ours = || unsafe { !pd.is_null() && is_usable((*pd).context) };
    let bad = flags == 0
        || flags & !(TRANSLATION | PD | ACCESS) != 0
        || flags & PD != 0 && !is_ours()
        || flags & TRANSLATION != 0 && (addr.is_null() || len == 0);
    if bad {
        guard::set_errno(libc::EINVAL);
        return ERR_INPUT;
    }
    let errno = guard::errno_of("ibv_rereg_mr", || {
        // SAFETY: the caller promises that the region is ours, so that it is a `CMr`, that the
        // program uses it in no other call meanwhile, and that it gives the new range to the
        // device. A new domain is ours, as was checked above.
        unsafe {
            let inner = &(*mr.cast::<CMr>()).inner;
            let new_pd = (flags & PD != 0).then(|| pd_of(pd).number());
            let range = (flags & TRANSLATION != 0).then(|| (addr.addr(), len, addr.addr() as u64));
            let rights = match flags & ACCESS {
                0 => None,
                _ => Some(access(access_flags.cast_unsigned())?),
            };
            inner.reregister(new_pd, range, rights)?;
            (*mr).lkey = inner.lkey();
            (*mr).rkey = inner.rkey();
            if flags & PD != 0 {
                (*mr).pd = pd;
            }
            if flags & TRANSLATION != 0 {
                (*mr).addr = addr;
                (*mr).length = len;
            }
        }
        Ok(())
    });
    if errno == 0 { 0 } else { ERR_CMD }
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// `mr` is one of ours.
pub(crate) unsafe extern "C-unwind" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    guard::errno_of("ibv_dereg_mr", || {
        // SAFETY: the caller promises that the region is ours, so that it is a `CMr`, and that
        // nobody uses it after it is deregistered.
        unsafe {
            let this = &*mr.cast::<CMr>();
            let done = this.inner.deregister();
            if !this.tie.context().is_shut() {
                done?;
            }
            forget_mr(mr);
        }
        Ok(())
    })
}

/// `ibv_alloc_null_mr`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    guard::pointer("ibv_alloc_null_mr", || {
        if pd.is_null() {
            return Err(null_argument("pd"));
        }
        // SAFETY: the headers pass the domain of any provider, which begins with its context. It is
        // ours if its context is.
        let pd = unsafe {
            checked((*pd).context)?;
            pd_of(pd)
        };
        let inner = pd.context().inner().alloc_null_mr(pd.number())?;
        Ok(show(pd, core::ptr::null_mut(), inner))
    })
}

/// Registers part of a DMA-BUF.
pub(crate) fn register_dmabuf(
    pd: &CPd,
    (fd, offset): (c_int, u64),
    len: usize,
    iova: u64,
    access: Access,
) -> Result<*mut ibv_mr> {
    let request = MrRequest { pd: pd.number(), addr: 0, len, iova, access };
    let inner = pd.context().inner().reg_dmabuf_mr(&request, fd, offset)?;
    // The real library also stores the offset here.
    let addr = core::ptr::without_provenance_mut(offset as usize);
    Ok(show(pd, addr, inner))
}

/// `ibv_reg_dmabuf_mr`.
pub(crate) extern "C-unwind" fn reg_dmabuf_mr(
    pd: Ours<CPd>,
    offset: u64,
    len: size_t,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_dmabuf_mr", || {
        let access = access(flags.cast_unsigned())?;
        register_dmabuf(&pd, (fd, offset), len, iova, access)
    })
}

/// The function in `ibv_advise_mr`'s slot. Pages become present when they are touched, so advice
/// needs no action.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *const ibv_sge,
    count: u32,
) -> c_int {
    const ADVICE_MAX: u32 = 2; // PREFETCH, PREFETCH_WRITE, PREFETCH_NO_FAULT
    const FLUSH: u32 = 1;
    guard::errno_of("ibv_advise_mr", || {
        if pd.is_null() || list.is_null() || count == 0 {
            return Err(Error::invalid("nothing to advise on"));
        }
        if advice > ADVICE_MAX || flags & !FLUSH != 0 {
            return guard::unsupported("unknown advice or flags");
        }
        Ok(())
    })
}

/// A memory window.
#[repr(C)]
struct CMw {
    public: UnsafeCell<ibv_mw>,
    _tie: Tie,
}

/// `ibv_alloc_mw`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    guard::pointer("ibv_alloc_mw", || {
        if pd.is_null() {
            return Err(null_argument("pd"));
        }
        let kind = match mw_type {
            1 | 2 => mw_type as u8,
            _ => return Err(Error::invalid("memory windows are of type 1 or 2")),
        };
        // SAFETY: the headers pass the domain of any provider, which begins with its context. It is
        // ours if its context is.
        let (owner, number) = unsafe { (checked((*pd).context)?, pd_of(pd).number()) };
        let (handle, rkey) = owner.inner().alloc_mw(number, kind)?;
        let context = owner.public();
        let public = UnsafeCell::new(ibv_mw { context, pd, rkey, handle, mw_type });
        Ok(Box::leak(Box::new(CMw { public, _tie: Tie::new(owner) })).public.get())
    })
}

/// `ibv_dealloc_mw`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    guard::errno_of("ibv_dealloc_mw", || {
        if mw.is_null() {
            return Err(null_argument("mw"));
        }
        // SAFETY: the caller promises it. The box is the one that `alloc_mw` leaked.
        unsafe {
            let context = checked((*mw).context)?;
            let done = context.inner().dealloc_mw((*mw).handle);
            if !context.is_shut() {
                done?;
            }
            drop(Box::from_raw(mw.cast::<CMw>()));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double;
    use crate::open::close_device;
    use crate::pd::{alloc_pd, dealloc_pd};

    #[test]
    fn unknown_optional_access_bits_are_ignored_others_refused() {
        assert_eq!(access(1 | 1 << 25).unwrap(), Access::LOCAL_WRITE);
        assert_eq!(access(1 << 20).unwrap(), Access::RELAXED_ORDERING);
        assert_eq!(access(1 << 15).unwrap_err().errno, libc::EINVAL);
        assert_eq!(access(1 << 30).unwrap_err().errno, libc::EINVAL);
        assert_eq!(access(1 << 8).unwrap(), Access::FLUSH_GLOBAL);
        // No memory is persistent.
        assert_eq!(access(1 << 9).unwrap_err().errno, libc::EOPNOTSUPP);
    }

    #[test]
    fn regions_without_memory_of_the_program_show_no_address_of_it() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once; null is refused.
        unsafe {
            let pd = alloc_pd(context);
            let null = alloc_null_mr(pd);
            assert_eq!(((*null).addr.is_null(), (*null).length), (true, usize::MAX));
            let buf = reg_dmabuf_mr(Ours::new(pd), 0x3000, 64, 0x3000, 0, 1);
            assert_eq!(((*buf).addr.addr(), (*buf).length, (*buf).pd), (0x3000, 64, pd));
            assert_eq!((dereg_mr(null), dereg_mr(buf), dealloc_pd(pd)), (0, 0, 0));
            assert!(alloc_null_mr(core::ptr::null_mut()).is_null());
            assert_eq!(guard::errno(), libc::EINVAL);
            close_device(context);
        }
    }

    #[test]
    fn a_region_shows_what_was_registered() {
        let context = double::open();
        let mut memory = [0_u8; 64];
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let pd = alloc_pd(context);
            let mr = reg_mr(pd, memory.as_mut_ptr().cast(), 64, 1);
            assert_eq!(((*mr).length, (*mr).pd, (*mr).context), (64, pd, context));
            assert_eq!(rereg_mr(mr, 8, pd, memory.as_mut_ptr().cast(), 64, 1), -1);
            assert_eq!(rereg_mr(mr, 1, pd, memory.as_mut_ptr().cast(), 32, 1), 0);
            assert_eq!((*mr).length, 32);
            let mut foreign = ibv_pd { context: core::ptr::null_mut(), handle: 0 };
            assert_eq!(rereg_mr(mr, 2, &mut foreign, core::ptr::null_mut(), 0, 0), -1);
            assert_eq!((guard::errno(), (*mr).pd), (libc::EINVAL, pd));
            assert_eq!(dereg_mr(mr), 0);
            assert_eq!(dealloc_pd(pd), 0);
            close_device(context);
        }
    }
}
