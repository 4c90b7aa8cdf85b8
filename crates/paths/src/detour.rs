//! Detours: a queue pair whose data does not arrive on a path that carries other packets takes another.
//!
//! A path may lose only what is large (its MTU is smaller somewhere on the way), or only the packets of
//! some queue pairs (one of several ways that a fabric spreads them over is broken). Probes and other
//! queue pairs' data pass, so the path is not dead, and only the affected queue pair leaves it. It does
//! so when it has sent its first packet again and again for [`STALL`] and has heard nothing, while the
//! path answered probes that were sent meanwhile. Then it tries the other paths that answer, one after the
//! other. It keeps a path by which it makes progress until that path dies. If it makes none on any, the
//! peer's answers may have been lost until the peer has left a path, too: it tries all again, each for
//! twice the time. If the reason is not a path (the peer's queue pair is gone, most likely), its retries run
//! out.

use core::time::Duration;

use crate::id::{AssociationId, PathNumber, Qpn};
use crate::manager::PathManager;
use crate::path::{Path, Role};
use crate::peers::{Detour, Peer};
use crate::types::MAX_PATHS;
use crate::types::{PathEvent, PathState};
use polypath_types::{PathId, PeerId};

/// For how long data must be outstanding without any progress. Shorter than the second for which a
/// queue pair with several paths is patient at least.
const STALL: Duration = Duration::from_millis(500);
/// No path is tried for longer than 2 to this power times [`STALL`].
const ROUNDS_MAX: u8 = 6;
/// Probes that the path must have answered in this time: one alone may have been lucky.
const STALL_ANSWERS: usize = 3;

impl PathManager {
    /// The path that a queue pair of `peer` has for itself, if it lives: its detour, or the path between
    /// its own addresses while the peer has not agreed that it uses others. Its other end may be of a
    /// device with one path, although others between the two lanes are not.
    #[cold]
    pub(crate) fn way_of(&self, peer: PeerId, qpn: Qpn) -> Option<PathId> {
        let p = self.peers.get(peer)?;
        let detour = p.detours.get(&qpn).map(|detour| detour.path);
        let way = if self.keeps_to_own(p, qpn) { p.own } else { detour? };
        self.paths.get(way).is_some_and(Path::usable).then_some(way)
    }

    /// Whether it is not known that the other end takes packets from other addresses than the queue pair's.
    fn keeps_to_own(&self, peer: &Peer, qpn: Qpn) -> bool {
        peer.unagreed.contains(&qpn) && self.qps.get(&qpn).is_some_and(|qp| !qp.trusted)
    }

    /// The other end of this queue pair has agreed already: it was thawed, or has other addresses than
    /// before. It uses all paths that there are before the next handshake.
    pub fn trust(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&Qpn(qpn)) {
            qp.trusted = true;
        }
    }

    /// Like [`PathManager::suspect`], for a queue pair of which nothing was acknowledged since
    /// `since`: it may get another path of its own, which [`PathEvent::Detour`] tells. The path of a plain
    /// peer may get another source port instead.
    pub fn stalled(&mut self, now: Duration, path: PathId, qpn: u32, since: Duration) {
        self.suspect(now, path);
        if matches!(self.paths.get(path).map(|p| p.role), Some(Role::Plain { .. })) {
            return self.plain_stalled(path, Qpn(qpn), since);
        }
        let now = self.clock.now();
        let Some(qp) = self.qps.get_mut(&Qpn(qpn)) else { return };
        // Before it used this path, others had their time. It may use several in turn.
        qp.stalled.retain(|(_, at)| *at >= since);
        let by_this = match qp.stalled.iter().find(|(of, _)| *of == path) {
            Some((_, at)) => *at,
            None => {
                qp.stalled.truncate(MAX_PATHS - 1);
                qp.stalled.insert(0, (path, now));
                now
            }
        };
        if now.saturating_sub(by_this) >= STALL {
            self.consider_detour(path, Qpn(qpn), since, by_this);
        }
    }

    /// `progress`: since when nothing of the queue pair is acknowledged. `since`: since when it is without
    /// progress by this path.
    fn consider_detour(&mut self, path: PathId, qpn: Qpn, progress: Duration, since: Duration) {
        let Some(Role::Member { association, id }) = self.paths.get(path).map(|p| p.role) else {
            return;
        };
        let Some(peer) = self.qps.get(&qpn).map(|qp| qp.peer) else { return };
        let Some(p) = self.peers.get(peer).filter(|p| !self.keeps_to_own(p, qpn)) else { return };
        let detour = p.detours.get(&qpn).copied();
        let on_it = detour.map_or_else(|| p.uses(path), |detour| detour.path == path);
        let answers = |path: PathId, count: usize| {
            self.paths.get(path).is_some_and(|p| {
                p.state == PathState::Up && p.probes.answered(since, count).is_some()
            })
        };
        // The path may be on trial now, but it has answered since then.
        let carries = self
            .paths
            .get(path)
            .is_some_and(|p| p.usable() && p.probes.answered(since, STALL_ANSWERS).is_some());
        let before = detour.filter(|d| progress <= d.since);
        let (tried, mut rounds) = before.map_or((0, 0), |d| (d.tried, d.rounds));
        let stall = STALL * (1 << rounds.min(ROUNDS_MAX));
        if !on_it || p.is_held() || self.clock.now().saturating_sub(since) < stall || !carries {
            return;
        }
        let Some(a) = self.associations.get(association) else { return };
        let mut tried = tried | 1 << id.0;
        if a.paths().all(|(id, path)| tried & 1 << id.0 != 0 || !answers(path, 1)) {
            (tried, rounds) = (1 << id.0, rounds.saturating_add(1));
        }
        let was_tried = |id: PathNumber| tried & 1 << id.0 != 0;
        // Packets that are too large for one path are too large for all between the same addresses.
        let pair = |path: PathId| self.paths.get(path).map(|p| p.address.line().pair);
        let alike = |to| a.paths().any(|(id, p)| was_tried(id) && pair(p) == pair(to));
        let untried = a.paths().filter(|(id, _)| !was_tried(*id));
        let Some((_, to)) = untried.min_by_key(|(_, to)| (!answers(*to, 1), alike(*to))) else {
            return;
        };
        if !answers(to, 1) {
            return;
        }
        let now = self.clock.now();
        if let Some(qp) = self.qps.get_mut(&qpn) {
            // It has its time there again.
            qp.stalled.retain(|(of, _)| *of != to);
        }
        if let Some(p) = self.peers.get_mut(peer) {
            p.detours.insert(qpn, Detour { path: to, since: now, tried, rounds });
        }
        self.push_event(PathEvent::Detour { qpn: qpn.0, from: path, to });
    }

    /// Ends the detours by this path; their queue pairs use their peer's path again.
    pub(crate) fn end_detours(&mut self, association: AssociationId, path: PathId) {
        let peers = self.associations.get(association).map(|a| a.peers.clone()).unwrap_or_default();
        for peer in peers {
            if let Some(p) = self.peers.get_mut(peer) {
                p.detours.retain(|_, detour| detour.path != path);
            }
        }
    }
}
