//! What a queue pair knows about each path that it has packets on.
//!
//! Packets of one path arrive in the order in which they were sent, or nearly so, and take about
//! the same time. Neither holds between paths: a packet sent now by a short path overtakes one sent
//! before by a long path. So the order of sending, the round trip and the tail-loss probe are kept
//! for each path separately. Only the ACK timeout and the retries belong to the queue pair as a
//! whole ([`Timers`](super::timers::Timers)).

use core::time::Duration;
use std::collections::VecDeque;

use smallvec::SmallVec;

use polypath_types::PathId;

/// The number of packets that must overtake one on a path before it is taken to be lost: at first
/// (RFC 5681: three), and at most, on a path that proves to reorder more.
pub(super) const REORDERING_MIN: u32 = 3;
const REORDERING_MAX: u32 = 64;

/// A probe never comes earlier than this after progress, because the peer's thread may just not
/// have run.
pub(super) const PROBE_MIN: Duration = Duration::from_micros(1500);
/// The delay of the first probe when no round trip was measured yet.
pub(super) const PROBE_UNMEASURED: Duration = Duration::from_millis(20);
/// While another path answers, the next probe comes one round trip after the last one, and never earlier
/// than this.
const PROBE_COMPARED: Duration = Duration::from_millis(3);
/// The longest delay of a probe.
const PROBE_MAX: Duration = Duration::from_millis(200);

/// For this long, a complaint is taken to be about the first transmission, if no round trip was
/// measured.
pub(super) const GUARD_UNMEASURED_US: u32 = 1000;

/// After so many probes in a row the next one comes late.
const PROBES_OFTEN: u32 = 3;

/// When there are more paths than this, those that no packet was last sent by are forgotten.
const PATHS_KEPT: usize = 16;

/// A tail-loss probe on its way: a packet that was sent again to learn what became of it and of the
/// rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// The packet that is sent again.
    pub(super) seq: u64,
    /// One past the last packet of the answer that it asks for: a READ is answered by several.
    pub(super) answer_to: u64,
    /// One past the last packet that had been sent when the probe was.
    pub(super) upto: u64,
    /// When it was sent, in microseconds, wrapping.
    pub(super) sent_us: u32,
    /// The path that it went by; `None` if it has not been sent yet.
    pub(super) by: Option<PathId>,
}

/// When to ask what became of the packets on a path: after three of its round trips without
/// progress, then more and more rarely.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProbeTimer {
    /// When something last moved.
    from: Duration,
    probes: u32,
    /// Smoothed round-trip time.
    srtt: Option<Duration>,
    /// The next probe comes at this time at the latest.
    latest: Option<Duration>,
}

impl ProbeTimer {
    /// When the next probe is due. The first one comes at most `limit` after progress.
    #[inline]
    pub(super) fn due(&self, limit: Duration) -> Duration {
        let first = self.srtt.map_or(PROBE_UNMEASURED, |rtt| (rtt * 3).max(PROBE_MIN)).min(limit);
        let wait = match self.probes {
            0 => first,
            n => (first * (1 << n.min(6))).min(PROBE_MAX.max(first)),
        };
        let due = self.from + wait;
        self.latest.map_or(due, |latest| latest.min(due))
    }

    /// Restarts because something has moved.
    #[inline]
    pub(super) fn restart(&mut self, now: Duration) {
        self.from = now;
        self.probes = 0;
        self.latest = None;
    }

    /// Restarts because everything was sent again.
    pub(super) fn resent(&mut self, now: Duration) {
        self.from = now;
    }

    /// Restarts if probes have become rare.
    pub(super) fn hurry(&mut self, now: Duration) {
        if self.probes >= PROBES_OFTEN {
            self.restart(now);
        }
    }

    /// Another path has answered, and this one has not: asks again soon.
    pub(super) fn compare(&mut self, now: Duration) {
        let wait = self.srtt.map_or(PROBE_COMPARED, |rtt| rtt.max(PROBE_COMPARED));
        self.latest = Some(now.max(self.from + wait));
    }

    /// Notes that a probe is sent.
    pub(super) fn probed(&mut self, now: Duration) {
        self.from = now;
        self.probes += 1;
        self.latest = None;
    }

    /// A round trip took `rtt`.
    #[inline]
    pub(super) fn measured(&mut self, rtt: Duration) {
        // Computed in one integer, because `Duration` multiplies and divides in parts.
        let nanos = |time: Duration| time.as_nanos() as u64;
        self.srtt = Some(match self.srtt {
            Some(srtt) => Duration::from_nanos((nanos(srtt) * 7 + nanos(rtt)) / 8),
            None => rtt,
        });
    }
}

/// Packets with consecutive sequence numbers that were sent one after the other by the same path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) seq: u64,
    /// The place of the first one in the order of sending.
    pub(super) order: u32,
    pub(super) len: u32,
}

impl Run {
    /// Removes the first `n`.
    pub(super) fn skip(&mut self, n: u64) {
        let n = n.min(u64::from(self.len)) as u32;
        self.seq += u64::from(n);
        self.order = self.order.wrapping_add(n);
        self.len -= n;
    }
}

/// What is known about one path.
#[derive(Clone, Debug)]
pub(super) struct OnPath {
    pub(super) path: PathId,
    /// The place of the next packet in the order of sending.
    pub(super) order: u32,
    /// The latest place that is known to have arrived; before any arrival, the place before the
    /// first.
    pub(super) newest: u32,
    /// A packet of a multi-path peer is taken to be lost when this many sent after it have arrived.
    pub(super) reordering: u32,
    /// The number of packets that are on their way.
    pub(super) charged: u32,
    /// The number of them whose arrival is acknowledged at once. (The answer to a READ waits until
    /// everything sent before it, by any path, has been executed.)
    pub(super) prompt: u32,
    /// Whether something has arrived since this was last looked at.
    pub(super) moved: bool,
    /// What was sent, in that order. A packet of it counts only while its slot has the same place.
    pub(super) sent: VecDeque<Run>,
    pub(super) timer: ProbeTimer,
    pub(super) probe: Option<Probe>,
}

impl OnPath {
    fn new(path: PathId) -> Self {
        Self {
            path,
            order: 0,
            newest: u32::MAX,
            reordering: REORDERING_MIN,
            charged: 0,
            prompt: 0,
            moved: false,
            sent: VecDeque::new(),
            timer: ProbeTimer::default(),
            probe: None,
        }
    }

    /// The packet `seq` is sent; `is_prompt` says whether an acknowledgement is enough for it.
    /// Returns its place in the order of sending.
    #[inline]
    pub(super) fn push(&mut self, seq: u64, is_prompt: bool) -> u32 {
        let order = self.order;
        self.order = order.wrapping_add(1);
        self.charged += 1;
        self.prompt += u32::from(is_prompt);
        match self.sent.back_mut() {
            Some(run) if run.seq + u64::from(run.len) == seq && run.len < u32::MAX / 2 => {
                run.len += 1;
            }
            _ => self.sent.push_back(Run { seq, order, len: 1 }),
        }
        order
    }

    /// Notes that a packet is not on its way any more.
    #[inline]
    pub(super) fn uncharge(&mut self, is_prompt: bool) {
        self.charged -= 1;
        self.prompt -= u32::from(is_prompt);
    }

    /// Notes that the packet sent at this place has arrived.
    #[inline]
    pub(super) fn arrived(&mut self, order: u32) {
        self.moved = true;
        if order.wrapping_sub(self.newest) as i32 > 0 {
            self.newest = order;
        }
    }

    /// Notes that a packet that was sent again had been late (`true`) or really lost.
    pub(super) fn was_late(&mut self, late: bool) {
        self.reordering = if late {
            (self.reordering + 1).min(REORDERING_MAX)
        } else {
            (self.reordering - 1).max(REORDERING_MIN)
        };
    }

    /// Whether `threshold` packets that were sent after the one at this place have arrived.
    #[inline]
    pub(super) fn has_overtaken(&self, order: u32, threshold: u32) -> bool {
        self.newest.wrapping_sub(order) as i32 >= threshold as i32
    }

    /// For how many microseconds after a packet was sent again a complaint may still be about the
    /// first transmission.
    pub(super) fn guard_us(&self) -> u32 {
        self.rtt_us().map_or(GUARD_UNMEASURED_US, |rtt| rtt.max(50))
    }

    /// The smoothed round trip in microseconds, if one was measured.
    pub(super) fn rtt_us(&self) -> Option<u32> {
        self.timer.srtt.map(|rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX))
    }
}

/// The paths that a queue pair has, or lately had, packets on.
#[derive(Clone, Debug, Default)]
pub(super) struct OnPaths {
    /// Nearly always one.
    list: SmallVec<[OnPath; 1]>,
}

impl OnPaths {
    #[inline]
    pub(super) fn get(&self, path: PathId) -> Option<&OnPath> {
        self.list.iter().find(|on| on.path == path)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, path: PathId) -> Option<&mut OnPath> {
        self.list.iter_mut().find(|on| on.path == path)
    }

    /// The entry of a path; a new one if there is none.
    #[inline]
    pub(super) fn on(&mut self, path: PathId) -> &mut OnPath {
        let at = match self.list.iter().position(|on| on.path == path) {
            Some(at) => at,
            None => self.add(path),
        };
        &mut self.list[at]
    }

    #[cold]
    fn add(&mut self, path: PathId) -> usize {
        self.list.push(OnPath::new(path));
        self.list.len() - 1
    }

    /// The entry of the path, if there is only one.
    #[inline]
    pub(super) fn sole(&self) -> Option<&OnPath> {
        let [on] = &self.list[..] else { return None };
        Some(on)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &OnPath> {
        self.list.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut OnPath> {
        self.list.iter_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn at(&mut self, at: usize) -> &mut OnPath {
        &mut self.list[at]
    }

    /// Whether there are so many that those which nothing refers to should be forgotten.
    pub(super) fn are_many(&self) -> bool {
        self.list.len() > PATHS_KEPT
    }

    /// Forgets the paths for which `is_used` is false.
    pub(super) fn retain(&mut self, is_used: impl Fn(PathId) -> bool) {
        self.list.retain(|on| is_used(on.path));
    }

    /// Sets the round trip of a path, as other queue pairs have measured it.
    pub(super) fn set_rtt(&mut self, path: PathId, rtt: Option<Duration>, now: Duration) {
        self.meet(path, now);
        self.on(path).timer.srtt = rtt;
    }

    /// Adds the path if it is new; then waiting on it begins now.
    #[inline]
    pub(super) fn meet(&mut self, path: PathId, now: Duration) {
        if self.get(path).is_none() {
            self.on(path).timer.restart(now);
        }
    }

    /// Sets the round trip of a path, if this queue pair has not measured one itself.
    #[inline]
    pub(super) fn suggest_rtt(&mut self, path: PathId, rtt: Option<Duration>) {
        let timer = &mut self.on(path).timer;
        timer.srtt = timer.srtt.or(rtt);
    }

    /// Restarts the probe timers of all paths.
    #[inline]
    pub(super) fn restart(&mut self, now: Duration) {
        for on in &mut self.list {
            on.timer.restart(now);
            on.moved = false;
        }
    }

    /// Has probes follow soon after each other again.
    pub(super) fn hurry(&mut self, now: Duration) {
        self.list.iter_mut().for_each(|on| on.timer.hurry(now));
    }

    /// See [`ProbeTimer::compare`].
    pub(super) fn compare(&mut self, now: Duration) {
        self.list.iter_mut().for_each(|on| on.timer.compare(now));
    }

    /// Notes that everything was sent again.
    pub(super) fn resent(&mut self, now: Duration) {
        self.list.iter_mut().for_each(|on| on.timer.resent(now));
    }

    /// Restarts the probe timers of paths on which something has moved, except `oldest`: the packet
    /// missing there holds up all later ones.
    pub(super) fn restart_moved(&mut self, now: Duration, oldest: Option<PathId>) {
        for on in &mut self.list {
            if core::mem::take(&mut on.moved) && Some(on.path) != oldest {
                on.timer.restart(now);
            }
        }
    }

    pub(super) fn has_probe(&self) -> bool {
        self.list.iter().any(|on| on.probe.is_some())
    }

    pub(super) fn drop_probes(&mut self) {
        self.list.iter_mut().for_each(|on| on.probe = None);
    }

    /// The packet `seq` was sent again by `path`: if it is a probe, it is now on its way.
    #[inline]
    pub(super) fn probe_sent(&mut self, seq: u64, path: PathId) {
        for probe in self.list.iter_mut().filter_map(|on| on.probe.as_mut()) {
            if probe.seq == seq && probe.by.is_none() {
                probe.by = Some(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn probes_come_after_three_round_trips_of_their_path_and_then_more_and_more_rarely() {
        let mut timer = ProbeTimer::default();
        timer.restart(MS);
        assert_eq!(timer.due(Duration::MAX), MS + PROBE_UNMEASURED);
        timer.measured(MS * 10);
        assert_eq!(timer.due(Duration::MAX), MS * 31);
        timer.probed(MS * 31);
        assert_eq!(timer.due(Duration::MAX), MS * 31 + MS * 60);
        (0..20).for_each(|_| timer.probed(MS * 31));
        assert_eq!(timer.due(Duration::MAX), MS * 31 + PROBE_MAX);
        timer.restart(MS * 40);
        assert_eq!(timer.due(Duration::MAX), MS * 70);
        let mut quick = ProbeTimer::default();
        quick.measured(MS / 100);
        assert_eq!(quick.due(Duration::MAX), PROBE_MIN);
        let mut stalled = ProbeTimer::default();
        stalled.measured(MS * 850);
        assert_eq!(stalled.due(MS * 300), MS * 300);
    }

    #[test]
    fn packets_that_follow_each_other_are_one_run() {
        let mut on = OnPath::new(PathId(1));
        for seq in [10, 11, 12, 20, 21, 11] {
            on.push(seq, true);
        }
        let runs: Vec<_> = on.sent.iter().map(|run| (run.seq, run.order, run.len)).collect();
        assert_eq!(runs, [(10, 0, 3), (20, 3, 2), (11, 5, 1)]);
        let mut run = on.sent[0];
        run.skip(2);
        assert_eq!((run.seq, run.order, run.len), (12, 2, 1));
        run.skip(9);
        assert_eq!(run.len, 0);
    }

    #[test]
    fn nothing_was_overtaken_before_anything_has_arrived() {
        let mut on = OnPath::new(PathId(1));
        for seq in 0..8 {
            on.push(seq, true);
        }
        assert!(!on.has_overtaken(0, 1));
        on.arrived(3);
        on.arrived(2);
        assert!(on.has_overtaken(0, 3) && !on.has_overtaken(1, 3));
    }
}
