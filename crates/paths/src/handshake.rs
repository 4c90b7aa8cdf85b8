//! The handshake: two lanes find out that both support path sets, and agree to use them for each queue
//! pair.
//!
//! HELLO tells nonce and addresses. HELLO_ACK answers with the other nonce, and its authentication code
//! proves that its sender derived the key. HELLO_DONE proves the same in the other direction. Each end
//! begins on its own when its queue pair reaches RTR, and repeats with growing intervals; the end that
//! begins second finds the other ready. A peer that never answers is used as plain RoCEv2, at the cost
//! of a few small packets.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::packet::Packet;

use crate::association::{Association, announce};
use crate::control::Source;
use crate::id::{AssociationId, Qpn};
use crate::key::{Ends, Key, Nonce};
use crate::lane_pairs::is_lane_number;
use crate::manager::{PathManager, Qp};
use crate::message::{HELLO_QKEY, Hello, HelloKind};
use crate::peers::Peer;
use crate::timers::Timer;
use crate::types::{PathAddress, PathEvent, Reason, Refused, StreamEnds};
use polypath_types::{PathId, PathKind, PeerAbilities, PeerId};

/// HELLOs sent before a peer is taken for a plain one: at 0, 1, 3, 7, … 255, 511, 1023 and 2047 ms.
const MAX_TRIES: u32 = 12;
/// The same if earlier queue pairs of the peer found it plain.
const MAX_TRIES_PLAIN: u32 = 4;

impl PathManager {
    /// Sends a HELLO for a queue pair, and sets the timer for the next one.
    pub(crate) fn hello_due(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let Some(peer) = self.peers.get_mut(qp.peer) else { return };
        let limit = if peer.plain { MAX_TRIES_PLAIN } else { MAX_TRIES };
        let tell = core::mem::take(&mut qp.tell);
        let agreed = !peer.unagreed.contains(&qpn);
        if agreed && !tell {
            return;
        }
        if qp.tries >= limit {
            peer.plain = peer.association.is_none();
            // Perhaps not even the network was there.
            let own = self.paths.get_mut(peer.own);
            if let Some(own) = own.filter(|own| peer.plain && own.heard_at.is_zero()) {
                (peer.unheard, own.watched) = (true, true);
            }
            return;
        }
        qp.tries += 1;
        // The pause doubles: 1 ms after the first, 2 ms after the second, …
        let pause = Duration::from_millis(1 << (qp.tries - 1).min(10));
        let (peer_index, remote_qpn, tries) = (qp.peer, qp.remote_qpn, qp.tries);
        // For a queue pair that is agreed, one HELLO is sent and not repeated.
        let again = (!agreed).then(|| self.clock.now() + pause);
        self.timers.set(Timer::Hello(qpn), again);
        let hello = Hello {
            kind: HelloKind::Hello,
            nonce: self.hello_nonce(peer_index),
            echo: Nonce::default(),
            association: 0,
            ..self.hello_base(peer_index, qpn, remote_qpn)
        };
        // The peer's own path and its main path take turns, the own path first, unless its address is gone.
        // Pairs of lanes are known by their addresses.
        let Some(peer) = self.peers.get(peer_index) else { return };
        let turns = match tries % 2 {
            _ if qpn.is_lane_pair() => [peer.own; 2],
            0 => [peer.main, peer.own],
            _ => [peer.own, peer.main],
        };
        let there = |path: PathId| {
            let address = self.paths.get(path)?.address;
            let fault = self.local.fault(address.local, address.remote);
            (fault != Some(Reason::AddressRemoved)).then_some(address)
        };
        let Some(address) = turns.into_iter().find_map(there) else { return };
        self.send_hello(&hello, None, address);
        // Datagrams go by UDP only.
        let Some(key) = self.peers.get(peer_index).map(|p| p.key).filter(|_| !qpn.is_lane_pair())
        else {
            return;
        };
        let ends = key.stream_ends();
        if self.streams.contains(&ends) {
            self.send_hello(&hello, None, PathAddress { kind: ends.kind(), ..address });
        } else if tries >= self.tries_before_stream(ends) {
            self.want_stream(ends);
        }
    }

    /// A path to the peer lives after a time in which none did. Queue pairs that are not agreed may have said
    /// their last HELLO in it. A peer that answered data and no HELLO before is left alone.
    pub(crate) fn hello_again(&mut self, peer: PeerId) {
        let asks = |p: &&mut Peer| p.key.options.multipath && (!p.plain || p.unheard);
        let Some(p) = self.peers.get_mut(peer).filter(asks) else { return };
        (p.plain, p.unheard) = (false, false);
        let mut open = p.unagreed.clone();
        open.retain(|qpn| self.says_hello(*qpn));
        open.into_iter().for_each(|qpn| self.hello_soon(qpn));
    }

    /// A path of the peer has carried something both ways. If it is the first sign of life, and came after
    /// the last HELLO, then no HELLO may have arrived: nobody says that the peer knows only plain RoCEv2.
    pub(crate) fn heard_at_last(&mut self, peer: PeerId) {
        if self.peers.get(peer).is_some_and(|p| p.unheard) {
            self.hello_again(peer);
        }
    }

    /// The first packet of a stream to a lane that there is no association with: a HELLO of a queue pair.
    pub(crate) fn hello_for(&self, ends: StreamEnds) -> Option<Vec<u8>> {
        let fits = |qp: &&Qp| {
            let key = self.peers.get(qp.peer).map(|p| p.key);
            key.is_some_and(|key| key.stream_ends() == ends && key.options.multipath)
        };
        let (qpn, qp) = self.qps.iter().find(|(qpn, qp)| !qpn.is_lane_pair() && fits(qp))?;
        let hello = Hello {
            nonce: self.hello_nonce(qp.peer),
            ..self.hello_base(qp.peer, *qpn, qp.remote_qpn)
        };
        Some(hello.encode(None, Ends { src: ends.local, dst: ends.remote }))
    }

    /// The nonce to send to the peer: that of its association, or else the peer's own.
    fn hello_nonce(&self, peer: PeerId) -> Nonce {
        let Some(peer) = self.peers.get(peer) else { return Nonce::default() };
        peer.association
            .and_then(|a| self.associations.get(a))
            .map_or(peer.nonce, |a| a.local_nonce)
    }

    fn hello_base(&self, peer: PeerId, qpn: Qpn, peer_qpn: u32) -> Hello {
        let peer = self.peers.get(peer);
        let anchor = peer.map(|p| (p.key.local, p.key.remote));
        let association = peer.and_then(|p| p.association).and_then(|a| self.associations.get(a));
        let (addresses, addresses_version) = match association {
            Some(a) => (a.announced.clone(), a.announced_version),
            None => (announce(&self.local.by_link(), anchor.as_slice(), &[]), self.first_version),
        };
        Hello {
            kind: HelloKind::Hello,
            slot: self.lane.slot,
            instance: self.lane.instance,
            nonce: Nonce::default(),
            echo: Nonce::default(),
            qpn: self.wire_number(qpn),
            peer_qpn,
            association: 0,
            receive_window: self.config.receive_window,
            abilities: self.config.abilities(),
            ports: self.config.ports,
            addresses_version,
            addresses,
        }
    }

    fn send_hello(&mut self, hello: &Hello, key: Option<&Key>, address: PathAddress) {
        let ends = Ends { src: address.local, dst: address.remote };
        let packet = hello.encode(key, ends);
        self.push_out(address, packet);
    }

    /// Takes a handshake packet of any kind.
    pub(crate) fn handle_hello(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        kind: PathKind,
        packet: &Packet<'_>,
    ) -> Result<(), Refused> {
        if !self.config.multipath {
            return Err(Refused::Disabled);
        }
        let deth = packet.headers.deth.ok_or(Refused::Malformed)?;
        let hello = Hello::decode(packet.payload)?;
        let qpn = Qpn(packet.headers.bth.dest_qpn);
        let consistent = deth.qkey == HELLO_QKEY
            && deth.src_qpn == hello.qpn
            && hello.peer_qpn == qpn.0
            && hello.qpn >> 16 == u32::from(hello.slot)
            && hello.nonce != Nonce::default()
            && !matches!(kind, PathKind::Tcp { slot } if slot != hello.slot);
        if !consistent {
            return Err(Refused::Malformed);
        }
        let qpn = match is_lane_number(qpn.0) {
            true if kind == PathKind::Udp && hello.kind != HelloKind::Ended => {
                self.lane_pair_of(&hello, src, dst)?
            }
            true => return Err(Refused::UnknownSource),
            false => qpn,
        };
        let qp = self.qps.get(&qpn).ok_or(Refused::NoQueuePair)?;
        if qp.remote_qpn != hello.qpn {
            return Err(Refused::NoQueuePair);
        }
        let peer = qp.peer;
        let key = self.peers.get(peer).ok_or(Refused::NoQueuePair)?.key;
        if !key.options.multipath {
            return Err(Refused::Disabled);
        }
        let own = (key.local, key.remote) == (dst, src);
        if !own && !self.between_known(peer, &hello, src, dst) {
            return Err(Refused::UnknownSource);
        }
        let from = Source { ends: Ends { src, dst }, kind };
        match hello.kind {
            HelloKind::Hello => self.on_hello(peer, qpn, &hello, from),
            HelloKind::Ack | HelloKind::Done => {
                self.on_hello_answer(peer, qpn, &hello, from, packet.payload)
            }
            HelloKind::Ended => self.on_ended(peer, &hello),
        }
    }

    /// Whether the addresses are those of a path of the peer's association, or of the association that
    /// the HELLO names by its nonce.
    fn between_known(&self, peer: PeerId, hello: &Hello, src: IpAddr, dst: IpAddr) -> bool {
        let joined = self.peers.get(peer).and_then(|p| p.association);
        let meant = self.associations.by_nonce(hello.instance, hello.nonce);
        let mut known = joined.into_iter().chain(meant).filter_map(|a| self.associations.get(a));
        known.any(|a| {
            a.paths().any(|(_, p)| {
                self.paths.get(p).is_some_and(|p| p.address.line().pair == (dst, src))
            })
        })
    }

    fn on_hello(
        &mut self,
        peer: PeerId,
        qpn: Qpn,
        hello: &Hello,
        from: Source,
    ) -> Result<(), Refused> {
        let known = self.matching(peer, hello);
        if !self.prefers(peer, known, hello.instance, false) {
            self.disagree(peer, qpn);
            return Ok(());
        }
        let index = match known {
            Some(index) => index,
            None => {
                let nonce = self.peers.get(peer).ok_or(Refused::NoQueuePair)?.nonce;
                self.propose(peer, hello, nonce)?
            }
        };
        self.learn(index, hello, false);
        self.answer(peer, qpn, index, hello, HelloKind::Ack, from);
        // The peer's HELLO_DONE agrees the queue pair at this end, too. In case it gets lost, ask again
        // soon.
        if !self.has_agreed(qpn) && self.says_hello(qpn) {
            self.hello_soon(qpn);
        }
        Ok(())
    }

    fn on_hello_answer(
        &mut self,
        peer: PeerId,
        qpn: Qpn,
        hello: &Hello,
        from: Source,
        payload: &[u8],
    ) -> Result<(), Refused> {
        let ends = from.ends;
        let index = match self.matching(peer, hello) {
            Some(index) => index,
            None => {
                // Nothing is kept unless the code proves that the sender derived the key from our
                // nonce.
                let own = self.peers.get(peer).ok_or(Refused::NoQueuePair)?.nonce;
                let nonce = hello.echo;
                let key = Key::derive((self.lane.instance, nonce), (hello.instance, hello.nonce));
                let ours = nonce == own || nonce == self.hello_nonce(peer);
                if !ours || !hello.authentic(&key, ends, payload) {
                    return Err(Refused::Authentication);
                }
                if hello.association == 0 {
                    return Err(Refused::Malformed);
                }
                if !self.prefers(peer, None, hello.instance, true) {
                    self.disagree(peer, qpn);
                    return Ok(());
                }
                self.propose(peer, hello, nonce)?
            }
        };
        let a = self.associations.get(index).ok_or(Refused::NoAssociation)?;
        if hello.echo != a.local_nonce || !hello.authentic(&a.key, ends, payload) {
            return Err(Refused::Authentication);
        }
        if hello.association == 0 || a.remote_number.is_some_and(|n| n != hello.association) {
            return Err(Refused::Malformed);
        }
        self.learn(index, hello, true);
        if !self.confirm(index, peer) {
            self.disagree(peer, qpn);
            return Ok(());
        }
        if hello.kind == HelloKind::Ack {
            self.answer(peer, qpn, index, hello, HelloKind::Done, from);
        }
        self.agree(qpn, index);
        Ok(())
    }

    /// The association that the sender's nonce belongs to, if this peer may be part of it.
    fn matching(&self, peer: PeerId, hello: &Hello) -> Option<AssociationId> {
        let index = self.associations.by_nonce(hello.instance, hello.nonce)?;
        let (p, a) = (self.peers.get(peer)?, self.associations.get(index)?);
        if p.association == Some(index) || p.pending == Some(index) {
            return Some(index);
        }
        // The peer has the addresses of other queue pairs of the association, or it is another pair of
        // addresses of a known lane. Then the peer must have announced its address, and this host
        // must have ours.
        let known = a.anchors.contains(&(p.key.local, p.key.remote))
            || (a.confirmed
                && a.remote_addresses.iter().any(|r| r.ip == p.key.remote)
                && self.local.contains(p.key.local));
        (known && a.remote_slot == p.key.slot).then_some(index)
    }

    /// Makes a new, unproven association in place of the one that the peer proposed last. `nonce`:
    /// ours.
    fn propose(
        &mut self,
        peer: PeerId,
        hello: &Hello,
        nonce: Nonce,
    ) -> Result<AssociationId, Refused> {
        if self.associations.by_nonce(hello.instance, hello.nonce).is_some() {
            // The nonce is of another lane, and comes from an address that is not known for that lane.
            return Err(Refused::UnknownSource);
        }
        let p = self.peers.get_mut(peer).ok_or(Refused::NoQueuePair)?;
        let old = p.pending.take();
        let key = p.key;
        if let Some(old) = old {
            self.remove_unproven(old, &key);
        }
        let local = (self.lane.instance, nonce);
        let remote = (hello.instance, hello.nonce);
        let mut a = Association::new(local, remote, key.slot, peer);
        a.local_ports = self.config.ports;
        a.anchors.push((key.local, key.remote));
        a.announced = announce(&self.local.by_link(), &a.anchors, &[]);
        a.announced_version = self.first_version;
        a.last_answer = self.clock.awake();
        let index = self.associations.insert(a, &mut self.random).ok_or(Refused::Limit)?;
        if let Some(p) = self.peers.get_mut(peer) {
            p.pending = Some(index);
        }
        Ok(index)
    }

    /// Takes over what a handshake packet tells. A packet without authentication code counts only for
    /// an association that is not proven yet.
    fn learn(&mut self, index: AssociationId, hello: &Hello, authentic: bool) {
        let default = self.config.max_window;
        let Some(a) = self.associations.get_mut(index) else { return };
        if authentic {
            a.remote_number.get_or_insert(hello.association);
        }
        let fresh = hello.addresses_version > a.remote_addresses_version;
        if a.confirmed && !(authentic && fresh) {
            return;
        }
        a.set_remote_addresses(hello.addresses_version, hello.addresses.clone());
        a.remote_abilities = hello.abilities;
        a.remote_ports = hello.ports;
        self.set_remote_window(
            index,
            match hello.receive_window {
                0 => default,
                window => window,
            },
        );
        // This does nothing for an association that is not confirmed yet; `begin_control` leads it
        // later.
        self.lead(index);
    }

    fn answer(
        &mut self,
        peer: PeerId,
        qpn: Qpn,
        index: AssociationId,
        to: &Hello,
        kind: HelloKind,
        from: Source,
    ) {
        let Some(a) = self.associations.get(index) else { return };
        let (nonce, key, number) = (a.local_nonce, a.key, a.number);
        let (addresses, addresses_version) = (a.announced.clone(), a.announced_version);
        let hello = Hello {
            kind,
            nonce,
            echo: to.nonce,
            association: number,
            addresses,
            addresses_version,
            ..self.hello_base(peer, qpn, to.qpn)
        };
        // The answer goes back by the addresses, and by the stream, that the packet came by.
        let Some(own) = self.peers.get(peer).and_then(|p| self.paths.get(p.own)) else { return };
        let Source { ends, kind } = from;
        let address = if kind == own.address.kind
            && (own.address.local, own.address.remote) == (ends.dst, ends.src)
        {
            own.address
        } else {
            PathAddress {
                kind,
                local: ends.dst,
                remote: ends.src,
                ifindex: self.local.ifindex_of(ends.dst),
                ..own.address
            }
        };
        self.send_hello(&hello, Some(&key), address);
    }

    /// Whether [`PathEvent::MultipathAgreed`] was reported for a queue pair. The event itself may have
    /// been lost.
    pub fn is_agreed(&self, qpn: u32) -> bool {
        self.has_agreed(Qpn(qpn))
    }

    /// What the peer of an agreed queue pair can do, as the event tells.
    pub fn agreed_abilities(&self, qpn: u32) -> Option<PeerAbilities> {
        let peer = self.qps.get(&Qpn(qpn)).filter(|_| self.is_agreed(qpn))?.peer;
        let association = self.peers.get(peer)?.association;
        Some(association.map(|index| self.abilities(index)).unwrap_or_default())
    }

    fn abilities(&self, index: AssociationId) -> PeerAbilities {
        self.associations.get(index).map(|a| a.remote_abilities).unwrap_or_default()
    }

    pub(crate) fn has_agreed(&self, qpn: Qpn) -> bool {
        let peer = self.qps.get(&qpn).and_then(|qp| self.peers.get(qp.peer));
        peer.is_some_and(|p| !p.unagreed.contains(&qpn))
    }

    /// Reports, once, that this queue pair may use multi-path packets.
    fn agree(&mut self, qpn: Qpn, index: AssociationId) {
        let abilities = self.abilities(index);
        let Some(peer) = self.qps.get(&qpn).map(|qp| qp.peer) else { return };
        self.timers.set(Timer::Hello(qpn), None);
        let news = self.peers.get_mut(peer).is_some_and(|p| p.unagreed.remove(&qpn));
        if news && !qpn.is_lane_pair() {
            self.push_event(PathEvent::MultipathAgreed { qpn: qpn.0, abilities });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LaneIdentity, PathOptions};
    use crate::types::Handled;

    /// Such an association would begin without the peer's addresses and window.
    #[test]
    fn an_authentic_answer_that_names_no_association_leaves_none_behind() {
        let (now, ip) = (Duration::ZERO, |n: u8| IpAddr::from([10, 0, 0, n]));
        let mut paths =
            PathManager::new(Config::default(), LaneIdentity { instance: 1, slot: 1 }, [0; 16]);
        let options = PathOptions { multipath: true, ..PathOptions::default() };
        let (qpn, peer_qpn) = (0x01_0011, 0x02_0022);
        let peer = paths.attach(now, qpn, peer_qpn, ip(1), ip(2), options).unwrap();
        let ours = paths.peers.get(peer).unwrap().nonce;
        let theirs = Nonce([7; 16]);
        let key = Key::derive((1, ours), (2, theirs));
        let mut answer = |association| {
            let hello = Hello {
                kind: HelloKind::Ack,
                slot: 2,
                instance: 2,
                nonce: theirs,
                echo: ours,
                qpn: peer_qpn,
                peer_qpn: qpn,
                association,
                receive_window: 1 << 20,
                abilities: PeerAbilities {
                    reach: 256,
                    joins_reads: true,
                    echoes_marks: true,
                    drops_copies: true,
                    local: false,
                    tcp: false,
                },
                ports: 1,
                addresses_version: 1,
                addresses: Vec::new(),
            };
            let mut packet = hello.encode(Some(&key), Ends { src: ip(2), dst: ip(1) });
            packet.extend([0; 4]);
            let (src, dst, kind) = (ip(2), ip(1), PathKind::Udp);
            let handled =
                paths.handle_control(now, src, dst, kind, &Packet::parse(&packet).unwrap());
            (handled, paths.associations.indexes().len())
        };
        assert_eq!(answer(0), (Handled::Refused(Refused::Malformed), 0));
        assert_eq!(answer(9), (Handled::Accepted, 1));
    }
}
