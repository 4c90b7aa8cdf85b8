//! Bonds of the kernel's: each path between two addresses leaves by a port of the bond, which its source port
//! chooses.
//!
//! A bond sends a packet by one of its usable ports, found by a hash of the addresses and UDP ports. So a
//! source port whose hash leads to it stands for a port of the bond, and each path of an association gets
//! one: the paths take the bond's ports in turn, so that each has as many paths as another. A path whose
//! port of the bond is lost is given up at once, and comes back with it. The others get new source ports,
//! because the loss of one port leads all hashes elsewhere.
//!
//! Queue pairs that may not use several paths take the bond's ports in turn as well: those of a peer that
//! leave by one port share a path. Such a path is not given up with its port of the bond, because the kernel
//! then sends it by another one.
//!
//! Which port of the bond is the first differs from one pair of addresses to another, so that the only paths
//! of many peers use all.

use core::time::Duration;

use polypath_types::{PathId, PathKind};

use crate::id::Qpn;
use crate::key::Random;
use crate::lag::Lag;
use crate::manager::PathManager;
use crate::path::{Path, Role};
use crate::peers::PeerKey;
use crate::select::Pair;
use crate::turns::PortTurns;
use crate::types::Reason;

/// Draws of a source port until one leads to the wanted port of the bond. Of up to 16 ports, each is missed
/// by so many with a probability of 10⁻⁷.
const DRAWS: u32 = 256;

impl PathManager {
    /// Takes the bonds of the kernel's among the host's interfaces. To be called at every change of their
    /// ports, before [`PathManager::set_local`]. Paths by a port that is not usable any more are given up at
    /// once; the source ports of the others are chosen anew.
    pub fn set_lags(&mut self, now: Duration, lags: &[Lag]) {
        self.advance(now);
        if !self.local.set_lags(lags) {
            return;
        }
        for index in self.paths.indexes() {
            self.local_changed(index);
            self.steer_plain(index);
        }
    }

    /// The index of the bond's port by which a path leaves; `None` if it is over no bond.
    pub fn lag_member(&self, path: PathId) -> Option<u32> {
        let p = self.paths.get(path)?;
        let lag = self.local.lag(p.address.ifindex).filter(|_| p.address.kind == PathKind::Udp)?;
        lag.leaves_by(p.address.line().pair, p.address.source_port)
    }

    /// What is wrong with a path, as far as this host knows.
    pub(crate) fn fault_of(&self, path: &Path) -> Option<Reason> {
        let member = || self.local.wanted_member(path.turn()?);
        let lost = || member().is_some_and(|(_, member)| !member.usable);
        self.fault(&path.address).or_else(|| lost().then_some(Reason::LinkDown))
    }

    /// Gives a path a source port by which it leaves by its port of the bond, unless it has one.
    pub(crate) fn steer(&mut self, index: PathId) {
        let Some(p) = self.paths.get(index) else { return };
        let Role::Member { association, .. } = p.role else { return };
        let wanted = p.turn().and_then(|turn| self.local.wanted_member(turn));
        let Some((lag, member)) = wanted.filter(|(_, it)| it.usable) else { return };
        let (pair, current) = (p.address.line().pair, p.address.source_port);
        let leads = |port| lag.leaves_by(pair, port) == Some(member.ifindex);
        let port = match (leads(current), leads(p.turns.home())) {
            (true, true) => return,
            (true, false) => current,
            (false, _) => self.fresh_port(association, pair, current, p.port),
        };
        self.begin_at(index, port);
    }

    /// Gives a path this source port, to which it returns from others.
    fn begin_at(&mut self, path: PathId, port: u16) {
        if let Some(p) = self.paths.get_mut(path) {
            p.turns = PortTurns::new(port);
        }
        self.set_port(path, port);
    }

    /// The bond whose ports the plain queue pairs of a peer take in turn. A flow label chooses the source
    /// port itself, and queue pairs that may use several paths share those of an association.
    pub(crate) fn ways_of(&self, key: &PeerKey) -> Option<&Lag> {
        let free = !key.options.multipath && key.options.flow_label == 0;
        let lag = self.local.lag(self.local.ifindex_of(key.local)).filter(|_| free)?;
        lag.member_of((key.local, key.remote), 0).is_some().then_some(lag)
    }

    /// The key with the way for a queue pair: the one that it has, or a usable one with the fewest.
    pub(crate) fn by_a_way(&self, qpn: Qpn, key: PeerKey) -> PeerKey {
        let Some(lag) = self.ways_of(&key) else { return key };
        let current = self.qps.get(&qpn).and_then(|qp| self.peers.get(qp.peer));
        if let Some(peer) = current.filter(|peer| PeerKey { way: 0, ..peer.key } == key) {
            return peer.key;
        }
        let count = |key: &PeerKey| {
            let peer = self.peers.by_key(key).and_then(|peer| self.peers.get(peer));
            peer.map_or(0, |peer| peer.qpns.len())
        };
        let usable = |way| lag.member_of((key.local, key.remote), way).is_some_and(|it| it.usable);
        let ways = (0..lag.members.len()).filter_map(|way| u8::try_from(way).ok());
        let keys = ways.map(|way| PeerKey { way, ..key });
        keys.min_by_key(|key| (!usable(key.way), count(key))).unwrap_or(key)
    }

    /// Has a plain path leave by its port of the bond again, if the bond sends by it. While it does not, the
    /// kernel takes another one.
    fn steer_plain(&mut self, path: PathId) {
        let Some(p) = self.paths.get(path) else { return };
        let Role::Plain { peer } = p.role else { return };
        let Some(key) = self.peers.get(peer).map(|peer| peer.key) else { return };
        let Some(lag) = self.ways_of(&key).filter(|_| p.address.kind == PathKind::Udp) else {
            return;
        };
        let pair = (key.local, key.remote);
        let wanted = lag.member_of(pair, key.way).filter(|member| member.usable);
        let by = lag.leaves_by(pair, p.address.source_port);
        if wanted.is_none_or(|wanted| by == Some(wanted.ifindex)) {
            return;
        }
        let port = self.draw_port(pair, key.way);
        self.begin_at(path, port);
    }

    /// A random source port that most likely leads another way than this one. Over a bond whose hash is known
    /// it leads to another of its ports, if it has another that is usable.
    pub(crate) fn port_of_another_way(&mut self, pair: Pair, current: u16) -> u16 {
        let lag = self.local.lag(self.local.ifindex_of(pair.0));
        let member = |port| lag.and_then(|lag| lag.leaves_by(pair, port));
        let by = member(current);
        draw_until(&mut self.port_random, |port| {
            port != current && (by.is_none() || member(port) != by)
        })
    }

    /// A random source port; one that leads to the port of the bond for the n-th path between these
    /// addresses, if they are over a bond.
    pub(crate) fn draw_port(&mut self, pair: Pair, n: u8) -> u16 {
        let lag = self.local.lag(self.local.ifindex_of(pair.0));
        let wanted = lag.and_then(|lag| Some((lag, lag.member_of(pair, n)?)));
        let wanted = wanted.filter(|(_, member)| member.usable);
        draw_until(&mut self.port_random, |port| {
            wanted.is_none_or(|(lag, to)| lag.leaves_by(pair, port) == Some(to.ifindex))
        })
    }
}

/// Draws source ports until one fits; the last one after too many.
fn draw_until(random: &mut Random, fits: impl Fn(u16) -> bool) -> u16 {
    let mut draw = || 0xc000 | (random.u32() & 0x3fff) as u16;
    let mut port = draw();
    for _ in 0..DRAWS {
        if fits(port) {
            break;
        }
        port = draw();
    }
    port
}
