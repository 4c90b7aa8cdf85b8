//! The lanes of an engine, made when first used.

use std::sync::{Arc, OnceLock};

use crate::lane::Lane;

/// Most lanes of an engine.
const MAX_LANES: usize = polypath_ipc::settings::LANES_MAX;

/// The lanes of an engine. Completion queues know them by the bits of a mask.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes(Arc<[OnceLock<Arc<Lane>>; MAX_LANES]>);

impl Lanes {
    /// Drives the lanes of the mask for a thread that polls.
    #[inline]
    pub(crate) fn drive(&self, mask: u64) {
        self.each(mask, Lane::drive);
    }

    /// A thread that polls has found completions and does not drive the lanes of the mask.
    #[inline]
    pub(crate) fn took(&self, mask: u64) {
        self.each(mask, Lane::took);
    }

    /// A thread is about to sleep for an event from one of these lanes.
    pub(crate) fn expect_sleep(&self, mask: u64) {
        self.each(mask, Lane::expect_sleep);
    }

    #[inline]
    fn each(&self, mut mask: u64, f: impl Fn(&Lane)) {
        while mask != 0 {
            let n = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            if let Some(lane) = self.0.get(n).and_then(OnceLock::get) {
                f(lane);
            }
        }
    }

    pub(crate) fn get(&self, n: usize) -> Option<&Arc<Lane>> {
        self.0[n].get()
    }

    /// Lane `n` is there from now on.
    pub(crate) fn set(&self, n: usize, lane: Arc<Lane>) -> &Arc<Lane> {
        self.0[n].get_or_init(|| lane)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.0.iter().filter_map(OnceLock::get)
    }

    /// Whether these are the lanes of the same engine.
    pub(crate) fn are(&self, others: &Self) -> bool {
        Arc::ptr_eq(&self.0, &others.0)
    }

    /// Returns when no lane is at work with what it saw before: memory that was deregistered
    /// before the call is not touched after it.
    pub(crate) fn barrier(&self) {
        self.iter().for_each(|lane| lane.barrier());
    }
}
