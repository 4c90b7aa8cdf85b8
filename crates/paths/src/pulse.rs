//! How regularly acknowledgements come while packets are on their way by a path.
//!
//! Where packets wait in a queue, round trips are long, and lateness shows a silent path only after several
//! of them. But a queue that holds our packets is emptied at the pace of its link, so that acknowledgements
//! keep coming at that pace, however long each of them takes. If they stop coming for longer than they ever
//! did lately, the path is suspected, and its probes need not be given the time that the queue takes.
//!
//! A process that does not run for a moment makes a gap on all paths, which says nothing of this one. So
//! what is usual is the longest gap of a period in which few such gaps fell. If that was hasty, because the
//! path is heard again right after it was given up, it is given several times as long for a while.
//!
//! A sender that pauses stops them, too: for as long as its own pause, or for less than a round trip, because
//! nothing is on its way afterwards. And the answer to a READ waits until what was sent before it by
//! other paths has arrived. So who answers probes meanwhile is left in peace, for longer each time.

use core::time::Duration;

/// A period lasts for so many round trips, because bursts come back after one, and at least so long.
const PERIOD_ROUND_TRIPS: u32 = 2;
const PERIOD_MIN: Duration = Duration::from_millis(20);
/// So many periods are remembered.
const PERIODS: usize = 4;
/// What is usual is the longest gap of the period that is so many places from the best.
const USUAL: usize = 1;
/// With fewer acknowledgements than this in a period nothing is concluded from a gap.
const REGULAR: u32 = 6;
/// A shorter silence means nothing, because the peer's thread may just not have run.
const SILENCE_MIN: Duration = Duration::from_micros(1500);
/// A path that is heard again so soon after it was given up was given up hastily.
pub(crate) const HASTY: Duration = Duration::from_millis(100);
/// It is given four times as long after each such time, up to so many times.
const HASTY_MAX: u32 = 4;
/// That is forgotten after so long.
const HASTY_LATELY: Duration = Duration::from_secs(60);
/// A silence in which probes are answered must be twice as long each time to mean something, so many times.
const ANSWERS_MAX: u32 = 6;
/// READs that were sent so long ago may still wait for what went by other paths.
const ASKED_LATELY: Duration = Duration::from_secs(1);

/// The longest gaps of a period.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    acks: Duration,
    sends: Duration,
}

/// When something was sent and acknowledged, since something has been on its way without a break.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pulse {
    sent_at: Option<Duration>,
    acked_at: Option<Duration>,
    period_from: Duration,
    /// Acknowledgements in this period.
    acks: u32,
    /// The number of periods before this one in which there were enough.
    regular: usize,
    /// Of this period, and of those before, the latest first.
    gaps: [Gaps; PERIODS + 1],
    /// When a probe was last answered in a silence, and how many times in this one.
    answered_at: Duration,
    answers: u32,
    /// How often the path was given up hastily lately, and when last.
    hasty: u32,
    hasty_at: Duration,
    /// When something was last asked for whose answer may wait for other paths.
    asked_at: Option<Duration>,
}

impl Pulse {
    /// Something goes out.
    #[inline]
    pub(crate) fn sent(&mut self, now: Duration) {
        match self.sent_at.replace(now) {
            Some(before) => {
                let gap = now.saturating_sub(before);
                self.gaps[0].sends = self.gaps[0].sends.max(gap);
            }
            None => self.period_from = now,
        }
    }

    /// Something was asked for whose answer may have to wait for what goes by other paths.
    pub(crate) fn asked(&mut self, now: Duration) {
        self.asked_at = Some(now);
    }

    /// Something was acknowledged; `round_trip`: the smoothed one. Returns whether a period has ended in
    /// which acknowledgements were regular.
    #[inline]
    pub(crate) fn acked(&mut self, now: Duration, round_trip: Duration) -> bool {
        if let Some(before) = self.acked_at.replace(now) {
            let gap = now.saturating_sub(before);
            self.gaps[0].acks = self.gaps[0].acks.max(gap);
        }
        self.acks += 1;
        self.answers = 0;
        let period = now.saturating_sub(self.period_from);
        if period < PERIOD_MIN || period < round_trip * PERIOD_ROUND_TRIPS {
            return false;
        }
        self.regular = if self.acks >= REGULAR { self.regular + 1 } else { 0 };
        self.gaps.rotate_right(1);
        self.gaps[0] = Gaps::default();
        (self.period_from, self.acks) = (now, 0);
        if now.saturating_sub(self.hasty_at) >= HASTY_LATELY {
            self.hasty = 0;
        }
        self.regular >= PERIODS
    }

    /// Nothing is on its way any more.
    #[inline]
    pub(crate) fn stop(&mut self) {
        // The gaps of earlier periods count for nothing before as many new ones have taken their places.
        (self.sent_at, self.acked_at, self.acks, self.regular) = (None, None, 0, 0);
        self.gaps[0] = Gaps::default();
    }

    /// The path was given up, and is heard again before it could have been mended.
    pub(crate) fn was_hasty(&mut self, now: Duration) {
        self.hasty = (self.hasty + 1).min(HASTY_MAX);
        self.hasty_at = now;
    }

    /// A probe is answered while nothing is acknowledged: the silence has another reason than the path.
    pub(crate) fn probe_answered(&mut self, now: Duration) {
        self.answered_at = now;
        self.answers = (self.answers + 1).min(ANSWERS_MAX);
    }

    /// Since when it has been silent, and how long a silence is unusual; `None` if acknowledgements do not
    /// come regularly.
    pub(crate) fn silence(&self) -> Option<(Duration, Duration)> {
        let since = self.acked_at.filter(|_| self.regular >= PERIODS)?;
        let [_, mut before @ ..] = self.gaps.map(|gaps| gaps.acks);
        before.sort_unstable();
        let times = 1 << (2 * self.hasty + self.answers);
        Some((since.max(self.answered_at), (before[USUAL] * 2).max(SILENCE_MIN) * times))
    }

    /// How long the answer to a probe may take after an unusual silence. `shortest`: the shortest round trip.
    pub(crate) fn patience(&self, now: Duration, shortest: Duration) -> Option<Duration> {
        let (_, unusual) = self.silence()?;
        let asked = self.asked_at.is_some_and(|at| now.saturating_sub(at) < ASKED_LATELY);
        let pause = self.gaps.iter().map(|gaps| gaps.sends).max().unwrap_or_default();
        Some(unusual.max(if asked { shortest } else { shortest.min(pause) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A pulse by which something was sent, and acknowledged `late` after, each `gap` from zero until
    /// `until`.
    fn beating(gap: Duration, late: Duration, until: Duration) -> Pulse {
        let mut pulse = Pulse::default();
        let mut now = Duration::ZERO;
        while now <= until {
            pulse.sent(now);
            if now >= late {
                pulse.acked(now, late);
            }
            now += gap;
        }
        pulse
    }

    #[test]
    fn a_silence_is_unusual_if_it_is_twice_as_long_as_the_longest_gap_lately() {
        assert_eq!(beating(MS, MS * 20, MS * 140).silence(), None, "too few periods");
        let mut pulse = beating(MS, MS * 20, MS * 200);
        assert_eq!(pulse.silence(), Some((MS * 200, MS * 2)));
        assert_eq!(pulse.patience(MS * 204, MS * 20), Some(MS * 2), "not what the queue takes");
        let mut now = 200;
        // Once is a process that did not run, and more often is the path.
        for (times, unusual) in [(1, 2), (2, 2), (3, 18), (4, 18)] {
            now += 9;
            (0..45).for_each(|more| _ = pulse.acked(MS * (now + more), MS * 20));
            now += 44;
            assert_eq!(pulse.silence(), Some((MS * now, MS * unusual)), "{times}");
        }
        pulse.stop();
        assert_eq!(pulse.silence(), None, "nothing is on its way");
    }

    #[test]
    fn a_fast_path_is_given_the_time_that_its_peer_may_not_run() {
        let pulse = beating(MS / 100, MS / 10, MS * 200);
        assert_eq!(pulse.silence().map(|(_, unusual)| unusual), Some(SILENCE_MIN));
    }

    #[test]
    fn a_path_that_was_given_up_hastily_is_given_more_time() {
        let mut pulse = beating(MS, MS * 20, MS * 200);
        pulse.was_hasty(MS * 200);
        assert_eq!(pulse.silence(), Some((MS * 200, MS * 8)));
        (0..100).for_each(|_| pulse.was_hasty(MS * 200));
        assert_eq!(pulse.silence(), Some((MS * 200, MS * 512)));
        (201..70_000).for_each(|now| _ = pulse.acked(MS * now, MS * 20));
        assert_eq!(pulse.silence(), Some((MS * 69_999, MS * 2)), "that was long ago");
    }

    #[test]
    fn a_silence_in_which_probes_are_answered_is_asked_about_more_and_more_seldom() {
        let mut pulse = beating(MS, MS * 20, MS * 200);
        for (now, unusual) in [(202, 4), (206, 8), (214, 16)] {
            pulse.probe_answered(MS * now);
            assert_eq!(pulse.silence(), Some((MS * now, MS * unusual)));
        }
        pulse.acked(MS * 220, MS * 20);
        assert_eq!(pulse.silence(), Some((MS * 220, MS * 2)));
    }

    #[test]
    fn rare_acknowledgements_say_nothing() {
        assert_eq!(beating(MS * 5, MS * 5, MS * 500).silence(), None);
        let two_in_flight = beating(MS * 10, MS * 20, MS * 500);
        assert_eq!(two_in_flight.silence(), None);
    }

    #[test]
    fn who_pauses_is_answered_later_by_the_pause_or_a_round_trip() {
        let mut pulse = beating(MS, MS * 20, MS * 200);
        pulse.sent(MS * 211);
        assert_eq!(pulse.patience(MS * 220, MS * 20), Some(MS * 11));
        assert_eq!(pulse.patience(MS * 220, MS * 6), Some(MS * 6));
    }

    #[test]
    fn answers_that_wait_for_other_paths_are_given_a_round_trip() {
        let mut pulse = beating(MS, MS * 20, MS * 200);
        pulse.asked(MS * 200);
        assert_eq!(pulse.patience(MS * 220, MS * 20), Some(MS * 20));
        assert_eq!(pulse.patience(MS * 1200, MS * 20), Some(MS * 2));
    }
}
