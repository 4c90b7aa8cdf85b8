//! Checks of what must hold between two calls.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use polypath_types::{MigState, PathId, QpState};

use crate::lane::Lane;

impl<Q> Lane<Q> {
    /// Checks that flags and lists agree, that queue pairs and paths are consistent, and that each
    /// path is charged with what queue pairs have in flight on it. It looks at everything, so it is
    /// meant for tests and simulation.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), String> {
        self.check_lists()?;
        let mut charges: BTreeMap<u32, u64> = BTreeMap::new();
        for (index, entry) in self.qps.iter() {
            let qpn = self.qps.number(index);
            entry.qp.check().map_err(|what| format!("queue pair {qpn:#x}: {what}"))?;
            for (path, bytes) in entry.qp.charges() {
                *charges.entry(path.0).or_default() += u64::from(bytes);
            }
        }
        let paths = &self.shared.paths;
        if !paths.has_events() {
            self.check_armed()?;
        }
        paths.check().map_err(|what| format!("path manager: {what}"))?;
        for PathId(path) in paths.path_ids() {
            let by_qps = charges.get(&path).copied().unwrap_or(0);
            let charged = by_qps + u64::from(paths.sent_twice_on(PathId(path)));
            let in_flight = paths.in_flight(PathId(path)).map_or(0, u64::from);
            if charged != in_flight {
                return Err(format!(
                    "path {path}: {in_flight} bytes are charged, {charged} are in flight"
                ));
            }
        }
        Ok(())
    }

    /// Queue pairs of multi-path peers are ARMED exactly while there is another path.
    fn check_armed(&self) -> Result<(), String> {
        let paths = &self.shared.paths;
        for (index, entry) in self.qps.iter() {
            let qpn = self.qps.number(index);
            let sends = matches!(entry.qp.state(), QpState::Rts | QpState::Sqd);
            if !sends || !entry.qp.watches_set() || !paths.is_agreed(qpn) {
                continue;
            }
            let (two, state) = (paths.two_paths(qpn), entry.qp.migration().state);
            let armed = two.is_some_and(|two| two.other.is_some());
            let known = two.is_none_or(|two| Some(two.active) == entry.qp.active_path());
            if armed != (state == MigState::Armed) || !known {
                let active = entry.qp.active_path();
                return Err(format!("queue pair {qpn:#x} is {state:?} on {active:?}: {two:?}"));
            }
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        for (index, entry) in self.qps.iter() {
            let qpn = self.qps.number(index);
            let in_ready = self.ready.iter().filter(|&&other| other == index).count();
            for (name, flag, times) in [
                ("queued", entry.queued, in_ready),
                ("owes_ack", entry.owes_ack, times_in(&self.acks, index)),
                ("stale", entry.stale, times_in(&self.stale, index)),
                ("waits", entry.waits, self.blocked.times(index)),
            ] {
                if times != usize::from(flag) {
                    return Err(format!(
                        "queue pair {qpn:#x}: {name} is {flag}, {times} in its list"
                    ));
                }
            }
            if entry.blocked && entry.queued {
                return Err(format!("queue pair {qpn:#x} is blocked, and has its turn"));
            }
            if entry.blocked && !entry.waits {
                return Err(format!("queue pair {qpn:#x} is blocked, and nobody will wake it"));
            }
            if entry.qp.wants_transmit() && !entry.blocked && !entry.queued {
                return Err(format!("queue pair {qpn:#x} wants to send and is not in the queue"));
            }
            if let Some(at) = entry.timer
                && !self.timers.iter().any(|Reverse(timer)| *timer == (at, index))
            {
                return Err(format!("queue pair {qpn:#x} has no timer for its deadline"));
            }
            let deadline = entry.qp.next_deadline();
            if !entry.stale && deadline.is_some_and(|at| entry.timer.is_none_or(|t| t > at)) {
                return Err(format!(
                    "queue pair {qpn:#x} has a deadline at {deadline:?}, its timer is {:?}",
                    entry.timer
                ));
            }
        }
        Ok(())
    }
}

fn times_in(list: &[u16], index: u16) -> usize {
    list.iter().filter(|&&other| other == index).count()
}
