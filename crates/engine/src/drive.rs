//! What completion queues and memory ask of the lanes that they serve.
//!
//! Lanes hold completion queues and contexts, so these cannot know lanes. They know this trait.

use std::fmt::Debug;
use std::sync::Arc;

/// The lanes of an engine. Bit n of a mask is lane n.
pub(crate) trait Drive: Debug + Send + Sync {
    /// Drives the lanes of the mask for a thread that polls.
    fn drive(&self, mask: u64);

    /// A thread that polls has found completions and does not drive the lanes of the mask.
    fn took(&self, mask: u64);

    /// A thread is about to sleep for an event from one of these lanes.
    fn expect_sleep(&self, mask: u64);

    /// Returns when no lane is at work with what it saw before: memory that was deregistered before the
    /// call is not touched after it.
    fn barrier(&self);
}

/// Whether both are the lanes of one engine.
pub(crate) fn are_same(one: &Arc<dyn Drive>, other: &Arc<dyn Drive>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
