//! What the peer answers: acknowledgements, NAKs, READ responses, results of atomics.

use core::time::Duration;

use polypath_wire::ext::{NakCode, SackBlock, SackBlocks, Syndrome};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Packet;
use polypath_wire::psn::Psn;

use super::tally::Tally;
use super::timers::probe_limit;
use super::{Requester, micros, psn};
use crate::PACKET_COST;
use crate::cause::Cause;
use crate::common::Core;
use crate::explanation::What;
use crate::host::Host;
use crate::rq::{ScatterError, scatter};
use crate::sq::Body;
use polypath_types::{PathId, QpState, WcStatus};

/// Longer round trips than this are accidents, not measurements.
const RTT_MAX_US: u32 = 10_000_000;
/// What one packet of the peer says besides its content.
#[derive(Clone, Copy)]
struct Answer<'a> {
    now: Duration,
    now_us: u32,
    from: PathId,
    /// Whether it is a multi-path packet.
    multipath: bool,
    /// The timestamp that came back (multi-path): when the request that this answers was sent.
    echo: Option<u32>,
    /// The packet whose round trip this answer measures.
    timed: Option<u64>,
    /// Whether it answers a packet that was sent by two paths.
    twice: bool,
    /// What has arrived out of order: bit 0 stands for the packet `sack_from`.
    sack: u64,
    sack_from: u64,
    /// The same for packets beyond the reach of the bits.
    blocks: SackBlocks<'a>,
}

impl Answer<'_> {
    /// The timestamp and its path: an answer goes back by the path of the packet that it answers.
    #[inline]
    fn echo_by_path(&self) -> Option<(PathId, u32)> {
        self.echo.map(|echo| (self.from, echo))
    }

    /// Whether it says that something has arrived out of order.
    #[inline]
    fn is_selective(&self) -> bool {
        self.sack != 0 || !self.blocks.is_empty()
    }
}

impl Requester {
    /// Takes an acknowledgement or response.
    pub(crate) fn handle_response<H: Host>(
        &mut self,
        core: &mut Core,
        now: Duration,
        packet: &Packet<'_>,
        from: PathId,
        host: &mut H,
    ) {
        if !matches!(core.attr.state, QpState::Rts | QpState::Sqd) {
            core.counters.dropped_state += 1;
            return;
        }
        let h = &packet.headers;
        let seq = self.expand(h.bth.psn);
        let opcode = h.bth.opcode.base();
        // Of an answer of many packets, only the first one measures the round trip.
        let tells_time = opcode.starts_message();
        let mut answer = Answer {
            now,
            now_us: micros(now),
            from,
            multipath: h.mp.is_some(),
            echo: h.mp.map(|mp| mp.timestamp),
            timed: tells_time.then_some(seq),
            twice: h.mp.is_some_and(|mp| mp.is_twice()),
            sack: h.sack.map_or(0, |s| s.0),
            sack_from: seq + 1,
            blocks: SackBlocks::default(),
        };
        if seq >= self.flight.next() {
            core.counters.dropped_malformed += 1; // It answers nothing that was sent.
            return;
        }
        if self.sends_twice {
            self.note_answered(&mut answer, packet, tells_time, host);
        }
        if opcode.is_read_response() {
            self.on_answer(core, seq, packet.payload, true, &answer, host);
        } else if let (Opcode::RC_ATOMIC_ACK, Some(ack)) = (opcode, h.atomic_ack) {
            let original = ack.original.to_ne_bytes();
            self.on_answer(core, seq, &original, false, &answer, host);
        } else if let Some(aeth) = h.aeth {
            if answer.multipath && !packet.payload.is_empty() {
                core.counters.received_bytes -= packet.payload.len() as u64; // Not asked for.
                match SackBlock::list(packet.payload) {
                    Ok(blocks) => answer.blocks = blocks,
                    Err(_) => {
                        core.counters.dropped_malformed += 1;
                        return;
                    }
                }
            }
            match aeth.syndrome {
                Syndrome::Ack { .. } => self.on_ack(core, seq, &answer, host),
                Syndrome::RnrNak { timer } => self.on_rnr(core, seq, timer, &answer, host),
                Syndrome::Nak(NakCode::PsnSequence) => {
                    self.on_sequence_nak(core, seq, &answer, host);
                }
                Syndrome::Nak(code) => self.on_fatal_nak(core, seq, code, &answer, host),
                Syndrome::Reserved(_) => core.counters.dropped_malformed += 1,
            }
        } else {
            core.counters.dropped_malformed += 1;
        }
    }

    /// Tells the host which path an answer came by, if requests go by two: each of the two is answered for
    /// itself, and the second answer says nothing else that is new.
    fn note_answered<H: Host>(
        &mut self,
        answer: &mut Answer<'_>,
        packet: &Packet<'_>,
        tells_time: bool,
        host: &mut H,
    ) {
        let Some(echo) = answer.echo else { return };
        let us = answer.now_us.wrapping_sub(echo);
        let rtt = (tells_time && us < RTT_MAX_US).then(|| Duration::from_micros(us.into()));
        if let (Some(rtt), Some(on)) = (rtt, self.flight.paths_mut().get_mut(answer.from)) {
            on.timer.measured(rtt);
        }
        // More of the answer to a READ may follow.
        let of_read = packet.headers.bth.opcode.base().is_read_response();
        let bytes = of_read.then_some(packet.payload.len() as u32 + PACKET_COST);
        host.answered(answer.from, echo, bytes, rtt);
        answer.timed = None; // It is measured.
    }

    /// Counts an answer that says nothing new.
    fn count_duplicate(core: &mut Core, answer: &Answer<'_>) {
        if answer.twice {
            core.counters.copies_second += 1;
        } else {
            core.counters.duplicate_responses += 1;
        }
    }

    /// The sequence number with PSN `p` that is nearest to what is in flight.
    #[inline]
    fn expand(&self, p: Psn) -> u64 {
        let una = self.flight.una();
        una.wrapping_add_signed(i64::from(p.diff(psn(una))))
    }

    /// All before `to` is acknowledged: updates the flight, measures the round trip, and completes
    /// requests. Returns false if nothing of it was new.
    #[inline]
    fn acknowledge<H: Host>(
        &mut self,
        core: &mut Core,
        to: u64,
        mut tally: Tally,
        answer: &Answer<'_>,
        host: &mut H,
    ) -> bool {
        let sent = |seq| match answer.echo {
            Some(echo) => Some((answer.from, echo)),
            None => self.flight.sent_once_at(seq),
        };
        let rtt = answer
            .timed
            .and_then(sent)
            .map(|(path, sent_us)| (path, answer.now_us.wrapping_sub(sent_us)))
            .filter(|(_, us)| *us < RTT_MAX_US)
            .map(|(path, us)| (path, Duration::from_micros(u64::from(us))));
        self.flight.acknowledge(to, &mut tally);
        if answer.sack != 0 {
            self.flight.acknowledge_selected(answer.sack_from, answer.sack, &mut tally);
        }
        for block in answer.blocks.iter() {
            let first = self.expand(block.first);
            self.flight.sack(first..first + u64::from(block.count), &mut tally);
        }
        let news = !tally.is_empty();
        if news {
            if let Some((path, rtt)) = rtt
                && let Some(on) = self.flight.paths_mut().get_mut(path)
            {
                on.timer.measured(rtt);
            }
            tally.acked(rtt, host);
        }
        if self.flight.advance() {
            self.has_progress(core, answer.now);
            // The peer's limits may have held back what is left. Without any, no turn is needed.
            self.ready |= !self.has_sent_all();
            self.judge_probes(answer, host);
            self.retire(core, host);
            true
        } else {
            if news {
                let oldest = self.flight.oldest().map(|(path, _)| path);
                self.flight.paths_mut().restart_moved(answer.now, oldest);
                self.judge_probes(answer, host);
            }
            news
        }
    }

    /// Probes were acknowledged, but not all that was sent before them on the same path: the rest
    /// is lost.
    fn judge_probes<H: Host>(&mut self, answer: &Answer<'_>, host: &mut H) {
        while let Some((path, probe)) = self.flight.take_answered_probe() {
            // A timestamp tells whether the probe is answered or a late original.
            let after = |echo: u32| echo.wrapping_sub(probe.sent_us) as i32 >= 0;
            // A probe that went by two paths is answered by both.
            let by_any = self.sends_twice;
            let answered = answer.echo.is_none_or(|echo| {
                after(echo) && probe.by.is_none_or(|by| by_any || by == answer.from)
            });
            if !answered || self.flight.una() >= probe.upto {
                continue;
            }
            // A probe that went by another path says nothing about packets that may still be on
            // their way by this one, unless those should have arrived long ago.
            let in_order = probe.by.is_none_or(|by| by == path) && (!by_any || answer.from == path);
            let age_us = match (in_order, self.flight.rtt_us(path)) {
                (true, _) => 0,
                (false, Some(rtt_us)) => rtt_us.saturating_mul(2),
                (false, None) => continue,
            };
            let mut tally = Tally::default();
            // The first packet of an answer says nothing about the others, which follow it.
            let range = probe.answer_to..probe.upto;
            self.flight.lose_range_on(path, range, answer.now_us, age_us, &mut tally);
            self.lose(tally, true, host);
        }
    }

    fn on_ack<H: Host>(&mut self, core: &mut Core, seq: u64, answer: &Answer<'_>, host: &mut H) {
        let to = seq + 1;
        if to <= self.flight.una() && !answer.is_selective() {
            Self::count_duplicate(core, answer);
            return;
        }
        let una = self.flight.una();
        if !self.acknowledge(core, to, Tally::of_answer(answer.echo_by_path()), answer, host) {
            Self::count_duplicate(core, answer);
        }
        if core.broken {
            return;
        }
        let mut tally = Tally::default();
        self.miss_answers(to, answer, &mut tally);
        if !tally.is_empty() && !self.may_replay(core, una, true, answer, host) {
            tally.lost(true, host);
            return;
        }
        if answer.multipath {
            self.flight.lose_overtaken(false, &mut tally);
            self.flight.lose_unheard(to, &mut tally);
        }
        self.lose(tally, true, host);
    }

    /// What the peer has refused or not answered is to be sent again. This is a retry
    /// (IBTA 9.9.2.1) unless the first unacknowledged packet, `una`, is another one than before, or
    /// the refusal is only `implied` and belongs to an attempt that was counted. Returns false if no
    /// retry was left and the work request has failed.
    fn may_replay<H: Host>(
        &mut self,
        core: &mut Core,
        una: u64,
        implied: bool,
        answer: &Answer,
        host: &mut H,
    ) -> bool {
        if self.flight.una() != una {
            return true;
        }
        let (now, timeout, multipath) = (answer.now, core.attr.timeout, core.multipath);
        let due = self.flight.oldest_due(probe_limit(timeout));
        let may = if implied {
            let round_trip = self.flight.guard(answer.from);
            self.timers.replay_implied(now, timeout, multipath, due, round_trip)
        } else {
            self.timers.replay(now, timeout, multipath, due)
        };
        if may {
            return true;
        }
        if !core.gives_up(host) {
            return false;
        }
        let what = What::AskedForAgain { psn: psn(una), times: core.attr.retry_cnt };
        core.explain(host, Some(answer.from), what);
        self.fail_front(core, WcStatus::RetryExcErr, Cause::RetriesExhausted, host);
        false
    }

    /// An acknowledgement of what came after a READ or atomic whose answer has not arrived means
    /// that the answer was lost (IBTA 9.7.5.1.1, implied NAK).
    fn miss_answers(&mut self, to: u64, answer: &Answer<'_>, tally: &mut Tally) {
        if self.flight.una() < to {
            // A multi-path peer's acknowledgement may have overtaken the answer on another path.
            let plain = !answer.multipath;
            self.flight.lose_answers(to, answer.from, answer.now_us, plain, tally);
        }
    }

    fn lose<H: Host>(&mut self, tally: Tally, congestion: bool, host: &mut H) {
        if !tally.is_empty() {
            tally.lost(congestion, host);
            self.ready = true;
        }
    }

    fn on_sequence_nak<H: Host>(
        &mut self,
        core: &mut Core,
        seq: u64,
        answer: &Answer<'_>,
        host: &mut H,
    ) {
        core.counters.naks_sequence_received += 1;
        if seq < self.flight.una() {
            Self::count_duplicate(core, answer);
            return;
        }
        let una = self.flight.una();
        self.acknowledge(core, seq, Tally::of_answer(answer.echo_by_path()), answer, host);
        if core.broken {
            return;
        }
        let mut tally = Tally::default();
        self.miss_answers(seq, answer, &mut tally);
        if !self.flight.just_resent(seq, answer.now_us) {
            // The peer has thrown away everything that followed (IBTA 9.7.5.2.8, go back).
            let next = self.flight.next();
            self.flight.lose_range(seq, next, &mut tally);
        }
        if !tally.is_empty() && !self.may_replay(core, una, false, answer, host) {
            tally.lost(true, host);
            return;
        }
        self.lose(tally, true, host);
    }

    fn on_rnr<H: Host>(
        &mut self,
        core: &mut Core,
        seq: u64,
        code: u8,
        answer: &Answer<'_>,
        host: &mut H,
    ) {
        core.counters.naks_rnr_received += 1;
        if seq < self.flight.una() || self.timers.rnr_waiting() {
            Self::count_duplicate(core, answer);
            return;
        }
        // The second complaint about a packet must not count as one about what was sent again since.
        if self.sends_twice && answer.echo.is_some_and(|at| self.flight.was_sent_after(seq, at)) {
            Self::count_duplicate(core, answer);
            return;
        }
        let news =
            self.acknowledge(core, seq, Tally::of_answer(answer.echo_by_path()), answer, host);
        if core.broken || (!news && self.flight.any_lost()) {
            return; // What it complains about is about to be sent again.
        }
        // Nothing of it is on its way any more, so other queue pairs may have the window.
        let mut tally = Tally::default();
        let next = self.flight.next();
        self.flight.lose_even_sacked(seq, &mut tally);
        self.flight.lose_range(seq, next, &mut tally);
        self.miss_answers(seq, answer, &mut tally);
        tally.lost(false, host);
        if self.timers.rnr(answer.now, code, core.attr.retry_cnt, core.attr.rnr_retry) {
            self.ready = false;
            return;
        }
        let what = What::NoReceive { psn: psn(seq), retries: core.attr.rnr_retry };
        core.explain(host, Some(answer.from), what);
        self.fail_at(core, seq, WcStatus::RnrRetryExcErr, Cause::RnrExhausted, host);
        // The answer to a READ before it may be missing, and is asked for once more.
        self.ready = true;
    }

    fn on_fatal_nak<H: Host>(
        &mut self,
        core: &mut Core,
        seq: u64,
        code: NakCode,
        answer: &Answer<'_>,
        host: &mut H,
    ) {
        if seq < self.flight.una() {
            Self::count_duplicate(core, answer);
            return;
        }
        core.counters.naks_fatal_received += 1;
        self.acknowledge(core, seq, Tally::of_answer(answer.echo_by_path()), answer, host);
        if core.broken {
            return;
        }
        let (status, cause) = match code {
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, Cause::RemoteAccess),
            NakCode::RemoteOperational => (WcStatus::RemOpErr, Cause::RemoteOperation),
            _ => (WcStatus::RemInvReqErr, Cause::RemoteInvalid),
        };
        let what = What::PeerRefused { psn: psn(seq), nak: code };
        core.explain(host, Some(answer.from), what);
        self.fail_at(core, seq, status, cause, host);
        let mut tally = Tally::default();
        self.miss_answers(seq, answer, &mut tally);
        self.lose(tally, false, host);
    }

    /// Makes the work request that `seq` belongs to fail, once all before it are complete.
    fn fail_at<H: Host>(
        &mut self,
        core: &mut Core,
        seq: u64,
        status: WcStatus,
        cause: Cause,
        host: &mut H,
    ) {
        if let Some(at) = self.sq.find(seq, self.progress.is_some()) {
            self.fail_when_reached(core, at, status, cause, host);
        }
    }

    /// Stores one packet of the answer to a READ or atomic. Packets may come in any order: the
    /// sequence number says where the data goes.
    fn on_answer<H: Host>(
        &mut self,
        core: &mut Core,
        seq: u64,
        data: &[u8],
        is_read: bool,
        answer: &Answer<'_>,
        host: &mut H,
    ) {
        if seq < self.flight.una() || !self.flight.awaits_answer(seq) {
            Self::count_duplicate(core, answer);
            return;
        }
        let mtu = core.attr.path_mtu;
        let found = self.sq.find(seq, self.progress.is_some());
        let wqe = found.and_then(|at| self.sq.get(at)).filter(|wqe| wqe.failed.is_none());
        let Some(wqe) = wqe else {
            // The work request has failed, and waits for those before it to complete.
            Self::count_duplicate(core, answer);
            return;
        };
        let k = (seq - wqe.first) as u32;
        // ATOMIC WRITE and FLUSH are answered by a READ response without data (annex A19).
        let (fits, len) = if wqe.is_placement() {
            (is_read, 0)
        } else {
            (wqe.is_read() == is_read, wqe.packet_len(k, mtu))
        };
        if !fits || data.len() != len as usize {
            let what = What::ResponseDoesNotFit { psn: psn(seq), bytes: data.len() as u32, mtu };
            core.explain(host, Some(answer.from), what);
            return self.fail_at(core, seq, WcStatus::BadRespErr, Cause::BadResponse, host);
        }
        let stored = match &wqe.body {
            Body::Sges(sges) => scatter(core.config.pd, sges, k * mtu, data, host),
            Body::Inline(_) => Ok(()),
        };
        if let Err(error) = stored {
            let psn = psn(seq);
            let what = match error {
                ScatterError::TooSmall => What::ResponseTooLong { psn },
                ScatterError::Fault(fault) => What::ResponseNotStored { psn, fault },
            };
            core.explain(host, Some(answer.from), what);
            return self.fail_at(core, seq, WcStatus::LocProtErr, Cause::LocalKey, host);
        }
        if wqe.is_flush() {
            self.flush_cover.answered(self.flight.sent_once_at(seq).is_some());
        }
        let mut tally = Tally::of_answer(answer.echo_by_path());
        self.flight.answer(seq, &mut tally);
        // It acknowledges all requests before it (IBTA 9.7.5.1.1).
        self.acknowledge(core, seq, tally, answer, host);
        let mut tally = Tally::default();
        if self.flight.una() < seq {
            self.flight.lose_overtaken(!answer.multipath, &mut tally);
        }
        self.lose(tally, true, host);
    }
}
