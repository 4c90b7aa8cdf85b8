//! Posting work requests.

use core::time::Duration;

use polypath_transport::{
    AtomicOp, FlushScope, Placement, PostError, SendData, SendFlags, SendOp, SendWr, UdDestination,
};

use super::{BEYOND, Direction, INLINE_MAX, Posted, imm};
use crate::case::{Op, OpKind, Wrong};
use crate::host::SimHost;
use crate::io::{KEY, NO_KEY, PD, READ_KEY, RELAXED_KEY, WRITE_KEY, key_in, pd_of};
use crate::judge::receiver::pieces;
use crate::judge::window::Keys;
use crate::judge::{Verdict, demand, pattern};

impl Direction {
    /// Posts the next work request, which uses the memory windows in `keys`.
    pub(crate) fn post(
        &mut self,
        now: Duration,
        host: &mut SimHost,
        ud: Option<UdDestination>,
        keys: Keys,
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
            _ if op.kind == OpKind::SharedAdd => at * 8,
            _ if op.kind.is_atomic() => layout.counter(),
            _ => layout.base + at,
        };
        let key = match op.wrong {
            Some(Wrong::Key) => keys.wrong(),
            _ => keys.victim.unwrap_or_else(|| layout.key(op.kind, index as u64)),
        };
        let makes = op.kind == OpKind::SendInv || op.kind.is_local();
        let rkey = if makes { key } else { self.memory_key(op, &keys) };
        let window = keys.memory;
        let mut posted = Posted { at: now, fence: op.fence, key, window, ..Posted::default() };
        let imm = imm(index);
        let range = at as usize..(at + u64::from(op.len)) as usize;
        let operation = match op.kind {
            OpKind::Send => SendOp::Send,
            OpKind::SendImm => SendOp::SendImm(imm),
            OpKind::SendInv => SendOp::SendInv { rkey },
            OpKind::LocalInv => SendOp::LocalInv { rkey },
            OpKind::Bind => SendOp::BindMw { mw: 1, rkey },
            OpKind::Write => SendOp::Write { va, rkey },
            OpKind::WriteImm => SendOp::WriteImm { va, rkey, imm },
            OpKind::AtomicWrite => SendOp::AtomicWrite { va, rkey },
            OpKind::Flush => {
                // The wrong range needs a scope that is a range.
                let whole = op.fill & 8 == 0 && op.wrong != Some(Wrong::Range);
                let range = FlushScope::Range { va, len: op.len };
                let scope = if whole { FlushScope::Region } else { range };
                SendOp::Flush { rkey, scope, placement: Placement::GLOBAL }
            }
            OpKind::Read => SendOp::Read { va, rkey },
            OpKind::FetchAdd => SendOp::FetchAdd { va, rkey, add: op.fill },
            OpKind::SharedAdd => SendOp::FetchAdd { va, rkey, add: 1 },
            OpKind::CompareSwap => {
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
            OpKind::Read => {
                posted.data = self.foresee(at, op.len);
                self.reads.push((at, u64::from(op.len)));
            }
            OpKind::FetchAdd => self.counter = self.counter.wrapping_add(op.fill),
            OpKind::CompareSwap if !op.fill.is_multiple_of(3) => self.counter = op.fill,
            OpKind::CompareSwap
            | OpKind::SharedAdd
            | OpKind::Flush
            | OpKind::LocalInv
            | OpKind::Bind => {}
            _ => posted.data = pattern(op.len, op.fill),
        }
        if op.kind.is_write() {
            // The IBTA allows that a repeated READ brings what was written after it was posted
            // (9.7.5.1.5), so a careful program waits. Polypath promises more.
            let end = at + u64::from(op.len);
            if !self.unfenced && self.reads.iter().any(|(a, n)| *a < end && at < a + n) {
                posted.fence = true;
                self.reads.clear();
            }
            self.area[range].copy_from_slice(&posted.data);
        }
        if op.kind.is_send() {
            self.fill_inbox(index as u64, &posted.data);
        }
        // A SEND that makes a window invalid waits as well if an outstanding request relies on the
        // window.
        posted.fence |= op.kind == OpKind::SendInv && self.relies_on(key);
        // A queue that is full of unsignaled requests would never have room again.
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
            OpKind::Read => (layout.landing(number), op.len),
            _ if op.kind.is_atomic() => (layout.landing(number), 8),
            OpKind::Flush | OpKind::LocalInv | OpKind::Bind => (layout.source(number), 0),
            _ => (layout.source(number), op.len),
        };
        if !op.kind.brings_data() && !inline {
            host.io.memory[local as usize..][..posted.data.len()].copy_from_slice(&posted.data);
        }
        let lkey = if op.wrong == Some(Wrong::LocalKey) { NO_KEY } else { KEY };
        let list = pieces(local, len, lkey, op.split);
        let data = if inline { SendData::Inline(&posted.data) } else { SendData::Sges(&list) };
        let wr = SendWr { wr_id: number, op: operation, flags, data, ud };
        let result = self.hand_over(op, &wr, host);
        demand(result == Some(Ok(())), "a valid work request is accepted", || {
            format!("{}: {result:?}", self.describe(index))
        })?;
        self.outstanding.push_back(index);
        self.posted.push(posted);
        Ok(())
    }

    /// The remote key of a request that reads or writes memory.
    fn memory_key(&self, op: &Op, keys: &Keys) -> u32 {
        let whole = op.kind == OpKind::Flush || op.fill & 4 != 0;
        let key = match (op.wrong, keys.memory) {
            (Some(Wrong::Key), _) => return keys.wrong(),
            (_, Some(window)) => return window,
            (Some(Wrong::Rights), _) if op.kind == OpKind::Read => WRITE_KEY,
            (Some(Wrong::Rights), _) => READ_KEY,
            // The key of an access to no bytes is not checked.
            _ if op.kind != OpKind::Flush && op.len == 0 && op.fill & 2 == 0 => return NO_KEY,
            _ if op.is_relaxed() => RELAXED_KEY,
            _ if op.kind.is_write() && !whole => WRITE_KEY,
            _ if op.kind == OpKind::Read && !whole => READ_KEY,
            _ => KEY,
        };
        let pd = if self.xrc { pd_of(op.queue()) } else { None };
        key_in(pd.unwrap_or(PD), key)
    }

    fn hand_over(
        &self,
        op: &Op,
        wr: &SendWr<'_>,
        host: &mut SimHost,
    ) -> Option<Result<(), PostError>> {
        host.with(self.qpn, |visit| match self.xrc {
            true => visit.qp.post_xrc_send(wr, op.srqn()),
            false => visit.qp.post_send(wr),
        })
    }

    /// Posts an invalid work request. The call must refuse it, and nothing may come of it.
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
        let result = self.hand_over(op, &wr, host);
        demand(
            matches!(result, Some(Err(PostError::Invalid(_)))),
            "an invalid work request is refused when posted",
            || format!("{}: {result:?}", self.describe(index)),
        )
    }
}
