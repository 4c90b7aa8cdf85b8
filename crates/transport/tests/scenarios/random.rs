//! Random workloads over bad paths, with a model of what RC promises as the oracle.
//!
//! Both sides send at once. For every seed: memory ends as if each request had been executed exactly
//! once and in order; every READ and atomic returned what it had to; receives and completions came in
//! order, each once; everything charged to a path came back.

use std::collections::VecDeque;
use std::time::Duration;

use polypath_transport::*;

use crate::pair::*;

const TARGET: usize = 256 << 10;
const AREA: usize = 256 << 10;
const RECEIVES: usize = 512 << 10;
const LANDING: usize = 768 << 10;
const COUNTER: usize = (1 << 20) - 8;
const MAX_LEN: u64 = 12 << 10;
/// The most send work requests outstanding; buffers are used in turn and so never twice at a time.
const DEPTH: u64 = 16;
const BUFFER: u64 = 15 << 10;

/// What a work request is expected to do.
enum Expected {
    Nothing,
    Read { at: usize, data: Vec<u8> },
    Original { at: usize, value: u64 },
}

/// What a receive is expected to get.
struct Message {
    data: Option<Vec<u8>>,
    len: u32,
    imm: Option<[u8; 4]>,
}

/// One direction: requests of one side, and what they do to the other's memory.
struct Flow {
    side: usize,
    target: Vec<u8>,
    counter: u64,
    posted: u64,
    total: u64,
    /// In order; only the signaled ones have a visible completion.
    outstanding: VecDeque<(u64, bool, Expected)>,
    messages: VecDeque<Message>,
    checked: usize,
    received: usize,
    receives_posted: u64,
    reads_out: bool,
}

impl Flow {
    fn new(side: usize, total: u64) -> Self {
        Self {
            side,
            target: vec![0; AREA],
            counter: 0,
            posted: 0,
            total,
            outstanding: VecDeque::new(),
            messages: VecDeque::new(),
            checked: 0,
            received: 0,
            receives_posted: 0,
            reads_out: false,
        }
    }

    fn post(&mut self, p: &mut Pair, rng: &mut Rng) {
        if self.posted == self.total || self.outstanding.len() as u64 >= DEPTH {
            return;
        }
        let id = self.posted;
        let last = id + 1 == self.total;
        let slot = (id % DEPTH) * BUFFER;
        let kind = rng.below(10);
        let len = match (kind, rng.below(4)) {
            (8, _) => 8,
            (9, _) => 0,
            (_, 0) => rng.below(64),
            (_, 1) => 0,
            _ => rng.below(MAX_LEN),
        };
        let at = rng.below(AREA as u64 - len) as usize;
        let at = if kind == 8 { at & !7 } else { at };
        let va = (TARGET + at) as u64;
        let imm = (id as u32).to_be_bytes();
        let mut flags = SendFlags::empty();
        let data = pattern(len as usize, rng.next());
        let node = &mut p.nodes[self.side];
        let mut local = (slot, len as u32);
        let mut expected = Expected::Nothing;
        let op = match kind {
            0 | 1 => {
                self.messages.push_back(Message {
                    data: Some(data.clone()),
                    len: len as u32,
                    imm: None,
                });
                SendOp::Send
            }
            2 => {
                self.messages.push_back(Message {
                    data: Some(data.clone()),
                    len: len as u32,
                    imm: Some(imm),
                });
                SendOp::SendImm(imm)
            }
            3 | 4 => {
                self.target[at..at + len as usize].copy_from_slice(&data);
                SendOp::Write { va, rkey: ALL }
            }
            5 => {
                self.target[at..at + len as usize].copy_from_slice(&data);
                self.messages.push_back(Message { data: None, len: len as u32, imm: Some(imm) });
                SendOp::WriteImm { va, rkey: ALL, imm }
            }
            6 => {
                local.0 += LANDING as u64;
                let data = self.target[at..at + len as usize].to_vec();
                expected = Expected::Read { at: local.0 as usize, data };
                self.reads_out = true;
                SendOp::Read { va, rkey: ALL }
            }
            8 => {
                self.target[at..at + 8].copy_from_slice(&data);
                SendOp::AtomicWrite { va, rkey: ALL }
            }
            9 => {
                let scope = FlushScope::Range { va, len: (AREA - at) as u32 };
                SendOp::Flush { rkey: ALL, scope, placement: Placement::GLOBAL }
            }
            _ => {
                local = (slot + LANDING as u64, 8);
                let value = self.counter;
                expected = Expected::Original { at: local.0 as usize, value };
                let (va, rkey) = (COUNTER as u64, ALL);
                if rng.chance(500) {
                    let add = rng.below(1000);
                    self.counter += add;
                    SendOp::FetchAdd { va, rkey, add }
                } else {
                    let swap = rng.next();
                    let compare = if rng.chance(700) { value } else { !value };
                    if compare == value {
                        self.counter = swap >> 8;
                    }
                    SendOp::CompareSwap { va, rkey, compare, swap: swap >> 8 }
                }
            }
        };
        let is_read = matches!(op, SendOp::Read { .. });
        let answered = !matches!(expected, Expected::Nothing);
        let writes = matches!(
            op,
            SendOp::Write { .. } | SendOp::WriteImm { .. } | SendOp::AtomicWrite { .. }
        );
        if writes && self.reads_out {
            // A READ that is repeated reads again (IBTA 9.7.5.1.5), so what overwrites the memory
            // has to wait.
            flags |= SendFlags::FENCE;
            self.reads_out = false;
        }
        if !is_read && !answered {
            node.write_memory(slot as usize, &data);
        }
        let signaled = last || answered || rng.chance(600);
        if signaled {
            flags |= SendFlags::SIGNALED;
        }
        if !answered && len <= 256 && rng.chance(300) {
            let wr = SendWr {
                wr_id: id,
                op,
                flags: flags | SendFlags::INLINE,
                data: SendData::Inline(&data),
                ud: None,
            };
            if node.qp.post_send(&wr).is_err() {
                panic!("post");
            }
        } else {
            node.post_with(id, op, flags, local.0, local.1);
        }
        self.outstanding.push_back((id, signaled, expected));
        self.posted += 1;
    }

    /// Posts a receive for this flow's messages at the other side.
    fn post_receive(&mut self, p: &mut Pair) {
        if self.receives_posted - self.received as u64 >= DEPTH {
            return;
        }
        let slot = RECEIVES as u64 + (self.receives_posted % DEPTH) * BUFFER;
        p.nodes[1 - self.side].recv(self.receives_posted, slot, BUFFER as u32);
        self.receives_posted += 1;
    }

    fn check(&mut self, p: &Pair, seed: u64) {
        let node = &p.nodes[self.side];
        for c in &node.host.send_completions[self.checked..] {
            let why = (&node.host.explanations, &p.nodes[1 - self.side].host.explanations);
            assert_eq!(c.status, WcStatus::Success, "seed {seed}: {why:?}");
            loop {
                let (id, signaled, expected) =
                    self.outstanding.pop_front().expect("a completion too many");
                match expected {
                    Expected::Nothing => {}
                    Expected::Read { at, data } => {
                        assert!(node.memory(at, data.len()) == data, "seed {seed}: READ {id}");
                    }
                    Expected::Original { at, value } => {
                        assert_eq!(node.u64_at(at), value, "seed {seed}: atomic {id}");
                    }
                }
                if signaled {
                    assert_eq!(id, c.wr_id, "seed {seed}: completion order");
                    break;
                }
            }
        }
        self.checked = node.host.send_completions.len();
        let peer = &p.nodes[1 - self.side];
        for c in &peer.host.recv_completions[self.received..] {
            assert_eq!(c.status, WcStatus::Success, "seed {seed}");
            assert_eq!(c.wr_id, self.received as u64, "seed {seed}: receive order");
            let m = self.messages.pop_front().expect("a receive too many");
            assert_eq!((c.byte_len, c.imm), (m.len, m.imm), "seed {seed}");
            if let Some(data) = m.data {
                let at = RECEIVES + (self.received % DEPTH as usize) * BUFFER as usize;
                assert!(peer.memory(at, data.len()) == data, "seed {seed}: received data");
            }
            self.received += 1;
        }
    }

    fn done(&self) -> bool {
        self.posted == self.total && self.outstanding.is_empty() && self.messages.is_empty()
    }

    fn finish(&self, p: &Pair, seed: u64) {
        let peer = &p.nodes[1 - self.side];
        assert!(peer.memory(TARGET, AREA) == self.target, "seed {seed}: memory");
        assert_eq!(peer.u64_at(COUNTER), self.counter, "seed {seed}: counter");
    }
}

/// What happens to the paths, and when.
struct Script(Vec<(Duration, Fault)>);

enum Fault {
    Cut(usize, [bool; 2]),
    Notice { side: usize, path: usize, alive: bool },
}

impl Script {
    /// Paths die and come back; each side notices at its own time.
    fn failures(rng: &mut Rng, start: Duration, paths: usize) -> Self {
        let mut faults = Vec::new();
        for path in 0..paths {
            let mut at = start + US * rng.below(3000) as u32;
            for _ in 0..rng.below(4) {
                let cut = [[true, true], [true, false], [false, true]][rng.below(3) as usize];
                faults.push((at, Fault::Cut(path, cut)));
                for side in 0..2 {
                    let notice = at + US * rng.below(6000) as u32;
                    faults.push((notice, Fault::Notice { side, path, alive: false }));
                }
                at += US * (7000 + rng.below(3000) as u32);
                faults.push((at, Fault::Cut(path, [false; 2])));
                at += US * 100;
                for side in 0..2 {
                    let notice = at + US * rng.below(500) as u32;
                    faults.push((notice, Fault::Notice { side, path, alive: true }));
                }
                at += US * (1000 + rng.below(5000) as u32);
            }
        }
        faults.sort_by_key(|(t, _)| *t);
        faults.reverse();
        Self(faults)
    }

    fn apply(&mut self, p: &mut Pair) {
        while self.0.last().is_some_and(|(t, _)| *t <= p.now) {
            match self.0.pop().unwrap().1 {
                Fault::Cut(path, cut) => p.links[path].cut = cut,
                Fault::Notice { side, path, alive } => p.set_path(side, path, alive),
            }
        }
    }
}

fn run_seed(seed: u64, multipath: bool, failures: bool) {
    let mut rng = Rng(seed);
    let setup = Setup {
        mtu: [256, 512, 1024, 4096][rng.below(4) as usize],
        psn: [0xff_ffff - rng.below(300) as u32, rng.below(1 << 24) as u32],
        max_rd_atomic: 1 + rng.below(8) as u8,
        max_dest_rd_atomic: 8,
        timeout: 8 + rng.below(8) as u8,
        multipath,
        // Some peers are of a version that does not announce it.
        reach: if seed.is_multiple_of(3) { 0 } else { REACH },
        paths: if failures { 2 } else { 1 },
        max_send_wr: DEPTH as u32,
        ..Setup::default()
    };
    let mut p = Pair::new(setup);
    p.rng = Rng(!seed);
    let bad = rng.chance(700);
    for link in &mut p.links {
        link.delay = US * (1 + rng.below(200) as u32);
        if bad {
            link.loss = rng.below(60) as u32;
            link.duplicate = rng.below(60) as u32;
            link.jitter = if rng.chance(500) { US * rng.below(100) as u32 } else { Duration::ZERO };
        }
    }
    for node in &mut p.nodes {
        node.host.window = (4 << 10) << rng.below(7);
    }
    let total = 20 + rng.below(60);
    let mut flows = [Flow::new(0, total), Flow::new(1, rng.below(2) * total)];
    let mut script =
        if failures { Script::failures(&mut rng, p.now, 2) } else { Script(Vec::new()) };
    let end = p.now + Duration::from_secs(40);
    while !flows.iter().all(Flow::done) || !script.0.is_empty() {
        assert!(
            p.now < end,
            "seed {seed}: stuck: posted {} and {}, {:?} {:?} {:?}",
            flows[0].posted,
            flows[1].posted,
            p.nodes[0].qp.counters(),
            p.nodes[1].qp.counters(),
            p.nodes[0].qp.next_deadline(),
        );
        for flow in &mut flows {
            for _ in 0..rng.below(4) {
                flow.post(&mut p, &mut rng);
            }
            for _ in 0..rng.below(4) {
                flow.post_receive(&mut p);
            }
        }
        p.run_for(US * rng.below(400) as u32);
        script.apply(&mut p);
        for flow in &mut flows {
            flow.check(&p, seed);
        }
    }
    p.run_for(Duration::from_secs(1));
    for flow in &mut flows {
        flow.check(&p, seed);
        flow.finish(&p, seed);
    }
    p.assert_settled();
}

/// Runs one seed if `POLYPATH_SEED` names it; otherwise as many as `POLYPATH_SEEDS` says, or
/// `many`.
fn run_seeds(multipath: bool, failures: bool, many: u64) {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse().ok());
    match number("POLYPATH_SEED") {
        Some(seed) => run_seed(seed, multipath, failures),
        None => {
            let many = number("POLYPATH_SEEDS").unwrap_or(many);
            (0..many).for_each(|seed| run_seed(seed, multipath, failures));
        }
    }
}

#[test]
fn plain_rc_keeps_its_promises_over_a_bad_path() {
    run_seeds(false, false, 400);
}

#[test]
fn multipath_rc_keeps_its_promises_over_a_bad_path() {
    run_seeds(true, false, 400);
}

#[test]
fn multipath_rc_keeps_its_promises_while_paths_die_and_return() {
    run_seeds(true, true, 800);
}
