//! Carries out changes of our own links and addresses, and decides which path carries a peer's traffic.

use core::time::Duration;

use crate::association::announce;
use crate::config::{DownRule, LocalAddress};
use crate::id::AssociationId;
use crate::manager::PathManager;
use crate::path::{Path, Role};
use crate::peers::Outage;
use crate::policy::{Choice, PathSet};
use crate::timers::Timer;
use crate::types::{PathAddress, PathEvent, PathState, Reason};
use polypath_types::{PathId, PathKind, PeerId};

impl PathManager {
    /// Takes all addresses of the host. To be called at the start and at every change of links,
    /// addresses or administrative state. Paths that lost their address are given up at once, paths
    /// that lost their link after [`Config::downdelay`](crate::Config::downdelay).
    pub fn set_local(&mut self, now: Duration, addresses: &[LocalAddress]) {
        self.advance(now);
        self.local.set(addresses);
        self.all_local_changed();
        for index in self.associations.indexes() {
            self.announce_again(index);
        }
        self.deal_all();
    }

    /// Takes the paths between these addresses down by hand. Those that the last call took down and
    /// this one does not name come up again. [`LocalAddress::usable`] takes down whole addresses.
    pub fn set_down(&mut self, now: Duration, down: &[DownRule]) {
        self.advance(now);
        if !self.local.set_down(down) {
            return; // Most changes of links leave the rules as they are.
        }
        self.all_local_changed();
    }

    /// Looks at all paths again. Those that will be given up are known before the first one is.
    pub(crate) fn all_local_changed(&mut self) {
        let indexes = self.paths.indexes();
        for &index in &indexes {
            let Some(p) = self.paths.get(index) else { continue };
            let doomed = self.fault_of(p).is_some_and(|reason| !self.is_delayed(p, reason));
            let doomed = doomed && p.state != PathState::Down;
            if let Some(p) = self.paths.get_mut(index) {
                p.doomed = doomed;
            }
        }
        for index in indexes {
            self.local_changed(index);
        }
        // A port of a bond may have come back that is none of these paths' own.
        for association in self.associations.indexes() {
            let Some(a) = self.associations.get(association) else { continue };
            let lives = |(_, path)| self.paths.get(path).is_some_and(Path::usable);
            if !a.paths().any(lives) {
                self.substitute_members(association);
            }
        }
    }

    /// Whether a path with this fault is given up after a while only.
    fn is_delayed(&self, path: &Path, fault: Reason) -> bool {
        let is_link = fault == Reason::LinkDown && path.address.kind == PathKind::Udp;
        is_link && !self.config.downdelay.is_zero()
    }

    pub(crate) fn local_changed(&mut self, index: PathId) {
        let Some(p) = self.paths.get(index) else { return };
        let PathAddress { local, kind, .. } = p.address;
        let (fault, ifindex) = (self.fault_of(p), self.local.ifindex_of(local));
        let delayed = fault.is_some_and(|reason| self.is_delayed(p, reason));
        let Some(p) = self.paths.get_mut(index) else { return };
        if !matches!(kind, PathKind::Local { .. }) {
            // One whose address is gone is named by the interface that it was on.
            if ifindex != 0 {
                p.address.ifindex = ifindex;
            }
        }
        let down = p.state == PathState::Down;
        match fault {
            Some(reason) if down => p.reason = Some(reason),
            Some(_) if delayed => {
                let at = self.clock.now() + self.config.downdelay;
                self.timers.no_later(Timer::DownDelay(index), at);
            }
            Some(reason) => self.path_lost(index, PathState::Down, reason, true),
            None => {
                p.doomed = false;
                self.timers.set(Timer::DownDelay(index), None);
                self.steer(index);
                if down {
                    self.link_back(index);
                }
            }
        }
    }

    pub(crate) fn downdelay_over(&mut self, index: PathId) {
        let Some(p) = self.paths.get(index) else { return };
        if p.state != PathState::Down
            && let Some(reason) = self.fault_of(p)
        {
            self.path_lost(index, PathState::Down, reason, true);
        }
    }

    /// The link is there again. A numbered path has to prove itself; other paths are used at once.
    fn link_back(&mut self, index: PathId) {
        let now = self.clock.now();
        let Some(p) = self.paths.get_mut(index) else { return };
        match p.role {
            Role::Member { association, .. } => {
                p.state = PathState::Dead;
                p.probes.interval = Duration::ZERO;
                p.probes.next_at = now;
                self.timers.no_later(Timer::Association(association), now);
            }
            Role::Plain { .. } | Role::Datagram => self.path_back(index, Reason::FirstAlive),
        }
    }

    /// Tells the peer of an association which addresses there are now, and how many source ports are wanted
    /// for each pair, if that changed.
    pub(crate) fn announce_again(&mut self, index: AssociationId) {
        let Some(a) = self.associations.get_mut(index) else { return };
        let list = announce(&self.local.by_link(), &a.anchors, &a.announced);
        let ports = self.config.ports;
        if list == a.announced && ports == a.local_ports {
            return;
        }
        (a.announced, a.local_ports) = (list, ports);
        a.announced_version += 1;
        if a.confirmed {
            self.lead(index);
            self.control_now(index);
        }
    }

    /// Lets the policy decide which path carries a peer's traffic. `reason`: the reason to report if it
    /// must move.
    pub(crate) fn reselect(&mut self, peer: PeerId, reason: Reason) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        let choice = p.policy.reselect(&PathSet {
            association: p.association,
            own: p.own,
            main: p.main,
            outage: p.outage.is_some(),
            associations: &self.associations,
            paths: &self.paths,
            local: &self.local,
            config: &self.config,
            now: self.clock.now(),
        });
        match choice {
            Choice::Stay => {}
            Choice::Move(to) => self.switch(peer, to, reason),
            Choice::Prefer(to) => self.switch(peer, to, Reason::Primary),
            Choice::NoPath => self.begin_outage(peer),
        }
    }

    /// No path to the peer lives: the outage and its hold time begin, unless there is an outage
    /// already.
    pub(crate) fn begin_outage(&mut self, peer: PeerId) {
        let at = self.clock.now() + self.config.hold;
        let (now, awake) = (self.clock.now(), self.clock.awake());
        if let Some(association) = self.peers.get(peer).and_then(|p| p.association) {
            self.substitute_members(association);
        }
        let Some(p) = self.peers.get_mut(peer) else { return };
        if p.outage.is_some() {
            return;
        }
        p.outage = Some(Outage { since: now, awake, given_up: false });
        self.timers.set(Timer::Hold(peer), Some(at));
        self.push_event(PathEvent::NoPath { peer });
    }

    /// A suspected path answered. Peers of the association that had no path get one, and those whose main
    /// path is another may prefer this one: after a silence of all, the other may have answered first.
    pub(crate) fn reselect_others(&mut self, index: AssociationId, path: PathId) {
        let peers = self.associations.get(index).map(|a| a.peers.clone()).unwrap_or_default();
        for peer in peers {
            if self.peers.get(peer).is_some_and(|p| p.outage.is_some() || p.main != path) {
                self.reselect(peer, Reason::FirstAlive);
            }
        }
    }

    /// Ends the hold time. If the lane did not run for a part of it, the hold time is extended by that
    /// part.
    pub(crate) fn hold_over(&mut self, peer: PeerId) {
        let awake = self.clock.awake();
        let Some(p) = self.peers.get_mut(peer) else { return };
        let left = p.outage.map(|outage| (outage.awake + self.config.hold).saturating_sub(awake));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            self.timers.set(Timer::Hold(peer), Some(self.clock.now() + left));
            return;
        }
        if let Some(outage) = &mut p.outage
            && !core::mem::replace(&mut outage.given_up, true)
        {
            // No answer will come to copies. They would keep the window closed to queue pairs that have
            // nothing under way, and so no timer.
            let (association, ends) = (p.association, [p.own, p.main]);
            let members = association.map(|index| self.members(index)).unwrap_or_default();
            let now = self.clock.now();
            for path in members.into_iter().chain(ends) {
                if let Some(path) = self.paths.get_mut(path) {
                    path.forget_twice(now);
                }
            }
            self.wake(peer);
            self.push_event(PathEvent::PeerLost { peer });
        }
    }
}
