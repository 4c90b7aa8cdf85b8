//! Moderation of completion events (`ibv_modify_cq`): fewer events, each for several completions.
//!
//! The event of an armed queue is deferred until `count` completions have come since the arming, or
//! until `period` has passed since the first one. The queue decides this under its lock
//! ([`Moderation`]). The lane that brought the completion keeps the time (`deferrals.rs`).

use std::time::Duration;

/// The moderation of one queue's events.
#[derive(Debug, Default)]
pub(crate) struct Moderation {
    /// The number of completions per event.
    count: u32,
    /// The longest time that a completion waits for its event.
    period: Duration,
    /// The number of completions whose event is deferred.
    deferred: u32,
    /// The latest time for that event.
    due: Option<Duration>,
    /// The earliest time at which a lane will come back to this queue.
    timer: Option<Duration>,
}

/// The decision about a completion that needs an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moderated {
    /// Raise the event now.
    Raise,
    /// Defer the event. If there is a time, a lane must return then (`Deferrals::add`).
    Defer(Option<Duration>),
}

impl Moderation {
    /// Changes the settings. Moderation is off without a period, because nothing would release the
    /// last few completions, and with a count of less than two, because there is nothing to wait
    /// for. Returns true if completions were deferred under the previous settings, so that their
    /// event must be raised now.
    pub(crate) fn set(&mut self, count: u16, period_us: u16) -> bool {
        self.count = if period_us == 0 { 0 } else { count.into() };
        self.period = Duration::from_micros(period_us.into());
        self.deferred > 0
    }

    /// Whether events may be deferred.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.count > 1
    }

    /// Notes a completion at `now` that needs an event.
    pub(crate) fn completed(&mut self, now: Duration) -> Moderated {
        self.deferred += 1;
        let due = *self.due.get_or_insert(now + self.period);
        if self.deferred >= self.count || due <= now {
            return Moderated::Raise;
        }
        if self.timer.is_some_and(|timer| timer <= due) {
            return Moderated::Defer(None);
        }
        self.timer = Some(due);
        Moderated::Defer(Some(due))
    }

    /// Notes that the event is raised, so nothing is deferred any more.
    #[inline]
    pub(crate) fn raised(&mut self) {
        self.deferred = 0;
        self.due = None;
    }

    /// Decides for a lane that returns at the time `at` that it was given.
    pub(crate) fn look(&mut self, at: Duration, now: Duration) -> Moderated {
        if self.timer != Some(at) {
            return Moderated::Defer(None); // An earlier time was set meanwhile.
        }
        self.timer = self.due.filter(|&due| due > now);
        match self.due {
            Some(due) if due <= now => Moderated::Raise,
            _ => Moderated::Defer(self.timer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn moderation(count: u16, period_us: u16) -> Moderation {
        let mut moderation = Moderation::default();
        assert!(!moderation.set(count, period_us));
        moderation
    }

    #[test]
    fn it_takes_two_completions_and_a_period_to_hold_anything_back() {
        for (count, period_us, on) in [
            (0, 0, false),
            (1, 0, false),
            (1, 9, false),
            (0, 9, false),
            (2, 0, false),
            (2, 1, true),
        ] {
            assert_eq!(moderation(count, period_us).is_on(), on, "{count}, {period_us} µs");
        }
    }

    #[test]
    fn the_event_comes_with_the_last_of_the_count_and_counting_begins_anew() {
        let mut m = moderation(3, 100);
        for start in [0, 1000] {
            assert!(matches!(m.completed(us(start)), Moderated::Defer(_)));
            assert!(matches!(m.completed(us(start + 1)), Moderated::Defer(None)));
            assert_eq!(m.completed(us(start + 2)), Moderated::Raise);
            m.raised();
        }
    }

    #[test]
    fn the_period_counts_from_the_first_that_was_held_back() {
        let mut m = moderation(3, 100);
        assert_eq!(m.completed(us(10)), Moderated::Defer(Some(us(110))));
        assert_eq!(m.completed(us(60)), Moderated::Defer(None), "one timer for all");
        assert_eq!(m.look(us(110), us(111)), Moderated::Raise);
        m.raised();
        assert_eq!(m.completed(us(200)), Moderated::Defer(Some(us(300))));
    }

    #[test]
    fn a_timer_of_an_event_that_was_raised_serves_the_next() {
        let mut m = moderation(2, 100);
        assert_eq!(m.completed(us(0)), Moderated::Defer(Some(us(100))));
        assert_eq!(m.completed(us(50)), Moderated::Raise);
        m.raised();
        assert_eq!(
            m.completed(us(60)),
            Moderated::Defer(None),
            "the lane comes back at 100 anyway"
        );
        assert_eq!(m.look(us(100), us(100)), Moderated::Defer(Some(us(160))));
        assert_eq!(m.look(us(160), us(160)), Moderated::Raise);
        m.raised();
        assert_eq!(m.look(us(160), us(170)), Moderated::Defer(None), "nothing is owed any more");
    }

    #[test]
    fn a_shorter_period_sets_an_earlier_timer_and_the_older_one_is_void() {
        let mut m = moderation(9, 1000);
        assert_eq!(m.completed(us(0)), Moderated::Defer(Some(us(1000))));
        assert!(m.set(9, 10), "what was deferred is raised now");
        m.raised();
        assert_eq!(m.completed(us(5)), Moderated::Defer(Some(us(15))));
        assert_eq!(m.look(us(15), us(15)), Moderated::Raise);
        m.raised();
        assert_eq!(m.look(us(1000), us(1000)), Moderated::Defer(None));
    }
}
