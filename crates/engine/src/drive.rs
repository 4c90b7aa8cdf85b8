//! The interface through which completion queues and memory use lanes.
//!
//! Lanes refer to completion queues and contexts, so these cannot refer to lanes. They use this
//! trait instead.

use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// How a thread that stands in for a lane's thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attended {
    /// Its event has come.
    Event,
    /// It waits for its event, and then drives the lane again.
    Wait {
        /// The descriptor that becomes readable with packets; negative if it need not be waited for.
        descriptor: RawFd,
        /// The time after which the lane wants to be driven anyhow.
        timeout: Duration,
    },
    /// It may not stand in, or no more.
    Refused,
}

/// The lanes of an engine. Bit n of a mask is lane n.
pub(crate) trait Drive: Debug + Send + Sync {
    /// Drives the lanes of the mask for a thread that polls.
    fn drive(&self, mask: u64);

    /// Tells the lanes of the mask that a thread that polls has found completions, and so does not
    /// drive them.
    fn took(&self, mask: u64);

    /// Tells these lanes that a thread is about to sleep until an event.
    fn expect_sleep(&self, mask: u64);

    /// Does the same for a thread that will wait for the lane's packets itself.
    fn expect_wait(&self, mask: u64);

    /// Lets the calling thread stand in for the thread of lane number `lane`: it drives the lane by
    /// [`Drive::attend`] until [`Drive::step_back`]. Returns the number of polls that have driven the lane so
    /// far, roughly, or `None` if the thread may not.
    fn step_in(&self, lane: u32) -> Option<u64>;

    /// Drives a lane for the thread that stands in. `polls` is what [`Drive::step_in`] has returned.
    fn attend(&self, lane: u32, polls: u64, has_event: &dyn Fn() -> bool) -> Attended;

    /// Gives its place back to the lane's thread.
    fn step_back(&self, lane: u32);

    /// Notes that one more (1) or one less (-1) thread waits for an event that the threads of these lanes
    /// must bring.
    fn others(&self, mask: u64, change: i32);

    /// Returns when no thread is in a lane that was in it at the call: no lane accesses memory
    /// afterwards that was deregistered before.
    fn barrier(&self);
}

/// Whether both are the lanes of the same engine.
pub(crate) fn are_same(one: &Arc<dyn Drive>, other: &Arc<dyn Drive>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
