//! Changes of how the paths are used, while they carry traffic.
//!
//! A policy decides for what is sent next, and knows nothing of what is in flight. So another one may take
//! its place between any two bursts: what is in flight stays where it is, and is acknowledged, lost or sent
//! again as if nothing had changed. Queue pairs that wait for a window ask anew, because their new policy may
//! have room for them on another path.

use core::time::Duration;

use crate::config::{AffinityRule, Mode, Usage};
use crate::id::Qpn;
use crate::manager::PathManager;
use crate::policy::AnyPolicy;
use crate::timers::Timer;
use crate::types::Reason;
use polypath_types::PeerId;

impl PathManager {
    /// Changes how the paths are used. A peer or queue pair whose policy is named anew keeps what the
    /// policy knows; one that gets another policy begins with a new one. May be called at any time, and
    /// costs nothing if the usage is as before.
    pub fn set_usage(&mut self, now: Duration, usage: &Usage) {
        self.advance(now);
        if self.usage == *usage {
            return;
        }
        let before = core::mem::replace(&mut self.usage, usage.clone());
        let Usage { mode, primary, primary_reselect, updelay, downdelay, .. } = *usage;
        let Usage { hold, ecn, ports, local, tcp, .. } = *usage;
        self.sends_twice = usage.has_redundant();
        self.config.mode = mode;
        self.config.costs.clone_from(&usage.costs);
        self.config.primary = primary;
        self.config.primary_reselect = primary_reselect;
        self.config.updelay = updelay;
        self.config.downdelay = downdelay;
        if core::mem::replace(&mut self.config.hold, hold) != hold {
            self.renew_hold();
        }
        if core::mem::replace(&mut self.config.ecn, ecn) != ecn {
            self.renew_ecn();
        }
        if core::mem::replace(&mut self.config.ports, ports) != ports {
            self.renew_ports();
        }
        let prefers_anew = (before.primary, before.primary_reselect) != (primary, primary_reselect)
            || before.costs != usage.costs;
        if (before.local, before.tcp) != (local, tcp) {
            self.local_paths_changed(None);
            self.stream_paths_changed(None);
            for index in self.associations.indexes() {
                self.lead(index);
            }
        }
        let peers: Vec<PeerId> = self.peers.iter().map(|(index, _)| index).collect();
        for peer in peers {
            let renewed = self.renew_policy(peer);
            let own_renewed = self.renew_own_policies(peer);
            if renewed || own_renewed {
                self.wake(peer);
            }
            // Each policy has a main path of its own choice.
            if prefers_anew || renewed {
                self.reselect(peer, Reason::Primary);
            }
        }
        if (before.mode, &before.peers) != (mode, &usage.peers) {
            self.deal_all();
        }
    }

    /// Carries out a change of the hold time for outages that are not over: what is left of it is found when
    /// its timer runs.
    fn renew_hold(&mut self) {
        let now = self.clock.now();
        let held = self.peers.iter().filter(|(_, p)| p.is_held()).map(|(index, _)| index);
        for peer in held.collect::<Vec<_>>() {
            self.timers.set(Timer::Hold(peer), Some(now));
        }
    }

    /// Carries out a change of the source ports that are wanted: associations get or lose paths, which carry
    /// nothing before they have answered, and what was under way by those that go is sent by others.
    fn renew_ports(&mut self) {
        // Handshakes that have begun have told the number of before.
        self.first_version += 1;
        for index in self.associations.indexes() {
            self.announce_again(index);
        }
    }

    /// Gives a peer the policy that the usage names. Returns whether it is another one than before.
    fn renew_policy(&mut self, peer: PeerId) -> bool {
        let Some(p) = self.peers.get_mut(peer) else { return false };
        let mode = self.usage.mode_of(p.key.remote);
        // One from outside of this crate is left alone.
        let renewed = p.policy.mode().is_some_and(|before| before != mode);
        if renewed {
            p.policy = AnyPolicy::of(mode);
            self.take_turn(peer);
        }
        renewed
    }

    /// The same for the policies of its queue pairs.
    fn renew_own_policies(&mut self, peer: PeerId) -> bool {
        let Some(p) = self.peers.get_mut(peer) else { return false };
        let mut renewed = false;
        for qpn in &p.qpns {
            let own = self.usage.queue_pairs.get(&qpn.0).copied();
            let kept = self.kept_to.get(&qpn.0).copied();
            renewed |= p.own_policies.set(*qpn, own.or(kept));
        }
        renewed
    }

    /// Makes a queue pair keep to the interface of this index ([`AffinityRule::Interface`]), or use paths as
    /// its peer's others do. What the usage says of the queue pair goes before it.
    pub fn keep_to(&mut self, now: Duration, qpn: u32, ifindex: Option<u32>) {
        self.advance(now);
        let mode = ifindex.map(|ifindex| Mode::Affinity(AffinityRule::Interface(ifindex)));
        let changed = match mode {
            Some(mode) => self.kept_to.insert(qpn, mode) != Some(mode),
            None => self.kept_to.remove(&qpn).is_some(),
        };
        let Some(peer) = self.qps.get(&Qpn(qpn)).map(|qp| qp.peer).filter(|_| changed) else {
            return;
        };
        if self.renew_own_policies(peer) {
            self.wake(peer);
        }
    }

    /// The index of the interface that a queue pair was made to keep to.
    pub fn kept_to(&self, qpn: u32) -> Option<u32> {
        match self.kept_to.get(&qpn)? {
            Mode::Affinity(AffinityRule::Interface(ifindex)) => Some(*ifindex),
            _ => None,
        }
    }

    /// The policy that a queue pair has of its own, whatever its peer has; `None` if it has none.
    pub fn own_mode(&self, qpn: u32) -> Option<Mode> {
        let peer = self.qps.get(&Qpn(qpn))?.peer;
        self.peers.get(peer)?.own_policies.mode(Qpn(qpn))
    }
}
