//! Paths through shared memory: when they are possible, and when they are down.
//!
//! A *channel* is the memory that this lane shares with another lane of the host. Whoever drives the lane
//! sets it up, and tells of it here. The leader of an association proposes a path over it beside those
//! over UDP. The path is probed like any other, so it is used only if the other end has the channel as
//! well. Its addresses are those that the queue pairs were connected with, or, if a lane has moved here, its
//! present ones; its kind and the slot of the other lane tell it from the path over UDP between the same
//! addresses.

use core::time::Duration;

use crate::association::Association;
use crate::config::PathOptions;
use crate::id::AssociationId;
use crate::manager::PathManager;
use crate::select::{Line, Pair, Way, pairs, ways};
use crate::types::{MAX_PATHS, PathAddress, PathEvent, PathState, Reason};
use polypath_types::{PathId, PathKind, PeerId};

impl PathManager {
    /// Tells whether there is a channel to the lane with this slot. Paths over it are proposed, come up
    /// again, or are given up.
    pub fn set_channel(&mut self, now: Duration, slot: u8, there: bool) {
        self.advance(now);
        let changed = if there { self.channels.insert(slot) } else { self.channels.remove(&slot) };
        if !changed {
            return;
        }
        self.local_paths_changed(Some(slot));
        for index in self.associations.indexes() {
            if self.associations.get(index).is_some_and(|a| a.remote_slot == slot) {
                self.lead(index);
            }
        }
    }

    /// Takes note that paths through shared memory, to this lane or to all, may have come up or gone down.
    pub(crate) fn local_paths_changed(&mut self, slot: Option<u8>) {
        let affected = |path: &PathId| match self.paths.get(*path).map(|p| p.address.kind) {
            Some(PathKind::Local { slot: of }) => slot.is_none_or(|slot| slot == of),
            _ => false,
        };
        let affected: Vec<PathId> = self.paths.indexes().into_iter().filter(affected).collect();
        for path in affected {
            self.local_changed(path);
        }
    }

    /// What is wrong with a path, as far as this host knows. Shared memory needs no interface.
    pub(crate) fn fault(&self, address: &PathAddress) -> Option<Reason> {
        let PathAddress { kind, local, remote, .. } = *address;
        match kind {
            PathKind::Udp => self.local.fault(local, remote),
            PathKind::Tcp { .. } => self.stream_fault(address),
            PathKind::Local { slot } if !self.channels.contains(&slot) => Some(Reason::LinkDown),
            PathKind::Local { .. } => {
                let down = !self.usage.local || self.local.is_down(local, remote);
                down.then_some(Reason::AdminDown)
            }
        }
    }

    /// The ways that make paths of an association: one through shared memory, if there is a channel, and
    /// those over UDP.
    pub(crate) fn chosen_ways(&self, a: &Association) -> Vec<Way> {
        let over_udp = pairs(&a.anchors, &a.announced, &a.remote_addresses);
        let mut ways = ways(&over_udp, a.ports());
        let slot = a.remote_slot;
        if self.channels.contains(&slot)
            && let Some(pair) = self.local_pair(a)
        {
            ways.truncate(MAX_PATHS - 1);
            ways.push(Way { line: Line { kind: PathKind::Local { slot }, pair }, port: 0 });
        }
        self.add_tcp(a, &over_udp, &mut ways);
        ways
    }

    /// The addresses of a path through shared memory, if both ends can have one and are on one host: those
    /// that their queue pairs were connected by are this host's, or, where one of them has moved here
    /// since, all that the peer has now.
    fn local_pair(&self, a: &Association) -> Option<Pair> {
        if self.config.local_window == 0 || !a.remote_abilities.local {
            return None;
        }
        let here = |ip| self.local.contains(ip);
        let connected_here = |&&(local, remote): &&Pair| here(local) && here(remote);
        if let Some(pair) = a.anchors.first().filter(connected_here) {
            return Some(*pair);
        }
        let remotes = &a.remote_addresses;
        let remote = remotes.first().filter(|_| remotes.iter().all(|remote| here(remote.ip)))?.ip;
        let local = a.announced.iter().find(|local| local.ip.is_ipv4() == remote.is_ipv4())?;
        Some((local.ip, remote))
    }

    /// This lane leaves its host, and all shared memory stays behind. When it has addresses again, be they
    /// the same, it announces them, and both ends see whether they are on one host.
    pub fn left_host(&mut self) {
        for index in self.associations.indexes() {
            if let Some(a) = self.associations.get_mut(index) {
                a.asked_channel = false;
                a.announced.clear();
            }
        }
    }

    /// Asks for a channel, once for each association and place of its ends, if its paths would gain by it.
    pub(crate) fn want_channel(&mut self, index: AssociationId) {
        let Some(a) = self.associations.get(index) else { return };
        let slot = a.remote_slot;
        let wanted = !a.asked_channel
            && self.usage.local
            && self.local_pair(a).is_some()
            && self.is_connected(a)
            && !self.channels.contains(&slot);
        if wanted && let Some(a) = self.associations.get_mut(index) {
            a.asked_channel = true;
            self.push_event(PathEvent::ChannelWanted { slot });
        }
    }

    /// The path for packets that no window holds back: this one, or, if it leads through shared memory
    /// or TCP, one over UDP that lives. A ring holds much less than a socket.
    #[inline]
    pub fn with_buffer(&self, peer: PeerId, path: PathId) -> PathId {
        match self.paths.get(path).map(|p| p.address.kind) {
            Some(PathKind::Local { .. } | PathKind::Tcp { .. }) => {
                self.over_udp(peer).unwrap_or(path)
            }
            _ => path,
        }
    }

    fn over_udp(&self, peer: PeerId) -> Option<PathId> {
        let peer = self.peers.get(peer)?;
        let members = peer.association.and_then(|a| self.associations.get(a))?.paths();
        let lives = |path: PathId| {
            let path = self.paths.get(path)?;
            let good = path.usable() && path.address.kind == PathKind::Udp;
            good.then_some(path.state != PathState::Up)
        };
        let ranked = members.filter_map(|(_, path)| Some((lives(path)?, path != peer.own, path)));
        ranked.min().map(|(.., path)| path)
    }

    /// How packets that go this way are addressed.
    pub(crate) fn address_of(&self, line: Line, salt: u32) -> PathAddress {
        let address = self.address(line.pair.0, line.pair.1, PathOptions::default(), salt);
        match line.kind {
            PathKind::Udp => address,
            kind @ PathKind::Tcp { .. } => PathAddress { kind, ..address },
            // It leaves by no interface.
            kind @ PathKind::Local { .. } => PathAddress { kind, ifindex: 0, ..address },
        }
    }

    /// How much a path may have in flight. `window`: what the peer's receive buffer takes.
    pub(crate) fn window_of(&self, kind: PathKind, window: u32) -> u32 {
        match kind {
            PathKind::Udp => window,
            PathKind::Local { .. } => self.config.local_window,
            PathKind::Tcp { .. } => self.config.tcp_window,
        }
    }
}
