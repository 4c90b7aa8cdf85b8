//! Protection domains, memory regions and windows, thread domains.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use libc::{c_int, size_t};
use polypath_verbs::{Access, Error, MemoryRegion, MrRequest, Result};

use crate::context::{checked, of};
use crate::forward::as_function;
use crate::guard::{self, null_argument};
use crate::layout::{
    Pointer, ibv_context, ibv_mr, ibv_mw, ibv_parent_domain_init_attr, ibv_pd, ibv_sge, ibv_td,
};

/// Access bits that a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;

/// A protection domain, or a parent domain: another handle to one.
#[repr(C)]
pub(crate) struct CPd {
    public: UnsafeCell<ibv_pd>,
    number: u32,
    /// The domain that a parent domain was made of.
    of: *const Self,
    /// Parent domains made of this.
    parents: AtomicU32,
    allocators: Option<Allocators>,
}

/// The functions of a program that a parent domain takes memory from.
#[derive(Clone, Copy)]
pub(crate) struct Allocators {
    pub(crate) alloc: unsafe extern "C-unwind" fn(
        pd: *mut ibv_pd,
        context: Pointer,
        size: size_t,
        alignment: size_t,
        resource_type: u64,
    ) -> Pointer,
    pub(crate) free: unsafe extern "C-unwind" fn(
        pd: *mut ibv_pd,
        context: Pointer,
        addr: Pointer,
        resource_type: u64,
    ),
    pub(crate) context: Pointer,
}

impl Allocators {
    /// Those of a parent domain's attributes, if there are any. `context` is the attributes' if
    /// their mask says that they have one.
    fn of(attr: &ibv_parent_domain_init_attr, context: Pointer) -> Option<Self> {
        Some(Self { alloc: as_function(attr.alloc)?, free: as_function(attr.free)?, context })
    }
}

impl CPd {
    /// The traits' number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Where memory for the program comes from, if the program said so.
    pub(crate) fn allocators(&self) -> Option<Allocators> {
        self.allocators
    }
}

/// A protection domain of ours.
///
/// # Safety
/// `pd` must be one of ours, not deallocated.
pub(crate) unsafe fn pd_of<'a>(pd: *const ibv_pd) -> &'a CPd {
    // SAFETY: ours begin with the public structure.
    unsafe { &*pd.cast() }
}

fn make_pd(
    context: *mut ibv_context,
    number: u32,
    parent: *const CPd,
    allocators: Option<Allocators>,
) -> *mut ibv_pd {
    let pd = Box::new(CPd {
        public: UnsafeCell::new(ibv_pd { context, handle: number }),
        number,
        of: parent,
        parents: AtomicU32::new(0),
        allocators,
    });
    Box::leak(pd).public.get()
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` is one of ours.
pub(crate) unsafe extern "C-unwind" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard::pointer("ibv_alloc_pd", || {
        // SAFETY: the caller's promise.
        let number = unsafe { of(context) }.inner().alloc_pd()?;
        Ok(make_pd(context, number, core::ptr::null(), None))
    })
}

/// `ibv_dealloc_pd`, of parent domains too.
///
/// # Safety
/// `pd` is one of ours.
pub(crate) unsafe extern "C-unwind" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard::errno_of("ibv_dealloc_pd", || {
        // SAFETY: the caller's promise; a parent domain's `of` outlives it, see below; the box is
        // the one that `make_pd` leaked.
        unsafe {
            let this = pd_of(pd);
            if this.parents.load(Ordering::Acquire) != 0 {
                return Err(Error::busy("a parent domain is made of this protection domain"));
            }
            if this.of.is_null() {
                of((*pd).context).inner().dealloc_pd(this.number)?;
            } else {
                (*this.of).parents.fetch_sub(1, Ordering::AcqRel);
            }
            drop(Box::from_raw(pd.cast::<CPd>()));
        }
        Ok(())
    })
}

/// `ibv_alloc_td`'s slot. Thread domains promise to use objects from one thread; we need no promise.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn alloc_td(
    context: *mut ibv_context,
    attr: *const u32,
) -> *mut ibv_td {
    guard::pointer("ibv_alloc_td", || {
        // SAFETY: the caller's promise: the attributes begin with their mask.
        unsafe {
            checked(context)?;
            if attr.is_null() || *attr != 0 {
                return Err(Error::invalid("ibv_td_init_attr has an unknown comp_mask"));
            }
        }
        Ok(Box::leak(Box::new(ibv_td { context })))
    })
}

/// `ibv_dealloc_td`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn dealloc_td(td: *mut ibv_td) -> c_int {
    guard::errno_of("ibv_dealloc_td", || {
        if td.is_null() {
            return Err(null_argument("td"));
        }
        // SAFETY: the box that `alloc_td` leaked.
        drop(unsafe { Box::from_raw(td) });
        Ok(())
    })
}

/// `ibv_alloc_parent_domain`'s slot. Custom allocators serve `ibv_alloc_buf`; the rings in shared
/// memory that providers use them for, our objects do not have. Memory that a confidential guest
/// shares with its host is asked for in vain, as on every device that does not need it.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *const ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 2;
    const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 4;
    const KNOWN: u32 = ALLOCATORS | PD_CONTEXT | ALLOW_CC_UNPROTECTED_ALLOC;
    guard::pointer("ibv_alloc_parent_domain", || {
        // SAFETY: the caller's promise.
        unsafe {
            checked(context)?;
            let attr = attr.as_ref().ok_or_else(|| null_argument("attr"))?;
            if attr.pd.is_null() {
                return Err(null_argument("attr->pd"));
            }
            if attr.comp_mask & !KNOWN != 0 {
                return Err(Error::invalid("parent domain: unknown comp_mask"));
            }
            let allocators = if attr.comp_mask & ALLOCATORS != 0 {
                let has_context = attr.comp_mask & PD_CONTEXT != 0;
                let context = if has_context { attr.pd_context } else { core::ptr::null_mut() };
                let given = Allocators::of(attr, context);
                Some(given.ok_or_else(|| null_argument("attr->alloc or attr->free"))?)
            } else {
                None
            };
            let domain = pd_of(attr.pd);
            domain.parents.fetch_add(1, Ordering::AcqRel);
            Ok(make_pd(context, domain.number, domain, allocators))
        }
    })
}

/// A memory region.
#[repr(C)]
struct CMr {
    public: UnsafeCell<ibv_mr>,
    inner: Arc<dyn MemoryRegion>,
}

/// Access rights of a registration; optional bits that we do not know mean nothing.
pub(crate) fn access(bits: u32) -> Result<Access> {
    if bits & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT).bits() != 0 {
        return guard::unsupported("FLUSH is not there");
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
/// `pd` is one of ours.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: Pointer,
    len: usize,
    iova: u64,
    access: Access,
) -> Result<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    unsafe {
        let number = pd_of(pd).number;
        let context = (*pd).context;
        let request = MrRequest { pd: number, addr: addr.addr(), len, iova, access };
        let inner = of(context).inner().reg_mr(&request)?;
        let public = ibv_mr {
            context,
            pd,
            addr,
            length: len,
            handle: inner.lkey(),
            lkey: inner.lkey(),
            rkey: inner.rkey(),
        };
        Ok(Box::leak(Box::new(CMr { public: UnsafeCell::new(public), inner })).public.get())
    }
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
        // SAFETY: the caller's promise.
        unsafe { register(pd, addr, len, iova, access) }
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
    // SAFETY: the caller's promise.
    guard::pointer("ibv_reg_mr_iova", || unsafe {
        register(pd, addr, len, iova, access(flags.cast_unsigned())?)
    })
}

/// `ibv_reg_mr_iova2`, which the `ibv_reg_mr` macro becomes when the flags are not constant.
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
        // SAFETY: the caller's promise.
        unsafe { register(pd, addr, len, if zero_based { 0 } else { iova }, access) }
    })
}

/// `ibv_rereg_mr`: 0, or `enum ibv_rereg_mr_err_code` with `errno`.
///
/// # Safety
/// `mr` is one of ours.
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
    let bad = flags == 0
        || flags & !(TRANSLATION | PD | ACCESS) != 0
        || flags & PD != 0 && pd.is_null()
        || flags & TRANSLATION != 0 && (addr.is_null() || len == 0);
    if bad {
        guard::set_errno(libc::EINVAL);
        return ERR_INPUT;
    }
    let errno = guard::errno_of("ibv_rereg_mr", || {
        // SAFETY: the caller's promise.
        unsafe {
            let inner = &(*mr.cast::<CMr>()).inner;
            let new_pd = (flags & PD != 0).then(|| pd_of(pd).number);
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
        // SAFETY: the caller's promise; the box is the one that `register` leaked.
        unsafe {
            (*mr.cast::<CMr>()).inner.deregister()?;
            drop(Box::from_raw(mr.cast::<CMr>()));
        }
        Ok(())
    })
}

/// `ibv_alloc_null_mr`'s slot.
///
/// # Safety
/// None needed.
pub(crate) unsafe extern "C-unwind" fn alloc_null_mr(_pd: *mut ibv_pd) -> *mut ibv_mr {
    guard::pointer("ibv_alloc_null_mr", || guard::unsupported("null memory regions are not there"))
}

/// `ibv_advise_mr`'s slot. Pages come by themselves when they are touched; advice needs no action.
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
        // SAFETY: the caller's promise.
        unsafe {
            let context = (*pd).context;
            let (handle, rkey) = checked(context)?.inner().alloc_mw(pd_of(pd).number, kind)?;
            Ok(Box::leak(Box::new(ibv_mw { context, pd, rkey, handle, mw_type })))
        }
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
        // SAFETY: the caller's promise; the box is the one that `alloc_mw` leaked.
        unsafe {
            checked((*mw).context)?.inner().dealloc_mw((*mw).handle)?;
            drop(Box::from_raw(mw));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::close_device;
    use crate::double;

    #[test]
    fn unknown_optional_access_bits_are_ignored_others_refused() {
        assert_eq!(access(1 | 1 << 25).unwrap(), Access::LOCAL_WRITE);
        assert_eq!(access(1 << 20).unwrap(), Access::RELAXED_ORDERING);
        assert_eq!(access(1 << 15).unwrap_err().errno, libc::EINVAL);
        assert_eq!(access(1 << 30).unwrap_err().errno, libc::EINVAL);
        assert_eq!(access(1 << 8).unwrap_err().errno, libc::EOPNOTSUPP);
    }

    #[test]
    fn a_parent_domain_keeps_its_domain_busy() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let pd = alloc_pd(context);
            let attr = ibv_parent_domain_init_attr {
                pd,
                td: core::ptr::null_mut(),
                comp_mask: 0,
                alloc: core::ptr::null_mut(),
                free: core::ptr::null_mut(),
                pd_context: core::ptr::null_mut(),
            };
            let parent = alloc_parent_domain(context, &attr);
            assert!(!parent.is_null());
            assert_eq!(dealloc_pd(pd), libc::EBUSY);
            assert_eq!(dealloc_pd(parent), 0);
            assert_eq!(dealloc_pd(pd), 0);
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
            assert_eq!(dereg_mr(mr), 0);
            assert_eq!(dealloc_pd(pd), 0);
            close_device(context);
        }
    }
}
