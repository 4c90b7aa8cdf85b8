//! Source ports of paths to Polypath peers: networks with equal-cost ways choose one by a hash of it.
//!
//! A path that was given up while another one between the same addresses lives hangs on a bad way, not on a
//! bad link. So it is probed by a new random port, which most likely leads another way, and by a further one
//! if that does not answer either. If no path between the addresses lives, the fault may be anywhere: the
//! port by which the path fell silent and random ones take turns.
//!
//! A path that answers by another port than its first one keeps asking by the first one, beside its data,
//! and goes back once that has answered for a while. Otherwise no path would use a way any more that was
//! repaired.
//!
//! A plain peer answers no probes. What tells that its way may be bad are queue pairs of which nothing is
//! acknowledged for a while, and requests that it repeats although they were answered. Then its path takes
//! another port, as Linux' TCP does when it sends again. Over a bond of the kernel's it comes back
//! ([`silence`](crate::silence)).
//! Peers know a connection by its addresses and queue pair numbers, never by the source port (IBTA A17.9.2).
//!
//! Each end does so by itself: a way is chosen for each direction, and probes and their answers tell whether
//! both carry. The pace is bounded ([`turns`](crate::turns)), because each port is a socket, and because
//! one end must stay with a good port for long enough that the other one finds one, too.

use core::time::Duration;

use crate::id::{AssociationId, Qpn};
use crate::manager::PathManager;
use crate::message::Body;
use crate::path::Role;
use crate::select::{Line, Pair};
use crate::timers::Timer;
use crate::types::{PathAddress, PathEvent, PathState, Reason, Refused};
use polypath_types::{PathId, PathKind, PeerId};

/// A path that was never heard of gets so many probes before its first change: perhaps the peer does not
/// know it yet.
const PROBES_UNKNOWN: u32 = 6;
/// After so many changes, a path of which no other between its addresses lives tries other ports of its bond
/// than its own.
const CHANGES_BY_MEMBER: u32 = 8;
/// Draws of a port until it is taken even if another path has it. 8 of 16,384 may be taken.
const DRAWS: u32 = 8;
/// Data to a plain peer is outstanding for at least so long before its path takes another port. Between two
/// changes there is as much time, doubled after every second change, at most so often.
const PLAIN_WAIT: Duration = Duration::from_millis(20);
const PLAIN_DOUBLINGS: u32 = 6;
/// So many times as long if the queue pair has another port in reserve: it migrates before, if that port
/// leads another way, and both ends hear of that.
const PLAIN_RESERVE: u32 = 10;
/// But for at least so many round trips, because a long queue is no silence; and for so long while none is
/// known.
const PLAIN_ROUND_TRIPS: u32 = 3;
const PLAIN_UNKNOWN: Duration = Duration::from_millis(100);
/// After so long without a change, the next one comes as soon as the first.
pub(crate) const PLAIN_CALM: Duration = Duration::from_secs(10);

impl PathManager {
    /// A random source port that no path of the association between these addresses has, and that is not
    /// `other_than` either, for the n-th path between them.
    pub(crate) fn fresh_port(
        &mut self,
        index: AssociationId,
        pair: Pair,
        other_than: u16,
        n: u8,
    ) -> u16 {
        let members = self.members(index);
        let between = members.iter().filter_map(|path| self.paths.get(*path));
        let taken: Vec<u16> = between
            .filter(|p| p.address.line() == Line::udp(pair))
            .map(|p| p.address.source_port)
            .chain([other_than])
            .collect();
        let mut port = other_than;
        for _ in 0..DRAWS {
            port = self.draw_port(pair, n);
            if !taken.contains(&port) {
                break;
            }
        }
        port
    }

    /// Gives a path that does not answer another source port if it is time. To be called before each of its
    /// probes.
    pub(crate) fn turn_port(&mut self, index: AssociationId, path: PathId) {
        let now = self.clock.now();
        let Some(p) = self.paths.get_mut(path) else { return };
        let line = p.address.line();
        if line.kind != PathKind::Udp {
            return;
        }
        let sibling_lives = self.members(index).iter().any(|other| {
            let other = self.paths.get(*other);
            other.is_some_and(|o| o.state == PathState::Up && o.address.line() == line)
        });
        let Some(p) = self.paths.get_mut(path) else { return };
        if !matches!(p.state, PathState::Dead | PathState::Suspect | PathState::Probing) {
            return;
        }
        let (first, wait) = (p.turns.changes() == 0, p.usual_wait());
        let due = match p.state {
            // Another path has just answered while this one did not: no need to ask by this port again.
            PathState::Dead if first && sibling_lives && p.reason == Some(Reason::ProbesLost) => {
                true
            }
            PathState::Dead | PathState::Suspect => p.turns.is_due(now, wait),
            PathState::Probing => sibling_lives && p.turns.is_due_after(PROBES_UNKNOWN, now, wait),
            _ => false,
        };
        let (current, settled, n) = (p.address.source_port, p.turns.settled(), p.port);
        // A program that asks for a flow label has chosen the port itself.
        if !due || p.address.flow_label != 0 {
            p.turns.ask(now);
            return;
        }
        let back = !sibling_lives && current != settled;
        let elsewhere = !sibling_lives && p.turns.changes() >= CHANGES_BY_MEMBER;
        let port = match (back, elsewhere) {
            (true, _) => settled,
            (false, false) => self.fresh_port(index, line.pair, current, n),
            (false, true) => self.port_of_another_way(line.pair, current),
        };
        let Some(p) = self.paths.get_mut(path) else { return };
        p.turns.change(now, current);
        p.turns.ask(now);
        if sibling_lives {
            p.probes.interval = Duration::ZERO;
        }
        self.set_port(path, port);
    }

    /// A plain peer has acknowledged nothing of a queue pair since `since`: its path takes another source
    /// port if it is time.
    pub(crate) fn plain_stalled(&mut self, path: PathId, qpn: Qpn, since: Duration) {
        let Some(p) = self.paths.get(path) else { return };
        let since = p.tried_since.map_or(since, |tried| since.max(tried));
        // Others hear from it: the reason is not the way.
        let heard = p.last_progress.is_some_and(|at| at > since) || self.others_hear(path, since);
        let usual = p.rtt.smoothed().map_or(PLAIN_UNKNOWN, |rtt| rtt * PLAIN_ROUND_TRIPS);
        let times = if self.has_port_in_reserve(qpn) { PLAIN_RESERVE } else { 1 };
        if !heard && self.clock.now().saturating_sub(since) >= usual.max(PLAIN_WAIT) * times {
            self.turn_plain_port(path);
        }
    }

    /// The peer of a plain path has sent a request again and again although it was answered each time: the
    /// answers do not arrive, so the path takes another source port if it is time. Has no effect on other
    /// paths.
    pub fn unheard(&mut self, now: Duration, path: PathId) {
        self.advance(now);
        self.turn_plain_port(path);
    }

    fn turn_plain_port(&mut self, path: PathId) {
        let now = self.clock.now();
        let Some(p) = self.paths.get_mut(path) else { return };
        let line = p.address.line();
        if !matches!(p.role, Role::Plain { .. }) || line.kind != PathKind::Udp || !p.usable() {
            return;
        }
        let current = p.address.source_port;
        // What is only a try ends at once, if there is a port that carries.
        let Role::Plain { peer } = p.role else { return };
        let at_once = p.tried_since.is_some() && self.has_fit_port(peer);
        let Some(p) = self.paths.get_mut(path) else { return };
        let calm = p.turns.calm_since(now);
        let was_calm = calm > PLAIN_CALM;
        if was_calm {
            p.turns.settle(now, current);
        }
        let changes = p.turns.changes();
        // Who hears the peer, and is not heard, has the bad way. The other one stays, for as long as it can.
        let heard = now.saturating_sub(p.heard_at) < calm;
        let wait = PLAIN_WAIT * (1 << (changes / 2).min(PLAIN_DOUBLINGS)) * (2 - u32::from(heard));
        if changes > 0 && calm < wait && !at_once {
            return;
        }
        p.turns.change(now, current);
        if !self.leave_silent_port(peer) {
            let port = self.port_of_another_way(line.pair, current);
            self.set_port(path, port);
            self.come_home_later(path, peer, current, was_calm);
        }
    }

    /// Whether the source port is what tells this path of a queue pair from its other one, at the peer.
    fn is_known_by_port(&self, peer: PeerId) -> bool {
        let Some(p) = self.peers.get(peer) else { return false };
        let mut users = p.qpns.iter().chain(&p.reserved);
        p.key.options.flow_label != 0 && users.any(|qpn| self.has_port_in_reserve(*qpn))
    }

    /// A path that the peer knows by its port has taken another one, and comes back to it after a while: if a
    /// migration is not known to both ends, nothing else tells the one of the other. `from`: the port before,
    /// which it had for long if `calm`.
    fn come_home_later(&mut self, path: PathId, peer: PeerId, from: u16, calm: bool) {
        if !self.is_known_by_port(peer) {
            return;
        }
        let Some(p) = self.paths.get_mut(path) else { return };
        let away = p.turns.stay_away(from, calm);
        self.timers.no_later(Timer::Port(peer), self.clock.now() + away);
    }

    /// The peer knows a path by its port from now on. If the path has left that port, it comes back to it.
    pub(crate) fn come_home_soon(&mut self, peer: PeerId) {
        let Some(own) = self.peers.get(peer).filter(|p| p.leaves_by.is_none()).map(|p| p.own)
        else {
            return;
        };
        let Some(path) = self.paths.get(own) else { return };
        let current = path.address.source_port;
        if path.turns.home() != current {
            self.come_home_later(own, peer, current, false);
        }
    }

    /// Lets a path that the peer knows by its port come back to that one. Returns whether it is such a
    /// path. If its way is still bad, the path leaves it as before.
    pub(crate) fn come_home(&mut self, peer: PeerId) -> bool {
        let Some(p) = self.peers.get(peer).filter(|p| p.leaves_by.is_none()) else { return false };
        let own = p.own;
        if !self.is_known_by_port(peer) {
            return false;
        }
        let now = self.clock.now();
        let Some(path) = self.paths.get_mut(own) else { return false };
        let (home, current) = (path.turns.home(), path.address.source_port);
        if home != current {
            path.turns.change(now, current);
            self.set_port(own, home);
        }
        true
    }

    pub(crate) fn set_port(&mut self, path: PathId, port: u16) {
        let Some(p) = self.paths.get_mut(path) else { return };
        let from = p.address;
        if from.source_port != port {
            p.address.source_port = port;
            p.counters.port_changes += 1;
            self.push_event(PathEvent::PortChanged { path, from });
        }
    }

    /// A probe of a silent path that was sent at that time is answered: the path stays with the port by
    /// which it was sent.
    pub(crate) fn port_answered(&mut self, path: PathId, sent: Duration) {
        let port = self.paths.get(path).and_then(|p| p.turns.port_at(sent));
        if let Some(port) = port {
            self.set_port(path, port);
        }
    }

    /// Asks by the first port of a path that is up by another one, or goes back to it. Returns when the next
    /// such step is due.
    pub(crate) fn homing(&mut self, index: AssociationId, path: PathId) -> Option<Duration> {
        let now = self.clock.now();
        let p = self.paths.get_mut(path)?;
        let Role::Member { id, .. } = p.role else { return None };
        let at = p.turns.home_at().filter(|_| p.state == PathState::Up)?;
        if now < at {
            return Some(at);
        }
        let home = p.turns.home();
        if p.turns.is_home_proven(p.recent_deaths(now)) {
            p.turns.settle(now, home);
            self.set_port(path, home);
            return None;
        }
        let (number, generation) = (p.turns.ask_home(now), p.generation);
        let address = PathAddress { source_port: home, ..p.address };
        let next = p.turns.home_at();
        p.counters.probes_sent += 1;
        self.send_by(index, (id, generation), address, Body::Probe { number }, false);
        next
    }

    /// A probe by the first port of a path is answered.
    pub(crate) fn home_answered(&mut self, path: PathId, number: u32) -> Result<(), Refused> {
        let p = self.paths.get_mut(path).ok_or(Refused::UnknownPath)?;
        if !p.turns.home_answered(number) {
            return Err(Refused::Unsolicited);
        }
        p.counters.probes_answered += 1;
        Ok(())
    }

    /// A path may be used (again) by the port that it has.
    pub(crate) fn settle_port(&mut self, path: PathId) {
        let now = self.clock.now();
        let Some(p) = self.paths.get_mut(path) else { return };
        let (Role::Member { .. }, to) = (p.role, p.address.source_port) else { return };
        if let Some(from) = p.turns.settle(now, to) {
            self.push_event(PathEvent::Repathed { path, from, to });
        }
    }
}
