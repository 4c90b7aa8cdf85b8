//! Queue pairs and address handles come and go.

use core::net::IpAddr;
use core::time::Duration;

use crate::bytes::spread;
use crate::config::PathOptions;
use crate::id::{AssociationId, Qpn};
use crate::key::Nonce;
use crate::manager::{MAX_PEERS, MAX_QUEUE_PAIRS, MAX_UD_PATHS, PathManager, Qp};
use crate::path::{Path, Role, source_port};
use crate::peers::{FailOver, Peer, PeerKey};
use crate::policy::AnyPolicy;
use crate::select::{Line, Pair};
use crate::timers::Timer;
use crate::types::{AttachError, PathAddress, PathEvent, PathState, Reason};
use crate::ud::UdKey;
use polypath_types::{PathId, PathKind, PeerId};

/// The paths that are remembered when they are gone.
const REMOVED_KNOWN: usize = 32;

impl PathManager {
    /// Attaches a queue pair (RC or UC) that is connected (RTR). If it may use several paths, the
    /// handshake with the peer begins; [`PathEvent::MultipathAgreed`] tells of its success.
    ///
    /// # Errors
    /// The number is attached already, the addresses do not match, or a table is full.
    pub fn attach(
        &mut self,
        now: Duration,
        qpn: u32,
        remote_qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<PeerId, AttachError> {
        self.advance(now);
        if self.qps.contains_key(&Qpn(qpn)) {
            return Err(AttachError::Attached(qpn));
        }
        if self.qps.len() >= MAX_QUEUE_PAIRS {
            return Err(AttachError::Limit("queue pairs", MAX_QUEUE_PAIRS));
        }
        let index = self.peer_for(Qpn(qpn), remote_qpn, local, remote, options)?;
        self.attach_to(index, Qpn(qpn), remote_qpn);
        Ok(index)
    }

    /// Attaches a queue pair to another peer than before, or anew to the same; one that is not attached, as
    /// [`attach`](Self::attach) does. Of bytes in flight, the same holds as for [`detach`](Self::detach).
    ///
    /// # Errors
    /// As [`attach`](Self::attach), but that it may be attached. It then stays attached as it was.
    pub fn reattach(
        &mut self,
        now: Duration,
        qpn: u32,
        remote_qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<PeerId, AttachError> {
        let Some(before) = self.qps.get(&Qpn(qpn)).map(|qp| qp.peer) else {
            return self.attach(now, qpn, remote_qpn, local, remote, options);
        };
        self.advance(now);
        let index = self.peer_for(Qpn(qpn), remote_qpn, local, remote, options)?;
        if index != before {
            self.leave_peer(Qpn(qpn));
        }
        self.attach_to(index, Qpn(qpn), remote_qpn);
        Ok(index)
    }

    /// The peer of a queue pair with this lane and these addresses, a new one if there is none.
    pub(crate) fn peer_for(
        &mut self,
        qpn: Qpn,
        remote_qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<PeerId, AttachError> {
        let (local, remote) = (local.to_canonical(), remote.to_canonical());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(AttachError::Family);
        }
        let options =
            PathOptions { multipath: options.multipath && self.config.multipath, ..options };
        let slot = (remote_qpn >> 16) as u8;
        let key = PeerKey { local, remote, slot, options, way: 0 };
        let (key, port) = if qpn.is_lane_pair() { (key, None) } else { self.dealt(qpn, key) };
        match self.peers.by_key(&key) {
            Some(index) => Ok(index),
            None => self.add_peer(key, port),
        }
    }

    pub(crate) fn attach_to(&mut self, index: PeerId, qpn: Qpn, remote_qpn: u32) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.qpns.insert(qpn);
        peer.unagreed.insert(qpn);
        peer.detours.remove(&qpn);
        let own = self.usage.queue_pairs.get(&qpn.0).or_else(|| self.kept_to.get(&qpn.0));
        peer.own_policies.set(qpn, own.copied());
        let (association, multipath) = (peer.association, peer.key.options.multipath);
        let (tell, tries, notified_at, stalled) = (false, 0, None, vec![]);
        let alternate = self.qps.get(&qpn).and_then(|qp| qp.alternate);
        let trusted = false;
        let qp =
            Qp { peer: index, remote_qpn, alternate, trusted, tell, tries, notified_at, stalled };
        self.qps.insert(qpn, qp);
        self.recount(index);
        // While no queue pair used it, nothing was probed.
        if let Some(index) = association
            && let Some(a) = self.associations.get_mut(index)
            && a.unused_since.take().is_some()
        {
            self.begin_anew(index);
        }
        if let Some(index) = association.filter(|_| !qpn.is_lane_pair()) {
            // It may have been of datagrams alone, which use fewer kinds of paths.
            self.lead(index);
        }
        if multipath && self.says_hello(qpn) {
            self.hello_due(qpn);
        }
    }

    /// `port`: the index of the bond's port that its own path is to leave by, if it matters.
    fn add_peer(&mut self, key: PeerKey, port: Option<u32>) -> Result<PeerId, AttachError> {
        if self.peers.is_full() {
            return Err(AttachError::Limit("peers", MAX_PEERS));
        }
        let mut address = self.address(key.local, key.remote, key.options, u32::from(key.slot));
        if let Some(port) = port {
            address.source_port = self.port_by((key.local, key.remote), address.flow_label, port);
        }
        let path = self.new_path(address, Role::Plain { peer: PeerId(0) });
        let down = path.state == PathState::Down;
        let own = self.paths.insert(path).ok_or(AttachError::Limit("paths", MAX_PEERS * 9))?;
        let sibling = self.peers.sibling(&key).map(|p| (p.nonce, p.plain));
        let (nonce, plain) = sibling.unwrap_or_else(|| (Nonce(self.random.bytes()), false));
        let policy = match self.make_policy {
            Some(make) => AnyPolicy::Other(make()),
            None => AnyPolicy::of(self.usage.mode_of(key.remote)),
        };
        let mut peer = Peer::new(key, own, policy, nonce);
        (peer.leaves_by, peer.plain) = (port, plain);
        let index = self.peers.insert(peer).ok_or(AttachError::Limit("peers", MAX_PEERS))?;
        if let Some(path) = self.paths.get_mut(own) {
            path.role = Role::Plain { peer: index };
        }
        if let Some(port) = port {
            self.try_port(index, port);
            self.try_later(index);
        }
        if let Some(a) = self.association_with_path(&key) {
            self.join(index, a);
        } else if down {
            self.begin_outage(index);
        }
        Ok(index)
    }

    /// A path outside of associations. It is up, or down if this host lacks its address or link.
    pub(crate) fn new_path(&self, address: PathAddress, role: Role) -> Path {
        let mut path = Path::new(address, role, &self.config);
        if let Some(reason) = self.local.fault(address.local, address.remote) {
            path.state = PathState::Down;
            path.reason = Some(reason);
        }
        path
    }

    /// The association with the same remote lane that has these addresses among its paths, and that the peer
    /// would choose too.
    pub(crate) fn association_with_path(&self, key: &PeerKey) -> Option<AssociationId> {
        let fits = |p: &PathId| {
            self.paths
                .get(*p)
                .is_some_and(|p| p.address.line() == Line::udp((key.local, key.remote)))
        };
        if !key.options.multipath {
            return None;
        }
        let associations = self.associations.between((key.local, key.remote));
        let fitting = associations.filter_map(|index| {
            let a = self.associations.get(index)?;
            let fits = a.confirmed && a.remote_slot == key.slot && a.paths().any(|(_, p)| fits(&p));
            fits.then(|| ((self.lives(a), a.rank()), index))
        });
        fitting.max_by_key(|(order, _)| *order).map(|(_, index)| index)
    }

    /// Forgets a queue pair. Bytes that it had in flight must have been given to
    /// [`PathManager::lost`] before. Unknown numbers are ignored.
    pub fn detach(&mut self, now: Duration, qpn: u32) {
        self.advance(now);
        let qpn = Qpn(qpn);
        self.leave_peer(qpn);
        let Some(qp) = self.qps.remove(&qpn) else { return };
        self.unreserve(qpn, qp.alternate);
    }

    /// Takes a queue pair from its peer; its alternate path stays.
    pub(crate) fn leave_peer(&mut self, qpn: Qpn) {
        let Some(index) = self.qps.get(&qpn).map(|qp| qp.peer) else { return };
        self.timers.set(Timer::Hello(qpn), None);
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.qpns.remove(&qpn);
        peer.unagreed.remove(&qpn);
        peer.detours.remove(&qpn);
        peer.policy.forget(qpn.0);
        peer.own_policies.set(qpn, None);
        self.recount(index);
        self.remove_if_unused(index);
    }

    /// Forgets a peer that no queue pair uses, or lets its association say farewell. An association keeps
    /// one peer: each connection of the connection manager has a flow label, and so a peer, of its own.
    pub(crate) fn remove_if_unused(&mut self, index: PeerId) {
        let Some(peer) = self.peers.get(index) else { return };
        if !peer.qpns.is_empty() {
            return;
        }
        let forgotten = peer.reserved.is_empty();
        let Some(association) = peer.association else {
            if forgotten {
                self.remove_peer(index);
            }
            return;
        };
        if forgotten
            && let Some(a) = self.associations.get_mut(association)
            && a.peers.len() > 1
        {
            a.peers.retain(|other| *other != index);
            self.remove_peer(index);
        }
        self.maybe_unused(association);
    }

    /// Begins the association's farewell when no queue pair is left.
    fn maybe_unused(&mut self, index: AssociationId) {
        let now = self.clock.now();
        let Some(a) = self.associations.get_mut(index) else { return };
        let used = a.peers.iter().any(|p| self.peers.get(*p).is_some_and(|p| !p.qpns.is_empty()));
        if !used {
            a.unused_since.get_or_insert(now);
            self.timers.no_later(Timer::Association(index), now);
        }
    }

    /// Forgets a peer that has neither queue pairs nor an association.
    pub(crate) fn remove_peer(&mut self, index: PeerId) {
        let Some(peer) = self.peers.remove(index) else { return };
        self.timers.set(Timer::Hold(index), None);
        self.timers.set(Timer::Port(index), None);
        if let Some(a) = peer.pending {
            self.remove_unproven(a, &peer.key);
        }
        self.release_path(peer.own);
        if !self.silences.is_empty() {
            self.forget_silences();
        }
    }

    /// Takes one user from the path; without users the path is removed.
    pub(crate) fn release_path(&mut self, index: PathId) {
        let Some(path) = self.paths.get_mut(index) else { return };
        path.users = path.users.saturating_sub(1);
        if path.users == 0 {
            let address = path.address;
            self.paths.remove(index);
            self.removed.truncate(REMOVED_KNOWN - 1);
            self.removed.push_front((index, address));
            self.timers.set(Timer::DownDelay(index), None);
            self.timers.set(Timer::Stream(index), None);
        }
    }

    /// The address of a path that was removed not long ago: events may name it after it is gone.
    pub fn former_address(&self, path: PathId) -> Option<&PathAddress> {
        self.removed.iter().find(|(id, _)| *id == path).map(|(_, address)| address)
    }

    /// The path of an address handle. Counted: give it back with [`PathManager::release_ud`].
    ///
    /// # Errors
    /// The addresses do not match, or there are too many.
    pub fn ud_path(
        &mut self,
        now: Duration,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<PathId, AttachError> {
        self.advance(now);
        let (local, remote) = (local.to_canonical(), remote.to_canonical());
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(AttachError::Family);
        }
        let key = UdKey { local, remote, options };
        if let Some(index) = self.ud.get(&key) {
            if let Some(path) = self.paths.get_mut(index) {
                path.users += 1;
            }
            return Ok(index);
        }
        if self.ud.len() >= MAX_UD_PATHS {
            return Err(AttachError::Limit("address handles' paths", MAX_UD_PATHS));
        }
        let address = self.address(local, remote, options, 0);
        let mut path = self.new_path(address, Role::Datagram);
        path.redirect = options.multipath.then(|| self.way_around(local, remote)).flatten();
        let limit = AttachError::Limit("address handles' paths", MAX_UD_PATHS);
        let index = self.paths.insert(path).ok_or(limit)?;
        self.ud.insert(key, index);
        Ok(index)
    }

    /// An address handle that used the path is gone.
    pub fn release_ud(&mut self, path: PathId) {
        let Some(p) = self.paths.get(path) else { return };
        if p.role != Role::Datagram {
            return;
        }
        let last = p.users == 1;
        if last {
            self.ud.remove(path);
        }
        self.release_path(path);
        if last {
            self.release_stand_in(path);
        }
    }

    /// Where datagrams for the path of an address handle go now: the path itself, or, if it is
    /// dead and an association knows another way to the same host, that one.
    #[inline]
    pub fn ud_route(&self, path: PathId) -> PathId {
        self.paths.get(path).and_then(|p| p.redirect).unwrap_or(path)
    }

    /// The live path of an association in which the path with these addresses is dead.
    fn way_around(&self, local: IpAddr, remote: IpAddr) -> Option<PathId> {
        self.associations.between((local, remote)).find_map(|index| {
            let a = self.associations.get(index)?;
            let paths = || a.paths().filter_map(|(_, i)| Some((i, self.paths.get(i)?)));
            let udp = |p: &Path| p.way().line == Line::udp((local, remote));
            let mut mine = paths().filter(|(_, p)| udp(p)).peekable();
            mine.peek()?;
            if mine.any(|(_, p)| p.usable()) {
                return None;
            }
            // Shared memory leads to one lane. Datagrams go to any lane of the host.
            let carries = |p: &Path| p.state == PathState::Up && p.address.kind == PathKind::Udp;
            paths().find(|(_, p)| carries(p)).map(|(i, _)| i)
        })
    }

    /// Called when the set of paths of an association changed, or the state of one of them. Takes note
    /// of the addresses, and leads datagrams between them around dead paths. The effort does not depend
    /// on how many other peers there are: when a link goes down, this is called for each of them.
    pub(crate) fn paths_changed(&mut self, index: AssociationId) {
        let pair = |p: PathId| {
            let line = self.paths.get(p)?.address.line();
            (line.kind == PathKind::Udp).then_some(line.pair)
        };
        let current: Vec<Pair> = self
            .associations
            .get(index)
            .map(|a| a.paths().filter_map(|(_, p)| pair(p)).collect())
            .unwrap_or_default();
        let Some(before) = self.associations.set_ends(index, &current) else { return };
        self.redirect(&before, &current);
    }

    /// The paths that led between the addresses `before` lead between `current` now: datagrams between
    /// any of them are led anew.
    pub(crate) fn redirect(&mut self, before: &[Pair], current: &[Pair]) {
        if self.ud.is_empty() {
            return;
        }
        for pair in before.iter().filter(|pair| !current.contains(pair)).chain(current) {
            self.redirect_between(*pair);
        }
    }

    fn redirect_between(&mut self, (local, remote): Pair) {
        let affected: Vec<_> = self.ud.between((local, remote)).collect();
        if affected.is_empty() {
            return;
        }
        let way = self.way_around(local, remote);
        for (options, index) in affected {
            if let Some(path) = self.paths.get_mut(index) {
                path.redirect = way.filter(|_| options.multipath);
            }
        }
    }

    /// How to address packets between two addresses.
    pub(crate) fn address(
        &self,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
        salt: u32,
    ) -> PathAddress {
        PathAddress {
            kind: PathKind::Udp,
            local,
            remote,
            ifindex: self.local.ifindex_of(local),
            source_port: source_port(options.flow_label, spread(local, remote, salt)),
            traffic_class: options.traffic_class,
            hop_limit: if options.hop_limit == 0 { 64 } else { options.hop_limit },
            flow_label: options.flow_label & 0xf_ffff,
        }
    }

    /// Gives queue pairs of a peer another path.
    pub(crate) fn switch(&mut self, peer: PeerId, to: PathId, reason: Reason) {
        let now = self.clock.now();
        let Some(p) = self.peers.get_mut(peer) else { return };
        let after_outage = p.outage.take();
        if p.main == to && after_outage.is_none() {
            return;
        }
        let old = core::mem::replace(&mut p.main, to);
        p.detours.retain(|_, detour| detour.path != to);
        let blocked = core::mem::take(&mut p.blocked);
        let fail_over = old != to && !matches!(reason, Reason::Primary | Reason::Association);
        if fail_over || after_outage.is_some() {
            if fail_over {
                p.failovers += 1;
            }
            let old_path = self.paths.get(old);
            let waiting = old_path.and_then(|o| {
                let since = o.outstanding_since?;
                Some(o.last_progress.map_or(since, |t| t.max(since)))
            });
            let since = waiting.or_else(|| after_outage.map(|o| o.since)).unwrap_or(now);
            p.failover = Some(FailOver { since: since.min(now), reason });
            // Traffic flows again with the first acknowledgement by any path that carries it.
            let others = p.association.filter(|_| p.policy.spreads());
            let others = others.map(|association| self.members(association)).unwrap_or_default();
            for path in others.into_iter().filter(|path| *path != old).chain([to]) {
                if let Some(path) = self.paths.get_mut(path).filter(|path| path.usable()) {
                    path.watched = true;
                }
            }
        }
        self.timers.set(Timer::Hold(peer), None);
        let from = after_outage.is_none().then_some(old);
        self.push_event(PathEvent::ActiveChanged { peer, from, to, reason });
        if blocked {
            self.push_event(PathEvent::WindowOpened { peer });
        }
        if after_outage.is_some() {
            self.hello_again(peer);
        }
    }

    /// The queue pairs that may have something outstanding on a path: those of all peers in its
    /// association, or those of its peer if it belongs to no association. If the path is gone by now,
    /// all queue pairs.
    pub fn qpns_on(&self, path: PathId) -> Vec<u32> {
        let association = match self.paths.get(path).map(|p| p.role) {
            // The path may have been in the association's set until just now.
            Some(Role::Plain { peer }) => match self.peers.get(peer).and_then(|p| p.association) {
                Some(association) => association,
                None => return self.qpns_of(peer).collect(),
            },
            Some(Role::Member { association, .. }) => association,
            Some(Role::Datagram) => return Vec::new(),
            None => return self.qpns().collect(),
        };
        let peers = self.associations.get(association).map(|a| &a.peers[..]).unwrap_or_default();
        peers.iter().flat_map(|peer| self.qpns_of(*peer)).collect()
    }

    /// All queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = u32> + '_ {
        self.qps.keys().take_while(|qpn| !qpn.is_lane_pair()).map(|qpn| qpn.0)
    }

    /// The queue pairs of a peer.
    pub fn qpns_of(&self, peer: PeerId) -> impl Iterator<Item = u32> + '_ {
        self.peers.get(peer).into_iter().flat_map(|p| p.connected().map(|qpn| qpn.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LaneIdentity, LocalAddress};

    #[test]
    fn the_path_of_an_address_handle_is_down_from_the_start_if_its_link_is() {
        let (now, ip) = (Duration::ZERO, |n: u8| IpAddr::from([10, 0, 0, n]));
        let mut paths =
            PathManager::new(Config::default(), LaneIdentity { instance: 1, slot: 1 }, [0; 16]);
        let link = |paths: &mut PathManager, link_up| {
            let (prefix_len, ifindex, speed_mbps) = (24, 2, 0);
            let usable = true;
            let ip = ip(1);
            paths.set_local(
                now,
                &[LocalAddress { ip, prefix_len, ifindex, link_up, usable, speed_mbps }],
            );
        };
        link(&mut paths, false);
        let path = paths.ud_path(now, ip(1), ip(2), PathOptions::default()).unwrap();
        let state = |paths: &PathManager| paths.paths.get(path).map(|p| (p.state, p.reason));
        assert_eq!(state(&paths), Some((PathState::Down, Some(Reason::LinkDown))));
        assert_eq!((paths.alive().count(), paths.check()), (0, Ok(())));
        link(&mut paths, true);
        assert_eq!(state(&paths), Some((PathState::Up, None)));
    }

    #[test]
    fn a_path_that_is_gone_is_remembered_for_those_who_name_it() {
        let (now, ip) = (Duration::ZERO, |n: u8| IpAddr::from([10, 0, 0, n]));
        let mut paths =
            PathManager::new(Config::default(), LaneIdentity { instance: 1, slot: 1 }, [0; 16]);
        let here = LocalAddress {
            ip: ip(1),
            prefix_len: 24,
            ifindex: 7,
            link_up: true,
            usable: true,
            speed_mbps: 0,
        };
        paths.set_local(now, &[here]);
        let path = paths.ud_path(now, ip(1), ip(2), PathOptions::default()).unwrap();
        // Its address goes first.
        paths.set_local(now, &[]);
        paths.release_ud(path);
        let named = |paths: &PathManager| {
            let address = paths.former_address(path);
            address.map(|address| (address.local, address.remote, address.ifindex))
        };
        assert_eq!((paths.path(path), named(&paths)), (None, Some((ip(1), ip(2), 7))));
        paths.set_local(now, &[here]);
        let keep: Vec<_> = (10..100)
            .map(|n| paths.ud_path(now, ip(1), ip(n), PathOptions::default()).unwrap())
            .collect();
        keep.into_iter().rev().for_each(|path| paths.release_ud(path));
        assert_eq!(paths.removed.len(), REMOVED_KNOWN);
    }
}
