//! The send queue: work requests in the order in which they were posted and complete.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::cause::Cause;
use crate::common::Core;
use crate::frozen::{Reader, ThawError, Writer, words};
use crate::host::Host;
use crate::memory::{Fault, Memory};
use crate::state::MAX_MESSAGE;
use polypath_types::{
    Access, Completion, CqSide, FlushScope, PostError, QpState, QpType, SendData, SendFlags,
    SendOp, SendWr, Sge, Sges, UdDestination, WcOpcode, WcStatus,
};

/// Where the payload of a work request comes from, or where a READ's answer goes.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Sges(Sges),
    Inline(Vec<u8>),
}

/// A send work request in its queue.
#[derive(Clone, Debug)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) body: Body,
    /// The bytes of the message, or of the answer for READs and atomics.
    pub(crate) len: u32,
    pub(crate) ud: Option<UdDestination>,
    /// XRC: the shared receive queue of the peer.
    pub(crate) srqn: u32,
    /// The sequence number of its first packet, once started.
    pub(crate) first: u64,
    /// The number of sequence numbers that it takes; 0 if it is purely local.
    pub(crate) packets: u32,
    /// The number of messages started before it.
    pub(crate) msg: u32,
    /// The number of messages started before it that consume a receive.
    pub(crate) recv: u32,
    /// What it completes with in its turn, if it can't succeed any more.
    pub(crate) failed: Option<(WcStatus, Cause)>,
}

impl Wqe {
    /// Whether it is a READ, atomic, ATOMIC WRITE or FLUSH: an answer comes back, and
    /// `max_rd_atomic` counts it.
    #[inline]
    pub(crate) fn is_answered(&self) -> bool {
        self.is_read() || self.is_atomic() || self.is_placement()
    }

    /// Whether it is an ATOMIC WRITE or FLUSH: the answer is an empty READ response.
    #[inline]
    pub(crate) fn is_placement(&self) -> bool {
        matches!(self.op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
    }

    #[inline]
    pub(crate) fn is_flush(&self) -> bool {
        matches!(self.op, SendOp::Flush { .. })
    }

    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read { .. })
    }

    #[inline]
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Whether it needs no packet.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInv { .. } | SendOp::BindMw { .. })
    }

    /// Whether it consumes a receive work request at the peer.
    #[inline]
    pub(crate) fn consumes_receive(&self) -> bool {
        matches!(
            self.op,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv { .. } | SendOp::WriteImm { .. }
        )
    }

    #[inline]
    pub(crate) fn is_signaled(&self, core: &Core) -> bool {
        core.config.sq_sig_all || self.flags.contains(SendFlags::SIGNALED)
    }

    /// One past its last sequence number.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// The number of payload bytes of its packet `k` (of the answer's packet, for a READ).
    #[inline]
    pub(crate) fn packet_len(&self, k: u32, mtu: u32) -> u32 {
        (self.len - k * mtu).min(mtu)
    }

    fn opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv { .. } => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            SendOp::Flush { .. } => WcOpcode::Flush,
            SendOp::LocalInv { .. } => WcOpcode::LocalInv,
            SendOp::BindMw { .. } => WcOpcode::BindMw,
        }
    }
}

/// The checked pieces of memory for one burst, and the number of bytes to skip in the first.
pub(crate) struct Gathered<S> {
    pub(crate) segments: SmallVec<[S; 4]>,
    pub(crate) skip: u32,
}

/// Checks those elements of a list that hold the bytes `start..start + len`.
///
/// This is done for every burst, not once per message, because a region that is deregistered while
/// a message is under way must not be read any more.
#[inline]
pub(crate) fn gather<M: Memory>(
    pd: u32,
    sges: &[Sge],
    start: u32,
    len: u32,
    rights: Access,
    memory: &mut M,
) -> Result<Gathered<M::Segment>, Fault> {
    let mut out = Gathered { segments: SmallVec::new(), skip: 0 };
    let (mut skip, mut left) = (start, len);
    for sge in sges {
        if left == 0 {
            break;
        }
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        out.segments.push(memory.resolve(pd, *sge, rights)?);
        if out.segments.len() == 1 {
            out.skip = skip;
        }
        left -= left.min(sge.len - skip);
        skip = 0;
    }
    Ok(out)
}

/// The work requests between post and completion.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendQueue {
    queue: VecDeque<Wqe>,
    /// How many at the front have been transmitted completely.
    sent: usize,
    /// How many of these wait for an answer ([`Wqe::is_answered`]).
    answered: usize,
    /// Buffers of completed inline requests, to be used again.
    spare: Vec<Vec<u8>>,
}

impl SendQueue {
    /// The number of work requests that still fit.
    pub(crate) fn room(&self, core: &Core) -> usize {
        (core.config.max_send_wr as usize).saturating_sub(self.queue.len())
    }

    /// Checks a work request and adds it. For `srqn` (XRC) see [`Wqe::srqn`].
    pub(crate) fn post(
        &mut self,
        core: &Core,
        wr: &SendWr<'_>,
        srqn: u32,
    ) -> Result<(), PostError> {
        let len = check(core, wr)?;
        if self.queue.len() >= core.config.max_send_wr as usize {
            return Err(PostError::Full);
        }
        let body = match wr.data {
            SendData::Sges(sges) => Body::Sges(Sges::from_slice(sges)),
            SendData::Inline(data) => {
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.clear();
                buffer.extend_from_slice(data);
                Body::Inline(buffer)
            }
        };
        self.queue.push_back(Wqe {
            wr_id: wr.wr_id,
            op: wr.op,
            flags: wr.flags,
            body,
            len,
            ud: wr.ud,
            srqn,
            first: 0,
            packets: 0,
            msg: 0,
            recv: 0,
            failed: None,
        });
        Ok(())
    }

    /// Writes the send queue.
    pub(crate) fn freeze(&self, out: &mut Writer) {
        out.count(self.sent);
        out.count(self.queue.len());
        for wqe in &self.queue {
            out.u64(wqe.wr_id);
            words::put_op(out, &wqe.op);
            out.u32(wqe.flags.bits());
            match &wqe.body {
                Body::Sges(sges) => {
                    out.u8(0);
                    words::put_sges(out, sges);
                }
                Body::Inline(data) => {
                    out.u8(1);
                    out.bytes(data);
                }
            }
            out.option(wqe.ud, words::put_destination);
            out.u32(wqe.srqn);
            out.u64(wqe.first);
            for word in [wqe.packets, wqe.msg, wqe.recv] {
                out.u32(word);
            }
            out.option(wqe.failed, words::put_failure);
        }
    }

    /// `progress`: the number of packets already transmitted of the work request to transmit next,
    /// if it is started.
    ///
    /// # Errors
    /// See [`ThawError`].
    pub(crate) fn thaw(
        core: &Core,
        progress: Option<u32>,
        from: &mut Reader<'_>,
    ) -> Result<Self, ThawError> {
        let most = core.config.max_send_wr as usize;
        let sent = from.count(most, "too many work requests")?;
        let count = from.count(most, "too many work requests")?;
        let begun = sent + usize::from(progress.is_some());
        from.ensure(begun <= count, "more work requests are sent than there are")?;
        let mut queue = Self::default();
        for at in 0..count {
            queue.thaw_one(core, from)?;
            let Some(wqe) = queue.queue.back().filter(|_| at < begun) else { continue };
            let alone = wqe.is_atomic() || wqe.is_placement();
            let packets = match wqe.is_local() {
                true => 0,
                false if alone => 1,
                false => wqe.len.div_ceil(core.attr.path_mtu).max(1),
            };
            let failed = wqe.failed.is_some();
            from.ensure(wqe.packets == packets, "a work request has not its packets")?;
            from.ensure(wqe.first < 1 << 56, "a sequence number is out of range")?;
            let under_way = at == sent && !failed;
            let left = !under_way || progress.is_none_or(|k| k < packets);
            from.ensure(left, "a work request is sent wholly and under way")?;
        }
        queue.sent = sent;
        queue.answered = queue.queue.iter().take(sent).filter(|wqe| wqe.is_answered()).count();
        Ok(queue)
    }

    fn thaw_one(&mut self, core: &Core, from: &mut Reader<'_>) -> Result<(), ThawError> {
        let (wr_id, op, flags) = (from.u64()?, words::op(from)?, words::flags(from)?);
        let sges;
        let data = match from.u8()? {
            0 => {
                sges = words::sges(from)?;
                SendData::Sges(&sges)
            }
            1 => SendData::Inline(words::inline(from)?),
            _ => return Err(from.wrong("there is no such payload")),
        };
        let ud = from.option(words::destination)?;
        let srqn = from.at_most(0xff_ffff, "an SRQ number has 24 bits")?;
        let wr = SendWr { wr_id, op, flags, data, ud };
        self.post(core, &wr, srqn)
            .map_err(|_| from.wrong("such a work request can't have been posted"))?;
        let first = from.u64()?;
        let numbers = [from.u32()?, from.u32()?, from.u32()?];
        let failed = from.option(words::failure)?;
        if let Some(wqe) = self.queue.back_mut() {
            wqe.first = first;
            [wqe.packets, wqe.msg, wqe.recv] = numbers;
            wqe.failed = failed;
        }
        Ok(())
    }

    /// All work requests, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Wqe> {
        self.queue.iter()
    }

    /// The oldest work request.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Wqe> {
        self.queue.front()
    }

    /// Whether the oldest one has been transmitted completely.
    #[inline]
    pub(crate) fn front_is_sent(&self) -> bool {
        self.sent > 0
    }

    /// The one to transmit next, completely or the rest of it.
    #[inline]
    pub(crate) fn next(&self) -> Option<&Wqe> {
        self.queue.get(self.sent)
    }

    #[inline]
    pub(crate) fn next_mut(&mut self) -> Option<&mut Wqe> {
        self.queue.get_mut(self.sent)
    }

    /// Whether the one to transmit next is followed by one that needs packets, too.
    #[inline]
    pub(crate) fn more_follow(&self) -> bool {
        self.queue.get(self.sent + 1).is_some_and(|next| !next.is_local())
    }

    /// The number of those that have not been transmitted completely.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        self.queue.len().saturating_sub(self.sent)
    }

    /// Notes that the one to transmit next has been transmitted completely.
    #[inline]
    pub(crate) fn next_is_sent(&mut self) {
        debug_assert!(self.sent < self.queue.len());
        self.answered += usize::from(self.next().is_some_and(Wqe::is_answered));
        self.sent += 1;
    }

    /// The number of those that have been transmitted completely and wait for completion.
    #[inline]
    pub(crate) fn sent_len(&self) -> usize {
        self.sent
    }

    /// How many of these wait for an answer.
    #[inline]
    pub(crate) fn answered_len(&self) -> usize {
        self.answered
    }

    /// The position of the started work request that the sequence number `seq` belongs to.
    /// `started` says whether the one to transmit next has been started.
    pub(crate) fn find(&self, seq: u64, started: bool) -> Option<usize> {
        let started = self.sent + usize::from(started && self.sent < self.queue.len());
        // Mostly it is the oldest or the latest.
        if let Some(w) = self.queue.front()
            && started > 0
            && (w.first..w.end()).contains(&seq)
        {
            return Some(0);
        }
        let (mut low, mut high) = (0, started);
        while low < high {
            let mid = low + (high - low) / 2;
            if self.queue[mid].end() <= seq {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        (low < started && (self.queue[low].first..self.queue[low].end()).contains(&seq))
            .then_some(low)
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&Wqe> {
        self.queue.get(at)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Wqe> {
        self.queue.get_mut(at)
    }

    /// Completes the oldest work request.
    pub(crate) fn complete_front<H: Host>(
        &mut self,
        core: &mut Core,
        status: WcStatus,
        cause: Cause,
        host: &mut H,
    ) {
        let Some(wqe) = self.queue.pop_front() else { return };
        self.answered -= usize::from(self.sent > 0 && wqe.is_answered());
        self.sent = self.sent.saturating_sub(1);
        if status == WcStatus::WrFlushErr {
            cancel(core, &wqe, host);
        }
        let good = status == WcStatus::Success;
        if good {
            core.counters.completions += 1;
        }
        if !good || wqe.is_signaled(core) {
            host.complete(
                CqSide::Send,
                Completion {
                    wr_id: wqe.wr_id,
                    status,
                    opcode: wqe.opcode(),
                    vendor_err: cause.number(),
                    byte_len: wqe.len,
                    imm: None,
                    invalidated_rkey: None,
                    qpn: core.config.qpn,
                    src_qpn: core.attr.dest_qpn,
                    grh: None,
                    solicited: !good,
                },
            );
        }
        if let Body::Inline(buffer) = wqe.body {
            self.spare.push(buffer);
        }
    }

    /// Completes all with `WrFlushErr`, oldest first.
    pub(crate) fn flush<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        while !self.queue.is_empty() {
            self.complete_front(core, WcStatus::WrFlushErr, Cause::Flushed, host);
        }
    }

    /// Forgets all, without completions.
    pub(crate) fn clear<H: Host>(&mut self, core: &Core, host: &mut H) {
        for wqe in self.queue.drain(..) {
            cancel(core, &wqe, host);
        }
        (self.sent, self.answered) = (0, 0);
    }
}

/// Tells the host that a work request will not be executed.
fn cancel<H: Host>(core: &Core, wqe: &Wqe, host: &mut H) {
    if let SendOp::BindMw { mw, rkey } = wqe.op {
        host.cancel_bind(mw, core.key(core.config.pd, rkey));
    }
}

/// Checks whether the queue pair accepts the work request now. Returns the length of its message.
pub(crate) fn check(core: &Core, wr: &SendWr<'_>) -> Result<u32, PostError> {
    let state = core.attr.state;
    if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(PostError::State(state)); // IBTA 10.8.2, C10-95
    }
    let len = match wr.data {
        SendData::Sges(sges) => {
            if sges.len() > core.config.max_send_sge as usize {
                return Err(PostError::Invalid("more gather elements than max_send_sge"));
            }
            sges.iter().map(|s| u64::from(s.len)).sum()
        }
        SendData::Inline(data) => {
            // The 8 bytes of an ATOMIC WRITE are part of the request, whatever the limit.
            let limited = !matches!(wr.op, SendOp::AtomicWrite { .. });
            if limited && data.len() > core.config.max_inline as usize {
                return Err(PostError::Invalid("more inline data than max_inline_data"));
            }
            data.len() as u64
        }
    };
    let inline = matches!(wr.data, SendData::Inline(_));
    let (fits_uc, fits_ud) = match wr.op {
        SendOp::Send | SendOp::SendImm(_) => (true, true),
        SendOp::Write { .. } | SendOp::WriteImm { .. } => (true, false),
        SendOp::SendInv { .. } => (false, false),
        SendOp::Read { .. } => {
            if inline {
                return Err(PostError::Invalid("a READ can't be inline"));
            }
            (false, false)
        }
        SendOp::CompareSwap { va, .. } | SendOp::FetchAdd { va, .. } => {
            if inline {
                return Err(PostError::Invalid("an atomic can't be inline"));
            }
            if len < 8 {
                return Err(PostError::Invalid("an atomic needs 8 bytes for its answer"));
            }
            if va % 8 != 0 {
                return Err(PostError::Invalid("the remote address of an atomic is not aligned"));
            }
            (false, false)
        }
        SendOp::AtomicWrite { va, .. } => {
            if len != 8 {
                return Err(PostError::Invalid("an ATOMIC WRITE is of 8 bytes"));
            }
            if va % 8 != 0 {
                return Err(PostError::Invalid("the address of an ATOMIC WRITE is not aligned"));
            }
            (false, false)
        }
        SendOp::Flush { scope, placement, .. } => {
            if len != 0 {
                return Err(PostError::Invalid("a FLUSH has no data"));
            }
            if placement.is_empty() {
                return Err(PostError::Invalid("a FLUSH has to say how far"));
            }
            if matches!(scope, FlushScope::Range { len, .. } if u64::from(len) > MAX_MESSAGE) {
                return Err(PostError::Invalid("a message is longer than 2^31 bytes"));
            }
            (false, false)
        }
        SendOp::LocalInv { .. } | SendOp::BindMw { .. } => (true, false),
    };
    match core.config.qp_type {
        QpType::Rc | QpType::XrcSend => {}
        QpType::XrcRecv => {
            return Err(PostError::Invalid("an XRC target sends nothing"));
        }
        QpType::Uc if fits_uc => {}
        QpType::Ud if fits_ud => {
            if wr.ud.is_none() {
                return Err(PostError::Invalid("a UD send needs an address handle"));
            }
        }
        QpType::Uc | QpType::Ud => {
            return Err(PostError::Invalid("the transport service has no such operation"));
        }
    }
    if len > MAX_MESSAGE {
        return Err(PostError::Invalid("a message is longer than 2^31 bytes"));
    }
    Ok(match wr.op {
        SendOp::LocalInv { .. } | SendOp::BindMw { .. } => 0,
        // There may be room for more than its answer, as rdma-core's provider for rxe has it.
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 8,
        _ => len as u32,
    })
}
