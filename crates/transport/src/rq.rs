//! The receive queue: posted buffers, the buffer being filled, and how data is stored in it.

use std::collections::VecDeque;

use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::What;
use crate::frozen::{Reader, ThawError, Writer, words};
use crate::host::Host;
use crate::memory::{Fault, Memory, Segment};
use polypath_types::{
    Access, Completion, CqSide, NetworkHeader, PostError, QpEvent, QpState, QpType, RecvWr, Sge,
    WcOpcode, WcStatus,
};

/// Why received data could not be put where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScatterError {
    /// The list is too short.
    TooSmall,
    /// One of its elements is not valid.
    Fault(Fault),
}

/// Copies `data` into a scatter list, from byte `at` on. Each element is checked when it is written,
/// so that a region that is gone is never touched.
#[inline]
pub(crate) fn scatter<M: Memory>(
    pd: u32,
    sges: &[Sge],
    at: u32,
    data: &[u8],
    memory: &mut M,
) -> Result<(), ScatterError> {
    scatter_if(pd, sges, at, data, memory, |_, _| true).map(|_| ())
}

/// Like [`scatter`], as long as `admit` allows each piece of memory to be changed. Returns false if it
/// did not.
#[inline]
fn scatter_if<M: Memory>(
    pd: u32,
    sges: &[Sge],
    at: u32,
    mut data: &[u8],
    memory: &mut M,
    mut admit: impl FnMut(M::Segment, &mut M) -> bool,
) -> Result<bool, ScatterError> {
    let mut skip = at;
    for sge in sges {
        if data.is_empty() {
            return Ok(true);
        }
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let segment = memory.resolve(pd, *sge, Access::LOCAL_WRITE).map_err(ScatterError::Fault)?;
        let room = sge.len - skip;
        let n = data.len().min(room as usize);
        let (now, rest) = data.split_at(n);
        let piece = segment.part(skip, n as u32);
        if !admit(piece, memory) {
            return Ok(false);
        }
        memory.store(piece, now).map_err(ScatterError::Fault)?;
        data = rest;
        skip = 0;
    }
    if data.is_empty() { Ok(true) } else { Err(ScatterError::TooSmall) }
}

/// What the completion of a receive says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedRecv {
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) invalidated_rkey: Option<u32>,
    pub(crate) src_qpn: u32,
    pub(crate) grh: Option<NetworkHeader>,
    pub(crate) solicited: bool,
}

impl CompletedRecv {
    /// Of a receive that took no message.
    pub(crate) fn failed(core: &Core) -> Self {
        Self {
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: None,
            invalidated_rkey: None,
            src_qpn: core.attr.dest_qpn,
            grh: None,
            solicited: true,
        }
    }
}

/// The receive work requests of one queue pair, or those that it takes from a shared queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceiveQueue {
    queue: VecDeque<RecvWr>,
    /// The one that a message is arriving in.
    current: Option<RecvWr>,
    /// XRC: the shared receive queue that the current message names.
    srqn: u32,
    /// Shared receive queue: its protection domain, if a receive of it was taken.
    srq_pd: Option<u32>,
}

impl ReceiveQueue {
    /// Checks a work request and adds it.
    pub(crate) fn post(&mut self, core: &Core, wr: RecvWr) -> Result<(), PostError> {
        if core.config.qp_type.is_xrc() {
            return Err(PostError::Invalid(
                "XRC queue pairs have no receive queue: post to a shared one of their domain",
            ));
        }
        if core.config.srq {
            return Err(PostError::Invalid(
                "the queue pair has a shared receive queue: post there",
            ));
        }
        if core.attr.state == QpState::Reset {
            return Err(PostError::State(core.attr.state));
        }
        if wr.sges.len() > core.config.max_recv_sge as usize {
            return Err(PostError::Invalid("more scatter elements than max_recv_sge"));
        }
        if self.queue.len() >= core.config.max_recv_wr as usize {
            return Err(PostError::Full);
        }
        self.queue.push_back(wr);
        Ok(())
    }

    /// Writes the receive queue.
    pub(crate) fn freeze(&self, out: &mut Writer) {
        out.count(self.queue.len());
        for wr in &self.queue {
            words::put_receive(out, wr);
        }
        out.option(self.current.as_ref(), words::put_receive);
        out.u32(self.srqn);
    }

    /// # Errors
    /// See [`ThawError`].
    pub(crate) fn thaw(core: &Core, from: &mut Reader<'_>) -> Result<Self, ThawError> {
        let mut rq = Self::default();
        for _ in 0..from.count(core.config.max_recv_wr as usize, "too many receives")? {
            let wr = words::receive(from)?;
            rq.post(core, wr).map_err(|_| from.wrong("such a receive can't have been posted"))?;
        }
        rq.current = from.option(words::receive)?;
        rq.srqn = from.at_most(0xff_ffff, "an SRQ number has 24 bits")?;
        let reset = core.attr.state == QpState::Reset;
        from.ensure(rq.current.is_none() || !reset, "a receive is in hand in RESET")?;
        Ok(rq)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.current.is_none()
    }

    /// Whether a receive was taken for the current message.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.current.is_some()
    }

    /// XRC: notes that the current message is for this shared receive queue.
    #[inline]
    pub(crate) fn name(&mut self, srqn: u32) {
        self.srqn = srqn;
    }

    /// XRC: the shared receive queue of the current message.
    #[inline]
    pub(crate) fn srqn(&self) -> u32 {
        self.srqn
    }

    /// Takes the next receive for a message, unless one is already in hand. Returns false if there
    /// is none.
    #[inline]
    pub(crate) fn begin<H: Host>(&mut self, core: &Core, host: &mut H) -> bool {
        if core.config.srq {
            self.srq_pd = host.srq_pd();
        }
        if self.current.is_none() {
            self.current = match core.config.qp_type {
                QpType::XrcRecv => host.take_xrc(self.srqn),
                _ if core.config.srq => host.take_srq(),
                _ => self.queue.pop_front(),
            };
        }
        self.current.is_some()
    }

    /// The protection domain of the memory of the receive in hand. What the peer names is of another one.
    #[inline]
    fn pd(&self, core: &Core) -> u32 {
        self.srq_pd.unwrap_or(core.peer_pd)
    }

    /// Copies data into the receive in hand, from byte `at` on.
    #[inline]
    pub(crate) fn store<M: Memory>(
        &self,
        core: &Core,
        at: u32,
        data: &[u8],
        memory: &mut M,
    ) -> Result<(), ScatterError> {
        match &self.current {
            Some(wr) => scatter(self.pd(core), &wr.sges, at, data, memory),
            None => Err(ScatterError::TooSmall),
        }
    }

    /// Like [`ReceiveQueue::store`], as long as `admit` allows each piece of memory to be changed.
    /// Returns false if it did not; then the same data has to be stored again.
    #[inline]
    pub(crate) fn store_if<M: Memory>(
        &self,
        core: &Core,
        at: u32,
        data: &[u8],
        memory: &mut M,
        admit: impl FnMut(M::Segment, &mut M) -> bool,
    ) -> Result<bool, ScatterError> {
        match &self.current {
            Some(wr) => scatter_if(self.pd(core), &wr.sges, at, data, memory, admit),
            None => Err(ScatterError::TooSmall),
        }
    }

    /// Completes the receive in hand, if any.
    #[inline]
    pub(crate) fn complete<H: Host>(
        &mut self,
        core: &mut Core,
        status: WcStatus,
        cause: Cause,
        what: &CompletedRecv,
        host: &mut H,
    ) {
        let Some(wr) = self.current.take() else { return };
        let good = status == WcStatus::Success;
        if good {
            core.counters.completions += 1;
        }
        let completion = Completion {
            wr_id: wr.wr_id,
            status,
            opcode: what.opcode,
            vendor_err: cause.number(),
            byte_len: what.byte_len,
            imm: what.imm,
            invalidated_rkey: what.invalidated_rkey,
            qpn: core.config.qpn,
            src_qpn: what.src_qpn,
            grh: what.grh,
            solicited: what.solicited || !good,
        };
        if core.config.qp_type == QpType::XrcRecv {
            host.complete_xrc(self.srqn, completion);
        } else {
            host.complete(CqSide::Recv, completion);
        }
    }

    /// Data could not be stored in the receive in hand of an unreliable service. One that is too small stays
    /// for the next message. One whose memory is not valid would lose all later ones, so it fails, and the
    /// queue pair ends (IBTA 9.9.3, class A).
    #[cold]
    pub(crate) fn not_stored<H: Host>(
        &mut self,
        core: &mut Core,
        error: ScatterError,
        too_small: What,
        host: &mut H,
    ) {
        core.counters.dropped_malformed += 1;
        match error {
            ScatterError::TooSmall => core.explain(host, None, too_small),
            ScatterError::Fault(fault) => {
                core.explain(host, None, What::ReceiveNotValid { fault });
                let failed = CompletedRecv::failed(core);
                self.complete(core, WcStatus::LocProtErr, Cause::LocalKey, &failed, host);
                core.broken = true;
            }
        }
    }

    /// Completes all receives with `WrFlushErr`, oldest first.
    pub(crate) fn flush<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        let flushed = CompletedRecv::failed(core);
        loop {
            if self.current.is_none() {
                self.current = self.queue.pop_front();
            }
            if self.current.is_none() {
                return;
            }
            self.complete(core, WcStatus::WrFlushErr, Cause::Flushed, &flushed, host);
        }
    }

    /// The queue pair went to the error state: if it has a shared queue, it takes nothing more from
    /// it (IBTA 11.6.3.1, last WQE reached).
    pub(crate) fn last_reached<H: Host>(core: &Core, host: &mut H) {
        if core.config.srq {
            host.event(QpEvent::LastWqeReached);
        }
    }

    /// Forgets all receives, without completions.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.current = None;
    }
}
