//! What the responder sends back: READ responses and results of atomics in order, then the
//! acknowledgement or NAK that is due. An acknowledgement never overtakes the answer to an earlier
//! READ, because it would mean that the answer was lost.

use polypath_wire::ext::{
    Aeth, AtomicAckEth, MpHeader, MpSack, NakCode, Reth, SackBlock, Syndrome,
};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, pad_for};
use polypath_wire::psn::Psn;

use super::{Refusal, Responder};
use crate::PACKET_COST;
use crate::burst::{Burst, Payload};
use crate::common::Core;
use crate::explanation::BadRequest;
use crate::host::{Host, Unread};
use crate::requester::burst_packets;
use polypath_types::{Access, Class, PathId, PathTag, Pick, Want};

/// After this many coalesced acknowledgements one is sent even if nobody asks for it.
const ACKS_COALESCED_MAX: u32 = 32;
/// The most payload bytes of answers per call of [`Responder::poll`], except for the last burst.
const POLL_BYTES: u32 = 64 << 10;
/// The most answers that wait to be sent, without those that were asked for again. Within its reach a peer
/// has no more requests.
pub(super) const JOBS_MAX: usize = 1 << 16;
/// The most answers per call of [`Responder::poll`].
const POLL_ANSWERS: u32 = 16;

/// How to answer a packet: in the same way as it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) path: PathId,
    pub(super) multipath: bool,
    pub(super) timestamp: u32,
    /// Whether the packet was sent by two paths. Then each of the two is answered by its own path.
    pub(super) twice: bool,
}

impl Reply {
    #[inline]
    pub(super) fn to(headers: &Headers, from: PathId) -> Self {
        Self {
            path: from,
            multipath: headers.mp.is_some(),
            timestamp: headers.mp.map_or(0, |mp| mp.timestamp),
            twice: headers.mp.is_some_and(|mp| mp.is_twice()),
        }
    }

    /// What makes a plain answer that goes by `path` a multi-path one, if the request was one and the path
    /// has a tag.
    fn stamp<H: Host>(&self, path: PathId, host: &mut H) -> Option<Stamp> {
        let tag = host.tag(path).filter(|_| self.multipath)?;
        let twice = if self.twice { MpHeader::TWICE } else { 0 };
        let marked = if host.take_mark(path) { MpHeader::MARKED } else { 0 };
        Some(Stamp { tag, flags: twice | marked, timestamp: self.timestamp })
    }
}

/// What the multi-path header of an answer says.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    tag: PathTag,
    flags: u8,
    timestamp: u32,
}

impl Stamp {
    fn put(this: Option<Self>, headers: &mut Headers) {
        if let Some(Self { tag, flags, timestamp }) = this {
            headers.bth.opcode = headers.bth.opcode.to_mp();
            headers.mp = Some(MpHeader {
                flags,
                path_id: tag.id,
                generation: tag.generation,
                timestamp,
                ..MpHeader::default()
            });
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckKind {
    Ack,
    SequenceError,
    NotReady { timer: u8 },
    Fatal { code: NakCode, psn: Psn },
}

/// The acknowledgement that is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) kind: AckKind,
    pub(super) reply: Reply,
    /// The number of acknowledgements that it stands for.
    pub(super) coalesced: u32,
    /// Where it also goes: to a packet that came by another path, and was sent by two.
    pub(super) also: Option<Reply>,
}

impl Due {
    fn new(kind: AckKind, reply: Reply) -> Self {
        Self { kind, reply, coalesced: 1, also: None }
    }

    /// Answers a later packet in the place of the one before. A packet that was sent by two paths is
    /// answered for each of them, because each has a round trip and a window of its own.
    #[inline]
    fn answer(&mut self, reply: Reply) {
        if reply.twice && self.reply.path != reply.path {
            self.also = Some(self.reply);
        }
        self.reply = reply;
        self.coalesced += 1;
    }
}

/// The part of a READ's answer that is still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    pub(super) psn: Psn,
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) pd: u32,
    pub(super) left: u32,
    /// Whether nothing of it has been sent yet.
    pub(super) fresh: bool,
    /// Whether it was asked for before.
    pub(super) again: bool,
    /// Whether it continues the READ before it.
    pub(super) continues: bool,
    pub(super) msn: u32,
    pub(super) reply: Reply,
}

impl ReadJob {
    pub(super) fn new(psn: Psn, reth: &Reth, pd: u32, again: bool, msn: u32, reply: Reply) -> Self {
        let Reth { va, rkey, len } = *reth;
        Self { psn, va, rkey, pd, left: len, fresh: true, again, continues: false, msn, reply }
    }

    fn packets(&self, mtu: u32) -> u32 {
        self.left.div_ceil(mtu).max(1)
    }

    /// Whether something is still to be read through this key.
    pub(super) fn needs(&self, rkey: u32) -> bool {
        self.rkey == rkey && self.left > 0
    }
}

/// An answer to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Read(ReadJob),
    Atomic { psn: Psn, value: u64, again: bool, msn: u32, reply: Reply },
}

impl Job {
    pub(super) fn psn(&self) -> Psn {
        match self {
            Self::Read(job) => job.psn,
            Self::Atomic { psn, .. } => *psn,
        }
    }

    pub(super) fn reply(&self) -> &Reply {
        match self {
            Self::Read(job) => &job.reply,
            Self::Atomic { reply, .. } => reply,
        }
    }

    fn reply_mut(&mut self) -> &mut Reply {
        match self {
            Self::Read(job) => &mut job.reply,
            Self::Atomic { reply, .. } => reply,
        }
    }

    /// Whether it was asked for before.
    pub(super) fn is_again(&self) -> bool {
        match self {
            Self::Read(job) => job.again,
            Self::Atomic { again, .. } => *again,
        }
    }

    /// Whether it counts against `max_dest_rd_atomic`: a request that is answered for the first time, and is
    /// not joined to the one before it.
    pub(super) fn counts(&self) -> bool {
        !matches!(self, Self::Read(job) if job.continues) && !self.is_again()
    }

    /// What it asks the host for a route for.
    fn want(&self, core: &Core) -> Want {
        let bytes = match self {
            Self::Read(job) => job.left.min(POLL_BYTES),
            Self::Atomic { .. } => 8,
        };
        let class = Class::Answer { asked_by: self.reply().path };
        let bytes = bytes + PACKET_COST;
        Want { qpn: core.config.qpn, bytes, backlog: bytes.into(), asks: false, class }
    }

    /// The number of sequence numbers that are still to be sent.
    pub(super) fn packets(&self, mtu: u32) -> u32 {
        match self {
            Self::Read(job) => job.packets(mtu),
            Self::Atomic { .. } => 1,
        }
    }

    /// Removes everything from `psn` on. Returns false if nothing remains.
    pub(super) fn cut(&mut self, psn: Psn, mtu: u32) -> bool {
        let keep = psn.diff(self.psn());
        if keep <= 0 {
            return false;
        }
        if let Self::Read(job) = self {
            job.left = job.left.min((keep as u32).saturating_mul(mtu));
        }
        true
    }
}

impl Responder {
    /// Notes that a packet was executed; `asked` says whether an acknowledgement is wanted.
    #[inline]
    pub(super) fn executed(&mut self, asked: bool, reply: Reply) {
        match &mut self.due {
            // The packet that was complained about has come.
            Some(due) if due.kind != AckKind::Ack => *due = Due::new(AckKind::Ack, reply),
            Some(due) if asked => due.answer(reply),
            None if asked => self.due = Some(Due::new(AckKind::Ack, reply)),
            _ => {}
        }
    }

    /// Notes that a READ or atomic was executed: its answer acknowledges all before it
    /// (IBTA 9.7.5.1.1), so only what waits in the reorder buffer still has to be reported.
    pub(super) fn answered(&mut self, reply: Reply) {
        if self.reorder.is_empty() {
            self.due = None;
        } else {
            self.executed(true, reply);
        }
    }

    /// Makes an acknowledgement due, unless a complaint is.
    pub(super) fn acknowledge(&mut self, reply: Reply) {
        match &mut self.due {
            Some(due) if due.kind == AckKind::Ack => due.answer(reply),
            Some(_) => {}
            None => self.due = Some(Due::new(AckKind::Ack, reply)),
        }
    }

    pub(super) fn sequence_error(&mut self, reply: Reply) {
        self.due = Some(Due::new(AckKind::SequenceError, reply));
    }

    pub(super) fn not_ready(&mut self, core: &Core, reply: Reply) {
        let kind = AckKind::NotReady { timer: core.attr.min_rnr_timer };
        match &mut self.due {
            Some(due) if due.kind == kind => due.answer(reply),
            _ => self.due = Some(Due::new(kind, reply)),
        }
    }

    pub(super) fn fatal(&mut self, psn: Psn, code: NakCode, reply: Reply) {
        self.due = Some(Due::new(AckKind::Fatal { code, psn }, reply));
    }

    /// Whether [`Responder::flush_acks`] would send something.
    #[inline]
    pub(crate) fn acks_due(&self) -> bool {
        self.due.is_some() && self.jobs.is_empty()
    }

    /// Whether [`Responder::poll`] has something to do.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        (!self.jobs.is_empty() && !self.held) || self.acks_pressing()
    }

    /// Whether enough acknowledgements have been coalesced that it is time to send one.
    fn acks_pressing(&self) -> bool {
        self.acks_due()
            && self.due.is_some_and(|d| d.coalesced >= ACKS_COALESCED_MAX || self.ending)
    }

    /// The path set changed.
    pub(crate) fn on_path_change<H: Host>(
        &mut self,
        core: &Core,
        is_dead: impl Fn(PathId) -> bool,
        host: &mut H,
    ) {
        let route = core.peer.and_then(|peer| host.route(peer));
        self.held = route.is_none() && core.peer.is_some();
        if let Some(route) = route {
            let jobs = self.jobs.iter_mut().map(Job::reply_mut);
            let due =
                self.due.iter_mut().flat_map(|d| [&mut d.reply].into_iter().chain(&mut d.also));
            for reply in due.chain(jobs) {
                if is_dead(reply.path) {
                    reply.path = route.path;
                }
            }
        }
    }

    /// Sends the acknowledgement that is due, unless answers have to be sent first.
    pub(crate) fn flush_acks<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        if !self.jobs.is_empty() {
            return;
        }
        let Some(due) = self.due.take() else { return };
        if let Some(also) = due.also {
            self.send_ack(core, due.kind, also, host);
        }
        self.send_ack(core, due.kind, due.reply, host);
        if let AckKind::Fatal { .. } = due.kind {
            core.broken = true;
        }
    }

    fn send_ack<H: Host>(&mut self, core: &mut Core, kind: AckKind, reply: Reply, host: &mut H) {
        let (syndrome, psn) = match kind {
            AckKind::Ack => (Syndrome::ACK, self.epsn().prev()),
            AckKind::SequenceError => (Syndrome::Nak(NakCode::PsnSequence), self.epsn()),
            AckKind::NotReady { timer } => (Syndrome::RnrNak { timer }, self.epsn()),
            AckKind::Fatal { code, psn } => (Syndrome::Nak(code), psn),
        };
        let mut headers = Headers::new(core.bth(Opcode::RC_ACK, psn));
        headers.aeth = Some(Aeth { syndrome, msn: self.msn });
        Stamp::put(reply.stamp(reply.path, host), &mut headers);
        if headers.mp.is_some() {
            // The bitmap counts from the packet after the one that the BTH names.
            let bits = self.reorder.bitmap();
            let bits = if kind == AckKind::Ack { bits } else { bits >> 1 };
            headers.sack = Some(MpSack(bits));
        }
        core.counters.acks_sent += 1;
        if headers.mp.is_some() && core.reads_blocks && !self.reorder.is_empty() {
            self.transmit_with_blocks(core, reply.path, &headers, host);
        } else {
            transmit_one(core, reply.path, &headers, host);
        }
    }

    /// Sends an acknowledgement that reports everything that waits in the reorder buffer.
    #[cold]
    fn transmit_with_blocks<H: Host>(
        &mut self,
        core: &mut Core,
        path: PathId,
        headers: &Headers,
        host: &mut H,
    ) {
        let mut blocks = [SackBlock::default(); SackBlock::MAX];
        let n = self.reorder.blocks(self.epsn(), &mut blocks);
        let mut bytes = [[0; SackBlock::LEN]; SackBlock::MAX];
        for (out, block) in bytes.iter_mut().zip(&blocks[..n]) {
            *out = block.to_bytes();
        }
        let burst = Burst::single(
            path,
            headers,
            core.attr.path_mtu,
            Payload::Bytes(bytes[..n].as_flattened()),
        );
        core.counters.sent_packets += 1; // Blocks do not count as payload.
        let sent = host.transmit(&burst);
        debug_assert!(sent.is_ok(), "it has no payload in memory");
    }

    /// Sends the latest acknowledgement again, although nobody has asked for it.
    pub(crate) fn repeat_acknowledgement<H: Host>(&self, core: &mut Core, host: &mut H) {
        let Some(route) = core.peer.and_then(|peer| host.route(peer)) else { return };
        self.acknowledge_by(core, route.path, host);
    }

    /// Sends the latest acknowledgement by this path.
    pub(crate) fn acknowledge_by<H: Host>(&self, core: &mut Core, path: PathId, host: &mut H) {
        let mut headers = Headers::new(core.bth(Opcode::RC_ACK, self.epsn().prev()));
        headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: self.msn });
        core.counters.acks_sent += 1;
        transmit_one(core, path, &headers, host);
    }

    /// Sends a bounded number of answers. Returns whether there are more.
    pub(crate) fn poll<H: Host>(&mut self, core: &mut Core, host: &mut H) -> bool {
        let mut bytes = 0;
        for _ in 0..POLL_ANSWERS {
            let Some(job) = self.jobs.front().copied() else { break };
            let path = match core.peer {
                None => job.reply().path,
                Some(peer) => match host.pick(peer, &job.want(core)) {
                    // Our route may not carry packets as large as an answer. A peer that asks again
                    // shows a path that may. One that asks by two paths is answered by both.
                    Pick::Route(_)
                        if (job.is_again() || job.reply().twice)
                            && host.tag(job.reply().path).is_some() =>
                    {
                        job.reply().path
                    }
                    Pick::Route(route) => route.path,
                    Pick::Wait => job.reply().path,
                    Pick::NoPath => {
                        self.held = true;
                        return false;
                    }
                },
            };
            bytes += match job {
                Job::Read(read) => self.send_read(core, read, path, host),
                Job::Atomic { psn, value, msn, reply, .. } => {
                    self.jobs.pop_front();
                    let mut headers = Headers::new(core.bth(Opcode::RC_ATOMIC_ACK, psn));
                    headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn });
                    headers.atomic_ack = Some(AtomicAckEth { original: value });
                    Stamp::put(reply.stamp(path, host), &mut headers);
                    transmit_one(core, path, &headers, host);
                    0
                }
            };
            if bytes >= POLL_BYTES {
                break;
            }
        }
        // After a refusal nothing is executed any more (IBTA 9.9.3).
        if self.waiting && !self.ending && self.jobs.is_empty() {
            self.waiting = false;
            self.drain(core, None, host);
        }
        if self.acks_pressing() {
            self.flush_acks(core, host);
        }
        !self.jobs.is_empty()
    }

    /// Sends a burst of a READ's answer. Returns its number of bytes.
    fn send_read<H: Host>(
        &mut self,
        core: &mut Core,
        job: ReadJob,
        path: PathId,
        host: &mut H,
    ) -> u32 {
        let mtu = core.attr.path_mtu;
        let packets = job.packets(mtu);
        let n = packets.min(burst_packets(mtu));
        let (put_by, n) = self.resources.kept(self.expand(job.psn), n);
        let len = job.left.min(n * mtu);
        let mut segment = None;
        if len > 0 {
            let part = Reth { va: job.va, rkey: job.rkey, len };
            match host.resolve_remote(&core.remote(job.pd, &part, Access::REMOTE_READ)) {
                Ok(checked) => segment = Some(checked),
                Err(_) => return self.lose_region(core, &job, job.psn, path, host),
            }
        }
        let stamp = job.reply.stamp(path, host);
        let ends = n == packets;
        let packet = |i: u32| {
            let (first, last) = (job.fresh && i == 0, ends && i + 1 == n);
            let opcode = match (first, last) {
                (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
                (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
                (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
                (false, true) => Opcode::RC_READ_RESPONSE_LAST,
            };
            let mut headers = Headers::new(core.bth(opcode, job.psn.add(i)));
            if opcode.has_aeth() {
                headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: job.msn });
            }
            headers.bth.pad = pad_for((len - i * mtu).min(mtu) as usize);
            Stamp::put(stamp, &mut headers);
            headers
        };
        let first = packet(0);
        let rest = (n > 1).then(|| (packet(1), packet(n - 1)));
        let burst = Burst {
            path,
            first: &first,
            middle: rest.as_ref().map_or(&first, |(middle, _)| middle),
            last: rest.as_ref().map_or(&first, |(_, last)| last),
            packets: n,
            mtu,
            payload: match put_by {
                None => Payload::Memory { segments: segment.as_slice(), skip: 0, len },
                Some(data) => Payload::Bytes(&data[..len as usize]),
            },
            covered_twice: false,
            changing: true,
        };
        if let Err(Unread { sent }) = core.transmit(&burst, host) {
            return self.lose_region(core, &job, job.psn.add(sent), path, host);
        }
        if ends {
            self.jobs.pop_front();
        } else if let Some(Job::Read(front)) = self.jobs.front_mut() {
            front.psn = job.psn.add(n);
            front.va = job.va.wrapping_add(u64::from(len));
            front.left -= len;
            front.fresh = false;
        }
        len
    }

    /// The memory that a READ asks for was there when the READ arrived, and is gone now: the answer
    /// ends at `psn`.
    fn lose_region<H: Host>(
        &mut self,
        core: &mut Core,
        job: &ReadJob,
        psn: Psn,
        path: PathId,
        host: &mut H,
    ) -> u32 {
        if job.again {
            self.jobs.pop_front();
            self.refuse_again(core, psn, job.reply, path, host);
        } else {
            self.jobs.clear();
            let refusal = Refusal::access(BadRequest::ReadRegionGone);
            self.refuse(core, psn, refusal, Reply { path, ..job.reply }, host);
        }
        0
    }

    /// A READ that was asked for before can't be answered again: its region has gone, or its XRC
    /// shared receive queue. The peer may long have its answer, and its application may have
    /// deregistered the region since, while this request was late on its way. The peer has to know
    /// it only if it still waits, so the queue pair does not end.
    pub(super) fn refuse_again<H: Host>(
        &self,
        core: &mut Core,
        psn: Psn,
        reply: Reply,
        path: PathId,
        host: &mut H,
    ) {
        let mut headers = Headers::new(core.bth(Opcode::RC_ACK, psn));
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        headers.aeth = Some(Aeth { syndrome, msn: self.msn });
        Stamp::put(reply.stamp(path, host), &mut headers);
        if headers.mp.is_some() {
            headers.sack = Some(MpSack(0));
        }
        core.counters.naks_fatal_sent += 1;
        transmit_one(core, path, &headers, host);
    }
}

fn transmit_one<H: Host>(core: &mut Core, path: PathId, headers: &Headers, host: &mut H) {
    let burst = Burst::single(path, headers, core.attr.path_mtu, Payload::Bytes(&[]));
    let sent = core.transmit(&burst, host);
    debug_assert!(sent.is_ok(), "it has no payload in memory");
}
