//! Path sets as programs see them that know of two paths: one in use, and an alternate one
//! (automatic path migration, IBTA 17.2.8).
//!
//! The active path of a queue pair is its peer's main path, whatever other paths a policy spreads data over,
//! or the one that the queue pair has for itself ([`detour`](crate::detour)). The alternate one is the best
//! of the others: that which the program has loaded, if it is among them.

use core::time::Duration;

use crate::association::Association;
use crate::id::Qpn;
use crate::manager::PathManager;
use crate::path::Path;
use crate::peers::Detour;
use crate::select::Line;
use crate::types::{PathEvent, PathState};
use polypath_types::TwoPaths;

impl PathManager {
    /// The path set of a queue pair's peer, seen as two paths; `None` while no path lives, and for numbers
    /// that are not attached.
    pub fn two_paths(&self, qpn: u32) -> Option<TwoPaths> {
        let qp = self.qps.get(&Qpn(qpn))?;
        let p = self.peers.get(qp.peer)?;
        if p.outage.is_some() {
            return None;
        }
        let active = self.way_of(qp.peer, Qpn(qpn)).unwrap_or(p.main);
        let loaded = qp.alternate.and_then(|peer| self.peers.get(peer));
        let loaded = loaded.map(|peer| Line::udp((peer.key.local, peer.key.remote)));
        let pair = |path: &Path| path.address.line().pair;
        let active_pair = self.paths.get(active).map(pair);
        let association = p.association.and_then(|a| self.associations.get(a));
        let members = association.into_iter().flat_map(Association::paths);
        let others = members.filter_map(|(number, index)| {
            let path = self.paths.get(index).filter(|path| index != active && path.usable())?;
            // Lower is better. Another port of the same addresses leaves by the same link.
            let rank = (
                loaded != Some(path.address.line()),
                path.state != PathState::Up,
                Some(pair(path)) == active_pair,
                path.address.kind.rank(),
                index != p.main,
                number.0,
            );
            Some((rank, index))
        });
        Some(TwoPaths { active, other: others.min().map(|(_, index)| index) })
    }

    /// A queue pair leaves its active path for the other one, which it then has for itself until that dies,
    /// or which is its peer's main path. [`PathEvent::Moved`] tells. Returns what it has now; `None` if there
    /// is no other path, and nothing has changed then.
    pub fn take_other_path(&mut self, now: Duration, qpn: u32) -> Option<TwoPaths> {
        self.advance(now);
        let TwoPaths { active: from, other } = self.two_paths(qpn)?;
        let (to, index) = (other?, self.qps.get(&Qpn(qpn))?.peer);
        let p = self.peers.get_mut(index)?;
        p.detours.remove(&Qpn(qpn));
        if to != p.main {
            p.detours.insert(
                Qpn(qpn),
                Detour { path: to, since: self.clock.now(), tried: 0, rounds: 0 },
            );
        }
        self.push_event(PathEvent::Moved { qpn, from, to });
        self.two_paths(qpn)
    }
}
