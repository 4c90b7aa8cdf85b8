//! The timers of a requester: the local ACK timeout, the early tail-loss probe, the RNR wait.
//!
//! The application sets the ACK timeout and `retry_cnt` (IBTA 9.9.2), usually to seconds. The probe
//! is ours: after three round trips without progress, the first unacknowledged packet is sent again
//! and the path is suspected. This costs none of the application's retries. So loss is repaired
//! within round trips, and the ACK timeout only has to tell whether the peer is gone. It waits as
//! long for that as the IBTA allows ([`ACK_PATIENCE`]), and counts no time in which this process
//! itself did not run ([`Timers::is_late`]).

use super::on_path::PROBE_UNMEASURED;
use core::time::Duration;

use crate::frozen::{Reader, ThawError, Writer};
use polypath_types::QpAttr;

/// With a multi-path peer, retries are not exhausted before this time has passed without progress
/// on a living path: by then the path manager has found out whether the path lives.
const MULTIPATH_PATIENCE: Duration = Duration::from_secs(1);

/// A requester detects a timeout after the ACK timeout at the earliest and after four times as long
/// at the latest (IBTA 9.7.6.1.3). An adapter in software waits that long, because its peer may be
/// waiting for a processor.
const ACK_PATIENCE: u32 = 4;
/// When a deadline is looked at this much later than it was due, this process did not run.
const LATE: Duration = Duration::from_millis(4);

/// The time to wait after an RNR NAK, by its 5-bit code (IBTA table 45).
pub(crate) fn rnr_delay(code: u8) -> Duration {
    const HUNDREDTHS_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(HUNDREDTHS_MS[usize::from(code & 31)]) * 10)
}

/// The local ACK timeout, 4.096 µs × 2^`code`; `None` for code 0, which waits for ever (IBTA 9.9.2.1.1).
pub(crate) fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096u64 << (code & 31)))
}

/// How late the first probe may come, however long round trips are: in the middle of the time after which
/// a retry is used up. Where no retry is allowed, the path is suspected before the queue pair fails.
#[inline]
pub(super) fn probe_limit(timeout: u8) -> Duration {
    ack_timeout(timeout).map_or(Duration::MAX, |t| (t * (ACK_PATIENCE / 2)).max(PROBE_UNMEASURED))
}

/// Which timer has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    Nothing,
    /// The wait after an RNR NAK is over.
    Rnr,
    /// Send the first unacknowledged packet again.
    Probe,
    /// The ACK timeout has expired, and this many retries are left.
    Ack,
    /// The ACK timeout has expired, and no retry is left.
    Exhausted,
}

/// The requester's timers and retry counters.
#[derive(Clone, Debug)]
pub(crate) struct Timers {
    /// When the ACK timeout started to run.
    ack_from: Duration,
    /// When something last moved, while a path was living.
    stalled_from: Duration,
    /// When something was last acknowledged, or the first packet was sent, or the peer was not
    /// ready.
    progress_at: Duration,
    /// Whether the ACK timeout was prolonged once because this process did not run.
    prolonged: bool,
    retries_left: u8,
    /// The next implied NAK that counts as a retry is one after this time,
    implied_from: Duration,
    /// which is so long after the last one that counted.
    implied_wait: Duration,
    rnr_left: u8,
    rnr_until: Option<Duration>,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self {
            ack_from: Duration::ZERO,
            stalled_from: Duration::ZERO,
            progress_at: Duration::ZERO,
            prolonged: false,
            retries_left: 0,
            implied_from: Duration::ZERO,
            implied_wait: Duration::ZERO,
            rnr_left: 0,
            rnr_until: None,
        }
    }

    /// Writes how long it has waited, how many retries are left, and the rest of an RNR wait.
    pub(super) fn freeze(&self, now: Duration, out: &mut Writer) {
        for since in [self.ack_from, self.stalled_from, self.progress_at] {
            let waited = now.saturating_sub(since).as_nanos();
            out.u64(u64::try_from(waited).unwrap_or(u64::MAX));
        }
        out.raw(&[self.retries_left, self.rnr_left]);
        let wait = self.rnr_until.map(|until| until.saturating_sub(now));
        out.option(wait, |out, wait| out.u64(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)));
    }

    /// # Errors
    /// See [`ThawError`].
    pub(super) fn thaw(
        attr: &QpAttr,
        now: Duration,
        from: &mut Reader<'_>,
    ) -> Result<Self, ThawError> {
        let mut timers = Self::new();
        timers.restart(now, attr.retry_cnt, attr.rnr_retry);
        for since in [&mut timers.ack_from, &mut timers.stalled_from, &mut timers.progress_at] {
            *since = now.saturating_sub(Duration::from_nanos(from.u64()?));
        }
        timers.retries_left = from.u8()?.min(attr.retry_cnt);
        timers.rnr_left = from.u8()?.min(attr.rnr_retry);
        let wait = from.option(Reader::u64)?.map(Duration::from_nanos);
        // The longest wait that a peer can ask for is that of code 0.
        timers.rnr_until = wait.map(|wait| now + wait.min(rnr_delay(0)));
        Ok(timers)
    }

    /// Something was acknowledged, or the first packet was sent.
    #[inline]
    pub(crate) fn progress(&mut self, now: Duration, retry_cnt: u8, rnr_retry: u8) {
        self.restart(now, retry_cnt, rnr_retry);
        self.progress_at = now;
    }

    /// When there last was progress.
    pub(crate) fn progress_at(&self) -> Duration {
        self.progress_at
    }

    /// Restarts all timers and retries: there was progress, or the earlier trouble was not the
    /// peer's.
    #[inline]
    pub(crate) fn restart(&mut self, now: Duration, retry_cnt: u8, rnr_retry: u8) {
        self.ack_from = now;
        self.stalled_from = now;
        self.prolonged = false;
        self.retries_left = retry_cnt;
        self.implied_wait = Duration::ZERO;
        self.rnr_left = rnr_retry;
    }

    /// Notes that everything was sent again: the timers restart, the retry counters stay.
    pub(crate) fn resent(&mut self, now: Duration) {
        self.ack_from = now;
        self.prolonged = false;
    }

    /// Whether it waits after an RNR NAK.
    pub(crate) fn rnr_waiting(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Handles an RNR NAK. Returns false if no RNR retry is left; an `rnr_retry` of 7 never runs
    /// out (IBTA 9.7.5.2.8).
    ///
    /// The peer is alive, so packets lost before do not count against it. Otherwise a requester
    /// that waits for hours would fail because of the few packets that are lost in hours.
    pub(crate) fn rnr(&mut self, now: Duration, code: u8, retry_cnt: u8, rnr_retry: u8) -> bool {
        self.retries_left = retry_cnt;
        self.progress_at = now;
        self.stalled_from = now;
        if rnr_retry != 7 {
            if self.rnr_left == 0 {
                return false;
            }
            self.rnr_left -= 1;
        }
        self.rnr_until = Some(now + rnr_delay(code));
        true
    }

    /// Stops all waiting: reset or error.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// When [`Timers::expired`] will return something other than `Nothing`. `probe` is when a probe
    /// is due, which is always some time if something is in flight.
    #[inline]
    pub(crate) fn deadline(&self, probe: Option<Duration>, timeout: u8) -> Option<Duration> {
        if self.rnr_until.is_some() {
            return self.rnr_until;
        }
        let probe = probe?;
        match ack_timeout(timeout) {
            Some(t) => Some(probe.min(self.ack_from + t * ACK_PATIENCE)),
            None => Some(probe),
        }
    }

    /// Whether this process did not run when the next deadline was due. Then it heard nothing from
    /// that time on, which is no silence of the peer.
    fn is_late(&mut self, now: Duration, probe: Option<Duration>, timeout: u8) -> bool {
        let late =
            self.deadline(probe, timeout).map_or(Duration::ZERO, |due| now.saturating_sub(due));
        if late <= LATE {
            return false;
        }
        self.ack_from += late;
        self.stalled_from += late;
        self.progress_at += late;
        true
    }

    /// The peer has refused what came out of sequence, or answered what came later, and there was
    /// no progress: everything is sent again, which is a retry (IBTA 9.9.2.1). Returns false if
    /// none is left.
    pub(crate) fn replay(
        &mut self,
        now: Duration,
        timeout: u8,
        multipath: bool,
        probe: Option<Duration>,
    ) -> bool {
        self.is_late(now, probe, timeout);
        if self.retries_left > 0 {
            self.retries_left -= 1;
            return true;
        }
        self.has_multipath_patience(now, multipath)
    }

    /// The same for an answer of what came later (implied NAK, IBTA 9.7.5.1.1), where `round_trip` is
    /// that of the path. Each duplicate of the later request that was on its way has such an answer, so
    /// they count as one attempt. If queues have grown, they come for longer than a measured round trip:
    /// the next attempt is waited for twice as long.
    pub(crate) fn replay_implied(
        &mut self,
        now: Duration,
        timeout: u8,
        multipath: bool,
        probe: Option<Duration>,
        round_trip: Duration,
    ) -> bool {
        if self.implied_wait != Duration::ZERO && now < self.implied_from {
            return true;
        }
        self.implied_wait = (self.implied_wait * 2).max(round_trip);
        self.implied_from = now + self.implied_wait;
        self.replay(now, timeout, multipath, probe)
    }

    fn has_multipath_patience(&self, now: Duration, multipath: bool) -> bool {
        multipath && now < self.stalled_from + MULTIPATH_PATIENCE
    }

    /// Returns the timer that has expired, if any, and records that it has. `probe` is when a probe
    /// is due.
    pub(crate) fn expired(
        &mut self,
        now: Duration,
        probe: Option<Duration>,
        timeout: u8,
        multipath: bool,
    ) -> Expired {
        if let Some(until) = self.rnr_until {
            if now < until {
                return Expired::Nothing;
            }
            self.rnr_until = None;
            self.resent(now);
            self.stalled_from = now;
            return Expired::Rnr;
        }
        let Some(probe) = probe else { return Expired::Nothing };
        let late = self.is_late(now, Some(probe), timeout);
        if let Some(t) = ack_timeout(timeout)
            && now >= self.ack_from + t * ACK_PATIENCE
        {
            // The peer's answers of that time may not have been read yet. Only once per retry: a
            // process that always runs late must come to an end as well.
            if late && !core::mem::replace(&mut self.prolonged, true) {
                self.ack_from = now.saturating_sub(t * (ACK_PATIENCE - 1));
                return Expired::Probe;
            }
            self.resent(now);
            if self.retries_left > 0 {
                self.retries_left -= 1;
                return Expired::Ack;
            }
            if self.has_multipath_patience(now, multipath) {
                return Expired::Ack;
            }
            return Expired::Exhausted;
        }
        if now >= probe { Expired::Probe } else { Expired::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requester::on_path::{PROBE_MIN, ProbeTimer};

    const MS: Duration = Duration::from_millis(1);

    /// The timers of a requester with packets on one path.
    struct Clocks {
        timers: Timers,
        path: ProbeTimer,
    }

    impl Clocks {
        fn new(rtt: Option<Duration>, retry_cnt: u8, rnr_retry: u8) -> Self {
            let mut clocks = Self { timers: Timers::new(), path: ProbeTimer::default() };
            rtt.into_iter().for_each(|rtt| clocks.path.measured(rtt));
            clocks.restart(Duration::ZERO, retry_cnt, rnr_retry);
            clocks
        }

        fn restart(&mut self, now: Duration, retry_cnt: u8, rnr_retry: u8) {
            self.timers.restart(now, retry_cnt, rnr_retry);
            self.path.restart(now);
        }

        fn deadline(&self, timeout: u8) -> Option<Duration> {
            self.timers.deadline(Some(self.path.due(probe_limit(timeout))), timeout)
        }

        fn expired(&mut self, now: Duration, timeout: u8, multipath: bool) -> Expired {
            let expired = self.timers.expired(
                now,
                Some(self.path.due(probe_limit(timeout))),
                timeout,
                multipath,
            );
            match expired {
                Expired::Nothing => {}
                Expired::Probe => self.path.probed(now),
                _ => self.path.resent(now),
            }
            expired
        }

        fn replay(&mut self, now: Duration, timeout: u8, multipath: bool) -> bool {
            self.timers.replay(now, timeout, multipath, Some(self.path.due(probe_limit(timeout))))
        }
    }

    #[test]
    fn rnr_codes_are_those_of_table_45() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
    }

    #[test]
    fn ack_timeout_is_4_096_us_shifted_and_0_is_for_ever() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(4096 << 14)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }

    #[test]
    fn an_rnr_nak_is_a_sign_of_life_and_gives_all_retries_back() {
        let mut t = Clocks::new(None, 1, 7);
        let mut now = Duration::from_secs(1);
        t.restart(now, 1, 7);
        for _ in 0..5 {
            // Timeout 1 is 8.192 us: before any probe.
            now += Duration::from_micros(33);
            assert_eq!(t.expired(now, 1, false), Expired::Ack);
            assert!(t.timers.rnr(now, 1, 1, 7));
            now += Duration::from_micros(10);
            assert_eq!(t.expired(now, 1, false), Expired::Rnr);
        }
    }

    #[test]
    fn probes_come_before_the_timeout_and_cost_no_retry() {
        let mut t = Clocks::new(Some(MS / 10), 1, 7);
        assert_eq!(t.deadline(14), Some(PROBE_MIN));
        assert_eq!(t.expired(PROBE_MIN, 14, false), Expired::Probe);
        assert_eq!(t.deadline(14), Some(PROBE_MIN * 3)); // Backed off.
        let (first, at) = next_but_probes(&mut t, 14, false);
        assert_eq!((first, at.as_millis()), (Expired::Ack, 268));
        let (second, at) = next_but_probes(&mut t, 14, false);
        assert_eq!((second, at.as_millis()), (Expired::Exhausted, 536));
    }

    /// Handles deadlines in time. Returns the first that is not a probe, and when it is due.
    fn next_but_probes(t: &mut Clocks, timeout: u8, multipath: bool) -> (Expired, Duration) {
        loop {
            let at = t.deadline(timeout).unwrap();
            match t.expired(at, timeout, multipath) {
                Expired::Probe => {}
                other => return (other, at),
            }
        }
    }

    /// IBTA 9.7.6.1.3: between T and 4 T. perftest's timeout 14 and 7 retries last for more than a
    /// second in which a peer's process may not be scheduled.
    #[test]
    fn a_peer_may_be_silent_for_four_times_the_timeout_and_each_retry() {
        for timeout in [10, 14, 17] {
            let mut t = Clocks::new(Some(MS / 10), 7, 7);
            let tr = ack_timeout(timeout).unwrap();
            for retry in 1..=7 {
                let (expired, at) = next_but_probes(&mut t, timeout, false);
                assert_eq!((expired, at), (Expired::Ack, tr * 4 * retry));
            }
            assert_eq!(next_but_probes(&mut t, timeout, false), (Expired::Exhausted, tr * 32));
        }
    }

    #[test]
    fn time_in_which_the_own_process_did_not_run_is_no_silence_of_the_peer() {
        let mut t = Clocks::new(None, 0, 7);
        // A stop for ten seconds when the only retry is all but over.
        let stop = 260 * MS;
        while t.deadline(14).unwrap() < stop {
            let at = t.deadline(14).unwrap();
            assert_eq!(t.expired(at, 14, false), Expired::Probe);
        }
        let due = t.deadline(14).unwrap();
        let now = Duration::from_secs(10);
        assert_eq!(t.expired(now, 14, false), Expired::Probe, "asked once more");
        let (expired, at) = next_but_probes(&mut t, 14, false);
        assert_eq!(expired, Expired::Exhausted);
        assert!(at >= now + ack_timeout(14).unwrap() && at < now + Duration::from_secs(1));
        assert!(due < now);
    }

    /// What waited to be read is read before any timer is looked at.
    #[test]
    fn nor_is_it_before_a_complaint_that_waited_to_be_read() {
        let mut t = Clocks::new(None, 0, 7);
        assert!(t.replay(2 * MULTIPATH_PATIENCE, 14, true));
        assert!(!t.replay(2 * MULTIPATH_PATIENCE, 14, false), "a plain peer's retries are counted");
        let mut t = Clocks::new(None, 0, 7);
        let mut at = Duration::ZERO;
        while at < MULTIPATH_PATIENCE {
            at = t.deadline(14).unwrap();
            t.expired(at, 14, true);
        }
        assert!(!t.replay(at, 14, true), "the peer is heard and does not go on");
    }

    #[test]
    fn a_process_that_always_runs_late_gives_up_as_well() {
        for late in [5, 50, 500] {
            let mut t = Clocks::new(None, 7, 7);
            let mut rounds = 0;
            loop {
                let at = t.deadline(14).unwrap() + MS * late;
                if t.expired(at, 14, false) == Expired::Exhausted {
                    break;
                }
                rounds += 1;
                assert!(rounds < 100, "{late} ms");
            }
        }
    }

    #[test]
    fn a_multipath_peer_gets_time_for_the_paths_to_be_judged() {
        let mut t = Clocks::new(None, 0, 0);
        let mut at = Duration::ZERO;
        while at < MULTIPATH_PATIENCE {
            let (expired, now) = next_but_probes(&mut t, 8, true);
            let ends = now >= MULTIPATH_PATIENCE;
            assert_eq!(expired, if ends { Expired::Exhausted } else { Expired::Ack });
            at = now;
        }
    }

    /// This holds also if the RNR NAK has waited while this process did not run.
    #[test]
    fn a_multipath_peer_that_was_not_ready_gets_that_time_anew() {
        let mut t = Clocks::new(None, 0, 7);
        let read_at = 2 * MULTIPATH_PATIENCE;
        assert!(t.timers.rnr(read_at, 0, 0, 7));
        assert!(t.replay(read_at, 8, true));
        let over = read_at + rnr_delay(0);
        assert_eq!(t.expired(over, 8, true), Expired::Rnr);
        let mut at = over;
        while at < over + MULTIPATH_PATIENCE {
            let (expired, now) = next_but_probes(&mut t, 8, true);
            let ends = now >= over + MULTIPATH_PATIENCE;
            assert_eq!(expired, if ends { Expired::Exhausted } else { Expired::Ack });
            at = now;
        }
    }

    #[test]
    fn rnr_retries_are_counted_unless_there_are_seven() {
        let mut t = Clocks::new(None, 0, 1);
        assert!(t.timers.rnr(Duration::ZERO, 1, 7, 1));
        assert!(!t.timers.rnr(Duration::ZERO, 1, 7, 1));
        for _ in 0..100 {
            assert!(t.timers.rnr(Duration::ZERO, 1, 7, 7));
        }
        assert_eq!(t.timers.deadline(None, 14), Some(Duration::from_micros(10)));
    }

    #[test]
    fn nothing_in_flight_needs_no_timer() {
        let mut t = Clocks::new(None, 0, 0);
        assert_eq!(t.timers.deadline(None, 14), None);
        assert_eq!(t.timers.expired(Duration::from_secs(9), None, 14, false), Expired::Nothing);
    }
}
