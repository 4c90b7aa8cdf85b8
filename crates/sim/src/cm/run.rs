//! A run: it executes the hosts, connection managers, links, applications and faults of a case step by
//! step, and the model says what has to happen.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use polypath_cm::{ClientId, FileId, OutgoingMad};
use polypath_wire::cm::CmMad;

use super::abi::{Event, event};
use super::case::{CmCase, CmFault, Place};
use super::draw::PROCESSES;
use super::host::{CmHost, Numbers, datagram, number};
use super::life;
use super::model::{Due, FIRST_HALF, Id, Model, Owner, Sent, State};
use super::step::Action;
use crate::datagram::address;
use crate::judge::{Breach, Verdict, breach, demand};
use crate::link::Network;
use crate::rng::Rng;
use crate::run::Failure;
use crate::trace::Trace;

/// The offset of a byte of a MAD that is private data in every message that has some.
const PRIVATE_DATA: usize = 250;
/// The largest number of steps of a run.
const STEPS_MAX: u32 = 200_000;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CmReport {
    /// The virtual time at the end.
    pub time: Duration,
    /// The number of attempts to connect or to resolve a service, counted when the address is resolved.
    pub attempts: u64,
    /// The number of connections that the peer accepted, and of services resolved.
    pub established: u64,
    /// The number of attempts that were rejected.
    pub rejected: u64,
    /// The number of attempts that ended unreachable.
    pub unreachable: u64,
    /// The number of MADs sent.
    pub sent: u64,
    /// The number of MADs lost on the way.
    pub dropped: u64,
    /// The number of MADs damaged on the way.
    pub corrupted: u64,
    /// A digest of every MAD that was sent, and when.
    pub digest: u64,
}

/// A process of a host.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Its open files, each an event channel; empty if it has ended.
    pub(super) files: Vec<FileId>,
    dead: bool,
    /// The time until which it does nothing.
    pub(super) paused_until: Duration,
    /// The time until which it reads no events.
    deaf_until: Duration,
}

/// A run of a case, with its hosts, network and model.
#[derive(Debug)]
pub struct CmSimulation {
    pub(super) case: CmCase,
    rng: Rng,
    pub(super) now: Duration,
    net: Network,
    pub(super) hosts: Vec<CmHost>,
    pub(super) processes: BTreeMap<Place, Process>,
    pub(super) model: Model,
    /// The planned actions, by time and order.
    schedule: BTreeMap<(Duration, u64), Action>,
    order: u64,
    files: u32,
    /// All MADs that were sent, by number.
    sent: Vec<Sent>,
    report: CmReport,
    print: bool,
    /// Whether repetitions are sure to succeed.
    fair: bool,
    planted: Option<(usize, CmPlantedFault)>,
    /// The number of MADs and events of the host with the planted fault.
    done: u32,
}

/// A fault of a host, to check that the model notices it. Each happens to every n-th MAD or event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmPlantedFault {
    /// A MAD is not sent.
    Lose(u32),
    /// A MAD is sent twice.
    Double(u32),
    /// A byte of a MAD's private data is changed.
    Spoil(u32),
    /// An event does not reach its application.
    Forget(u32),
}

/// Runs a case. A panic counts as a failure. `planted` names a host with a planted fault.
///
/// # Errors
/// The first promise that was broken.
pub fn run(
    case: &CmCase,
    planted: Option<(usize, CmPlantedFault)>,
    trace: Option<Trace>,
) -> (Result<CmReport, Failure>, Option<Trace>) {
    let run = || {
        let mut simulation = CmSimulation::new(case);
        simulation.planted = planted;
        if let Some(trace) = trace {
            simulation = simulation.with_trace(trace);
        }
        simulation.run()
    };
    // Nothing of the simulation is used after a panic.
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| (Err(Failure::of_panic(panic.as_ref())), None))
}

/// The client of a process: the number of the file that it opened first.
fn client(first: FileId) -> ClientId {
    ClientId(u64::from(first.0))
}

impl CmSimulation {
    /// Creates a run, before the first event.
    pub fn new(case: &CmCase) -> Self {
        let hosts = (0..case.hosts).map(|h| CmHost::new(case, h, Numbers::new(case, h)));
        let mut this = Self {
            rng: Rng::new(case.seed),
            now: Duration::ZERO,
            net: Network::new(&case.links, case.hosts, case.v6),
            hosts: hosts.collect(),
            processes: BTreeMap::new(),
            model: Model::new(case),
            schedule: BTreeMap::new(),
            order: 0,
            files: 0,
            sent: Vec::new(),
            report: CmReport::default(),
            print: false,
            fair: life::is_fair(case),
            planted: None,
            done: 0,
            case: case.clone(),
        };
        for host in 0..case.hosts {
            for process in 0..PROCESSES {
                this.open(Place { host, process });
            }
        }
        for (at, fault) in &case.faults {
            this.plan(*at, Action::Fault(*fault));
        }
        for (i, l) in case.listeners.iter().enumerate() {
            this.plan(l.at, Action::Listen(i));
        }
        for (i, a) in case.attempts.iter().enumerate() {
            this.plan(a.at, Action::Attempt(i));
        }
        this
    }

    /// Records MADs in `trace`.
    #[must_use]
    pub fn with_trace(mut self, trace: Trace) -> Self {
        self.net.trace = Some(trace);
        self
    }

    /// Prints faults, commands and events if `events`, and MADs if `packets`.
    #[must_use]
    pub fn printing(mut self, events: bool, packets: bool) -> Self {
        self.print = events;
        self.net.print = packets;
        self
    }

    /// Runs to the end, or until a promise is broken. Returns the trace, if there is one, as well.
    pub fn run(mut self) -> (Result<CmReport, Failure>, Option<Trace>) {
        let result = self.all();
        let at = self.now;
        let failure = |b: Breach| Failure { rule: b.rule, at, what: b.what };
        self.report.time = self.now;
        self.report.sent = self.net.sent;
        self.report.dropped = self.net.dropped;
        self.report.corrupted = self.net.corrupted;
        self.report.digest = self.net.digest;
        (result.map(|()| self.report).map_err(failure), self.net.trace)
    }

    fn all(&mut self) -> Verdict {
        self.until_quiet()?;
        let lives = |h: &&super::model::Half| h.life == self.model.life[h.host];
        self.model.halves.iter().filter(lives).try_for_each(life::complete)?;
        if life::is_calm(&self.case) {
            let halves = &self.model.halves;
            let mut peers = halves.iter().filter_map(|h| Some((h, &halves[h.peer?])));
            peers.try_for_each(|(half, peer)| life::together(half, peer))?;
        }
        self.close_all()?;
        self.until_quiet()?;
        for (number, host) in self.hosts.iter().enumerate() {
            let left = host.cm.table_sizes();
            demand(left.is_empty(), "nothing is left behind", || format!("host {number}: {left}"))?;
            demand(host.cm.next_deadline().is_none(), "nothing is left behind", || {
                format!("host {number}: a timer")
            })?;
        }
        Ok(())
    }

    /// Runs until nothing can happen any more.
    fn until_quiet(&mut self) -> Verdict {
        for _ in 0..STEPS_MAX {
            let timers = self.hosts.iter().filter_map(|h| h.cm.next_deadline());
            let due = (0..self.hosts.len()).filter_map(|h| self.model.deadline(h));
            let action = self.schedule.keys().next().map(|k| k.0);
            let Some(next) = timers.chain(due).chain(self.net.next()).chain(action).min() else {
                return Ok(());
            };
            self.now = self.now.max(next);
            self.step()?;
        }
        breach("nothing goes on for ever", format!("{STEPS_MAX} steps"))
    }

    /// Carries out one thing that happens now.
    fn step(&mut self) -> Verdict {
        if let Some(first) = self.schedule.first_entry()
            && first.key().0 <= self.now
        {
            let action = first.remove();
            return self.act(action);
        }
        if let Some((host, datagram)) = self.net.arrived(self.now) {
            if let Some(number) = number(&datagram) {
                let sent = self.sent[number as usize].clone();
                self.model.deliver(self.now, host, &sent);
            }
            self.hosts[host].receive(self.now, &datagram);
            return self.send_and_check(host);
        }
        for host in 0..self.hosts.len() {
            let due = [self.model.deadline(host), self.hosts[host].cm.next_deadline()];
            if due.iter().flatten().any(|at| *at <= self.now) {
                self.model.tick(self.now, host);
                let h = &mut self.hosts[host];
                h.cm.handle_timeout(self.now, &mut h.env);
                self.send_and_check(host)?;
            }
        }
        Ok(())
    }

    /// Sends the MADs that a host has to send, gives its applications their events, and checks both
    /// against the model.
    pub(super) fn send_and_check(&mut self, host: usize) -> Verdict {
        for out in self.outgoing(host) {
            let mad = match CmMad::parse(&out.mad) {
                Ok(mad) => mad,
                Err(error) => return breach("messages can be read", format!("{error}")),
            };
            let due = self.model.sent(host, &out, &mad)?;
            let number = self.sent.len() as u32;
            let datagram = datagram(&out, number, self.now);
            let Due { what, local: from, remote: to, way, .. } = due;
            self.sent.push(Sent { host, out, what, from, to, way });
            self.net.send(self.now, host, datagram, &mut self.rng);
        }
        if let Some(due) = self.model.due.first() {
            return breach("messages are sent when they are due", format!("{due:?}"));
        }
        for process in 0..PROCESSES {
            self.tell(Place { host, process })?;
        }
        Ok(())
    }

    /// The MADs that a host has to send.
    fn outgoing(&mut self, host: usize) -> Vec<OutgoingMad> {
        let mut mads = Vec::new();
        let planted = self.planted.filter(|(h, _)| *h == host).map(|(_, planted)| planted);
        while let Some(mut out) = self.hosts[host].cm.poll_mad() {
            match planted {
                Some(CmPlantedFault::Lose(n)) if self.is_time(n) => continue,
                Some(CmPlantedFault::Double(n)) if self.is_time(n) => mads.push(out.clone()),
                Some(CmPlantedFault::Spoil(n)) if self.is_time(n) => out.mad[PRIVATE_DATA] ^= 1,
                _ => {}
            }
            mads.push(out);
        }
        mads
    }

    /// Whether the planted fault happens now.
    fn is_time(&mut self, every: u32) -> bool {
        self.done += 1;
        self.done.is_multiple_of(every)
    }

    /// Lets an application read its events, unless it is paused.
    fn tell(&mut self, place: Place) -> Verdict {
        let process = &self.processes[&place];
        if process.paused_until.max(process.deaf_until) > self.now {
            return Ok(());
        }
        for file in process.files.clone() {
            self.read(place, file)?;
        }
        Ok(())
    }

    fn read(&mut self, place: Place, file: FileId) -> Verdict {
        while let Some(bytes) = self.hosts[place.host].cm.poll_event_of(file) {
            if let Some((host, CmPlantedFault::Forget(n))) = self.planted
                && host == place.host
                && self.is_time(n)
            {
                continue;
            }
            let Some(event) = Event::parse(bytes) else {
                return breach("events can be read", format!("{place}"));
            };
            self.note(format_args!(
                "{place}: {} of id {}, status {}",
                event::name(event.kind),
                event.id,
                event.status
            ));
            self.told(place, file, &event)?;
        }
        let missing = self.model.queue.iter().find(|(f, _)| *f == file);
        demand(missing.is_none(), "events come when they are due", || {
            format!("{place} misses {missing:?}")
        })
    }

    /// Checks that an event that an application has got is due.
    fn told(&mut self, place: Place, file: FileId, event: &Event) -> Verdict {
        let owner = self.owner(file, event);
        let what = || format!("{place}: {} of id {}", event::name(event.kind), event.id);
        let Some(owner) = owner else {
            return breach("no event comes for an id that does not exist", what());
        };
        // The events of one id come in order.
        let at = self.model.queue.iter().position(|(f, e)| *f == file && e.owner == owner);
        let expected = at.map(|at| self.model.queue.remove(at).1);
        let expected = expected.filter(|e| e.kind == event.kind);
        let Some(expected) = expected else {
            return breach(
                "no event comes that nothing has caused",
                format!("{}: {owner:?}", what()),
            );
        };
        self.model.event_says(&expected, event)?;
        match (owner, expected.child) {
            (Owner::Listener(l), Some(child)) => {
                let listener = &mut self.model.listeners[l];
                listener.reported += 1;
                listener.backlog += 1;
                self.model.halves[child].id = Some(event.id);
                self.requested(child);
            }
            (Owner::Half(half), _) => {
                let told = event.kind != event::ADDR_CHANGE;
                life::next(&self.model.halves[half], event.kind)?;
                if self.fair {
                    life::reached(&self.case, &self.model.halves[half], event.kind, event.status)?;
                }
                let h = &mut self.model.halves[half];
                h.reported += 1;
                h.told.extend(told.then_some(event.kind));
                demand(h.uid == event.uid, "events say what is true", what)?;
                self.count(half, event.kind);
                self.react(half, event.kind);
            }
            (Owner::Listener(l), None) => {
                let listener = &mut self.model.listeners[l];
                listener.reported += 1;
                demand(listener.id == event.id, "events say what is true", what)?;
                if event.kind == event::DEVICE_REMOVAL {
                    self.plan(self.now, Action::Unlisten(l));
                }
            }
        }
        Ok(())
    }

    /// The owner of an event, by the numbers in it.
    fn owner(&self, file: FileId, event: &Event) -> Option<Owner> {
        if event.uid < FIRST_HALF {
            let l = usize::try_from(event.uid).ok()?;
            let listener = self.model.listeners.get(l)?;
            return (listener.file == file && !listener.destroyed).then_some(Owner::Listener(l));
        }
        let is = |h: &super::model::Half| h.file == file && h.owned && h.id == Some(event.id);
        self.model.halves.iter().position(is).map(Owner::Half)
    }

    fn count(&mut self, half: usize, kind: u32) {
        let active = self.model.halves[half].active;
        match kind {
            event::CONNECT_RESPONSE => self.report.established += 1,
            event::ESTABLISHED if active => self.report.established += 1,
            event::REJECTED if active => self.report.rejected += 1,
            event::UNREACHABLE if active => self.report.unreachable += 1,
            event::ADDR_RESOLVED => self.report.attempts += 1,
            _ => {}
        }
    }

    /// Plans an action.
    pub(super) fn plan(&mut self, at: Duration, action: Action) {
        self.order += 1;
        self.schedule.insert((at, self.order), action);
    }

    /// Executes a command of an application, given as bytes. It must end in `must`, which the model
    /// says.
    pub(super) fn command(
        &mut self,
        (place, file): (Place, FileId),
        bytes: &[u8],
        must: Result<(), i32>,
        what: &str,
    ) -> Result<Option<Vec<u8>>, Breach> {
        let host = &mut self.hosts[place.host];
        let got = host.cm.command(self.now, file, bytes, &mut host.env);
        self.note(format_args!("{place}: {what}: {:?}", got.as_ref().map(|_| ())));
        let is = got.as_ref().map(|_| ()).map_err(|e| *e);
        demand(is == must, "commands end as they must", || {
            format!("{place}: {what} gives {is:?} instead of {must:?}")
        })?;
        Ok(got.ok())
    }

    fn open(&mut self, place: Place) {
        let files = [1, 2].map(|n| FileId(self.files + n));
        self.files += 2;
        for file in files {
            self.hosts[place.host].cm.open_file(file, client(files[0]));
        }
        self.processes.entry(place).or_default().files = files.to_vec();
    }

    pub(super) fn kill(&mut self, place: Place) -> Verdict {
        let Some(process) = self.processes.get_mut(&place) else { return Ok(()) };
        process.dead = true;
        for file in core::mem::take(&mut process.files) {
            self.model.close(self.now, file);
            let host = &mut self.hosts[place.host];
            host.cm.close_file(self.now, file, &mut host.env);
            self.send_and_check(place.host)?;
        }
        Ok(())
    }

    pub(super) fn fault(&mut self, fault: CmFault) -> Verdict {
        self.note(format_args!("{fault}"));
        match fault {
            CmFault::Cut { link, from, to, cut } => self.net.set_cut(link, from, to, cut),
            CmFault::LinkFaults { link, link_faults } => {
                self.net.set_link_faults(link, link_faults);
            }
            CmFault::Pause { place, time, deaf } => {
                let until = self.now + time;
                if let Some(process) = self.processes.get_mut(&place) {
                    let pause =
                        if deaf { &mut process.deaf_until } else { &mut process.paused_until };
                    *pause = until.max(*pause);
                }
                self.plan(until, Action::Wake(place));
            }
            CmFault::Kill { place } => return self.kill(place),
            CmFault::Removal { place } => {
                let files = self.processes.get(&place).map(|p| p.files.clone());
                let Some(client) = files.iter().flatten().next().map(|f| client(*f)) else {
                    return Ok(());
                };
                for file in files.iter().flatten() {
                    self.model.remove_device(self.now, *file);
                }
                let host = &mut self.hosts[place.host];
                host.env.removed.insert(client);
                let guid = super::host::guid(place.host);
                host.cm.handle_device_removal(self.now, client, guid, &mut host.env);
                return self.send_and_check(place.host);
            }
            CmFault::Address { host, link, there } => {
                let ip = there.then(|| address(link, host, self.case.v6));
                self.net.set_address(link, host, ip);
                self.model.address(host, link, there);
                let h = &mut self.hosts[host];
                h.env.there[link] = there;
                h.cm.handle_address_change(self.now, &mut h.env);
                return self.send_and_check(host);
            }
            CmFault::Reboot { host } => {
                self.model.reboot(host);
                self.hosts[host].reboot(&self.case);
                for process in 0..PROCESSES {
                    let place = Place { host, process };
                    if !self.processes[&place].dead {
                        self.open(place);
                    }
                }
            }
            CmFault::Replay { host, back } => {
                let to = |s: &Sent| self.model.host_of(s.way.1) == Some(host);
                let mut before = (0..self.sent.len()).rev().skip(back as usize);
                if let Some(number) = before.find(|n| to(&self.sent[*n])) {
                    let sent = &self.sent[number];
                    let datagram = datagram(&sent.out, number as u32, self.now);
                    self.net.send(self.now, sent.host, datagram, &mut self.rng);
                }
            }
            CmFault::Forge { host, attempt, what } => return self.forge(host, attempt, what),
        }
        Ok(())
    }

    /// Lets every application destroy all its ids, or die.
    fn close_all(&mut self) -> Verdict {
        let places: Vec<Place> = self.processes.keys().copied().collect();
        for place in places {
            if self.rng.chance(500) {
                self.kill(place)?;
                continue;
            }
            let files = self.processes[&place].files.clone();
            for l in 0..self.model.listeners.len() {
                if files.contains(&self.model.listeners[l].file) {
                    self.act(Action::Unlisten(l))?;
                }
            }
            for half in 0..self.model.halves.len() {
                let h = &self.model.halves[half];
                if files.contains(&h.file) && h.owned {
                    self.act(Action::Half(half, super::step::Step::Destroy))?;
                }
            }
        }
        Ok(())
    }

    /// Checks that both ends were told the same about each other.
    pub(super) fn agree(&self, half: usize) -> Verdict {
        let h = &self.model.halves[half];
        let Some(peer) = h.peer.filter(|_| h.state == State::RepRcvd) else { return Ok(()) };
        let (Some(mine), Some(its)) = (h.attr, self.model.halves[peer].attr) else {
            return Ok(());
        };
        let plan = self.model.plan(half);
        let fits = mine.rq_psn == its.sq_psn
            && mine.sq_psn == its.rq_psn
            && mine.dest_qpn == plan.passive.qpn
            && its.dest_qpn == plan.active.qpn;
        demand(fits, "both ends agree", || format!("attempt {}: {mine:?}, {its:?}", h.attempt))
    }

    pub(super) fn note(&mut self, text: fmt::Arguments<'_>) {
        if self.print {
            crate::out::say!("{:?} {text}", self.now);
        }
        if let Some(trace) = &mut self.net.trace {
            trace.note(self.now, text.to_string());
        }
    }

    /// The communication id, if it is known.
    pub(super) fn known(&self, id: Id) -> Option<u32> {
        match id {
            Id::Raw(raw) => Some(raw),
            Id::Of(half) => self.model.halves[half].comm,
        }
    }
}
