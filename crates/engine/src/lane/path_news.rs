//! What the path manager decides, told to the user: in `polypath status`, and in the log.

use std::time::Duration;

use polypath_ipc::status::FailoverStatus;
use polypath_paths::{PathEvent, PathId, PathManager, Reason};

use crate::clock;
use crate::lane::LaneIo;

/// Fail-overs kept for `polypath status`.
const MAX_FAILOVERS: usize = 64;

impl LaneIo {
    /// Remembers what the path manager reports.
    pub(super) fn note_path_event(&mut self, paths: &PathManager, event: &PathEvent) {
        match *event {
            PathEvent::ActiveChanged { from, to, reason, .. } => {
                self.note_move(paths, from, to, reason);
            }
            PathEvent::NoPath { .. } => {
                self.tell("no path to the peer lives; its queue pairs are held".to_owned());
            }
            PathEvent::PeerLost { .. } => {
                self.tell("no path to the peer came back within the hold time".to_owned());
            }
            PathEvent::Resumed { blackout, reason, .. } => self.note_resumed(blackout, reason),
            PathEvent::PathDead { path, reason } => {
                let text = format!("path {} is given up: {reason}", self.path_name(paths, path));
                self.note(text);
            }
            PathEvent::Detour { qpn, from, to } => {
                self.tell(format!(
                    "queue pair {qpn:#x} goes by {} instead of {}, which carries other packets but not \
                     its own: does that path take packets of the path MTU?",
                    self.path_name(paths, to),
                    self.path_name(paths, from)
                ));
            }
            PathEvent::PathAlive { path } => {
                let text = format!("path {} can be used", self.path_name(paths, path));
                self.note(text);
            }
            PathEvent::MultipathAgreed { .. }
            | PathEvent::WindowOpened { .. }
            | PathEvent::PathHeard { .. }
            | PathEvent::Overflow => {}
        }
    }

    /// `local>remote@ifindex` of a path, as far as it is still known.
    fn path_name(&self, paths: &PathManager, path: PathId) -> String {
        paths.path(path).map_or_else(
            || format!("#{} (its addresses are gone)", path.0),
            |a| format!("{}>{}@{}", a.local, a.remote, self.interface(a.ifindex)),
        )
    }

    fn note_move(&mut self, paths: &PathManager, from: Option<PathId>, to: PathId, reason: Reason) {
        let name = from.map(|path| self.path_name(paths, path));
        let to = self.path_name(paths, to);
        let from = name.unwrap_or_else(|| "no path".to_owned());
        // `polypath status` has it among the fail-overs.
        crate::log::line(&format!("traffic moves from {from} to {to}: {reason}"));
        if reason == Reason::Association {
            return;
        }
        if self.failovers.len() == MAX_FAILOVERS {
            self.failovers.pop_front();
        }
        self.failovers.push_back(FailoverStatus {
            at_unix_ms: clock::realtime_ns(self.now) / 1_000_000,
            from,
            to,
            reason: reason.to_string(),
            blackout_us: 0,
        });
    }

    fn note_resumed(&mut self, blackout: Duration, reason: Reason) {
        crate::log::line(&format!(
            "traffic flows again after {:.3} ms ({reason})",
            blackout.as_secs_f64() * 1e3
        ));
        if let Some(last) = self.failovers.back_mut()
            && last.blackout_us == 0
        {
            last.blackout_us = u64::try_from(blackout.as_micros()).unwrap_or(u64::MAX);
        }
    }
}
