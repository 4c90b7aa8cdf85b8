//! Sending: retransmissions first, then new work requests, as far as the window and the peer's limits
//! go.

use core::time::Duration;

use super::build::{self, Stamp};
use super::flight::{ANSWERED, END};
use super::route::{BURST_BYTES, READ_MAX_BYTES, SendContext};
use super::tally::Tally;
use super::{Requester, psn};
use crate::PACKET_COST;
use crate::burst::{Burst, Payload};
use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::What;
use crate::host::{Host, Unread};
use crate::memory::Fault;
use crate::sq::{Body, Wqe, gather};
use crate::transmit_state::TransmitState;
use polypath_types::{Access, PathId, QpState, SendFlags, SendOp, WcStatus};

/// The most packets of one burst.
pub(crate) const BURST_PACKETS: u32 = 64;
/// The most bursts per call of `poll`, so that other queue pairs get their turn.
const POLL_BURSTS: u32 = 16;
/// The most payload bytes per call of `poll`, except for the last burst.
const POLL_BYTES: u32 = 64 << 10;
/// An acknowledgement is asked for at least every this many packets, so that windows move.
const ACK_EVERY: u32 = 16;
/// The number of packets after a retransmission that are sent as copies of their payload.
const WARY_PACKETS: u64 = 1024;
/// A READ is not split into smaller requests than this only because the window is nearly full.
const READ_MIN_BYTES: u32 = 16 << 10;
/// A request asks for this share of the window if it can; its other parts are answered meanwhile.
const READ_SHARE: u32 = 4;

/// The most packets of one burst at this path MTU.
#[inline]
pub(crate) fn burst_packets(mtu: u32) -> u32 {
    (BURST_BYTES / mtu).clamp(1, BURST_PACKETS)
}

/// The result of one step of transmitting.
enum Step {
    /// This many bytes were sent (or asked for).
    Sent(u32),
    /// A work request was completed without a packet.
    Local,
    /// The window is full.
    Blocked,
    /// Nothing more to do for now.
    Idle,
}

impl Requester {
    /// Sends what can be sent now.
    pub(crate) fn poll<H: Host>(
        &mut self,
        core: &mut Core,
        now: Duration,
        host: &mut H,
    ) -> TransmitState {
        if !self.ready {
            return TransmitState::Idle;
        }
        let sends = matches!(core.attr.state, QpState::Rts | QpState::Sqd);
        if !sends || self.timers.rnr_waiting() || self.has_sent_all() {
            self.ready = false;
            return TransmitState::Idle;
        }
        let mut context = match self.ask(core, now, host) {
            Ok(context) => context,
            Err(state) => return state,
        };
        let mut bytes = 0;
        for _ in 0..POLL_BURSTS {
            if context.is_spent() {
                context = match self.ask(core, now, host) {
                    Ok(context) => context,
                    Err(state) => return state,
                };
            }
            if !self.flight.waits() {
                if self.flight.is_empty() {
                    self.has_progress(core, now);
                } else if !self.flight.paths_mut().has_probe()
                    && !core::mem::take(&mut self.waits_on)
                {
                    // A probe is no retry: if there is nothing else to send, the wait ends as it
                    // would have without the probe.
                    self.has_resent(now);
                }
            }
            let step = if self.flight.any_lost() {
                self.resend(core, &mut context, host)
            } else {
                self.send(core, &mut context, host)
            };
            match step {
                Step::Sent(n) => {
                    bytes += n;
                    if self.has_sent_all() {
                        self.ready = false;
                        return TransmitState::Idle;
                    }
                }
                Step::Local => {}
                Step::Blocked if context.is_worth_asking_again() => context.quantum = 0,
                Step::Blocked => return TransmitState::Blocked,
                Step::Idle => {
                    self.ready = false;
                    return TransmitState::Idle;
                }
            }
            if bytes >= POLL_BYTES {
                break;
            }
            if core.broken {
                return TransmitState::Idle;
            }
        }
        TransmitState::More
    }

    /// Whether nothing is left to be sent, neither new nor again.
    #[inline]
    pub(super) fn has_sent_all(&self) -> bool {
        self.sq.next().is_none() && !self.flight.any_lost()
    }

    /// Sends the next piece of the next work request.
    fn send<H: Host>(&mut self, core: &mut Core, context: &mut SendContext, host: &mut H) -> Step {
        let unanswered = self.flight.unanswered();
        let max_rd_atomic = u32::from(core.attr.max_rd_atomic);
        if self.has_failing {
            return Step::Idle;
        }
        let Some(wqe) = self.sq.next() else { return Step::Idle };
        let answered = wqe.is_answered();
        if self.progress.is_none() {
            if core.attr.state == QpState::Sqd {
                return Step::Idle;
            }
            if wqe.flags.contains(SendFlags::FENCE) && unanswered > 0 {
                return Step::Idle;
            }
            if answered && max_rd_atomic == 0 {
                core.explain(host, None, What::NoRdAtomic);
                return self.fail_next(core, WcStatus::LocQpOpErr, Cause::LocalOperation, host);
            }
            if wqe.is_local() {
                return self.execute_local(core, host);
            }
            self.begin(core);
        }
        if answered {
            // A peer that joins the parts of a READ counts them once, if they are multi-path packets.
            let joined = self.sq.answered_len() as u32;
            let joins = core.joins_reads && context.stamp.tag.is_some();
            let outstanding = if joins { joined } else { unanswered };
            if outstanding >= max_rd_atomic {
                return Step::Idle;
            }
            self.request(core, context, host)
        } else {
            self.send_data(core, context, host)
        }
    }

    /// Gives the next work request its sequence numbers.
    fn begin(&mut self, core: &Core) {
        let first = self.flight.next();
        let (msg, recv) = (self.msg, self.recv);
        let Some(wqe) = self.sq.next_mut() else { return };
        wqe.first = first;
        let alone = wqe.is_atomic() || wqe.is_placement();
        wqe.packets = if alone { 1 } else { wqe.len.div_ceil(core.attr.path_mtu).max(1) };
        wqe.msg = msg;
        wqe.recv = recv;
        self.recv = recv.wrapping_add(u32::from(wqe.consumes_receive()));
        self.msg = msg.wrapping_add(1);
        self.progress = Some(0);
    }

    /// Notes that `n` more packets of the next work request were sent.
    #[inline]
    fn advance_next(&mut self, k: u32, n: u32, packets: u32) {
        if k + n == packets {
            self.progress = None;
            self.sq.next_is_sent();
        } else {
            self.progress = Some(k + n);
        }
    }

    /// Sends a burst of a SEND or WRITE.
    fn send_data<H: Host>(
        &mut self,
        core: &mut Core,
        context: &mut SendContext,
        host: &mut H,
    ) -> Step {
        let mtu = core.attr.path_mtu;
        let room = self.flight.room(core.in_flight_max);
        let k = self.progress.unwrap_or(0);
        let Some(wqe) = self.sq.next() else { return Step::Idle };
        let packets = wqe.packets;
        let wanted = (packets - k).min(burst_packets(mtu)).min(room);
        if wanted == 0 {
            return Step::Idle; // An acknowledgement was asked for.
        }
        let last_len = wqe.packet_len(k + wanted - 1, mtu);
        let n = context.fit(wanted, mtu, last_len, self.flight.charged() == 0);
        if n == 0 {
            return Step::Blocked;
        }
        let ends = k + n == packets;
        let ack_req = (ends && (wqe.is_signaled(core) || !self.sq.more_follow()))
            || self.unasked + n >= ACK_EVERY
            || n < wanted
            || n == room
            || context.window < (n + 2) * (mtu + PACKET_COST);
        let total = wqe.len;
        let changing = self.flight.next() < self.wary_until;
        let cost = (total - k * mtu).min(n * mtu) + n * PACKET_COST;
        if context.decide_copy(cost) {
            core.counters.copies_left_out += u64::from(n);
        }
        match emit_data(core, wqe, k, n, ack_req, context.path, context.stamp, changing, host) {
            Ok(()) => {
                self.unasked = if ack_req { 0 } else { self.unasked + n };
                self.note_sent(context, k, n, total, mtu, host);
                self.advance_next(k, n, packets);
                Step::Sent((total - k * mtu).min(n * mtu))
            }
            Err(Failure { status, cause, sent }) => {
                // The peer acknowledges what was sent, and all before it.
                if sent > 0 {
                    context.leave_out_copy();
                    self.note_sent(context, k, sent, total, mtu, host);
                    self.advance_next(k, sent, packets);
                }
                self.fail_next(core, status, cause, host)
            }
        }
    }

    /// Notes that packets `k..k + n` of a message of `total` bytes are on their way.
    #[inline]
    fn note_sent<H: Host>(
        &mut self,
        context: &mut SendContext,
        k: u32,
        n: u32,
        total: u32,
        mtu: u32,
        host: &mut H,
    ) {
        let mut cost = 0;
        for i in k..k + n {
            let len = (total - i * mtu).min(mtu);
            cost += self.flight.push(context.path, len, context.twice(), context.stamp.now_us);
        }
        context.charge(cost, host);
    }

    /// Sends an atomic, an ATOMIC WRITE, a FLUSH, or a request for the next piece of a READ.
    fn request<H: Host>(
        &mut self,
        core: &mut Core,
        context: &mut SendContext,
        host: &mut H,
    ) -> Step {
        let mtu = core.attr.path_mtu;
        let k = self.progress.unwrap_or(0);
        let Some(wqe) = self.sq.next() else { return Step::Idle };
        let packets = wqe.packets;
        let alone = self.flight.charged() == 0;
        let possible = (packets - k).min(READ_MAX_BYTES / mtu);
        let wanted = possible.min(self.flight.room(core.in_flight_max));
        if wanted == 0 {
            return Step::Idle;
        }
        let mut n = wanted;
        if wqe.is_read() {
            let last_len = wqe.packet_len(k + wanted - 1, mtu);
            n = context.fit(wanted, mtu, last_len, alone);
            // A request for a few bytes costs as much as a large one, so it waits until the path's
            // window has opened by a share.
            let here = self.flight.charged_on(context.path);
            let fits = here + context.window / (mtu + PACKET_COST);
            let whole = fits.min(core.in_flight_max);
            let least = (whole / READ_SHARE).max(READ_MIN_BYTES.div_ceil(mtu));
            if n < possible.min(least) && here > 0 {
                return if n < wanted { Step::Blocked } else { Step::Idle };
            }
        } else if context.window < 8 + PACKET_COST && !alone {
            return Step::Blocked;
        }
        if n == 0 {
            return Step::Blocked;
        }
        let len = wqe.len;
        if context.decide_copy((len - k * mtu).min(n * mtu) + n * PACKET_COST) {
            core.counters.copies_left_out += 1;
        }
        if let Err(Failure { status, cause, .. }) = emit_request(core, wqe, k, n, context, host) {
            return self.fail_next(core, status, cause, host);
        }
        let mut cost = 0;
        for i in k..k + n {
            let flags = if i + 1 == k + n { ANSWERED | END } else { ANSWERED };
            let len = (len - i * mtu).min(mtu);
            let flags = flags | context.twice();
            cost += self.flight.push(context.path, len, flags, context.stamp.now_us);
        }
        context.charge(cost, host);
        host.asked(context.path);
        self.unasked = 0; // The answer acknowledges all before it.
        self.advance_next(k, n, packets);
        Step::Sent(cost)
    }

    /// Sends the first run of lost packets again.
    fn resend<H: Host>(
        &mut self,
        core: &mut Core,
        context: &mut SendContext,
        host: &mut H,
    ) -> Step {
        let mtu = core.attr.path_mtu;
        let Some((seq, run)) = self.flight.lost_run(burst_packets(mtu)) else {
            return Step::Idle;
        };
        let Some(at) = self.sq.find(seq, self.progress.is_some()) else {
            debug_assert!(false, "a packet in flight belongs to no work request");
            return Step::Idle;
        };
        let Some(wqe) = self.sq.get(at) else { return Step::Idle };
        if wqe.failed.is_some() {
            // What comes after it is never executed; it fails when everything before it is
            // complete.
            return self.drop_failing(seq, host);
        }
        let k = (seq - wqe.first) as u32;
        let mut n = run.min(wqe.packets - k);
        let alone = self.flight.charged() == 0;
        if wqe.is_read() {
            // A request packet is small however much it asks for, and must not be cut.
            self.urgent = false;
            let mut tally = Tally::default();
            n = self.flight.request_again(seq, n, context.stamp.tag.is_some(), &mut tally);
            tally.lost(false, host);
        } else if core::mem::take(&mut self.urgent) {
            // A probe, or the first packets by a new path: the window does not count.
            n = n.min((context.window / (mtu + PACKET_COST)).max(1));
        } else {
            n = context.fit(n, mtu, wqe.packet_len(k + n - 1, mtu), alone);
        }
        if n == 0 {
            return Step::Blocked;
        }
        // A peer that uses several paths covers it by the IBTA's rule.
        if wqe.is_flush() && !core.multipath {
            self.flush_cover.sends_again();
            context.flush_twice = self.flush_cover.twice();
        }
        if context.decide_copy(self.flight.cost_again(seq, n)) {
            core.counters.copies_left_out += u64::from(if wqe.is_answered() { 1 } else { n });
        }
        let sent = if wqe.is_answered() {
            emit_request(core, wqe, k, n, context, host)
        } else {
            // Perhaps it was not lost: its bytes may have changed between computing the ICRC and
            // sending, so that the ICRC was wrong. So the packets that follow are copied, too.
            self.wary_until = self.flight.next() + WARY_PACKETS;
            emit_data(core, wqe, k, n, true, context.path, context.stamp, true, host)
        };
        if let Err(Failure { status, cause, .. }) = sent {
            self.fail_when_reached(core, at, status, cause, host);
            return Step::Local;
        }
        core.counters.retransmitted_packets += u64::from(n);
        let (path, twice) = (context.path, context.twice());
        let cost = self.flight.resend(seq, n, path, twice, context.stamp.now_us);
        context.charge(cost, host);
        Step::Sent(cost)
    }

    /// Lost packets of a work request that fails anyway, and of all after it, count as done.
    fn drop_failing<H: Host>(&mut self, seq: u64, host: &mut H) -> Step {
        let mut tally = Tally::default();
        let next = self.flight.next();
        self.flight.lose_range(seq, next, &mut tally);
        tally.lost(false, host);
        Step::Idle
    }

    /// Executes a work request that needs no packet.
    fn execute_local<H: Host>(&mut self, core: &mut Core, host: &mut H) -> Step {
        let key = |rkey| core.key(core.config.pd, rkey);
        let next = self.flight.next();
        let Some(wqe) = self.sq.next_mut() else { return Step::Idle };
        wqe.first = next;
        let done = match wqe.op {
            SendOp::LocalInv { rkey } => host
                .invalidate(key(rkey))
                .map_err(|fault| (WcStatus::LocQpOpErr, What::LocalInvalidate { fault })),
            SendOp::BindMw { mw, rkey } => host
                .bind_mw(mw, key(rkey))
                .map_err(|fault| (WcStatus::MwBindErr, What::WindowBind { fault })),
            _ => return Step::Idle,
        };
        if let Err((status, what)) = done {
            core.explain(host, None, what);
            return self.fail_next(core, status, Cause::LocalOperation, host);
        }
        self.sq.next_is_sent();
        self.retire(core, host);
        Step::Local
    }

    /// Makes the next work request, which can't be transmitted, fail when all before it are
    /// complete.
    fn fail_next<H: Host>(
        &mut self,
        core: &mut Core,
        status: WcStatus,
        cause: Cause,
        host: &mut H,
    ) -> Step {
        self.fail_when_reached(core, self.sq.sent_len(), status, cause, host);
        Step::Idle
    }
}

/// How a work request that can't be transmitted completes.
pub(crate) struct Failure {
    pub(crate) status: WcStatus,
    pub(crate) cause: Cause,
    /// The number of packets that were sent nevertheless.
    sent: u32,
}

impl Failure {
    /// The failure of a local operation.
    pub(crate) fn local(status: WcStatus) -> Self {
        Self { status, cause: Cause::LocalOperation, sent: 0 }
    }
}

/// Transmits packets `k..k + n` of a SEND or WRITE.
#[inline]
#[allow(clippy::too_many_arguments)] // The inner loop of all services: no struct to fill.
pub(crate) fn emit_data<H: Host>(
    core: &mut Core,
    wqe: &Wqe,
    k: u32,
    n: u32,
    ack_req: bool,
    path: PathId,
    stamp: Stamp,
    changing: bool,
    host: &mut H,
) -> Result<(), Failure> {
    let mtu = core.attr.path_mtu;
    let start = k * mtu;
    let len = (wqe.len - start).min(n * mtu);
    let gathered;
    let payload = match &wqe.body {
        Body::Inline(data) => Payload::Bytes(&data[start as usize..(start + len) as usize]),
        Body::Sges(sges) => {
            gathered = gather(core.config.pd, sges, start, len, Access::empty(), host)
                .map_err(|fault| local_fault(core, wqe, fault, host))?;
            Payload::Memory { segments: &gathered.segments, skip: gathered.skip, len }
        }
    };
    let first = build::data(core, wqe, k, ack_req && n == 1, stamp);
    let last = (n > 1).then(|| build::data(core, wqe, k + n - 1, ack_req, stamp));
    let middle = (n > 2).then(|| build::data(core, wqe, k + 1, false, stamp));
    let last = last.as_ref().unwrap_or(&first);
    let middle = middle.as_ref().unwrap_or(&first);
    let first = &first;
    let covered_twice = false;
    let burst =
        Burst { path, first, middle, last, packets: n, mtu, payload, covered_twice, changing };
    core.transmit_by(&burst, stamp.twin, host).map_err(|unread| unsent(core, wqe, unread, host))
}

/// Transmits an atomic, an ATOMIC WRITE, a FLUSH, or the request for packets `k..k + n` of a READ.
fn emit_request<H: Host>(
    core: &mut Core,
    wqe: &Wqe,
    k: u32,
    n: u32,
    context: &SendContext,
    host: &mut H,
) -> Result<(), Failure> {
    if wqe.is_placement() {
        return emit_placement(core, wqe, context, host);
    }
    let mtu = core.attr.path_mtu;
    // The destination of the answer is checked before the request is sent, and again when the
    // answer comes.
    if let Body::Sges(sges) = &wqe.body {
        let start = k * mtu;
        let len = (wqe.len - start).min(n * mtu);
        gather(core.config.pd, sges, start, len, Access::LOCAL_WRITE, host)
            .map_err(|fault| local_fault(core, wqe, fault, host))?;
    }
    let headers = if wqe.is_read() {
        build::read(core, wqe, k, n, context.stamp)
    } else {
        build::atomic(core, wqe, context.stamp)
    };
    let burst = Burst::single(context.path, &headers, mtu, Payload::Bytes(&[]));
    let twin = context.stamp.twin;
    core.transmit_by(&burst, twin, host).map_err(|unread| unsent(core, wqe, unread, host))
}

/// Transmits an ATOMIC WRITE or a FLUSH.
fn emit_placement<H: Host>(
    core: &mut Core,
    wqe: &Wqe,
    context: &SendContext,
    host: &mut H,
) -> Result<(), Failure> {
    let gathered;
    let payload = match &wqe.body {
        Body::Inline(data) => Payload::Bytes(data),
        Body::Sges(sges) => {
            gathered = gather(core.config.pd, sges, 0, wqe.len, Access::empty(), host)
                .map_err(|fault| local_fault(core, wqe, fault, host))?;
            Payload::Memory { segments: &gathered.segments, skip: gathered.skip, len: wqe.len }
        }
    };
    let headers = build::placement(core, wqe, context.stamp);
    let burst = Burst {
        covered_twice: wqe.is_flush() && context.flush_twice,
        ..Burst::single(context.path, &headers, core.attr.path_mtu, payload)
    };
    let twin = context.stamp.twin;
    core.transmit_by(&burst, twin, host).map_err(|unread| unsent(core, wqe, unread, host))
}

/// Reports that the memory of a work request was there when it was checked, but not when it was
/// read.
#[cold]
pub(crate) fn unsent<H: Host>(core: &Core, wqe: &Wqe, unread: Unread, host: &mut H) -> Failure {
    Failure { sent: unread.sent, ..local_fault(core, wqe, Fault::Gone, host) }
}

pub(crate) fn local_fault<H: Host>(core: &Core, wqe: &Wqe, fault: Fault, host: &mut H) -> Failure {
    let what = What::LocalMemory { wr_id: wqe.wr_id, psn: psn(wqe.first), fault };
    core.explain(host, None, what);
    Failure { status: WcStatus::LocProtErr, cause: Cause::LocalKey, sent: 0 }
}
