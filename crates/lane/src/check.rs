//! What holds between calls.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use polypath_types::PathId;

use crate::lane::Lane;

impl<Q> Lane<Q> {
    /// Whether flags and lists agree, queue pairs and paths are as they must be, and each path is
    /// charged what queue pairs have in flight on it. It looks at everything: for tests and simulation.
    ///
    /// # Errors
    /// What does not hold.
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
        paths.check().map_err(|what| format!("path manager: {what}"))?;
        for PathId(path) in paths.path_ids() {
            let charged = charges.get(&path).copied().unwrap_or(0);
            let in_flight = paths.in_flight(PathId(path)).map_or(0, u64::from);
            if charged != in_flight {
                return Err(format!(
                    "path {path}: {in_flight} bytes count, {charged} are in flight"
                ));
            }
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        let count = |list: &mut dyn Iterator<Item = u16>| {
            let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
            list.for_each(|index| *counts.entry(index).or_default() += 1);
            counts
        };
        let ready = count(&mut self.ready.iter().copied());
        let blocked = count(&mut self.blocked.iter().copied());
        let acks = count(&mut self.acks.iter().copied());
        let stale = count(&mut self.stale.iter().copied());
        let timers: BTreeSet<(Duration, u16)> =
            self.timers.iter().map(|Reverse(timer)| *timer).collect();
        for (index, entry) in self.qps.iter() {
            let qpn = self.qps.number(index);
            for (name, flag, list) in [
                ("queued", entry.queued, &ready),
                ("owes_ack", entry.owes_ack, &acks),
                ("stale", entry.stale, &stale),
            ] {
                let times = list.get(&index).copied().unwrap_or(0);
                if times != usize::from(flag) {
                    return Err(format!(
                        "queue pair {qpn:#x}: {name} is {flag}, {times} in its list"
                    ));
                }
            }
            if entry.blocked && !blocked.contains_key(&index) {
                return Err(format!("queue pair {qpn:#x} is blocked, and nobody will wake it"));
            }
            if let Some(at) = entry.timer
                && !timers.contains(&(at, index))
            {
                return Err(format!("queue pair {qpn:#x} has no timer for its deadline"));
            }
            let wants = entry.qp.wants_transmit() && !entry.blocked && !entry.queued;
            let deadline = entry.qp.next_deadline();
            if wants {
                return Err(format!("queue pair {qpn:#x} wants to send and is not in the queue"));
            }
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
