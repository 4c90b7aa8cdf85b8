//! Tells our devices, contexts and objects from those of other providers.

use core::ops::Deref;
use core::ptr::NonNull;

use crate::layout::{Pointer, ibv_context, ibv_device};

/// Its address in `ibv_device.ops` (which rdma-core never uses) identifies our devices.
static MARK: u8 = 0x50;

/// The value of `ibv_device.ops` in our devices.
pub(crate) fn mark() -> Pointer {
    (&raw const MARK).cast_mut().cast()
}

/// Whether a device is one of ours.
///
/// # Safety
/// `device` must be null or a device of any provider.
pub(crate) unsafe fn is_our_device(device: *const ibv_device) -> bool {
    // SAFETY: the device of any provider begins with this structure.
    !device.is_null() && unsafe { (*device).ops[0] } == mark()
}

/// Whether a context is one of ours.
///
/// # Safety
/// `context` must be null or a context of any provider.
pub(crate) unsafe fn is_our_context(context: *const ibv_context) -> bool {
    // SAFETY: a context points to its device as long as it lives.
    !context.is_null() && unsafe { is_our_device((*context).device) }
}

/// Our structure around the one that C knows.
///
/// # Safety
/// C's pointers to such an object point to its `Public`, which is `OFFSET` bytes into it and was
/// allocated with it.
pub(crate) unsafe trait Object {
    /// The C structure.
    type Public;
    /// The offset of the C structure in ours.
    const OFFSET: usize = 0;
}

/// Our object, borrowed by a function for one call.
///
/// Functions that C calls have this type where the header has a pointer. The header's demands on
/// the program hold for every value: the object is ours, and is not destroyed during the call. It
/// is never null, because the trampolines (`export.rs`) send null and other providers' objects
/// elsewhere. Functions of the tables may be called with null, so they take an `Option`.
#[repr(transparent)]
pub(crate) struct Ours<T: Object>(NonNull<T::Public>);

impl<T: Object> Ours<T> {
    /// Does what C does when it calls one of our functions.
    ///
    /// # Safety
    /// `public` is our object, which is not destroyed while the value is used.
    #[cfg(test)]
    pub(crate) unsafe fn new(public: *mut T::Public) -> Self {
        Self(NonNull::new(public).expect("an object of ours"))
    }

    /// The C structure.
    pub(crate) fn public(&self) -> *mut T::Public {
        self.0.as_ptr()
    }
}

impl<T: Object> Deref for Ours<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is ours and lives as long as `self` (see `Ours`). By the promise of
        // `Object`, all of it begins `OFFSET` bytes before C's pointer.
        unsafe { self.0.byte_sub(T::OFFSET).cast::<T>().as_ref() }
    }
}
