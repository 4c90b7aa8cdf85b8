//! Carries out the path manager's decisions: queue pairs move to other paths.

use std::collections::HashSet;

use polypath_paths::{PathEvent, Reason};
use polypath_types::{PathId, PeerId};

use crate::host::Visit;
use crate::lane::Lane;
use crate::outside::Outside;
use crate::table::QpTable;

impl<Q> Lane<Q> {
    /// Carries out the path manager's decisions since the last call.
    #[inline]
    pub(crate) fn carry_out_path_events<O: Outside<Q>>(&mut self, out: &mut O) {
        while let Some(event) = self.shared.paths.poll_event() {
            out.path_event(self.shared.now, &self.shared.paths, &event);
            self.carry_out(event, out);
        }
    }

    fn carry_out<O: Outside<Q>>(&mut self, event: PathEvent, out: &mut O) {
        let now = self.shared.now;
        match event {
            PathEvent::MultipathAgreed { qpn, abilities } => {
                if let Some(entry) = self.qps.by_qpn_mut(qpn) {
                    entry.qp.set_multipath(true);
                    entry.qp.set_peer_abilities(abilities);
                }
            }
            PathEvent::ActiveChanged { peer, from, reason, .. } => {
                let still_alive = matches!(reason, Reason::Primary | Reason::Association);
                self.path_changed(peer, from.filter(|_| !still_alive), out);
                self.alternate_changed(peer, out);
            }
            PathEvent::NoPath { peer } | PathEvent::PeerLost { peer } => {
                self.path_changed(peer, None, out);
                self.alternate_changed(peer, out);
            }
            PathEvent::WindowOpened { .. } => self.shared.window_opened = true,
            PathEvent::PathDead { path, .. } => {
                // A path may have packets outstanding without being the active one.
                for qpn in self.shared.paths.qpns_on(path) {
                    self.tell(qpn, out, |v| v.qp.on_path_dead(now, path, &mut v.host));
                }
            }
            PathEvent::Detour { qpn, from, .. } => {
                self.tell(qpn, out, |v| v.qp.on_path_change(now, Some(from), &mut v.host));
            }
            PathEvent::PathHeard { path } => {
                for qpn in self.shared.paths.qpns_on(path) {
                    self.tell(qpn, out, |v| v.qp.on_path_heard(now, path, &mut v.host));
                }
            }
            PathEvent::Resumed { .. }
            | PathEvent::PathAlive { .. }
            | PathEvent::PortChanged { .. }
            | PathEvent::Repathed { .. }
            | PathEvent::ChannelWanted { .. }
            | PathEvent::StreamWanted { .. } => {}
            PathEvent::Overflow => self.events_lost(out),
        }
    }

    /// Handles the loss of path events: every queue pair is told to check its paths again.
    #[cold]
    fn events_lost<O: Outside<Q>>(&mut self, out: &mut O) {
        let now = self.shared.now;
        let alive: HashSet<u32> = self.shared.paths.alive().map(|path| path.0).collect();
        let qpns: Vec<u32> = self.shared.paths.qpns().collect();
        for qpn in qpns {
            let agreed = self.shared.paths.is_agreed(qpn);
            self.tell(qpn, out, |v| {
                if agreed {
                    v.qp.set_multipath(true);
                }
                v.qp.on_paths_unknown(now, |path| !alive.contains(&path.0), &mut v.host);
            });
        }
        self.shared.window_opened = true;
    }

    fn path_changed<O: Outside<Q>>(&mut self, peer: PeerId, dead: Option<PathId>, out: &mut O) {
        let now = self.shared.now;
        let qpns: Vec<u32> = self.shared.paths.qpns_of(peer).collect();
        for qpn in qpns {
            self.tell(qpn, out, |v| v.qp.on_path_change(now, dead, &mut v.host));
        }
    }

    /// Tells those queue pairs that have the peer in reserve.
    fn alternate_changed<O: Outside<Q>>(&mut self, peer: PeerId, out: &mut O) {
        let now = self.shared.now;
        for qpn in self.shared.paths.reserved_by(peer) {
            self.tell(qpn, out, |v| v.qp.on_alternate_change(now, &mut v.host));
        }
    }

    /// Tells a queue pair about its paths, and gives it a turn to send even if it was waiting.
    fn tell<O: Outside<Q>>(
        &mut self,
        qpn: u32,
        out: &mut O,
        of: impl FnOnce(&mut Visit<'_, Q, O>),
    ) {
        let Some(entry) = self.qps.by_qpn_mut(qpn) else { return };
        entry.blocked = false;
        of(&mut entry.visit(&mut self.shared, out));
        self.schedule(QpTable::<Q>::index_of(qpn), true);
    }
}
