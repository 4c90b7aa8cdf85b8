//! How plain queue pairs share the ports of a bond of the kernel's.
//!
//! A queue pair whose peer knows one path only leaves by one port of the bond. They are dealt so that the
//! ports have as many of them as each other: first those between the same two addresses, and where that
//! leaves a choice, all that leave by the bond. So that single ones can be moved, they have paths of their
//! own ([`PeerKey::way`](crate::peers::PeerKey::way)), which share source ports: one socket is enough for
//! many.
//!
//! When a port of the bond is lost, those that left by it are dealt to others at once, and ask for what is
//! outstanding. When one comes, as few as possible move to it. A queue pair that ends leaves its place to
//! the next one, and moves nobody. What moves may overtake what it sent before, once, which the peer
//! repairs as it repairs loss.
//!
//! A flow label chooses a source port, too, and RDMA CM gives each connection one. It holds as long as the
//! port leads where the queue pair is dealt to.
//!
//! A port by which a peer was silent ([`silence`](crate::silence)) is dealt only while there is no other.
//! Where the policy keeps queue pairs to a port, they are dealt to that one while it is fit.

use std::collections::BTreeSet;

use polypath_types::PeerId;
use polypath_wire::flow_label::source_port;

use crate::bytes::spread;
use crate::config::{AffinityRule, Mode};
use crate::id::Qpn;
use crate::lag::{Lag, LagMember};
use crate::loads::{Load, Loads};
use crate::manager::{MAX_PEERS, PathManager};
use crate::path::Role;
use crate::peers::{Peer, PeerKey};
use crate::select::Pair;
use crate::types::PathEvent;

/// The most paths of plain queue pairs with the same ends; any more share them. Bonds of 2, 3, 4, 6 and 8
/// ports share so many evenly.
const WAYS: u8 = 24;
/// With so many peers, a queue pair gets a path of its own only if none leaves by its port of the bond.
const CROWDED: usize = MAX_PEERS / 2;
/// The source ports that are drawn for one local address. Further paths take one of them that leads to their
/// port of the bond for their peer, if there is one, because each is a socket.
const PORTS_ENOUGH: usize = 16;

/// A peer whose queue pairs are dealt.
#[derive(Debug)]
struct Hand {
    peer: PeerId,
    load: Load,
    /// Whether it tries a port by which the peer was silent.
    tries: bool,
    /// Whether its policy keeps it to a port that is fit.
    keeps: bool,
}

impl PathManager {
    /// The bond whose ports the plain queue pairs of a peer share, if its hash is known. The path of a flow
    /// label that a queue pair holds in reserve is not dealt: its source port tells the peer which it is.
    pub(crate) fn bond_of(&self, peer: &Peer) -> Option<&Lag> {
        let told_by_port = peer.key.options.flow_label != 0 && !peer.reserved.is_empty();
        self.bond_between(&peer.key).filter(|_| !told_by_port)
    }

    fn bond_between(&self, key: &PeerKey) -> Option<&Lag> {
        let lag = self.local.lag(self.local.ifindex_of(key.local))?;
        (lag.is_known((key.local, key.remote)) && !lag.members.is_empty()).then_some(lag)
    }

    /// The key for a queue pair, with its way, and the port of the bond for a new peer with this key: a queue
    /// pair keeps what it has, and a new one gets a port with the fewest.
    pub(crate) fn dealt(&self, qpn: Qpn, key: PeerKey) -> (PeerKey, Option<u32>) {
        let Some(lag) = self.bond_between(&key) else { return (key, None) };
        let qp = self.qps.get(&qpn);
        let current = qp.into_iter().flat_map(|qp| [Some(qp.peer), qp.alternate]).flatten();
        let mut current = current.filter_map(|peer| self.peers.get(peer).map(|peer| peer.key));
        if let Some(own) = current.find(|own| PeerKey { way: 0, ..*own } == key) {
            return (own, None);
        }
        // The paths of its set are dealt by the policy.
        if self.association_with_path(&key).is_some() {
            return (key, None);
        }
        let pair = (key.local, key.remote);
        let of_label = source_port(key.options.flow_label);
        let of_label = of_label.and_then(|port| lag.leaves_by(pair, port));
        let Some(port) = self.least_loaded(lag, pair, &self.peers.loads, of_label, None) else {
            return (key, None);
        };
        let of_way = |way| {
            let key = PeerKey { way, ..key };
            (key, self.peers.by_key(&key).and_then(|peer| self.peers.get(peer)))
        };
        let ways = || (0..WAYS).map(of_way);
        let by_port = |peer: &Peer| peer.leaves_by == Some(port);
        let shared = ways()
            .filter_map(|(key, peer)| Some((key, peer?)))
            .min_by_key(|(_, peer)| (!by_port(peer), peer.qpns.len()));
        let free = ways().find(|(_, peer)| peer.is_none());
        let wanted = shared.filter(|(_, peer)| by_port(peer) && self.peers.len() > CROWDED);
        match (wanted, free, shared) {
            (Some((key, _)), ..) | (None, None, Some((key, _))) => (key, None),
            (None, Some((key, _)), _) => (key, Some(port)),
            (None, None, None) => (key, None),
        }
    }

    /// A source port by which a peer's packets leave by this port of its bond: that of its flow label, or
    /// else one that another path has, so that few sockets are needed.
    pub(crate) fn port_by(&mut self, pair: Pair, flow_label: u32, member: u32) -> u16 {
        let Some(lag) = self.local.lag(self.local.ifindex_of(pair.0)) else {
            return self.draw_port(pair, 0);
        };
        let leads = |port: u16| lag.leaves_by(pair, port) == Some(member);
        if let Some(port) = source_port(flow_label).filter(|port| leads(*port)) {
            return port;
        }
        let mut ports = Vec::new();
        let mut shared = None;
        for (_, path) in self.paths.iter() {
            let address = &path.address;
            let port = address.source_port;
            // The port of a flow label is left to its own path.
            let labelled = source_port(address.flow_label) == Some(port);
            if !matches!(path.role, Role::Plain { .. }) || labelled || address.local != pair.0 {
                continue;
            }
            if leads(port) && (shared.is_none() || address.remote == pair.1) {
                shared = Some((port, address.remote == pair.1));
            }
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        match shared {
            Some((port, of_pair)) if of_pair || ports.len() >= PORTS_ENOUGH => port,
            _ => self.draw_port_by(pair, member),
        }
    }

    /// The ports of its bond by which a peer may be reached: those that it was silent by only if there is no
    /// other.
    pub(crate) fn fit_ports(&self, lag: &Lag, pair: Pair) -> Vec<u32> {
        let usable = || lag.members.iter().filter(|port| port.usable).map(|port| port.ifindex);
        let fit: Vec<u32> = usable().filter(|port| !self.is_silent_by(pair, *port)).collect();
        if fit.is_empty() { usable().collect() } else { fit }
    }

    /// The port that queue pairs with a peer keep to by its policy, if it is one of these.
    fn kept_to_of(&self, pair: Pair, fit: &[u32]) -> Option<u32> {
        match self.usage.mode_of(pair.1) {
            Mode::Affinity(AffinityRule::Interface(port)) => Some(port).filter(|p| fit.contains(p)),
            _ => None,
        }
    }

    /// The port of the bond that the policy keeps to, or else with the fewest queue pairs. Of several, the
    /// one that is wanted, or else the first in an order that begins elsewhere for each lane and peer.
    pub(crate) fn least_loaded(
        &self,
        lag: &Lag,
        pair: Pair,
        loads: &Loads,
        wanted: Option<u32>,
        other_than: Option<u32>,
    ) -> Option<u32> {
        let fit = self.fit_ports(lag, pair);
        let first = (spread(pair.0, pair.1, 0) as usize).wrapping_add(self.lane.slot.into());
        let count = lag.members.len().max(1);
        let place = |port: &u32| {
            let at = lag.members.iter().position(|member| member.ifindex == *port);
            (at.unwrap_or(0) + count - first % count) % count
        };
        let kept_to = self.kept_to_of(pair, &fit);
        let others = fit.into_iter().filter(|port| Some(*port) != other_than);
        others.min_by_key(|port| {
            let away = kept_to.is_some_and(|kept_to| kept_to != *port);
            (away, loads.of(pair, *port), wanted != Some(*port), place(port))
        })
    }

    /// Counts the queue pairs of a peer anew. To be called whenever they, or whether they are dealt, change.
    pub(crate) fn recount(&mut self, peer: PeerId) {
        let load = self.peers.get(peer).and_then(|p| self.load_of(p));
        self.peers.set_load(peer, load);
    }

    /// The queue pairs of a peer, and those that may migrate to it, if they are dealt.
    pub(crate) fn load_of(&self, p: &Peer) -> Option<Load> {
        let is_dealt = p.association.is_none() && self.bond_of(p).is_some();
        let lanes = usize::from(p.lane_pair().is_some());
        let count = p.qpns.len() - lanes + p.reserved.difference(&p.qpns).count();
        let (pair, port) = ((p.key.local, p.key.remote), p.leaves_by.unwrap_or(0));
        is_dealt.then_some(Load { pair, port, count })
    }

    fn hands(&self, bond: u32) -> Vec<Hand> {
        let hand = |(peer, p): (PeerId, &Peer)| {
            let load = self.load_of(p)?;
            self.bond_between(&p.key).filter(|lag| lag.ifindex == bond)?;
            let tries = self.paths.get(p.own).is_some_and(|path| path.tried_since.is_some());
            Some(Hand { peer, load, tries, keeps: false })
        };
        self.peers.iter().filter_map(hand).collect()
    }

    /// Deals the plain queue pairs of the bonds by which these peers are reached.
    pub(crate) fn deal_for(&mut self, peers: &[PeerId]) {
        let used = |peer: &PeerId| self.peers.get(*peer).filter(|p| !p.qpns.is_empty());
        let bonds = peers.iter().filter_map(used).map(|p| self.local.ifindex_of(p.key.local));
        let bonds: BTreeSet<u32> = bonds.collect();
        bonds.into_iter().for_each(|bond| self.deal(bond));
    }

    /// Deals the plain queue pairs of all bonds anew, after bonds or addresses have changed.
    pub(crate) fn deal_all(&mut self) {
        let peers: Vec<PeerId> = self.peers.iter().map(|(peer, _)| peer).collect();
        peers.into_iter().for_each(|peer| self.recount(peer));
        let bonds: Vec<u32> = self.local.lags().iter().map(|lag| lag.ifindex).collect();
        bonds.into_iter().for_each(|bond| self.deal(bond));
    }

    /// Deals the plain queue pairs of the bond anew that this interface is, or stands on: those whose port
    /// cannot be used move, and then as few as possible, so that the ports share them evenly.
    pub(crate) fn deal(&mut self, bond: u32) {
        let Some(lag) = self.local.lag(bond).cloned() else { return };
        let mut hands = self.hands(lag.ifindex);
        let mut loads = self.peers.loads.clone();
        let before: Vec<u32> = hands.iter().map(|hand| hand.load.port).collect();
        for hand in hands.iter_mut() {
            let Load { pair, port, .. } = hand.load;
            let fit = self.fit_ports(&lag, pair);
            let kept_to = self.kept_to_of(pair, &fit);
            hand.keeps = kept_to.is_some();
            let is_fit = kept_to.unwrap_or(port) == port && fit.contains(&port);
            let stays = is_fit || hand.tries && lag.sends_by(port);
            let to = self.least_loaded(&lag, pair, &loads, None, None).filter(|_| !stays);
            if let Some(to) = to {
                hand.deal(&mut loads, to);
            }
        }
        // Each move makes the shares of its two addresses more even, or leaves these as they are and makes
        // those of the bond more even. So this ends.
        let mut moved = true;
        while core::mem::take(&mut moved) {
            let may_move = |hand: &&mut Hand| !hand.tries && !hand.keeps && hand.load.count > 0;
            for hand in hands.iter_mut().filter(may_move) {
                let Load { pair, port, count } = hand.load;
                let Some(to) = self.least_loaded(&lag, pair, &loads, None, Some(port)) else {
                    continue;
                };
                let (here, there) = (loads.of(pair, port), loads.of(pair, to));
                // From the one with the most, or more would move than needed.
                let most = |port: &LagMember| loads.of(pair, port.ifindex) <= here;
                if !lag.members.iter().filter(|port| port.usable).all(most) {
                    continue;
                }
                let with = (there.0 + count, there.1 + count);
                if here.0 > with.0 || here.0 == with.0 && here.1 > with.1 {
                    hand.deal(&mut loads, to);
                    moved = true;
                }
            }
        }
        for (hand, before) in hands.iter().zip(before) {
            let Load { pair, port, .. } = hand.load;
            let lost = port != before && !lag.sends_by(before);
            self.leave_by(hand.peer, port);
            if self.is_silent_by(pair, before) {
                self.try_later(hand.peer);
            }
            let own = self.peers.get(hand.peer).map(|p| p.own);
            if let Some(path) = own.filter(|_| lost) {
                self.push_event(PathEvent::PathHeard { path });
            }
        }
    }

    /// Has the plain queue pairs of a peer leave by this port of their bond, if the bond sends by it. While
    /// it sends by none, the source port stays.
    pub(crate) fn leave_by(&mut self, peer: PeerId, port: u32) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        let moved = p.leaves_by.replace(port) != Some(port);
        let (own, pair) = (p.own, (p.key.local, p.key.remote));
        if moved {
            self.recount(peer);
        }
        let Some(path) = self.paths.get(own).filter(|path| matches!(path.role, Role::Plain { .. }))
        else {
            return;
        };
        let (current, flow_label) = (path.address.source_port, path.address.flow_label);
        let lag = self.peers.get(peer).and_then(|p| self.bond_of(p));
        let by = lag.map(|lag| (lag.sends_by(port), lag.leaves_by(pair, current)));
        let Some((usable, by)) = by else { return };
        if usable && by != Some(port) {
            let to = self.port_by(pair, flow_label, port);
            self.set_port(own, to);
        }
        if moved {
            self.try_port(peer, port);
        }
    }
}

impl Hand {
    fn deal(&mut self, loads: &mut Loads, to: u32) {
        loads.take(self.load);
        self.load.port = to;
        loads.add(self.load);
    }
}
