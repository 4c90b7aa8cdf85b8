//! Which devices, contexts and objects are ours, and which another provider's.

use core::ops::Deref;
use core::ptr::NonNull;

use crate::layout::{Pointer, ibv_context, ibv_device};

/// Its address in `ibv_device.ops` (which rdma-core never uses) tells our devices.
static MARK: u8 = 0x50;

/// What `ibv_device.ops` of a device of ours holds.
pub(crate) fn mark() -> Pointer {
    (&raw const MARK).cast_mut().cast()
}

/// Whether a device is one of ours.
///
/// # Safety
/// `device` must be null or a device of any provider.
pub(crate) unsafe fn is_our_device(device: *const ibv_device) -> bool {
    // SAFETY: every provider's device begins with this structure.
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

/// A structure of ours around the one that C knows.
///
/// # Safety
/// C's pointers to such an object point to its `Public`, which lies `OFFSET` bytes into it and was
/// allocated with it.
pub(crate) unsafe trait Object {
    /// The C structure.
    type Public;
    /// Where it lies in ours.
    const OFFSET: usize = 0;
}

/// An object of ours, lent to a function for one call.
///
/// Functions that C calls take it where the header has a pointer. What the header demands of the program
/// holds for every value: the object is ours, and is not destroyed before the call is done. It is never
/// null: the trampolines (`export.rs`) send null and the objects of others elsewhere. Functions of the
/// tables may be called with null; they take an `Option`.
#[repr(transparent)]
pub(crate) struct Ours<T: Object>(NonNull<T::Public>);

impl<T: Object> Ours<T> {
    /// What C does when it calls a function of ours.
    ///
    /// # Safety
    /// `public` is an object of ours, which is not destroyed while the value is used.
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
        // SAFETY: the object is ours and lives as long as `self` (see `Ours`), and by the promise of
        // `Object` the whole of it lies `OFFSET` bytes before what C has.
        unsafe { self.0.byte_sub(T::OFFSET).cast::<T>().as_ref() }
    }
}
