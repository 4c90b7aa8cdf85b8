//! The lanes of an engine. Each is created at its first use.

use std::sync::{Arc, OnceLock};

use crate::drive::{Attended, Drive};
use crate::lane::Lane;

/// The largest number of lanes in an engine.
const MAX_LANES: usize = polypath_ipc::settings::LANES_MAX;

/// Each lane by its index, once it exists.
type Table = [OnceLock<Arc<Lane>>; MAX_LANES];

/// The lanes of an engine. Completion queues refer to them by the bits of a mask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes(Arc<Table>);

impl Drive for Table {
    fn drive(&self, mask: u64) {
        each(self, mask, Lane::drive);
    }

    fn took(&self, mask: u64) {
        each(self, mask, Lane::took);
    }

    fn expect_sleep(&self, mask: u64) {
        each(self, mask, Lane::expect_sleep);
    }

    fn expect_wait(&self, mask: u64) {
        each(self, mask, Lane::expect_wait);
    }

    fn step_in(&self, lane: u32) -> Option<u64> {
        one(self, lane)?.step_in()
    }

    fn attend(&self, lane: u32, polls: u64, has_event: &dyn Fn() -> bool) -> Attended {
        one(self, lane).map_or(Attended::Refused, |lane| lane.attend(polls, has_event))
    }

    fn step_back(&self, lane: u32) {
        if let Some(lane) = one(self, lane) {
            lane.step_back();
        }
    }

    fn others(&self, mask: u64, change: i32) {
        each(self, mask, |lane| lane.others(change));
    }

    fn barrier(&self) {
        self.iter().filter_map(OnceLock::get).for_each(|lane| lane.barrier());
    }
}

fn one(lanes: &Table, lane: u32) -> Option<&Lane> {
    lanes.get(lane as usize).and_then(OnceLock::get).map(|lane| &**lane)
}

#[inline]
fn each(lanes: &Table, mut mask: u64, f: impl Fn(&Lane)) {
    while mask != 0 {
        let n = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        if let Some(lane) = lanes.get(n).and_then(OnceLock::get) {
            f(lane);
        }
    }
}

impl Lanes {
    /// The same lanes, in the form that the objects that they serve use.
    pub(crate) fn driver(&self) -> Arc<dyn Drive> {
        self.0.clone()
    }

    pub(crate) fn get(&self, n: usize) -> Option<&Arc<Lane>> {
        self.0[n].get()
    }

    /// The lane of the queue pairs that are at home at an interface.
    pub(crate) fn at_home(&self, interface: &str) -> Option<&Arc<Lane>> {
        let is_home = |lane: &&Arc<Lane>| lane.home().is_some_and(|home| home.name == interface);
        self.iter().find(is_home)
    }

    /// The last free place. Threads use the first ones.
    pub(crate) fn last_free(&self) -> Option<usize> {
        self.0.iter().rposition(|place| place.get().is_none())
    }

    /// Enters lane `n`.
    pub(crate) fn set(&self, n: usize, lane: Arc<Lane>) -> &Arc<Lane> {
        self.0[n].get_or_init(|| lane)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.0.iter().filter_map(OnceLock::get)
    }
}
