//! Protection domains, parent domains, thread domains.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, size_t};
use polypath_verbs::{Error, Result};

use crate::context::{CContext, Tie, checked, of};
use crate::forward::as_function;
use crate::guard::{self, null_argument};
use crate::layout::{Pointer, ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td};
use crate::ours::Object;

/// A protection domain, or a parent domain, which is another handle to one.
#[repr(C)]
pub(crate) struct CPd {
    public: UnsafeCell<ibv_pd>,
    number: u32,
    /// The domain that a parent domain was created from.
    of: *const Self,
    /// The thread domain of a parent domain, or null.
    td: *const CTd,
    /// The number of parent domains that were created from this one, and of queues that were created by this
    /// one if it is a parent domain. The device counts those of other domains.
    users: AtomicU32,
    allocators: Option<Allocators>,
    tie: Tie,
}

// SAFETY: the public structure is the first field, and `make_pd` passes C its address.
unsafe impl Object for CPd {
    type Public = ibv_pd;
}

/// The functions of a program from which a parent domain takes memory.
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
    /// The functions of a parent domain's attributes, if there are any. `context` is the
    /// attributes' if their mask says that it is present.
    fn of(attr: &ibv_parent_domain_init_attr, context: Pointer) -> Option<Self> {
        Some(Self { alloc: as_function(attr.alloc)?, free: as_function(attr.free)?, context })
    }
}

impl CPd {
    /// The C structure.
    pub(crate) fn public(&self) -> *mut ibv_pd {
        self.public.get()
    }

    /// Its context.
    pub(crate) fn context(&self) -> &CContext {
        self.tie.context()
    }

    /// The traits' number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Fails while something of this process refers to the structure.
    fn expect_unused(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            _ if self.of.is_null() => {
                Err(Error::busy("a parent domain is made of this protection domain"))
            }
            _ => Err(Error::busy(
                "a queue was created by this parent domain, or another one is made of it",
            )),
        }
    }

    /// The program's functions for its memory, if it specified them.
    pub(crate) fn allocators(&self) -> Option<Allocators> {
        self.allocators
    }
}

/// Keeps a parent domain busy as long as a queue exists that was created by it, as with mlx5.
pub(crate) struct PdTie(*const CPd);

impl PdTie {
    /// Adds a tie to a domain.
    pub(crate) fn new(pd: &CPd) -> Self {
        if pd.of.is_null() {
            return Self(core::ptr::null());
        }
        pd.users.fetch_add(1, Ordering::AcqRel);
        Self(pd)
    }
}

impl Drop for PdTie {
    fn drop(&mut self) {
        // SAFETY: null, or a domain that is not freed as long as it has users, of which this is one.
        if let Some(pd) = unsafe { self.0.as_ref() } {
            pd.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A protection domain of ours.
///
/// # Safety
/// `pd` must be one of ours, not deallocated.
pub(crate) unsafe fn pd_of<'a>(pd: *const ibv_pd) -> &'a CPd {
    // SAFETY: our domains begin with the public structure.
    unsafe { &*pd.cast() }
}

/// What a domain is made of that is no parent domain.
pub(crate) const NO_PARTS: (*const CPd, *const CTd) = (core::ptr::null(), core::ptr::null());

/// Creates the C structure of a protection domain.
pub(crate) fn make_pd(
    context: &CContext,
    number: u32,
    (of, td): (*const CPd, *const CTd),
    allocators: Option<Allocators>,
) -> *mut ibv_pd {
    let pd = Box::new(CPd {
        public: UnsafeCell::new(ibv_pd { context: context.public(), handle: number }),
        number,
        of,
        td,
        users: AtomicU32::new(0),
        allocators,
        tie: Tie::new(context),
    });
    Box::leak(pd).public.get()
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// `context` is one of ours.
pub(crate) unsafe extern "C-unwind" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guard::pointer("ibv_alloc_pd", || {
        // SAFETY: the trampoline passes only our contexts, and the program closes none that is in
        // use.
        let context = unsafe { of(context) };
        let number = context.inner().alloc_pd()?;
        Ok(make_pd(context, number, NO_PARTS, None))
    })
}

/// Implements `ibv_dealloc_pd`, also for parent domains.
///
/// # Safety
/// `pd` is one of ours.
pub(crate) unsafe extern "C-unwind" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guard::errno_of("ibv_dealloc_pd", || {
        // SAFETY: the caller promises it. A parent domain's `of` outlives it, see below. The box is
        // the one that `make_pd` leaked.
        unsafe {
            let this = pd_of(pd);
            this.expect_unused()?;
            if this.of.is_null() {
                this.context().inner().dealloc_pd(this.number)?;
            } else {
                (*this.of).users.fetch_sub(1, Ordering::AcqRel);
                if let Some(td) = this.td.as_ref() {
                    td.users.fetch_sub(1, Ordering::AcqRel);
                }
            }
            drop(Box::from_raw(pd.cast::<CPd>()));
        }
        Ok(())
    })
}

/// Frees only the structure. The domain stays.
///
/// # Safety
/// `pd` is one of ours, and not used any more.
pub(crate) unsafe fn forget_pd(pd: *mut ibv_pd) -> Result<()> {
    // SAFETY: the caller promises it, and the box is the one that `make_pd` leaked. If parent
    // domains point to it, it is left to them.
    unsafe {
        pd_of(pd).expect_unused()?;
        drop(Box::from_raw(pd.cast::<CPd>()));
    }
    Ok(())
}

/// A thread domain.
#[repr(C)]
pub(crate) struct CTd {
    public: UnsafeCell<ibv_td>,
    /// The number of parent domains that it is part of.
    users: AtomicU32,
    _tie: Tie,
}

/// The function in `ibv_alloc_td`'s slot. A thread domain promises that objects are used from one
/// thread; we do not need that promise.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn alloc_td(
    context: *mut ibv_context,
    attr: Option<&u32>,
) -> *mut ibv_td {
    guard::pointer("ibv_alloc_td", || {
        // SAFETY: the headers pass null or the context of any provider, as `checked` requires.
        let owner = unsafe { checked(context)? };
        // The attributes begin with their mask.
        if attr.is_none_or(|mask| *mask != 0) {
            return Err(Error::invalid("ibv_td_init_attr has an unknown comp_mask"));
        }
        let public = UnsafeCell::new(ibv_td { context });
        let (users, _tie) = (AtomicU32::new(0), Tie::new(owner));
        Ok(Box::leak(Box::new(CTd { public, users, _tie })).public.get())
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
        // SAFETY: this is the box that `alloc_td` leaked.
        unsafe {
            if (*td.cast::<CTd>()).users.load(Ordering::Acquire) != 0 {
                return Err(Error::busy("the thread domain is part of a parent domain"));
            }
            drop(Box::from_raw(td.cast::<CTd>()));
        }
        Ok(())
    })
}

/// The function in `ibv_alloc_parent_domain`'s slot. Custom allocators are used for
/// `ibv_alloc_buf`. Providers also use them for rings in shared memory, which our objects do not
/// have. A request for memory that a confidential guest shares with its host is refused, as on
/// every device that does not need it.
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
        // SAFETY: the headers pass null or the context of any provider, as `checked` requires, and
        // null or readable attributes. Their domains have the same context, so they are ours.
        unsafe {
            let owner = checked(context)?;
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
            domain.users.fetch_add(1, Ordering::AcqRel);
            let td = attr.td.cast::<CTd>().cast_const();
            if let Some(td) = td.as_ref() {
                td.users.fetch_add(1, Ordering::AcqRel);
            }
            Ok(make_pd(owner, domain.number, (domain, td), allocators))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double;
    use crate::open::close_device;

    #[test]
    fn a_parent_domain_keeps_its_domains_busy_and_a_queue_its_parent_domain() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let (pd, td) = (alloc_pd(context), alloc_td(context, Some(&0)));
            let attr = ibv_parent_domain_init_attr {
                pd,
                td,
                comp_mask: 0,
                alloc: core::ptr::null_mut(),
                free: core::ptr::null_mut(),
                pd_context: core::ptr::null_mut(),
            };
            let parent = alloc_parent_domain(context, &attr);
            assert!(!parent.is_null());
            let ties = [pd, parent].map(|pd| PdTie::new(pd_of(pd)));
            assert_eq!(dealloc_td(td), libc::EBUSY);
            assert_eq!(dealloc_pd(pd), libc::EBUSY);
            assert_eq!(dealloc_pd(parent), libc::EBUSY);
            drop(ties);
            assert_eq!(dealloc_pd(parent), 0);
            assert_eq!(dealloc_pd(pd), 0);
            assert_eq!(dealloc_td(td), 0);
            close_device(context);
        }
    }
}
