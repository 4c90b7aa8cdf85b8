//! What requests do at the responder, and what local operations do at their own end.

use polypath_transport::{Access, AtomicOp, Completion, FlushScope, WcOpcode};

use super::{BEYOND, Direction, imm};
use crate::case::{OpKind, Wrong};
use crate::judge::receiver::Receive;
use crate::judge::refusal::Refusal;
use crate::judge::{Breach, Verdict, breach, demand};

impl Direction {
    /// Checks that all earlier answers have arrived before the responder executes any part of a fenced
    /// request.
    fn check_fence(&self, index: usize) -> Verdict {
        let waits = |i: &usize| {
            let op = &self.ops[*i];
            let len = if op.kind.is_atomic() { 8 } else { op.len };
            let p = &self.posted[*i];
            op.kind.brings_data() && !p.done && p.landed < len
        };
        let early = self.posted[index].fence.then(|| (0..index).rev().find(waits)).flatten();
        demand(early.is_none(), "a fenced request waits for answers", || {
            format!("{}: {early:?} is not answered", self.describe(index))
        })
    }

    /// Notes that the responder stored data of a WRITE.
    pub(crate) fn written(&mut self, addr: u64, data: &[u8]) -> Verdict {
        let rule = "WRITEs are executed once and in order";
        if self.is_written_again(addr, data) {
            return Ok(());
        }
        let Some(i) = self.next().filter(|i| self.ops[*i].kind.is_write()) else {
            return breach(rule, format!("data for {addr:#x}, but {:?} is next", self.next()));
        };
        demand(self.refusal(i).is_none(), "a refused request changes nothing", || {
            self.describe(i)
        })?;
        if self.progress == 0 {
            self.check_fence(i)?;
        }
        let start = self.layout.base + u64::from(self.ops[i].offset);
        let at = start + u64::from(self.progress);
        // Before the first packet is executed, earlier requests may not be.
        if addr > at && self.progress > 0 && self.ops[i].is_relaxed() {
            return self.written_early(i, addr - start, data);
        }
        self.expect(rule, i, at, addr, data)?;
        while let Some(len) = self.early.get(&self.progress) {
            self.progress += len;
        }
        if self.progress == self.ops[i].len {
            self.late = Some((i, core::mem::take(&mut self.early)));
            if self.ops[i].kind != OpKind::WriteImm {
                self.executed = i + 1;
                self.progress = 0;
            }
        }
        Ok(())
    }

    /// Notes that the responder stored data of the WRITE that is arriving before its turn, `from` bytes from
    /// its beginning on. It does so again if it could not keep the packet, which is then sent again.
    fn written_early(&mut self, i: usize, from: u64, data: &[u8]) -> Verdict {
        let rule = "what may be stored early is the right data in the right place";
        let at = usize::try_from(from).unwrap_or(usize::MAX);
        let same = at.checked_add(data.len()).and_then(|end| self.posted[i].data.get(at..end));
        let right = same == Some(data) && from.is_multiple_of(self.mtu.into());
        demand(right, rule, || {
            format!("{}: {} bytes from byte {from} on", self.describe(i), data.len())
        })?;
        self.early.insert(at as u32, data.len() as u32);
        self.works_on(i)
    }

    /// Whether this was stored before its turn, and is stored again because the packet could not be kept. Its
    /// turn comes before anything else of the peer's is executed, but what is taken for executed here may be
    /// ahead by then.
    fn is_written_again(&self, addr: u64, data: &[u8]) -> bool {
        let next = self.next().map(|i| (i, &self.early));
        let last = self.late.as_ref().map(|(i, early)| (*i, early));
        next.into_iter().chain(last.filter(|(i, _)| i + 1 >= self.executed)).any(|(i, early)| {
            let start = self.layout.base + u64::from(self.ops[i].offset);
            early.iter().any(|(at, len)| {
                let range = *at as usize..(at + len) as usize;
                addr == start + u64::from(*at) && self.posted[i].data.get(range) == Some(data)
            })
        })
    }

    /// Notes that the responder stored data in a receive.
    pub(crate) fn received(&mut self, receive: &Receive, addr: u64, data: &[u8]) -> Verdict {
        let rule = "messages arrive once and in order";
        let Some(i) = self.next().filter(|i| self.ops[*i].kind.is_send()) else {
            return breach(rule, format!("data for {addr:#x}, but {:?} is next", self.next()));
        };
        if self.progress == 0 {
            self.check_fence(i)?;
        }
        let at = receive.place(self.progress).unwrap_or(0);
        self.expect(rule, i, at, addr, data)
    }

    /// Checks that `data`, stored at `addr`, is the next piece of work request `i`, which belongs to `at`.
    fn expect(&mut self, rule: &'static str, i: usize, at: u64, addr: u64, data: &[u8]) -> Verdict {
        let from = self.progress as usize;
        let same = self.posted[i].data.get(from..from + data.len()) == Some(data);
        demand(at == addr && same, rule, || {
            format!(
                "{}: byte {from} belongs to {at:#x}; {} bytes went to {addr:#x}, {}",
                self.describe(i),
                data.len(),
                if same { "the right ones" } else { "other ones" }
            )
        })?;
        self.executed = i;
        self.progress += data.len() as u32;
        self.works_on(i)
    }

    /// Notes that the responder executed an atomic.
    pub(crate) fn atomic(&mut self, addr: u64, op: AtomicOp, old: u64) -> Verdict {
        let rule = "atomics are executed once and in order";
        let Some(i) = self.next().filter(|i| self.ops[*i].kind.is_atomic()) else {
            return breach(rule, format!("{op:?}, but {:?} is next", self.next()));
        };
        demand(self.refusal(i).is_none(), "a refused request changes nothing", || {
            self.describe(i)
        })?;
        self.works_on(i)?;
        self.check_fence(i)?;
        let at = match self.ops[i].kind {
            OpKind::SharedAdd => u64::from(self.ops[i].offset) * 8,
            _ => self.layout.counter(),
        };
        let right = at == addr && self.posted[i].atomic == Some(op);
        demand(right, rule, || format!("{}: {op:?} at {addr:#x}", self.describe(i)))?;
        self.posted[i].original = Some(old);
        self.executed = i + 1;
        Ok(())
    }

    /// Notes that the responder executed a FLUSH: everything before it is done, and nothing after it.
    pub(crate) fn flushed(&mut self, scope: FlushScope) -> Verdict {
        let Some(i) = self.next().filter(|i| self.ops[*i].kind == OpKind::Flush) else {
            let what = format!("{scope:?}, but {:?} is next", self.next());
            return breach("FLUSHes are executed once and in order", what);
        };
        demand(self.refusal(i).is_none(), "a refused request changes nothing", || {
            self.describe(i)
        })?;
        self.works_on(i)?;
        self.check_fence(i)?;
        demand(self.posted[i].scope == Some(scope), "a FLUSH covers what was asked for", || {
            format!("{}: {scope:?}", self.describe(i))
        })?;
        self.executed = i + 1;
        Ok(())
    }

    /// Notes that the responder made a key invalid. It must do so after it has stored the whole message
    /// and before the receive completes.
    pub(crate) fn key_invalidated(&mut self, rkey: u32) -> Verdict {
        let rule = "keys are made invalid once and in order";
        let Some(i) = self.next().filter(|i| self.ops[*i].kind == OpKind::SendInv) else {
            return breach(rule, format!("{rkey:#x}, but {:?} is next", self.next()));
        };
        demand(self.refusal(i).is_none(), "a refused request changes nothing", || {
            self.describe(i)
        })?;
        self.works_on(i)?;
        if self.ops[i].len == 0 {
            self.check_fence(i)?;
        }
        let right = self.posted[i].key == rkey && self.progress == self.ops[i].len;
        demand(right && self.invalidated != Some(i), rule, || {
            format!("{}: {rkey:#x} after {} bytes", self.describe(i), self.progress)
        })?;
        self.invalidated = Some(i);
        Ok(())
    }

    /// Notes that this end carried out a work request that sends no packet.
    pub(crate) fn carried_out(&mut self, kind: OpKind, rkey: u32) -> Verdict {
        let rule = "local operations are carried out once and in order";
        let next = (0..self.posted.len()).find(|&i| {
            self.ops[i].kind.is_local() && !self.posted[i].carried_out && !self.posted[i].done
        });
        let Some(i) = next.filter(|i| self.ops[*i].kind == kind) else {
            return breach(rule, format!("{kind:?} of {rkey:#x}, but {next:?} is next"));
        };
        self.works_on(i)?;
        self.check_fence(i)?;
        let right = self.posted[i].key == rkey && !self.failed;
        demand(right, rule, || format!("{}: {rkey:#x}", self.describe(i)))?;
        self.posted[i].carried_out = true;
        Ok(())
    }

    /// Notes that a receive completed successfully at the responder.
    pub(crate) fn arrived(&mut self, receive: &Receive, c: &Completion) -> Verdict {
        let next = self.next().filter(|i| self.ops[*i].kind.takes_receive());
        let Some(i) = next.filter(|i| self.refusal(*i).is_none()) else {
            return breach(
                "messages arrive once and in order",
                format!("receive {}, but {:?} is next", c.wr_id, self.next()),
            );
        };
        let op = &self.ops[i];
        let srqn = self.xrc.then(|| op.srqn());
        demand(
            srqn == receive.srqn,
            "a message takes a receive of the queue that it names",
            || format!("{}: {:?}, not {srqn:?}", self.describe(i), receive.srqn),
        )?;
        demand(self.progress == op.len, "a receive completes when all is there", || {
            format!("{}: {} bytes are there", self.describe(i), self.progress)
        })?;
        self.works_on(i)?;
        if op.len == 0 {
            self.check_fence(i)?;
        }
        let opcode =
            if op.kind == OpKind::WriteImm { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let imm = matches!(op.kind, OpKind::SendImm | OpKind::WriteImm).then(|| imm(i));
        let key = (op.kind == OpKind::SendInv).then(|| self.posted[i].key);
        demand(
            key.is_none() || self.invalidated == Some(i),
            "a key is invalid before it is reported as invalid",
            || self.describe(i),
        )?;
        let told = (c.byte_len, c.imm, c.opcode, c.solicited, c.vendor_err, c.invalidated_rkey);
        let right = (op.len, imm, opcode, op.solicited, 0, key);
        demand(told == right, "a receive tells the truth", || {
            format!("{}: {c:?}", self.describe(i))
        })?;
        self.executed = i + 1;
        self.progress = 0;
        Ok(())
    }

    /// Notes that the responder refused the next request, and returns how it had to.
    pub(crate) fn refuse(&mut self) -> Result<Refusal, Breach> {
        let rule = "only wrong requests are refused";
        let Some(i) = self.next() else { return breach(rule, "nothing is next") };
        let Some(refusal) = self.refusal(i) else { return breach(rule, self.describe(i)) };
        self.executed = i;
        self.refused = Some((i, refusal));
        Ok(refusal)
    }

    /// The number of bytes of a refused READ that may be answered nevertheless. A requester asks for as
    /// much at a time as its window allows, and only the part that lies outside the region is refused.
    fn readable(&self, index: usize) -> u32 {
        let op = &self.ops[index];
        let split = op.kind == OpKind::Read && self.access.contains(Access::REMOTE_READ);
        if split && op.wrong == Some(Wrong::Range) { op.len.saturating_sub(BEYOND) } else { 0 }
    }

    /// Checks that the responder, which acknowledged `psn` and all PSNs before it, has executed them.
    pub(crate) fn acknowledged(&self, psn: polypath_wire::Psn) -> Verdict {
        let (at, part) = match self.next() {
            Some(i) if i == self.executed => (i, self.progress.max(self.readable(i)) / self.mtu),
            Some(i) => (i, self.readable(i) / self.mtu),
            None => (self.posted.len(), 0),
        };
        let limit = polypath_wire::Psn::new(self.first_psn).add(self.packets[at] + part);
        demand(psn.diff(limit) < 0, "only what was executed is acknowledged", || {
            format!("{psn}, but {limit} is next")
        })
    }

    /// Notes that data of an answer arrived and was stored.
    pub(crate) fn landed(&mut self, addr: u64, data: &[u8]) -> Verdict {
        let end = addr + data.len() as u64;
        let found = self.outstanding.iter().copied().find(|&i| {
            let at = self.layout.landing(i as u64);
            let len = if self.ops[i].kind.is_atomic() { 8 } else { self.ops[i].len };
            self.ops[i].kind.brings_data() && at <= addr && end <= at + u64::from(len)
        });
        match found {
            Some(i) => {
                self.posted[i].landed += data.len() as u32;
                self.works_on(i)
            }
            None => breach(
                "memory changes only for outstanding requests",
                format!("{} bytes were stored at {addr:#x}", data.len()),
            ),
        }
    }
}
