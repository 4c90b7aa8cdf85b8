//! What the path manager decides, carried out: queue pairs move, the user is told.

use std::collections::HashSet;
use std::time::Duration;

use polypath_ipc::status::FailoverStatus;
use polypath_paths::{PathEvent, PathId, PeerId, Reason};
use polypath_transport::QueuePair;

use crate::clock;
use crate::lane::table::QpTable;
use crate::lane::{LaneHost, State};

/// Fail-overs kept for `polypath status`.
const MAX_FAILOVERS: usize = 64;

impl State {
    pub(super) fn path_events(&mut self) {
        while let Some(event) = self.io.paths.poll_event() {
            match event {
                PathEvent::MultipathAgreed { qpn, reach } => {
                    if let Some(entry) = self.qps.by_qpn(qpn) {
                        entry.core.set_multipath(true);
                        entry.core.set_peer_reach(reach);
                    }
                }
                PathEvent::ActiveChanged { peer, from, to, reason } => {
                    let still_alive = matches!(reason, Reason::Primary | Reason::Association);
                    self.note_move(from, to, reason);
                    let dead = from.filter(|_| !still_alive);
                    self.path_changed(peer, dead);
                }
                PathEvent::NoPath { peer } => {
                    self.io
                        .explain("no path to the peer lives; its queue pairs are held".to_owned());
                    self.path_changed(peer, None);
                }
                PathEvent::PeerLost { peer } => {
                    self.io
                        .explain("no path to the peer came back within the hold time".to_owned());
                    self.path_changed(peer, None);
                }
                PathEvent::WindowOpened { .. } => self.io.window_opened = true,
                PathEvent::Resumed { blackout, reason, .. } => self.note_resumed(blackout, reason),
                PathEvent::PathDead { path, reason } => {
                    let text = format!("path {} is given up: {reason}", self.path_name(path));
                    self.io.note(text);
                    // It need not be the active one to have something outstanding.
                    for qpn in self.io.paths.qpns_on(path) {
                        self.tell(qpn, |core, host| core.on_path_dead(host.io.now, path, host));
                    }
                }
                PathEvent::Detour { qpn, from, to } => {
                    self.io.explain(format!(
                        "queue pair {qpn:#x} goes by {} instead of {}, which carries other packets but not \
                         its own: does that path take packets of the path MTU?",
                        self.path_name(to),
                        self.path_name(from)
                    ));
                    self.tell(qpn, |core, host| core.on_path_change(host.io.now, Some(from), host));
                }
                PathEvent::PathHeard { path } => {
                    for qpn in self.io.paths.qpns_on(path) {
                        self.tell(qpn, |core, host| core.on_path_heard(host.io.now, path, host));
                    }
                }
                PathEvent::PathAlive { path } => {
                    let text = format!("path {} can be used", self.path_name(path));
                    self.io.note(text);
                }
                PathEvent::Overflow => self.events_lost(),
            }
        }
    }

    /// Reports of the path manager were lost: everything is looked at anew.
    fn events_lost(&mut self) {
        let alive: HashSet<u32> = self.io.paths.alive().map(|path| path.0).collect();
        let qpns: Vec<u32> = self.io.paths.qpns().collect();
        for qpn in qpns {
            let agreed = self.io.paths.is_agreed(qpn);
            self.tell(qpn, |core, host| {
                if agreed {
                    core.set_multipath(true);
                }
                core.on_paths_unknown(host.io.now, |path| !alive.contains(&path.0), host);
            });
        }
        self.io.window_opened = true;
    }

    fn path_changed(&mut self, peer: PeerId, dead: Option<PathId>) {
        let qpns: Vec<u32> = self.io.paths.qpns_of(peer).collect();
        for qpn in qpns {
            self.tell(qpn, |core, host| core.on_path_change(host.io.now, dead, host));
        }
    }

    /// Tells a queue pair of its paths; it gets its turn, whatever it waited for.
    fn tell(&mut self, qpn: u32, of: impl FnOnce(&mut QueuePair, &mut LaneHost<'_>)) {
        let Some(entry) = self.qps.by_qpn(qpn) else { return };
        entry.blocked = false;
        let mut host = LaneHost { attached: &entry.attached, io: &mut self.io };
        of(&mut entry.core, &mut host);
        self.note(QpTable::index_of(qpn), true);
    }

    /// `local>remote@ifindex` of a path, as far as it is still known.
    fn path_name(&self, path: PathId) -> String {
        self.io.paths.path(path).map_or_else(
            || format!("#{} (its addresses are gone)", path.0),
            |a| format!("{}>{}@{}", a.local, a.remote, self.io.interface(a.ifindex)),
        )
    }

    fn note_move(&mut self, from: Option<PathId>, to: PathId, reason: Reason) {
        let name = from.map(|path| self.path_name(path));
        let to = self.path_name(to);
        let from = name.unwrap_or_else(|| "no path".to_owned());
        // `polypath status` has it among the fail-overs.
        crate::log::line(&format!("traffic moves from {from} to {to}: {reason}"));
        if reason == Reason::Association {
            return;
        }
        if self.io.failovers.len() == MAX_FAILOVERS {
            self.io.failovers.pop_front();
        }
        self.io.failovers.push_back(FailoverStatus {
            at_unix_ms: clock::realtime_ns(self.io.now) / 1_000_000,
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
        if let Some(last) = self.io.failovers.back_mut()
            && last.blackout_us == 0
        {
            last.blackout_us = u64::try_from(blackout.as_micros()).unwrap_or(u64::MAX);
        }
    }
}
