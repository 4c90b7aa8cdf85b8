//! How hosts use their paths changes while queue pairs send: the policies of all their peers, of one peer, of
//! one queue pair, and the preferred path. The changes are drawn from a stream of their own, so that the rest
//! of what a seed means stays as it was.

use polypath_paths::{AffinityRule, Mode, PeerMode, Primary, Usage};

use crate::case::Case;
use crate::datagram::address;
use crate::faults::Fault;
use crate::freeze::any_step;
use crate::judge::Verdict;
use crate::rng::Rng;
use crate::run::Simulation;

/// The number of cases in a thousand in which something changes.
const SHARE: u64 = 250;
/// The largest number of changes of a case.
const CHANGES_MAX: u64 = 60;

/// Adds to a case the changes that its seed means.
pub(crate) fn add(seed: u64, case: &mut Case) {
    let rng = &mut Rng::new(seed.rotate_left(11) ^ 0x7573_6167_6520_2d31);
    if case.links.len() < 2 || !rng.chance(SHARE) {
        return;
    }
    for _ in 0..=rng.below(CHANGES_MAX) {
        let change = any_change(rng, case);
        case.faults.push((any_step(rng), change));
    }
}

/// Draws a change.
pub fn any_change(rng: &mut Rng, case: &Case) -> Fault {
    let host = rng.below(case.hosts as u64) as usize;
    let pair = rng.below(case.pairs.len() as u64) as usize;
    let end = rng.below(2) as usize;
    let maybe = |rng: &mut Rng| rng.chance(700).then(|| any_mode(rng));
    match rng.below(10) {
        0..=3 => Fault::Mode { host, mode: any_mode(rng) },
        4..=5 => Fault::PeerMode { pair, end, mode: maybe(rng) },
        6..=8 => Fault::OwnMode { pair, end, mode: maybe(rng) },
        _ => {
            let link = rng.below(case.links.len() as u64 + 1) as usize;
            Fault::Primary { host, link: Some(link).filter(|link| *link < case.links.len()) }
        }
    }
}

fn any_mode(rng: &mut Rng) -> Mode {
    match rng.below(6) {
        0 => Mode::ActiveBackup,
        1 => Mode::Balance,
        2 => Mode::Affinity(AffinityRule::Hash),
        3 => Mode::Affinity(AffinityRule::RoundRobin),
        4 => Mode::Redundant,
        _ => Mode::Efficient,
    }
}

impl Simulation {
    /// Carries out a fault that concerns how paths are used, or a queue pair.
    pub(crate) fn apply_inside(&mut self, fault: Fault) -> Verdict {
        match fault {
            Fault::Mode { host, mode } => self.change_usage(host, |usage| usage.mode = mode),
            Fault::PeerMode { pair, end, mode } => {
                let plan = &self.case.pairs[pair];
                let [host, peer] = [end, 1 - end].map(|e| plan.ends[e].host);
                let ip = address(plan.link, peer, self.case.v6);
                let prefix_len = if self.case.v6 { 128 } else { 32 };
                self.change_usage(host, |usage| {
                    usage.peers.retain(|rule| rule.ip != ip);
                    usage.peers.extend(mode.map(|mode| PeerMode { ip, prefix_len, mode }));
                })
            }
            Fault::OwnMode { pair, end, mode } => {
                let end = &self.case.pairs[pair].ends[end];
                let (host, qpn) = (end.host, end.qpn);
                self.change_usage(host, |usage| match mode {
                    Some(mode) => drop(usage.queue_pairs.insert(qpn, mode)),
                    None => drop(usage.queue_pairs.remove(&qpn)),
                })
            }
            Fault::Primary { host, link } => {
                let primary = link.map(|link| Primary::Interface(link as u32 + 2));
                self.change_usage(host, |usage| usage.primary = primary)
            }
            Fault::Ports { host, ports } => self.change_usage(host, |usage| usage.ports = ports),
            Fault::Error { pair, end } => self.end(pair, end),
            Fault::Drain { pair, end, pause, notify } => self.drain(pair, end, pause, notify),
            Fault::Migrate { pair, end } => self.migrate(pair, end),
            Fault::Freeze { pair, end } => self.freeze(pair, end),
            Fault::Away { pair, end, time } => self.leave(pair, end, time),
            _ => Ok(()),
        }
    }

    fn change_usage(&mut self, number: usize, change: impl FnOnce(&mut Usage)) -> Verdict {
        let host = &mut self.hosts[number];
        change(&mut host.usage);
        if !self.alive[number] {
            return Ok(());
        }
        host.begin(self.now);
        host.lane.paths_mut().set_usage(self.now, &host.usage);
        self.check(number)
    }
}
