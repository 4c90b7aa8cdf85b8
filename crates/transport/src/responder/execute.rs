//! Executing the expected request: first the checks, in the order of IBTA 9.7.4.1, then the memory
//! access.

use core::ops::Range;

use polypath_wire::ext::{NakCode, Reth};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Headers;

use super::answer::{JOBS_MAX, Job, ReadJob, Reply};
use super::data::Data;
use super::resources::Resource;
use super::{Outcome, Refusal, Responder};
use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::BadRequest;
use crate::host::Host;
use crate::memory::{AtomicOp, Fault, Segment};
use crate::rq::{CompletedRecv, ScatterError};
use crate::state::MAX_MESSAGE;
use polypath_types::{Access, FlushScope, Placement, WcOpcode, WcStatus};

/// Addresses that cover no memory.
const NOWHERE: Range<u64> = 0..0;

/// A message whose further packets are still to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    pub(super) kind: InboundKind,
    /// The number of bytes that have arrived.
    pub(super) received: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum InboundKind {
    Send,
    Write(Reth),
}

/// Checks that `opcode` may follow the message under way, and the packet's length (IBTA 9.7.4.1.2,
/// 9.7.4.1.6).
#[inline]
pub(crate) fn check_packet(
    opcode: Opcode,
    under_way: Option<bool>,
    len: usize,
    mtu: u32,
) -> Result<(), BadRequest> {
    match under_way {
        None if !opcode.starts_message() => {
            return Err(BadRequest::NoFirstPacket);
        }
        Some(_) if opcode.starts_message() => {
            return Err(BadRequest::NoLastPacket);
        }
        Some(is_send) if is_send != opcode.is_send() => {
            return Err(BadRequest::OperationChanged);
        }
        _ => {}
    }
    let mtu = mtu as usize;
    let fits = if opcode.is_send() || opcode.is_write() {
        if opcode.is_only() {
            len <= mtu
        } else if opcode.is_last() {
            (1..=mtu).contains(&len)
        } else {
            len == mtu
        }
    } else if opcode.is_atomic_write() {
        len == 8
    } else {
        len == 0
    };
    if fits { Ok(()) } else { Err(BadRequest::PacketLength) }
}

impl Responder {
    /// Executes the expected packet. If it returns `NotReady`, nothing has changed.
    #[inline]
    pub(super) fn execute<H: Host>(
        &mut self,
        core: &mut Core,
        headers: &Headers,
        data: Data<'_>,
        reply: Reply,
        host: &mut H,
    ) -> Outcome {
        if let Some(eth) = headers.xrc
            && let Err(refusal) = self.enter(core, eth.srqn, host)
        {
            return Outcome::Refused(refusal);
        }
        let opcode = headers.bth.opcode.base();
        let under_way = self.message.map(|m| matches!(m.kind, InboundKind::Send));
        if let Err(why) = check_packet(opcode, under_way, data.len(), core.attr.path_mtu) {
            return Outcome::Refused(Refusal::invalid(why));
        }
        let done = if opcode.is_send() {
            self.send(core, opcode, headers, data.bytes(), host)
        } else if opcode.is_write() {
            self.write(core, opcode, headers, data, host)
        } else if opcode.is_read_request() {
            self.read(core, headers, reply, host)
        } else if opcode.is_atomic_write() {
            self.atomic_write(core, headers, data.bytes(), reply, host)
        } else if opcode.is_flush() {
            self.flush_memory(core, headers, reply, host)
        } else {
            self.atomic(core, opcode, headers, reply, host)
        };
        done.unwrap_or_else(Outcome::Refused)
    }

    /// XRC: from here on the request is checked against the protection domain of the queue that it
    /// names.
    fn enter<H: Host>(&mut self, core: &mut Core, srqn: u32, host: &H) -> Result<(), Refusal> {
        if self.message.is_some() && srqn != self.rq.srqn() {
            return Err(Refusal::invalid(BadRequest::SrqChanged));
        }
        core.peer_pd = host.xrc_pd(srqn).ok_or(Refusal::access(BadRequest::NoSuchSrq))?;
        self.rq.name(srqn);
        Ok(())
    }

    fn send<H: Host>(
        &mut self,
        core: &mut Core,
        opcode: Opcode,
        headers: &Headers,
        payload: &[u8],
        host: &mut H,
    ) -> Result<Outcome, Refusal> {
        let received = self.message.map_or(0, |m| m.received);
        if !self.rq.begin(core, host) {
            return Ok(Outcome::NotReady);
        }
        if let Some(ieth) = headers.ieth
            && self.jobs.iter().any(|job| matches!(job, Job::Read(read) if read.needs(ieth.rkey)))
        {
            return Ok(Outcome::Wait);
        }
        let (resources, jobs) = (&mut self.resources, &self.jobs);
        let admit = |segment, host: &mut H| resources.admit(core, jobs, segment, host);
        let stored = self.rq.store_if(core, received, payload, host, admit);
        let stored = stored.map_err(|error| match error {
            ScatterError::TooSmall => Refusal {
                nak: NakCode::InvalidRequest,
                status: WcStatus::LocLenErr,
                cause: Cause::ReceiveTooSmall,
                why: BadRequest::ReceiveTooSmall,
            },
            ScatterError::Fault(_) => Refusal {
                nak: NakCode::RemoteOperational,
                status: WcStatus::LocProtErr,
                cause: Cause::LocalKey,
                why: BadRequest::ReceiveMemory,
            },
        })?;
        if !stored {
            return Ok(Outcome::Wait);
        }
        let received = received.saturating_add(payload.len() as u32);
        if u64::from(received) > MAX_MESSAGE {
            return Err(Refusal::invalid(BadRequest::MessageTooLong));
        }
        if !opcode.ends_message() {
            self.message = Some(Inbound { kind: InboundKind::Send, received });
            return Ok(Outcome::Done(1));
        }
        if let Some(ieth) = headers.ieth {
            host.invalidate(core.key(core.peer_pd, ieth.rkey))
                .map_err(|_| Refusal::access(BadRequest::InvalidateKey))?;
        }
        self.finish_message();
        let what = CompletedRecv {
            opcode: WcOpcode::Recv,
            byte_len: received,
            imm: headers.imm.map(|imm| imm.0),
            invalidated_rkey: headers.ieth.map(|ieth| ieth.rkey),
            src_qpn: core.attr.dest_qpn,
            grh: None,
            solicited: headers.bth.solicited,
        };
        self.rq.complete(core, WcStatus::Success, Cause::None, &what, host);
        Ok(Outcome::Done(1))
    }

    fn write<H: Host>(
        &mut self,
        core: &mut Core,
        opcode: Opcode,
        headers: &Headers,
        data: Data<'_>,
        host: &mut H,
    ) -> Result<Outcome, Refusal> {
        let (reth, received) = match self.message {
            Some(Inbound { kind: InboundKind::Write(reth), received }) => (reth, received),
            _ => {
                let reth = headers.reth.ok_or(Refusal::invalid(BadRequest::WriteWithoutReth))?;
                self.check_write(core, &reth, host)?;
                (reth, 0)
            }
        };
        let end = u64::from(received) + data.len() as u64;
        let len = u64::from(reth.len);
        if end > len || (opcode.ends_message() && end != len) {
            return Err(Refusal::invalid(BadRequest::WriteLength));
        }
        if matches!(data, Data::Placed(placed) if placed.at != received) {
            return Err(Refusal::invalid(BadRequest::OperationChanged));
        }
        // A missing receive is detected before memory is touched, so that the packet may come
        // again.
        if headers.imm.is_some() && !self.rq.begin(core, host) {
            return Ok(Outcome::NotReady);
        }
        if data.len() > 0 {
            // Checked anew for each packet, because the region may have gone while the message was
            // arriving.
            let va = reth.va.wrapping_add(u64::from(received));
            let part = Reth { va, len: data.len() as u32, ..reth };
            let segment = host
                .resolve_remote(&core.remote(core.peer_pd, &part, Access::REMOTE_WRITE))
                .map_err(|_| Refusal::access(BadRequest::WriteRegionGone))?;
            if let Data::Here(payload) = data {
                if !self.resources.admit(core, &self.jobs, segment, host) {
                    return Ok(Outcome::Wait);
                }
                host.store(segment, payload).map_err(refused)?;
            }
        }
        if !opcode.ends_message() {
            self.message = Some(Inbound { kind: InboundKind::Write(reth), received: end as u32 });
            return Ok(Outcome::Done(1));
        }
        self.finish_message();
        if let Some(imm) = headers.imm {
            let what = CompletedRecv {
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: reth.len,
                imm: Some(imm.0),
                invalidated_rkey: None,
                src_qpn: core.attr.dest_qpn,
                grh: None,
                solicited: headers.bth.solicited,
            };
            self.rq.complete(core, WcStatus::Success, Cause::None, &what, host);
        }
        Ok(Outcome::Done(1))
    }

    fn check_write<H: Host>(&self, core: &Core, reth: &Reth, host: &mut H) -> Result<(), Refusal> {
        if !core.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::invalid(BadRequest::WriteNotAllowed));
        }
        check_remote(core, reth, Access::REMOTE_WRITE, host).map(|_| ())
    }

    fn read<H: Host>(
        &mut self,
        core: &Core,
        headers: &Headers,
        reply: Reply,
        host: &mut H,
    ) -> Result<Outcome, Refusal> {
        let reth = headers.reth.ok_or(Refusal::invalid(BadRequest::ReadWithoutReth))?;
        if !core.attr.access.contains(Access::REMOTE_READ) {
            return Err(Refusal::invalid(BadRequest::ReadNotAllowed));
        }
        // Only a multi-path peer asks for a READ in parts, and only such parts are joined.
        let may_join =
            reply.multipath && self.resources.would_join(core, self.next, headers, &reth);
        if !may_join {
            self.check_resources(core)?;
        }
        let span = check_remote(core, &reth, Access::REMOTE_READ, host)?;
        let n = reth.len.div_ceil(core.attr.path_mtu).max(1);
        if n >= 1 << 23 || self.jobs.len() >= JOBS_MAX {
            return Err(Refusal::invalid(BadRequest::ReadTooLong));
        }
        if !(may_join && self.resources.join(n, reth.len, &span)) {
            let resource = Resource::read(self.next, n, headers, reth, core.peer_pd);
            self.resources.remember(core, resource, span);
        }
        self.finish_message();
        let job = ReadJob::new(headers.bth.psn, &reth, core.peer_pd, false, self.msn, reply);
        self.jobs.push_back(Job::Read(ReadJob { continues: may_join, ..job }));
        Ok(Outcome::Done(n))
    }

    fn atomic<H: Host>(
        &mut self,
        core: &Core,
        opcode: Opcode,
        headers: &Headers,
        reply: Reply,
        host: &mut H,
    ) -> Result<Outcome, Refusal> {
        let eth = headers.atomic.ok_or(Refusal::invalid(BadRequest::AtomicWithoutEth))?;
        if !core.attr.access.contains(Access::REMOTE_ATOMIC) {
            return Err(Refusal::invalid(BadRequest::AtomicNotAllowed));
        }
        self.check_resources(core)?;
        if eth.va % 8 != 0 {
            return Err(Refusal::invalid(BadRequest::AtomicAddress));
        }
        let word = Reth { va: eth.va, rkey: eth.rkey, len: 8 };
        let segment = host
            .resolve_remote(&core.remote(core.peer_pd, &word, Access::REMOTE_ATOMIC))
            .map_err(|_| Refusal::access(BadRequest::AtomicAccess))?;
        if segment.span().start % 8 != 0 {
            return Err(Refusal::invalid(BadRequest::AtomicMemory));
        }
        let op = if opcode == Opcode::RC_CMP_SWAP {
            AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_add }
        } else {
            AtomicOp::FetchAdd { add: eth.swap_add }
        };
        if !self.resources.admit(core, &self.jobs, segment, host) {
            return Ok(Outcome::Wait);
        }
        let value = host.atomic(segment, op).map_err(refused)?;
        let psn = headers.bth.psn;
        let resource = Resource::atomic(self.next, headers, eth, value);
        self.resources.remember(core, resource, NOWHERE);
        self.finish_message();
        self.jobs.push_back(Job::Atomic { psn, value, again: false, msn: self.msn, reply });
        Ok(Outcome::Done(1))
    }

    /// ATOMIC WRITE (annex A19): it needs the rights of a WRITE and the alignment of an atomic.
    fn atomic_write<H: Host>(
        &mut self,
        core: &Core,
        headers: &Headers,
        payload: &[u8],
        reply: Reply,
        host: &mut H,
    ) -> Result<Outcome, Refusal> {
        let reth = headers.reth.ok_or(Refusal::invalid(BadRequest::AtomicWriteWithoutReth))?;
        if !core.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::invalid(BadRequest::WriteNotAllowed));
        }
        self.check_resources(core)?;
        let Ok(value) = payload.try_into().map(u64::from_ne_bytes) else {
            return Err(Refusal::invalid(BadRequest::AtomicWriteLength));
        };
        if reth.len != 8 {
            return Err(Refusal::invalid(BadRequest::AtomicWriteLength));
        }
        if reth.va % 8 != 0 {
            return Err(Refusal::invalid(BadRequest::AtomicWriteAddress));
        }
        let segment = host
            .resolve_remote(&core.remote(core.peer_pd, &reth, Access::REMOTE_WRITE))
            .map_err(refused)?;
        if segment.span().start % 8 != 0 {
            return Err(Refusal::invalid(BadRequest::AtomicWriteMemory));
        }
        if !self.resources.admit(core, &self.jobs, segment, host) {
            return Ok(Outcome::Wait);
        }
        host.atomic_write(segment, value).map_err(refused)?;
        self.answer_empty(core, headers, reply);
        Ok(Outcome::Done(1))
    }

    /// FLUSH (annex A19). Everything before it has been executed.
    fn flush_memory<H: Host>(
        &mut self,
        core: &Core,
        headers: &Headers,
        reply: Reply,
        host: &mut H,
    ) -> Result<Outcome, Refusal> {
        let (Some(feth), Some(reth)) = (headers.feth, headers.reth) else {
            return Err(Refusal::invalid(BadRequest::FlushWithoutHeaders));
        };
        let access = match Placement::from_bits(feth.placement) {
            Some(placement) if !placement.is_empty() => placement.rights(),
            _ => return Err(Refusal::invalid(BadRequest::FlushPlacement)),
        };
        if !core.attr.access.contains(access) {
            return Err(Refusal::invalid(BadRequest::FlushNotAllowed));
        }
        self.check_resources(core)?;
        let scope = match feth.selectivity {
            0 if u64::from(reth.len) > MAX_MESSAGE => {
                return Err(Refusal::invalid(BadRequest::MessageTooLong));
            }
            0 => FlushScope::Range { va: reth.va, len: reth.len },
            1 => FlushScope::Region,
            _ => return Err(Refusal::invalid(BadRequest::FlushSelectivity)),
        };
        host.flush(core.key(core.peer_pd, reth.rkey), scope, access).map_err(refused)?;
        self.answer_empty(core, headers, reply);
        Ok(Outcome::Done(1))
    }

    /// Completes the message and answers it by a READ response without data.
    fn answer_empty(&mut self, core: &Core, headers: &Headers, reply: Reply) {
        self.resources.remember(core, Resource::placement(self.next, headers), NOWHERE);
        self.finish_message();
        let nothing = Reth::default();
        let psn = headers.bth.psn;
        let job = ReadJob::new(psn, &nothing, core.peer_pd, false, self.msn, reply);
        self.jobs.push_back(Job::Read(job));
    }

    /// Checks that one more READ or atomic does not exceed what was agreed (IBTA 9.7.4.1.5).
    fn check_resources(&self, core: &Core) -> Result<(), Refusal> {
        let outstanding = self.jobs.iter().filter(|job| job.counts()).count();
        if outstanding >= usize::from(core.attr.max_dest_rd_atomic) {
            return Err(Refusal::invalid(BadRequest::TooManyOutstanding));
        }
        Ok(())
    }

    fn finish_message(&mut self) {
        self.message = None;
        self.msn = (self.msn + 1) & 0xff_ffff;
    }
}

/// Checks the key, address and length of a request, and returns the addresses of that memory.
fn check_remote<H: Host>(
    core: &Core,
    reth: &Reth,
    access: Access,
    host: &mut H,
) -> Result<Range<u64>, Refusal> {
    if u64::from(reth.len) > MAX_MESSAGE {
        return Err(Refusal::invalid(BadRequest::MessageTooLong));
    }
    // The key of an empty message is not checked (IBTA 9.7.4.1.4).
    if reth.len == 0 {
        return Ok(NOWHERE);
    }
    host.resolve_remote(&core.remote(core.peer_pd, reth, access))
        .map(|segment| segment.span())
        .map_err(refused)
}

fn refused(fault: Fault) -> Refusal {
    match fault {
        Fault::Key => Refusal::access(BadRequest::Key),
        Fault::Range => Refusal::access(BadRequest::Range),
        Fault::Rights => Refusal::access(BadRequest::Rights),
        Fault::Gone => Refusal::access(BadRequest::Gone),
    }
}
