//! Reduces a failing case: leaves out whatever is not needed to break the same promise.

use core::ops::Range;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::case::Case;
use crate::faults::{Fault, When};
use crate::io::PlantedFault;
use crate::link_faults::{Bursts, LinkFaults};
use crate::report::Report;
use crate::run::{Failure, Simulation};
use crate::trace::Trace;

/// The largest number of runs for one reduction.
const RUNS_MAX: u32 = 3000;
/// The longest real time for one reduction.
const TIME_MAX: Duration = Duration::from_secs(60);

/// A case that was reduced.
#[derive(Clone, Debug)]
pub struct Shrunk<C = Case> {
    /// The reduced case.
    pub case: C,
    /// The failure of the reduced case.
    pub failure: Failure,
    /// The number of runs that the reduction took.
    pub runs: u32,
}

/// Runs a case. A panic counts as a failure. `planted` names a host that breaks a promise on purpose.
///
/// # Errors
/// The first promise that was broken.
pub fn run(
    case: &Case,
    planted: Option<(usize, PlantedFault)>,
    trace: Option<Trace>,
) -> (Result<Report, Failure>, Option<Trace>) {
    let run = || {
        let mut simulation = Simulation::new(case);
        if let Some(trace) = trace {
            simulation = simulation.with_trace(trace);
        }
        if let Some((host, planted)) = planted {
            simulation = simulation.with_planted_fault(host, planted);
        }
        simulation.run()
    };
    // Nothing of the simulation is used after a panic.
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| (Err(Failure::of_panic(panic.as_ref())), None))
}

/// Reduces a case that fails. Stops after 3000 runs or a minute, with the smallest case found so far.
pub fn shrink(case: &Case, failure: Failure, planted: Option<(usize, PlantedFault)>) -> Shrunk {
    let fails = |case: &Case| run(case, planted, None).0.err();
    Shrinker::new(case, failure, &fails).run(Shrinker::pass)
}

/// Tries smaller and smaller cases.
pub(crate) struct Shrinker<'a, C> {
    pub(crate) best: C,
    failure: Failure,
    /// Runs a case, and returns how it fails, if it does.
    fails: &'a dyn Fn(&C) -> Option<Failure>,
    runs: u32,
    start: Instant,
}

impl<'a, C: Clone + PartialEq> Shrinker<'a, C> {
    pub(crate) fn new(
        case: &C,
        failure: Failure,
        fails: &'a dyn Fn(&C) -> Option<Failure>,
    ) -> Self {
        Self { best: case.clone(), failure, fails, runs: 0, start: Instant::now() }
    }

    /// Repeats `pass`, which tries every simplification once, until it changes nothing any more.
    pub(crate) fn run(mut self, pass: impl Fn(&mut Self)) -> Shrunk<C> {
        loop {
            let before = self.best.clone();
            pass(&mut self);
            if self.best == before || self.exhausted() {
                return Shrunk { case: self.best, failure: self.failure, runs: self.runs };
            }
        }
    }

    fn exhausted(&self) -> bool {
        self.runs >= RUNS_MAX || self.start.elapsed() > TIME_MAX
    }

    /// Keeps a smaller case if it breaks the same promise. Returns whether it did.
    fn attempt(&mut self, candidate: C) -> bool {
        if candidate == self.best || self.exhausted() {
            return false;
        }
        self.runs += 1;
        match (self.fails)(&candidate) {
            Some(failure) if failure.rule == self.failure.rule => {
                self.best = candidate;
                self.failure = failure;
                true
            }
            _ => false,
        }
    }

    /// Changes the case, and keeps the change if the case still fails in the same way.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut C)) -> bool {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        self.attempt(candidate)
    }

    /// Leaves out parts of a list: first the whole list, then halves, then smaller and smaller parts.
    pub(crate) fn thin<T>(&mut self, list: impl Fn(&mut C) -> &mut Vec<T>) {
        let len = list(&mut self.best).len();
        self.thin_by(len, |case, part| drop(list(case).drain(part)));
    }

    /// Leaves out parts of a list of length `len`. `cut` removes a part, and mends what refers to it.
    pub(crate) fn thin_by(&mut self, mut len: usize, cut: impl Fn(&mut C, Range<usize>)) {
        let mut chunk = len;
        while chunk > 0 {
            let mut at = 0;
            while at < len {
                let end = (at + chunk).min(len);
                if self.change(|case| cut(case, at..end)) {
                    len -= end - at;
                } else {
                    at = end;
                }
            }
            chunk /= 2;
        }
    }
}

impl Shrinker<'_, Case> {
    fn pass(&mut self) {
        for pair in (0..self.best.pairs.len()).rev() {
            self.change(|case| remove_pair(case, pair));
        }
        self.thin(|case| &mut case.faults);
        self.thin(|case| &mut case.attacks);
        for attack in 0..self.best.attacks.len() {
            while self.best.attacks[attack].packets > 1
                && self.change(|case| case.attacks[attack].packets /= 2)
            {}
        }
        for pair in 0..self.best.pairs.len() {
            for end in 0..2 {
                self.thin(|case| &mut case.pairs[pair].ends[end].ops);
            }
        }
        for link in (0..self.best.links.len()).rev() {
            self.change(|case| remove_link(case, link));
        }
        for host in (0..self.best.hosts).rev() {
            self.change(|case| remove_host(case, host));
        }
        self.simplify();
        self.make_sooner();
    }

    /// Makes the rest of the case simpler.
    fn simplify(&mut self) {
        self.change(|case| case.v6 = false);
        for link in 0..self.best.links.len() {
            self.change(|case| case.links[link].jitter = Duration::ZERO);
            self.change(|case| case.links[link].reorders = false);
            self.change(|case| case.links[link].marks = false);
            self.change(|case| case.links[link].rate_mbps = 0);
        }
        for i in 0..self.best.faults.len() {
            let part = |change: fn(&mut LinkFaults)| {
                move |case: &mut Case| {
                    if let (_, Fault::LinkFaults { link_faults, .. }) = &mut case.faults[i] {
                        change(link_faults);
                    }
                }
            };
            self.change(part(|w| w.loss = 0));
            self.change(part(|w| w.bursts = Bursts::default()));
            self.change(part(|w| w.double = 0));
            self.change(part(|w| w.overtake = 0));
            self.change(part(|w| w.straggle = 0));
            self.change(part(|w| w.corrupt = 0));
        }
        for pair in 0..self.best.pairs.len() {
            self.change(|case| case.pairs[pair].multipath = false);
            self.change(|case| case.pairs[pair].alternate = None);
            self.change(|case| case.pairs[pair].mtu = 4096);
            self.change(|case| case.pairs[pair].unfenced = false);
            for end in 0..2 {
                self.change(|case| case.pairs[pair].ends[end].srq = false);
                for i in 0..self.best.pairs[pair].ends[end].ops.len() {
                    self.simplify_op(pair, end, i);
                }
            }
        }
    }

    fn simplify_op(&mut self, pair: usize, end: usize, i: usize) {
        let least = 8;
        let op = |case: &mut Case, change: fn(&mut crate::case::Op)| {
            change(&mut case.pairs[pair].ends[end].ops[i]);
        };
        let old = self.best.pairs[pair].ends[end].ops[i].clone();
        if old.wrong.is_none() && self.best.pairs[pair].is_reliable() {
            self.change(|case| op(case, |op| op.len = if op.kind.is_word() { 8 } else { 0 }));
        }
        while self.best.pairs[pair].ends[end].ops[i].len > least
            && self.change(|case| op(case, |op| op.len = (op.len / 2).max(8)))
        {}
        self.change(|case| {
            op(case, |op| {
                (op.inline, op.solicited, op.fence, op.split) = (false, false, false, false);
            });
        });
        self.change(|case| op(case, |op| op.wrong = None));
    }

    /// Makes everything happen sooner.
    fn make_sooner(&mut self) {
        self.change(|case| {
            for op in case.pairs.iter_mut().flat_map(|p| &mut p.ends).flat_map(|e| &mut e.ops) {
                op.receive_at = Duration::ZERO;
            }
        });
        for _ in 0..4 {
            let sooner = self.change(|case| {
                let ends = case.pairs.iter_mut().flat_map(|p| &mut p.ends);
                for op in ends.flat_map(|e| &mut e.ops) {
                    op.at /= 2;
                    op.receive_at /= 2;
                }
                for attack in &mut case.attacks {
                    attack.at /= 2;
                }
                for (when, _) in &mut case.faults {
                    if let When::At(at) = when {
                        *at /= 2;
                    }
                }
            });
            if !sooner {
                break;
            }
        }
    }
}

fn remove_pair(case: &mut Case, number: usize) {
    case.pairs.remove(number);
    case.attacks.retain_mut(|attack| {
        let stays = attack.pair != number;
        attack.pair -= usize::from(attack.pair > number);
        stays
    });
    case.faults.retain_mut(|(_, fault)| match fault {
        Fault::Error { pair, .. }
        | Fault::Drain { pair, .. }
        | Fault::Freeze { pair, .. }
        | Fault::Migrate { pair, .. }
        | Fault::Away { pair, .. }
        | Fault::PeerMode { pair, .. }
        | Fault::OwnMode { pair, .. } => {
            let stays = *pair != number;
            *pair -= usize::from(*pair > number);
            stays
        }
        _ => true,
    });
}

/// Removes a link that no pair is connected by.
fn remove_link(case: &mut Case, number: usize) {
    if case.links.len() == 1 || case.pairs.iter().any(|p| p.link == number) {
        return;
    }
    case.links.remove(number);
    let moved = |link: &mut usize| {
        let stays = *link != number;
        *link -= usize::from(*link > number);
        stays
    };
    for pair in &mut case.pairs {
        moved(&mut pair.link);
    }
    case.faults.retain_mut(|(_, fault)| match fault {
        Fault::Cut { link, .. }
        | Fault::Carrier { link, .. }
        | Fault::Address { link, .. }
        | Fault::Device { link, .. }
        | Fault::Admin { link, .. }
        | Fault::LinkFaults { link, .. }
        | Fault::Holes { link, .. }
        | Fault::Ways { link, .. }
        | Fault::Primary { link: Some(link), .. } => moved(link),
        _ => true,
    });
}

/// Removes the last host if no pair is on it. Queue pair numbers stay, though they begin with the
/// host's number.
fn remove_host(case: &mut Case, number: usize) {
    let mut ends = case.pairs.iter().flat_map(|p| &p.ends);
    if case.hosts <= 2 || number + 1 != case.hosts || ends.any(|e| e.host == number) {
        return;
    }
    case.hosts -= 1;
    case.faults.retain(|(_, fault)| match fault {
        Fault::Cut { from, to, .. } => *from != number && *to != number,
        Fault::Carrier { host, .. }
        | Fault::Address { host, .. }
        | Fault::Device { host, .. }
        | Fault::Admin { host, .. }
        | Fault::Pause { host, .. }
        | Fault::Mode { host, .. }
        | Fault::Primary { host, .. }
        | Fault::Ports { host, .. }
        | Fault::Die { host, .. } => *host != number,
        _ => true,
    });
}

impl Simulation {
    /// Creates a run in which everything is connected and nothing is done yet.
    pub fn new(case: &Case) -> Self {
        Self::build(case, None)
    }

    /// Creates a run like [`Simulation::new`], with the policy that `make` creates on all hosts.
    pub fn with_policy(case: &Case, make: polypath_paths::MakePolicy) -> Self {
        Self::build(case, Some(make))
    }
}
