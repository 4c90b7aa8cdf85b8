//! Draws the case that a seed means.

use core::time::Duration;

use polypath_transport::{Access, QpType};

use crate::attack;
use crate::away;
use crate::case::{Case, EndPlan, Op, OpKind, PairPlan, Wrong};
use crate::faults::{self, Fault, When};
use crate::freeze;
use crate::grey;
use crate::lanes;
use crate::layout::{AREA, BUFFER, SHARED};
use crate::link_faults::LinkPlan;
use crate::overlap;
use crate::ports;
use crate::rng::Rng;
use crate::usage;

const MS: Duration = Duration::from_millis(1);
/// The largest number of work requests of an unreliable queue pair, which has receives for all of them
/// from the beginning.
const LOOSE_OPS_MAX: u64 = 36;

/// The properties that all queue pairs of a case have in common.
#[derive(Clone, Copy)]
struct Mood {
    hosts: usize,
    links: usize,
    requests: u64,
    /// Whether some work requests are wrong.
    wrongs: bool,
    /// Whether the network has no faults.
    calm: bool,
    /// Whether a process dies.
    deadly: bool,
    /// A bit for each host: whether it has a shared receive queue.
    srq: u64,
}

impl Case {
    /// Draws the case that this seed means.
    pub fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let hosts = [2, 2, 2, 2, 3, 4][rng.below(6) as usize];
        let links = [1, 2, 2, 2, 2, 3, 3][rng.below(7) as usize];
        let calm = rng.chance(150);
        let mood = Mood {
            hosts,
            links,
            requests: 20 + rng.below(150),
            wrongs: rng.chance(300),
            calm,
            deadly: rng.chance(80),
            srq: if rng.chance(250) { rng.bits() } else { 0 },
        };
        let count = 1 + rng.below(hosts as u64 + 1);
        let mut pairs: Vec<PairPlan> = Vec::new();
        for _ in 0..count {
            let pair = draw_pair(rng, &mood, &pairs);
            pairs.push(pair);
        }
        let plain = pairs.iter().any(|p| p.service == QpType::Rc && !p.multipath);
        let keep_order = rng.chance(200);
        let links = (0..links).map(|_| draw_link(rng, !plain && !keep_order)).collect::<Vec<_>>();
        let mut list = Vec::new();
        if !calm {
            let time = MS * (200 + rng.below(1000) as u32);
            list = faults::draw(rng, hosts, links.len(), time, keep_order);
        }
        let mut add = |at, fault| {
            let place = list.iter().position(|(w, _)| matches!(w, When::At(t) if *t > at));
            list.insert(place.unwrap_or(list.len()), (When::At(at), fault));
        };
        if mood.deadly {
            let host = rng.below(hosts as u64) as usize;
            add(rng.time(MS * 500), Fault::Die { host, reborn: rng.chance(500) });
        }
        if rng.chance(60) {
            let pair = rng.below(count) as usize;
            let end = rng.below(2) as usize;
            add(rng.time(MS * 500), Fault::Error { pair, end });
        }
        let v6 = rng.chance(300);
        // Later additions to the simulator are drawn last, so that the rest of a seed's meaning stays
        // as it was.
        for pair in pairs.iter_mut().filter(|p| p.service == QpType::Rc && !p.multipath) {
            if rng.chance(300) {
                make_xrc(pair);
            }
        }
        while rng.chance(120) {
            let pair = rng.below(count) as usize;
            let end = rng.below(2) as usize;
            let (pause, notify) = (rng.time(MS * 100), rng.chance(700));
            add(rng.time(MS * 500), Fault::Drain { pair, end, pause, notify });
        }
        overlap::draw(seed, &mut pairs);
        let attacks = attack::draw(seed, &pairs);
        let lanes = Vec::new();
        let mut case = Self { seed: !seed, v6, hosts, links, pairs, faults: list, attacks, lanes };
        grey::add(seed, &mut case, |rng, hosts, multipath, others| {
            let mood = Mood { requests: 60, wrongs: false, srq: 0, ..mood };
            draw_reliable(rng, &mood, hosts, multipath, others)
        });
        freeze::add(seed, &mut case);
        away::add(seed, &mut case);
        case.lanes = lanes::draw(seed, case.hosts);
        usage::add(seed, &mut case);
        // Half of the slow links mark.
        let mut marks = Rng::new(seed ^ 0x6d61_726b);
        for link in &mut case.links {
            link.marks = marks.chance(500) && link.rate_mbps > 0;
        }
        ports::add(seed, &mut case);
        case
    }
}

/// Draws an RC pair between two hosts, whose work takes a while.
fn draw_reliable(
    rng: &mut Rng,
    mood: &Mood,
    hosts: [usize; 2],
    multipath: bool,
    others: &[PairPlan],
) -> PairPlan {
    loop {
        let mut pair = draw_pair(rng, mood, others);
        if pair.service != QpType::Rc || pair.multipath != multipath {
            continue;
        }
        for (end, host) in pair.ends.iter_mut().zip(hosts) {
            end.host = host;
            end.qpn = (host as u32 + 1) << 16 | end.qpn & 0xffff;
        }
        let taken = |q: u32| others.iter().flat_map(|p| &p.ends).any(|e| e.qpn == q);
        if !pair.ends.iter().any(|e| taken(e.qpn)) {
            pair.rnr_retry = 7;
            return pair;
        }
    }
}

fn draw_link(rng: &mut Rng, may_reorder: bool) -> LinkPlan {
    let long = rng.chance(80);
    let delay = Duration::from_micros(5 + rng.below(if long { 5000 } else { 200 }));
    let jitter = if rng.chance(500) { rng.time(delay) } else { Duration::ZERO };
    let slow = rng.chance(350);
    LinkPlan {
        delay,
        jitter,
        // Go-back-N makes hardly any progress if every packet overtakes every other.
        reorders: may_reorder && rng.chance(500),
        rate_mbps: if slow { [100, 1000, 10_000][rng.below(3) as usize] } else { 0 },
        queue: 32 << (10 + rng.below(5)),
        marks: false,
    }
}

fn draw_pair(rng: &mut Rng, mood: &Mood, others: &[PairPlan]) -> PairPlan {
    let service = match rng.below(20) {
        0..=1 => QpType::Uc,
        2..=3 => QpType::Ud,
        _ => QpType::Rc,
    };
    let multipath = rng.chance(850);
    let first = rng.below(mood.hosts as u64) as usize;
    let hosts = [first, (first + 1 + rng.below(mood.hosts as u64 - 1) as usize) % mood.hosts];
    let qpns = loop {
        let mut number = |host: usize| (host as u32 + 1) << 16 | (rng.below(0xfff0) as u32 + 1);
        let qpns = hosts.map(&mut number);
        let taken = |p: &PairPlan| p.ends.iter().any(|e| qpns.contains(&e.qpn));
        if !others.iter().any(taken) {
            break qpns;
        }
    };
    let psns = [rng.below(1 << 24) as u32, 0xff_ffff - rng.below(200) as u32];
    let limited = rng.chance(150);
    // If the network is whole, only a dead peer can hold up a plain queue pair.
    let soon = mood.calm && rng.chance(500);
    let mut pair = PairPlan {
        service,
        multipath,
        // All plain pairs use the first link.
        link: if multipath { rng.below(mood.links as u64) as usize } else { 0 },
        alternate: None,
        labels: [0; 2],
        mtu: [256, 1024, 4096][rng.below(3) as usize],
        // A plain queue pair has to wait until the faults are over; one with several paths must not
        // need to.
        timeout: match (multipath, soon) {
            (true, _) => 8 + rng.below(8) as u8,
            (false, true) => 14 + rng.below(3) as u8,
            (false, false) => 20,
        },
        retry_cnt: if multipath { rng.below(8) as u8 } else { 7 },
        rnr_retry: if limited { rng.below(7) as u8 } else { 7 },
        min_rnr_timer: 1 + rng.below(12) as u8,
        max_rd_atomic: [1, 2, 4, 4, 16][rng.below(5) as usize],
        unfenced: false,
        ends: [0, 1].map(|e| EndPlan {
            host: hosts[e],
            qpn: qpns[e],
            psn: psns[e],
            srq: service == QpType::Rc && mood.srq >> hosts[e] & 1 == 1,
            access: Access::LOCAL_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL,
            ops: Vec::new(),
        }),
    };
    if mood.wrongs && service == QpType::Rc && rng.chance(150) {
        let rights = [
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_ATOMIC,
            Access::FLUSH_GLOBAL,
        ];
        pair.ends[rng.below(2) as usize].access -= rights[rng.below(4) as usize];
    }
    for e in 0..2 {
        let idle = e == 1 && rng.chance(500);
        let total = if idle { 0 } else { mood.requests };
        pair.ends[e].ops = draw_ops(rng, &pair, e, total, mood.wrongs);
    }
    pair
}

/// Makes a pair an XRC pair: the first end sends requests, the second answers.
fn make_xrc(pair: &mut PairPlan) {
    pair.service = QpType::XrcSend;
    pair.ends[1].ops.clear();
    for end in &mut pair.ends {
        end.srq = false;
    }
    for op in &mut pair.ends[0].ops {
        // Any message may take any receive of the queue, so no receive can be made wrong for one
        // message. These and wrong rights are replaced.
        let unfit = |w: Wrong| {
            matches!(w, Wrong::NoReceive | Wrong::ReceiveKey | Wrong::ShortReceive | Wrong::Rights)
        };
        if op.wrong.is_some_and(unfit) {
            op.wrong = Some(Wrong::Queue);
        }
    }
}

fn draw_ops(rng: &mut Rng, pair: &PairPlan, end: usize, total: u64, wrongs: bool) -> Vec<Op> {
    let reliable = pair.service == QpType::Rc;
    let total = if reliable { total } else { total.min(LOOSE_OPS_MAX) };
    let mut at = Duration::ZERO;
    let mut ops = Vec::with_capacity(total as usize);
    while (ops.len() as u64) < total {
        at += rng.time(MS * 20);
        for _ in 0..rng.below(5).min(total - ops.len() as u64) {
            ops.push(draw_op(rng, pair, at));
        }
    }
    if wrongs && !ops.is_empty() && rng.chance(600) {
        for _ in 0..=rng.below(2) {
            let index = rng.below(ops.len() as u64) as usize;
            ops[index].wrong = draw_wrong(rng, pair, end, &mut ops[index]);
        }
    }
    ops
}

fn draw_op(rng: &mut Rng, pair: &PairPlan, at: Duration) -> Op {
    let kind = match (pair.service, rng.below(20)) {
        (QpType::Ud, n) if n & 1 == 0 => OpKind::Send,
        (QpType::Ud, _) => OpKind::SendImm,
        (_, 0..=3) => OpKind::Send,
        (_, 4..=5) => OpKind::SendImm,
        (_, 6..=9) => OpKind::Write,
        (_, 10..=11) => OpKind::WriteImm,
        (QpType::Uc, _) => OpKind::SendImm,
        (_, 12..=15) => OpKind::Read,
        (_, 16) => OpKind::FetchAdd,
        (_, 17) => OpKind::CompareSwap,
        _ => OpKind::SharedAdd,
    };
    let most = match pair.service {
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv => BUFFER as u32,
        QpType::Uc => 4096,
        QpType::Ud => pair.mtu,
    };
    let mtu = pair.mtu;
    let edge = [0, 1, mtu - 1, mtu, mtu + 1, mtu * 2, most][rng.below(7) as usize];
    let mut len = match rng.below(10) {
        0..=2 => edge.min(most),
        3..=5 => rng.below(300) as u32,
        _ => rng.below(u64::from(most)) as u32,
    };
    len = len.min(most);
    if pair.service != QpType::Rc {
        len = len.max(8); // The judge recognises a message by its contents.
    }
    let (len, offset) = match kind {
        OpKind::SharedAdd => (8, rng.below(SHARED) as u32),
        OpKind::FetchAdd | OpKind::CompareSwap => (8, 0),
        _ => (len, rng.below(AREA - u64::from(len)) as u32),
    };
    // The receive sometimes comes too late.
    let early = at.saturating_sub(rng.time(MS * 40));
    let receive_at = match (pair.service, pair.rnr_retry) {
        (QpType::Rc, 7) => early + rng.time(MS * 30),
        (QpType::Rc, _) if rng.chance(20) => early + rng.time(MS * 30),
        _ => Duration::ZERO,
    };
    let fill = rng.bits();
    // Some WRITEs become ATOMIC WRITEs, some READs become FLUSHes or work on keys, and some SENDs
    // invalidate a key. No further random number is drawn for it, so that old seeds keep their meaning.
    let (kind, len, offset) = match (kind, fill >> 32 & 3) {
        (OpKind::Read, 1) if fill >> 34 & 3 == 0 => (OpKind::LocalInv, 0, 0),
        (OpKind::Read, 1) if fill >> 34 & 3 == 1 => (OpKind::Bind, 0, 0),
        (OpKind::Send, 0) if pair.service == QpType::Rc => (OpKind::SendInv, len, offset),
        (OpKind::Write, 0) if pair.service == QpType::Rc => (OpKind::AtomicWrite, 8, offset & !7),
        (OpKind::Read, 0) => (OpKind::Flush, len, offset),
        _ => (kind, len, offset),
    };
    Op {
        at,
        kind,
        len,
        offset,
        fill,
        signaled: rng.chance(600),
        inline: rng.chance(300),
        solicited: rng.chance(300),
        fence: rng.chance(50),
        split: rng.chance(250),
        receive_at,
        wrong: None,
    }
}

/// Draws something that can be wrong with this work request.
fn draw_wrong(rng: &mut Rng, pair: &PairPlan, end: usize, op: &mut Op) -> Option<Wrong> {
    let own_receive = !pair.ends[1 - end].srq;
    let choice = rng.below(8);
    let wrong = match (pair.service, choice) {
        (_, 0) => Wrong::Post,
        _ if op.kind.is_local() => Wrong::Post,
        (QpType::Ud, 1..=4) => Wrong::QKey,
        (_, 1) if op.kind == OpKind::Flush => Wrong::Key, // A FLUSH has no local memory.
        (_, 1) => Wrong::LocalKey,
        (QpType::Uc, _) if op.kind.is_write() => Wrong::Key,
        (QpType::Uc | QpType::Ud, _) => Wrong::LocalKey,
        _ if op.kind == OpKind::WriteImm && choice == 2 && own_receive && pair.rnr_retry < 7 => {
            Wrong::NoReceive
        }
        _ if op.kind == OpKind::SendInv && choice >= 5 => Wrong::Key,
        _ if !op.kind.is_send() => [Wrong::Key, Wrong::Range, Wrong::Rights][choice as usize % 3],
        _ if !own_receive => Wrong::LocalKey,
        _ if pair.rnr_retry < 7 => Wrong::NoReceive,
        (_, 2..=4) => Wrong::ReceiveKey,
        _ => Wrong::ShortReceive,
    };
    // The key of an access to no bytes is not checked.
    op.len = op.len.max(8);
    if u64::from(op.offset) + u64::from(op.len) > AREA {
        op.offset = 0;
    }
    Some(wrong)
}
