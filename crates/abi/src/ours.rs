//! Which devices and contexts are ours, and which another provider's.

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
    // SAFETY: the caller's promise.
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
