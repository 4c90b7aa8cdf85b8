//! The peers of a lane: what queue pairs with the same ends share.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::config::PathOptions;
use crate::id::{AssociationId, Qpn};
use crate::key::Nonce;
use crate::loads::{Load, Loads};
use crate::policy::{AnyPolicy, OwnPolicies};
use crate::select::Pair;
use crate::slab::Slab;
use crate::types::{Reason, StreamEnds};
use polypath_types::{PathId, PeerId};

/// The properties that queue pairs of one peer have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerKey {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) slot: u8,
    pub(crate) options: PathOptions,
    /// Which of the paths over a bond of the kernel's its plain queue pairs share
    /// ([`dealing`](crate::dealing)); 0 where they have no choice.
    pub(crate) way: u8,
}

impl PeerKey {
    /// The ends of the TCP stream that the peer's first path would need.
    pub(crate) fn stream_ends(&self) -> StreamEnds {
        StreamEnds { local: self.local, remote: self.remote, slot: self.slot }
    }
}

/// A peer without any path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) since: Duration,
    /// The same by the clock that stands still while the lane does not run.
    pub(crate) awake: Duration,
    /// The hold time is over.
    pub(crate) given_up: bool,
}

/// A fail-over whose first progress has not come yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailOver {
    pub(crate) since: Duration,
    pub(crate) reason: Reason,
}

/// The path of one queue pair that is not its peer's ([`detour`](crate::detour)).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detour {
    pub(crate) path: PathId,
    pub(crate) since: Duration,
    /// Path numbers that were tried since there was progress last, or since all had been tried.
    pub(crate) tried: u8,
    /// How often all had been tried since there was progress last.
    pub(crate) rounds: u8,
}

/// A remote lane, as reached by one pair of addresses with the same options.
///
/// `PathManager::check` ensures:
///
/// - `main` is usable unless there is an [`outage`](Self::outage). During one it is not up, unless it has
///   left the association's set; it is suspect when the peer has been silent on all paths. There is no
///   route until the hold time is over; then queue pairs get `main` back to run out of retries on. The
///   hold timer runs exactly until then.
/// - `main` is `own`, or another path of the peer's association. Without an association it is `own`.
/// - Detours are of its queue pairs, by paths of its association. So are policies of single queue pairs.
/// - `pending` is not `association`: a peer that joins an association does not keep it as pending. A
///   `plain` peer has no association.
/// - A peer without queue pairs is the alternate of some, or has an association, which has yet to say
///   farewell.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) key: PeerKey,
    /// The path with the peer's own addresses.
    pub(crate) own: PathId,
    /// The path that reports name: its data goes by it, unless the policy spreads it. While no path can
    /// carry data, the last one that could.
    pub(crate) main: PathId,
    /// The index of the bond's port that its own path is to leave by, if its plain queue pairs are dealt.
    pub(crate) leaves_by: Option<u32>,
    /// What it counts for in [`Peers::loads`].
    pub(crate) load: Option<Load>,
    /// Decides which path its data uses.
    pub(crate) policy: AnyPolicy,
    /// The policies of those of its queue pairs that have another one.
    pub(crate) own_policies: OwnPolicies,
    pub(crate) association: Option<AssociationId>,
    /// An association that the peer proposed but has not proven yet.
    pub(crate) pending: Option<AssociationId>,
    pub(crate) nonce: Nonce,
    /// When it was last told by which association it is known here, apart from handshakes that are due.
    pub(crate) told_at: Option<Duration>,
    pub(crate) qpns: BTreeSet<Qpn>,
    /// Those of them for which no handshake has agreed on several paths.
    pub(crate) unagreed: BTreeSet<Qpn>,
    /// The queue pairs that may migrate to it, or have migrated to it.
    pub(crate) reserved: BTreeSet<Qpn>,
    pub(crate) outage: Option<Outage>,
    /// A queue pair waits for room in the window of one of its paths.
    pub(crate) blocked: bool,
    /// Handshakes went unanswered: most likely it knows only plain RoCEv2.
    pub(crate) plain: bool,
    /// That is so, but nothing at all has come from the peer yet.
    pub(crate) unheard: bool,
    /// Queue pairs with a path of their own, few if any.
    pub(crate) detours: BTreeMap<Qpn, Detour>,
    pub(crate) failover: Option<FailOver>,
    pub(crate) failovers: u64,
    pub(crate) last_blackout: Option<(Duration, Reason)>,
}

impl Peer {
    /// Its queue pairs, without the pair of lanes. They have the lowest numbers.
    pub(crate) fn connected(&self) -> impl Iterator<Item = &Qpn> + Clone + '_ {
        self.qpns.iter().take_while(|qpn| !qpn.is_lane_pair())
    }

    /// The pair of lanes that exchanges datagrams with it, if there is one.
    pub(crate) fn lane_pair(&self) -> Option<Qpn> {
        self.qpns.last().copied().filter(|qpn| qpn.is_lane_pair())
    }

    pub(crate) fn new(key: PeerKey, own: PathId, policy: AnyPolicy, nonce: Nonce) -> Self {
        Self {
            key,
            own,
            main: own,
            leaves_by: None,
            load: None,
            policy,
            own_policies: OwnPolicies::default(),
            association: None,
            pending: None,
            nonce,
            told_at: None,
            qpns: BTreeSet::new(),
            unagreed: BTreeSet::new(),
            reserved: BTreeSet::new(),
            outage: None,
            blocked: false,
            plain: false,
            unheard: false,
            detours: BTreeMap::new(),
            failover: None,
            failovers: 0,
            last_blackout: None,
        }
    }

    /// Whether its data uses this path of its set. If so, its queue pairs are told when the window
    /// opens and when the path dies.
    pub(crate) fn uses(&self, path: PathId) -> bool {
        self.main == path
            || self.spreads()
            || self.own == path && self.has_unagreed()
            || self.detours.values().any(|detour| detour.path == path)
    }

    /// Whether one of its queue pairs may have a path of its own. Without an association all have the same.
    pub(crate) fn has_ways(&self) -> bool {
        !self.detours.is_empty() || self.association.is_some() && self.has_unagreed()
    }

    /// Whether a queue pair is not agreed, the pair of lanes apart.
    fn has_unagreed(&self) -> bool {
        self.unagreed.first().is_some_and(|qpn| !qpn.is_lane_pair())
    }

    /// Whether data of one of its queue pairs uses other paths than the main one, detours apart.
    pub(crate) fn spreads(&self) -> bool {
        self.policy.spreads() || self.own_policies.spread()
    }

    /// The policy that decides for a queue pair.
    #[inline]
    pub(crate) fn policy_for(&mut self, qpn: Qpn) -> &mut AnyPolicy {
        if self.own_policies.may_have(qpn)
            && let Some(own) = self.own_policies.get_mut(qpn)
        {
            return own;
        }
        &mut self.policy
    }

    /// Whether it has no path, and queue pairs wait for one.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.outage.is_some_and(|outage| !outage.given_up)
    }
}

/// All peers, by their names and by what queue pairs share one for.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    table: Slab<PeerId, Peer>,
    by_key: BTreeMap<PeerKey, PeerId>,
    /// How many of their queue pairs leave by the ports of bonds.
    pub(crate) loads: Loads,
}

impl Peers {
    /// `limit`: most peers at a time.
    pub(crate) fn new(limit: usize) -> Self {
        Self { table: Slab::new(limit), by_key: BTreeMap::new(), loads: Loads::default() }
    }

    /// Sets what a peer counts for in [`Peers::loads`].
    pub(crate) fn set_load(&mut self, peer: PeerId, load: Option<Load>) {
        let Some(p) = self.table.get_mut(peer) else { return };
        if let Some(before) = core::mem::replace(&mut p.load, load) {
            self.loads.take(before);
        }
        if let Some(load) = load {
            self.loads.add(load);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.table.is_full()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is a peer with these addresses.
    pub(crate) fn are_between(&self, (local, remote): Pair) -> bool {
        let options = PathOptions::default();
        let first = PeerKey { local, remote, slot: 0, options, way: 0 };
        let next = self.by_key.range(first..).next();
        next.is_some_and(|(key, _)| (key.local, key.remote) == (local, remote))
    }

    #[inline]
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.table.get(peer)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.table.get_mut(peer)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.table.iter()
    }

    pub(crate) fn iter_from(&self, from: PeerId) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.table.iter_from(from)
    }

    pub(crate) fn by_key(&self, key: &PeerKey) -> Option<PeerId> {
        self.by_key.get(key).copied()
    }

    /// A peer that differs in its options or way only: to the other side it is the same.
    pub(crate) fn sibling(&self, key: &PeerKey) -> Option<&Peer> {
        self.table.get(self.alike(key).next()?)
    }

    /// The peers that differ from `key` in their options and way at most.
    pub(crate) fn siblings(&self, key: &PeerKey) -> Vec<PeerId> {
        self.alike(key).collect()
    }

    fn alike(&self, key: &PeerKey) -> impl Iterator<Item = PeerId> + '_ {
        let ends = |k: &PeerKey| (k.local, k.remote, k.slot);
        let (wanted, first) =
            (ends(key), PeerKey { options: PathOptions::default(), way: 0, ..*key });
        self.by_key
            .range(first..)
            .take_while(move |(k, _)| ends(k) == wanted)
            .map(|(_, peer)| *peer)
    }

    /// `None`: there are too many.
    pub(crate) fn insert(&mut self, peer: Peer) -> Option<PeerId> {
        let key = peer.key;
        let index = self.table.insert(peer)?;
        self.by_key.insert(key, index);
        Some(index)
    }

    pub(crate) fn remove(&mut self, peer: PeerId) -> Option<Peer> {
        self.set_load(peer, None);
        let removed = self.table.remove(peer)?;
        self.by_key.remove(&removed.key);
        Some(removed)
    }

    /// # Errors
    /// Names and keys do not agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.table.check()?;
        let mut loads = Loads::default();
        self.iter().filter_map(|(_, peer)| peer.load).for_each(|load| loads.add(load));
        if loads != self.loads {
            return Err(format!("{:?} are counted, and there are {loads:?}", self.loads));
        }
        if self.by_key.len() != self.table.len() {
            return Err(format!("{} peers have {} keys", self.table.len(), self.by_key.len()));
        }
        for (key, &index) in &self.by_key {
            if self.table.get(index).is_none_or(|peer| peer.key != *key) {
                return Err(format!("{key:?} is not the key of {index:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mode;

    fn key(host: u8, slot: u8, flow_label: u32) -> PeerKey {
        let options = PathOptions { flow_label, ..PathOptions::default() };
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        PeerKey { local: ip(1), remote: ip(host), slot, options, way: 0 }
    }

    fn add(peers: &mut Peers, key: PeerKey, nonce: u8) -> Option<PeerId> {
        let policy = AnyPolicy::of(Mode::default());
        peers.insert(Peer::new(key, PathId(0), policy, Nonce([nonce; 16])))
    }

    #[test]
    fn a_peer_is_found_by_its_key_until_it_is_gone() {
        let mut peers = Peers::new(2);
        let first = add(&mut peers, key(2, 1, 0), 1).unwrap();
        let second = add(&mut peers, key(2, 2, 0), 2).unwrap();
        assert!(peers.is_full() && add(&mut peers, key(3, 1, 0), 3).is_none());
        assert_eq!(peers.by_key(&key(3, 1, 0)), None, "one that found no room leaves nothing");
        assert_eq!(peers.by_key(&key(2, 2, 0)), Some(second));
        assert_eq!(peers.remove(first).unwrap().key, key(2, 1, 0));
        assert!(peers.remove(first).is_none() && peers.by_key(&key(2, 1, 0)).is_none());
        assert_eq!(peers.check(), Ok(()));
    }

    #[test]
    fn peers_that_differ_in_their_options_only_are_siblings() {
        let mut peers = Peers::new(8);
        add(&mut peers, key(2, 1, 7), 1);
        add(&mut peers, key(2, 2, 0), 2);
        let nonce = |peers: &Peers, k| peers.sibling(&k).map(|p| p.nonce.0[0]);
        assert_eq!(nonce(&peers, key(2, 1, 9)), Some(1));
        assert_eq!(nonce(&peers, key(2, 1, 3)), Some(1));
        assert_eq!(nonce(&peers, key(2, 2, 1)), Some(2));
        assert_eq!(nonce(&peers, key(3, 1, 0)), None);
    }

    #[test]
    fn a_peer_is_held_during_an_outage_until_it_is_given_up() {
        let mut peers = Peers::new(1);
        let index = add(&mut peers, key(2, 1, 0), 1).unwrap();
        let peer = peers.get_mut(index).unwrap();
        assert!(!peer.is_held());
        let outage = Outage { since: Duration::ZERO, awake: Duration::ZERO, given_up: false };
        peer.outage = Some(outage);
        assert!(peer.is_held());
        peer.outage = Some(Outage { given_up: true, ..outage });
        assert!(!peer.is_held(), "it gets its last path back");
    }
}
