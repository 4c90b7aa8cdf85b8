//! How fast a path delivers.

use core::time::Duration;

/// A rate is measured over at least this long, so that one burst of acknowledgements is not taken for a fast
/// path.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// An interval that lasts longer than this and twice the round trip was interrupted by a stall of one of the
/// two processes, and says nothing of the path.
const INTERVAL_MAX: Duration = Duration::from_millis(250);

/// A rate is known for this long after it was last measured. Otherwise a path that was slow once would never
/// be tried again.
const KNOWN_FOR: Duration = Duration::from_millis(200);
/// A rate is trusted after this many measurements. Before that, a path may prove to be much slower, because
/// links with token buckets let a first burst pass at once.
const TRUSTED_AFTER: u8 = 16;
/// The rate that is reckoned with until then, at most: bytes per second, 100 Mbit/s.
const RATE_YOUNG: u64 = 12_500_000;

/// The rate at which a path delivers, as acknowledgements show it.
///
/// It is measured in intervals of a round trip or more. An interval in which the sender left room in the
/// window counts only if it was faster than the known rate, because the path could have carried more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivery {
    /// Bytes per second; 0 before the first measurement.
    rate: u64,
    /// How often it was measured, up to [`TRUSTED_AFTER`], and when last.
    measured: u8,
    measured_at: Duration,
    /// When the current interval began; `None` while nothing is in flight.
    from: Option<Duration>,
    bytes: u64,
    /// Whether the window limited the sender in this interval.
    limited: bool,
}

impl Delivery {
    /// Bytes per second; `None` if it was not measured lately.
    #[inline]
    pub(crate) fn rate(&self, now: Duration) -> Option<u64> {
        let known = self.rate > 0 && now.saturating_sub(self.measured_at) < KNOWN_FOR;
        known.then_some(self.rate)
    }

    /// Bytes per second that the path delivers at least, as far as is known. It is above 0.
    pub(crate) fn sure_rate(&self) -> u64 {
        match (self.rate, self.measured) {
            (0, _) => RATE_YOUNG,
            (rate, TRUSTED_AFTER) => rate,
            (rate, _) => rate.min(RATE_YOUNG),
        }
    }

    /// Notes that something goes out.
    #[inline]
    pub(crate) fn sent(&mut self, now: Duration) {
        if self.from.is_none() {
            (self.from, self.bytes, self.limited) = (Some(now), 0, false);
        }
    }

    /// Notes that `bytes` arrived, and whether the window was at least half full before. `round_trip`: the
    /// smoothed one; `idle`: nothing is in flight any more.
    #[inline]
    pub(crate) fn acked(
        &mut self,
        now: Duration,
        bytes: u32,
        limited: bool,
        round_trip: Duration,
        idle: bool,
    ) {
        let Some(from) = self.from else { return };
        self.bytes += u64::from(bytes);
        self.limited |= limited;
        let took = now.saturating_sub(from);
        if took >= round_trip.max(INTERVAL_MIN) {
            if took <= round_trip * 2 + INTERVAL_MAX {
                self.measure(now, took);
            }
            (self.from, self.bytes, self.limited) = (Some(now), 0, false);
        }
        if idle {
            self.from = None;
        }
    }

    fn measure(&mut self, now: Duration, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let seen = self.bytes.saturating_mul(1_000_000) / micros;
        self.rate = match self.rate(now) {
            Some(rate) if self.limited || seen > rate => (rate * 3 + seen) / 4,
            None if self.limited => seen,
            _ => return,
        };
        self.measured = (self.measured + 1).min(TRUSTED_AFTER);
        self.measured_at = now;
    }

    /// Forgets what was measured.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Lets a path deliver 1000 bytes every 100 µs for a number of milliseconds: 10 MB/s.
    fn run(d: &mut Delivery, now: &mut Duration, ms: u32, limited: bool) {
        d.sent(*now);
        for _ in 0..ms * 10 {
            *now += MS / 10;
            d.acked(*now, 1000, limited, MS / 2, false);
        }
    }

    #[test]
    fn a_rate_is_that_of_acknowledgements() {
        let (mut d, mut now) = (Delivery::default(), MS);
        assert_eq!((d.rate(now), d.sure_rate()), (None, RATE_YOUNG));
        run(&mut d, &mut now, 20, true);
        assert!((9_900_000..10_100_000).contains(&d.rate(now).unwrap()), "{d:?}");
        assert_eq!(Some(d.sure_rate()), d.rate(now));
    }

    #[test]
    fn a_rate_is_trusted_after_a_while_and_forgotten_when_nothing_is_sent() {
        let (mut d, mut now) = (Delivery::default(), MS);
        d.sent(now);
        for _ in 0..4 {
            now += MS;
            d.acked(now, 1_000_000, true, MS / 2, false);
        }
        assert_eq!((d.rate(now), d.sure_rate()), (Some(1_000_000_000), RATE_YOUNG));
        assert_eq!(d.rate(now + KNOWN_FOR), None);
    }

    #[test]
    fn an_idle_sender_says_nothing_of_a_path() {
        let (mut d, mut now) = (Delivery::default(), MS);
        run(&mut d, &mut now, 20, true);
        let known = d.rate(now);
        // Less is sent, and then nothing for a second.
        d.sent(now);
        for _ in 0..10 {
            now += MS * 2;
            d.acked(now, 1000, false, MS / 2, false);
        }
        assert_eq!(d.rate(now), known);
        d.acked(now + MS / 10, 1000, true, MS / 2, true);
        now += MS * 1000;
        run(&mut d, &mut now, 20, true);
        assert!((9_900_000..10_100_000).contains(&d.rate(now).unwrap()), "{d:?}");
        // A path that has really become slower is found to be so.
        for _ in 0..40 {
            now += MS * 2;
            d.acked(now, 1000, true, MS / 2, false);
        }
        assert!(d.rate(now).unwrap() < 600_000, "{d:?}");
    }
}
