//! A run: it executes a case step by step, and the judge checks everything that happens.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use polypath_paths::{MakePolicy, PathEvent, PathOptions};
use polypath_transport::{PathId, QpAttr, QpAttrMask, QpState, QpType, QueuePair, UdDestination};

use crate::attack::{Attackers, Seen};
use crate::case::{Case, OpKind, Wrong};
use crate::connect::connect;
use crate::datagram::{address, other_address};
use crate::faults::{Change, Fault, When};
use crate::host::{HostPlan, SimHost};
use crate::io::{PlantedFault, QKEY, SRQNS};
use crate::judge::direction::Direction;
use crate::judge::pair::{Conditions, Ended, Oracle, Pair};
use crate::judge::{Breach, Verdict, breach};
use crate::layout::{BUFFER, COMMON, Layout, SRQ_DEPTH};
use crate::link::Network;
use crate::link_faults::{Holes, LinkFaults};
use crate::out::say;
use crate::report::Report;
use crate::rng::Rng;
use crate::trace::Trace;
use crate::under_way::UnderWay;

const MS: Duration = Duration::from_millis(1);
/// The number of work requests that each queue takes. Applications have fewer outstanding.
const QUEUE_DEPTH: u32 = 64;
/// The virtual time when queue pairs are connected.
const EPOCH: Duration = MS;
/// The time from the last fault until everything is mended.
const HEALING: Duration = Duration::from_millis(600);
/// The time within which everything must be done once all is mended.
const PATIENCE: Duration = Duration::from_secs(180);
/// The time within which packets arrive that are still under way when all is done.
const REST: Duration = Duration::from_millis(400);

/// A run that failed because a promise was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the promise. It stays the same while a case is reduced.
    pub rule: &'static str,
    /// The virtual time.
    pub at: Duration,
    /// A description of what was seen instead, with the numbers of the objects concerned.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:?}: {}: {}", self.at, self.rule, self.what)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// The failure of a run that panicked.
    pub(crate) fn of_panic(panic: &(dyn core::any::Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let what = text.unwrap_or("without a message").to_owned();
        Self { rule: "nothing panics", at: Duration::ZERO, what }
    }
}

/// Runs the case that a seed means.
///
/// # Errors
/// The first promise that was broken.
pub fn simulate(seed: u64) -> Result<Report, Failure> {
    Simulation::new(&Case::draw(seed)).run().0
}

/// The state of a host's port.
#[derive(Clone, Copy, Debug)]
struct PortState {
    change: Change,
    device: bool,
    up: bool,
}

/// A run of a case, with its hosts, network and judge.
#[derive(Debug)]
pub struct Simulation {
    pub(crate) case: Case,
    rng: Rng,
    pub(crate) now: Duration,
    pub(crate) net: Network,
    pub(crate) hosts: Vec<SimHost>,
    plans: Vec<HostPlan>,
    pub(crate) alive: Vec<bool>,
    /// The ports, by host and link.
    ports: Vec<Vec<PortState>>,
    pub(crate) oracle: Oracle,
    ud: Vec<[Option<UdDestination>; 2]>,
    /// The faults that happen at a time, in order.
    timed: VecDeque<(Duration, Fault)>,
    /// The faults that happen once so many packets have been sent.
    counted: Vec<(u64, Fault)>,
    healed: Option<Duration>,
    pub(crate) disturbed: bool,
    pub(crate) attackers: Attackers,
    /// Whether an attacker that knows everything has forged a packet.
    pub(crate) forged: bool,
    /// Whether the judge still checks: not once an attacker that knows everything broke a promise.
    pub(crate) judged: bool,
    /// The time, pair and end of each application that wants to send again.
    pub(crate) resumes: Vec<(Duration, usize, usize)>,
    /// Frozen queue pairs that no host has at the moment.
    pub(crate) away: UnderWay,
    /// The number of path events of each host that have been noted.
    noted: Vec<usize>,
    print: bool,
}

impl Simulation {
    /// Creates a run in which everything is connected and nothing is done yet.
    pub(crate) fn build(case: &Case, policy: Option<MakePolicy>) -> Self {
        let mut rng = Rng::new(case.seed);
        let mut base = COMMON;
        let mut layouts = Vec::new();
        for pair in &case.pairs {
            let layout = Layout::new(pair.service, base);
            base = layout.end();
            layouts.push(layout);
        }
        let any_xrc = case.pairs.iter().any(|p| p.service.is_xrc());
        let any_srq = case.pairs.iter().flat_map(|p| &p.ends).any(|e| e.srq);
        let shared = if any_xrc { 1 + SRQNS.len() as u64 } else { u64::from(any_srq) };
        let memory = base + shared * SRQ_DEPTH * BUFFER;
        let plans: Vec<HostPlan> = (0..case.hosts)
            .map(|number| HostPlan {
                number,
                instance: rng.bits(),
                links: case.links.len(),
                v6: case.v6,
                lane: case.lanes.get(number).copied().unwrap_or_default(),
                policy,
                memory: memory as usize,
            })
            .collect();
        let mut hosts: Vec<_> = plans.iter().map(|p| SimHost::new(p, EPOCH)).collect();
        let mut ud = Vec::new();
        for (plan, layout) in case.pairs.iter().zip(&layouts) {
            let ips = [0, 1].map(|e| address(plan.link, plan.ends[e].host, case.v6));
            let mut to = [None, None];
            for e in 0..2 {
                let host = &mut hosts[plan.ends[e].host];
                for (end, kind) in [(1 - e, OpKind::SendInv), (e, OpKind::LocalInv)] {
                    let ops = plan.ends[end].ops.iter().zip(0..);
                    let invalidating = ops.filter(|(op, _)| op.kind == kind);
                    host.io.passing_keys.extend(invalidating.map(|(_, i)| layout.key(kind, i)));
                }
                let (local, remote) = (ips[e], ips[1 - e]);
                connect(plan, e, ips, QUEUE_DEPTH, host);
                if plan.service == QpType::Ud {
                    let options = PathOptions { multipath: plan.multipath, ..Default::default() };
                    let path = host.lane.paths_mut().ud_path(EPOCH, local, remote, options);
                    let path = path.expect("there is room for a simulation's paths").0;
                    let qpn = plan.ends[1 - e].qpn;
                    to[e] = Some(UdDestination {
                        path: PathId(path),
                        twin: PathId::NONE,
                        qpn,
                        qkey: QKEY,
                    });
                }
            }
            ud.push(to);
        }
        let mut timed = Vec::new();
        let mut counted = Vec::new();
        for &(when, fault) in &case.faults {
            match when {
                When::At(at) => timed.push((EPOCH + at, fault)),
                When::Packet(number) => counted.push((number, fault)),
            }
        }
        timed.sort_by_key(|(at, _)| *at);
        let attackers = Attackers::new(case, EPOCH);
        let mut net = Network::new(&case.links, case.hosts, case.v6);
        net.seen = (!attackers.is_empty()).then(Seen::default);
        let port = PortState { change: Change::Back, device: true, up: true };
        Self {
            net,
            oracle: Oracle::new(case, &layouts, base),
            ports: vec![vec![port; case.links.len()]; case.hosts],
            alive: vec![true; case.hosts],
            timed: timed.into(),
            case: case.clone(),
            now: EPOCH,
            healed: None,
            disturbed: false,
            attackers,
            forged: false,
            judged: true,
            resumes: Vec::new(),
            away: UnderWay::default(),
            noted: vec![0; case.hosts],
            print: false,
            rng,
            hosts,
            plans,
            ud,
            counted,
        }
    }

    /// Records packets in `trace`.
    #[must_use]
    pub fn with_trace(mut self, trace: Trace) -> Self {
        self.net.trace = Some(trace);
        self
    }

    /// Prints faults and path events if `events`, and packets if `packets`.
    #[must_use]
    pub fn printing(mut self, events: bool, packets: bool) -> Self {
        self.print = events;
        self.net.print = packets;
        self
    }

    /// Makes a host break a promise.
    #[must_use]
    pub fn with_planted_fault(mut self, host: usize, planted: PlantedFault) -> Self {
        if let Some(host) = self.hosts.get_mut(host) {
            host.io.planted = Some(planted);
        }
        self
    }

    /// Runs to the end, or until a promise is broken. Returns the trace, if there is one, as well.
    pub fn run(mut self) -> (Result<Report, Failure>, Option<Trace>) {
        let result = self.all();
        let at = self.now;
        let failure = |b: Breach| {
            let said: Vec<_> = self.hosts.iter().flat_map(|h| h.io.explanations.iter()).collect();
            let what = if said.is_empty() { b.what } else { format!("{}; {said:?}", b.what) };
            Failure { rule: b.rule, at, what }
        };
        (result.map_err(failure), self.net.trace)
    }

    fn all(&mut self) -> Result<Report, Breach> {
        loop {
            let done =
                !self.judged || self.oracle.pairs.iter().all(Pair::done) && self.apart().is_empty();
            if done && self.healed.is_some() && self.attackers.next().is_none() {
                break;
            }
            if self.healed.is_some_and(|at| self.now > at + PATIENCE) {
                return breach("nothing stands still", self.standing());
            }
            self.step()?;
        }
        // Packets that are still under way arrive, and must not break anything.
        let rest = self.now + REST;
        while self.now < rest {
            self.step()?;
        }
        if !self.judged {
            return Ok(self.report());
        }
        let calm = self.case.keeps_order() && !self.disturbed;
        let untouched = self.net.dropped == 0 && calm;
        self.oracle.finish(&self.hosts, untouched)?;
        Ok(self.report())
    }

    fn standing(&self) -> String {
        let waiting = self.oracle.pairs.iter().filter(|p| !p.done()).flat_map(|p| {
            let directions = (0..2).filter(|e| !p.ends[*e].gone && !p.directions[*e].done());
            directions.map(|e| format!("{} ({:?})", p.directions[e].standing(), p.ends[e].ended))
        });
        let status = self.hosts.iter().map(|h| h.lane.paths().status());
        let peers: Vec<_> = status.flat_map(|s| s.peers).map(|p| (p.local, p.note)).collect();
        format!("{:?}; {peers:?}; {:?}", waiting.collect::<Vec<_>>(), self.apart())
    }

    /// Whether an end must not post yet. One that is to use several paths waits until both ends know of
    /// each other, because only then do short timeouts cause no false alarms.
    fn waits(&self, pair: usize, e: usize) -> bool {
        let p = &self.oracle.pairs[pair];
        let left = p.ends.iter().any(|end| end.gone || end.ended.is_some());
        let wanted = p.plan.multipath && p.plan.is_reliable();
        wanted && !left && self.qp(pair, e).is_some_and(|qp| !qp.is_multipath())
    }

    /// The queue pair of an end, if its process is the one that created it.
    pub(crate) fn qp(&self, pair: usize, e: usize) -> Option<&QueuePair> {
        let end = &self.oracle.pairs[pair].ends[e];
        self.hosts[end.host].qp(end.qpn)
    }

    /// The time when applications want to post something next.
    fn posting(&self) -> Option<Duration> {
        if !self.judged {
            return None;
        }
        let mut next = None;
        let mut wanted = |at: Option<Duration>, host: usize| {
            let at = at.map(|at| (EPOCH + at).max(self.hosts[host].paused_until));
            next = [next, at].into_iter().flatten().min();
        };
        for (i, pair) in self.oracle.pairs.iter().enumerate() {
            for (e, end) in pair.ends.iter().enumerate().filter(|&(e, _)| self.is_there(i, e)) {
                if !self.waits(i, e) {
                    wanted(pair.due(e), end.host);
                }
                wanted(pair.receive_due(e).map(|(at, _)| at), end.host);
            }
        }
        for ((host, _), shared) in self.oracle.shared.iter().filter(|((h, _), _)| self.alive[*h]) {
            wanted(shared.due(), *host);
        }
        next
    }

    fn step(&mut self) -> Verdict {
        let deadlines = self.hosts.iter().zip(&self.alive).filter(|(_, alive)| **alive);
        let deadlines = deadlines.filter_map(|(h, _)| h.deadline());
        let fault = self.timed.front().map(|(at, _)| *at);
        let resume = self.resumes.iter().map(|(at, ..)| *at).chain(self.away.next());
        let next = deadlines.chain(self.net.next()).chain(self.posting()).chain(fault);
        let next = next.chain(resume).chain(self.attackers.next()).min();
        // Time never goes back, and one step takes at most 200 ms.
        self.now = self.now.max(next.unwrap_or(self.now + MS).min(self.now + MS * 200));
        let faults = self.faults();
        self.excuse(faults)?;
        let resumed = self.resume();
        self.excuse(resumed)?;
        self.attack();
        while let Some((host, datagram)) = self.net.arrived(self.now) {
            if self.alive[host] {
                self.hosts[host].inbox.push_back(datagram);
            }
        }
        let posted = self.post();
        self.excuse(posted)?;
        for number in 0..self.hosts.len() {
            let host = &mut self.hosts[number];
            if host.paused_until > self.now || !self.alive[number] {
                continue;
            }
            host.run(self.now);
            for datagram in core::mem::take(&mut host.io.out) {
                self.net.send(self.now, number, datagram, &mut self.rng);
            }
            if cfg!(debug_assertions) {
                self.hosts[number].check()?;
            }
            let verdict = self.check(number);
            self.excuse(verdict)?;
        }
        Ok(())
    }

    fn post(&mut self) -> Verdict {
        if !self.judged {
            return Ok(());
        }
        let since = self.now - EPOCH;
        for ((number, _), shared) in &mut self.oracle.shared {
            let host = &mut self.hosts[*number];
            if self.alive[*number] && host.paused_until <= self.now {
                shared.post(since, host);
            }
        }
        for i in 0..self.oracle.pairs.len() {
            for e in 0..2 {
                let end = &self.oracle.pairs[i].ends[e];
                let number = end.host;
                if !self.is_there(i, e) || self.hosts[number].paused_until > self.now {
                    continue;
                }
                let may_send = !self.waits(i, e);
                let (pair, host) = (&mut self.oracle.pairs[i], &mut self.hosts[number]);
                pair.post_receives(e, since, host)?;
                while may_send && pair.due(e).is_some_and(|at| at <= since) {
                    let direction = &pair.directions[e];
                    let wrong = direction.ops[direction.next_to_post()].wrong;
                    let mut ud = self.ud[i][e];
                    if let Some(to) = &mut ud {
                        to.path = host.lane.paths_mut().ud_route_to(self.now, to.path, to.qpn);
                        to.qkey += u32::from(wrong == Some(Wrong::QKey));
                    }
                    pair.post(e, self.now, host, ud)?;
                }
            }
        }
        Ok(())
    }

    fn conditions(&self) -> Conditions {
        let lossy = self.net.dropped > 0 || self.net.corrupted > 0;
        let settled = !self.case.faults.iter().any(|(_, fault)| fault.is_told_to_hosts());
        Conditions { now: self.now, lossy, disturbed: self.disturbed || lossy, settled }
    }

    pub(crate) fn check(&mut self, number: usize) -> Verdict {
        if self.print || self.net.trace.is_some() {
            let events = core::mem::take(&mut self.hosts[number].io.path_events);
            for (_, event) in events.iter().skip(self.noted[number]) {
                self.note(format_args!("host {number}: {event:?}"));
            }
            self.noted[number] = events.len();
            self.hosts[number].io.path_events = events;
        }
        if !self.judged {
            self.hosts[number].io.journal.clear();
            return Ok(());
        }
        let conditions = self.conditions();
        self.oracle.judge(number, &mut self.hosts[number], &conditions)
    }

    fn report(&self) -> Report {
        let events = || self.hosts.iter().flat_map(|h| h.io.path_events.iter().map(|(_, e)| e));
        let blackouts = events().filter_map(|e| match e {
            PathEvent::Resumed { blackout, .. } => Some(*blackout),
            _ => None,
        });
        let ends = self.oracle.pairs.iter().flat_map(|p| &p.ends);
        Report {
            time: self.now,
            requests: self
                .oracle
                .pairs
                .iter()
                .flat_map(|p| &p.directions)
                .map(Direction::completed)
                .sum(),
            errors: ends.filter(|e| e.ended.is_some()).count() as u64,
            failovers: events().filter(|e| matches!(e, PathEvent::Resumed { .. })).count() as u64,
            blackout_max: blackouts.max().unwrap_or_default(),
            deaths: events().filter(|e| matches!(e, PathEvent::PathDead { .. })).count() as u64,
            sent: self.net.sent,
            dropped: self.net.dropped,
            marked: self.net.marked,
            corrupted: self.net.corrupted,
            resent: self
                .hosts
                .iter()
                .flat_map(|h| h.lane.qps().iter())
                .map(|(_, entry)| entry.qp.counters().retransmitted_packets)
                .sum(),
            refused: self.hosts.iter().map(|h| h.refused).sum(),
            migrations: self.migrations(),
            carriers: self.hosts.iter().map(SimHost::carriers).max().unwrap_or(0),
            digest: self.net.digest,
        }
    }

    pub(crate) fn note(&mut self, text: fmt::Arguments<'_>) {
        if self.print {
            say!("{:?} {text}", self.now);
        }
        if let Some(trace) = &mut self.net.trace {
            trace.note(self.now, text.to_string());
        }
    }

    /// Applies the faults that are due, and mends everything once all faults have happened.
    fn faults(&mut self) -> Verdict {
        while let Some(&(_, fault)) = self.timed.front().filter(|(at, _)| *at <= self.now) {
            self.timed.pop_front();
            self.note(format_args!("{fault}"));
            self.apply(fault)?;
        }
        while let Some(i) = self.counted.iter().position(|(n, _)| *n <= self.net.sent) {
            let (_, fault) = self.counted.remove(i);
            self.note(format_args!("{fault}"));
            self.apply(fault)?;
        }
        if self.timed.is_empty() && self.healed.is_none() {
            self.healed = Some(self.now + HEALING);
            self.timed.push_back((self.now + HEALING, Fault::Heal));
        }
        Ok(())
    }

    fn apply(&mut self, fault: Fault) -> Verdict {
        self.disturbed |= fault.disturbs();
        self.bring_back_for(fault)?;
        match fault {
            Fault::Cut { link, from, to, cut } => self.net.set_cut(link, from, to, cut),
            Fault::Carrier { link, host, up } => {
                self.ports[host][link].up = up;
                self.tell(host);
            }
            Fault::Address { host, link, change } => {
                self.ports[host][link].change = change;
                self.tell(host);
            }
            Fault::Device { host, link, there } => {
                self.ports[host][link].device = there;
                self.tell(host);
            }
            Fault::Admin { host, link, usable } => {
                self.hosts[host].local[link].usable = usable;
                self.tell(host);
            }
            Fault::Pause { host, time } => {
                let until = self.now + time;
                let host = &mut self.hosts[host];
                // A pause that ends within a longer one adds nothing.
                if until > host.paused_until {
                    host.io.stalls.push((self.now.max(host.paused_until), until));
                    host.paused_until = until;
                }
            }
            Fault::LinkFaults { link, link_faults } => self.net.set_link_faults(link, link_faults),
            Fault::Holes { link, holes } => self.net.set_holes(link, holes),
            Fault::Ways { link, ways, loss } => self.net.set_bad_ways(link, ways, loss),
            Fault::Die { host, reborn } => self.die(host, reborn),
            Fault::Heal => self.heal(),
            inside => return self.apply_inside(inside),
        }
        Ok(())
    }

    fn heal(&mut self) {
        self.counted.clear();
        for link in 0..self.case.links.len() {
            self.net.set_link_faults(link, LinkFaults::default());
            self.net.set_holes(link, Holes::default());
            self.net.set_bad_ways(link, 0, 0);
            for from in 0..self.hosts.len() {
                (0..self.hosts.len()).for_each(|to| self.net.set_cut(link, from, to, false));
            }
        }
        for host in 0..self.hosts.len() {
            for link in 0..self.case.links.len() {
                self.ports[host][link] = PortState { change: Change::Back, device: true, up: true };
                self.hosts[host].local[link].usable = true;
            }
            self.tell(host);
        }
    }

    /// Ends the process on a host. With `reborn`, another one takes its place.
    fn die(&mut self, number: usize, reborn: bool) {
        self.oracle.died(number, self.now);
        self.forget_away(number);
        let plan = HostPlan { instance: self.rng.bits(), ..self.plans[number] };
        self.hosts[number] = SimHost::new(&plan, self.now);
        self.alive[number] = reborn;
        self.noted[number] = 0;
        self.tell(number);
    }

    /// An application takes its queue pair to the error state.
    pub(crate) fn end(&mut self, pair: usize, e: usize) -> Verdict {
        let end = &mut self.oracle.pairs[pair].ends[e];
        if end.gone {
            return Ok(());
        }
        end.ended.get_or_insert(Ended::Wanted);
        let number = end.host;
        let done = self.modify(pair, e, &QpAttr::new(QpState::Err), QpAttrMask::STATE);
        if let Err(error) = done {
            return breach("any queue pair can be ended", error.to_string());
        }
        self.check(number)
    }

    /// Tells a host and the network about the host's addresses and ports.
    fn tell(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let mut list = Vec::new();
        for (link, port) in self.ports[number].iter().enumerate() {
            let ip = match port.change {
                Change::Other => other_address(link, number, self.case.v6),
                Change::Gone | Change::Back => address(link, number, self.case.v6),
            };
            let there = port.device && port.change != Change::Gone;
            self.net.set_address(link, number, there.then_some(ip));
            self.net.set_carrier(link, number, port.up && port.device);
            host.local[link].ip = ip;
            host.local[link].link_up = port.up;
            if there {
                list.push(host.local[link]);
            }
        }
        if self.alive[number] {
            host.begin(self.now);
            host.lane.set_local(&list);
        }
    }
}
