//! Who falls asleep, and who rings: no packet is slept through.
//!
//! The writer of a ring writes a packet, then looks whether the reader sleeps. The reader says that it
//! sleeps, then looks for a packet. Both have a fence in between. The two fences have an order, and who
//! comes second sees what the other did before its own. So the writer rings, or the reader does not
//! sleep, or both. `loom/` runs this with every order that the memory model allows.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The reader says that it sleeps. Returns whether it may: everything up to `tail` was read.
pub(crate) fn may_sleep(sleeps: &AtomicU32, tail: &AtomicU64, head: u64) -> bool {
    sleeps.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    tail.load(Ordering::Acquire) == head
}

/// Whether the writer, which has just moved the tail, has to ring. If so, the reader counts as awake.
#[inline]
pub(crate) fn must_ring(sleeps: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // One ring is enough.
    sleeps.store(0, Ordering::Relaxed);
    true
}
