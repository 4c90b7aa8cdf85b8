//! Requests whose connections have ended.
//!
//! A REQ is sent again soon when no answer comes, and a network may hold the second one up until the
//! connection of the first one is over. It must not begin another one.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// How long a request is remembered. No network holds a packet up for longer.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The most requests that are remembered; the oldest is forgotten for another one.
const MAX: usize = 1024;

/// A request: its sender's GUID and communication id, which no sender uses for another request so soon.
type Request = (u64, u32);

/// The requests, in the order in which their connections ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// The time until which each is remembered.
    known: BTreeMap<Request, Duration>,
    order: VecDeque<Request>,
}

impl Ended {
    /// The connection of this request has ended.
    pub(super) fn add(&mut self, now: Duration, request: Request) {
        if self.known.insert(request, now + REMEMBERED).is_some() {
            return;
        }
        self.order.push_back(request);
        if self.order.len() > MAX {
            self.order.pop_front().map(|oldest| self.known.remove(&oldest));
        }
    }

    /// Whether this request is one whose connection has ended.
    pub(super) fn contains(&self, now: Duration, request: Request) -> bool {
        self.known.get(&request).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_remembered_for_a_while_and_not_without_bound() {
        let mut ended = Ended::default();
        let at = Duration::from_secs;
        ended.add(at(1), (1, 2));
        ended.add(at(2), (1, 3));
        let known = |ended: &Ended, now, request| ended.contains(at(now), request);
        assert!(known(&ended, 10, (1, 2)) && !known(&ended, 10, (2, 2)));
        assert!(!known(&ended, 11, (1, 2)) && known(&ended, 11, (1, 3)));
        (0..MAX as u32).for_each(|id| ended.add(at(3), (2, id)));
        assert!(!known(&ended, 3, (1, 3)) && known(&ended, 3, (2, 0)));
        assert_eq!((ended.known.len(), ended.order.len()), (MAX, MAX));
    }
}
