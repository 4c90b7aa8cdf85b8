//! One direction of a pair: the work requests of one end, and what they do at the other.
//!
//! The judge watches the responder at work: each piece of data must be the next one of the next
//! request, and each atomic must be the next request. It therefore knows that a request was executed
//! once and in order. It notices a completion that comes too early, and data that is stored twice.

mod drain;
mod executed;
mod post;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polypath_transport::{Access, AtomicOp, Completion, FlushScope, WcOpcode, WcStatus};

use polypath_wire::Psn;

use super::receiver::Receive;
use super::refusal::{NO_ACCESS, Refusal, local_error, refusal};
use super::{Verdict, breach, demand};
use crate::case::{EndPlan, Op, OpKind, PairPlan, Wrong};
use crate::io::{Io, KEY, NO_KEY};
use crate::layout::{AREA, Layout};
use drain::Drain;

/// The largest number of bytes of inline data.
pub(crate) const INLINE_MAX: u32 = 256;

/// The number of bytes by which a request with a wrong range exceeds the region.
const BEYOND: u32 = 8;

/// The state of a posted work request.
#[derive(Debug, Default)]
struct Posted {
    at: Duration,
    signaled: bool,
    /// Whether it waits for the READs and atomics before it.
    fence: bool,
    /// The data that it sends, or that a READ must bring.
    data: Vec<u8>,
    /// The number of bytes of its answer that have come.
    landed: u32,
    /// The operation of an atomic.
    atomic: Option<AtomicOp>,
    /// The value that the atomic found at the responder.
    original: Option<u64>,
    /// The memory that a FLUSH names.
    scope: Option<FlushScope>,
    /// The key that it makes valid or invalid.
    key: u32,
    /// The memory window with which it accesses the peer's memory.
    window: Option<u32>,
    /// Whether it sends no packet and was carried out.
    carried_out: bool,
    done: bool,
    succeeded: bool,
}

/// The work requests of one end.
#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) qpn: u32,
    pub(crate) ops: Vec<Op>,
    pub(crate) layout: Layout,
    mtu: u32,
    /// Whether a completion means that the data has arrived: true for RC and XRC.
    reliable: bool,
    /// Whether requests name a shared receive queue.
    xrc: bool,
    /// The access rights of the responder's queue pair.
    access: Access,
    /// The number of PSNs before each work request, and before the end.
    packets: Vec<u32>,
    first_psn: u32,
    posted: Vec<Posted>,
    outstanding: VecDeque<usize>,
    /// The offsets and lengths of the READs that the application waits for before it overwrites the
    /// memory that they read.
    reads: Vec<(u64, u64)>,
    /// Whether the application overwrites the memory without waiting.
    unfenced: bool,
    /// The contents of the peer's area, counter and receive buffers once everything posted is executed.
    area: Vec<u8>,
    counter: u64,
    inbox: Vec<u8>,
    /// The responder has executed all work requests before this one.
    executed: usize,
    /// The number of bytes of the next work request that the responder has stored.
    progress: u32,
    /// What it has stored of that one before its turn: lengths by offset.
    early: BTreeMap<u32, u32>,
    /// The last WRITE that was stored to its end, and what of it was stored before its turn.
    late: Option<(usize, BTreeMap<u32, u32>)>,
    /// The index of the last work request for which the responder has made a key invalid.
    invalidated: Option<usize>,
    /// Memory windows of the peer that are not valid any more, by rkey.
    gone: BTreeSet<u32>,
    /// The work request that the responder has refused, and how.
    refused: Option<(usize, Refusal)>,
    /// Whether an error has been reported. Only flushes may follow it.
    pub(crate) failed: bool,
    /// The time of the last successful completion.
    pub(crate) last_success: Duration,
    drain: Drain,
}

/// Whether the judge sees nothing of a work request at the responder.
fn is_invisible(op: &Op) -> bool {
    op.kind == OpKind::Read || op.kind.is_local() || (op.kind == OpKind::Write && op.len == 0)
}

impl Direction {
    /// The work requests of end `end` of a pair. The access rights of the other end limit what they may
    /// do.
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
            early: BTreeMap::new(),
            late: None,
            invalidated: None,
            gone: BTreeSet::new(),
            refused: None,
            failed: false,
            last_success: Duration::ZERO,
            drain: Drain::default(),
        }
    }

    /// The time when it wants to post its next work request, or `None` if it has none or no room.
    pub(crate) fn due(&self) -> Option<Duration> {
        let next = self.posted.len();
        // Buffers are used in turn, so the oldest outstanding request limits the room.
        let oldest = self.outstanding.front().copied().unwrap_or(next);
        let room = ((next - oldest) as u64) < self.layout.depth;
        self.ops.get(next).filter(|_| room).map(|op| op.at)
    }

    /// Whether everything has been posted and has completed.
    pub(crate) fn done(&self) -> bool {
        self.posted.len() == self.ops.len() && self.outstanding.is_empty()
    }

    /// The number of work requests that have completed.
    pub(crate) fn completed(&self) -> u64 {
        (self.posted.len() - self.outstanding.len()) as u64
    }

    /// The index of the next work request to post.
    pub(crate) fn next_to_post(&self) -> usize {
        self.posted.len()
    }

    /// Whether the responder is in the middle of a message.
    pub(super) fn is_in_between(&self) -> bool {
        self.progress > 0
    }

    /// The refusal of a work request if it came to the responder now; `None` if the responder would
    /// execute it.
    fn refusal(&self, index: usize) -> Option<Refusal> {
        let posted = self.posted.get(index).filter(|p| !p.succeeded);
        let gone = posted.and_then(|p| p.window).is_some_and(|w| self.gone.contains(&w));
        refusal(&self.ops[index], self.access).or_else(|| gone.then_some(NO_ACCESS))
    }

    /// Notes that a memory window of the peer is not valid any more.
    pub(crate) fn window_gone(&mut self, rkey: u32) {
        self.gone.insert(rkey);
    }

    /// Whether an outstanding work request must not lose this memory window: if it were asked for again
    /// it would be refused, or it has taken its receive already.
    pub(crate) fn relies_on(&self, rkey: u32) -> bool {
        let relies = |i: &usize| !self.ops[*i].kind.may_lose_window();
        self.outstanding.iter().any(|i| relies(i) && self.posted[*i].window == Some(rkey))
    }

    /// The data that a READ of `len` bytes at offset `at` of the pair's memory has to bring, if it is
    /// posted now.
    fn foresee(&self, at: u64, len: u32) -> Vec<u8> {
        // A READ of no bytes may lie at the end of the area.
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

    /// Notes that a message that is posted now will lie in its receive buffer.
    fn fill_inbox(&mut self, number: u64, data: &[u8]) {
        let at = (self.layout.receive(number) - self.layout.receive(0)) as usize;
        if let Some(buffer) = self.inbox.get_mut(at..at + data.len()) {
            buffer.copy_from_slice(data);
        }
    }

    /// The index of the next posted work request that the judge can see at the responder.
    fn next(&self) -> Option<usize> {
        (self.executed..self.posted.len()).find(|&i| {
            let op = &self.ops[i];
            op.wrong != Some(Wrong::Post) && (!is_invisible(op) || self.refusal(i).is_some())
        })
    }

    fn describe(&self, index: usize) -> String {
        format!("request {index} ({})", self.ops[index])
    }

    /// The receive for work request `index`: the time when it is posted, and the receive; `None` if it
    /// gets none.
    pub(crate) fn receive(&self, index: usize) -> Option<(Duration, Receive)> {
        let op = &self.ops[index];
        let room = self.layout.buffer as u32;
        let len = if self.reliable { op.receive_len(room)? } else { room };
        let number = index as u64;
        let lkey = if op.wrong == Some(Wrong::ReceiveKey) { NO_KEY } else { KEY };
        let addr = self.layout.receive(number);
        Some((op.receive_at, Receive::new(number, addr, len, op.split, lkey)))
    }

    /// Notes a send completion.
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
            // Unsignaled requests before the reported one have succeeded without a completion.
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

    /// Checks what the completion of work request `i` says.
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
        // For an error, verbs define only `wr_id`, `status`, `vendor_err` and `qp_num`
        // (`ibv_poll_cq(3)`).
        let told = c.opcode == opcode
            && (!op.kind.brings_data() || c.byte_len == len)
            && c.vendor_err == 0;
        demand(!success || told, "a completion tells the truth", || format!("{c:?}: {op}"))?;
        self.failed |= !success;
        Ok(())
    }

    /// Checks that work request `i`, which is reported as done, was executed and that its answer has
    /// arrived.
    fn check_done(&self, i: usize, io: &Io) -> Verdict {
        let op = &self.ops[i];
        let refused = self.reliable && self.refusal(i).is_some();
        let wrong = local_error(op).is_some() || refused;
        demand(!wrong, "a wrong request does not succeed", || self.describe(i))?;
        if !self.reliable {
            return Ok(());
        }
        let carried_out = !op.kind.is_local() || self.posted[i].carried_out;
        demand(carried_out, "a local operation is carried out before it completes", || {
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

    /// The status in which the request `wr_id` must end because something is wrong with it, and whether
    /// the peer refused it.
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

    /// Checks at the end, if nothing failed, that the peer's area and counter have the right contents.
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

    /// Whether the work request takes a receive at the peer.
    pub(crate) fn takes_receive(&self, wr_id: u64) -> bool {
        self.ops[wr_id as usize].kind.takes_receive()
    }

    /// The time since when a work request may have been waiting: when it was posted.
    pub(crate) fn waiting_since(&self, wr_id: u64) -> Duration {
        self.posted[wr_id as usize].at
    }

    /// The index of the posted work request that the PSN belongs to.
    pub(crate) fn request_of(&self, psn: Psn) -> Option<usize> {
        let at = u32::try_from(psn.diff(Psn::new(self.first_psn))).ok()?;
        let i = self.packets.partition_point(|first| *first <= at).checked_sub(1)?;
        (i < self.posted.len()).then_some(i)
    }

    /// The PSNs of its requests: the first, one past those that have completed, and one past those that
    /// were posted.
    pub(crate) fn sequence(&self) -> [Psn; 3] {
        let first = Psn::new(self.first_psn);
        let done = self.outstanding.front().copied().unwrap_or(self.posted.len());
        [first, first.add(self.packets[done]), first.add(self.packets[self.posted.len()])]
    }

    /// The payload of a posted work request.
    pub(crate) fn data(&self, index: usize) -> &[u8] {
        self.posted.get(index).map_or(&[], |p| &p.data)
    }

    /// A description of what is still to be done, for messages.
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

/// The immediate data of a work request: its index.
pub(crate) fn imm(index: usize) -> [u8; 4] {
    (index as u32).to_be_bytes()
}
