//! Which path to probe next, and what was learnt from probes.

use core::time::Duration;

use super::{DONE, Flight, SACKED};
use crate::requester::on_path::{OnPath, Probe};
use polypath_types::PathId;

impl Flight {
    /// Packets are about to be sent by a path; other queue pairs have measured its round trip as
    /// `rtt`.
    #[inline]
    pub(in crate::requester) fn begin_on(
        &mut self,
        path: PathId,
        rtt: Option<Duration>,
        now: Duration,
    ) {
        if self.paths.are_many() {
            self.forget_paths();
        }
        let awaited = self.paths.get(path).is_some_and(|on| self.is_awaited(on));
        let waits = self.waits();
        self.paths.suggest_rtt(path, rtt);
        // The wait for this path begins with its first packet. If nothing is on its way, that may be one
        // which is asked for again and again, and more and more rarely.
        if !awaited {
            let timer = &mut self.paths.on(path).timer;
            if waits { timer.restart(now) } else { timer.resent(now) }
        }
    }

    #[cold]
    fn forget_paths(&mut self) {
        let used = &self.slots;
        self.paths.retain(|path| used.iter().any(|slot| slot.path == path));
    }

    /// The path whose probe is due next, and when. `None` if nothing is waited for. For `limit` see
    /// [`ProbeTimer`](super::super::on_path::ProbeTimer).
    #[inline]
    pub(in crate::requester) fn probe_due(&self, limit: Duration) -> Option<(PathId, Duration)> {
        if !self.waits() {
            return None;
        }
        // Everything in flight is on this path.
        if let Some(on) = self.paths.sole() {
            return Some((on.path, on.timer.due(limit)));
        }
        let awaited = self.paths.iter().filter(|on| self.is_awaited(on));
        let due = awaited.map(|on| (on.path, on.timer.due(limit)));
        due.min_by_key(|(_, at)| *at)
    }

    /// Whether the probe timer of a path runs.
    #[inline]
    fn is_awaited(&self, on: &OnPath) -> bool {
        // A packet that holds up all later ones is waited for even if it is to be sent again first.
        on.prompt > 0 || self.slots.front().is_some_and(|slot| slot.path == on.path)
    }

    /// When the packet that holds up all others would have been asked for, whether or not it has
    /// been marked to be sent again by now.
    pub(in crate::requester) fn oldest_due(&self, limit: Duration) -> Option<Duration> {
        let oldest = self.slots.front()?.path;
        Some(self.paths.get(oldest)?.timer.due(limit))
    }

    /// Takes a probe whose outcome is known: its packet has arrived.
    pub(in crate::requester) fn take_answered_probe(&mut self) -> Option<(PathId, Probe)> {
        let (una, slots) = (self.una, &self.slots);
        let has_arrived = |probe: &Probe| {
            let slot = || slots.get((probe.seq - una) as usize);
            probe.seq < una || (probe.seq > una && slot().is_some_and(|s| s.is(DONE | SACKED)))
        };
        let mut paths = self.paths.iter_mut();
        let on = paths.find(|on| on.probe.as_ref().is_some_and(has_arrived))?;
        Some((on.path, on.probe.take()?))
    }
}
