//! Associations of datagrams: how [pairs of lanes](crate::lane_pairs) begin, and when they end.

use core::net::IpAddr;
use core::time::Duration;

use polypath_types::{PathId, PeerId};

use crate::association::Association;
use crate::config::PathOptions;
use crate::id::{AssociationId, Qpn};
use crate::lane_pairs::{Key, LanePair, Met, is_lane_number, lane_number};
use crate::manager::PathManager;
use crate::message::{Hello, HelloKind};
use crate::peers::Peer;
use crate::timers::Timer;
use crate::types::Refused;
use crate::ud::UdKey;

/// A pair of lanes ends when no datagram was sent for so long.
const IDLE: Duration = Duration::from_secs(60);
/// A pair that the other end has begun must be proven within this time.
const UNPROVEN: Duration = Duration::from_secs(5);

impl PathManager {
    /// Where a datagram to this queue pair goes now, by the path of an address handle: the path itself, or,
    /// if it is dead and an association knows another way to the same host, that one. To be called for each
    /// datagram that is posted: the first one to a lane begins the handshake with it.
    #[inline]
    pub fn ud_route_to(&mut self, now: Duration, path: PathId, remote_qpn: u32) -> PathId {
        let Some(p) = self.paths.get_mut(path) else { return path };
        if p.address.remote.is_multicast() {
            return self.group_route(now, path);
        }
        let slot = (remote_qpn >> 16) as u8;
        p.datagram_at = now;
        if p.met.add(slot) {
            self.meet(now, path, slot);
        }
        self.ud_route(path)
    }

    /// A datagram goes by this path to a lane that none went to before.
    #[cold]
    fn meet(&mut self, now: Duration, path: PathId, slot: u8) {
        self.advance(now);
        let Some(UdKey { local, remote, options }) = self.ud.key_of(path) else { return };
        // Lanes have slots from 1 to 254. A process reaches itself.
        let is_lane = (1..=254).contains(&slot);
        let to_other = !self.local.contains(remote);
        if options.multipath && self.config.multipath && is_lane && to_other {
            self.begin_lane_pair(((local, remote), slot), true);
        }
    }

    fn begin_lane_pair(&mut self, key: Key, begun_here: bool) -> Option<Qpn> {
        if let Some(number) = self.lane_pairs.by_key.get(&key) {
            let number = *number;
            if let Some(l) = self.lane_pairs.all.get_mut(&number) {
                l.begun_here |= begun_here;
            }
            return Some(number);
        }
        let number = self.lane_pairs.insert(key, begun_here)?;
        let ((local, remote), slot) = key;
        let options = PathOptions { multipath: true, ..PathOptions::default() };
        let peer = self.peer_for(number, lane_number(slot), local, remote, options);
        let Ok(peer) = peer else {
            self.lane_pairs.remove(number);
            self.lane_pairs.full |= begun_here;
            return None;
        };
        self.attach_to(peer, number, lane_number(slot));
        let look = if begun_here { IDLE } else { UNPROVEN };
        self.timers.set(Timer::LanePair(number), Some(self.clock.now() + look));
        Some(number)
    }

    /// The pair of lanes that a handshake packet to number 0 of this lane is for.
    ///
    /// # Errors
    /// There is none, and none begins.
    pub(crate) fn lane_pair_of(
        &mut self,
        hello: &Hello,
        src: IpAddr,
        dst: IpAddr,
    ) -> Result<Qpn, Refused> {
        if !is_lane_number(hello.qpn) {
            return Err(Refused::Malformed);
        }
        let key = ((dst, src), hello.slot);
        if let Some(number) = self.lane_pairs.by_key.get(&key) {
            return Ok(*number);
        }
        // Who only receives datagrams has sent none to anybody.
        let wanted = self.takes_datagrams && self.config.multipath && self.local.contains(dst);
        if hello.kind != HelloKind::Hello || !wanted {
            return Err(Refused::NoQueuePair);
        }
        self.begin_lane_pair(key, false).ok_or(Refused::Limit)
    }

    /// This lane has a queue pair that receives datagrams by several paths, so others may begin
    /// associations for that.
    pub fn take_datagrams(&mut self) {
        self.takes_datagrams = true;
    }

    /// When a datagram was last sent to a pair of lanes.
    fn datagram_at(&self, pair: (IpAddr, IpAddr)) -> Duration {
        let at = |(_, path): (PathOptions, PathId)| self.paths.get(path).map(|p| p.datagram_at);
        self.ud.between(pair).filter_map(at).max().unwrap_or_default()
    }

    /// Looks whether a pair of lanes is still needed.
    pub(crate) fn lane_pair_due(&mut self, number: Qpn) {
        let Some(&LanePair { key, begun_here, lost }) = self.lane_pairs.all.get(&number) else {
            return;
        };
        let now = self.clock.now();
        let used_until = self.datagram_at(key.0) + IDLE;
        let peer = self.qps.get(&number).map(|qp| qp.peer);
        let association = peer.and_then(|peer| self.peers.get(peer)?.association);
        let answers = |a: &Association| self.clock.awake() < a.last_answer + IDLE;
        let kept_by_peer = association.and_then(|a| self.associations.get(a)).is_some_and(answers);
        let next = match begun_here {
            true if now < used_until => used_until,
            false if kept_by_peer => now + IDLE,
            _ => now,
        };
        if lost || next == now {
            return self.end_lane_pair(number);
        }
        if begun_here && association.is_none() {
            // Perhaps its queue pairs have come since.
            self.hello_soon(number);
        }
        self.timers.set(Timer::LanePair(number), Some(next));
    }

    /// The association of a pair of lanes has ended.
    pub(crate) fn lane_pair_lost(&mut self, peer: PeerId) {
        let number = self.peers.get(peer).and_then(Peer::lane_pair);
        if let Some(number) = number
            && let Some(l) = self.lane_pairs.all.get_mut(&number)
        {
            l.lost = true;
            self.timers.no_later(Timer::LanePair(number), self.clock.now());
        }
    }

    /// Whether this end says HELLO for a queue pair by itself: who has only been asked does not, because the
    /// other end may be another than it says.
    pub(crate) fn says_hello(&self, qpn: Qpn) -> bool {
        self.lane_pairs.all.get(&qpn).is_none_or(|l| l.begun_here)
    }

    /// The number by which the peer knows a queue pair.
    pub(crate) fn wire_number(&self, qpn: Qpn) -> u32 {
        if qpn.is_lane_pair() { lane_number(self.lane.slot) } else { qpn.0 }
    }

    fn end_lane_pair(&mut self, number: Qpn) {
        let Some((pair, slot)) = self.lane_pairs.remove(number) else { return };
        self.timers.set(Timer::LanePair(number), None);
        let now = self.clock.now();
        self.detach(now, number.0);
        let between: Vec<PathId> = self.ud.between(pair).map(|(_, path)| path).collect();
        for path in between {
            if let Some(p) = self.paths.get_mut(path) {
                p.met.remove(slot);
            }
        }
        if core::mem::take(&mut self.lane_pairs.full) {
            // There was no room for others, and now there is.
            let all: Vec<PathId> = self.ud.all().collect();
            for path in all {
                if let Some(p) = self.paths.get_mut(path) {
                    p.met = Met::default();
                }
            }
        }
    }

    /// When the latest datagram was sent to a lane of this association, if any was.
    pub(crate) fn last_datagram(&self, index: AssociationId) -> Option<Duration> {
        let peers = &self.associations.get(index)?.peers;
        let pair_of = |peer: &PeerId| {
            let p = self.peers.get(*peer)?;
            p.lane_pair().map(|_| (p.key.local, p.key.remote))
        };
        peers.iter().filter_map(pair_of).map(|pair| self.datagram_at(pair)).max()
    }

    /// Whether connected queue pairs use the association, and not datagrams alone.
    pub(crate) fn is_connected(&self, a: &Association) -> bool {
        let connected =
            |peer: &PeerId| self.peers.get(*peer).is_some_and(|p| p.connected().next().is_some());
        a.peers.iter().any(connected)
    }
}
