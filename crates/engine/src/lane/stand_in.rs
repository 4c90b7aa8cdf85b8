//! The place of the lane's thread, which a thread of the application may take.
//!
//! A thread that waits for an event of a completion queue would sleep until the lane's thread, woken by a
//! packet, wakes it in turn. Each wake-up takes several times as long as handling the packet. So such a thread
//! waits for the packets itself, and handles them: it stands in for the lane's thread, which leaves the socket
//! meanwhile. Only one thread can, and none while the lane's thread must watch the socket itself or others
//! wait for events in another way.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Who waits for the lane's packets.
#[derive(Debug)]
pub(super) struct StandIn {
    taken: AtomicBool,
    times: AtomicU64,
    refuses: AtomicBool,
    /// The number of completion channels whose readers wait for events that the lane's thread must bring.
    others: AtomicU32,
}

impl StandIn {
    pub(super) fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            times: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            others: AtomicU32::new(0),
        }
    }

    /// Takes the place, if it is free and to be had.
    pub(super) fn take(&self) -> bool {
        if !self.may_stay() || self.taken.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.times.store(self.times().wrapping_add(1), Ordering::Relaxed);
        true
    }

    /// Gives the place back.
    pub(super) fn give_back(&self) {
        self.taken.swap(false, Ordering::SeqCst);
    }

    /// Whether a thread has it.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// How often it was taken.
    pub(super) fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    /// Whether the place may be taken or kept.
    pub(super) fn may_stay(&self) -> bool {
        !self.refuses.load(Ordering::Relaxed) && self.others.load(Ordering::Relaxed) == 0
    }

    /// Says whether the lane's thread watches the socket itself for some time.
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Notes that one more (1) or one less (-1) channel has a reader whom the lane's thread must serve.
    pub(super) fn others(&self, change: i32) {
        match change {
            0.. => self.others.fetch_add(change.unsigned_abs(), Ordering::Relaxed),
            _ => self.others.fetch_sub(change.unsigned_abs(), Ordering::Relaxed),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_and_none_while_others_need_the_lane_s_thread() {
        let place = StandIn::new();
        assert!(place.take());
        assert!(!place.take(), "it is taken");
        place.give_back();
        place.others(1);
        assert!(!place.take(), "somebody else waits");
        place.others(-1);
        place.refuse(true);
        assert!(!place.take(), "the lane's thread watches");
        place.refuse(false);
        assert!(place.take());
        assert_eq!(place.times(), 2);
    }
}
