//! Decides when a thread that polls in vain lets others run.
//!
//! A thread that polls and finds nothing waits for its peer. If the peer's lane, or a thread of the same
//! program, has to run on the same processor first, the scheduler may let it wait until the next tick of its
//! clock, which is milliseconds away. So a thread that has found nothing for a while yields, now and then. If
//! no other thread wants the processor, that costs less than a poll.

use std::time::Duration;

/// How long a thread polls in vain before it yields, and between two yields. A yield gives away what is left
/// of the thread's slice, so it must not happen much more often than slices end.
const PATIENCE: Duration = Duration::from_micros(100);

/// A lane's record of its program's polls.
#[derive(Debug, Default)]
pub(super) struct Vain {
    /// The time of the first poll in vain since something was found, or since the last yield.
    since: Option<Duration>,
    /// The time of the last poll.
    last: Duration,
}

impl Vain {
    /// Notes a poll, and whether it has `found` anything. Returns whether the thread should yield.
    #[inline]
    pub(super) fn polled(&mut self, now: Duration, found: bool) -> bool {
        // A thread that does something else between two polls does not wait.
        let pause = now.saturating_sub(self.last) >= PATIENCE;
        self.last = now;
        if found || pause {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let over = now.saturating_sub(since) >= PATIENCE;
        if over {
            self.since = None;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(1);
    const START: Duration = Duration::from_secs(1);

    /// How many of the polls, one each microsecond, end with a yield. `found` tells which found something.
    fn yields(vain: &mut Vain, from: u32, polls: u32, found: impl Fn(u32) -> bool) -> usize {
        (from..from + polls).filter(|n| vain.polled(START + STEP * *n, found(*n))).count()
    }

    #[test]
    fn a_thread_yields_once_per_hundred_microseconds_in_vain() {
        let mut vain = Vain::default();
        assert_eq!(yields(&mut vain, 0, 100, |_| false), 0);
        assert_eq!(yields(&mut vain, 100, 2, |_| false), 1, "after a hundred");
        assert_eq!(yields(&mut vain, 102, 1000, |_| false), 9);
    }

    #[test]
    fn a_thread_that_finds_something_now_and_then_goes_on() {
        assert_eq!(yields(&mut Vain::default(), 0, 10_000, |n| n % 90 == 0), 0);
    }

    #[test]
    fn a_thread_that_does_something_else_between_its_polls_goes_on() {
        let mut vain = Vain::default();
        for n in 0..1000 {
            assert!(!vain.polled(START + PATIENCE * n, false));
        }
    }
}
