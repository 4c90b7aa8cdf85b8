//! The RC requester: sends work requests, and takes acknowledgements and answers.
//!
//! Sequence numbers are 64 bits inside, so that they neither wrap nor compare wrongly; their low 24
//! bits are the PSN. [`flight`] knows what is on its way, [`timers`] when to give up waiting;
//! [`transmit`] builds packets, and [`receive`] reads the peer's answers.

mod build;
mod check;
mod cover;
mod flight;
mod frozen;
mod on_path;
mod receive;
mod route;
mod tally;
mod timers;
mod transmit;

use core::time::Duration;

use polypath_wire::ext::{Reth, XrcEth};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Headers;
use polypath_wire::psn::Psn;

use crate::burst::{Burst, Payload};
use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::What;
use crate::host::Host;
use crate::sq::SendQueue;
pub(crate) use build::Stamp;
use cover::FlushCover;
use flight::Flight;
use on_path::Probe;
use polypath_types::{PathId, PeerId, PostError, QpEvent, QpState, QpType, SendWr, WcStatus};
use tally::Tally;
use timers::{Expired, Timers, probe_limit};
pub(crate) use transmit::{Failure, burst_packets, emit_data, local_fault, unsent};

/// Sequence numbers start at this plus the first PSN, so that a duplicate's number is never
/// negative.
const SEQ_BASE: u64 = 1 << 24;

/// The PSN of a sequence number.
#[inline]
pub(crate) fn psn(seq: u64) -> Psn {
    Psn::new(seq as u32)
}

/// The time as packets carry it: microseconds, wrapping.
#[inline]
pub(crate) fn micros(now: Duration) -> u32 {
    now.as_micros() as u32
}

/// The requester.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    sq: SendQueue,
    flight: Flight,
    timers: Timers,
    /// The number of packets transmitted of the work request to transmit next, if it was started.
    progress: Option<u32>,
    /// The number of messages started.
    msg: u32,
    /// The number of messages started that consume a receive.
    recv: u32,
    /// The number of packets sent since an acknowledgement was asked for.
    unasked: u32,
    /// Whether the next retransmission ignores the window (it is a probe).
    urgent: bool,
    /// Whether a work request fails as soon as all before it are complete: nothing new is sent.
    has_failing: bool,
    /// Whether no path lives.
    held: bool,
    /// Whether there may be something to transmit.
    ready: bool,
    flush_cover: FlushCover,
    /// Packets before this sequence number are sent as copies of their payload.
    wary_until: u64,
    /// Whether it was frozen while it waited for the peer: sending again does not restart the wait.
    waits_on: bool,
    /// Whether packets may be in flight that were sent by two paths at once.
    sends_twice: bool,
}

impl Requester {
    pub(crate) fn new() -> Self {
        Self {
            sq: SendQueue::default(),
            flight: Flight::new(SEQ_BASE),
            timers: Timers::new(),
            progress: None,
            msg: 0,
            recv: 0,
            unasked: 0,
            urgent: false,
            has_failing: false,
            held: false,
            ready: false,
            flush_cover: FlushCover::default(),
            wary_until: 0,
            waits_on: false,
            sends_twice: false,
        }
    }

    /// The PSN of the next new packet.
    pub(crate) fn next_psn(&self) -> u32 {
        psn(self.flight.next()).get()
    }

    /// The queue pair went from RTR to RTS: the first packet has the PSN `sq_psn`.
    pub(crate) fn start(&mut self, sq_psn: u32) {
        debug_assert!(self.flight.is_empty());
        self.flight = Flight::new(SEQ_BASE + u64::from(sq_psn & 0xff_ffff));
        self.ready = true;
    }

    /// Forgets everything; the host gets back what was charged.
    pub(crate) fn clear<H: Host>(&mut self, core: &Core, host: &mut H) {
        self.flight.clear(SEQ_BASE, host);
        self.sq.clear(core, host);
        *self = Self { sq: core::mem::take(&mut self.sq), ..Self::new() };
    }

    /// The number of work requests that may be posted before the queue is full.
    pub(crate) fn send_room(&self, core: &Core) -> usize {
        self.sq.room(core)
    }

    pub(crate) fn post(
        &mut self,
        core: &Core,
        wr: &SendWr<'_>,
        srqn: u32,
    ) -> Result<(), PostError> {
        self.sq.post(core, wr, srqn)?;
        self.ready = true;
        Ok(())
    }

    /// Whether [`Requester::poll`] may have something to do.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Completes everything posted with `WrFlushErr`: the queue pair is in the error state.
    pub(crate) fn flush<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        let next = self.flight.next();
        self.flight.clear(next, host);
        self.sq.flush(core, host);
        self.timers.clear();
        self.progress = None;
        self.has_failing = false;
        self.held = false;
        self.ready = false;
    }

    /// Whose probe is due next, and when.
    #[inline]
    fn probe_due(&self, core: &Core) -> Option<(PathId, Duration)> {
        self.flight.probe_due(probe_limit(core.attr.timeout))
    }

    #[inline]
    pub(crate) fn deadline(&self, core: &Core) -> Option<Duration> {
        if self.held {
            return None;
        }
        self.timers.deadline(self.probe_due(core).map(|(_, at)| at), core.attr.timeout)
    }

    /// When there last was progress.
    pub(crate) fn progress_at(&self) -> Duration {
        self.timers.progress_at()
    }

    /// Whether something is outstanding.
    pub(crate) fn is_waiting(&self) -> bool {
        self.flight.waits()
    }

    /// Has probes, which may have become rare, follow soon after each other again.
    pub(crate) fn hurry(&mut self, now: Duration) {
        self.flight.paths_mut().hurry(now);
    }

    /// Another path answers: asks again soon by this one, which is silent.
    pub(crate) fn compare(&mut self, now: Duration) {
        self.flight.paths_mut().compare(now);
    }

    /// Restarts all timers and retries: there was progress, or the earlier trouble was not the
    /// peer's.
    fn be_patient(&mut self, core: &Core, now: Duration) {
        self.timers.restart(now, core.attr.retry_cnt, core.attr.rnr_retry);
        self.flight.paths_mut().restart(now);
    }

    /// Notes progress: the oldest packet was acknowledged, or the first one is sent.
    #[inline]
    fn has_progress(&mut self, core: &Core, now: Duration) {
        self.timers.progress(now, core.attr.retry_cnt, core.attr.rnr_retry);
        self.flight.paths_mut().restart(now);
    }

    /// Notes that everything was sent again: the timers restart, the retry counters stay.
    fn has_resent(&mut self, now: Duration) {
        self.timers.resent(now);
        self.flight.paths_mut().resent(now);
    }

    /// Handles the timers that have expired.
    pub(crate) fn handle_timeout<H: Host>(&mut self, core: &mut Core, now: Duration, host: &mut H) {
        if self.held || self.deadline(core).is_none_or(|d| now < d) {
            return;
        }
        let in_flight = self.flight.waits();
        if in_flight && core.peer.is_none_or(|peer| host.route(peer).is_none()) {
            self.held = true;
            return;
        }
        let oldest = self.flight.oldest().map(|(path, _)| path);
        let una = self.flight.una();
        let due = self.probe_due(core);
        let probe_at = due.map(|(_, at)| at);
        match self.timers.expired(now, probe_at, core.attr.timeout, core.multipath) {
            Expired::Nothing => {}
            Expired::Rnr => {
                self.flight.paths_mut().resent(now);
                self.ready = true;
            }
            Expired::Probe => {
                core.counters.tail_probes += 1;
                if let Some((path, _)) = due {
                    host.suspect(path, self.timers.progress_at());
                    self.flight.paths_mut().on(path).timer.probed(now);
                    let first =
                        if oldest == Some(path) { None } else { self.flight.oldest_on(path) };
                    self.send_probe(path, first.unwrap_or(una), now, host);
                    if core.config.qp_type == QpType::Rc && core.can_migrate(host) {
                        core.migration.compare(self.timers.progress_at());
                        self.repeat_acknowledged_to(core.migration.alternate, core, host);
                    } else if core.asks_by_alternate() {
                        // It is needed now, and the next question may be a second away.
                        self.repeat_acknowledged_to(core.migration.alternate, core, host);
                    }
                }
            }
            Expired::Ack => {
                self.flight.paths_mut().resent(now);
                core.counters.timeouts += 1;
                if let Some(path) = oldest {
                    host.suspect(path, self.timers.progress_at());
                }
                let mut tally = Tally::default();
                self.flight.lose_all(&mut tally);
                tally.lost(true, host);
                self.flight.paths_mut().drop_probes();
                self.urgent = true;
                self.ready = true;
            }
            Expired::Exhausted => {
                self.flight.paths_mut().resent(now);
                core.counters.timeouts += 1;
                if !core.gives_up(host) {
                    return;
                }
                let (retries, timeout) = (core.attr.retry_cnt, core.attr.timeout);
                let what = What::Unacknowledged { psn: psn(una), retries, timeout };
                core.explain(host, oldest, what);
                self.fail_front(core, WcStatus::RetryExcErr, Cause::RetriesExhausted, host);
            }
        }
    }

    /// Sends the first unacknowledged packet on a path again, to learn what became of it and of the
    /// rest.
    fn send_probe<H: Host>(&mut self, path: PathId, seq: u64, now: Duration, host: &mut H) {
        let mut tally = Tally::default();
        self.flight.lose_even_sacked(seq, &mut tally);
        tally.lost(false, host);
        let upto = self.flight.next();
        let answer_to = self.flight.answer_end(seq);
        let probe = Probe { seq, answer_to, upto, sent_us: micros(now), by: None };
        self.flight.paths_mut().on(path).probe = Some(probe);
        self.urgent = true;
        self.ready = true;
    }

    /// See [`crate::QueuePair::on_path_heard`].
    pub(crate) fn on_path_heard<H: Host>(
        &mut self,
        core: &Core,
        now: Duration,
        path: PathId,
        host: &mut H,
    ) {
        if self.held || self.flight.oldest().is_none_or(|(on, _)| on != path) {
            return;
        }
        self.be_patient(core, now);
        self.send_probe(path, self.flight.una(), now, host);
    }

    /// See [`crate::QueuePair::on_path_change`].
    ///
    /// Retries belong to the queue pair (IBTA 9.9.2.1): it gets back only those that it spent on a
    /// path that had died, or may have died.
    pub(crate) fn on_path_change<H: Host>(
        &mut self,
        core: &mut Core,
        now: Duration,
        dead: impl Fn(PathId) -> bool,
        host: &mut H,
    ) {
        let hit = self.flight.uses(&dead);
        if hit {
            let mut tally = Tally::default();
            self.flight.lose_on(&dead, &mut tally);
            if !tally.is_empty() {
                core.counters.failovers += 1;
            }
            tally.lost(false, host);
        }
        let route = core.peer.and_then(|peer| host.route(peer));
        let was_held =
            core::mem::replace(&mut self.held, route.is_none() && !self.flight.is_empty());
        if let Some(route) = route {
            if hit || was_held {
                self.be_patient(core, now);
                self.flight.paths_mut().drop_probes();
            }
            self.flight.paths_mut().set_rtt(route.path, route.rtt, now);
            self.urgent |= self.flight.any_lost();
            self.ready = true;
        }
    }

    /// The queue pair has migrated: what is outstanding is to be sent again, by the new path.
    pub(crate) fn leave_paths<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        let mut tally = Tally::default();
        self.flight.lose_on(|_| true, &mut tally);
        if !tally.is_empty() {
            core.counters.failovers += 1;
        }
        tally.lost(false, host);
        self.flight.paths_mut().drop_probes();
        self.urgent |= self.flight.any_lost();
        self.held = false;
        self.ready = true;
    }

    /// After [`Requester::leave_paths`]: timers and retries begin anew.
    pub(crate) fn begin_anew<H: Host>(&mut self, core: &mut Core, now: Duration, host: &mut H) {
        self.be_patient(core, now);
        self.on_path_change(core, now, |_| false, host);
    }

    /// Sends a request that is acknowledged already: a WRITE of no bytes with the latest acknowledged
    /// PSN. The peer takes it for a duplicate and acknowledges it again (IBTA 9.7.4.1.3).
    pub(crate) fn repeat_acknowledged<H: Host>(&self, core: &mut Core, host: &mut H) {
        self.repeat_acknowledged_to(core.peer, core, host);
    }

    /// The same, to the peer as it is reached by another path set.
    pub(crate) fn repeat_acknowledged_to<H: Host>(
        &self,
        peer: Option<PeerId>,
        core: &mut Core,
        host: &mut H,
    ) {
        let Some(route) = peer.and_then(|peer| host.route(peer)) else { return };
        let mut headers = Headers::new(core.bth(Opcode::RC_WRITE_ONLY, psn(self.flight.una() - 1)));
        headers.bth.ack_req = true;
        headers.reth = Some(Reth::default());
        headers.xrc = (core.config.qp_type == QpType::XrcSend).then_some(XrcEth { srqn: 0 });
        let mtu = core.attr.path_mtu;
        let burst = Burst::single(route.path, &headers, mtu, Payload::Bytes(&[]));
        let sent = core.transmit(&burst, host);
        debug_assert!(sent.is_ok(), "it has no payload in memory");
    }

    /// See [`crate::QueuePair::on_path_dead`].
    pub(crate) fn on_path_dead<H: Host>(
        &mut self,
        core: &mut Core,
        now: Duration,
        dead: PathId,
        host: &mut H,
    ) {
        let is_dead = |path| path == dead;
        if self.flight.uses(is_dead) {
            self.on_path_change(core, now, is_dead, host);
        }
    }

    /// Makes the work request at position `at` fail once all before it are complete.
    fn fail_when_reached<H: Host>(
        &mut self,
        core: &mut Core,
        at: usize,
        status: WcStatus,
        cause: Cause,
        host: &mut H,
    ) {
        self.has_failing = true;
        if let Some(wqe) = self.sq.get_mut(at) {
            wqe.failed.get_or_insert((status, cause));
        }
        self.retire(core, host);
    }

    /// Fails the oldest work request, and with it the queue pair.
    fn fail_front<H: Host>(
        &mut self,
        core: &mut Core,
        status: WcStatus,
        cause: Cause,
        host: &mut H,
    ) {
        self.sq.complete_front(core, status, cause, host);
        core.broken = true;
    }

    /// Completes what is done, in order. A failed request completes only when all before it are
    /// complete.
    fn retire<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        while let Some(wqe) = self.sq.front() {
            if let Some((status, cause)) = wqe.failed {
                self.fail_front(core, status, cause, host);
                return;
            }
            if !self.sq.front_is_sent() || self.flight.una() < wqe.end() {
                break;
            }
            self.sq.complete_front(core, WcStatus::Success, Cause::None, host);
        }
        self.check_drained(core, host);
    }

    /// SQD: once everything that was started is complete, the send queue is drained
    /// (IBTA 10.3.1.5).
    pub(crate) fn check_drained<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        if core.attr.state == QpState::Sqd
            && core.attr.sq_draining
            && self.progress.is_none()
            && self.sq.sent_len() == 0
        {
            core.attr.sq_draining = false;
            if core.attr.en_sqd_async_notify {
                host.event(QpEvent::SqDrained);
            }
        }
    }

    /// Notes that something may be sent that could not before: the state went back to RTS.
    pub(crate) fn wake(&mut self) {
        self.ready = true;
    }
}
