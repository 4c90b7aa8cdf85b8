//! The window of CUBIC, bounded by what the receiver's buffer takes.

use core::time::Duration;

use super::{Acked, Controller, Limits, MTU_MIN};

/// A window up to this grows whatever the round trips are: a receiver that was not scheduled for a
/// moment finds that much.
const GROWS_FREELY: u32 = 1 << 20;
/// How much slower a window grows beyond where it was lost last.
const CAUTION: u64 = 32;
/// What a loss leaves of the window, and a mark, in hundredths (RFC 9438, section 4.6; RFC 8511, section
/// 3.1).
const LEFT_BY_LOSS: u64 = 70;
const LEFT_BY_MARK: u64 = 85;
const HUNDRED: u64 = 100;
/// A silence of acknowledgements counts as time for growth up to this long: after a longer one the window
/// would jump.
const GAP_MAX: Duration = Duration::from_millis(100);

/// Bytes of payload that may be in flight: slow start, then CUBIC (RFC 9438), cut at most once per round
/// trip.
///
/// CUBIC grows by time instead of by round trips: it comes back quickly to where it was cut last, stays
/// there for a while, and then looks for more, ever faster. So a long path that is fast gets its window
/// back as soon as a short one.
///
/// Beyond a size that is of no harm it grows only while round trips are short: then it comes to what
/// is on its way at once, bandwidth times delay, and about as much in queues.
///
/// The receiver's socket buffer bounds it: losing there costs more than a little idleness. Where its
/// size is not known, the window grows with caution beyond what any has, and hardly at all beyond
/// where it was lost last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubic {
    size: u32,
    threshold: u32,
    limits: Limits,
    /// A window below this was not too large at the last loss.
    ceiling: u32,
    mtu: u32,
    cut_at: Option<Duration>,
    /// The window to which the curve returns first: about that of the last cut (`W_max`).
    origin: u32,
    /// How many paths share the bottleneck, this one counted.
    sharers: u32,
    /// The growth since the last cut; `None` until the first acknowledgement after it.
    curve: Option<Curve>,
}

/// Growth along the curve of RFC 9438, section 4.2.
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// Time in which the window limited the sender, and the time up to which that was counted.
    elapsed: Duration,
    counted_to: Duration,
    /// The time after which the curve is at its origin (`K`), ms.
    flat_at: u64,
    /// What is owed to the window: bytes acknowledged × bytes to grow by.
    credit: u64,
    /// The window that Reno would have by now (`W_est`), in 1024ths of a byte.
    reno: u64,
}

impl Cubic {
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
            origin: 0,
            sharers: 1,
            curve: None,
        }
    }

    /// Makes the window smaller, unless it was made smaller less than a round trip ago, because of the same
    /// queue.
    fn cut(&mut self, now: Duration, rtt: Duration, left: u64) {
        if self.cut_at.is_some_and(|at| now.saturating_sub(at) < rtt) {
            return;
        }
        // Not even what it had last time: another flow has come, which gets room (fast convergence).
        self.origin =
            if self.size < self.origin { part(self.size, (HUNDRED + left) / 2) } else { self.size };
        self.size = part(self.size, left).max(2 * self.mtu);
        self.threshold = self.size;
        self.curve = None;
        self.cut_at = Some(now);
    }

    /// Bytes by which the window grows for `bytes` that were acknowledged.
    fn along_the_curve(&mut self, now: Duration, bytes: u32, rtt: Duration) -> u32 {
        let (size, mtu) = (u64::from(self.size), u64::from(self.mtu));
        if self.curve.is_none() {
            self.origin = self.origin.max(self.size);
        }
        let origin = u64::from(self.origin);
        // C is 0.4 packets per second cubed, for all paths that share the bottleneck: they are cut together.
        let sharers = u64::from(self.sharers);
        let slowness = 2_500_000_000 * sharers;
        let curve = self.curve.get_or_insert_with(|| Curve {
            elapsed: Duration::ZERO,
            counted_to: now,
            flat_at: root((origin - size).saturating_mul(slowness) / mtu),
            credit: 0,
            reno: size << 10,
        });
        curve.elapsed += now.saturating_sub(curve.counted_to).min(GAP_MAX);
        curve.counted_to = now;
        let ms = |time: Duration| i128::try_from(time.as_millis()).unwrap_or(i128::MAX);
        let from_flat = ms(curve.elapsed + rtt).min(1 << 32) - i128::from(curve.flat_at);
        let target = i128::from(origin)
            + from_flat * from_flat * from_flat * i128::from(mtu) / i128::from(slowness);
        let most = i128::from(size + size / 2);
        let ahead = target.clamp(i128::from(size), most) - i128::from(size);
        curve.credit += u64::try_from(ahead).unwrap_or(0) * u64::from(bytes);
        let cubic = curve.credit / size;
        curve.credit %= size;
        // Reno's growth for the same losses: 9/17 of a packet a round trip with this cut (section 4.3).
        let whole = ((mtu * u64::from(bytes)) << 10) / size / sharers;
        curve.reno += if curve.reno >> 10 < origin { whole * 9 / 17 } else { whole };
        let friendly = (curve.reno >> 10).saturating_sub(size);
        u32::try_from(cubic.max(friendly)).unwrap_or(u32::MAX)
    }
}

/// Raises limits that are too small for two packets, because with a smaller window nothing would flow.
fn for_two_packets(limits: Limits, mtu: u32) -> Limits {
    let sure = limits.sure.max(2 * mtu);
    Limits { sure, max: limits.max.max(sure) }
}

/// So many hundredths of a window.
fn part(size: u32, hundredths: u64) -> u32 {
    u32::try_from(u64::from(size) * hundredths / HUNDRED).unwrap_or(size)
}

/// The cube root, rounded down.
fn root(cube: u64) -> u64 {
    let mut root: u64 = 0;
    for bit in (0..22).rev() {
        let with = root | 1 << bit;
        if u128::from(with).pow(3) <= u128::from(cube) {
            root = with;
        }
    }
    root
}

impl Controller for Cubic {
    #[inline]
    fn window(&self) -> u32 {
        self.size
    }

    #[inline]
    fn acked(&mut self, now: Duration, acked: &Acked<'_>) {
        if acked.in_flight < self.size / 2 {
            // Not limited by the window: it says nothing about what the path can take.
            self.pass_over(now);
            return;
        }
        if self.size >= GROWS_FREELY && acked.rtt.queues() {
            self.threshold = self.threshold.min(self.size);
            self.pass_over(now);
            return;
        }
        let grow = if self.size < self.threshold {
            acked.bytes
        } else {
            let rtt = acked.rtt.smoothed().unwrap_or_default();
            self.along_the_curve(now, acked.bytes, rtt)
        };
        let grow = if self.size < self.ceiling {
            grow
        } else {
            (u64::from(self.mtu) * u64::from(acked.bytes) / u64::from(self.size) / CAUTION).max(1)
                as u32
        };
        self.size = self.size.saturating_add(grow).min(self.limits.max);
    }

    fn lost(&mut self, now: Duration, rtt: Duration) {
        let (size, cut_at) = (self.size, self.cut_at);
        self.cut(now, rtt, LEFT_BY_LOSS);
        // A buffer whose size is known does not have to be found by losses.
        if self.cut_at != cut_at && self.limits.max > self.limits.sure {
            self.ceiling = (size - size / 8).max(self.limits.sure);
        }
    }

    fn marked(&mut self, now: Duration, rtt: Duration) {
        self.cut(now, rtt, LEFT_BY_MARK);
    }

    fn set_limits(&mut self, limits: Limits) {
        self.limits = for_two_packets(limits, self.mtu);
        self.ceiling = self.limits.max;
        self.size = self.size.min(self.limits.max);
        self.threshold = self.limits.sure;
        self.curve = None;
    }

    fn share(&mut self, paths: u32) {
        // The curve is another one from here on.
        if self.sharers != paths {
            self.sharers = paths;
            self.curve = None;
        }
    }

    fn sharers(&self) -> u32 {
        self.sharers
    }

    fn restart(&mut self, initial: u32) {
        *self = Self::new(initial, self.limits, self.mtu);
    }
}

impl Cubic {
    /// Time up to `now` does not count for the curve.
    fn pass_over(&mut self, now: Duration) {
        if let Some(curve) = &mut self.curve {
            curve.counted_to = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{Congestion, Cut};
    use crate::rtt::Rtt;

    const MS: Duration = Duration::from_millis(1);

    fn window(initial: u32, sure: u32, max: u32, mtu: u32) -> Congestion<Cubic> {
        Congestion::with(Cubic::new(initial, Limits { sure, max }, mtu), mtu)
    }

    fn round_trip(time: Duration) -> Rtt {
        let mut rtt = Rtt::default();
        rtt.sample(MS, time);
        rtt
    }

    #[test]
    fn window_is_cut_once_per_round_trip_and_never_below_two_packets() {
        let mut w = window(64 << 10, 128 << 10, 128 << 10, 4096);
        w.sent(MS, 64 << 10);
        w.lost(MS, 4096, true, &round_trip(MS * 2));
        assert_eq!(w.window(), 45_875);
        w.lost(MS * 2, 4096, true, &round_trip(MS * 2));
        w.cut(MS * 2, Cut::Mark, &round_trip(MS * 2));
        assert_eq!(w.window(), 45_875);
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
        assert!(w.window() >= small + 32 * 4096, "{small} {}", w.window());
    }

    /// Sends a full window once a round trip of 40 ms, and loses one packet at the beginning.
    fn after_a_cut(rounds: u32) -> u32 {
        let mut w = window(4 << 20, 64 << 20, 64 << 20, 4096);
        let rtt = round_trip(MS * 40);
        w.sent(MS, w.room());
        w.lost(MS, 4096, true, &rtt);
        for round in 1..=rounds {
            w.acked(MS * 40 * round, w.in_flight(), &rtt);
            w.sent(MS * 40 * round, w.room());
        }
        w.window()
    }

    #[test]
    fn a_long_path_that_is_fast_gets_its_window_back_soon_stays_there_and_then_looks_for_more() {
        const FULL: u32 = 4 << 20;
        // The curve is back after the cube root of 0.3 × 1024 packets / 0.4: 9.2 s, or 229 round trips. Reno
        // would need 307.
        let cut = after_a_cut(1);
        assert!((part(FULL, 70)..part(FULL, 71)).contains(&cut), "{cut}");
        let half = after_a_cut(115);
        assert!((FULL / 100 * 94..FULL / 100 * 98).contains(&half), "{half}");
        let full = after_a_cut(229);
        assert!((FULL / 100 * 99..FULL / 100 * 101).contains(&full), "{full}");
        let later = after_a_cut(460);
        assert!((FULL / 100 * 125..FULL / 100 * 140).contains(&later), "{later}");
    }

    #[test]
    fn time_in_which_the_window_did_not_limit_does_not_count() {
        let mut w = window(4 << 20, 64 << 20, 64 << 20, 4096);
        let rtt = round_trip(MS);
        w.sent(MS, w.room());
        w.lost(MS, 4096, true, &rtt);
        w.acked(MS * 2, w.in_flight(), &rtt);
        let before = w.window();
        let mut now = MS * 2;
        for _ in 0..100 {
            for _ in 0..2 {
                now += MS * 45;
                w.sent(now, 4096);
                w.acked(now, 4096, &rtt);
            }
            now += MS;
            w.sent(now, w.room());
            w.acked(now, w.in_flight(), &rtt);
        }
        // So long after the cut the curve would be back where it was cut, 43 % above.
        assert!(w.window() < before + before / 10, "{before} {}", w.window());
    }

    #[test]
    fn a_mark_takes_half_as_much_as_a_loss() {
        let mut w = window(1 << 20, 4 << 20, 4 << 20, 4096);
        w.cut(MS, Cut::Mark, &round_trip(MS));
        assert_eq!(w.window(), part(1 << 20, 85));
        w.lost(MS * 10, 4096, true, &round_trip(MS));
        assert_eq!(w.window(), part(part(1 << 20, 85), 70));
    }

    /// Two flows by one bottleneck with a queue that holds `queue` bytes, 10 MB/s, 20 ms away; the second
    /// begins later. Gives what each has delivered in the second half of two minutes.
    fn shares(queue: u32, marks: bool) -> [u64; 2] {
        const PER_MS: u32 = 10_000;
        let mut flows = [0, 1].map(|_| window(64 << 10, 4 << 20, 4 << 20, 1024));
        let mut waiting: std::collections::VecDeque<(usize, u32)> = Default::default();
        let mut answers: std::collections::VecDeque<(u32, usize, bool)> = Default::default();
        let (mut queued, mut delivered, mut turn) = (0, [0u64; 2], 0u32);
        let rtt = round_trip(MS * 20);
        for now in 1..120_000u32 {
            while answers.front().is_some_and(|a| a.0 <= now) {
                let (_, flow, marked) = answers.pop_front().unwrap();
                flows[flow].acked(MS * now, 1024, &rtt);
                if marked {
                    flows[flow].cut(MS * now, Cut::Mark, &rtt);
                }
            }
            turn += 1;
            for flow in [turn as usize % 2, (turn as usize + 1) % 2] {
                while flows[flow].room() >= 1024 && (flow == 0 || now > 20_000) {
                    flows[flow].sent(MS * now, 1024);
                    if queued + 1024 > queue {
                        flows[flow].lost(MS * now, 1024, true, &rtt);
                        break;
                    }
                    queued += 1024;
                    waiting.push_back((flow, queued));
                }
            }
            let mut may = PER_MS;
            while let Some((flow, behind)) = waiting.front().copied() {
                if may < 1024 {
                    break;
                }
                may -= 1024;
                queued -= 1024;
                waiting.pop_front();
                answers.push_back((now + 20, flow, marks && behind > queue / 4));
                if now > 60_000 {
                    delivered[flow] += 1024;
                }
            }
        }
        delivered
    }

    #[test]
    fn two_flows_come_to_share_a_bottleneck_and_fill_it() {
        for marks in [false, true] {
            let [old, new] = shares(200_000, marks);
            let whole = 10_000 / 1024 * 1024 * 60_000;
            assert!(old + new > whole / 100 * 90, "{marks}: {old} + {new} of {whole}");
            assert!(old < new * 3 / 2 && new < old * 3 / 2, "{marks}: {old} {new}");
        }
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
        assert!(losses < 60, "lost {losses} times in 4000 round trips");
        // Nothing lost: it grows to what may be.
        let mut w = window(64 << 10, 128 << 10, 1 << 20, 4096);
        for _ in 0..4000 {
            w.sent(MS, w.room());
            w.acked(MS, w.in_flight(), &Rtt::default());
        }
        assert_eq!(w.window(), 1 << 20);
    }
}
