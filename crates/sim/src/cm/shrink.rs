//! Reduces a failing case: leaves out whatever is not needed to break the same promise.

use core::ops::Range;
use core::time::Duration;

use super::case::{CmCase, CmFault, Decision, EndPlan};
use super::run::{CmPlantedFault, run};
use crate::link_faults::LinkFaults;
use crate::run::Failure;
use crate::shrink::{Shrinker, Shrunk};

/// Reduces a case that fails. Stops after 3000 runs or a minute, with the smallest case found so far.
pub fn shrink(
    case: &CmCase,
    failure: Failure,
    planted: Option<(usize, CmPlantedFault)>,
) -> Shrunk<CmCase> {
    let fails = |case: &CmCase| run(case, planted, None).0.err();
    Shrinker::new(case, failure, &fails).run(Shrinker::pass)
}

impl Shrinker<'_, CmCase> {
    fn pass(&mut self) {
        self.thin_by(self.best.attempts.len(), remove_attempts);
        self.thin(|case| &mut case.faults);
        self.thin(|case| &mut case.listeners);
        for i in 0..self.best.listeners.len() {
            self.change(|case| case.listeners[i].link = None);
        }
        self.change(|case| case.multi_path = false);
        self.change(|case| case.v6 = false);
        self.change(|case| case.max_connections = 131_072);
        self.change(remove_link);
        self.change(remove_host);
        for link in 0..self.best.links.len() {
            self.change(|case| case.links[link].jitter = Duration::ZERO);
            self.change(|case| case.links[link].reorders = false);
        }
        for i in 0..self.best.faults.len() {
            self.simplify_fault(i);
        }
        for i in 0..self.best.attempts.len() {
            self.simplify_attempt(i);
        }
    }

    fn simplify_fault(&mut self, i: usize) {
        let part = |change: fn(&mut LinkFaults)| {
            move |case: &mut CmCase| {
                if let (_, CmFault::LinkFaults { link_faults, .. }) = &mut case.faults[i] {
                    change(link_faults);
                }
            }
        };
        self.change(part(|w| w.loss = 0));
        self.change(part(|w| w.double = 0));
        self.change(part(|w| w.overtake = 0));
        self.change(part(|w| w.straggle = 0));
        self.change(part(|w| w.corrupt = 0));
        // Each fault moves to the time of the fault before it, so the order stays the same.
        self.change(|case| {
            let before = i.checked_sub(1).map_or(Duration::ZERO, |b| case.faults[b].0);
            case.faults[i].0 = before;
        });
    }

    fn simplify_attempt(&mut self, i: usize) {
        self.change(|case| case.attempts[i].at = Duration::ZERO);
        self.change(|case| case.attempts[i].numbers = [0; 4]);
        self.change(|case| case.attempts[i].data_after = None);
        self.change(|case| case.attempts[i].decision = Decision::Accept);
        let ends: [fn(&mut CmCase, usize) -> &mut EndPlan; 2] =
            [|case, i| &mut case.attempts[i].active, |case, i| &mut case.attempts[i].passive];
        for end in ends {
            self.change(|case| end(case, i).private_len = 0);
            self.change(|case| end(case, i).quit = None);
            self.change(|case| end(case, i).migrate_after = None);
            self.change(|case| end(case, i).decide_after = Duration::ZERO);
            self.change(|case| end(case, i).agree_after = None);
            self.change(|case| end(case, i).destroy_after = Duration::ZERO);
        }
    }
}

fn remove_attempts(case: &mut CmCase, part: Range<usize>) {
    case.attempts.drain(part.clone());
    case.faults.retain_mut(|(_, fault)| match fault {
        CmFault::Forge { attempt, .. } if part.contains(attempt) => false,
        CmFault::Forge { attempt, .. } if *attempt >= part.end => {
            *attempt -= part.len();
            true
        }
        _ => true,
    });
}

/// Removes the last link, if no attempt uses it.
fn remove_link(case: &mut CmCase) {
    let last = case.links.len() - 1;
    let used = case.attempts.iter().any(|a| a.link == last)
        || case.listeners.iter().any(|l| l.link == Some(last));
    if last == 0 || used {
        return;
    }
    case.links.pop();
    case.faults.retain(|(_, fault)| match fault {
        CmFault::Cut { link, .. }
        | CmFault::Address { link, .. }
        | CmFault::LinkFaults { link, .. } => *link != last,
        _ => true,
    });
}

/// Removes the last host, if nothing happens there.
fn remove_host(case: &mut CmCase) {
    let last = case.hosts - 1;
    let used = case.attempts.iter().any(|a| a.place.host == last || a.to == last)
        || case.listeners.iter().any(|l| l.place.host == last);
    if last < 2 || used {
        return;
    }
    case.hosts = last;
    case.faults.retain(|(_, fault)| match fault {
        CmFault::Cut { from, to, .. } => *from != last && *to != last,
        CmFault::Pause { place, .. } | CmFault::Kill { place } | CmFault::Removal { place } => {
            place.host != last
        }
        CmFault::Reboot { host }
        | CmFault::Address { host, .. }
        | CmFault::Replay { host, .. }
        | CmFault::Forge { host, .. } => *host != last,
        CmFault::LinkFaults { .. } => true,
    });
}
