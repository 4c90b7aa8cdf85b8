//! The window of a path over a TCP stream.

use core::time::Duration;

use super::{Acked, Controller, Limits};

/// A window of this is of no harm: both ends hold that much anyway.
const FREE: u32 = 1 << 20;
/// A larger window grows while packets wait for less than this, in the buffers of the stream or for a process
/// that does not run.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// It shrinks by this share of what is acknowledged while they wait for more than twice as long.
const SHRINK: u32 = 8;

/// Bytes of payload that may be in flight by a TCP stream.
///
/// What the network takes is TCP's affair, and it retransmits and heeds marks itself. This window is larger
/// than what is on its way by as much as both ends need so that none waits for the other one, whose process
/// may not run for some milliseconds. It has a limit because all of it may wait in buffers before a slow
/// link, and everything that is sent later, a probe of the path as well, waits behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    size: u32,
    most: u32,
    sharers: u32,
}

impl Stream {
    /// Begins with what is of no harm. `most`: the limit of the window, bytes.
    pub(crate) fn new(most: u32) -> Self {
        Self { size: most.min(FREE), most, sharers: 1 }
    }
}

impl Controller for Stream {
    #[inline]
    fn window(&self) -> u32 {
        self.size
    }

    #[inline]
    fn acked(&mut self, _now: Duration, acked: &Acked<'_>) {
        if acked.in_flight < self.size / 2 {
            return; // It was not the window that limited the sender.
        }
        let (smoothed, shortest) = (acked.rtt.smoothed(), acked.rtt.shortest());
        let waits = smoothed.unwrap_or_default().saturating_sub(shortest.unwrap_or_default());
        if waits < WAIT_MAX {
            self.size = self.size.saturating_add(acked.bytes).min(self.most);
        } else if waits > WAIT_MAX * 2 {
            self.size = self.size.saturating_sub(acked.bytes / SHRINK).max(self.most.min(FREE));
        }
    }

    fn lost(&mut self, _now: Duration, _rtt: Duration) {
        // The stream was full, or ended.
        self.size = self.most.min(FREE);
    }

    fn marked(&mut self, _now: Duration, _rtt: Duration) {}

    fn set_limits(&mut self, limits: Limits) {
        self.most = limits.max;
        self.size = self.size.clamp(self.most.min(FREE), self.most);
    }

    fn share(&mut self, paths: u32) {
        self.sharers = paths;
    }

    fn sharers(&self) -> u32 {
        self.sharers
    }

    fn restart(&mut self, _initial: u32) {
        self.size = self.most.min(FREE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtt::Rtt;

    const MS: Duration = Duration::from_millis(1);
    const MOST: u32 = 4 << 20;

    /// Acknowledges `bytes` of a full window, where a round trip takes at least 1 ms, and `rtt` now.
    fn acked(stream: &mut Stream, bytes: u32, rtt: Duration) {
        let mut all = Rtt::default();
        all.sample(MS, MS);
        (0..100).for_each(|_| all.sample(MS, rtt));
        let in_flight = stream.window();
        stream.acked(MS, &Acked { bytes, in_flight, rtt: &all });
    }

    #[test]
    fn it_grows_to_its_limit_while_nothing_waits_long() {
        let mut stream = Stream::new(MOST);
        assert_eq!(stream.window(), FREE);
        acked(&mut stream, 64 << 10, MS * 15);
        assert_eq!(stream.window(), FREE + (64 << 10));
        (0..100).for_each(|_| acked(&mut stream, 64 << 10, MS * 15));
        assert_eq!(stream.window(), MOST);
        (0..100).for_each(|_| acked(&mut stream, 64 << 10, MS * 30));
        assert_eq!(stream.window(), MOST, "neither");
    }

    #[test]
    fn before_a_slow_link_it_is_no_larger_than_what_is_of_no_harm() {
        let mut stream = Stream::new(MOST);
        (0..100).for_each(|_| acked(&mut stream, 64 << 10, MS * 840));
        assert_eq!(stream.window(), FREE);
        (0..100).for_each(|_| acked(&mut stream, 64 << 10, MS));
        assert_eq!(stream.window(), MOST);
        (0..10_000).for_each(|_| acked(&mut stream, 64 << 10, MS * 840));
        assert_eq!(stream.window(), FREE, "the link became slow");
    }

    #[test]
    fn a_sender_that_left_room_says_nothing_and_a_loss_means_that_the_stream_was_full() {
        let mut stream = Stream::new(MOST);
        let rtt = Rtt::default();
        stream.acked(MS, &Acked { bytes: 100, in_flight: FREE / 2 - 1, rtt: &rtt });
        assert_eq!(stream.window(), FREE);
        (0..100).for_each(|_| acked(&mut stream, 64 << 10, MS));
        stream.marked(MS, MS);
        assert_eq!(stream.window(), MOST, "TCP heeds marks itself");
        stream.lost(MS, MS);
        assert_eq!(stream.window(), FREE);
    }

    #[test]
    fn limits_bound_it() {
        let mut stream = Stream::new(100_000);
        assert_eq!(stream.window(), 100_000);
        stream.set_limits(Limits { sure: MOST, max: MOST });
        assert_eq!(stream.window(), FREE);
        stream.set_limits(Limits { sure: 5000, max: 5000 });
        assert_eq!(stream.window(), 5000);
        stream.restart(64);
        assert_eq!(stream.window(), 5000);
    }
}
