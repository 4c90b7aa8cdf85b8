//! A run: two hosts, their queue pairs, faults, and the judge.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use polypath_paths::{Config, PathEvent};
use polypath_transport::{
    Access, AhAttr, CqSide, QpAttr, QpAttrMask, QpConfig, QpState, QpType, QueuePair,
};

use polypath_wire::packet::Packet;

use crate::faults::{Fault, Schedule};
use crate::flow::{DEPTH, Flow, MEMORY, Plan, SHARED, word};
use crate::host::{PD, SimHost};
use crate::link::Network;
use crate::rng::Rng;

const MS: Duration = Duration::from_millis(1);
/// After everything is whole again, all must be done within this time.
const PATIENCE: Duration = Duration::from_secs(40);

/// What a run is made of; [`Setup::random`] draws it from a seed.
#[derive(Clone, Debug)]
pub struct Setup {
    /// All randomness of the run comes from it.
    pub seed: u64,
    /// Links, each with an address on both hosts.
    pub links: usize,
    /// Queue pairs; for each, whether it may use several paths.
    pub multipath: Vec<bool>,
    /// Requests per direction.
    pub requests: u64,
    /// How long faults happen.
    pub faults: Duration,
    /// Path MTU of the queue pairs.
    pub mtu: u32,
}

impl Setup {
    /// What this seed means.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let links = 1 + rng.below(3).max(1) as usize;
        let qps = 1 + rng.below(3);
        Self {
            seed,
            links,
            multipath: (0..qps).map(|_| rng.chance(850)).collect(),
            requests: 20 + rng.below(150),
            faults: if rng.chance(900) {
                MS * (200 + rng.below(1000) as u32)
            } else {
                Duration::ZERO
            },
            mtu: [256, 1024, 4096][rng.below(3) as usize],
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Virtual time.
    pub time: Duration,
    /// Requests executed.
    pub requests: u64,
    /// Fail-overs of both sides.
    pub failovers: u64,
    /// The longest of them.
    pub blackout_max: Duration,
    /// Paths given up.
    pub deaths: u64,
    /// Datagrams lost on the way.
    pub dropped: u64,
    /// Packets refused, for fences for example.
    pub refused: u64,
}

/// A promise was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed to repeat it with.
    pub seed: u64,
    /// When, in virtual time.
    pub at: Duration,
    /// What.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} at {:?}: {}", self.seed, self.at, self.what)
    }
}

impl std::error::Error for Failure {}

/// Runs what a seed means.
///
/// # Errors
/// A promise was broken.
pub fn simulate(seed: u64) -> Result<Report, Failure> {
    Simulation::new(Setup::random(seed)).run()
}

/// Two hosts and what they do.
#[derive(Debug)]
pub struct Simulation {
    setup: Setup,
    rng: Rng,
    now: Duration,
    net: Network,
    hosts: [SimHost; 2],
    flows: Vec<Flow>,
    schedule: VecDeque<(Duration, Fault)>,
    healed: Duration,
    gone: Vec<(usize, usize)>,
    next_post: Duration,
    checked: [usize; 2],
    /// Print faults and path events.
    pub trace: bool,
    /// Print every packet.
    pub trace_packets: bool,
}

impl Simulation {
    /// Everything connected, nothing done yet.
    pub fn new(setup: Setup) -> Self {
        let mut rng = Rng::new(!setup.seed);
        let now = MS;
        let memory = (SHARED * 8 + MEMORY * setup.multipath.len() as u64) as usize;
        let mut make = |number| {
            let mut host = SimHost::new(number, setup.links, Config::default(), rng.bits(), memory);
            host.io.now = now;
            host
        };
        let mut hosts = [make(0), make(1)];
        let mut net = Network::new(setup.links);
        for link in &mut net.links {
            link.delay = Duration::from_micros(5 + rng.below(200));
            link.jitter = if rng.chance(500) { rng.time(link.delay) } else { Duration::ZERO };
            // Go-back-N hardly moves where every packet overtakes every other.
            link.reorders = rng.chance(500) && setup.multipath.iter().all(|mp| *mp);
        }
        let mut flows: Vec<Flow> = Vec::new();
        for (i, &multipath) in setup.multipath.iter().enumerate() {
            let qpns = loop {
                let index = rng.below(0xfff0) as u32 + 1;
                let qpns = [0x1_0000 | (index ^ i as u32), 0x2_0000 | index.wrapping_add(i as u32)];
                let taken = |f: &Flow| qpns.contains(&f.plan.qpn);
                if !flows.iter().any(taken) {
                    break qpns;
                }
            };
            let psns = [rng.below(1 << 24) as u32, 0xff_ffff - rng.below(200) as u32];
            // All over the first link, unless they can do better.
            let link = if multipath { rng.below(setup.links as u64) as usize } else { 0 };
            for side in 0..2 {
                let qp = connect(&setup, side, qpns, psns, multipath, &mut hosts[side], &mut rng);
                hosts[side].add(qp, qpns[1 - side], link, side, multipath);
                let base = SHARED * 8 + MEMORY * i as u64;
                let total = if side == 0 || rng.chance(500) { setup.requests } else { 0 };
                let (qpn, peer_qpn) = (qpns[side], qpns[1 - side]);
                flows.push(Flow::new(Plan { side, qpn, peer_qpn, base, total }));
            }
        }
        let start = now + 20 * MS;
        let schedule = Schedule::random(&mut rng, setup.links, start, setup.faults);
        Self {
            rng,
            now,
            net,
            hosts,
            flows,
            schedule: schedule.faults.into(),
            healed: schedule.healed,
            gone: Vec::new(),
            next_post: now + 10 * MS,
            checked: [0; 2],
            trace: false,
            trace_packets: false,
            setup,
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// A promise was broken.
    pub fn run(mut self) -> Result<Report, Failure> {
        let result = self.all();
        let (seed, at) = (self.setup.seed, self.now);
        result.map_err(|what| Failure { seed, at, what })
    }

    fn all(&mut self) -> Result<Report, String> {
        let end = self.healed + PATIENCE;
        while !(self.flows.iter().all(Flow::done) && self.schedule.is_empty()) {
            if self.now > end {
                return Err(format!("stands still: {}", self.standing()));
            }
            self.step()?;
        }
        // What is still flying arrives, and finds nothing to break.
        let rest = self.now + Duration::from_millis(400);
        while self.now < rest {
            self.step()?;
        }
        self.finish()?;
        Ok(self.report())
    }

    fn standing(&self) -> String {
        let flows: Vec<_> = self.flows.iter().filter(|f| !f.done()).collect();
        let routes: Vec<_> = self.hosts.iter().map(|h| h.io.paths.status()).collect();
        let said = self.hosts.iter().map(|h| &h.io.explanations).collect::<Vec<_>>();
        format!("{flows:?} {said:?} {routes:#?}")
    }

    fn step(&mut self) -> Result<(), String> {
        let posting = self.flows.iter().any(|f| !f.done()).then_some(self.next_post);
        let deadlines = self.hosts.iter().filter_map(SimHost::deadline);
        let fault = self.schedule.front().map(|(at, _)| *at);
        let next = deadlines.chain(self.net.next()).chain(posting).chain(fault).min();
        // A little later than due, as timers are.
        self.now = self.now.max(next.unwrap_or(self.now + MS));
        while let Some(&(at, fault)) = self.schedule.front() {
            if at > self.now {
                break;
            }
            self.schedule.pop_front();
            self.apply(fault);
        }
        while let Some((host, datagram)) = self.net.arrived(self.now) {
            self.hosts[host].inbox.push_back(datagram);
        }
        if self.now >= self.next_post {
            self.post()?;
            self.next_post = self.now + self.rng.time(MS * 20);
        }
        for number in 0..2 {
            let host = &mut self.hosts[number];
            if host.paused_until > self.now {
                continue;
            }
            host.run(self.now);
            for datagram in core::mem::take(&mut host.io.out) {
                if self.trace_packets
                    && let Ok(packet) = Packet::parse(&datagram.bytes)
                {
                    let (now, src, headers) = (self.now, datagram.src, packet.headers);
                    println!("{now:?} {src} sends {headers} +{}", packet.payload.len());
                }
                self.net.send(self.now, number, &datagram, &mut self.rng);
            }
            self.check(number)?;
        }
        Ok(())
    }

    fn post(&mut self) -> Result<(), String> {
        for flow in &mut self.flows {
            let Plan { side, qpn, .. } = flow.plan;
            // Only when both ends know of each other do short timeouts make no false alarms.
            let mp = self.hosts[side].qps.get(&qpn).is_some_and(|e| e.qp.is_multipath());
            let wanted = self.setup.multipath[((flow.plan.base - SHARED * 8) / MEMORY) as usize];
            for _ in 0..self.rng.below(5) {
                if mp || !wanted {
                    flow.post(&mut self.hosts[side], &mut self.rng)?;
                }
            }
            for _ in 0..self.rng.below(5) {
                flow.post_receive(&mut self.hosts[1 - side])?;
            }
        }
        Ok(())
    }

    /// Hands new completions to the flows, which judge them.
    fn check(&mut self, number: usize) -> Result<(), String> {
        let host = &self.hosts[number];
        if self.trace {
            for (at, event) in host.path_events.iter().filter(|(at, _)| *at == self.now) {
                println!("{at:?} host {number}: {event:?}");
            }
        }
        if let Some((qpn, event)) = host.io.events.iter().find(|(_, e)| is_bad(*e)) {
            return Err(format!("queue pair {qpn:#x}: {event:?}: {:?}", host.io.explanations));
        }
        while let Some(&(side, c)) = host.io.completions.get(self.checked[number]) {
            self.checked[number] += 1;
            let flow = self.flows.iter_mut().find(|f| match side {
                CqSide::Send => f.plan.qpn == c.qpn,
                CqSide::Recv => f.plan.peer_qpn == c.qpn,
            });
            let flow = flow.ok_or("a completion of no queue pair")?;
            let verdict = match side {
                CqSide::Send => flow.sent(host, &c),
                CqSide::Recv => flow.received(host, &c),
            };
            verdict.map_err(|what| {
                format!("queue pair {:#x}: {what}; {:?}", c.qpn, host.io.explanations)
            })?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        for flow in &self.flows {
            let told = |what| format!("queue pair {:#x}: {what}", flow.plan.qpn);
            flow.finish(&self.hosts[1 - flow.plan.side]).map_err(told)?;
        }
        for (number, host) in self.hosts.iter().enumerate() {
            if host.io.charged != 0 {
                return Err(format!("host {number}: {} bytes stay charged", host.io.charged));
            }
            for counter in 0..SHARED {
                let requesters = self.flows.iter().filter(|f| f.plan.side != number);
                let mut all: Vec<u64> =
                    requesters.flat_map(|f| f.originals[counter as usize].clone()).collect();
                all.sort_unstable();
                let value = word(&host.io.memory, counter * 8);
                if !all.iter().copied().eq(0..value) {
                    return Err(format!("shared counter {counter} is {value}, returned {all:?}"));
                }
            }
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let events = || self.hosts.iter().flat_map(|h| h.path_events.iter().map(|(_, e)| e));
        let blackouts = events().filter_map(|e| match e {
            PathEvent::Resumed { blackout, .. } => Some(*blackout),
            _ => None,
        });
        Report {
            time: self.now,
            requests: self.flows.iter().map(Flow::completed).sum(),
            failovers: events().filter(|e| matches!(e, PathEvent::Resumed { .. })).count() as u64,
            blackout_max: blackouts.max().unwrap_or_default(),
            deaths: events().filter(|e| matches!(e, PathEvent::PathDead { .. })).count() as u64,
            dropped: self.net.dropped,
            refused: self.hosts.iter().map(|h| h.refused).sum(),
        }
    }

    fn apply(&mut self, fault: Fault) {
        if self.trace {
            println!("{:?} {fault:?}", self.now);
        }
        match fault {
            Fault::Cut { link, from } => self.net.links[link].cut = from,
            Fault::Carrier { link, up, seen } => {
                self.net.links[link].up = up;
                for number in (0..2).filter(|n| seen[*n]) {
                    self.hosts[number].local[link].link_up = up;
                    self.tell(number);
                }
            }
            Fault::Address { host, link, there } => {
                self.gone.retain(|g| *g != (host, link));
                if !there {
                    self.gone.push((host, link));
                }
                self.tell(host);
            }
            Fault::Admin { host, link, usable } => {
                self.hosts[host].local[link].usable = usable;
                self.tell(host);
            }
            Fault::Pause { host, time } => {
                let until = self.now + time;
                let host = &mut self.hosts[host];
                host.paused_until = host.paused_until.max(until);
            }
            Fault::Bad { link, loss, double, straggle } => {
                let link = &mut self.net.links[link];
                link.loss_per_mille = loss;
                link.double_per_mille = double;
                link.straggle_per_mille = straggle;
            }
        }
    }

    fn tell(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        host.io.now = self.now;
        let all = host.local.clone();
        let there = |link: usize| !self.gone.contains(&(number, link));
        let list: Vec<_> =
            all.iter().enumerate().filter(|(l, _)| there(*l)).map(|(_, a)| *a).collect();
        host.io.paths.set_local(self.now, &list);
    }
}

fn is_bad(event: polypath_transport::QpEvent) -> bool {
    use polypath_transport::QpEvent as E;
    matches!(event, E::Fatal | E::RequestError | E::AccessError)
}

fn connect(
    setup: &Setup,
    side: usize,
    qpns: [u32; 2],
    psns: [u32; 2],
    multipath: bool,
    host: &mut SimHost,
    rng: &mut Rng,
) -> QueuePair {
    use QpAttrMask as M;
    let mut qp = QueuePair::new(QpConfig {
        qpn: qpns[side],
        qp_type: QpType::Rc,
        pd: PD,
        sq_sig_all: false,
        srq: false,
        max_send_wr: DEPTH as u32,
        max_recv_wr: DEPTH as u32,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 256,
    });
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let attr = QpAttr {
        access: access | Access::LOCAL_WRITE,
        port_num: 1,
        ah: AhAttr { is_global: true, port_num: 1, ..AhAttr::default() },
        path_mtu: setup.mtu,
        dest_qpn: qpns[1 - side],
        rq_psn: psns[1 - side],
        sq_psn: psns[side],
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 8,
        // A plain queue pair has to sit out the faults; one with paths must not need to.
        timeout: if multipath { 8 + rng.below(8) as u8 } else { 20 },
        retry_cnt: if multipath { rng.below(8) as u8 } else { 7 },
        rnr_retry: 7,
        ..QpAttr::new(QpState::Init)
    };
    let steps = [
        (QpState::Init, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::STATE
                | M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
        ),
        (
            QpState::Rts,
            M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
        ),
    ];
    for (state, mask) in steps {
        let attr = QpAttr { state, cur_state: qp.state(), ..attr };
        qp.modify(host.io.now, &attr, mask, &mut host.io).expect("the transitions are legal");
    }
    qp
}
