//! The window of today: slow start, additive increase, halved by a loss.

use core::time::Duration;

use super::{Acked, Controller, Limits, MTU_MIN};

/// A window up to this grows whatever the round trips are: a receiver that was not scheduled for a
/// moment finds that much.
const GROWS_FREELY: u32 = 1 << 20;
/// How much slower a window grows beyond where it was lost last.
const CAUTION: u64 = 32;

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
    limits: Limits,
    /// A window below this was not too large at the last loss.
    ceiling: u32,
    mtu: u32,
    cut_at: Option<Duration>,
}

impl Window {
    pub(crate) fn new(initial: u32, limits: Limits, mtu: u32) -> Self {
        let mtu = mtu.max(MTU_MIN);
        let limits = for_two_packets(limits, mtu);
        Self {
            size: initial.clamp(2 * mtu, limits.sure),
            threshold: limits.sure,
            limits,
            ceiling: limits.max,
            mtu,
            cut_at: None,
        }
    }
}

/// Raises limits that are too small for two packets, because with a smaller window nothing would flow.
fn for_two_packets(limits: Limits, mtu: u32) -> Limits {
    let sure = limits.sure.max(2 * mtu);
    Limits { sure, max: limits.max.max(sure) }
}

impl Controller for Window {
    #[inline]
    fn window(&self) -> u32 {
        self.size
    }

    #[inline]
    fn acked(&mut self, _: Duration, acked: &Acked<'_>) {
        if acked.in_flight < self.size / 2 {
            // Not limited by the window: it says nothing about what the path can take.
            return;
        }
        if self.size >= GROWS_FREELY && acked.rtt.queues() {
            return;
        }
        let additive = u64::from(self.mtu) * u64::from(acked.bytes) / u64::from(self.size);
        let grow = if self.size < self.threshold {
            acked.bytes
        } else if self.size < self.ceiling {
            additive.max(1) as u32
        } else {
            (additive / CAUTION).max(1) as u32
        };
        self.size = self.size.saturating_add(grow).min(self.limits.max);
    }

    fn lost(&mut self, now: Duration, rtt: Duration) {
        let recent = self.cut_at.is_some_and(|at| now.saturating_sub(at) < rtt);
        if !recent {
            // A buffer whose size is known does not have to be found by losses.
            if self.limits.max > self.limits.sure {
                self.ceiling = (self.size - self.size / 8).max(2 * self.mtu);
            }
            self.size = (self.size / 2).max(2 * self.mtu);
            self.threshold = self.size;
            self.cut_at = Some(now);
        }
    }

    fn set_limits(&mut self, limits: Limits) {
        self.limits = for_two_packets(limits, self.mtu);
        self.ceiling = self.limits.max;
        self.size = self.size.min(self.limits.max);
        self.threshold = self.limits.sure;
    }

    fn restart(&mut self, initial: u32) {
        *self = Self::new(initial, self.limits, self.mtu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Congestion;
    use crate::rtt::Rtt;

    const MS: Duration = Duration::from_millis(1);

    fn window(initial: u32, sure: u32, max: u32, mtu: u32) -> Congestion<Window> {
        Congestion::with(Window::new(initial, Limits { sure, max }, mtu), mtu)
    }

    fn round_trip(time: Duration) -> Rtt {
        let mut rtt = Rtt::default();
        rtt.sample(MS, time);
        rtt
    }

    #[test]
    fn window_is_halved_once_per_round_trip_and_never_below_two_packets() {
        let mut w = window(64 << 10, 128 << 10, 128 << 10, 4096);
        w.sent(MS, 64 << 10);
        w.lost(MS, 4096, true, &round_trip(MS * 2));
        assert_eq!(w.window(), 32 << 10);
        w.lost(MS * 2, 4096, true, &round_trip(MS * 2));
        assert_eq!(w.window(), 32 << 10);
        for i in 2..20 {
            w.lost(MS * 2 * i, 4096, true, &round_trip(MS * 2));
        }
        assert_eq!(w.window(), 8192);
        assert_eq!(w.in_flight(), 0);
    }

    #[test]
    fn giving_up_bytes_does_not_shrink_the_window() {
        let mut w = window(64 << 10, 128 << 10, 128 << 10, 4096);
        w.sent(MS, 4096);
        w.lost(MS, 4096, false, &round_trip(MS));
        assert_eq!((w.window(), w.room()), (64 << 10, 64 << 10));
    }

    #[test]
    fn window_grows_only_while_it_limits_and_not_beyond_the_receive_buffer() {
        let mut w = window(64 << 10, 96 << 10, 96 << 10, 4096);
        w.sent(MS, 4096);
        w.acked(MS, 4096, &Rtt::default());
        assert_eq!(w.window(), 64 << 10);
        for _ in 0..100 {
            w.sent(MS, w.room());
            assert_eq!(w.room(), 0);
            w.acked(MS, w.in_flight(), &Rtt::default());
        }
        assert_eq!(w.window(), 96 << 10);
        w.set_limits(Limits { sure: 32 << 10, max: 32 << 10 });
        assert_eq!(w.window(), 32 << 10);
    }

    /// A bottleneck of `rate` bytes per millisecond, `least` away, that a full window is sent through again
    /// and again. Gives the window's size and the round trip that it leads to.
    fn after_many_round_trips(least: Duration, rate: u32, max: u32) -> (u32, Duration) {
        let mut w = window(64 << 10, max, max, 4096);
        let mut rtt = Rtt::default();
        let mut now = Duration::ZERO;
        let mut took = least;
        for _ in 0..500 {
            w.sent(MS, w.room());
            took = least.max(MS * w.in_flight() / rate);
            now += took;
            let acknowledged = (w.in_flight() / 64).max(1);
            while w.in_flight() > 0 {
                w.acked(MS, acknowledged, &rtt);
                rtt.sample(now, took);
            }
        }
        (w.window(), took)
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
    fn a_window_recovers_from_losses_where_the_receive_buffer_is_known() {
        let mut w = window(64 << 10, 1 << 20, 1 << 20, 4096);
        for n in 1..4u32 {
            w.sent(MS, w.room());
            w.lost(MS * 100 * n, 4096, true, &round_trip(MS));
        }
        let small = w.window();
        for _ in 0..64 {
            w.sent(MS, w.room());
            w.acked(MS, w.in_flight(), &Rtt::default());
        }
        assert!(w.window() >= small + 60 * 4096, "{small} {}", w.window());
    }

    #[test]
    fn an_unknown_receive_buffer_is_found_and_then_respected() {
        const BUFFER: u32 = 300 << 10;
        let mut w = window(64 << 10, 128 << 10, 1 << 20, 4096);
        let (mut losses, mut largest) = (0, 0);
        for round in 0..4000u32 {
            w.sent(MS, w.room());
            largest = largest.max(w.window());
            if w.in_flight() > BUFFER {
                losses += 1;
                w.lost(MS * round, w.in_flight(), true, &round_trip(MS / 2));
            }
            w.acked(MS, w.in_flight(), &Rtt::default());
        }
        assert!(largest > BUFFER, "found");
        assert!(losses < 40, "lost {losses} times in 4000 round trips");
        // Nothing lost: it grows to what may be.
        let mut w = window(64 << 10, 128 << 10, 1 << 20, 4096);
        for _ in 0..4000 {
            w.sent(MS, w.room());
            w.acked(MS, w.in_flight(), &Rtt::default());
        }
        assert_eq!(w.window(), 1 << 20);
    }
}
