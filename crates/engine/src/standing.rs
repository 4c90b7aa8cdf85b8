//! The lane for which the calling thread stands in.
//!
//! A thread may be cancelled (`pthread_cancel`) while it waits for an event. Then nothing of it runs but the
//! destructors of its thread-local data, so one of these gives the place back to the lane's thread.

use std::cell::RefCell;
use std::sync::Arc;

use crate::drive::{Attended, Drive, are_same};

/// The place of a lane's thread, held by a thread of the application.
struct Standing {
    lanes: Arc<dyn Drive>,
    lane: u32,
    /// The polls of the program when it took the place.
    polls: u64,
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.lanes.step_back(self.lane);
    }
}

thread_local! {
    static PLACE: RefCell<Option<Standing>> = const { RefCell::new(None) };
}

/// Drives this lane for the calling thread, which stands in for the lane's thread as long as it waits.
pub(crate) fn attend(lanes: &Arc<dyn Drive>, lane: u32, has_event: &dyn Fn() -> bool) -> Attended {
    PLACE.with_borrow_mut(|place| {
        if place.as_ref().is_some_and(|at| at.lane != lane || !are_same(&at.lanes, lanes)) {
            *place = None;
        }
        if place.is_none() {
            let polls = lanes.polls(lane);
            if !lanes.step_in(lane) {
                return Attended::Refused;
            }
            *place = Some(Standing { lanes: lanes.clone(), lane, polls });
        }
        let polls = place.as_ref().map_or(0, |at| at.polls);
        let attended = lanes.attend(lane, polls, has_event);
        if !matches!(attended, Attended::Wait { .. }) {
            *place = None;
        }
        attended
    })
}

/// Gives the place back, if the calling thread has one.
pub(crate) fn leave() {
    PLACE.with_borrow_mut(|place| *place = None);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::time::Duration;

    use super::*;

    /// One lane, with the number of threads that stand in for its thread.
    #[derive(Debug, Default)]
    struct Lane(AtomicI32);

    impl Drive for Lane {
        fn drive(&self, _: u64) {}
        fn took(&self, _: u64) {}
        fn expect_sleep(&self, _: u64) {}
        fn expect_wait(&self, _: u64) {}
        fn step_in(&self, _: u32) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst) == 0
        }
        fn attend(&self, _: u32, _: u64, has_event: &dyn Fn() -> bool) -> Attended {
            match has_event() {
                true => Attended::Event,
                false => Attended::Wait { descriptor: -1, timeout: Duration::ZERO },
            }
        }
        fn polls(&self, _: u32) -> u64 {
            0
        }
        fn step_back(&self, _: u32) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
        fn others(&self, _: u32, _: i32) {}
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
