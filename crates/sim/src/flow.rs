//! One direction of a queue pair: requests of one side, and what verbs promise of them.

use std::collections::VecDeque;

use polypath_transport::{Completion, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus};

use crate::host::{KEY, SimHost};
use crate::rng::Rng;

/// Work requests outstanding at most. Buffers are used in turn, so never twice at a time.
pub(crate) const DEPTH: u64 = 12;
/// Bytes of a buffer.
const BUFFER: u64 = 12 << 10;
/// Bytes that the peer's WRITEs go to and READs come from.
const AREA: u64 = 64 << 10;
const SOURCES: u64 = AREA;
const LANDINGS: u64 = SOURCES + DEPTH * BUFFER;
const RECEIVES: u64 = LANDINGS + DEPTH * BUFFER;
const COUNTER: u64 = RECEIVES + DEPTH * BUFFER;
/// Memory of each queue pair on each host.
pub(crate) const MEMORY: u64 = COUNTER + 64;
/// Counters at the start of each host's memory that all queue pairs share.
pub(crate) const SHARED: u64 = 4;

/// What a direction is to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Who requests, 0 or 1.
    pub side: usize,
    /// Queue pair of the requester.
    pub qpn: u32,
    /// Queue pair of the responder.
    pub peer_qpn: u32,
    /// Where the memory of this queue pair begins, on both hosts.
    pub base: u64,
    /// How many requests.
    pub total: u64,
}

enum Expected {
    Nothing,
    Read { at: u64, data: Vec<u8> },
    Original { at: u64, value: u64 },
    Shared { at: u64, counter: usize },
}

struct Outstanding {
    id: u64,
    signaled: bool,
    expected: Expected,
}

struct Message {
    id: u64,
    data: Option<Vec<u8>>,
    len: u32,
    imm: Option<[u8; 4]>,
}

/// Requests of one side of a queue pair, and the model of what they do at the other.
pub struct Flow {
    /// What to do.
    pub plan: Plan,
    /// The peer's area as it must be in the end, and which request each byte is of.
    area: Vec<u8>,
    owner: Vec<u64>,
    writes: VecDeque<(u64, u64, u64)>,
    counter: u64,
    posted: u64,
    outstanding: VecDeque<Outstanding>,
    messages: VecDeque<Message>,
    received: u64,
    receives_posted: u64,
    reads_out: bool,
    /// Originals that came back from each shared counter, in order.
    pub originals: [Vec<u64>; SHARED as usize],
}

impl Flow {
    /// Nothing done yet.
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            area: vec![0; AREA as usize],
            owner: vec![0; AREA as usize],
            writes: VecDeque::new(),
            counter: 0,
            posted: 0,
            outstanding: VecDeque::new(),
            messages: VecDeque::new(),
            received: 0,
            receives_posted: 0,
            reads_out: false,
            originals: Default::default(),
        }
    }

    /// Everything posted has completed and arrived.
    pub fn done(&self) -> bool {
        self.posted == self.plan.total && self.outstanding.is_empty() && self.messages.is_empty()
    }

    /// Requests completed.
    pub fn completed(&self) -> u64 {
        self.posted - self.outstanding.len() as u64
    }

    /// Posts the next request, if there is one and room for it.
    pub fn post(&mut self, host: &mut SimHost, rng: &mut Rng) -> Result<(), String> {
        if self.posted == self.plan.total || self.outstanding.len() as u64 >= DEPTH {
            return Ok(());
        }
        let id = self.posted;
        let base = self.plan.base;
        let slot = (id % DEPTH) * BUFFER;
        let len = match rng.below(5) {
            0 => 0,
            1 | 2 => rng.below(300),
            _ => rng.below(BUFFER),
        };
        let at = rng.below(AREA - len);
        let va = base + at;
        let imm = (id as u32).to_be_bytes();
        let data: Vec<u8> = pattern(len, rng.bits());
        let mut flags = SendFlags::empty();
        let mut landing = None;
        let message =
            |data: Option<&Vec<u8>>, imm| Message { id, data: data.cloned(), len: len as u32, imm };
        let op = match rng.below(10) {
            0 | 1 => {
                self.messages.push_back(message(Some(&data), None));
                SendOp::Send
            }
            2 => {
                self.messages.push_back(message(Some(&data), Some(imm)));
                SendOp::SendImm(imm)
            }
            3 | 4 => {
                self.write(id, at, &data, &mut flags);
                SendOp::Write { va, rkey: KEY }
            }
            5 => {
                self.write(id, at, &data, &mut flags);
                self.messages.push_back(message(None, Some(imm)));
                SendOp::WriteImm { va, rkey: KEY, imm }
            }
            6 | 7 => {
                let to = base + LANDINGS + slot;
                let data = self.area[at as usize..(at + len) as usize].to_vec();
                landing = Some((len, Expected::Read { at: to, data }));
                self.reads_out = true;
                SendOp::Read { va, rkey: KEY }
            }
            8 => {
                let counter = rng.below(SHARED) as usize;
                let to = base + LANDINGS + slot;
                landing = Some((8, Expected::Shared { at: to, counter }));
                SendOp::FetchAdd { va: counter as u64 * 8, rkey: KEY, add: 1 }
            }
            _ => {
                let to = base + LANDINGS + slot;
                landing = Some((8, Expected::Original { at: to, value: self.counter }));
                self.private_atomic(base + COUNTER, rng)
            }
        };
        let (local, len, expected) = match landing {
            Some((len, expected)) => (base + LANDINGS + slot, len, expected),
            None => (base + SOURCES + slot, len, Expected::Nothing),
        };
        let answered = !matches!(expected, Expected::Nothing);
        if !answered {
            let to = local as usize;
            host.io.memory[to..to + data.len()].copy_from_slice(&data);
        }
        // A queue full of requests that never complete would never be free again.
        let stuck = self.outstanding.len() as u64 + 1 == DEPTH
            && !self.outstanding.iter().any(|o| o.signaled);
        let signaled = answered || id + 1 == self.plan.total || rng.chance(600) || stuck;
        flags.set(SendFlags::SIGNALED, signaled);
        let sge = [Sge { addr: local, len: len as u32, lkey: KEY }];
        let inline = !answered && len <= 200 && rng.chance(300);
        flags.set(SendFlags::INLINE, inline);
        let data = if inline { SendData::Inline(&data) } else { SendData::Sges(&sge) };
        let entry = host.qps.get_mut(&self.plan.qpn).ok_or("the queue pair is gone")?;
        let wr = SendWr { wr_id: id, op, flags, data, ud: None };
        entry.qp.post_send(&wr).map_err(|e| format!("post of request {id}: {e}"))?;
        self.outstanding.push_back(Outstanding { id, signaled, expected });
        self.posted += 1;
        Ok(())
    }

    fn write(&mut self, id: u64, at: u64, data: &[u8], flags: &mut SendFlags) {
        let range = at as usize..at as usize + data.len();
        self.area[range.clone()].copy_from_slice(data);
        self.owner[range].fill(id + 1);
        self.writes.push_back((id, at, data.len() as u64));
        if self.reads_out {
            // A READ that is repeated reads again (IBTA 9.7.5.1.5): what overwrites it has to wait.
            *flags |= SendFlags::FENCE;
            self.reads_out = false;
        }
    }

    fn private_atomic(&mut self, va: u64, rng: &mut Rng) -> SendOp {
        if rng.chance(500) {
            let add = rng.below(1000);
            self.counter = self.counter.wrapping_add(add);
            return SendOp::FetchAdd { va, rkey: KEY, add };
        }
        let hit = rng.chance(700);
        let compare = if hit { self.counter } else { !self.counter };
        let swap = rng.bits();
        if hit {
            self.counter = swap;
        }
        SendOp::CompareSwap { va, rkey: KEY, compare, swap }
    }

    /// Posts a receive for this direction's messages at the responder.
    pub fn post_receive(&mut self, host: &mut SimHost) -> Result<(), String> {
        if self.receives_posted - self.received >= DEPTH {
            return Ok(());
        }
        let id = self.receives_posted;
        let addr = self.plan.base + RECEIVES + (id % DEPTH) * BUFFER;
        let sge = Sge { addr, len: BUFFER as u32, lkey: KEY };
        let wr = RecvWr { wr_id: id, sges: [sge].as_slice().into() };
        let entry = host.qps.get_mut(&self.plan.peer_qpn).ok_or("the queue pair is gone")?;
        entry.qp.post_recv(wr).map_err(|e| format!("post of receive {id}: {e}"))?;
        self.receives_posted += 1;
        Ok(())
    }

    /// A send completion of this queue pair.
    pub fn sent(&mut self, host: &SimHost, c: &Completion) -> Result<(), String> {
        if c.status != WcStatus::Success {
            return Err(format!("request {} failed: {:?}", c.wr_id, c.status));
        }
        loop {
            let o = self.outstanding.pop_front().ok_or("a completion too many")?;
            self.check_result(host, &o)?;
            if o.signaled {
                return if o.id == c.wr_id {
                    Ok(())
                } else {
                    Err(format!("request {} completed instead of {}", c.wr_id, o.id))
                };
            }
        }
    }

    fn check_result(&mut self, host: &SimHost, o: &Outstanding) -> Result<(), String> {
        match &o.expected {
            Expected::Nothing => {}
            Expected::Read { at, data } => {
                if host.io.memory[*at as usize..][..data.len()] != data[..] {
                    return Err(format!("READ {} brought something else", o.id));
                }
            }
            Expected::Original { at, value } => {
                let got = word(&host.io.memory, *at);
                if got != *value {
                    return Err(format!("atomic {} returned {got:#x}, not {value:#x}", o.id));
                }
            }
            Expected::Shared { at, counter } => {
                self.originals[*counter].push(word(&host.io.memory, *at));
            }
        }
        Ok(())
    }

    /// A receive completion at the responder.
    pub fn received(&mut self, host: &SimHost, c: &Completion) -> Result<(), String> {
        if c.status != WcStatus::Success {
            return Err(format!("receive {} failed: {:?}", c.wr_id, c.status));
        }
        if c.wr_id != self.received {
            return Err(format!("receive {} completed instead of {}", c.wr_id, self.received));
        }
        let m = self.messages.pop_front().ok_or("a message too many")?;
        if (c.byte_len, c.imm) != (m.len, m.imm) {
            return Err(format!("message {}: length or immediate data is wrong", m.id));
        }
        if let Some(data) = m.data {
            let at = self.plan.base + RECEIVES + (self.received % DEPTH) * BUFFER;
            if host.io.memory[at as usize..][..data.len()] != data[..] {
                return Err(format!("message {} has other contents", m.id));
            }
        }
        self.received += 1;
        // All WRITEs before it are in memory, but for what later ones may have overwritten.
        while let Some(&(id, at, len)) = self.writes.front() {
            if id > m.id {
                break;
            }
            self.writes.pop_front();
            for i in at..at + len {
                let now = host.io.memory[(self.plan.base + i) as usize];
                if self.owner[i as usize] == id + 1 && now != self.area[i as usize] {
                    return Err(format!("message {} was told of before WRITE {id} was done", m.id));
                }
            }
        }
        Ok(())
    }

    /// Everything is done: memory is what it must be.
    pub fn finish(&self, responder: &SimHost) -> Result<(), String> {
        let memory = &responder.io.memory[self.plan.base as usize..];
        if let Some(i) = (0..AREA as usize).find(|i| memory[*i] != self.area[*i]) {
            return Err(format!(
                "byte {i} of the area is not of WRITE {}",
                self.owner[i] as i64 - 1
            ));
        }
        let counter = word(&responder.io.memory, self.plan.base + COUNTER);
        if counter != self.counter {
            return Err(format!("the counter is {counter:#x}, not {:#x}", self.counter));
        }
        if self.originals.iter().any(|list| !list.is_sorted_by(|a, b| a < b)) {
            return Err("atomics of one queue pair were executed out of order".into());
        }
        Ok(())
    }
}

impl core::fmt::Debug for Flow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Flow")
            .field("plan", &self.plan)
            .field("posted", &self.posted)
            .field("outstanding", &self.outstanding.len())
            .field("messages", &self.messages.len())
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

/// The 8 bytes at an address, as an atomic sees them.
pub(crate) fn word(memory: &[u8], at: u64) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&memory[at as usize..][..8]);
    u64::from_ne_bytes(bytes)
}

fn pattern(len: u64, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len as usize + 8);
    while (out.len() as u64) < len {
        out.extend_from_slice(&rng.bits().to_be_bytes());
    }
    out.truncate(len as usize);
    out
}
