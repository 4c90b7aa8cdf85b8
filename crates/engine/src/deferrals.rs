//! The times at which a lane returns to completion queues whose events are deferred
//! (`moderation.rs`).

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cq::Cq;

/// A queue that a lane must return to, and when.
#[derive(Debug)]
struct Deferral {
    at: Duration,
    cq: Weak<Cq>,
}

impl PartialEq for Deferral {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Deferral {}

impl PartialOrd for Deferral {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deferral {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

/// The queues that a lane must return to. A queue has one entry, and more only after its period was
/// made shorter. So there are about as many entries as queues.
#[derive(Debug, Default)]
pub(crate) struct Deferrals {
    heap: BinaryHeap<Reverse<Deferral>>,
    news: bool,
}

impl Deferrals {
    /// Adds `cq`, to be returned to at `at`.
    pub(crate) fn add(&mut self, at: Duration, cq: &Arc<Cq>) {
        self.push(at, Arc::downgrade(cq));
    }

    fn push(&mut self, at: Duration, cq: Weak<Cq>) {
        self.heap.push(Reverse(Deferral { at, cq }));
        self.news = true;
    }

    /// Whether queues were added since the last call, so that the lane's thread might sleep too
    /// long.
    #[inline]
    pub(crate) fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.news)
    }

    /// The time of the next return.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(deferral)| deferral.at)
    }

    /// Raises the events that are due.
    pub(crate) fn run(&mut self, now: Duration) {
        while self.next_deadline().is_some_and(|at| at <= now) {
            let Some(Reverse(Deferral { at, cq })) = self.heap.pop() else { break };
            let Some(queue) = cq.upgrade() else { continue };
            if let Some(again) = queue.raise_deferred(at, now) {
                self.push(again, cq);
            }
        }
    }
}
