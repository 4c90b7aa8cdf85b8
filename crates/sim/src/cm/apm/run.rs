//! One run: the events of two hosts, in order of time.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use polypath_cm::{ClientId, FileId, PathOrder};
use polypath_wire::cm::CmMad;

use super::super::abi::{self, Event, Param, event};
use super::super::case::{CmCase, Service};
use super::super::host::{CmHost, Numbers, datagram, message};
use super::queue_pair::{Mig, Pair, QueuePair, Way};
use super::rules::Watcher;
use super::step::{Action, ApmReport};
use crate::datagram::address;
use crate::judge::{Breach, Verdict, breach, demand};
use crate::link::Network;
use crate::link_faults::{Bursts, LinkFaults, LinkPlan};
use crate::rng::Rng;
use crate::run::Failure;

/// What makes the stream of draws one of its own, so that no other case changes with it.
const STREAM: u64 = 0x41_504d_7061_7468;
const BALANCE_STREAM: u64 = 0x42_616c_616e_6365;
const LABEL_STREAM: u64 = 0x4c_6162_656c; // Some hosts have one link, and source ports as paths.
const PORT: u16 = 7000;
const SERVICE: Service = Service { ud: false, xrc: false, port: PORT };
const CLIENT: ClientId = ClientId(1);
const FILE: FileId = FileId(1);
const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
/// How long things happen, and how long all is well afterwards.
const WILD: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(240);
const STEPS_MAX: u32 = 500_000;

/// A connection: both ends' ids and queue pairs.
#[derive(Debug, Default)]
struct Conn {
    ids: [Option<u32>; 2],
    qps: [Option<QueuePair>; 2],
    is_up: bool,
    is_over: bool,
    /// Whether the application of each end knows that it is over.
    has_left: [bool; 2],
}

struct World {
    case: CmCase,
    rng: Rng,
    now: Duration,
    net: Network,
    hosts: Vec<CmHost>,
    conns: Vec<Conn>,
    schedule: BTreeMap<(Duration, u64), Action>,
    order: u64,
    /// The time until which a host's orders and reports are under way, so that they stay in order.
    busy: [Duration; 2],
    sends: u32,
    watcher: Watcher,
    report: ApmReport,
    /// The longest time that a host takes for an order or a report.
    lag: Duration,
    /// The chance, per mille, that a host cannot load a path.
    refusal: u64,
    print: bool,
}

/// A case: its seed determines everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApmCase {
    /// The seed.
    pub seed: u64,
}

impl fmt::Display for ApmCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "migrating connections of seed {}", self.seed)
    }
}

impl ApmCase {
    /// Runs the case, and prints what happens if `print`. A panic counts as a failure.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub fn run(&self, print: bool) -> Result<ApmReport, Failure> {
        run(self.seed, print)
    }
}

fn run(seed: u64, print: bool) -> Result<ApmReport, Failure> {
    let whole = || {
        let mut world = World::new(seed, print);
        let result = world.all();
        let at = world.now;
        world.report.sent = world.net.sent;
        world.report.digest = world.net.digest;
        world.report.asked = world.watcher.asked;
        world.report.postponed = world.watcher.postponed;
        let failure = |b: Breach| Failure { rule: b.rule, at, what: b.what };
        result.map(|()| world.report).map_err(failure)
    };
    catch_unwind(AssertUnwindSafe(whole))
        .unwrap_or_else(|panic| Err(Failure::of_panic(panic.as_ref())))
}

fn qpn(conn: usize, host: usize) -> u32 {
    0x100 * (1 + conn as u32) + host as u32
}

impl World {
    fn new(seed: u64, print: bool) -> Self {
        let mut rng = Rng::new(seed ^ STREAM);
        let links = 2 + rng.below(2) as usize;
        let links = if Rng::new(seed ^ LABEL_STREAM).chance(200) { 1 } else { links };
        let link = |rng: &mut Rng| {
            let jitter = [Duration::ZERO, MS, MS * 300, SEC * 3][rng.below(4) as usize];
            let delay = Duration::from_micros(5 + rng.below(200));
            LinkPlan {
                delay,
                jitter: rng.time(jitter),
                reorders: rng.chance(500),
                ..LinkPlan::default()
            }
        };
        let case = CmCase {
            seed: rng.bits(),
            v6: rng.chance(300),
            hosts: 2,
            links: (0..links).map(|_| link(&mut rng)).collect(),
            multi_path: true,
            max_connections: 131_072,
            listeners: Vec::new(),
            attempts: Vec::new(),
            faults: Vec::new(),
        };
        // Drawn apart, so that what else happens to a seed does not depend on it.
        let mut drawn = Rng::new(seed ^ BALANCE_STREAM);
        let balances = drawn.chance(400).then(|| SEC + drawn.time(SEC * 10));
        let hosts = (0..2).map(|h| {
            let mut host = CmHost::new(&case, h, Numbers::new(&case, h));
            host.env.migrates = true;
            host.env.balances = if h == 0 { balances } else { None };
            host.cm.open_file(FILE, CLIENT);
            host
        });
        let mut this = Self {
            now: Duration::ZERO,
            net: Network::new(&case.links, case.hosts, case.v6),
            hosts: hosts.collect(),
            conns: Vec::new(),
            schedule: BTreeMap::new(),
            order: 0,
            busy: [Duration::ZERO; 2],
            sends: 0,
            watcher: Watcher::default(),
            report: ApmReport::default(),
            lag: [MS, MS * 30, MS * 600][rng.below(3) as usize],
            refusal: [0, 0, 0, 200][rng.below(4) as usize],
            print,
            rng,
            case,
        };
        this.draw();
        this
    }

    /// Plans all that happens.
    fn draw(&mut self) {
        let count = 1 + self.rng.below(4) as usize;
        let links = self.case.links.len();
        for conn in 0..count {
            self.conns.push(Conn::default());
            let at = self.rng.time(SEC);
            self.plan(at, Action::Connect(conn));
            if self.rng.chance(150) {
                let (at, host) = (self.rng.time(WILD), self.rng.below(2) as usize);
                self.plan(at, Action::Disconnect { conn, host });
            }
        }
        for link in 0..links {
            let some = |rng: &mut Rng, list: [u64; 4]| list[rng.below(4) as usize];
            let link_faults = LinkFaults {
                loss: some(&mut self.rng, [0, 50, 300, 700]),
                bursts: Bursts::default(),
                double: some(&mut self.rng, [0, 100, 300, 900]),
                overtake: some(&mut self.rng, [0, 0, 100, 300]),
                straggle: some(&mut self.rng, [0, 0, 100, 500]),
                corrupt: some(&mut self.rng, [0, 0, 50, 300]),
            };
            let at = SEC * 2 + self.rng.time(SEC * 5);
            self.plan(at, Action::Faults { link, link_faults });
        }
        for _ in 0..self.rng.below(40) {
            let at = self.rng.time(WILD);
            let (conn, host) = (self.rng.below(count as u64) as usize, self.rng.below(2) as usize);
            match self.rng.below(4) {
                0 => {
                    let link = self.rng.below(links as u64) as usize;
                    self.plan(at, Action::Address { host, link, there: false });
                    let back = at + self.rng.time(SEC * 10);
                    self.plan(back, Action::Address { host, link, there: true });
                }
                1 => {
                    // Both at once.
                    self.plan(at, Action::Migrate { conn, host });
                    let at = at + self.rng.time(MS * 3);
                    self.plan(at, Action::Migrate { conn, host: 1 - host });
                }
                _ => self.plan(at, Action::Migrate { conn, host }),
            }
        }
        // Some connections are idle for seconds.
        for conn in 0..count {
            let pause = [MS * 2, MS * 100, SEC * 5][self.rng.below(3) as usize];
            let mut at = Duration::ZERO;
            while at < WILD {
                at += MS + self.rng.time(pause);
                let from = self.rng.below(2) as usize;
                self.plan(at, Action::Traffic { conn, from });
            }
        }
    }

    fn plan(&mut self, at: Duration, action: Action) {
        self.order += 1;
        self.schedule.insert((at, self.order), action);
    }

    fn all(&mut self) -> Verdict {
        self.listen()?;
        self.until(WILD)?;
        // From now on all is well.
        let end = self.now.max(WILD);
        for link in 0..self.case.links.len() {
            self.plan(end, Action::Faults { link, link_faults: LinkFaults::default() });
            for host in 0..2 {
                self.plan(end, Action::Address { host, link, there: true });
            }
        }
        self.refusal = 0;
        let mut at = end;
        while at < end + CALM {
            at += MS * 500;
            for conn in 0..self.conns.len() {
                for from in 0..2 {
                    self.plan(at, Action::Traffic { conn, from });
                }
            }
            // What one end could not say while the network was bad, it says after a change.
            if at == end + CALM / 2 {
                for host in 0..2 {
                    self.plan(at, Action::Address { host, link: 0, there: true });
                }
            }
        }
        self.until(end + CALM)?;
        for conn in 0..self.conns.len() {
            self.judge(conn)?;
        }
        self.judge_balance()?;
        for host in 0..2 {
            let h = &mut self.hosts[host];
            h.cm.close_file(self.now, FILE, &mut h.env);
            self.flush(host)?;
        }
        self.until(self.now + SEC * 600)?;
        for (number, host) in self.hosts.iter().enumerate() {
            let left = host.cm.table_sizes();
            demand(left.is_empty(), "nothing is left behind", || format!("host {number}: {left}"))?;
        }
        Ok(())
    }

    /// Checks a connection when everything is quiet.
    fn judge(&mut self, number: usize) -> Verdict {
        let conn = &self.conns[number];
        if conn.is_over || !conn.is_up {
            return Ok(());
        }
        let (Some(a), Some(b)) = (&conn.qps[0], &conn.qps[1]) else { return Ok(()) };
        let what = || format!("connection {number}: {a:?}, {b:?}");
        let alone = self.case.links.len() == 1;
        demand(a.primary.is_opposite(b.primary, alone), "both ends use the same path", what)?;
        demand(
            a.alternate == b.alternate.map(Way::mirrored),
            "both ends have the same alternate path",
            what,
        )?;
        demand(a.alternate.is_some(), "a backup is loaded if there is one", what)?;
        let apart = a.alternate.is_some_and(|way| way.is_apart_from(a.primary, alone));
        demand(apart, "an alternate path is another path", what)?;
        demand(a.state == Mig::Armed && b.state == Mig::Armed, "every backup is armed", what)?;
        for (host, qp) in [a, b].into_iter().enumerate() {
            let ids = self.hosts[host].cm.describe();
            let of = |id: &&polypath_cm::IdStatus| id.qp_num == qpn(number, host);
            let known = ids.iter().find(of).and_then(|id| id.migration);
            demand(
                known.is_some_and(|m| m.alternate == qp.alternate.map(|way| way.pair)),
                "managers know what is so",
                || format!("{}, host {host}: {known:?}", what()),
            )?;
        }
        self.report.armed += 1;
        Ok(())
    }

    /// Checks that connections are spread over the links, as far as their alternate paths lead.
    fn judge_balance(&self) -> Verdict {
        if self.hosts[0].env.balances.is_none() {
            return Ok(());
        }
        // One that has failed at the peer only counts for this host as well, and can't be moved.
        let lives = |c: &Conn| c.is_up && !c.is_over;
        let held = self.conns.iter().filter(|c| !c.has_left[0]);
        let qps: Vec<_> = held.filter_map(|c| Some((lives(c), c.qps[0].as_ref()?))).collect();
        let count = |local: IpAddr| qps.iter().filter(|(_, qp)| qp.primary.pair.0 == local).count();
        for (_, qp) in qps.iter().filter(|(lives, _)| *lives) {
            let other = qp.alternate.map_or(0, |alternate| count(alternate.pair.0));
            demand(
                count(qp.primary.pair.0) <= other + 1,
                "connections are spread over the ports",
                || format!("{qps:?}"),
            )?;
        }
        Ok(())
    }

    fn command(&mut self, host: usize, bytes: &[u8]) -> Result<Vec<u8>, Breach> {
        let h = &mut self.hosts[host];
        match h.cm.command(self.now, FILE, bytes, &mut h.env) {
            Ok(response) => Ok(response),
            Err(error) => breach("commands succeed", format!("host {host}: errno {error}")),
        }
    }

    fn listen(&mut self) -> Verdict {
        let any: IpAddr = match self.case.v6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let id = abi::number(&self.command(1, &abi::create(0, SERVICE, true))?);
        self.command(1, &abi::bind(id, SocketAddr::new(any, PORT)))?;
        self.command(1, &abi::listen(id, 128))?;
        Ok(())
    }

    fn until(&mut self, end: Duration) -> Verdict {
        for _ in 0..STEPS_MAX {
            let timers = self.hosts.iter().filter_map(|h| h.cm.next_deadline());
            let action = self.schedule.keys().next().map(|k| k.0);
            let next = timers.chain(self.net.next()).chain(action).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return Ok(());
            };
            self.now = self.now.max(next);
            self.step()?;
        }
        breach("nothing goes on for ever", format!("{STEPS_MAX} steps"))
    }

    fn step(&mut self) -> Verdict {
        if let Some(first) = self.schedule.first_entry()
            && first.key().0 <= self.now
        {
            let action = first.remove();
            self.act(action)?;
            return (0..2).try_for_each(|host| self.flush(host));
        }
        if let Some((host, datagram)) = self.net.arrived(self.now) {
            if let Some(mad) = message(&datagram) {
                self.watcher.arrived(self.now, host, &mad);
            }
            self.hosts[host].receive(self.now, &datagram);
            return self.flush(host);
        }
        for host in 0..2 {
            let h = &mut self.hosts[host];
            if h.cm.next_deadline().is_some_and(|at| at <= self.now) {
                h.cm.handle_timeout(self.now, &mut h.env);
                self.flush(host)?;
            }
        }
        Ok(())
    }

    /// Sends what a host has to send, takes its orders, and lets its application act.
    fn flush(&mut self, host: usize) -> Verdict {
        loop {
            while let Some(out) = self.hosts[host].cm.poll_mad() {
                let mad = match CmMad::parse(&out.mad) {
                    Ok(mad) => mad,
                    Err(error) => return breach("messages can be read", format!("{error}")),
                };
                self.watcher.sent(self.now, host, &mad)?;
                self.note(format_args!("host {host}: {} to {}: {mad}", out.local, out.remote));
                let datagram = datagram(&out, self.sends & 0xff_ffff, self.now);
                self.sends += 1;
                self.net.send(self.now, host, datagram, &mut self.rng);
            }
            while let Some(order) = self.hosts[host].cm.poll_path_order() {
                let at = self.in_order(host);
                self.plan(at, Action::Execute { host, order });
            }
            let Some(bytes) = self.hosts[host].cm.poll_event_of(FILE) else { return Ok(()) };
            let Some(event) = Event::parse(bytes) else {
                return breach("events can be read", format!("host {host}"));
            };
            self.told(host, &event)?;
        }
    }

    /// When a message between a host's connection manager and its queue pairs arrives.
    fn in_order(&mut self, host: usize) -> Duration {
        let lag = self.lag;
        let at = (self.now + self.rng.time(lag)).max(self.busy[host]);
        self.busy[host] = at;
        at
    }

    /// The application of a host gets an event.
    fn told(&mut self, host: usize, told: &Event) -> Verdict {
        let of = |c: &Conn| c.ids[host] == Some(told.id);
        match told.kind {
            event::ADDR_RESOLVED => {
                self.command(host, &abi::resolve_route(told.id))?;
            }
            event::ROUTE_RESOLVED => {
                let Some(conn) = self.conns.iter().position(of) else { return Ok(()) };
                self.command(host, &abi::connect(told.id, &param(conn, 0)))?;
            }
            event::CONNECT_REQUEST => {
                let conn = (told.qpn() / 0x100) as usize - 1;
                self.conns[conn].ids[1] = Some(told.id);
                self.ready(conn, 1)?;
                self.command(1, &abi::accept(told.id, 100, Some(&param(conn, 1))))?;
            }
            event::CONNECT_RESPONSE => {
                let Some(conn) = self.conns.iter().position(of) else { return Ok(()) };
                self.ready(conn, 0)?;
                self.command(0, &abi::accept(told.id, 0, None))?;
            }
            event::ESTABLISHED => {
                let Some(conn) = self.conns.iter().position(of) else { return Ok(()) };
                self.conns[conn].is_up = true;
                self.report.established += 1;
            }
            _ => {
                if let Some(conn) = self.conns.iter_mut().find(|c| of(c)) {
                    conn.is_over = true;
                    conn.has_left[host] = true;
                }
            }
        }
        Ok(())
    }

    /// The application's queue pair goes to RTS, with the path of the connection manager.
    fn ready(&mut self, conn: usize, host: usize) -> Verdict {
        let id = self.conns[conn].ids[host].unwrap_or_default();
        let label = abi::flow_label(&self.command(host, &abi::qp_attr(id, 2))?);
        let link = conn % self.case.links.len();
        let ip = |host| address(link, host, self.case.v6);
        self.conns[conn].qps[host] = Some(QueuePair::new((ip(host), ip(1 - host)), label));
        Ok(())
    }

    fn note(&self, text: fmt::Arguments<'_>) {
        if self.print {
            crate::out::say!("{:?} {text}", self.now);
        }
    }

    fn act(&mut self, action: Action) -> Verdict {
        if !matches!(action, Action::Traffic { .. } | Action::Arrive { .. }) {
            self.note(format_args!("{action:?}"));
        }
        match action {
            Action::Connect(conn) => {
                let link = conn % self.case.links.len();
                let ip = |host| address(link, host, self.case.v6);
                let (from, to) = (SocketAddr::new(ip(0), 0), SocketAddr::new(ip(1), PORT));
                let id =
                    abi::number(&self.command(0, &abi::create(1 + conn as u64, SERVICE, false))?);
                self.conns[conn].ids[0] = Some(id);
                let h = &mut self.hosts[0];
                let resolve = abi::resolve_addr(id, from, to);
                // The address may be gone.
                self.conns[conn].is_over =
                    h.cm.command(self.now, FILE, &resolve, &mut h.env).is_err();
            }
            Action::Traffic { conn, from } => {
                let sent = self.conns[conn].qps[from].as_ref().map(QueuePair::packet);
                let Some((way, mig_req)) = sent else { return Ok(()) };
                if self.can_carry(from, way.pair) {
                    let at = self.now + self.rng.time(MS);
                    self.plan(at, Action::Arrive { conn, at: 1 - from, way, mig_req });
                }
            }
            Action::Arrive { conn, at, way, mig_req } => {
                let Some(qp) = &mut self.conns[conn].qps[at] else { return Ok(()) };
                if qp.receive(way, mig_req) {
                    self.has_migrated(conn, at);
                }
            }
            Action::Migrate { conn, host } => {
                let Some(qp) = &mut self.conns[conn].qps[host] else { return Ok(()) };
                if qp.state == Mig::Armed && qp.migrate() {
                    self.has_migrated(conn, host);
                    // What was not acknowledged is sent again at once.
                    self.plan(self.now, Action::Traffic { conn, from: host });
                }
            }
            Action::Execute { host, order } => self.execute(host, order),
            Action::Tell { conn, host, to } => {
                let h = &mut self.hosts[host];
                let to = to.map(Way::taken);
                h.cm.path_migrated(self.now, CLIENT, qpn(conn, host), to, &mut h.env);
            }
            Action::Address { host, link, there } => {
                let ip = there.then(|| address(link, host, self.case.v6));
                self.net.set_address(link, host, ip);
                let h = &mut self.hosts[host];
                h.env.there[link] = there;
                h.cm.handle_address_change(self.now, &mut h.env);
                if !there {
                    // Queue pairs that used it find out after some time.
                    for conn in 0..self.conns.len() {
                        for host in 0..2 {
                            let at = self.now + self.rng.time(SEC);
                            let gone = address(link, host, self.case.v6);
                            let qp = self.conns[conn].qps[host].as_ref();
                            if qp.is_some_and(|qp| qp.primary.pair.0 == gone) {
                                self.plan(at, Action::Migrate { conn, host });
                            }
                        }
                    }
                }
            }
            Action::Faults { link, link_faults } => self.net.set_link_faults(link, link_faults),
            Action::Disconnect { conn, host } => {
                let c = &mut self.conns[conn];
                if let (true, false, Some(id)) = (c.is_up, c.is_over, c.ids[host]) {
                    c.is_over = true;
                    c.has_left[host] = true;
                    let h = &mut self.hosts[host];
                    // The peer may have ended it.
                    let _ = h.cm.command(self.now, FILE, &abi::disconnect(id), &mut h.env);
                }
            }
        }
        Ok(())
    }

    fn execute(&mut self, host: usize, order: PathOrder) {
        let (PathOrder::LoadAlternate { qp_num, .. }
        | PathOrder::Migrate { qp_num, .. }
        | PathOrder::Leave { qp_num, .. }) = order;
        let conn = (qp_num / 0x100) as usize - 1;
        let refused = self.rng.chance(self.refusal);
        let Some(qp) = &mut self.conns[conn].qps[host] else { return };
        match order {
            PathOrder::LoadAlternate { client, qp_num, alternate } => {
                let way = Way { pair: alternate.pair(), label: alternate.flow_label };
                if qp.primary == way {
                    // It has migrated there before.
                } else if refused {
                    self.hosts[host].cm.alternate_failed(self.now, client, qp_num);
                } else {
                    qp.load(way);
                }
            }
            PathOrder::Migrate { to, flow_label, .. } => {
                // Only of the same addresses, the label tells paths apart.
                let same = qp.alternate.is_some_and(|way| way.pair == qp.primary.pair);
                let is = |way: Way| way.pair == to && (!same || way.label == flow_label);
                if !is(qp.primary) && qp.alternate.is_some_and(is) && qp.migrate() {
                    self.has_migrated(conn, host);
                } else {
                    let (to, at) = (Some(qp.primary), self.in_order(host));
                    self.plan(at, Action::Tell { conn, host, to });
                }
            }
            PathOrder::Leave { to, .. } => {
                let leads = qp.alternate.is_some_and(|way| way.pair == to);
                if leads && qp.state == Mig::Armed && qp.migrate() {
                    self.report.balanced += 1;
                    self.has_migrated(conn, host);
                }
            }
        }
    }

    /// A queue pair has migrated: its host tells the connection manager after some time.
    fn has_migrated(&mut self, conn: usize, host: usize) {
        self.report.migrations += 1;
        let to = self.conns[conn].qps[host].as_ref().map(|qp| qp.primary);
        let at = self.in_order(host);
        self.plan(at, Action::Tell { conn, host, to });
    }

    /// Whether a packet between two addresses arrives.
    fn can_carry(&mut self, from: usize, (local, remote): Pair) -> bool {
        let links = 0..self.case.links.len();
        let v6 = self.case.v6;
        let link = links.into_iter().find(|link| address(*link, from, v6) == local);
        link.is_some_and(|link| {
            address(link, 1 - from, v6) == remote && self.hosts.iter().all(|h| h.env.there[link])
        })
    }
}

fn param(conn: usize, host: usize) -> Param {
    Param { qpn: qpn(conn, host), private: Vec::new(), numbers: [1, 1, 7, 7] }
}
