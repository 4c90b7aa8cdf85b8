//! Congestion control: how much may be on its way by a path.
//!
//! [`Congestion`] counts the bytes outstanding, and asks a [`Controller`] how many may be. Each path has a
//! controller of its own: what several queue pairs send by one path is one flow, and paths know nothing of
//! each other.
//!
//! A new controller is a file beside [`cubic`], a variant of [`Algorithm`] and one of
//! [`CongestionControl`], by which settings name it. It is a variant, not a `Box<dyn Controller>`: a
//! controller is asked for every packet, so the calls should be inlined; it lies within its path, which is
//! cloned as a whole (the model checker does so for every state); and settings, which are compared and
//! cloned too, name it by a word. The price is that only this crate can add one, which is where it can be
//! simulated.

mod cubic;
mod delivery;
mod stream;

use core::fmt::Debug;
use core::time::Duration;

use crate::config::{Config, CongestionControl};
use crate::rtt::Rtt;
use cubic::Cubic;
use delivery::Delivery;
use polypath_types::PathKind;
use stream::Stream;

/// What the peer's receive buffer takes, bytes of payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// For sure.
    pub(crate) sure: u32,
    /// Perhaps: what the window may grow to while nothing is lost.
    pub(crate) max: u32,
}

impl Limits {
    /// The limits for a peer that tells what its buffer takes.
    pub(crate) fn told(window: u32) -> Self {
        Self { sure: window, max: window }
    }

    /// The limits for a peer that does not tell its own.
    pub(crate) fn of(config: &Config) -> Self {
        Self { sure: config.max_window, max: config.max_window_found }
    }
}

/// Bytes came back acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acked<'a> {
    pub(crate) bytes: u32,
    /// With those that are acknowledged. Much less than the window: it was not the window that limited the
    /// sender, so this says nothing of what the path can take.
    pub(crate) in_flight: u32,
    /// The round trips of the path, without the one that ends now.
    pub(crate) rtt: &'a Rtt,
}

/// Why a window becomes smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A packet was lost.
    Loss,
    /// A packet was marked.
    Mark,
}

/// Decides how much may be in flight on one path.
pub(crate) trait Controller: Clone + Debug {
    /// Bytes that may be in flight: payload, and a cost for each packet. Never less than two packets, or a
    /// path could stand still.
    fn window(&self) -> u32;

    /// `bytes` go out at `now`, or are asked for by a READ; `in_flight` counts them already. For controllers
    /// that measure the rate of delivery; others need not care.
    fn sent(&mut self, now: Duration, bytes: u32, in_flight: u32) {
        let _ = (now, bytes, in_flight);
    }

    /// Bytes were acknowledged.
    fn acked(&mut self, now: Duration, acked: &Acked<'_>);

    /// Bytes were lost, most likely because a queue on the way or the receive buffer was full. There may be
    /// many such calls within one round trip. `rtt`: a round trip; zero if none was measured.
    fn lost(&mut self, now: Duration, rtt: Duration);

    /// A packet arrived marked: a queue on the way is longer than it should be (RFC 3168). There may be many
    /// such calls within one round trip.
    fn marked(&mut self, now: Duration, rtt: Duration);

    /// The peer told the size of its receive buffer, or another peer took its place.
    fn set_limits(&mut self, limits: Limits);

    /// So many paths, this one counted, share one bottleneck (at least 1). Together they should take from it
    /// what one would.
    fn share(&mut self, paths: u32);

    /// What [`share`](Self::share) was told last.
    fn sharers(&self) -> u32;

    /// The path was dead and is used again: what was known of it is old. The limits stay.
    fn restart(&mut self, initial: u32);
}

/// The controllers that there are.
#[derive(Clone, Debug)]
pub(crate) enum Algorithm {
    Cubic(Cubic),
    Stream(Stream),
}

impl Algorithm {
    /// The one that the settings name; for a path over TCP, which has a congestion control of its own, the
    /// one for streams.
    fn new(config: &Config, kind: PathKind) -> Self {
        if kind.is_tcp() {
            return Self::Stream(Stream::new(config.tcp_window));
        }
        let limits = Limits::of(config);
        match config.congestion {
            CongestionControl::Cubic => {
                Self::Cubic(Cubic::new(config.initial_window, limits, config.mtu))
            }
        }
    }
}

impl Controller for Algorithm {
    #[inline]
    fn window(&self) -> u32 {
        match self {
            Self::Cubic(c) => c.window(),
            Self::Stream(s) => s.window(),
        }
    }

    #[inline]
    fn sent(&mut self, now: Duration, bytes: u32, in_flight: u32) {
        match self {
            Self::Cubic(c) => c.sent(now, bytes, in_flight),
            Self::Stream(s) => s.sent(now, bytes, in_flight),
        }
    }

    #[inline]
    fn acked(&mut self, now: Duration, acked: &Acked<'_>) {
        match self {
            Self::Cubic(c) => c.acked(now, acked),
            Self::Stream(s) => s.acked(now, acked),
        }
    }

    fn lost(&mut self, now: Duration, rtt: Duration) {
        match self {
            Self::Cubic(c) => c.lost(now, rtt),
            Self::Stream(s) => s.lost(now, rtt),
        }
    }

    fn marked(&mut self, now: Duration, rtt: Duration) {
        match self {
            Self::Cubic(c) => c.marked(now, rtt),
            Self::Stream(s) => s.marked(now, rtt),
        }
    }

    fn set_limits(&mut self, limits: Limits) {
        match self {
            Self::Cubic(c) => c.set_limits(limits),
            Self::Stream(s) => s.set_limits(limits),
        }
    }

    fn share(&mut self, paths: u32) {
        match self {
            Self::Cubic(c) => c.share(paths),
            Self::Stream(s) => s.share(paths),
        }
    }

    fn sharers(&self) -> u32 {
        match self {
            Self::Cubic(c) => c.sharers(),
            Self::Stream(s) => s.sharers(),
        }
    }

    fn restart(&mut self, initial: u32) {
        match self {
            Self::Cubic(c) => c.restart(initial),
            Self::Stream(s) => s.restart(initial),
        }
    }
}

/// The smallest packet that the accounts reckon with.
const MTU_MIN: u32 = 256;

/// What is in flight on a path, and who decides how much may be.
#[derive(Clone, Debug)]
pub(crate) struct Congestion<C = Algorithm> {
    controller: C,
    delivery: Delivery,
    in_flight: u32,
    /// What the largest packet counts for.
    mtu: u32,
}

impl Congestion {
    /// For a new path of this kind, by the settings.
    pub(crate) fn new(config: &Config, kind: PathKind) -> Self {
        Self::with(Algorithm::new(config, kind), config.mtu)
    }
}

impl<C: Controller> Congestion<C> {
    fn with(controller: C, mtu: u32) -> Self {
        Self { controller, delivery: Delivery::default(), in_flight: 0, mtu: mtu.max(MTU_MIN) }
    }

    /// Bytes that are on their way.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Bytes that may be on their way.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.controller.window()
    }

    /// Bytes that may be sent now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.window().saturating_sub(self.in_flight)
    }

    /// Bytes per second that the path delivers; `None` if that was not measured lately.
    #[inline]
    pub(crate) fn rate(&self, now: Duration) -> Option<u64> {
        self.delivery.rate(now)
    }

    /// How long what is in flight may take to arrive, reckoned with care.
    pub(crate) fn queue_time(&self) -> Duration {
        let nanos =
            u128::from(self.in_flight) * 1_000_000_000 / u128::from(self.delivery.sure_rate());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Enough room to wake who waited for it: not for every byte. Always so when nothing is in flight,
    /// since then nothing else would ever wake anyone.
    pub(crate) fn reopened(&self) -> bool {
        let window = self.window();
        self.room() >= (window / 4).max(self.mtu).min(window)
    }

    /// `bytes` go out, or were asked for.
    #[inline]
    pub(crate) fn sent(&mut self, now: Duration, bytes: u32) {
        self.in_flight = self.in_flight.saturating_add(bytes);
        self.delivery.sent(now);
        self.controller.sent(now, bytes, self.in_flight);
    }

    /// `bytes` were acknowledged; `rtt`: the round trips of the path so far.
    #[inline]
    pub(crate) fn acked(&mut self, now: Duration, bytes: u32, rtt: &Rtt) {
        let limited = self.in_flight >= self.window() / 2;
        self.controller.acked(now, &Acked { bytes, in_flight: self.in_flight, rtt });
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let round_trip = rtt.smoothed().unwrap_or_default();
        self.delivery.acked(now, bytes, limited, round_trip, self.in_flight == 0);
    }

    /// `bytes` do not come back. `congestion`: they were lost on the way; else they are given up, which says
    /// nothing of the path.
    pub(crate) fn lost(&mut self, now: Duration, bytes: u32, congestion: bool, rtt: &Rtt) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        if congestion {
            self.cut(now, Cut::Loss, rtt);
        }
    }

    /// A packet was lost or marked, here or on a path that shares the bottleneck.
    pub(crate) fn cut(&mut self, now: Duration, cut: Cut, rtt: &Rtt) {
        let rtt = rtt.smoothed().unwrap_or_default();
        match cut {
            Cut::Loss => self.controller.lost(now, rtt),
            Cut::Mark => self.controller.marked(now, rtt),
        }
    }

    /// Another receive buffer at the other end.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.controller.set_limits(limits);
    }

    /// So many paths share the bottleneck, this one counted, so at least 1.
    pub(crate) fn share(&mut self, paths: u32) {
        self.controller.share(paths);
    }

    /// How many paths share the bottleneck, this one counted.
    #[inline]
    pub(crate) fn sharers(&self) -> u32 {
        self.controller.sharers()
    }

    /// Begins anew, as after an outage; what is in flight stays accounted.
    pub(crate) fn restart(&mut self, initial: u32) {
        self.delivery.restart();
        self.controller.restart(initial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MTU: u32 = 4096;

    /// A toy that goes by delay and by the rate of delivery, as TCP Vegas and BBR do: the window is what was
    /// delivered in the shortest round trip, and four packets more.
    #[derive(Clone, Debug)]
    struct ByDelay {
        window: u32,
        max: u32,
        /// The current round trip: when it began, and the bytes delivered since.
        round: (Duration, u32),
        /// The most that was in flight.
        peak: u32,
    }

    impl ByDelay {
        fn on_a_path() -> Congestion<Self> {
            let toy = Self { window: 8 * MTU, max: u32::MAX, round: (MS, 0), peak: 0 };
            Congestion::with(toy, MTU)
        }
    }

    impl Controller for ByDelay {
        fn window(&self) -> u32 {
            self.window
        }

        fn sent(&mut self, _: Duration, _: u32, in_flight: u32) {
            self.peak = self.peak.max(in_flight);
        }

        fn acked(&mut self, now: Duration, acked: &Acked<'_>) {
            self.round.1 += acked.bytes;
            let took = now - self.round.0;
            let Some(smoothed) = acked.rtt.smoothed() else { return };
            if took < smoothed {
                return;
            }
            let delivered = self.round.1;
            self.window = if acked.rtt.queues() {
                self.window - MTU
            } else if acked.in_flight >= self.window / 2 {
                self.window.max(delivered) + 4 * MTU
            } else {
                self.window
            };
            self.window = self.window.clamp(2 * MTU, self.max);
            self.round = (now, 0);
        }

        fn lost(&mut self, _: Duration, _: Duration) {}

        fn marked(&mut self, _: Duration, _: Duration) {}

        fn set_limits(&mut self, limits: Limits) {
            self.max = limits.max;
            self.window = self.window.min(limits.max);
        }

        fn share(&mut self, _: u32) {}

        fn sharers(&self) -> u32 {
            1
        }

        fn restart(&mut self, initial: u32) {
            self.window = initial;
        }
    }

    #[test]
    fn a_controller_that_goes_by_delay_fits_into_the_seam() {
        let mut c = ByDelay::on_a_path();
        let mut rtt = Rtt::default();
        // A bottleneck of 100 MB/s, 5 ms away: 500 kB are on their way at once.
        let (mut now, mut took) = (MS, MS * 5);
        for _ in 0..400 {
            let room = c.room() / MTU * MTU;
            c.sent(now, room);
            took = (MS * 5).max(MS * c.in_flight() / 100_000);
            now += took;
            while c.in_flight() > 0 {
                c.acked(now, MTU, &rtt);
                rtt.sample(now, took);
            }
        }
        assert!((500_000..1_300_000).contains(&c.window()), "{}", c.window());
        assert!(took < MS * 13, "{took:?}");
        assert!(c.controller.peak >= 500_000, "it is told what goes out");
    }

    #[test]
    fn what_is_in_flight_is_counted_whatever_the_controller_decides() {
        let mut c = ByDelay::on_a_path();
        let rtt = Rtt::default();
        c.sent(MS, 8 * MTU);
        assert_eq!((c.in_flight(), c.room(), c.reopened()), (8 * MTU, 0, false));
        c.lost(MS, MTU, true, &rtt);
        c.lost(MS, MTU, false, &rtt);
        assert_eq!((c.in_flight(), c.room(), c.reopened()), (6 * MTU, 2 * MTU, true));
        c.set_limits(Limits { sure: 4 * MTU, max: 4 * MTU });
        assert_eq!((c.window(), c.room()), (4 * MTU, 0), "more in flight than may be");
        c.restart(16 * MTU);
        assert_eq!(c.room(), 10 * MTU, "what is in flight stays accounted");
        for _ in 0..8 {
            c.acked(MS, MTU, &rtt);
        }
        assert_eq!(c.in_flight(), 0, "no less than nothing");
    }

    #[test]
    fn settings_choose_the_controller() {
        let config = Config { initial_window: 32 << 10, ..Config::default() };
        let c = Congestion::new(&config, PathKind::Udp);
        assert!(matches!(c.controller, Algorithm::Cubic(_)));
        assert_eq!(c.window(), 32 << 10);
    }
}
