//! Round-trip time of a path.

use core::time::Duration;

/// Smoothed round-trip time (RFC 6298, section 2). It is kept in nanoseconds, because every
/// acknowledgement is a sample and `Duration` would multiply and divide seconds and nanoseconds
/// separately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed: Option<u64>,
    variation: u64,
    /// The shortest round trip of this period and of the period before, nanoseconds.
    least: [Option<u64>; 2],
    period_from: Duration,
}

/// How long a round trip may take before one was measured.
const RTT_GUESS: Duration = Duration::from_millis(100);
/// If a round trip takes this much longer than twice the shortest one, packets wait in a queue.
const QUEUE_SLACK: Duration = Duration::from_millis(1);
/// The shortest round trip is forgotten after one to two of these periods, because the way may have
/// become longer.
const LEAST_PERIOD: Duration = Duration::from_secs(10);
/// A round trip counts as at most twice the shortest one and this much more. Queues of links are seldom
/// that long, so that a longer one shows a process that did not run. If it counted in full, the path's
/// silence would go unnoticed for many times as long.
const STALL: Duration = Duration::from_millis(250);
/// A sample above this is a stale timestamp, not a round trip.
const RTT_MAX: Duration = Duration::from_secs(4);

impl Rtt {
    pub(crate) fn sample(&mut self, now: Duration, rtt: Duration) {
        let rtt = rtt.min(RTT_MAX).as_nanos() as u64;
        if now.saturating_sub(self.period_from) >= LEAST_PERIOD {
            self.period_from = now;
            self.least = [None, self.least[0]];
        }
        self.least[0] = Some(self.least[0].map_or(rtt, |least| least.min(rtt)));
        let rtt = rtt.min(self.longest());
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

    /// Whether round trips take so much longer than the shortest one that packets must be waiting in a
    /// queue. More packets in flight would only wait longer, and make those of others wait.
    pub(crate) fn queues(&self) -> bool {
        let (Some(smoothed), Some(least)) = (self.smoothed, self.least()) else { return false };
        smoothed > least * 2 + QUEUE_SLACK.as_nanos() as u64
    }

    /// The shortest round trip of the last 10 to 20 seconds.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.least().map(Duration::from_nanos)
    }

    fn least(&self) -> Option<u64> {
        self.least.iter().flatten().copied().min()
    }

    /// The longest time, in nanoseconds, that counts as a round trip.
    fn longest(&self) -> u64 {
        self.least().map_or(u64::MAX, |least| least * 2 + STALL.as_nanos() as u64)
    }

    /// The longest that an answer should take.
    pub(crate) fn bound(&self) -> Duration {
        self.smoothed.map_or(RTT_GUESS, |smoothed| {
            Duration::from_nanos((smoothed + self.variation * 4).min(self.longest()))
        })
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
    fn a_peer_that_did_not_run_is_not_waited_for_as_long_from_then_on() {
        let mut rtt = Rtt::default();
        for _ in 0..10 {
            rtt.sample(MS, MS);
        }
        for _ in 0..100 {
            rtt.sample(MS, MS * 850);
        }
        assert_eq!(rtt.bound(), STALL + MS * 2);
        let mut long = Rtt::default();
        for _ in 0..10 {
            long.sample(MS, MS * 600);
        }
        assert!(long.bound() >= MS * 600, "a way that always takes that long is not cut short");
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
}
