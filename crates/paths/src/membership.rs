//! Which association a peer belongs to: joining, leaving, and what is left behind.
//!
//! Two lanes may come to have more than one association, for example because one end already knows that
//! an address belongs to an association while the other does not know it yet. Both ends of a peer must
//! choose the same one, or each drops the other's packets. So a peer stays where it is as long as that
//! association lives, unless the other one comes later in an order that both ends can compute
//! ([`Association::rank`]). An end that sees the other choose differently says HELLO again with the
//! nonce of its own choice.

use core::time::Duration;

use crate::association::Association;
use crate::congestion::Limits;
use crate::id::{AssociationId, PathNumber, Qpn};
use crate::key::Nonce;
use crate::manager::PathManager;
use crate::path::Role;
use crate::peers::PeerKey;
use crate::select::Pair;
use crate::timers::Timer;
use crate::types::{PathState, Reason};
use polypath_types::{PathId, PathKind, PeerId};

/// Pairs of addresses remembered as those that queue pairs were connected with.
const MAX_ANCHORS: usize = 4;
/// A peer is told again which association this end is in after so long at the earliest.
const TELL: Duration = Duration::from_millis(5);
/// The same if the only reason is a data packet of unknown origin, or silence.
const TELL_SELDOM: Duration = Duration::from_millis(100);

impl PathManager {
    /// Whether a path of the association carries both ways, as far as is known.
    pub(crate) fn lives(&self, a: &Association) -> bool {
        a.confirmed && self.has_path_in(a, PathState::Up)
    }

    /// Whether a peer would move from the association that it is in to another with the lane of that
    /// instance. `other`: `None` if there is no such association yet. `proven`: the peer has just shown
    /// that it has the key.
    pub(crate) fn prefers(
        &self,
        peer: PeerId,
        other: Option<AssociationId>,
        instance: u64,
        proven: bool,
    ) -> bool {
        let Some(current) = self.peers.get(peer).and_then(|p| p.association) else { return true };
        let Some(mine) = self.associations.get(current) else { return true };
        if other == Some(current) || mine.remote_instance != instance || !self.lives(mine) {
            return true;
        }
        let other = other.and_then(|other| self.associations.get(other));
        other.is_some_and(|a| (proven || self.lives(a)) && a.rank() > mine.rank())
    }

    /// The peer chose another association for a queue pair: it is told which one this end is in, and
    /// that one is probed, because the peer may have lost it.
    pub(crate) fn disagree(&mut self, peer: PeerId, qpn: Qpn) {
        self.tell(peer, qpn, TELL);
        let now = self.clock.now();
        let Some(index) = self.peers.get(peer).and_then(|p| p.association) else { return };
        for path in self.members(index) {
            if let Some(path) = self.paths.get_mut(path)
                && path.state == PathState::Up
                && path.probes.oldest().is_none()
            {
                path.probes.next_at = now;
            }
        }
        self.timers.no_later(Timer::Association(index), now);
    }

    /// Says HELLO because the peer may be in another association: a packet that is perhaps not the
    /// peer's, or nothing at all, came where an answer was expected.
    pub(crate) fn doubt(&mut self, peer: PeerId) {
        let first = self.peers.get(peer).and_then(|p| p.qpns.first().copied());
        if let Some(qpn) = first {
            self.tell(peer, qpn, TELL_SELDOM);
        }
    }

    /// Says HELLO for a queue pair, agreed or not, unless the peer was told less than `pause` ago.
    fn tell(&mut self, peer: PeerId, qpn: Qpn, pause: Duration) {
        let now = self.clock.now();
        let Some(p) = self.peers.get_mut(peer) else { return };
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if !p.key.options.multipath || p.told_at.is_some_and(|at| now < at + pause) {
            return;
        }
        p.told_at = Some(now);
        qp.tell = true;
        self.hello_soon(qpn);
    }

    /// The handshakes of a queue pair begin anew after a short pause.
    pub(crate) fn hello_soon(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        qp.ask_anew();
        self.timers.no_later(Timer::Hello(qpn), self.clock.now() + TELL);
    }

    /// The peer has proven that it knows the key: the association begins, or the peer joins it. Returns
    /// `false` if the peer stays where it is.
    pub(crate) fn confirm(&mut self, index: AssociationId, peer: PeerId) -> bool {
        let awake = self.clock.awake();
        let Some(instance) = self.associations.get(index).map(|a| a.remote_instance) else {
            return false;
        };
        if !self.prefers(peer, Some(index), instance, true) {
            self.give_up_pending(peer, index);
            return false;
        }
        let Some(a) = self.associations.get_mut(index) else { return false };
        let first = !core::mem::replace(&mut a.confirmed, true);
        if first {
            a.last_answer = awake;
        }
        let window = a.remote_window;
        let old = self.peers.get(peer).and_then(|p| p.association);
        if old != Some(index) {
            if let Some(old) = old {
                self.leave(peer, old, instance);
            }
            if first {
                self.first_path(index, peer, window);
            }
            self.join(peer, index);
        }
        if first {
            self.begin_control(index);
        }
        true
    }

    /// The peer has another receive buffer than before, because it has moved.
    pub(crate) fn set_remote_window(&mut self, index: AssociationId, window: u32) {
        let Some(a) = self.associations.get_mut(index) else { return };
        if core::mem::replace(&mut a.remote_window, window) == window {
            return;
        }
        let members: Vec<PathId> = a.paths().map(|(_, path)| path).collect();
        for path in members {
            if let Some(p) = self.paths.get_mut(path)
                && p.address.kind == PathKind::Udp
            {
                p.congestion.set_limits(Limits::told(window));
            }
        }
    }

    /// This lane has another receive buffer, because it has come to another host: bytes of payload that it
    /// takes at least. Peers are told with the addresses that it has here
    /// ([`PathManager::left_host`] has to come before).
    pub fn set_receive_window(&mut self, window: u32) {
        self.config.receive_window = window;
    }

    /// Forgets the association that the peer proposed, because it is not wanted any more.
    fn give_up_pending(&mut self, peer: PeerId, index: AssociationId) {
        let Some(p) = self.peers.get_mut(peer).filter(|p| p.pending == Some(index)) else { return };
        p.pending = None;
        let key = p.key;
        self.remove_unproven(index, &key);
    }

    /// Chooses a new nonce, so that the next association with these addresses has another key than the
    /// last. The peer may still have the last one, with its sequence numbers.
    fn renew_nonce(&mut self, key: &PeerKey) {
        let nonce = Nonce(self.random.bytes());
        for peer in self.peers.siblings(key) {
            if let Some(p) = self.peers.get_mut(peer) {
                p.nonce = nonce;
            }
        }
    }

    /// The addresses of the handshake make path 0; the peer's path object goes over, with what is
    /// in flight on it.
    fn first_path(&mut self, index: AssociationId, peer: PeerId, window: u32) {
        let Some(own) = self.peers.get(peer).map(|p| p.own) else { return };
        let address = self.paths.get(own).map(|path| self.with_ecn(index, path.address));
        let (Some(a), Some(path)) = (self.associations.get_mut(index), self.paths.get_mut(own))
        else {
            return;
        };
        let id = PathNumber(0);
        a.paths[id] = Some(own);
        a.generations[id] = 1;
        path.role = Role::Member { association: index, id };
        path.generation = 1;
        path.peer_generation = 1;
        path.users += 1;
        path.address = address.unwrap_or(path.address);
        path.congestion.set_limits(Limits::told(window));
        path.probes.next_at = self.clock.now();
        path.probes.interval = Duration::ZERO;
        self.steer(own);
        self.paths_changed(index);
    }

    /// A peer becomes part of an association.
    pub(crate) fn join(&mut self, peer: PeerId, index: AssociationId) {
        let (Some(a), Some(p)) = (self.associations.get_mut(index), self.peers.get_mut(peer))
        else {
            return;
        };
        p.association = Some(index);
        if p.pending == Some(index) {
            p.pending = None;
        }
        (p.plain, p.unheard) = (false, false);
        if !p.qpns.is_empty() {
            a.unused_since = None;
        }
        if !a.peers.contains(&peer) {
            a.peers.push(peer);
        }
        let anchor = (p.key.local, p.key.remote);
        self.recount(peer);
        self.take_turn(peer);
        self.remember(index, anchor);
        self.reselect(peer, Reason::Association);
        self.timers.no_later(Timer::Association(index), self.clock.now());
    }

    /// Queue pairs that take the paths of a set in turn do so whichever peers they are of: those of this peer
    /// begin after those of the peers before it.
    pub(crate) fn take_turn(&mut self, peer: PeerId) {
        let index = self.peers.get(peer).and_then(|p| p.association);
        let Some(a) = index.and_then(|index| self.associations.get(index)) else { return };
        let before = a.peers.iter().take_while(|other| **other != peer);
        let turn = before.filter_map(|other| Some(self.peers.get(*other)?.qpns.len())).sum();
        if let Some(p) = self.peers.get_mut(peer) {
            p.policy.begin_at(turn);
        }
    }

    /// Remembers a pair of addresses that a queue pair was connected with. If too many are remembered,
    /// it takes the place of one that neither a queue pair nor a path has any more, because hosts may
    /// move often.
    fn remember(&mut self, index: AssociationId, anchor: Pair) {
        let Some(a) = self.associations.get(index) else { return };
        if a.anchors.contains(&anchor) {
            return;
        }
        let peers = || a.peers.iter().filter_map(|peer| self.peers.get(*peer));
        let used = |pair: &Pair| {
            a.ends.contains(pair)
                || peers().any(|p| (p.key.local, p.key.remote) == *pair && !p.qpns.is_empty())
        };
        let unused = a.anchors.iter().position(|pair| !used(pair));
        let Some(a) = self.associations.get_mut(index) else { return };
        if a.anchors.len() >= MAX_ANCHORS {
            let Some(unused) = unused else { return };
            a.anchors.remove(unused);
        }
        a.anchors.push(anchor);
    }

    /// The peer moves to another association, with a lane of the given instance. If that is another lane,
    /// queue pairs that were agreed with the one before are orphans.
    fn leave(&mut self, peer: PeerId, index: AssociationId, instance: u64) {
        let orphans = self.associations.get(index).is_none_or(|a| a.remote_instance != instance);
        if let Some(p) = self.peers.get_mut(peer) {
            p.association = None;
            let key = p.key;
            self.recount(peer);
            if orphans {
                self.take_back_agreements(peer);
            }
            self.renew_nonce(&key);
        }
        let empty = self.associations.get_mut(index).is_some_and(|a| {
            a.peers.retain(|p| *p != peer);
            a.peers.is_empty()
        });
        if !empty {
            self.leave_path_behind(peer, index);
        }
        self.back_to_own(peer, index);
        self.deal_for(&[peer]);
        if empty {
            self.remove_association(index);
        }
    }

    /// The others of the association go on with the path that this peer brought along, which gets another
    /// one between its own addresses.
    fn leave_path_behind(&mut self, peer: PeerId, index: AssociationId) {
        let Some((own, key)) = self.peers.get(peer).map(|p| (p.own, p.key)) else { return };
        let role = self.paths.get(own).map(|path| path.role);
        if !matches!(role, Some(Role::Member { association, .. }) if association == index) {
            return;
        }
        let address = self.address(key.local, key.remote, key.options, u32::from(key.slot));
        let path = self.new_path(address, Role::Plain { peer });
        // Without room for one it takes its path along after all.
        let Some(new) = self.paths.insert(path) else { return };
        if let Some(p) = self.peers.get_mut(peer) {
            p.own = new;
        }
        self.release_path(own);
    }

    /// The queue pairs of a peer are agreed with nobody any more.
    fn take_back_agreements(&mut self, peer: PeerId) {
        if let Some(p) = self.peers.get_mut(peer) {
            p.unagreed.clone_from(&p.qpns);
        }
    }

    /// The peer's route leads over its own addresses again.
    fn back_to_own(&mut self, peer: PeerId, index: AssociationId) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        p.detours.clear();
        let (own, traffic_class) = (p.own, p.key.options.traffic_class);
        if let Some(a) = self.associations.get_mut(index) {
            for slot in a.paths.iter_mut() {
                if *slot == Some(own) {
                    *slot = None;
                    if let Some(path) = self.paths.get_mut(own) {
                        path.users = path.users.saturating_sub(1);
                    }
                }
            }
        }
        self.paths_changed(index);
        let address = self.paths.get(own).map(|p| p.address);
        let fault = address.and_then(|a| self.fault(&a));
        let limits = Limits::of(&self.config);
        if let Some(path) = self.paths.get_mut(own) {
            path.role = Role::Plain { peer };
            path.address.traffic_class = traffic_class;
            path.forget_twice(self.clock.now());
            path.state = if fault.is_some() { PathState::Down } else { PathState::Up };
            path.reason = fault;
            path.congestion.set_limits(limits);
        }
        if fault.is_some()
            && let Some(p) = self.peers.get_mut(peer)
        {
            // The association's paths are not the peer's any more, not even in an outage.
            p.main = own;
        }
        match fault {
            None => self.switch(peer, own, Reason::Association),
            // Nothing waits for a peer without queue pairs, which is about to be forgotten.
            Some(_) if self.peers.get(peer).is_none_or(|p| p.qpns.is_empty()) => {}
            Some(_) => self.begin_outage(peer),
        }
    }

    /// Forgets what a peer with this key has proposed. Its nonce is used up, because the association may
    /// have begun at the other end.
    pub(crate) fn remove_unproven(&mut self, index: AssociationId, key: &PeerKey) {
        if self.associations.get(index).is_some_and(|a| !a.confirmed) {
            self.remove_association(index);
            self.renew_nonce(key);
        }
    }

    /// Forgets an association; its peers are plain again, those without queue pairs are gone.
    pub(crate) fn remove_association(&mut self, index: AssociationId) {
        let Some(a) = self.associations.get(index) else { return };
        let peers = a.peers.clone();
        for &peer in &peers {
            if let Some(p) = self.peers.get_mut(peer) {
                p.association = None;
            }
            self.recount(peer);
            self.back_to_own(peer, index);
            self.lane_pair_lost(peer);
        }
        let Some(a) = self.associations.remove(index) else { return };
        self.timers.set(Timer::Association(index), None);
        for (_, path) in a.paths() {
            self.release_path(path);
        }
        let mut keys: Vec<PeerKey> = Vec::new();
        for &peer in &peers {
            let Some(p) = self.peers.get(peer) else { continue };
            keys.push(p.key);
            if p.qpns.is_empty() {
                self.remove_peer(peer);
            } else {
                self.take_back_agreements(peer);
            }
        }
        // Peers between the same ends have one nonce, and there may be thousands of them.
        let ends = |key: &PeerKey| (key.local, key.remote, key.slot);
        keys.sort_unstable_by_key(ends);
        keys.dedup_by_key(|key| ends(key));
        keys.iter().for_each(|key| self.renew_nonce(key));
        self.deal_for(&peers);
        self.redirect(&a.ends, &[]);
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;
    use crate::config::{Config, LaneIdentity, LocalAddress, PathOptions};

    /// Five hosts' worth of moves: the pairs of addresses that are remembered after queue pairs were
    /// connected with five, one after the other. `stay`: those that connected before are kept.
    fn anchors(stay: bool) -> Vec<u8> {
        let (now, ip) = (Duration::ZERO, |net: u8, n: u8| IpAddr::from([10, 0, net, n]));
        let lane = LaneIdentity { instance: 1, slot: 1 };
        let mut paths = PathManager::new(Config::default(), lane, [0; 16]);
        let (ours, theirs) = (Nonce([1; 16]), Nonce([2; 16]));
        let mut a = Association::new((1, ours), (2, theirs), 2, PeerId(0));
        (a.confirmed, a.remote_window) = (true, 1 << 20);
        let index = paths.associations.insert(a, &mut paths.random).unwrap();
        let options = PathOptions { multipath: true, ..PathOptions::default() };
        for net in 0..=MAX_ANCHORS as u8 {
            let qpn = 0x01_0011 + u32::from(net);
            let peer = paths.attach(now, qpn, 0x02_0022, ip(net, 1), ip(net, 2), options).unwrap();
            paths.join(peer, index);
            if !stay {
                paths.detach(now, qpn);
            }
        }
        assert_eq!(paths.check(), Ok(()));
        let third = |ip: IpAddr| crate::bytes::ip_bytes(ip).into_iter().nth_back(1).unwrap();
        paths.associations.get(index).unwrap().anchors.iter().map(|pair| third(pair.0)).collect()
    }

    /// Neither the peer whose addresses made the first path, nor another one.
    #[test]
    fn a_peer_that_leaves_an_association_takes_none_of_its_paths_along() {
        let ip = |net: u8, n: u8| IpAddr::from([10, 0, net, n]);
        let lane = LaneIdentity { instance: 1, slot: 1 };
        for (down, first) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut paths = PathManager::new(Config::default(), lane, [0; 16]);
            let local = |net: u8, usable| LocalAddress {
                ip: ip(net, 1),
                prefix_len: 24,
                ifindex: net.into(),
                link_up: true,
                usable,
                speed_mbps: 1000,
            };
            paths.set_local(Duration::ZERO, &[local(1, true), local(2, true)]);
            let options = PathOptions { multipath: true, ..PathOptions::default() };
            let mut attach = |net: u8| {
                let qpn = 0x01_0011 + u32::from(net);
                let ends = (ip(net, 1), ip(net, 2));
                paths.attach(Duration::ZERO, qpn, 0x02_0022, ends.0, ends.1, options).unwrap()
            };
            let (one, other) = (attach(1), attach(2));
            let mut a = Association::new((1, Nonce([1; 16])), (2, Nonce([2; 16])), 2, one);
            (a.confirmed, a.remote_window) = (true, 1 << 20);
            let index = paths.associations.insert(a, &mut paths.random).unwrap();
            paths.set_local(Duration::ZERO, &[local(1, true), local(2, !down)]);
            paths.first_path(index, one, 1 << 20);
            paths.join(one, index);
            paths.join(other, index);
            let main = |paths: &PathManager, peer| paths.peers.get(peer).unwrap().main;
            assert_eq!(main(&paths, other), main(&paths, one));
            let before = main(&paths, other);
            let (leaves, stays) = if first { (one, other) } else { (other, one) };
            paths.leave(leaves, index, 7);
            assert_ne!(main(&paths, leaves), before);
            assert_eq!(main(&paths, stays), before);
            assert_eq!(paths.associations.get(index).unwrap().paths().count(), 1);
            assert_eq!(paths.check(), Ok(()));
        }
    }

    #[test]
    fn the_latest_addresses_are_remembered_in_place_of_some_that_no_queue_pair_has() {
        assert_eq!(anchors(false), [1, 2, 3, 4]);
        assert_eq!(anchors(true), [0, 1, 2, 3]);
    }
}
