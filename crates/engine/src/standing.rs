//! What the calling thread is to a lane while it waits for an event.
//!
//! A thread may be cancelled (`pthread_cancel`) while it waits. Then nothing of it runs but the destructors
//! of its thread-local data, so one of these tells the lane.

use std::cell::RefCell;
use std::sync::Arc;

use crate::drive::{Attended, Drive, are_same};

/// A thread that waits for an event.
struct Waiting {
    lanes: Arc<dyn Drive>,
    role: Role,
}

enum Role {
    /// It stands in for a lane's thread. The program had made so many polls when it began.
    StandsIn { lane: u32, polls: u64 },
    /// It reads the channel's descriptor, and the threads of these lanes must bring the event.
    Reads { mask: u64 },
}

impl Drop for Waiting {
    fn drop(&mut self) {
        match self.role {
            Role::StandsIn { lane, .. } => self.lanes.step_back(lane),
            Role::Reads { mask } => self.lanes.others(mask, -1),
        }
    }
}

thread_local! {
    static WAITING: RefCell<Option<Waiting>> = const { RefCell::new(None) };
}

/// Drives this lane for the calling thread, which stands in for the lane's thread as long as it waits.
pub(crate) fn attend(lanes: &Arc<dyn Drive>, lane: u32, has_event: &dyn Fn() -> bool) -> Attended {
    WAITING.with_borrow_mut(|waiting| {
        let polls = match waiting {
            Some(Waiting { lanes: of, role: Role::StandsIn { lane: at, polls } })
                if *at == lane && are_same(of, lanes) =>
            {
                *polls
            }
            _ => {
                *waiting = None;
                let Some(polls) = lanes.step_in(lane) else { return Attended::Refused };
                let role = Role::StandsIn { lane, polls };
                *waiting = Some(Waiting { lanes: lanes.clone(), role });
                polls
            }
        };
        let attended = lanes.attend(lane, polls, has_event);
        if !matches!(attended, Attended::Wait { .. }) {
            *waiting = None;
        }
        attended
    })
}

/// Notes that the calling thread reads, until [`leave`], and depends on the threads of these lanes.
pub(crate) fn read(lanes: &Arc<dyn Drive>, mask: u64) {
    WAITING.with_borrow_mut(|waiting| {
        *waiting = None;
        lanes.others(mask, 1);
        *waiting = Some(Waiting { lanes: lanes.clone(), role: Role::Reads { mask } });
    });
}

/// Notes that the calling thread does not wait any more.
pub(crate) fn leave() {
    WAITING.with_borrow_mut(|waiting| *waiting = None);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::time::Duration;

    use super::*;

    /// One lane, with the number of threads that stand in for its thread, and of those that read.
    #[derive(Debug, Default)]
    struct Lane(AtomicI32, AtomicI32);

    impl Drive for Lane {
        fn drive(&self, _: u64) {}
        fn took(&self, _: u64) {}
        fn expect_sleep(&self, _: u64) {}
        fn expect_wait(&self, _: u64) {}
        fn step_in(&self, _: u32) -> Option<u64> {
            (self.0.fetch_add(1, Ordering::SeqCst) == 0).then_some(0)
        }
        fn attend(&self, _: u32, _: u64, has_event: &dyn Fn() -> bool) -> Attended {
            match has_event() {
                true => Attended::Event,
                false => Attended::Wait { descriptor: -1, timeout: Duration::ZERO },
            }
        }
        fn step_back(&self, _: u32) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
        fn others(&self, _: u64, change: i32) {
            self.1.fetch_add(change, Ordering::SeqCst);
        }
        fn barrier(&self) {}
    }

    #[test]
    fn the_place_is_given_back_with_the_event_by_leaving_and_when_the_thread_ends() {
        let lane = Arc::new(Lane::default());
        let lanes: Arc<dyn Drive> = lane.clone();
        let standing = || lane.0.load(Ordering::SeqCst);
        let waits = |lanes: &Arc<dyn Drive>| {
            assert!(matches!(attend(lanes, 3, &|| false), Attended::Wait { .. }));
        };
        waits(&lanes);
        waits(&lanes);
        assert_eq!(standing(), 1, "it goes on");
        assert_eq!(attend(&lanes, 3, &|| true), Attended::Event);
        assert_eq!(standing(), 0);
        waits(&lanes);
        leave();
        assert_eq!(standing(), 0);
        read(&lanes, 8);
        assert_eq!(lane.1.load(Ordering::SeqCst), 1);
        waits(&lanes);
        assert_eq!((standing(), lane.1.load(Ordering::SeqCst)), (1, 0), "it stands in instead");
        leave();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| waits(&lanes));
            thread.join().unwrap();
        });
        // Its thread-local data may end a little later than it is joined.
        while standing() != 0 {
            std::thread::yield_now();
        }
    }
}
