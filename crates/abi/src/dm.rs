//! Device memory.

use core::cell::UnsafeCell;
use core::slice;
use std::sync::Arc;

use libc::{c_int, size_t};
use polypath_verbs::{DeviceMemory, Error, Result};

use crate::context::{CContext, Tie, checked};
use crate::guard::{self, null_argument};
use crate::layout::{Pointer, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::memory::{access, show};
use crate::pd::pd_of;

/// Device memory or another handle to it.
#[repr(C)]
struct CDm {
    public: UnsafeCell<ibv_dm>,
    inner: Arc<dyn DeviceMemory>,
    _tie: Tie,
}

/// Our device memory, as an argument from the inline functions of the headers.
///
/// # Safety
/// `dm` must be null or one of ours, not freed.
unsafe fn dm_of<'a>(dm: *const ibv_dm) -> Result<&'a CDm> {
    // SAFETY: the caller promises it. Ours begins with the public structure.
    unsafe { dm.cast::<CDm>().as_ref() }.ok_or_else(|| null_argument("dm"))
}

/// Creates the C structure of device memory.
pub(crate) fn make(context: &CContext, inner: Arc<dyn DeviceMemory>) -> *mut ibv_dm {
    let public = ibv_dm {
        context: context.public(),
        memcpy_to_dm: memcpy_to_dm as *const core::ffi::c_void as Pointer,
        memcpy_from_dm: memcpy_from_dm as *const core::ffi::c_void as Pointer,
        comp_mask: 0,
        handle: inner.handle(),
    };
    let _tie = Tie::new(context);
    Box::leak(Box::new(CDm { public: UnsafeCell::new(public), inner, _tie })).public.get()
}

/// `ibv_alloc_dm`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn alloc_dm(
    context: *mut ibv_context,
    attr: Option<&ibv_alloc_dm_attr>,
) -> *mut ibv_dm {
    guard::pointer("ibv_alloc_dm", || {
        // SAFETY: the headers pass null or the context of any provider, as `checked` requires.
        let owner = unsafe { checked(context)? };
        let attr = attr.ok_or_else(|| null_argument("attr"))?;
        if attr.comp_mask != 0 {
            return Err(Error::invalid("ibv_alloc_dm_attr has an unknown comp_mask"));
        }
        let inner = owner.inner().alloc_dm(attr.length as u64, attr.log_align_req)?;
        Ok(make(owner, inner))
    })
}

/// `ibv_free_dm`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn free_dm(dm: *mut ibv_dm) -> c_int {
    guard::errno_of("ibv_free_dm", || {
        // SAFETY: the headers call this through the structure, so it is ours or null, which `dm_of`
        // rejects. Once it is freed, the program does not use it any more.
        unsafe {
            dm_of(dm)?.inner.free()?;
            forget(dm);
        }
        Ok(())
    })
}

/// Frees only the structure.
///
/// # Safety
/// `dm` is one of ours, and not used any more.
pub(crate) unsafe fn forget(dm: *mut ibv_dm) {
    // SAFETY: this is the box that `make` leaked.
    drop(unsafe { Box::from_raw(dm.cast::<CDm>()) });
}

/// `ibv_memcpy_to_dm`, through the structure.
unsafe extern "C-unwind" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    host: *const u8,
    len: size_t,
) -> c_int {
    guard::errno_of("ibv_memcpy_to_dm", || {
        if host.is_null() {
            return Err(null_argument("host_addr"));
        }
        // SAFETY: the caller promises that there are `len` bytes. They are read once.
        unsafe { dm_of(dm)?.inner.write(offset, slice::from_raw_parts(host, len)) }
    })
}

/// `ibv_memcpy_from_dm`, through the structure.
unsafe extern "C-unwind" fn memcpy_from_dm(
    host: *mut u8,
    dm: *mut ibv_dm,
    offset: u64,
    len: size_t,
) -> c_int {
    guard::errno_of("ibv_memcpy_from_dm", || {
        if host.is_null() {
            return Err(null_argument("host_addr"));
        }
        // SAFETY: the caller promises that there are `len` bytes. They are written once.
        unsafe { dm_of(dm)?.inner.read(offset, slice::from_raw_parts_mut(host, len)) }
    })
}

/// `ibv_reg_dm_mr`'s slot.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    len: size_t,
    flags: u32,
) -> *mut ibv_mr {
    guard::pointer("ibv_reg_dm_mr", || {
        if pd.is_null() {
            return Err(null_argument("pd"));
        }
        // SAFETY: the headers pass the domain of any provider, and our device memory or null. Both
        // begin with their context, and the domain is ours if its context is.
        unsafe {
            let this = dm_of(dm)?;
            let owner = checked((*pd).context)?;
            if !owner.shares_objects_with(checked((*dm).context)?) {
                return Err(Error::invalid(
                    "device memory and protection domain belong to different contexts",
                ));
            }
            let inner = this.inner.register(pd_of(pd).number(), offset, len, access(flags)?)?;
            Ok(show(pd_of(pd), core::ptr::null_mut(), inner))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double;
    use crate::memory::dereg_mr;
    use crate::open::close_device;
    use crate::pd::{alloc_pd, dealloc_pd};

    #[test]
    fn device_memory_is_copied_to_and_from_through_its_structure() {
        let context = double::open();
        let attr = ibv_alloc_dm_attr { length: 64, log_align_req: 6, comp_mask: 0 };
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let dm = alloc_dm(context, Some(&attr));
            assert_eq!(((*dm).context, (*dm).comp_mask), (context, 0));
            let mut back = [0_u8; 4];
            assert_eq!(memcpy_to_dm(dm, 60, b"abcd".as_ptr(), 4), 0);
            assert_eq!(memcpy_from_dm(back.as_mut_ptr(), dm, 60, 4), 0);
            assert_eq!(&back, b"abcd");
            assert_eq!(memcpy_to_dm(dm, 64, back.as_ptr(), 4), libc::EFAULT);
            assert_eq!(memcpy_from_dm(back.as_mut_ptr(), dm, 64, 4), libc::EFAULT);
            assert_eq!(memcpy_to_dm(dm, 0, core::ptr::null(), 4), libc::EINVAL);
            assert_eq!(free_dm(dm), 0);
            assert_eq!(free_dm(core::ptr::null_mut()), libc::EINVAL);
            let strange = ibv_alloc_dm_attr { comp_mask: 1, ..attr };
            assert!(alloc_dm(context, Some(&strange)).is_null());
            assert_eq!(guard::errno(), libc::EINVAL);
            close_device(context);
        }
    }

    #[test]
    fn a_region_of_device_memory_has_no_address() {
        let context = double::open();
        let attr = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
        // SAFETY: objects of ours, each freed once.
        unsafe {
            let (pd, dm) = (alloc_pd(context), alloc_dm(context, Some(&attr)));
            let mr = reg_dm_mr(pd, dm, 16, 32, 1 | 1 << 5);
            assert_eq!(((*mr).addr.is_null(), (*mr).length, (*mr).pd), (true, 32, pd));
            assert_eq!(dereg_mr(mr), 0);
            let stranger = double::open();
            let foreign = alloc_pd(stranger);
            assert!(reg_dm_mr(foreign, dm, 16, 32, 1 | 1 << 5).is_null());
            assert_eq!(guard::errno(), libc::EINVAL);
            assert_eq!((dealloc_pd(foreign), close_device(stranger)), (0, 0));
            assert_eq!((free_dm(dm), dealloc_pd(pd)), (0, 0));
            close_device(context);
        }
    }
}
