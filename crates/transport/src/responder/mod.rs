//! The RC responder: takes requests and executes them strictly in order, each exactly once.
//!
//! [`execute`] executes requests, [`answer`] sends what goes back, [`resources`] knows what may
//! have to be answered again, and [`reorder`] keeps packets that came too early. A request is
//! expected, a duplicate, or ahead (IBTA 9.7.1). An expected one is executed. A duplicate is
//! answered again without being executed again, if it is known to have been executed. One that is
//! ahead is kept (multi-path) or complained about once (plain).

mod answer;
mod check;
mod data;
mod early;
pub(crate) mod execute;
mod frozen;
mod reorder;
mod resources;

use std::collections::VecDeque;

use polypath_wire::ext::{NakCode, Reth};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::REACH;
use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::{BadRequest, What};
use crate::host::Host;
use crate::migration::is_question;
use crate::rq::{CompletedRecv, ReceiveQueue};
use answer::{Due, Job, ReadJob, Reply};
use data::Data;
use execute::Inbound;
use polypath_types::{Access, PathId, PostError, QpEvent, RecvWr, WcStatus};
pub(crate) use reorder::REORDER_LIMIT;
use reorder::{Offered, Reorder};
use resources::{Again, Resources};

/// The most answers that wait to be sent again, unless twice as many READs may be outstanding. What is asked
/// for beyond that is left out: the peer asks again.
const AGAIN_MAX: usize = 256;
/// Sequence numbers start at this plus the first PSN, so that a duplicate's number is never
/// negative.
const SEQ_BASE: u64 = 1 << 24;

/// So many repetitions of a request show that its answers do not arrive.
const REPEATS: u8 = 3;

/// Whether a request has an answer of its own, which acknowledges it.
fn is_answered(opcode: Opcode) -> bool {
    opcode.is_read_request() || opcode.is_atomic() || opcode.is_atomic_write() || opcode.is_flush()
}

/// Counts a request that has come before.
fn count_duplicate(core: &mut Core, reply: Reply) {
    if reply.twice {
        core.counters.copies_second += 1;
    } else {
        core.counters.duplicate_requests += 1;
    }
}

/// The result of executing a request.
enum Outcome {
    /// Executed; it takes this many sequence numbers.
    Done(u32),
    /// A receive work request is missing.
    NotReady,
    /// It changes memory that has to be read first for answers that are still to be sent.
    Wait,
    /// It can never be executed.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy)]
struct Refusal {
    nak: NakCode,
    /// How the receive work request in hand completes, if there is one.
    status: WcStatus,
    cause: Cause,
    why: BadRequest,
}

impl Refusal {
    const fn invalid(why: BadRequest) -> Self {
        Self {
            nak: NakCode::InvalidRequest,
            status: WcStatus::RemInvReqErr,
            cause: Cause::PeerRequest,
            why,
        }
    }

    const fn access(why: BadRequest) -> Self {
        Self {
            nak: NakCode::RemoteAccess,
            status: WcStatus::RemAccessErr,
            cause: Cause::PeerRequest,
            why,
        }
    }
}

/// The responder.
#[derive(Clone, Debug)]
pub(crate) struct Responder {
    rq: ReceiveQueue,
    /// The expected sequence number; its low 24 bits are the expected PSN.
    next: u64,
    /// The number of messages executed, 24 bits.
    msn: u32,
    /// The message that is arriving.
    message: Option<Inbound>,
    /// Whether a NAK or RNR NAK was sent for the expected PSN: no second one is sent before it
    /// arrives.
    complained: bool,
    due: Option<Due>,
    /// The answers to READs and atomics that are still to be sent, in order.
    jobs: VecDeque<Job>,
    /// The latest requests that were answered, or are to be.
    resources: Resources,
    reorder: Reorder,
    /// Whether the expected packet is here and waits for the answers to be sent first (multi-path).
    waiting: bool,
    /// Whether a request was refused: nothing more is executed, and the queue pair ends when this
    /// is answered.
    ending: bool,
    /// Whether no living path can carry answers.
    held: bool,
    /// The first request that came again since the last new one, and how often it did.
    repeated: Option<(Psn, u8)>,
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            rq: ReceiveQueue::default(),
            next: SEQ_BASE,
            msn: 0,
            message: None,
            complained: false,
            due: None,
            jobs: VecDeque::new(),
            resources: Resources::default(),
            reorder: Reorder::default(),
            waiting: false,
            ending: false,
            held: false,
            repeated: None,
        }
    }

    /// The queue pair went from INIT to RTR: the first packet has the PSN `rq_psn`.
    pub(crate) fn start(&mut self, rq_psn: u32) {
        self.next = SEQ_BASE + u64::from(rq_psn & 0xff_ffff);
    }

    /// The expected PSN.
    #[inline]
    pub(crate) fn epsn(&self) -> Psn {
        Psn::new(self.next as u32)
    }

    /// The sequence number with this PSN that is nearest to the expected one.
    #[inline]
    fn expand(&self, psn: Psn) -> u64 {
        self.next.wrapping_add_signed(i64::from(psn.diff(self.epsn())))
    }

    /// Forgets everything.
    pub(crate) fn clear<H: Host>(&mut self, host: &mut H) {
        self.reorder.clear(host);
        *self = Self::new();
    }

    pub(crate) fn post(&mut self, core: &Core, wr: RecvWr) -> Result<(), PostError> {
        self.rq.post(core, wr)
    }

    /// Whether [`Responder::flush`] has receives to flush.
    pub(crate) fn has_receives(&self) -> bool {
        !self.rq.is_empty()
    }

    /// Completes everything posted with `WrFlushErr`: the queue pair is in the error state.
    pub(crate) fn flush<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        self.jobs.clear();
        self.due = None;
        self.message = None;
        self.reorder.clear(host);
        self.resources = Resources::default();
        self.waiting = false;
        self.rq.flush(core, host);
    }

    /// Takes a request.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        core: &mut Core,
        packet: &Packet<'_>,
        from: PathId,
        host: &mut H,
    ) {
        if self.ending {
            core.counters.dropped_state += 1;
            return;
        }
        core.note_request(host);
        let ahead = packet.headers.bth.psn.diff(self.epsn());
        if ahead == 0 {
            let reply = Reply::to(&packet.headers, from);
            let data = Data::Here(packet.payload);
            if self.take(core, &packet.headers, data, from, None, host) {
                self.drain(core, Some(reply), host);
            }
        } else if ahead < 0 {
            self.duplicate(core, packet, from, host);
        } else {
            self.ahead(core, ahead as usize, packet, from, host);
        }
    }

    /// Executes the expected packet, which came by `from`. Returns false if no further packet can
    /// be executed. `came` says how to acknowledge the packet that it had to wait for, if that has
    /// just arrived: the time that this one has waited is no part of its round trip.
    #[inline]
    fn take<H: Host>(
        &mut self,
        core: &mut Core,
        headers: &Headers,
        data: Data<'_>,
        from: PathId,
        came: Option<Reply>,
        host: &mut H,
    ) -> bool {
        let reply = Reply::to(headers, from);
        let came = came.unwrap_or(reply);
        match self.execute(core, headers, data, reply, host) {
            Outcome::Done(n) => {
                self.next += u64::from(n);
                self.complained = false;
                self.repeated = None;
                self.reorder.advance(n, host);
                let opcode = headers.bth.opcode.base();
                if is_answered(opcode) {
                    self.answered(came);
                } else {
                    self.executed(headers.bth.ack_req, came);
                }
                true
            }
            Outcome::NotReady => {
                core.counters.naks_rnr_sent += 1;
                self.complained = true;
                self.not_ready(core, came);
                false
            }
            Outcome::Wait if reply.multipath => {
                self.waiting = true;
                self.reorder.offer(0, 1, headers, data, from, host);
                self.acknowledge(reply);
                false
            }
            Outcome::Wait => {
                // The complaint is sent after the answers, and makes the peer send the request
                // again.
                core.counters.naks_sequence_sent += 1;
                self.complained = true;
                self.sequence_error(reply);
                false
            }
            Outcome::Refused(refusal) => {
                let psn = self.epsn();
                self.refuse(core, psn, refusal, came, host);
                false
            }
        }
    }

    /// Executes the packets that were waiting. If they waited for a packet that has just arrived,
    /// they are acknowledged like that one (`came`).
    fn drain<H: Host>(&mut self, core: &mut Core, came: Option<Reply>, host: &mut H) {
        if self.reorder.is_empty() {
            return;
        }
        while let Some(early) = self.reorder.take() {
            let done = self.take(core, &early.headers, early.data(), early.from, came, host);
            // A packet that found no receive is not kept: the peer has to know that it must send it
            // again.
            self.reorder.recycle(early, host);
            if !done {
                break;
            }
        }
    }

    /// Handles a request that was executed before (IBTA 9.7.1, 9.7.4.1.3). If its answer is more
    /// than an acknowledgement, it must be known to have been executed, so that somebody who
    /// guesses PSNs gets nothing.
    fn duplicate<H: Host>(
        &mut self,
        core: &mut Core,
        packet: &Packet<'_>,
        from: PathId,
        host: &mut H,
    ) {
        let h = &packet.headers;
        let psn = h.bth.psn;
        let reply = Reply::to(h, from);
        if !is_answered(h.bth.opcode.base()) {
            count_duplicate(core, reply);
            // Questions of a queue pair that migrates are repeated until an answer by a certain path comes.
            if !is_question(packet) || !core.may_migrate() {
                self.note_repeated(psn, reply, host);
            }
            // What was sent by two paths is answered for each of them, and as seldom.
            if h.bth.ack_req || !reply.twice {
                self.acknowledge(reply);
            }
            return;
        }
        let Some(again) = self.resources.find(self.expand(psn), h, core.attr.path_mtu) else {
            core.counters.dropped_no_original += 1;
            return;
        };
        count_duplicate(core, reply);
        self.note_repeated(psn, reply, host);
        let reth = h.reth.unwrap_or_default();
        match again {
            Again::Read { pd, packets } => {
                let still = core.attr.access.contains(Access::REMOTE_READ)
                    && h.xrc.is_none_or(|eth| host.xrc_pd(eth.srqn) == Some(pd));
                if !still {
                    return self.refuse_again(core, psn, reply, from, host);
                }
                let job = ReadJob::new(psn, &reth, pd, true, self.msn, reply);
                self.repeat(core, Job::Read(job), packets);
            }
            Again::Atomic { value } => {
                let job = Job::Atomic { psn, value, again: true, msn: self.msn, reply };
                self.repeat(core, job, 1);
            }
            Again::Empty => {
                let nothing = Reth::default();
                let job = ReadJob::new(psn, &nothing, core.peer_pd, true, self.msn, reply);
                self.repeat(core, Job::Read(job), 1);
            }
        }
    }

    /// A plain peer sends a request again once if the request or its answer was lost, and again and again if
    /// no answer arrives.
    fn note_repeated<H: Host>(&mut self, psn: Psn, reply: Reply, host: &mut H) {
        let (first, times) = self.repeated.get_or_insert((psn, 0));
        if reply.multipath || *first != psn {
            return;
        }
        *times = times.saturating_add(1);
        if *times >= REPEATS {
            host.unheard(reply.path);
        }
    }

    /// Answers a request again.
    fn repeat(&mut self, core: &mut Core, job: Job, n: u32) {
        let (first, multipath) = (job.psn(), job.reply().multipath);
        if multipath {
            // A multi-path peer asks again only for what it misses.
            let mtu = core.attr.path_mtu;
            let last = first.add(n - 1);
            let by = job.reply();
            let pending = self.jobs.iter().any(|j| {
                // What was asked by two paths is answered by both.
                (!by.twice || j.reply().path == by.path)
                    && first.diff(j.psn()) >= 0
                    && last.diff(j.psn().add(j.packets(mtu) - 1)) <= 0
            });
            if pending {
                return;
            }
        } else {
            // A plain peer goes back: it will ask again for everything that follows, too.
            let mtu = core.attr.path_mtu;
            self.jobs.retain_mut(|j| j.cut(first, mtu));
        }
        let again = self.jobs.iter().filter(|job| job.is_again()).count();
        if again >= AGAIN_MAX.max(usize::from(core.attr.max_dest_rd_atomic) * 2) {
            core.counters.dropped_reorder += 1;
            return;
        }
        self.jobs.push_back(job);
    }

    /// Handles a request whose predecessors have not come.
    fn ahead<H: Host>(
        &mut self,
        core: &mut Core,
        ahead: usize,
        packet: &Packet<'_>,
        from: PathId,
        host: &mut H,
    ) {
        core.counters.out_of_order += 1;
        let reply = Reply::to(&packet.headers, from);
        if !reply.multipath {
            if !self.complained {
                self.complained = true;
                core.counters.naks_sequence_sent += 1;
                self.sequence_error(reply);
            }
            return;
        }
        let limit = core.psns(REACH) as usize;
        let (headers, payload) = (&packet.headers, packet.payload);
        let placed = (self.reorder.is_vacant(ahead, limit))
            .then(|| self.place(core, ahead as u32, headers, payload, host))
            .flatten();
        let data = placed.map_or(Data::Here(payload), Data::Placed);
        match self.reorder.offer(ahead, limit, headers, data, from, host) {
            Offered::Kept => core.counters.placed_early += u64::from(placed.is_some()),
            Offered::Duplicate => count_duplicate(core, reply),
            Offered::Contradicts => core.counters.dropped_reorder += 2,
            Offered::TooFar | Offered::NoMemory => core.counters.dropped_reorder += 1,
        }
        self.acknowledge(reply);
    }

    /// Refuses the request with `psn`: the queue pair ends (IBTA 9.9.3, classes B and C).
    fn refuse<H: Host>(
        &mut self,
        core: &mut Core,
        psn: Psn,
        refusal: Refusal,
        reply: Reply,
        host: &mut H,
    ) {
        let what = What::RequestRefused { psn, why: refusal.why };
        core.explain(host, Some(reply.path), what);
        // A receive that was taken for this very message reports the failure. Otherwise an event does,
        // because nobody would hear of it (C9-222.1.1, 10.10.2.3). A failure after execution, for
        // example of a READ whose region has gone, has nothing to do with the message that is arriving.
        if psn == self.epsn() && self.rq.has_begun() {
            let what = CompletedRecv::failed(core);
            self.rq.complete(core, refusal.status, refusal.cause, &what, host);
        } else {
            host.event(match refusal.nak {
                NakCode::RemoteAccess => QpEvent::AccessError,
                NakCode::RemoteOperational => QpEvent::Fatal,
                _ => QpEvent::RequestError,
            });
        }
        core.counters.naks_fatal_sent += 1;
        self.ending = true;
        self.fatal(psn, refusal.nak, reply);
    }
}
