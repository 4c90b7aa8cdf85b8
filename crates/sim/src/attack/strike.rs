//! Makes an attacker's packet from the state of a run.

use polypath_transport::QpType;

use super::{Guess, Target, garble, guess, is_harmless};
use crate::bout::{Attack, Way};
use crate::datagram::address;
use crate::judge::Verdict;
use crate::rng::Rng;
use crate::run::Simulation;

/// A host number that no host has, on any link.
const NOBODY: usize = 76;

impl Simulation {
    /// Sends the attackers' packets that are due.
    pub(crate) fn attack(&mut self) {
        while let Some((attack, mut rng)) = self.attackers.pop(self.now) {
            if let Some(datagram) = self.strike(&attack, &mut rng) {
                self.forged |= attack.way == Way::Forge;
                self.net.inject(self.now, datagram);
            }
        }
    }

    fn strike(&self, attack: &Attack, rng: &mut Rng) -> Option<crate::datagram::Datagram> {
        let seen = self.net.seen.as_ref()?;
        match attack.way {
            Way::Guess => Some(guess(&self.target(attack)?, Guess::Wrong, rng)),
            Way::Stranger => {
                let target = self.target(attack)?;
                let from = address(self.case.pairs[attack.pair].link, NOBODY, self.case.v6);
                // A UD message may come from any address, so it needs a wrong number.
                let knows = if target.service == QpType::Ud { Guess::Wrong } else { Guess::Right };
                Some(guess(&Target { from, ..target }, knows, rng))
            }
            Way::Replay => seen.recent(rng).filter(|d| is_harmless(d, self.now)).cloned(),
            Way::Stale => seen.old(rng).filter(|d| is_harmless(d, self.now)).cloned(),
            Way::Forge => seen.recent(rng).map(|datagram| garble(datagram, rng)),
        }
    }

    fn target(&self, attack: &Attack) -> Option<Target> {
        let plan = self.case.pairs.get(attack.pair)?;
        let (end, peer) = (&plan.ends[attack.end], &plan.ends[1 - attack.end]);
        let pair = &self.oracle.pairs[attack.pair];
        // The judge takes what a queue pair in the error state flushes for executed, so that nobody can
        // tell which numbers are wrong.
        if pair.has_ended() {
            return None;
        }
        Some(Target {
            service: plan.service,
            multipath: plan.multipath,
            from: address(plan.link, peer.host, self.case.v6),
            to: address(plan.link, end.host, self.case.v6),
            qpn: end.qpn,
            peer_qpn: peer.qpn,
            mtu: plan.mtu,
            memory: self.hosts[end.host].io.memory.len() as u64,
            requests: pair.directions[1 - attack.end].sequence(),
            answers: pair.directions[attack.end].sequence(),
        })
    }

    /// Returns the verdict. A promise that was broken after an attacker that knows everything has
    /// forged a packet is excused, and the judge stops.
    pub(crate) fn excuse(&mut self, verdict: Verdict) -> Verdict {
        if verdict.is_err() && self.forged {
            self.judged = false;
            return Ok(());
        }
        verdict
    }
}
