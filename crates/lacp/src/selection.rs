//! Selection (IEEE 802.1AX-2014, clause 6.4.14): which ports share an aggregator, and which aggregator is the
//! active one. The choice of the latter is Linux' (`ad_agg_selection_test` of bond_3ad.c).

use core::cmp::Ordering;

use crate::config::AdSelect;
use crate::port::Port;
use crate::states::{MuxState, Selected};

/// The active aggregator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Active {
    /// Its identifier.
    pub(crate) id: Option<u16>,
    /// Whether it has distributed since it was chosen. Until then any better one replaces it, also under
    /// `stable`: after the first port, others are still being found.
    settled: bool,
}

/// What the choice looks at.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u16,
    individual: bool,
    partner: bool,
    ports: usize,
    bandwidth_mbps: u64,
}

/// Gives each port that needs one an aggregator. Returns whether anything changed.
pub(crate) fn select(ports: &mut [Port]) -> bool {
    let mut changed = false;
    for at in 0..ports.len() {
        let port = &mut ports[at];
        if port.leaving {
            continue;
        }
        let usable = port.enabled && !port.looped;
        if !usable && port.selected != Selected::Unselected {
            port.selected = Selected::Unselected;
            changed = true;
        }
        // It first leaves the aggregator that it was attached to.
        if port.selected != Selected::Unselected || port.mux != MuxState::Detached {
            continue;
        }
        if port.aggregator.take().is_some() {
            changed = true;
        }
        if usable {
            let id = shared(ports, at).unwrap_or_else(|| free(ports));
            ports[at].aggregator = Some(id);
            ports[at].selected = Selected::Standby;
            changed = true;
        }
    }
    changed
}

/// The aggregator of other ports with the same link aggregation group.
fn shared(ports: &[Port], at: usize) -> Option<u16> {
    let group = |port: &Port| {
        let partner = &port.partner;
        (port.actor.key, partner.system, partner.system_priority, partner.key)
    };
    let own = &ports[at];
    if own.individual() {
        return None;
    }
    ports
        .iter()
        .filter(|port| port.number != own.number && !port.leaving)
        .filter(|port| port.selected != Selected::Unselected && !port.individual())
        .find(|port| group(port) == group(own))
        .and_then(|port| port.aggregator)
}

/// The lowest identifier that no port uses, from 1.
fn free(ports: &[Port]) -> u16 {
    let used = |id: u16| ports.iter().any(|port| port.aggregator == Some(id));
    (1..=u16::MAX).find(|id| !used(*id)).unwrap_or(u16::MAX)
}

/// Chooses the active aggregator, whose ports become selected; the others stand by. Returns whether anything
/// changed.
pub(crate) fn choose(ports: &mut [Port], active: &mut Active, policy: AdSelect) -> bool {
    let candidates = candidates(ports);
    let current = candidates.iter().find(|candidate| Some(candidate.id) == active.id);
    let mut best = current;
    for candidate in &candidates {
        if best.is_none_or(|best| better(candidate, best, policy) == Ordering::Greater) {
            best = Some(candidate);
        }
    }
    if let (Some(current), Some(challenger)) = (current, best) {
        let keep = policy == AdSelect::Stable
            && active.settled
            && (current.partner || !challenger.partner)
            && (!current.individual || challenger.individual);
        if keep {
            best = Some(current);
        }
    }
    let mut changed = false;
    if active.id != best.map(|best| best.id) {
        *active = Active { id: best.map(|best| best.id), settled: false };
        changed = true;
    }
    let of_active = |port: &Port| active.id.is_some() && port.aggregator == active.id;
    active.settled |= ports.iter().any(|port| of_active(port) && port.distributes());
    for port in ports.iter_mut().filter(|port| port.selected != Selected::Unselected) {
        let to = if of_active(port) { Selected::Selected } else { Selected::Standby };
        changed |= port.selected != to;
        port.selected = to;
    }
    changed
}

fn candidates(ports: &[Port]) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    for port in ports.iter().filter(|port| port.enabled && !port.leaving) {
        let (Some(id), true) = (port.aggregator, port.selected != Selected::Unselected) else {
            continue;
        };
        let speed = u64::from(port.speed_mbps);
        match all.iter_mut().find(|candidate| candidate.id == id) {
            Some(candidate) => {
                candidate.ports += 1;
                candidate.bandwidth_mbps += speed;
            }
            None => all.push(Candidate {
                id,
                individual: port.individual(),
                partner: port.has_partner(),
                ports: 1,
                bandwidth_mbps: speed,
            }),
        }
    }
    all
}

/// Whether `one` is better than `other`. Equal ones stay as they are.
fn better(one: &Candidate, other: &Candidate, policy: AdSelect) -> Ordering {
    let by_count = match policy {
        AdSelect::Count => one.ports.cmp(&other.ports),
        AdSelect::Stable | AdSelect::Bandwidth => Ordering::Equal,
    };
    (!one.individual)
        .cmp(&!other.individual)
        .then(one.partner.cmp(&other.partner))
        .then(by_count)
        .then(one.bandwidth_mbps.cmp(&other.bandwidth_mbps))
}

/// Whether all ports of this aggregator have waited for the others.
pub(crate) fn is_ready(ports: &[Port], aggregator: Option<u16>) -> bool {
    ports
        .iter()
        .filter(|port| port.aggregator == aggregator && port.mux == MuxState::Waiting)
        .all(|port| port.wait_while.is_none())
}
