//! Both ends of a pair of queue pairs, and the oracle over all pairs.

use core::time::Duration;
use std::collections::BTreeMap;

use polypath_transport::{AtomicOp, Completion, CqSide, QpEvent, QpState, UdDestination, WcStatus};
use polypath_wire::Psn;
use polypath_wire::ext::Syndrome;

use super::datagram::Loose;
use super::direction::Direction;
use super::receiver::{Receives, SharedQueue};
use super::refusal::Told;
use super::window::{By, Windows};
use super::{Breach, Verdict, breach, demand};
use crate::case::{Case, Op, OpKind, PairPlan};
use crate::host::SimHost;
use crate::io::{Effect, Io, SRQNS};
use crate::layout::{BUFFER, Layout, SRQ_DEPTH, is_own_key};

/// The longest time for which an RNR NAK may have been on its way.
const LATE: Duration = Duration::from_millis(400);

/// The reason why a queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// One of its work requests failed.
    Failed,
    /// It refused a request.
    Refused,
    /// Its application moved it to the error state.
    Wanted,
}

/// One end of a pair.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) host: usize,
    pub(crate) qpn: u32,
    srq: bool,
    receives: Receives,
    /// The index of the peer's work request that the next receive is for.
    next_receive: usize,
    /// The times when the receives were posted, by the index of the peer's work request.
    receive_posted: BTreeMap<u64, Duration>,
    pub(crate) ended: Option<Ended>,
    /// Whether its host's process died.
    pub(crate) gone: bool,
    /// The virtual time of that death.
    gone_at: Duration,
    /// The time when it was last thawed. It then starts again to wait for whatever it waited for.
    pub(crate) thawed_at: Duration,
    /// The time when it last migrated. What comes later by the path that it left is dropped.
    migrated_at: Option<Duration>,
    last_wqe: u32,
    /// RNR NAKs heard for the same packet: its PSN, how many, and the time of the first.
    not_ready: Option<(Psn, u32, Duration)>,
}

/// Two queue pairs that are connected, or send to each other.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) plan: PairPlan,
    pub(crate) ends: [End; 2],
    /// The work requests of each end, in the order of `ends`.
    pub(crate) directions: [Direction; 2],
    /// The memory windows of each end.
    pub(super) windows: [Windows; 2],
    loose: [Loose; 2],
}

/// The state of the network that the oracle has to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    pub(crate) now: Duration,
    /// Whether packets have been dropped or corrupted so far.
    pub(crate) lossy: bool,
    /// Whether a link, a path or a host has been disturbed so far.
    pub(crate) disturbed: bool,
    /// Whether no host of the case ever loses a link, an address or a path that it knows.
    pub(crate) settled: bool,
}

/// All pairs, and what hosts share among them.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) pairs: Vec<Pair>,
    by_qpn: BTreeMap<u32, (usize, usize)>,
    /// Shared receive queues, by host and, for XRC, number.
    pub(crate) shared: BTreeMap<(usize, Option<u32>), SharedQueue>,
    /// The values that counters must have, by host and address.
    counters: BTreeMap<(usize, u64), u64>,
}

impl Pair {
    fn new(plan: &PairPlan, layout: Layout, ordered: bool) -> Self {
        let end = |e: usize| End {
            host: plan.ends[e].host,
            qpn: plan.ends[e].qpn,
            srq: plan.ends[e].srq,
            receives: Receives::default(),
            next_receive: 0,
            receive_posted: BTreeMap::new(),
            ended: None,
            gone: false,
            gone_at: Duration::ZERO,
            thawed_at: Duration::ZERO,
            migrated_at: None,
            last_wqe: 0,
            not_ready: None,
        };
        let ordered = ordered && !plan.multipath;
        Self {
            ends: [end(0), end(1)],
            directions: [0, 1].map(|e| Direction::new(plan, e, layout)),
            windows: Default::default(),
            loose: [0, 1].map(|_| Loose::new(plan.service, ordered)),
            plan: plan.clone(),
        }
    }

    /// Whether nothing is left to do or to wait for.
    pub(crate) fn done(&self) -> bool {
        (0..2).all(|e| self.ends[e].gone || self.directions[e].done())
    }

    /// The time when end `e` wants to post a receive, and the index of the peer's work request that it
    /// is for.
    pub(crate) fn receive_due(&self, e: usize) -> Option<(Duration, usize)> {
        let (end, peer) = (&self.ends[e], &self.directions[1 - e]);
        let room = (end.receives.own.len() as u64) < peer.layout.depth;
        if self.plan.shares_receives(e) || end.gone || !room {
            return None;
        }
        // A work request that never gets a receive leaves none for those after it.
        let next = (end.next_receive..peer.ops.len()).find(|i| peer.ops[*i].takes_receive());
        let next = next.and_then(|i| Some((peer.receive(i)?.0, i)));
        // A buffer is used again only when its work request is complete.
        let oldest = end.receives.own.front().map(|r| r.wr_id);
        next.filter(|(_, i)| oldest.is_none_or(|o| *i as u64 - o < peer.layout.depth))
    }

    /// Posts the receives that are due at end `e`.
    pub(crate) fn post_receives(&mut self, e: usize, now: Duration, host: &mut SimHost) -> Verdict {
        while let Some((_, index)) = self.receive_due(e).filter(|(at, _)| *at <= now) {
            let Some((_, receive)) = self.directions[1 - e].receive(index) else { break };
            let end = &mut self.ends[e];
            let posted = host.with(end.qpn, |visit| visit.qp.post_recv(receive.wr()));
            demand(posted == Some(Ok(())), "a valid work request is accepted", || {
                format!("receive {index}: {posted:?}")
            })?;
            end.receive_posted.insert(index as u64, now);
            end.receives.own.push_back(receive);
            end.next_receive = index + 1;
        }
        Ok(())
    }

    /// Posts the next work request of end `e`.
    pub(crate) fn post(
        &mut self,
        e: usize,
        now: Duration,
        host: &mut SimHost,
        ud: Option<UdDestination>,
    ) -> Verdict {
        let keys = self.choose_windows(e);
        self.directions[e].post(now, host, ud, keys)
    }

    /// Whether one of the queue pairs is in the error state or gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.ends.iter().any(|end| end.gone || end.ended.is_some())
    }

    /// Notes that a key of end `e` is not valid any more.
    fn invalidated(&mut self, e: usize, rkey: u32) -> Verdict {
        let owner = if is_own_key(rkey) { By::Owner } else { By::Peer };
        let by = self.windows[e].invalidated(rkey);
        self.directions[1 - e].window_gone(rkey);
        match by.unwrap_or(owner) {
            By::Owner => self.directions[e].carried_out(OpKind::LocalInv, rkey),
            By::Peer => self.directions[1 - e].key_invalidated(rkey),
        }
    }

    fn stored(&mut self, e: usize, addr: u64, data: &[u8]) -> Verdict {
        let (end, peer) = (&self.ends[e], &mut self.directions[1 - e]);
        let reliable = self.plan.is_reliable();
        if peer.layout.is_landing(addr) {
            return self.directions[e].landed(addr, data);
        }
        if peer.layout.is_area(addr) {
            return if reliable {
                peer.written(addr, data)
            } else {
                self.loose[1 - e].written(peer, addr, data)
            };
        }
        match end.receives.current() {
            Some(receive) if reliable => peer.received(receive, addr, data),
            Some(_) => Ok(()),
            None => breach("received data needs a receive", format!("{addr:#x}")),
        }
    }

    /// Notes that a receive completed, and returns it.
    fn receive_completed(
        &mut self,
        e: usize,
        srqn: Option<u32>,
        io: &Io,
        c: &Completion,
    ) -> Result<super::receiver::Receive, Breach> {
        let end = &mut self.ends[e];
        let receive = end.receives.completed(srqn, c.wr_id)?;
        let peer = &mut self.directions[1 - e];
        match c.status {
            WcStatus::Success => {
                let alive = end.ended.is_none();
                demand(alive, "flushes follow an error", || format!("{c:?}"))?;
                if self.plan.is_reliable() {
                    peer.arrived(&receive, c)?;
                } else {
                    self.loose[1 - e].arrived(peer, &receive, io, c)?;
                }
            }
            WcStatus::WrFlushErr => {
                let ended = end.ended.is_some();
                demand(ended, "receives are flushed only after an error", || format!("{c:?}"))?;
            }
            status => {
                let refusal = peer.refuse()?;
                demand(
                    refusal.told == Told::Receive(status),
                    "errors are those specified",
                    || format!("{c:?}, not {refusal:?}"),
                )?;
                end.ended = Some(Ended::Refused);
            }
        }
        Ok(receive)
    }

    fn event(&mut self, e: usize, now: Duration, event: QpEvent) -> Verdict {
        let end = &mut self.ends[e];
        match event {
            QpEvent::SqDrained => self.directions[e].drained(),
            QpEvent::PathMig => {
                end.migrated_at = Some(now);
                Ok(())
            }
            QpEvent::RequestError | QpEvent::AccessError | QpEvent::Fatal => {
                let refusal = self.directions[1 - e].refuse()?;
                end.ended = Some(Ended::Refused);
                demand(refusal.told == Told::Event(event), "errors are those specified", || {
                    format!("{event:?}, not {refusal:?}")
                })
            }
            QpEvent::LastWqeReached => {
                end.last_wqe += 1;
                let once = end.srq && end.last_wqe == 1 && end.ended.is_some();
                demand(once, "the last receive of a shared queue is reported once", || {
                    format!("{:#x}", end.qpn)
                })
            }
            _ => Ok(()),
        }
    }

    fn sent(&mut self, e: usize, io: &Io, c: &Completion, conditions: &Conditions) -> Verdict {
        let first_error = c.status != WcStatus::Success && !self.directions[e].failed;
        self.directions[e].sent(conditions.now, io, c)?;
        if !first_error {
            return Ok(());
        }
        let (own, refused) = self.directions[e].error_of(c.wr_id);
        let peer = &self.ends[1 - e];
        let peer_left = peer.gone || peer.ended.is_some();
        let end = &self.ends[e];
        let waited = conditions.now.saturating_sub(self.directions[e].waiting_since(c.wr_id));
        let plan = &self.plan;
        let allowed = match c.status {
            WcStatus::WrFlushErr => end.ended.is_some(),
            WcStatus::RetryExcErr => {
                let patience = ack_timeout(plan.timeout) * 4 * (u32::from(plan.retry_cnt) + 1);
                let excused = peer_left || (!plan.multipath && conditions.disturbed);
                // Packets sent again after NAKs count as retries, and take no time.
                let least = if conditions.disturbed { ack_timeout(plan.timeout) } else { patience };
                let stalled = io.stalled_since(conditions.now.saturating_sub(waited));
                // A queue pair whose plain peer died waits no longer than its own patience, whatever
                // becomes of other peers.
                let alone = peer.gone_at.max(end.thawed_at);
                let alone = conditions.now.saturating_sub(alone).min(waited);
                let in_time = !peer.gone
                    || plan.multipath
                    || !conditions.settled
                    || alone <= patience + LATE + stalls_of(io);
                // The refusal can't have been lost, can't have come while this end was away, and can't
                // have come by a path that this end had left meanwhile. It is not repeated: the peer is in
                // error, and takes nothing any more (IBTA 10.3.1).
                let posted_at = self.directions[e].waiting_since(c.wr_id);
                let stayed = plan.multipath || end.migrated_at.is_none_or(|at| at < posted_at);
                let told = refused && !conditions.lossy && end.thawed_at.is_zero() && stayed;
                let waited = waited.saturating_sub(stalled);
                plan.timeout != 0 && waited >= least && excused && !told && in_time
            }
            WcStatus::RnrRetryExcErr => {
                let (heard, since) = end.not_ready.map_or((0, conditions.now), |(_, n, t)| (n, t));
                let posted = peer.receive_posted.get(&c.wr_id);
                let was_there = posted.is_some_and(|t| *t + LATE < since);
                self.directions[e].takes_receive(c.wr_id)
                    && plan.rnr_retry < 7
                    && heard > u32::from(plan.rnr_retry)
                    && !was_there
            }
            WcStatus::LocProtErr => own == Some(c.status),
            status => own == Some(status) && refused,
        };
        demand(allowed, "errors are those specified", || {
            let kept = (peer_left, end.ended, waited, end.not_ready);
            format!("{c:?}; its own error is {own:?}, refused {refused}; {kept:?}")
        })?;
        if plan.is_reliable() {
            self.ends[e].ended.get_or_insert(Ended::Failed);
        }
        Ok(())
    }

    /// Checks that the queue pair is in the error state if it has to be, and only then.
    fn check_state(&self, e: usize, host: &SimHost) -> Verdict {
        let end = &self.ends[e];
        let Some(qp) = host.qp(end.qpn) else { return Ok(()) };
        let (state, why) = (qp.state(), end.ended);
        let right = match why {
            None => self.directions[e].may_be(state),
            // The queue pair may still have to tell its peer.
            Some(Ended::Refused) => true,
            Some(Ended::Failed | Ended::Wanted) => state == QpState::Err,
        };
        demand(right, "the error state has a cause", || {
            format!("{:#x}: {state:?}, {why:?}", end.qpn)
        })
    }

    /// Checks the state at the end of the run. `untouched` is as for [`Oracle::finish`].
    fn finish(&self, hosts: &[SimHost], untouched: bool) -> Verdict {
        for (e, end) in self.ends.iter().enumerate().filter(|(_, end)| !end.gone) {
            let host = &hosts[end.host];
            let state = host.qp(end.qpn).map(polypath_transport::QueuePair::state);
            if end.ended.is_some() {
                let flushed = end.receives.current().is_none();
                demand(
                    state == Some(QpState::Err) && flushed && end.last_wqe == u32::from(end.srq),
                    "everything is flushed",
                    || format!("{:#x} in {state:?}: {:?}", end.qpn, end.receives),
                )?;
            }
            demand(state != Some(QpState::Sqd), "a drained send queue goes on", || {
                self.directions[e].standing()
            })?;
            if !self.ends[1 - e].gone {
                self.directions[e].finish(&hosts[self.ends[1 - e].host].io)?;
            }
            if untouched && !self.plan.is_reliable() && !self.directions[e].failed {
                self.loose[e].finish(&self.directions[e])?;
            }
        }
        Ok(())
    }
}

/// The total time for which a host did not run, plus the time of one more retry for each stall.
fn stalls_of(io: &Io) -> Duration {
    io.stalls.iter().map(|(from, to)| *to - *from + LATE).sum()
}

/// The local ACK timeout of a code: 4.096 µs × 2^code (IBTA 9.7.6.1.3).
fn ack_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code)
}

impl Oracle {
    /// Creates the oracle of a case. `layouts` are the memory layouts of its pairs, and `srq_base` is
    /// the address of the first buffer of the shared receive queues.
    pub(crate) fn new(case: &Case, layouts: &[Layout], srq_base: u64) -> Self {
        let ordered = case.keeps_order();
        let pairs: Vec<_> =
            case.pairs.iter().zip(layouts).map(|(p, l)| Pair::new(p, *l, ordered)).collect();
        let ends = |(i, p): (usize, &Pair)| [0, 1].map(|e| (p.ends[e].qpn, (i, e)));
        let times = |host: usize, srqn: Option<u32>| {
            let ends = pairs.iter().flat_map(|p| (0..2).map(move |e| (p, e)));
            let ends = ends.filter(|(p, e)| p.ends[*e].host == host && p.plan.shares_receives(*e));
            ends.flat_map(|(p, e)| {
                let peer = &p.directions[1 - e];
                let xrc = p.plan.service.is_xrc();
                let is_for = move |op: &Op| op.takes_receive() && xrc.then(|| op.srqn()) == srqn;
                let messages = (0..peer.ops.len()).filter(move |i| is_for(&peer.ops[*i]));
                messages.filter_map(|i| Some(peer.receive(i)?.0))
            })
            .collect()
        };
        let queues = (0..).zip([None].into_iter().chain(SRQNS.map(Some)));
        let shared = (0..case.hosts).flat_map(|host| queues.clone().map(move |q| (host, q)));
        let shared = shared.map(|(host, (place, srqn))| {
            let base = srq_base + place * SRQ_DEPTH * BUFFER;
            ((host, srqn), SharedQueue::new(srqn, base, times(host, srqn)))
        });
        let shared = shared.collect();
        let by_qpn = pairs.iter().enumerate().flat_map(ends).collect();
        Self { by_qpn, shared, pairs, counters: BTreeMap::new() }
    }

    fn find(&self, qpn: u32) -> Result<(usize, usize), Breach> {
        match self.by_qpn.get(&qpn) {
            Some(found) => Ok(*found),
            None => breach("effects come only from known queue pairs", format!("{qpn:#x}")),
        }
    }

    /// Judges everything that a host did in one round.
    pub(crate) fn judge(
        &mut self,
        number: usize,
        host: &mut SimHost,
        conditions: &Conditions,
    ) -> Verdict {
        for effect in core::mem::take(&mut host.io.journal) {
            self.judge_one(number, &host.io, &effect, conditions)?;
        }
        for pair in &self.pairs {
            for e in (0..2).filter(|e| pair.ends[*e].host == number && !pair.ends[*e].gone) {
                pair.check_state(e, host)?;
            }
        }
        Ok(())
    }

    fn judge_one(
        &mut self,
        number: usize,
        io: &Io,
        effect: &Effect,
        conditions: &Conditions,
    ) -> Verdict {
        match effect {
            Effect::Store { qpn, addr, data } => {
                let (pair, e) = self.find(*qpn)?;
                self.pairs[pair].stored(e, *addr, data)
            }
            Effect::Atomic { qpn, addr, op, old } => {
                let (pair, e) = self.find(*qpn)?;
                self.count(number, *addr, *op, *old)?;
                self.pairs[pair].directions[1 - e].atomic(*addr, *op, *old)
            }
            Effect::Flushed { qpn, scope } => {
                let (pair, e) = self.find(*qpn)?;
                self.pairs[pair].directions[1 - e].flushed(*scope)
            }
            Effect::Invalidated { qpn, rkey } => {
                let (pair, e) = self.find(*qpn)?;
                self.pairs[pair].invalidated(e, *rkey)
            }
            Effect::Bound { qpn, rkey } => {
                let (pair, e) = self.find(*qpn)?;
                let pair = &mut self.pairs[pair];
                pair.windows[e].bound(*rkey);
                pair.directions[e].carried_out(OpKind::Bind, *rkey)
            }
            Effect::Took { qpn, srqn, wr_id } => {
                let (pair, e) = self.find(*qpn)?;
                let queue = self.shared.get_mut(&(number, *srqn));
                let queue = queue.expect("each host has them all");
                let receive = queue.took(*wr_id)?;
                self.pairs[pair].ends[e].receives.take(receive)
            }
            Effect::Completed { side, srqn, completion: c } => {
                let (number_of_pair, e) = self.find(c.qpn)?;
                let pair = &mut self.pairs[number_of_pair];
                if *side == CqSide::Send {
                    return pair.sent(e, io, c, conditions);
                }
                let receive = pair.receive_completed(e, *srqn, io, c)?;
                let queue = self.shared.get_mut(&(number, *srqn));
                if let Some(queue) = queue.filter(|_| pair.plan.shares_receives(e)) {
                    queue.completed(&receive);
                }
                Ok(())
            }
            Effect::Event { qpn, event } => {
                let (pair, e) = self.find(*qpn)?;
                self.pairs[pair].event(e, conditions.now, *event)
            }
            Effect::Acknowledged { qpn, psn, aeth } => {
                let (pair, e) = self.find(*qpn)?;
                match aeth.syndrome {
                    Syndrome::Ack { .. } => self.pairs[pair].directions[1 - e].acknowledged(*psn),
                    _ => Ok(()),
                }
            }
            Effect::Answered { qpn, psn } => {
                let (pair, e) = self.find(*qpn)?;
                self.pairs[pair].directions[1 - e].answered(*psn)
            }
            Effect::HeardNotReady { qpn, psn } => {
                let (pair, e) = self.find(*qpn)?;
                let heard = &mut self.pairs[pair].ends[e].not_ready;
                match heard {
                    Some((same, n, _)) if same == psn => *n += 1,
                    _ => *heard = Some((*psn, 1, conditions.now)),
                }
                Ok(())
            }
            Effect::WronglyAccepted { qpn, why } => {
                breach("packets that must be refused are refused", format!("{qpn:#x}: {why}"))
            }
        }
    }

    /// Notes an atomic on a counter, which must have found the value that all earlier ones have left.
    fn count(&mut self, host: usize, addr: u64, op: AtomicOp, old: u64) -> Verdict {
        let value = self.counters.entry((host, addr)).or_default();
        demand(old == *value, "an atomic finds the value that earlier ones left", || {
            format!("{op:?} at {addr:#x} found {old:#x}, not {value:#x}")
        })?;
        match op {
            AtomicOp::FetchAdd { add } => *value = value.wrapping_add(add),
            AtomicOp::CompareSwap { compare, swap } if compare == old => *value = swap,
            AtomicOp::CompareSwap { .. } => {}
        }
        Ok(())
    }

    /// Notes that a host's process died, and its memory with it.
    pub(crate) fn died(&mut self, host: usize, now: Duration) {
        for end in self.pairs.iter_mut().flat_map(|p| &mut p.ends) {
            if end.host == host && !end.gone {
                (end.gone, end.gone_at) = (true, now);
            }
        }
        self.counters.retain(|(h, _), _| *h != host);
    }

    /// Checks the state at the end of the run. `untouched` is true if no packet was ever dropped and no
    /// receive was ever missing.
    pub(crate) fn finish(&self, hosts: &[SimHost], untouched: bool) -> Verdict {
        for pair in &self.pairs {
            pair.finish(hosts, untouched)?;
        }
        for (&(host, addr), value) in &self.counters {
            let got = hosts[host].io.word(addr);
            demand(got == *value, "counters end as they must", || {
                format!("host {host}, {addr:#x}: {got:#x}, not {value:#x}")
            })?;
        }
        for (number, host) in hosts.iter().enumerate() {
            demand(host.io.charged == 0, "everything charged to a path comes back", || {
                format!("host {number}: {} bytes", host.io.charged)
            })?;
        }
        Ok(())
    }
}
