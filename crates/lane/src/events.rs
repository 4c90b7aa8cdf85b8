//! Carries out the path manager's decisions: queue pairs move to other paths.

use std::collections::HashSet;

use polypath_paths::{PathEvent, Reason};
use polypath_transport::{MigrationCause, SetChange};
use polypath_types::{PathId, PeerId};

use crate::host::Visit;
use crate::lane::Lane;
use crate::outside::Outside;
use crate::table::QpTable;

/// What a change of a peer's paths for this reason means to a queue pair that migrates.
fn set_change(reason: Reason) -> SetChange {
    SetChange::Lost(match reason {
        Reason::Primary | Reason::Association => return SetChange::Preferred,
        Reason::PeerNotice => MigrationCause::Peer,
        Reason::ProbesLost => MigrationCause::Silence,
        Reason::LinkDown
        | Reason::AddressRemoved
        | Reason::AdminDown
        | Reason::FirstAlive
        | Reason::Removed => MigrationCause::PathLost,
    })
}

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
                    let mut visit = entry.visit(&mut self.shared, out);
                    visit.qp.begin_set(&mut visit.host);
                }
            }
            PathEvent::ActiveChanged { peer, from, reason, .. } => {
                let still_alive = matches!(reason, Reason::Primary | Reason::Association);
                let qpns: Vec<u32> = self.shared.paths.qpns_of(peer).collect();
                self.set_changed(&qpns, set_change(reason), out);
                self.path_changed(&qpns, from.filter(|_| !still_alive), out);
                self.alternate_changed(peer, out);
            }
            PathEvent::NoPath { peer } | PathEvent::PeerLost { peer } => {
                let qpns: Vec<u32> = self.shared.paths.qpns_of(peer).collect();
                self.set_changed(&qpns, SetChange::Lost(MigrationCause::PathLost), out);
                self.path_changed(&qpns, None, out);
                self.alternate_changed(peer, out);
            }
            PathEvent::WindowOpened { .. } => self.shared.window_opened = true,
            PathEvent::PathDead { path, reason } => {
                let qpns = self.shared.paths.qpns_on(path);
                self.set_changed(&qpns, set_change(reason), out);
                // A path may have packets outstanding without being the active one.
                for qpn in qpns {
                    self.tell(qpn, out, |v| v.qp.on_path_dead(now, path, &mut v.host));
                }
            }
            PathEvent::PathAlive { path } => {
                let qpns = self.shared.paths.qpns_on(path);
                self.set_changed(&qpns, SetChange::Gained, out);
            }
            PathEvent::Moved { qpn, .. } => self.path_changed(&[qpn], None, out),
            PathEvent::Detour { qpn, from, .. } => {
                self.set_changed(&[qpn], SetChange::Lost(MigrationCause::Silence), out);
                self.tell(qpn, out, |v| v.qp.on_path_change(now, Some(from), &mut v.host));
            }
            PathEvent::PathHeard { path } => {
                for qpn in self.shared.paths.qpns_on(path) {
                    self.tell(qpn, out, |v| v.qp.on_path_heard(now, path, &mut v.host));
                }
            }
            PathEvent::Resumed { .. }
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
            let agreed = self.shared.paths.agreed_abilities(qpn);
            self.tell(qpn, out, |v| {
                if let Some(abilities) = agreed
                    && !v.qp.is_multipath()
                {
                    v.qp.set_multipath(true);
                    v.qp.set_peer_abilities(abilities);
                    v.qp.begin_set(&mut v.host);
                }
                v.qp.follow_set(SetChange::Lost(MigrationCause::PathLost), &mut v.host);
                v.qp.on_paths_unknown(now, |path| !alive.contains(&path.0), &mut v.host);
            });
        }
        self.shared.window_opened = true;
    }

    fn path_changed<O: Outside<Q>>(&mut self, qpns: &[u32], dead: Option<PathId>, out: &mut O) {
        let now = self.shared.now;
        for &qpn in qpns {
            self.tell(qpn, out, |v| v.qp.on_path_change(now, dead, &mut v.host));
        }
    }

    /// Tells those queue pairs whose programs follow what becomes of their paths (automatic path migration).
    fn set_changed<O: Outside<Q>>(&mut self, qpns: &[u32], change: SetChange, out: &mut O) {
        for &qpn in qpns {
            let watching = self.qps.by_qpn_mut(qpn).filter(|entry| entry.qp.watches_set());
            if let Some(entry) = watching {
                let mut visit = entry.visit(&mut self.shared, out);
                visit.qp.follow_set(change, &mut visit.host);
                self.schedule(QpTable::<Q>::index_of(qpn), false);
            }
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
