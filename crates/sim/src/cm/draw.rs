//! Draws the case that a seed means for the connection manager.

use core::time::Duration;

use super::case::{
    AttemptPlan, CmCase, CmFault, Decision, EndPlan, Forgery, ListenPlan, Place, Quit, Service,
};
use crate::link_faults::{Bursts, LinkFaults, LinkPlan};
use crate::rng::Rng;

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

/// The number of processes of each host.
pub(super) const PROCESSES: usize = 2;
/// The time within which everything begins.
const OPENING: Duration = Duration::from_secs(30);
/// The first port number of services.
const PORT: u16 = 7000;
/// The largest number of services, each on the port after the one before.
const SERVICES_MAX: u16 = 4;
/// More bytes than fit into any private data of an application.
const TOO_MUCH: usize = 200;

impl CmCase {
    /// Draws the case that this seed means.
    pub fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let hosts = [2, 2, 2, 3, 4][rng.below(5) as usize];
        let links = 1 + rng.below(2) as usize;
        let calm = rng.chance(250);
        let wild = !calm && rng.chance(200);
        let mut listeners = draw_listeners(rng, hosts, links);
        let most = if rng.chance(150) { 40 } else { 12 };
        let count = 1 + rng.below(most) as usize;
        let mut attempts: Vec<AttemptPlan> = Vec::with_capacity(count);
        let reuse = rng.chance(150);
        for number in 0..count {
            let attempt = draw_attempt(rng, number, hosts, links, &listeners, reuse);
            attempts.push(attempt);
        }
        let faults =
            if calm { Vec::new() } else { draw_faults(rng, hosts, links, &attempts, reuse) };
        if rng.chance(100) {
            // All connect at once, a moment before the listeners are there.
            attempts.iter_mut().for_each(|a| a.at = Duration::ZERO);
            listeners.iter_mut().for_each(|l| l.at = rng.time(MS * 40));
        }
        make_some_xrc(seed, &mut listeners, &mut attempts);
        let few = rng.chance(80);
        Self {
            seed: !seed,
            v6: rng.chance(300),
            hosts,
            links: (0..links).map(|_| draw_link(rng, wild)).collect(),
            multi_path: links > 1 && rng.chance(600),
            max_connections: if few { 2 + rng.below(6) as usize } else { 131_072 },
            listeners,
            attempts,
            faults,
        }
    }
}

/// Makes some services ones of XRC, drawn from a stream of their own, so that nothing else of a case
/// changes.
fn make_some_xrc(seed: u64, listeners: &mut [ListenPlan], attempts: &mut [AttemptPlan]) {
    let mut rng = Rng::new(seed.rotate_left(23) ^ 0x5852_4320_636d);
    for number in 0..SERVICES_MAX {
        if rng.chance(200) {
            let asked = attempts.iter_mut().map(|a| &mut a.service);
            let listened = listeners.iter_mut().map(|l| &mut l.service);
            // Some ask for a port that is 1000 higher, where nobody listens.
            let is_it = |s: &&mut Service| !s.ud && (s.port - PORT) % 1000 == number;
            asked.chain(listened).filter(is_it).for_each(|s| s.xrc = true);
        }
    }
}

fn draw_link(rng: &mut Rng, wild: bool) -> LinkPlan {
    let delay = Duration::from_micros(5 + rng.below(200));
    let jitter = match rng.below(10) {
        // Some packets are later than their repetitions, so that an old answer may meet a new question.
        _ if wild => rng.time(SEC * 8),
        0..=4 => Duration::ZERO,
        5..=7 => rng.time(MS),
        _ => rng.time(MS * 250),
    };
    LinkPlan { delay, jitter, reorders: rng.chance(600), rate_mbps: 0, queue: 0, marks: false }
}

fn draw_place(rng: &mut Rng, hosts: usize) -> Place {
    Place { host: rng.below(hosts as u64) as usize, process: rng.below(PROCESSES as u64) as usize }
}

fn draw_listeners(rng: &mut Rng, hosts: usize, links: usize) -> Vec<ListenPlan> {
    let mut listeners = Vec::new();
    for number in 0..=rng.below(SERVICES_MAX.into()) {
        let place = draw_place(rng, hosts);
        let service = Service { ud: rng.chance(250), xrc: false, port: PORT + number as u16 };
        // Some listeners come a moment after the first request.
        let at = if rng.chance(700) { Duration::ZERO } else { rng.time(SEC * 2) };
        let until = rng.chance(300).then(|| at + rng.time(OPENING));
        let backlog = [0, 1, 2, 3, 128][rng.below(5) as usize];
        let link = rng.chance(250).then(|| rng.below(links as u64) as usize);
        listeners.push(ListenPlan { place, service, link, backlog, at, until });
        if rng.chance(150) {
            // Another process wants the same service, perhaps on another address.
            let place = Place { process: rng.below(PROCESSES as u64) as usize, ..place };
            let link = rng.chance(800).then(|| rng.below(links as u64) as usize);
            listeners.push(ListenPlan { place, service, link, backlog, at, until: None });
        }
        if let Some(until) = until
            && rng.chance(500)
        {
            // Another process of the host takes over.
            let place = Place { process: rng.below(PROCESSES as u64) as usize, ..place };
            let at = until + rng.time(MS * 40);
            listeners.push(ListenPlan { place, service, link, backlog, at, until: None });
        }
    }
    listeners
}

/// Draws how long an application takes: mostly no time, sometimes minutes.
fn draw_delay(rng: &mut Rng) -> Duration {
    match rng.below(20) {
        0..=7 => Duration::ZERO,
        8..=12 => rng.time(MS),
        13..=15 => rng.time(SEC),
        16..=18 => rng.time(SEC * 12),
        _ => rng.time(SEC * 200),
    }
}

fn draw_end(rng: &mut Rng, qpn: u32, room: usize) -> EndPlan {
    let private_len = match rng.below(20) {
        0 => TOO_MUCH + 1,
        1..=5 => 0,
        6..=9 => room,
        _ => rng.below(room as u64 + 1) as usize,
    };
    EndPlan {
        qpn,
        private_len,
        decide_after: draw_delay(rng),
        quit: rng.chance(500).then(|| {
            let at = draw_delay(rng) + draw_delay(rng);
            (at, if rng.chance(600) { Quit::Disconnect } else { Quit::Destroy })
        }),
        migrate_after: rng.chance(100).then(|| draw_delay(rng)),
        agree_after: match rng.below(10) {
            0 => None,
            1..=3 => Some(rng.time(SEC * 10)),
            _ => Some(draw_delay(rng)),
        },
        destroy_after: draw_delay(rng),
    }
}

fn draw_attempt(
    rng: &mut Rng,
    number: usize,
    hosts: usize,
    links: usize,
    listeners: &[ListenPlan],
    reuse: bool,
) -> AttemptPlan {
    let listener = &listeners[rng.below(listeners.len() as u64) as usize];
    let place = loop {
        let place = draw_place(rng, hosts);
        // A host connects to itself, too, but seldom.
        if place.host != listener.place.host || rng.chance(100) {
            break place;
        }
    };
    let mut service = listener.service;
    if rng.chance(50) {
        service.port += 1000;
    }
    let numbers = [rng.below(17), rng.below(17), rng.below(8), rng.below(8)].map(|n| n as u8);
    let at = if rng.chance(300) { Duration::ZERO } else { rng.time(OPENING) };
    let qpn = |rng: &mut Rng, base: u32| {
        // The number may be another attempt's, if numbers are reused.
        let number = if reuse { rng.below(6) } else { number as u64 };
        base + number as u32
    };
    let (active, passive) = (qpn(rng, 0x100), qpn(rng, 0x4000));
    // The room for private data in a SIDR_REQ, and in a REQ after the RDMA IP CM header.
    let asked = if service.ud { 180 } else { 56 };
    let decision = match rng.below(20) {
        0..=14 => Decision::Accept,
        15..=17 => Decision::Reject,
        18 => Decision::Destroy,
        _ => Decision::Ignore,
    };
    let answer = match (service.ud, decision) {
        (true, _) => 136,
        (false, Decision::Reject) => 148,
        (false, _) => 196,
    };
    AttemptPlan {
        at,
        place,
        to: listener.place.host,
        service,
        link: rng.below(links as u64) as usize,
        numbers,
        active: draw_end(rng, active, asked),
        passive: draw_end(rng, passive, answer),
        decision,
        data_after: rng.chance(100).then(|| draw_delay(rng)),
    }
}

fn draw_link_faults(rng: &mut Rng) -> LinkFaults {
    let mut some = |list: [u64; 5]| list[rng.below(5) as usize];
    LinkFaults {
        loss: some([0, 50, 200, 500, 900]),
        bursts: Bursts::default(),
        double: some([0, 0, 100, 300, 900]),
        overtake: some([0, 0, 0, 100, 300]),
        straggle: some([0, 0, 0, 100, 500]),
        corrupt: some([0, 0, 0, 50, 300]),
    }
}

fn draw_faults(
    rng: &mut Rng,
    hosts: usize,
    links: usize,
    attempts: &[AttemptPlan],
    reuse: bool,
) -> Vec<(Duration, CmFault)> {
    let mut faults = Vec::new();
    let stormy = rng.chance(800);
    for link in 0..links {
        if stormy {
            let link_faults = draw_link_faults(rng);
            faults.push((Duration::ZERO, CmFault::LinkFaults { link, link_faults }));
        }
        // Link faults mostly end. Every attempt must end even if they do not.
        if stormy && rng.chance(800) {
            let at = rng.time(SEC * 100);
            faults.push((at, CmFault::LinkFaults { link, link_faults: LinkFaults::default() }));
        }
    }
    let violent = rng.chance(300) || reuse;
    let many = rng.chance(200);
    for _ in 0..rng.below(if many { 60 } else { 8 }) {
        // Most faults concern some attempt, while something happens to it.
        let attempt = rng.below(attempts.len() as u64) as usize;
        let about = &attempts[attempt];
        let at = if rng.chance(700) { about.at + draw_delay(rng) } else { rng.time(OPENING * 2) };
        let host = if rng.chance(500) { about.place.host } else { about.to };
        let place = Place { host, process: rng.below(PROCESSES as u64) as usize };
        match rng.below(16) {
            0..=2 if !many => {
                let (link, from) = (rng.below(links as u64) as usize, host);
                let to = (from + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
                faults.push((at, CmFault::Cut { link, from, to, cut: true }));
                let back = at + rng.time(SEC * 90);
                faults.push((back, CmFault::Cut { link, from, to, cut: false }));
            }
            3..=5 => {
                let (time, deaf) = (draw_delay(rng), rng.chance(700));
                faults.push((at, CmFault::Pause { place, time, deaf }));
            }
            6 if violent => faults.push((at, CmFault::Kill { place })),
            7 if violent => faults.push((at, CmFault::Removal { place })),
            8 if violent => faults.push((at, CmFault::Reboot { host })),
            10 => {
                let link = rng.below(links as u64) as usize;
                faults.push((at, CmFault::Address { host, link, there: false }));
                let back = at + rng.time(SEC * 60);
                faults.push((back, CmFault::Address { host, link, there: true }));
            }
            9 => faults.push((at, CmFault::Replay { host, back: rng.below(60) })),
            _ => {
                let what = draw_forgery(rng);
                faults.push((at, CmFault::Forge { host, attempt, what }));
            }
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn draw_forgery(rng: &mut Rng) -> Forgery {
    match rng.below(14) {
        0 => Forgery::DreqOfOtherQp,
        1 => Forgery::DreqFromOther,
        2 => Forgery::RepFromOther,
        3 => Forgery::RtuFromOther,
        4 => Forgery::RejFromOther,
        5 => Forgery::MraFromOther,
        6 => Forgery::DrepFromOther,
        7 => Forgery::DreqNotFromQp1,
        8 => Forgery::ReqForNobody,
        9 => Forgery::ReqStale,
        10 => Forgery::Lap,
        11 => Forgery::SidrRepOfOther,
        _ => Forgery::Noise(rng.bits()),
    }
}
