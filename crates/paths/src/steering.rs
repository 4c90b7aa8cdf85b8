//! Bonds of the kernel's: each path between two addresses leaves by a port of the bond, which its source port
//! chooses.
//!
//! A bond sends a packet by one of its usable ports, found by a hash of the addresses and UDP ports. So a
//! source port whose hash leads to it stands for a port of the bond, and each path of an association gets
//! one: the paths take the bond's ports in turn, so that each has as many paths as another. A path whose
//! port of the bond is lost is given up at once, and comes back with it. The others get new source ports,
//! because the loss of one port leads all hashes elsewhere.
//!
//! Where cables join the ports of two hosts, and their orders differ, a path comes by one cable and goes by
//! another, so that one lost cable takes two paths. If no path is left, those whose port of the bond is lost
//! leave by another one, until it is back.
//!
//! Queue pairs that have one path share the bond's ports as well ([`dealing`](crate::dealing)). Such a path
//! is not given up with its port of the bond, but gets another one.
//!
//! Interfaces that share an address without the kernel's bond are such a bond, too, whose ports this lane
//! binds its source ports to ([`Hashed::Bound`](crate::Hashed::Bound)).
//!
//! Which port of the bond is the first differs from one pair of addresses to another, so that the only paths
//! of many peers use all.

use core::time::Duration;

use polypath_types::{PathId, PathKind};

use crate::id::AssociationId;
use crate::key::Random;
use crate::lag::{Lag, LagMember};
use crate::manager::PathManager;
use crate::path::{Path, Role};
use crate::select::Pair;
use crate::timers::Timer;
use crate::turns::PortTurns;
use crate::types::{PathState, Reason};

/// Draws of a source port until one leads to the wanted port of the bond. Of up to 16 ports, each is missed
/// by so many with a probability of 10⁻⁷.
const DRAWS: u32 = 256;

impl PathManager {
    /// Takes the bonds among the host's interfaces. To be called at every change of their
    /// ports, before [`PathManager::set_local`]. Paths by a port that is not usable any more are given up at
    /// once; the source ports of the others are chosen anew.
    pub fn set_lags(&mut self, now: Duration, lags: &[Lag]) {
        self.advance(now);
        if !self.local.set_lags(lags) {
            return;
        }
        self.all_local_changed();
        self.forget_silences();
        self.deal_all();
    }

    /// The index of the bond's port by which a path leaves; `None` if it is over no bond.
    pub fn lag_member(&self, path: PathId) -> Option<u32> {
        let p = self.paths.get(path)?;
        let lag = self.local.lag(p.address.ifindex).filter(|_| p.address.kind == PathKind::Udp)?;
        lag.leaves_by(p.address.line().pair, p.address.source_port)
    }

    /// What is wrong with a path, as far as this host knows.
    pub(crate) fn fault_of(&self, path: &Path) -> Option<Reason> {
        let member = || self.member_for(path);
        let lost = || member().is_some_and(|(_, member)| !member.usable);
        self.fault(&path.address).or_else(|| lost().then_some(Reason::LinkDown))
    }

    /// The bond, and its port by which the path is to leave.
    fn member_for(&self, path: &Path) -> Option<(&Lag, LagMember)> {
        let (lag, own) = self.local.wanted_member(path.turn()?)?;
        let substitute = path.substitute.filter(|_| !own.usable);
        let substitute = substitute.and_then(|port| lag.usable_member(port));
        Some((lag, substitute.unwrap_or(own)))
    }

    /// No path of the association is left: those whose port of the bond is lost leave by another one, if one
    /// is usable.
    pub(crate) fn substitute_members(&mut self, association: AssociationId) {
        for index in self.members(association) {
            let Some(p) = self.paths.get(index) else { continue };
            if p.state != PathState::Down || p.reason != Some(Reason::LinkDown) {
                continue;
            }
            let lost = self.member_for(p).filter(|(_, it)| !it.usable);
            let other = lost.and_then(|(lag, _)| lag.nth_usable(p.port.into()));
            let (Some(_), Some(p)) = (other, self.paths.get_mut(index)) else { continue };
            p.substitute = other;
            self.local_changed(index);
        }
    }

    /// Gives a path a source port by which it leaves by its port of the bond, unless it has one.
    pub(crate) fn steer(&mut self, index: PathId) {
        let Some(p) = self.paths.get(index) else { return };
        let Role::Member { association, .. } = p.role else { return };
        let own = p.turn().and_then(|turn| self.local.wanted_member(turn)).map(|(_, own)| own);
        let wanted = self.member_for(p);
        let Some((lag, member)) = wanted.filter(|(_, it)| it.usable) else { return };
        let is_own = own.is_some_and(|own| own.ifindex == member.ifindex);
        let (pair, current, n) = (p.address.line().pair, p.address.source_port, p.port);
        let leads = |port| lag.leaves_by(pair, port) == Some(member.ifindex);
        let home = p.turns.home();
        let ways = (leads(current), leads(home));
        let away = home != current && p.turns.settled() == current;
        let leaves = lag.leaves_by(pair, current).is_some();
        if p.state == PathState::Up && away && leaves && ways == (false, true) {
            return; // Its own port was silent. It goes back when that answers.
        }
        if let Some(p) = self.paths.get_mut(index).filter(|_| is_own) {
            p.substitute = None;
        }
        let port = match ways {
            (true, true) => return,
            (true, false) => current,
            (false, _) if is_own => self.fresh_port(association, pair, current, n),
            (false, _) => self.draw_port_by(pair, member.ifindex),
        };
        self.begin_at(index, port);
    }

    /// Gives a path this source port, to which it returns from others. One that is dead is asked by it at
    /// once, because the reason may be gone with the port that it had.
    fn begin_at(&mut self, path: PathId, port: u16) {
        let now = self.clock.now();
        if let Some(p) = self.paths.get_mut(path) {
            p.turns = PortTurns::new(port);
            if let (PathState::Dead, Role::Member { association, .. }) = (p.state, p.role) {
                (p.probes.next_at, p.probes.interval) = (now, Duration::ZERO);
                self.timers.no_later(Timer::Association(association), now);
            }
        }
        self.set_port(path, port);
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

    /// A random source port that leads to this port of the bond.
    pub(crate) fn draw_port_by(&mut self, pair: Pair, member: u32) -> u16 {
        let lag = self.local.lag(self.local.ifindex_of(pair.0));
        draw_until(&mut self.port_random, |port| {
            lag.is_none_or(|lag| lag.leaves_by(pair, port) == Some(member))
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
