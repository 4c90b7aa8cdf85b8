//! One direction of a reliable connection: the requests of one end, and what they do at the other.
//!
//! What the responder does is watched as it does it: each piece of data must be the next one of the next
//! request, each atomic the next request. So a request is known to have been executed, once and in
//! order, and a completion that comes before that is caught, as is data that is stored twice.

mod drain;
mod executed;
mod post;

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use polypath_transport::{Access, AtomicOp, Completion, FlushScope, WcOpcode, WcStatus};

use polypath_wire::Psn;

use super::receiver::Receive;
use super::refusal::{NO_ACCESS, Refusal, local_error, refusal};
use super::{Verdict, breach, demand};
use crate::case::{EndPlan, Op, OpKind, PairPlan, Wrong};
use crate::io::{Io, KEY, NO_KEY};
use crate::layout::{AREA, Layout};
use drain::Drain;

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
    /// The key that it makes valid or invalid.
    key: u32,
    /// The memory window by which it gets at the peer's memory.
    window: Option<u32>,
    /// Nothing was sent for it, and it is carried out.
    carried_out: bool,
    done: bool,
    succeeded: bool,
}

/// Requests of one end.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) qpn: u32,
    pub(crate) ops: Vec<Op>,
    pub(crate) layout: Layout,
    mtu: u32,
    /// What was sent has arrived when it completes.
    reliable: bool,
    /// Requests name a shared receive queue.
    xrc: bool,
    /// What the responder's queue pair allows.
    access: Access,
    /// Sequence numbers before each work request.
    packets: Vec<u32>,
    first_psn: u32,
    posted: Vec<Posted>,
    outstanding: VecDeque<usize>,
    /// READs of which the application waits for the answer before it overwrites what they read.
    reads: Vec<(u64, u64)>,
    /// It does not wait.
    unfenced: bool,
    /// The peer's area, counter and receive buffers as they will be when everything posted is executed.
    area: Vec<u8>,
    counter: u64,
    inbox: Vec<u8>,
    /// The responder has executed all before this, and so many bytes of it.
    executed: usize,
    progress: u32,
    /// The responder has made the key of this one invalid.
    invalidated: Option<usize>,
    /// Memory windows of the peer that are not valid any more.
    gone: BTreeSet<u32>,
    /// The responder has refused this one.
    refused: Option<(usize, Refusal)>,
    /// An error has been reported: only flushes follow.
    pub(crate) failed: bool,
    pub(crate) last_success: Duration,
    drain: Drain,
}

/// A kind of work request that leaves no trace at the responder.
fn is_invisible(op: &Op) -> bool {
    op.kind == OpKind::Read || op.kind.is_local() || (op.kind == OpKind::Write && op.len == 0)
}

impl Direction {
    /// The requests of `end`, of which `peer` allows what it does.
    pub(crate) fn new(plan: &PairPlan, end: usize, layout: Layout) -> Self {
        let EndPlan { qpn, ref ops, psn: first_psn, .. } = plan.ends[end];
        let (access, mtu, ops) = (plan.ends[1 - end].access, plan.mtu, ops.clone());
        let mut next = 0;
        let mut packets = Vec::with_capacity(ops.len() + 1);
        for op in &ops {
            packets.push(next);
            let alone = op.kind.is_atomic() || op.kind == OpKind::Flush;
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
            reliable: plan.is_reliable(),
            xrc: plan.service.is_xrc(),
            access,
            packets,
            first_psn,
            posted: Vec::new(),
            outstanding: VecDeque::new(),
            reads: Vec::new(),
            unfenced: plan.unfenced,
            area: vec![0; AREA as usize],
            counter: 0,
            inbox: vec![0; if plan.shares_receives(1 - end) { 0 } else { layout.inbox_len() }],
            executed: 0,
            progress: 0,
            invalidated: None,
            gone: BTreeSet::new(),
            refused: None,
            failed: false,
            last_success: Duration::ZERO,
            drain: Drain::default(),
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

    /// The responder is in the middle of a request.
    pub(super) fn is_in_between(&self) -> bool {
        self.progress > 0
    }

    /// How the responder refuses a work request, if it came to it now.
    fn refusal(&self, index: usize) -> Option<Refusal> {
        let posted = self.posted.get(index).filter(|p| !p.succeeded);
        let gone = posted.and_then(|p| p.window).is_some_and(|w| self.gone.contains(&w));
        refusal(&self.ops[index], self.access).or_else(|| gone.then_some(NO_ACCESS))
    }

    /// A memory window of the peer's is not valid any more.
    pub(crate) fn window_gone(&mut self, rkey: u32) {
        self.gone.insert(rkey);
    }

    /// Something is outstanding that must not lose its memory window: what is asked for once more would be
    /// refused, or the receive is taken already.
    pub(crate) fn relies_on(&self, rkey: u32) -> bool {
        let relies = |i: &usize| !self.ops[*i].kind.may_lose_window();
        self.outstanding.iter().any(|i| relies(i) && self.posted[*i].window == Some(rkey))
    }

    /// What a READ of these bytes of the pair's memory has to bring, if it is posted now.
    fn foresee(&self, at: u64, len: u32) -> Vec<u8> {
        // A READ of nothing may lie at the end of the area.
        if len == 0 {
            return Vec::new();
        }
        let counter = self.counter.to_ne_bytes();
        let inbox = self.layout.receive(0) - self.layout.base;
        let (memory, start) = match at {
            _ if at < AREA => (&self.area[..], 0),
            _ if at < inbox + self.layout.inbox_len() as u64 => (&self.inbox[..], inbox),
            _ => (&counter[..], self.layout.counter() - self.layout.base),
        };
        memory[(at - start) as usize..][..len as usize].to_vec()
    }

    /// A message that is posted now will lie in its receive buffer.
    fn fill_inbox(&mut self, number: u64, data: &[u8]) {
        let at = (self.layout.receive(number) - self.layout.receive(0)) as usize;
        if let Some(buffer) = self.inbox.get_mut(at..at + data.len()) {
            buffer.copy_from_slice(data);
        }
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

    /// The receive for work request `index`: when it is posted, and what it is; `None`: it takes none.
    pub(crate) fn receive(&self, index: usize) -> Option<(Duration, Receive)> {
        let op = &self.ops[index];
        let room = self.layout.buffer as u32;
        let len = if self.reliable { op.receive_len(room)? } else { room };
        let number = index as u64;
        let lkey = if op.wrong == Some(Wrong::ReceiveKey) { NO_KEY } else { KEY };
        let addr = self.layout.receive(number);
        Some((op.receive_at, Receive::new(number, addr, len, op.split, lkey)))
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
            if here && success {
                self.works_on(i)?;
            }
            if !here || success {
                self.posted[i].succeeded = true;
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
            OpKind::Send | OpKind::SendImm | OpKind::SendInv => WcOpcode::Send,
            OpKind::Write | OpKind::WriteImm => WcOpcode::RdmaWrite,
            OpKind::AtomicWrite => WcOpcode::AtomicWrite,
            OpKind::Flush => WcOpcode::Flush,
            OpKind::Read => WcOpcode::RdmaRead,
            OpKind::FetchAdd | OpKind::SharedAdd => WcOpcode::FetchAdd,
            OpKind::CompareSwap => WcOpcode::CompSwap,
            OpKind::LocalInv => WcOpcode::LocalInv,
            OpKind::Bind => WcOpcode::BindMw,
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
            (OpKind::Read, _) => {
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
        if let Some((_, refusal)) = self.refused.filter(|(refused, _)| *refused == i) {
            return (Some(refusal.status), true);
        }
        let refusal = self.refusal(i).filter(|_| self.reliable);
        (refusal.map(|r| r.status), false)
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

    /// Which posted work request the sequence number belongs to.
    pub(crate) fn request_of(&self, psn: Psn) -> Option<usize> {
        let at = u32::try_from(psn.diff(Psn::new(self.first_psn))).ok()?;
        let i = self.packets.partition_point(|first| *first <= at).checked_sub(1)?;
        (i < self.posted.len()).then_some(i)
    }

    /// Sequence numbers of its requests: the first, one past those that have completed, and one past those
    /// that were posted.
    pub(crate) fn sequence(&self) -> [Psn; 3] {
        let first = Psn::new(self.first_psn);
        let done = self.outstanding.front().copied().unwrap_or(self.posted.len());
        [first, first.add(self.packets[done]), first.add(self.packets[self.posted.len()])]
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
