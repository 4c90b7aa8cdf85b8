//! The interface through which completion queues and memory use lanes.
//!
//! Lanes refer to completion queues and contexts, so these cannot refer to lanes. They use this
//! trait instead.

use std::fmt::Debug;
use std::sync::Arc;

/// The lanes of an engine. Bit n of a mask is lane n.
pub(crate) trait Drive: Debug + Send + Sync {
    /// Drives the lanes of the mask for a thread that polls.
    fn drive(&self, mask: u64);

    /// Tells the lanes of the mask that a thread that polls has found completions, and so does not
    /// drive them.
    fn took(&self, mask: u64);

    /// Tells these lanes that a thread is about to sleep until an event.
    fn expect_sleep(&self, mask: u64);

    /// Returns when no thread is in a lane that was in it at the call: no lane accesses memory
    /// afterwards that was deregistered before.
    fn barrier(&self);
}

/// Whether both are the lanes of the same engine.
pub(crate) fn are_same(one: &Arc<dyn Drive>, other: &Arc<dyn Drive>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
