//! The lane for which the calling thread stands in.
//!
//! A thread may be cancelled (`pthread_cancel`) while it waits for an event. Then nothing of it runs but the
//! destructors of its thread-local data, so one of these gives the place back to the lane's thread.

use std::cell::RefCell;
use std::sync::Arc;

use crate::drive::{Drive, Wait, are_same};

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

/// Drives this lane for the calling thread, which stands in for the lane's thread from now on. `None` means
/// that it may not, or no more.
pub(crate) fn attend(lanes: &Arc<dyn Drive>, lane: u32) -> Option<Wait> {
    PLACE.with_borrow_mut(|place| {
        if place.as_ref().is_some_and(|at| at.lane != lane || !are_same(&at.lanes, lanes)) {
            *place = None;
        }
        if place.is_none() {
            let polls = lanes.polls(lane);
            if !lanes.step_in(lane) {
                return None;
            }
            *place = Some(Standing { lanes: lanes.clone(), lane, polls });
        }
        let polls = place.as_ref().map_or(0, |at| at.polls);
        let wait = lanes.attend(lane, polls);
        if wait.is_none() {
            *place = None;
        }
        wait
    })
}

/// Gives the place back, if the calling thread has one.
pub(crate) fn leave() {
    PLACE.with_borrow_mut(|place| *place = None);
}
