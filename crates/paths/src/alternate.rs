//! Alternate paths of queue pairs (automatic path migration, IBTA 17.2.8): a second peer that a queue
//! pair has in reserve, with addresses of its own, which may become its peer.
//!
//! It is for peers that know only plain RoCEv2, so no handshake goes by it. The path set of a
//! multi-path peer does by itself what an alternate path is for; there, the alternate path only says which
//! path of the set the program would like best ([`two_paths`](crate::two_paths)).

use core::net::IpAddr;
use core::time::Duration;

use crate::config::PathOptions;
use crate::id::Qpn;
use crate::manager::PathManager;
use crate::select::Line;
use crate::types::{AttachError, Refused};
use polypath_types::{PathId, PathKind, PathTag, PeerId};
use polypath_wire::flow_label::{is_another_port, source_port};

/// By which path a packet came, and whether that is one of its queue pair's peer, or of its alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The path.
    pub path: PathId,
    /// It is a path of the peer.
    pub primary: bool,
    /// It leads between the same addresses as the alternate path.
    pub alternate: bool,
    /// It is the alternate path because of the source port: the addresses are those of the primary path, too.
    pub by_port: bool,
    /// The source port tells the two paths apart, and it was neither's.
    pub other_port: bool,
}

impl PathManager {
    /// Loads an alternate path between these addresses, in place of the one before.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); what was loaded before stays. A queue pair that is not attached is an
    /// error as well.
    pub fn set_alternate(
        &mut self,
        now: Duration,
        qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<PeerId, AttachError> {
        self.advance(now);
        let qpn = Qpn(qpn);
        let Some(remote_qpn) = self.qps.get(&qpn).map(|qp| qp.remote_qpn) else {
            return Err(AttachError::NotAttached(qpn.0));
        };
        let options = PathOptions { multipath: false, ..options };
        let index = self.peer_for(qpn, remote_qpn, local, remote, options)?;
        // The new one first: the two may be the same.
        if let Some(peer) = self.peers.get_mut(index) {
            peer.reserved.insert(qpn);
        }
        self.take_port_of_label(index);
        self.recount(index);
        let before = self.qps.get_mut(&qpn).and_then(|qp| qp.alternate.replace(index));
        self.unreserve(qpn, before.filter(|before| *before != index));
        // Either may have left its port when that said nothing yet.
        let primary = self.qps.get(&qpn).map(|qp| qp.peer);
        for peer in primary.into_iter().chain([index]) {
            self.come_home_soon(peer);
        }
        Ok(index)
    }

    /// A path that is held in reserve leaves by the port of its flow label, which may be all that tells it
    /// from the primary one.
    fn take_port_of_label(&mut self, peer: PeerId) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        let Some(port) = source_port(p.key.options.flow_label).filter(|_| p.leaves_by.is_some())
        else {
            return;
        };
        p.leaves_by = None;
        let own = p.own;
        self.try_later(peer);
        self.set_port(own, port);
    }

    /// Gives up the alternate path of a queue pair, if it has one.
    pub fn clear_alternate(&mut self, now: Duration, qpn: u32) {
        self.advance(now);
        let qpn = Qpn(qpn);
        let before = self.qps.get_mut(&qpn).and_then(|qp| qp.alternate.take());
        self.unreserve(qpn, before);
    }

    /// The queue pair changes to its alternate path, which also stays loaded. Bytes that it had in flight
    /// must have been given to [`PathManager::lost`] before. Returns its peer from now on; `None` if it
    /// has no alternate path.
    pub fn migrate(&mut self, now: Duration, qpn: u32) -> Option<PeerId> {
        self.advance(now);
        let qpn = Qpn(qpn);
        let qp = self.qps.get(&qpn)?;
        let (remote_qpn, alternate) = (qp.remote_qpn, qp.alternate?);
        if qp.peer != alternate {
            self.leave_peer(qpn);
            self.attach_to(alternate, qpn, remote_qpn);
        }
        Some(alternate)
    }

    /// The queue pairs that have the peer as their alternate, and another one as their peer.
    pub fn reserved_by(&self, peer: PeerId) -> Vec<u32> {
        let Some(p) = self.peers.get(peer) else { return Vec::new() };
        p.reserved.difference(&p.qpns).map(|qpn| qpn.0).collect()
    }

    /// The main path of the peer of a queue pair, and that of its alternate. If the peer is a multi-path one,
    /// the active path and the best other one, as far as there are such
    /// ([`two_paths`](Self::two_paths)).
    pub fn both_paths(&self, qpn: u32) -> [Option<PathId>; 2] {
        let qp = self.qps.get(&Qpn(qpn));
        let [primary, alternate] = [qp.map(|qp| qp.peer), qp.and_then(|qp| qp.alternate)]
            .map(|peer| Some(self.peers.get(peer?)?.main));
        let of_set = self.two_paths(qpn).filter(|_| self.is_agreed(qpn));
        let other = of_set.and_then(|two| two.other);
        [of_set.map(|two| two.active).or(primary), other.or(alternate)]
    }

    /// The length of the network prefix of an address of this host, in bits; `None` if it is none of ours.
    pub fn prefix_len(&self, ip: IpAddr) -> Option<u8> {
        self.local.list().iter().find(|a| a.ip == ip).map(|a| a.prefix_len)
    }

    /// Whether a path to the peer lives.
    pub fn is_reachable(&self, peer: PeerId) -> bool {
        self.peers.get(peer).is_some_and(|p| p.outage.is_none())
    }

    /// The same as [`classify`](Self::classify), for a queue pair that has an alternate path. If both paths
    /// lead between the same addresses, the source port `from_port` tells by which of them the packet came:
    /// by the alternate one if it is the port of that path's flow label, else by the primary one, whose port
    /// may change ([`ports`](crate::ports)). A port of 0 is not known.
    ///
    /// # Errors
    /// The packet came by neither; it is counted.
    pub fn classify_with(
        &mut self,
        (peer, alternate): (PeerId, PeerId),
        (src, dst, kind, from_port): (IpAddr, IpAddr, PathKind, u16),
        tag: Option<PathTag>,
        bytes: usize,
    ) -> Result<Found, Refused> {
        let line = Line { kind, pair: (dst, src) };
        let reserve = if tag.is_some() { None } else { self.find_path(alternate, line, None).ok() };
        let primary = self.find_path(peer, line, tag).is_ok();
        let port =
            if reserve.is_some() && primary { self.port_in_reserve(peer, alternate) } else { None };
        let by_port = port == Some(from_port);
        let Some(reserve) = reserve.filter(|_| !primary || by_port) else {
            let path = self.classify(peer, src, dst, kind, tag, bytes)?;
            let alternate = reserve.is_some() && port.is_none();
            let is_told = port.is_some() && !by_port && from_port > 0;
            let other_port = is_told && self.port_of(peer).is_some_and(|own| own != from_port);
            return Ok(Found { path, primary: true, alternate, by_port, other_port });
        };
        let path = self.classify(alternate, src, dst, kind, None, bytes)?;
        debug_assert_eq!(path, reserve);
        Ok(Found { path, primary: false, alternate: true, by_port, other_port: false })
    }

    /// The source port of a peer's flow label, if it has one.
    fn port_of(&self, peer: PeerId) -> Option<u16> {
        source_port(self.peers.get(peer)?.key.options.flow_label)
    }

    /// The source port of the alternate path, if that is what tells the two apart.
    fn port_in_reserve(&self, peer: PeerId, alternate: PeerId) -> Option<u16> {
        let key = |peer| self.peers.get(peer).map(|p| p.key);
        let (primary, reserve) = (key(peer)?, key(alternate)?);
        let label = reserve.options.flow_label;
        let same_ends = (primary.local, primary.remote) == (reserve.local, reserve.remote);
        let told = same_ends && is_another_port(label, primary.options.flow_label);
        source_port(label).filter(|_| told)
    }

    /// Whether the alternate path of a queue pair differs from its primary one by the source port only.
    pub(crate) fn has_port_in_reserve(&self, qpn: Qpn) -> bool {
        let qp = self.qps.get(&qpn);
        let both = qp.and_then(|qp| Some((qp.peer, qp.alternate?)));
        both.is_some_and(|(peer, alternate)| self.port_in_reserve(peer, alternate).is_some())
    }

    /// The alternate of a queue pair is not needed any more.
    pub(crate) fn unreserve(&mut self, qpn: Qpn, alternate: Option<PeerId>) {
        let Some(index) = alternate else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.reserved.remove(&qpn);
        self.recount(index);
        self.remove_if_unused(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LaneIdentity, LocalAddress};
    use crate::ports::PLAIN_CALM;
    use crate::types::PathEvent;

    const NOW: Duration = Duration::ZERO;
    const QPN: u32 = 0x01_0011;

    fn ip(net: u8, host: u8) -> IpAddr {
        [10, 0, net, host].into()
    }

    fn links(paths: &mut PathManager, up: [bool; 2]) {
        let list = [0, 1].map(|n| LocalAddress {
            ip: ip(n, 1),
            prefix_len: 24,
            ifindex: u32::from(n) + 2,
            link_up: up[usize::from(n)],
            usable: true,
            speed_mbps: 0,
        });
        paths.set_local(NOW, &list);
        assert_eq!(paths.check(), Ok(()));
    }

    fn manager() -> (PathManager, PeerId, PeerId) {
        let lane = LaneIdentity { instance: 1, slot: 1 };
        let mut paths = PathManager::new(Config::default(), lane, [0; 16]);
        links(&mut paths, [true; 2]);
        let options = PathOptions::default();
        let peer = paths.attach(NOW, QPN, 0x02_0022, ip(0, 1), ip(0, 2), options).unwrap();
        let alternate = paths.set_alternate(NOW, QPN, ip(1, 1), ip(1, 2), options).unwrap();
        assert_eq!(paths.check(), Ok(()));
        (paths, peer, alternate)
    }

    fn came(paths: &mut PathManager, peers: (PeerId, PeerId), net: u8) -> Option<(bool, bool)> {
        let way = (ip(net, 2), ip(net, 1), PathKind::Udp, 0);
        paths.classify_with(peers, way, None, 64).ok().map(|f| (f.primary, f.alternate))
    }

    #[test]
    fn packets_of_both_paths_are_told_apart_and_others_refused() {
        let (mut paths, peer, alternate) = manager();
        assert_eq!(came(&mut paths, (peer, alternate), 0), Some((true, false)));
        assert_eq!(came(&mut paths, (peer, alternate), 1), Some((false, true)));
        let refused = paths.refusals.unknown_source;
        assert_eq!(came(&mut paths, (peer, alternate), 2), None);
        assert_eq!(paths.refusals.unknown_source, refused + 1);
    }

    #[test]
    fn two_paths_between_the_same_addresses_are_told_apart_by_the_source_port() {
        let (mut paths, _, _) = manager();
        let label = |flow_label| PathOptions { flow_label, ..PathOptions::default() };
        let peer = paths.reattach(NOW, QPN, 0x02_0022, ip(0, 1), ip(0, 2), label(5)).unwrap();
        let reserve = |paths: &mut PathManager, flow_label| {
            paths.set_alternate(NOW, QPN, ip(0, 1), ip(0, 2), label(flow_label)).unwrap()
        };
        let alternate = reserve(&mut paths, 9);
        assert_ne!(peer, alternate);
        assert!(paths.has_port_in_reserve(Qpn(QPN)));
        let came = |paths: &mut PathManager, alternate, port| {
            let way = (ip(0, 2), ip(0, 1), PathKind::Udp, port);
            let found = paths.classify_with((peer, alternate), way, None, 64).unwrap();
            (found.primary, found.alternate, found.by_port, found.other_port)
        };
        assert_eq!(came(&mut paths, alternate, 0xc009), (false, true, true, false));
        // The peer's primary path may have changed its port.
        for (port, other_port) in [(0xc005, false), (0xd123, true), (0, false)] {
            assert_eq!(came(&mut paths, alternate, port), (true, false, false, other_port));
        }
        // Labels that choose no port, or the same one, tell nothing.
        for flow_label in [0, 5 ^ 1 | 1 << 14] {
            let alternate = reserve(&mut paths, flow_label);
            assert!(!paths.has_port_in_reserve(Qpn(QPN)));
            assert_eq!(came(&mut paths, alternate, 0xc005), (true, true, false, false));
        }
        let alternate = reserve(&mut paths, 9);
        assert_eq!(paths.migrate(NOW, QPN), Some(alternate));
        assert_eq!((paths.check(), paths.peers.get(peer).is_none()), (Ok(()), true));
        let address = paths.both_paths(QPN)[0].and_then(|path| paths.path(path).copied());
        assert_eq!(address.map(|a| (a.local, a.source_port)), Some((ip(0, 1), 0xc009)));
    }

    /// Both ends know a path by the port of its label, so it does not stay away from that for good.
    #[test]
    fn a_path_that_is_known_by_its_port_comes_back_to_it() {
        let (mut paths, _, _) = manager();
        let label = |flow_label| PathOptions { flow_label, ..PathOptions::default() };
        paths.reattach(NOW, QPN, 0x02_0022, ip(0, 1), ip(0, 2), label(5)).unwrap();
        let port_of = |paths: &PathManager| {
            let path = paths.both_paths(QPN)[0].unwrap();
            (path, paths.path(path).unwrap().source_port)
        };
        let (path, home) = port_of(&paths);
        let mut now = Duration::from_secs(100);
        paths.unheard(now, path);
        assert_ne!(port_of(&paths).1, home);
        assert_eq!(paths.next_deadline(), None, "nothing is in reserve, so the port says nothing");
        paths.set_alternate(now, QPN, ip(0, 1), ip(0, 2), label(9)).unwrap();
        let mut away = Vec::new();
        assert_eq!(paths.next_deadline(), Some(now + Duration::from_secs(2)));
        now += Duration::from_secs(2);
        paths.handle_timeout(now);
        assert_eq!((port_of(&paths).1, paths.next_deadline()), (home, None));
        for _ in 0..7 {
            now += Duration::from_secs(5);
            paths.unheard(now, path);
            assert_ne!(port_of(&paths).1, home);
            let back = paths.next_deadline().unwrap();
            away.push((back - now).as_secs());
            paths.handle_timeout(back);
            assert_eq!((port_of(&paths).1, paths.check()), (home, Ok(())));
            now = back;
        }
        // It leaves again soon after it has come.
        assert_eq!(away, [4, 8, 16, 32, 64, 64, 64]);
        now += PLAIN_CALM * 2;
        paths.unheard(now, path);
        assert_eq!(paths.next_deadline(), Some(now + Duration::from_secs(2)));
    }

    #[test]
    fn a_queue_pair_that_migrates_leaves_nothing_behind() {
        let (mut paths, peer, alternate) = manager();
        assert_eq!(paths.reserved_by(alternate), [QPN]);
        assert_eq!(paths.migrate(NOW, QPN), Some(alternate));
        assert_eq!(paths.check(), Ok(()));
        assert!(paths.peers.get(peer).is_none() && paths.reserved_by(alternate).is_empty());
        assert_eq!(paths.qpns_of(alternate).collect::<Vec<_>>(), [QPN]);
        assert_eq!(came(&mut paths, (alternate, alternate), 1), Some((true, true)));
        assert_eq!(came(&mut paths, (alternate, alternate), 0), None);
        // And back, as a program does that always has the other path in reserve.
        let options = PathOptions::default();
        let back = paths.set_alternate(NOW, QPN, ip(0, 1), ip(0, 2), options).unwrap();
        assert_eq!(paths.migrate(NOW, QPN), Some(back));
        assert_eq!(paths.check(), Ok(()));
        paths.detach(NOW, QPN);
        assert_eq!((paths.check(), paths.peers.iter().count()), (Ok(()), 0));
        assert_eq!(paths.migrate(NOW, QPN), None);
    }

    #[test]
    fn the_alternate_path_survives_a_change_of_the_primary_one() {
        let (mut paths, _, alternate) = manager();
        let options = PathOptions::default();
        paths.reattach(NOW, QPN, 0x02_0022, ip(1, 1), ip(1, 3), options).unwrap();
        assert_eq!((paths.check(), paths.reserved_by(alternate)), (Ok(()), vec![QPN]));
        paths.clear_alternate(NOW, QPN);
        assert_eq!((paths.check(), paths.peers.get(alternate).is_none()), (Ok(()), true));
        let missing = paths.set_alternate(NOW, 0x01_0012, ip(1, 1), ip(1, 2), options);
        assert_eq!(missing, Err(AttachError::NotAttached(0x01_0012)));
    }

    #[test]
    fn an_alternate_path_without_a_link_is_out_of_reach() {
        let (mut paths, peer, alternate) = manager();
        links(&mut paths, [true, false]);
        assert!(paths.is_reachable(peer) && !paths.is_reachable(alternate));
        let events: Vec<_> = core::iter::from_fn(|| paths.poll_event()).collect();
        assert!(events.contains(&PathEvent::NoPath { peer: alternate }), "{events:?}");
        links(&mut paths, [true; 2]);
        assert!(paths.is_reachable(alternate));
    }
}
