//! What a thread does that stands in for the lane's thread while it waits for an event.

use std::sync::TryLockError;

use crate::clock;
use crate::drive::Wait;
use crate::lane::Lane;
use crate::lane::failure::Alarm;
use crate::lane::held::Held;
use crate::lane::round::Driver;
use crate::lane::sleeper::{BUSY_POLLS, LOCK_WAIT, LONGEST};

impl Lane {
    /// Notes that a thread is about to wait for an event in place of the lane's thread.
    pub(crate) fn expect_wait(&self) {
        if self.sleeper.is_collecting() {
            self.enter(|_| ());
        }
    }

    /// Lets the calling thread stand in for the lane's thread. Returns false if it may not.
    pub(crate) fn step_in(&self) -> bool {
        !self.is_closed() && !self.has_failed() && self.sleeper.step_in()
    }

    /// The number of polls that have driven the lane, roughly.
    pub(crate) fn polls(&self) -> u64 {
        self.sleeper.polls()
    }

    /// Gives its place back to the lane's thread.
    pub(crate) fn step_back(&self) {
        self.sleeper.step_back();
    }

    /// Notes that one more (1) or one less (-1) channel has a reader whom the lane's thread must serve.
    pub(crate) fn others(&self, change: i32) {
        self.sleeper.others(change);
    }

    /// Drives the lane for the thread that stands in, and says what it waits for then. `None`: it must step
    /// back. That is also so if other threads have polled since the program had made so many `polls`, because
    /// they take the packets, and each packet would wake this one for nothing.
    pub(crate) fn attend(&self, polls: u64) -> Option<Wait> {
        let polled = self.sleeper.polls().wrapping_sub(polls);
        if self.is_closed() || !self.sleeper.may_stay() || polled >= BUSY_POLLS {
            return None;
        }
        match Held::try_take(&self.state) {
            Ok(mut state) => {
                let _alarm = Alarm(&self.sleeper);
                state.collector.left(clock::now());
                // Nobody polls for what arrives, so this thread does as the lane's own.
                self.progress(&mut state, Driver::Lane);
                let now = state.io.now;
                let until = state.next_deadline().map_or(LONGEST, |at| at.saturating_sub(now));
                Some(Wait { descriptor: self.socket, timeout: until.min(LONGEST) })
            }
            // The socket may stay readable until the other thread has left, so polling it is useless.
            Err(TryLockError::WouldBlock) => Some(Wait { descriptor: -1, timeout: LOCK_WAIT }),
            Err(TryLockError::Poisoned(mut poisoned)) => {
                self.end(poisoned.get_mut());
                None
            }
        }
    }
}
