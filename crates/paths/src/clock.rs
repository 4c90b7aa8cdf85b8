//! What time it is, and for how long the lane did not run.
//!
//! A lane is driven by threads of the application, which may be stopped. What the lane did not hear
//! meanwhile is no silence of the peer, so nothing may be concluded from it.

use core::time::Duration;

/// If a deadline was missed by more than this, the lane itself did not run.
const PAUSE: Duration = Duration::from_millis(4);
/// How long after a pause nothing is concluded from silence.
const SETTLE: Duration = Duration::from_millis(4);
/// A lane that hardly ever runs must decide at some time: pauses in close succession (less than
/// [`PAUSES_APART`]) together defer conclusions by this time at most.
const SETTLE_MAX: Duration = Duration::from_millis(40);
const PAUSES_APART: Duration = Duration::from_millis(50);

/// The time, and the pauses of the lane.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    now: Duration,
    /// When the next deadline was looked at last.
    seen: Duration,
    /// When the last pause ended.
    awake_since: Duration,
    /// When the first of the pauses in close succession ended.
    pauses_since: Duration,
    settles_at: Duration,
    /// Sum of all pauses.
    asleep: Duration,
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Sets the time. It never goes back.
    #[inline]
    pub(crate) fn reach(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Sets the time. `due`: the next deadline; if it was missed by more than [`PAUSE`], the lane
    /// paused since then.
    pub(crate) fn advance(&mut self, now: Duration, due: Option<Duration>) {
        self.reach(now);
        // A deadline that was missed may be seen again before it is served. The lane ran when it was seen.
        let seen = core::mem::replace(&mut self.seen, self.now);
        let due = due.map(|due| due.max(seen));
        let Some(due) = due.filter(|due| self.now > *due + PAUSE) else { return };
        if self.now.saturating_sub(self.awake_since) > PAUSES_APART {
            self.pauses_since = self.now;
        }
        self.asleep += self.now - due;
        self.awake_since = self.now;
        self.settles_at = (self.now + SETTLE).min(self.pauses_since + SETTLE_MAX);
    }

    /// The time by a clock that stands still while the lane does not run. The silence of peers is
    /// measured by it.
    pub(crate) fn awake(&self) -> Duration {
        self.awake_at(self.now)
    }

    /// `now`, by that clock.
    #[inline]
    pub(crate) fn awake_at(&self, now: Duration) -> Duration {
        now.saturating_sub(self.asleep)
    }

    /// How long the lane has been waiting for something that it asked for at `asked`. The wait starts
    /// again after each pause.
    pub(crate) fn waited(&self, asked: Duration) -> Duration {
        self.now.saturating_sub(asked.max(self.awake_since))
    }

    /// The time at which silence means something again; `None` if it does now.
    pub(crate) fn settles_at(&self) -> Option<Duration> {
        (self.settles_at > self.now).then_some(self.settles_at)
    }

    /// Whether silence means something: the lane has run for a while.
    pub(crate) fn is_settled(&self) -> bool {
        self.settles_at().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_deadline_missed_by_much_is_a_pause_and_one_missed_by_little_is_not() {
        let mut clock = Clock::default();
        clock.advance(MS * 100, Some(MS * 96));
        assert!(clock.is_settled());
        assert_eq!(clock.awake(), MS * 100);
        clock.advance(MS * 200, None);
        assert_eq!(clock.awake(), MS * 200, "nothing was due, so nothing was missed");
        clock.advance(MS * 300, Some(MS * 210));
        assert!(!clock.is_settled());
        assert_eq!(clock.settles_at(), Some(MS * 304));
        assert_eq!(clock.awake(), MS * 210, "the time since the deadline does not count");
        assert_eq!(clock.waited(MS * 150), Duration::ZERO);
        clock.advance(MS * 304, Some(MS * 304));
        assert!(clock.is_settled());
        assert_eq!(clock.awake(), MS * 214);
        assert_eq!(clock.waited(MS * 150), MS * 4);
        assert_eq!(clock.waited(MS * 303), MS);
    }

    #[test]
    fn a_pause_is_counted_once_however_often_it_is_looked_at() {
        let mut clock = Clock::default();
        for _ in 0..3 {
            clock.advance(MS * 100, Some(MS * 10));
        }
        assert_eq!(clock.awake(), MS * 10);
        clock.advance(MS * 103, Some(MS * 10));
        assert_eq!(
            clock.awake(),
            MS * 13,
            "the lane runs, although what was due is not served yet"
        );
        clock.advance(MS * 120, Some(MS * 10));
        assert_eq!(clock.awake(), MS * 13, "a pause of its own");
    }

    #[test]
    fn a_lane_that_hardly_ever_runs_concludes_something_at_some_time() {
        let mut clock = Clock::default();
        let mut now = MS * 100;
        clock.advance(now, Some(MS));
        for _ in 0..9 {
            now += MS * 5;
            clock.advance(now, Some(now - MS * 5));
        }
        assert!(clock.is_settled(), "pauses in close succession defer by 40 ms at most");
        now += MS * 100;
        clock.advance(now, Some(now - MS * 90));
        assert!(!clock.is_settled(), "a pause after a while is one for itself");
    }

    #[test]
    fn the_time_never_goes_back() {
        let mut clock = Clock::default();
        clock.reach(MS * 5);
        clock.reach(MS);
        clock.advance(MS * 2, None);
        assert_eq!(clock.now(), MS * 5);
    }
}
