//! Round-trip time and congestion window of a path.

use core::time::Duration;

/// Smoothed round-trip time (RFC 6298, section 2), in nanoseconds: every acknowledgement is a sample, and
/// `Duration` multiplies and divides in parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Option<u64>,
    variation: u64,
    /// The shortest of this period and of the one before.
    least: [Option<u64>; 2],
    period_from: Duration,
}

/// What a round trip may last before one was measured.
const RTT_GUESS: Duration = Duration::from_millis(100);
/// A window up to this grows whatever the round trips are: a receiver that was not scheduled for a
/// moment finds that much.
const GROWS_FREELY: u32 = 1 << 20;
/// Packets wait somewhere if a round trip takes that much longer than twice the shortest one.
const QUEUE_SLACK: Duration = Duration::from_millis(1);
/// Shortest round trips are forgotten after one to two periods: the way may have become longer.
const LEAST_PERIOD: Duration = Duration::from_secs(10);
/// How much slower a window grows beyond where it was lost last.
const CAUTION: u64 = 32;
/// A sample above this is a descheduled process or a stale timestamp, not a round trip.
const RTT_MAX: Duration = Duration::from_secs(4);

impl Rtt {
    pub(crate) fn sample(&mut self, now: Duration, rtt: Duration) {
        let rtt = rtt.min(RTT_MAX).as_nanos() as u64;
        if now.saturating_sub(self.period_from) >= LEAST_PERIOD {
            self.period_from = now;
            self.least = [None, self.least[0]];
        }
        self.least[0] = Some(self.least[0].map_or(rtt, |least| least.min(rtt)));
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(s) => {
                self.variation = (self.variation * 3 + s.abs_diff(rtt)) / 4;
                self.smoothed = Some((s * 7 + rtt) / 8);
            }
        }
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(Duration::from_nanos)
    }

    /// Round trips take so much longer than they could that packets must be waiting in a queue: more on their
    /// way would only wait longer, and have those of others wait.
    pub(crate) fn queues(&self) -> bool {
        let (Some(smoothed), Some(least)) = (self.smoothed, self.least.iter().flatten().min())
        else {
            return false;
        };
        smoothed > least * 2 + QUEUE_SLACK.as_nanos() as u64
    }

    /// The longest that an answer should take.
    pub(crate) fn bound(&self) -> Duration {
        self.smoothed.map_or(RTT_GUESS, |s| Duration::from_nanos(s + self.variation * 4))
    }
}

/// Bytes of payload that may be in flight: slow start, then additive increase, halved at most once
/// per round trip (RFC 5681, sections 3.1 and 3.2).
///
/// Beyond a size that is of no harm it grows only while round trips are short: then it comes to what
/// is on its way at once, bandwidth times delay, and about as much in queues.
///
/// The receiver's socket buffer bounds it: losing there costs more than a little idleness. Where its
/// size is not known, the window grows with caution beyond what any has, and hardly at all beyond
/// where it was lost last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    size: u32,
    threshold: u32,
    /// What the receive buffer takes for sure.
    sure: u32,
    max: u32,
    /// Less than this was not too much last time.
    ceiling: u32,
    mtu: u32,
    pub(crate) in_flight: u32,
    cut_at: Option<Duration>,
}

impl Window {
    /// `sure`: what the receive buffer takes for sure; `max`: what it may take.
    pub(crate) fn new(initial: u32, sure: u32, max: u32, mtu: u32) -> Self {
        let mtu = mtu.max(256);
        let sure = sure.max(2 * mtu);
        let max = max.max(sure);
        Self {
            size: initial.clamp(2 * mtu, sure),
            threshold: sure,
            sure,
            max,
            ceiling: max,
            mtu,
            in_flight: 0,
            cut_at: None,
        }
    }

    /// Begins anew, as after an outage; what is in flight stays accounted.
    pub(crate) fn restart(&mut self, initial: u32) {
        *self =
            Self { in_flight: self.in_flight, ..Self::new(initial, self.sure, self.max, self.mtu) };
    }

    /// Another receive buffer: see [`Window::new`].
    pub(crate) fn set_limits(&mut self, sure: u32, max: u32) {
        self.sure = sure.max(2 * self.mtu);
        self.max = max.max(self.sure);
        self.ceiling = self.max;
        self.size = self.size.min(self.max);
        self.threshold = self.sure;
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Bytes that may be sent now.
    pub(crate) fn room(&self) -> u32 {
        self.size.saturating_sub(self.in_flight)
    }

    /// Enough room to wake who waited for it: not for every byte. Always so when nothing is in flight,
    /// since then nothing else would ever wake anyone.
    pub(crate) fn reopened(&self) -> bool {
        self.room() >= (self.size / 4).max(self.mtu).min(self.size)
    }

    pub(crate) fn sent(&mut self, bytes: u32) {
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    /// `rtt`: the round trips of the path.
    pub(crate) fn acked(&mut self, bytes: u32, rtt: &Rtt) {
        let was_full = self.in_flight >= self.size / 2;
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if !was_full {
            // Not limited by the window: it says nothing about what the path can take.
            return;
        }
        if self.size >= GROWS_FREELY && rtt.queues() {
            return;
        }
        let additive = u64::from(self.mtu) * u64::from(bytes) / u64::from(self.size);
        let grow = if self.size < self.threshold {
            bytes
        } else if self.size < self.ceiling {
            additive.max(1) as u32
        } else {
            (additive / CAUTION).max(1) as u32
        };
        self.size = self.size.saturating_add(grow).min(self.max);
    }

    pub(crate) fn lost(&mut self, now: Duration, bytes: u32, congestion: bool, rtt: Duration) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let recent = self.cut_at.is_some_and(|at| now.saturating_sub(at) < rtt);
        if congestion && !recent {
            self.ceiling = (self.size - self.size / 8).max(2 * self.mtu);
            self.size = (self.size / 2).max(2 * self.mtu);
            self.threshold = self.size;
            self.cut_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rtt_follows_rfc_6298() {
        let mut rtt = Rtt::default();
        rtt.sample(MS, MS * 8);
        assert_eq!(rtt.smoothed(), Some(MS * 8));
        assert_eq!(rtt.bound(), MS * 24);
        rtt.sample(MS, MS * 16);
        assert_eq!(rtt.smoothed(), Some(MS * 9));
        assert_eq!(rtt.bound(), MS * 9 + MS * 20);
    }

    #[test]
    fn window_is_halved_once_per_round_trip_and_never_below_two_packets() {
        let mut w = Window::new(64 << 10, 128 << 10, 128 << 10, 4096);
        w.sent(64 << 10);
        w.lost(MS, 4096, true, MS * 2);
        assert_eq!(w.size(), 32 << 10);
        w.lost(MS * 2, 4096, true, MS * 2);
        assert_eq!(w.size(), 32 << 10);
        for i in 2..20 {
            w.lost(MS * 2 * i, 4096, true, MS * 2);
        }
        assert_eq!(w.size(), 8192);
        assert_eq!(w.in_flight, 0);
    }

    #[test]
    fn giving_up_bytes_does_not_shrink_the_window() {
        let mut w = Window::new(64 << 10, 128 << 10, 128 << 10, 4096);
        w.sent(4096);
        w.lost(MS, 4096, false, MS);
        assert_eq!((w.size(), w.room()), (64 << 10, 64 << 10));
    }

    #[test]
    fn window_grows_only_while_it_limits_and_not_beyond_the_receive_buffer() {
        let mut w = Window::new(64 << 10, 96 << 10, 96 << 10, 4096);
        w.sent(4096);
        w.acked(4096, &Rtt::default());
        assert_eq!(w.size(), 64 << 10);
        for _ in 0..100 {
            w.sent(w.room());
            assert_eq!(w.room(), 0);
            w.acked(w.in_flight, &Rtt::default());
        }
        assert_eq!(w.size(), 96 << 10);
        w.set_limits(32 << 10, 32 << 10);
        assert_eq!(w.size(), 32 << 10);
    }

    /// A bottleneck of `rate` bytes per millisecond, `least` away, that a full window is sent through again
    /// and again. Gives the window's size and the round trip that it leads to.
    fn after_many_round_trips(least: Duration, rate: u32, max: u32) -> (u32, Duration) {
        let mut w = Window::new(64 << 10, max, max, 4096);
        let mut rtt = Rtt::default();
        let mut now = Duration::ZERO;
        let mut took = least;
        for _ in 0..500 {
            w.sent(w.room());
            took = least.max(MS * w.in_flight / rate);
            now += took;
            let acknowledged = (w.in_flight / 64).max(1);
            while w.in_flight > 0 {
                w.acked(acknowledged, &rtt);
                rtt.sample(now, took);
            }
        }
        (w.size(), took)
    }

    #[test]
    fn a_window_comes_to_bandwidth_times_delay_and_fills_no_queues_beyond_that() {
        const MAX: u32 = 16 << 20;
        // 10 Gbit/s and 10 ms: 12.5 MB are on their way.
        let (size, _) = after_many_round_trips(MS * 10, 1_250_000, MAX);
        assert_eq!(size, MAX);
        // 1 Gbit/s and 10 ms: 1.25 MB, and once more in queues.
        let (size, took) = after_many_round_trips(MS * 10, 125_000, MAX);
        assert!((1_250_000..4_000_000).contains(&size), "{size}");
        assert!(took < MS * 30, "{took:?}");
        // 1 Gbit/s next door: what grows freely.
        let (size, took) = after_many_round_trips(MS / 20, 125_000, MAX);
        assert!((1 << 20..2 << 20).contains(&size), "{size}");
        assert!(took < MS * 16, "{took:?}");
        // A receive buffer bounds it wherever it is.
        assert_eq!(after_many_round_trips(MS * 10, 1_250_000, 106 << 10).0, 106 << 10);
    }

    #[test]
    fn a_way_that_has_become_longer_is_not_taken_for_a_queue_for_ever() {
        let mut rtt = Rtt::default();
        rtt.sample(MS, MS);
        let mut now = MS;
        let mut longer = |time: Duration| {
            let end = now + time;
            while now < end {
                now += MS * 20;
                rtt.sample(now, MS * 20);
            }
            rtt.queues()
        };
        assert!(longer(LEAST_PERIOD / 2), "it may be a queue");
        assert!(!longer(LEAST_PERIOD * 2), "or it may not");
    }

    #[test]
    fn an_unknown_receive_buffer_is_found_and_then_respected() {
        const BUFFER: u32 = 300 << 10;
        let mut w = Window::new(64 << 10, 128 << 10, 1 << 20, 4096);
        let (mut losses, mut largest) = (0, 0);
        for round in 0..4000u32 {
            w.sent(w.room());
            largest = largest.max(w.size());
            if w.in_flight > BUFFER {
                losses += 1;
                w.lost(MS * round, w.in_flight, true, MS / 2);
            }
            w.acked(w.in_flight, &Rtt::default());
        }
        assert!(largest > BUFFER, "found");
        assert!(losses < 40, "lost {losses} times in 4000 round trips");
        // Nothing lost: it grows to what may be.
        let mut w = Window::new(64 << 10, 128 << 10, 1 << 20, 4096);
        for _ in 0..4000 {
            w.sent(w.room());
            w.acked(w.in_flight, &Rtt::default());
        }
        assert_eq!(w.size(), 1 << 20);
    }
}
