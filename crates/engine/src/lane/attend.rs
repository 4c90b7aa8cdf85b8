//! What a thread does that stands in for the lane's thread while it waits for an event.

use std::sync::TryLockError;

use crate::clock;
use crate::drive::Attended;
use crate::lane::Lane;
use crate::lane::deeds::BUSY_POLLS;
use crate::lane::failure::Alarm;
use crate::lane::held::Held;
use crate::lane::round::Driver;
use crate::lane::sleeper::LONGEST;
use crate::lane::watch::LOCK_WAIT;
use crate::notify::lock;

impl Lane {
    /// Notes that a thread is about to wait for an event in place of the lane's thread.
    pub(crate) fn expect_wait(&self) {
        if self.sleeper.is_collecting() {
            self.enter(|_| ());
        }
    }

    /// Lets the calling thread stand in for the lane's thread, unless it may not. Returns the number of polls
    /// that have driven the lane, roughly.
    pub(crate) fn step_in(&self) -> Option<u64> {
        let steps_in = !self.is_closed() && !self.has_failed() && self.sleeper.step_in();
        steps_in.then(|| self.sleeper.polls())
    }

    /// Gives its place back to the lane's thread.
    pub(crate) fn step_back(&self) {
        self.sleeper.step_back();
    }

    /// Notes that one more (1) or one less (-1) thread waits for an event that the lane's thread must bring.
    pub(crate) fn others(&self, change: i32) {
        self.sleeper.others(change);
    }

    /// Drives the lane for the thread that stands in, until it has its event or should sleep. It is refused
    /// if other threads have polled since the program had made so many `polls`, because they take the
    /// packets, and each packet would wake this one for nothing.
    pub(crate) fn attend(&self, polls: u64, has_event: &dyn Fn() -> bool) -> Attended {
        let mut busy_poll = lock(&self.busy_poll);
        let begun = clock::now();
        busy_poll.wakes(begun);
        let window = busy_poll.window(begun);
        loop {
            let polled = self.sleeper.polls().wrapping_sub(polls);
            if self.is_closed() || !self.sleeper.may_stay() || polled >= BUSY_POLLS {
                return Attended::Refused;
            }
            let (descriptor, timeout, now) = match Held::try_take(&self.state) {
                Ok(mut state) => {
                    let _alarm = Alarm(&self.sleeper);
                    self.sleeper.stand_in_is_awake();
                    state.collector.left(clock::now());
                    // Nobody polls for what arrives, so this thread does as the lane's own.
                    self.progress(&mut state, Driver::Lane);
                    let now = state.io.now;
                    let until = state.next_deadline().map_or(LONGEST, |at| at.saturating_sub(now));
                    (self.socket(), until.min(LONGEST), now)
                }
                // The socket may stay readable until the other thread has left, so polling it is useless.
                Err(TryLockError::WouldBlock) => (-1, LOCK_WAIT, clock::now()),
                Err(TryLockError::Poisoned(mut poisoned)) => {
                    self.end(poisoned.get_mut());
                    return Attended::Refused;
                }
            };
            if has_event() {
                return Attended::Event;
            }
            // In vain if packets have come meanwhile. Without the lock, it does not sleep for long.
            let may_sleep = || descriptor < 0 || self.sleeper.arm();
            if now.saturating_sub(begun) >= window && may_sleep() {
                busy_poll.sleeps(now);
                return Attended::Wait { descriptor, timeout };
            }
            core::hint::spin_loop();
        }
    }
}
