//! One direction of a reliable connection: the requests of one end, and what they do at the other.
//!
//! What the responder does is watched as it does it: each piece of data must be the next one of the next
//! request, each atomic the next request. So a request is known to have been executed, once and in
//! order, and a completion that comes before that is caught, as is data that is stored twice.

mod executed;

use core::time::Duration;
use std::collections::VecDeque;

use polypath_transport::{
    Access, AtomicOp, Completion, FlushScope, Placement, PostError, QpType, SendData, SendFlags,
    SendOp, SendWr, UdDestination, WcOpcode, WcStatus,
};

use super::receiver::{Receive, pieces};
use super::refusal::{Refusal, local_error, refusal};
use super::{Verdict, breach, demand, pattern};
use crate::case::{EndPlan, Kind, Op, PairPlan, Wrong};
use crate::host::SimHost;
use crate::io::{Io, KEY, NO_KEY, READ_KEY, WRITE_KEY};
use crate::layout::{AREA, Layout};

/// Most bytes of inline data.
pub(crate) const INLINE_MAX: u32 = 256;

/// Bytes that a request with a wrong range asks for beyond the end of the region.
const BEYOND: u32 = 8;

/// What is known of a posted work request.
#[derive(Debug, Default)]
struct Posted {
    at: Duration,
    signaled: bool,
    /// Waits for READs and atomics before it.
    fence: bool,
    /// What it sends, or what a READ must bring.
    data: Vec<u8>,
    /// Bytes of its answer that have come.
    landed: u32,
    /// An atomic, and what it returned at the responder.
    atomic: Option<AtomicOp>,
    original: Option<u64>,
    /// What a FLUSH is of.
    scope: Option<FlushScope>,
    /// Nothing was sent for it, and it is carried out.
    carried_out: bool,
    done: bool,
}

/// Requests of one end.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) qpn: u32,
    pub(crate) ops: Vec<Op>,
    pub(crate) layout: Layout,
    mtu: u32,
    /// What was sent has arrived when it completes (RC).
    reliable: bool,
    /// What the responder's queue pair allows.
    access: Access,
    /// Sequence numbers before each work request.
    packets: Vec<u32>,
    first_psn: u32,
    posted: Vec<Posted>,
    outstanding: VecDeque<usize>,
    /// READs whose answers a WRITE must not overtake.
    reads: Vec<(u64, u64)>,
    /// The peer's area and counter as they will be when everything posted is executed.
    area: Vec<u8>,
    counter: u64,
    /// The responder has executed all before this, and so many bytes of it.
    executed: usize,
    progress: u32,
    /// The responder has made the key of this one invalid.
    invalidated: Option<usize>,
    /// The responder has refused this one.
    pub(crate) refused: Option<usize>,
    /// An error has been reported: only flushes follow.
    pub(crate) failed: bool,
    pub(crate) last_success: Duration,
}

/// A kind of work request that leaves no trace at the responder.
fn is_invisible(op: &Op) -> bool {
    op.kind == Kind::Read || op.kind.is_local() || (op.kind == Kind::Write && op.len == 0)
}

impl Flow {
    /// The requests of `end`, of which `peer` allows what it does.
    pub(crate) fn new(plan: &PairPlan, end: usize, layout: Layout) -> Self {
        let EndPlan { qpn, ref ops, psn: first_psn, .. } = plan.ends[end];
        let (access, mtu, ops) = (plan.ends[1 - end].access, plan.mtu, ops.clone());
        let mut next = 0;
        let mut packets = Vec::with_capacity(ops.len() + 1);
        for op in &ops {
            packets.push(next);
            let alone = op.kind.is_atomic() || op.kind == Kind::Flush;
            let n = if alone { 1 } else { op.len.div_ceil(mtu).max(1) };
            let none = op.wrong == Some(Wrong::Post) || op.kind.is_local();
            next += if none { 0 } else { n };
        }
        packets.push(next);
        Self {
            qpn,
            ops,
            layout,
            mtu,
            reliable: plan.service == QpType::Rc,
            access,
            packets,
            first_psn,
            posted: Vec::new(),
            outstanding: VecDeque::new(),
            reads: Vec::new(),
            area: vec![0; AREA as usize],
            counter: 0,
            executed: 0,
            progress: 0,
            invalidated: None,
            refused: None,
            failed: false,
            last_success: Duration::ZERO,
        }
    }

    /// When it wants to post, if there is room.
    pub(crate) fn due(&self) -> Option<Duration> {
        let next = self.posted.len();
        // Buffers are used in turn.
        let oldest = self.outstanding.front().copied().unwrap_or(next);
        let room = ((next - oldest) as u64) < self.layout.depth;
        self.ops.get(next).filter(|_| room).map(|op| op.at)
    }

    /// Everything has been posted and completed.
    pub(crate) fn done(&self) -> bool {
        self.posted.len() == self.ops.len() && self.outstanding.is_empty()
    }

    /// Work requests completed.
    pub(crate) fn completed(&self) -> u64 {
        (self.posted.len() - self.outstanding.len()) as u64
    }

    pub(crate) fn next_to_post(&self) -> usize {
        self.posted.len()
    }

    fn refusal(&self, index: usize) -> Option<Refusal> {
        refusal(&self.ops[index], self.access)
    }

    /// The next work request that shows at the responder, of those posted.
    fn next(&self) -> Option<usize> {
        (self.executed..self.posted.len()).find(|&i| {
            let op = &self.ops[i];
            op.wrong != Some(Wrong::Post) && (!is_invisible(op) || self.refusal(i).is_some())
        })
    }

    fn describe(&self, index: usize) -> String {
        format!("request {index} ({})", self.ops[index])
    }

    /// Posts the next work request.
    pub(crate) fn post(
        &mut self,
        now: Duration,
        host: &mut SimHost,
        ud: Option<UdDestination>,
    ) -> Verdict {
        let index = self.posted.len();
        let op = self.ops[index].clone();
        let op = &op;
        if op.wrong == Some(Wrong::Post) {
            self.posted.push(Posted { done: true, ..Posted::default() });
            return self.post_nonsense(index, host, ud);
        }
        let layout = self.layout;
        let at = u64::from(op.offset);
        let va = match op.wrong {
            Some(Wrong::Range) => {
                host.io.memory.len() as u64 - u64::from(op.len) + u64::from(BEYOND)
            }
            _ if op.kind == Kind::SharedAdd => at * 8,
            _ if op.kind.is_atomic() => layout.counter(),
            _ => layout.base + at,
        };
        let rkey = match op.wrong {
            Some(Wrong::Key) => NO_KEY,
            _ if op.kind == Kind::SendInv || op.kind.is_local() => {
                layout.key(op.kind, index as u64)
            }
            Some(Wrong::Rights) if op.kind == Kind::Read => WRITE_KEY,
            Some(Wrong::Rights) => READ_KEY,
            _ if op.kind == Kind::Flush => KEY,
            _ if op.len == 0 && op.fill & 2 == 0 => NO_KEY, // Is not looked at.
            _ if op.kind.is_write() && op.fill & 4 == 0 => WRITE_KEY,
            _ if op.kind == Kind::Read && op.fill & 4 == 0 => READ_KEY,
            _ => KEY,
        };
        let mut posted = Posted { at: now, fence: op.fence, ..Posted::default() };
        let imm = imm(index);
        let range = at as usize..(at + u64::from(op.len)) as usize;
        let operation = match op.kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm => SendOp::SendImm(imm),
            Kind::SendInv => SendOp::SendInv { rkey },
            Kind::LocalInv => SendOp::LocalInv { rkey },
            Kind::Bind => SendOp::BindMw { mw: 1, rkey },
            Kind::Write => SendOp::Write { va, rkey },
            Kind::WriteImm => SendOp::WriteImm { va, rkey, imm },
            Kind::AtomicWrite => SendOp::AtomicWrite { va, rkey },
            Kind::Flush => {
                // Only a range can be wrong.
                let whole = op.fill & 8 == 0 && op.wrong != Some(Wrong::Range);
                let range = FlushScope::Range { va, len: op.len };
                let scope = if whole { FlushScope::Region } else { range };
                SendOp::Flush { rkey, scope, placement: Placement::GLOBAL }
            }
            Kind::Read => SendOp::Read { va, rkey },
            Kind::FetchAdd => SendOp::FetchAdd { va, rkey, add: op.fill },
            Kind::SharedAdd => SendOp::FetchAdd { va, rkey, add: 1 },
            Kind::CompareSwap => {
                let hit = !op.fill.is_multiple_of(3);
                let compare = if hit { self.counter } else { !self.counter };
                SendOp::CompareSwap { va, rkey, compare, swap: op.fill }
            }
        };
        posted.atomic = match operation {
            SendOp::FetchAdd { add, .. } => Some(AtomicOp::FetchAdd { add }),
            SendOp::CompareSwap { compare, swap, .. } => {
                Some(AtomicOp::CompareSwap { compare, swap })
            }
            _ => None,
        };
        if let SendOp::Flush { scope, .. } = operation {
            posted.scope = Some(scope);
        }
        if op.fence {
            self.reads.clear();
        }
        match op.kind {
            Kind::Read => {
                posted.data = self.area[range.clone()].to_vec();
                self.reads.push((at, u64::from(op.len)));
            }
            Kind::FetchAdd => self.counter = self.counter.wrapping_add(op.fill),
            Kind::CompareSwap if !op.fill.is_multiple_of(3) => self.counter = op.fill,
            Kind::CompareSwap | Kind::SharedAdd | Kind::Flush | Kind::LocalInv | Kind::Bind => {}
            _ => posted.data = pattern(op.len, op.fill),
        }
        if op.kind.is_write() {
            // A READ that is repeated reads again (IBTA 9.7.5.1.5): what overwrites it has to wait.
            let end = at + u64::from(op.len);
            if self.reads.iter().any(|(a, n)| *a < end && at < a + n) {
                posted.fence = true;
                self.reads.clear();
            }
            self.area[range].copy_from_slice(&posted.data);
        }
        // A queue full of requests that never complete would never be free again.
        let oldest = self.outstanding.front().copied().unwrap_or(index);
        let stuck = (index - oldest) as u64 + 4 >= layout.depth
            && !self.outstanding.iter().any(|i| self.posted[*i].signaled);
        let last = self.ops[index + 1..].iter().all(|op| op.wrong == Some(Wrong::Post));
        posted.signaled = op.signaled || op.kind.brings_data() || stuck || last;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, posted.signaled);
        flags.set(SendFlags::FENCE, posted.fence);
        flags.set(SendFlags::SOLICITED, op.solicited);
        let takes = op.len <= INLINE_MAX && !op.kind.brings_data() && !op.kind.is_local();
        let inline = op.inline && takes;
        let inline = inline && op.wrong != Some(Wrong::LocalKey);
        flags.set(SendFlags::INLINE, inline);
        let number = index as u64;
        let (local, len) = match op.kind {
            Kind::Read => (layout.landing(number), op.len),
            _ if op.kind.is_atomic() => (layout.landing(number), 8),
            Kind::Flush | Kind::LocalInv | Kind::Bind => (layout.source(number), 0),
            _ => (layout.source(number), op.len),
        };
        if !op.kind.brings_data() && !inline {
            host.io.memory[local as usize..][..posted.data.len()].copy_from_slice(&posted.data);
        }
        let lkey = if op.wrong == Some(Wrong::LocalKey) { NO_KEY } else { KEY };
        let list = pieces(local, len, lkey, op.split);
        let data = if inline { SendData::Inline(&posted.data) } else { SendData::Sges(&list) };
        let wr = SendWr { wr_id: number, op: operation, flags, data, ud };
        let entry = host.qps.get_mut(&self.qpn);
        let result = entry.map(|e| e.qp.post_send(&wr));
        demand(result == Some(Ok(())), "a good work request is taken", || {
            format!("{}: {result:?}", self.describe(index))
        })?;
        self.outstanding.push_back(index);
        self.posted.push(posted);
        Ok(())
    }

    /// Posts something that is no work request: it must be refused, and nothing come of it.
    fn post_nonsense(
        &self,
        index: usize,
        host: &mut SimHost,
        ud: Option<UdDestination>,
    ) -> Verdict {
        let op = &self.ops[index];
        let long = vec![0; INLINE_MAX as usize + 1];
        let sge = polypath_transport::Sge { addr: self.layout.base, len: 8, lkey: KEY };
        let many = [sge; 3];
        let (va, rkey) = (self.layout.base, KEY);
        let (operation, data) = match op.fill % 4 {
            0 => (SendOp::Read { va, rkey }, SendData::Inline(&long[..8])),
            1 => (SendOp::Send, SendData::Inline(&long)),
            2 => (SendOp::FetchAdd { va: va + 4, rkey, add: 1 }, SendData::Sges(&many[..1])),
            _ => (SendOp::Send, SendData::Sges(&many)),
        };
        let wr =
            SendWr { wr_id: index as u64, op: operation, flags: SendFlags::SIGNALED, data, ud };
        let result = host.qps.get_mut(&self.qpn).map(|e| e.qp.post_send(&wr));
        demand(
            matches!(result, Some(Err(PostError::Invalid(_)))),
            "nonsense is refused when posted",
            || format!("{}: {result:?}", self.describe(index)),
        )
    }

    /// The receive for work request `index`: when it is posted, and what it is; `None`: it takes none.
    pub(crate) fn receive(&self, index: usize) -> Option<(Duration, Receive)> {
        let op = &self.ops[index];
        let room = self.layout.buffer as u32;
        let len = if self.reliable { op.receive_len(room)? } else { room };
        let number = index as u64;
        let wrong = op.wrong == Some(Wrong::ReceiveKey);
        let addr = self.layout.receive(number);
        Some((op.receive_at, Receive::new(number, addr, len, op.split, wrong)))
    }

    /// A send completion.
    pub(crate) fn sent(&mut self, now: Duration, io: &Io, c: &Completion) -> Verdict {
        let success = c.status == WcStatus::Success;
        demand(
            !(self.failed && c.status != WcStatus::WrFlushErr),
            "flushes follow an error",
            || format!("{c:?}"),
        )?;
        loop {
            let Some(i) = self.outstanding.pop_front() else {
                return breach("each request completes once", format!("{c:?} is one too many"));
            };
            let here = i as u64 == c.wr_id;
            let unsignaled = !self.posted[i].signaled;
            // Those before the one reported have succeeded in silence.
            if !here && (!unsignaled || self.failed) {
                return breach("completions come in order", format!("{c:?} instead of {i}"));
            }
            if here && success && unsignaled {
                return breach("unsignaled requests complete in silence", format!("{c:?}"));
            }
            self.posted[i].done = true;
            if !here || success {
                self.check_done(i, io)?;
                self.last_success = now;
            }
            if here {
                return self.check_told(i, c);
            }
        }
    }

    fn check_told(&mut self, i: usize, c: &Completion) -> Verdict {
        let op = &self.ops[i];
        let opcode = match op.kind {
            Kind::Send | Kind::SendImm | Kind::SendInv => WcOpcode::Send,
            Kind::Write | Kind::WriteImm => WcOpcode::RdmaWrite,
            Kind::AtomicWrite => WcOpcode::AtomicWrite,
            Kind::Flush => WcOpcode::Flush,
            Kind::Read => WcOpcode::RdmaRead,
            Kind::FetchAdd | Kind::SharedAdd => WcOpcode::FetchAdd,
            Kind::CompareSwap => WcOpcode::CompSwap,
            Kind::LocalInv => WcOpcode::LocalInv,
            Kind::Bind => WcOpcode::BindMw,
        };
        let success = c.status == WcStatus::Success;
        let len = if op.kind.is_atomic() { 8 } else { op.len };
        // With an error, verbs define only the number, the status and the queue pair.
        let told = c.opcode == opcode
            && (!op.kind.brings_data() || c.byte_len == len)
            && c.vendor_err == 0;
        demand(!success || told, "a completion tells the truth", || format!("{c:?}: {op}"))?;
        self.failed |= !success;
        Ok(())
    }

    /// Work request `i` is reported as done: it was executed, and its answer is here.
    fn check_done(&self, i: usize, io: &Io) -> Verdict {
        let op = &self.ops[i];
        let refused = self.reliable && self.refusal(i).is_some();
        let wrong = local_error(op).is_some() || refused;
        demand(!wrong, "what is wrong does not succeed", || self.describe(i))?;
        if !self.reliable {
            return Ok(());
        }
        let carried_out = !op.kind.is_local() || self.posted[i].carried_out;
        demand(carried_out, "what sends nothing is carried out before it completes", || {
            self.describe(i)
        })?;
        demand(
            self.next().is_none_or(|next| i < next),
            "a request is executed before it completes",
            || self.describe(i),
        )?;
        let at = self.layout.landing(i as u64);
        match (op.kind, self.posted[i].original) {
            (Kind::Read, _) => {
                let data = &self.posted[i].data;
                let same = io.memory[at as usize..][..data.len()] == data[..];
                demand(same, "a READ brings what was there", || self.describe(i))
            }
            (kind, original) if kind.is_atomic() => {
                let got = io.word(at);
                demand(Some(got) == original, "an atomic returns what was there", || {
                    format!("{}: {got:#x}, not {original:?}", self.describe(i))
                })
            }
            _ => Ok(()),
        }
    }

    /// How the request `wr_id` must end because of what is wrong with it; whether the peer refused it.
    pub(crate) fn error_of(&self, wr_id: u64) -> (Option<WcStatus>, bool) {
        let i = wr_id as usize;
        if let Some(status) = local_error(&self.ops[i]) {
            return (Some(status), false);
        }
        let refusal = self.refusal(i).filter(|_| self.reliable);
        (refusal.map(|r| r.status), self.refused == Some(i))
    }

    /// Everything is done and nothing failed: the peer's area and counter are what they must be.
    pub(crate) fn finish(&self, peer: &Io) -> Verdict {
        if self.failed || !self.reliable {
            return Ok(());
        }
        let memory = &peer.memory[self.layout.base as usize..];
        let wrong = (0..AREA as usize).find(|i| memory[*i] != self.area[*i]);
        demand(wrong.is_none(), "memory ends as if all had been done in order", || {
            format!("{:#x}: byte {wrong:?} of the area", self.qpn)
        })?;
        let counter = peer.word(self.layout.counter());
        demand(counter == self.counter, "counters end as they must", || {
            format!("{:#x}: {counter:#x}, not {:#x}", self.qpn, self.counter)
        })
    }

    pub(crate) fn takes_receive(&self, wr_id: u64) -> bool {
        self.ops[wr_id as usize].kind.takes_receive()
    }

    /// Since when a work request has been waiting at least.
    pub(crate) fn waiting_since(&self, wr_id: u64) -> Duration {
        self.posted[wr_id as usize].at
    }

    /// The payload of a posted work request.
    pub(crate) fn data(&self, index: usize) -> &[u8] {
        self.posted.get(index).map_or(&[], |p| &p.data)
    }

    /// What stands still, in words.
    pub(crate) fn standing(&self) -> String {
        format!(
            "{:#x}: {} of {} posted, waiting for {:?}, the peer has executed {} and {} bytes",
            self.qpn,
            self.posted.len(),
            self.ops.len(),
            self.outstanding,
            self.executed,
            self.progress
        )
    }
}

/// The immediate data of a work request: its number.
pub(crate) fn imm(index: usize) -> [u8; 4] {
    (index as u32).to_be_bytes()
}
