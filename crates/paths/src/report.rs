//! What `polypath status` shows.

use core::net::IpAddr;

use polypath_telemetry::ControlDrops;
use polypath_types::{PathId, PeerId};

use crate::association::Association;
use crate::id::Qpn;
use crate::manager::PathManager;
use crate::path::Role;
use crate::peers::Peer;
use crate::types::{PathState, PathStatus, PeerBrief, PeerStatus, Status};

impl PathManager {
    /// A report on all peers and their paths.
    pub fn status(&self) -> Status {
        let peers = self.peers.iter().map(|(i, p)| self.peer_status(i, p)).collect();
        Status { peers, refusals: self.refusals }
    }

    /// Brief reports on the peers from `from` on, in the order of their numbers, for callers that read
    /// a few at a time.
    pub fn peers_from(&self, from: PeerId) -> impl Iterator<Item = PeerBrief> {
        self.peers.iter_from(from).map(|(index, peer)| PeerBrief {
            peer: index,
            remote: peer.key.remote,
            active: (!peer.is_held()).then_some(peer.main),
            spreads: peer.spreads(),
            mode: peer.policy.mode().filter(|_| peer.key.options.multipath),
            last_blackout: peer.last_blackout.map(|(blackout, _)| blackout),
        })
    }

    /// Reports on the paths of a peer, by their agreed number.
    pub fn paths_of(&self, peer: PeerId) -> impl Iterator<Item = PathStatus> {
        let peer = self.peers.get(peer);
        let association = peer.and_then(|peer| self.associations.get(peer.association?));
        let own = peer.filter(|_| association.is_none()).map(|peer| peer.own);
        let members = association.into_iter().flat_map(|a| a.paths().map(|(_, path)| path));
        members.chain(own).filter_map(move |path| self.path_status(association, path))
    }

    /// A report on a path of a peer that has this association, if any.
    fn path_status(&self, association: Option<&Association>, path: PathId) -> Option<PathStatus> {
        let p = self.paths.get(path)?;
        let mut status = PathStatus { leaves_by: self.lag_member(path), ..p.status(path) };
        if let Role::Member { id, .. } = p.role
            && let Some(coupling) = association.and_then(|a| a.coupling.as_ref())
        {
            status.coupled = u8::try_from(coupling.mates(id).count()).unwrap_or(u8::MAX);
        }
        Some(status)
    }

    /// The address of a peer.
    pub fn remote_of(&self, peer: PeerId) -> Option<IpAddr> {
        Some(self.peers.get(peer)?.key.remote)
    }

    /// What was refused so far.
    pub fn refusals(&self) -> ControlDrops {
        self.refusals
    }

    fn peer_status(&self, index: PeerId, peer: &Peer) -> PeerStatus {
        let association = peer.association.and_then(|a| self.associations.get(a));
        let members: Vec<PathId> =
            association.map_or_else(|| vec![peer.own], |a| a.paths().map(|(_, p)| p).collect());
        let report = |p: &PathId| self.path_status(association, *p);
        let paths: Vec<PathStatus> = members.iter().filter_map(report).collect();
        let agreed = |qpn: &&Qpn| !peer.unagreed.contains(qpn);
        PeerStatus {
            peer: index,
            local: peer.key.local,
            remote: peer.key.remote,
            remote_slot: peer.key.slot,
            remote_instance: association.map(|a| a.remote_instance),
            qpns: peer.connected().map(|qpn| qpn.0).collect(),
            agreed: peer.connected().filter(agreed).count(),
            active: (!peer.is_held()).then_some(peer.main),
            note: note(peer, &paths, association.is_some()),
            paths,
            failovers: peer.failovers,
            last_blackout: peer.last_blackout,
        }
    }
}

fn note(peer: &Peer, paths: &[PathStatus], associated: bool) -> String {
    let live = paths.iter().filter(|p| p.state == PathState::Up).count();
    let mut text = match (&peer.outage, associated) {
        (Some(o), _) if o.given_up => {
            "no path lives; given up, queue pairs run into their retry limits".into()
        }
        (Some(_), _) => "no path lives; queue pairs wait for one".into(),
        (None, true) => format!("{live} of {} paths up", paths.len()),
        (None, false) if !peer.key.options.multipath => "plain RoCEv2, as asked".into(),
        (None, false) if peer.plain => {
            "plain RoCEv2: the peer does not answer multi-path handshakes".into()
        }
        (None, false) => "plain RoCEv2 so far: handshake under way".into(),
    };
    for p in paths {
        if let Some(reason) = p.reason {
            text += &format!("; {} > {} {}: {reason}", p.address.local, p.address.remote, p.state);
        }
    }
    if let Some((blackout, reason)) = peer.last_blackout {
        let ms = blackout.as_secs_f64() * 1e3;
        text += &format!("; last fail-over: {ms:.1} ms ({reason})");
    }
    text
}
