//! The table of connections, found by their ids, with their timers and the queue of MADs to send.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::connection::{Connection, IbEvent, Pending, State};
use super::ended::Ended;
use super::endpoints::Endpoints;
use crate::early::GRACE;
use crate::env::{ClientId, OutgoingMad};
use crate::path::iba_time;
use crate::sizes::TableSizes;
use polypath_telemetry::CmCounters;

/// The time until a message is repeated for the first time, as for a SYN of TCP (RFC 6298, section 2). It
/// doubles each time, up to the response time-out. That one, four seconds, is for slow programs. But a peer
/// with a slow program answers a REQ or REP that comes again by an MRA, so what is not answered soon was most
/// likely lost. A peer may keep a request for which there is no listener yet: [`GRACE`] and a round trip are
/// shorter, so that such a request does not arrive again after it was refused.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
const _: () = assert!(FIRST_TIMEOUT.as_millis() >= 4 * GRACE.as_millis());

/// The same for a DREQ, which is answered at once, without an application. The program that sends it waits
/// to exit.
pub(super) const DREQ_FIRST_TIMEOUT: Duration = Duration::from_millis(250);

/// How long a REQ is repeated although the peer says that nobody serves its service. A peer that
/// does not keep early requests, as we do, may get its listener in a moment. The time is no longer
/// than the one for which we keep requests: a peer that kept the request for so long has a final
/// refusal.
const PATIENCE: Duration = GRACE;

/// The first pause between such repetitions. Each later one is as long as all the time before it.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest time-wait that a peer can impose, as an exponent: 8 s.
const TIMEWAIT_MAX: u8 = 21;

/// The longest time that a peer's MRA can ask for, as an exponent: 262 s.
pub(super) const SERVICE_TIMEOUT_MAX: u8 = 26;

/// The longest response time-out that a peer's REQ can ask for, as an exponent: 16 s.
pub(super) const RESPONSE_TIMEOUT_MAX: u8 = 22;

/// How many random numbers are tried for a new connection. With 2^17 connections one number in
/// 32,768 is taken.
const ID_ATTEMPTS: usize = 16;

/// All connections, including those of destroyed ids until they have ended properly.
pub(crate) struct Connections {
    connections: BTreeMap<u32, Connection>,
    /// The connections by the peer's GUID and communication id.
    remote_ids: BTreeMap<(u64, u32), u32>,
    /// The connections by the peer's GUID and queue pair number.
    remote_qpns: BTreeMap<(u64, u32), u32>,
    /// The peers' service id resolutions by their address and request id.
    sidr_requests: BTreeMap<(IpAddr, u32), u32>,
    /// The peers' requests that must not begin a connection any more.
    pub(super) ended: Ended,
    timers: BTreeSet<(Duration, u32)>,
    /// The timers of migration.
    pub(super) apm_timers: BTreeSet<(Duration, u32)>,
    /// The connections that may migrate, by client and queue pair.
    pub(super) apm_qps: BTreeMap<(ClientId, u32), u32>,
    outgoing: VecDeque<OutgoingMad>,
    events: VecDeque<(u32, IbEvent)>,
    /// The connections that may have changed, if that is to be known.
    touched: Option<BTreeSet<u32>>,
    max_connections: usize,
    max_outgoing: usize,
    pub(crate) counters: CmCounters,
    random: Box<dyn FnMut() -> u32 + Send>,
    tid_high: u64,
}

impl Connections {
    pub(crate) fn new(
        max_connections: usize,
        max_outgoing: usize,
        keeps: bool,
        mut random: Box<dyn FnMut() -> u32 + Send>,
    ) -> Self {
        let tid_high = u64::from(random()) << 32;
        Self {
            connections: BTreeMap::new(),
            remote_ids: BTreeMap::new(),
            remote_qpns: BTreeMap::new(),
            sidr_requests: BTreeMap::new(),
            ended: Ended::default(),
            timers: BTreeSet::new(),
            apm_timers: BTreeSet::new(),
            apm_qps: BTreeMap::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            touched: keeps.then(BTreeSet::new),
            max_connections,
            max_outgoing,
            counters: CmCounters::default(),
            random,
            tid_high,
        }
    }

    pub(crate) fn random(&mut self) -> u32 {
        (self.random)()
    }

    /// A transaction id for a message that starts a transaction.
    pub(super) fn transaction_id(&self, local_id: u32) -> u64 {
        self.tid_high | u64::from(local_id)
    }

    pub(crate) fn get(&self, local_id: u32) -> Option<&Connection> {
        self.connections.get(&local_id)
    }

    fn touch(&mut self, local_id: u32) {
        if let Some(touched) = &mut self.touched {
            touched.insert(local_id);
        }
    }

    /// The connections that may have changed since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<u32> {
        self.touched.as_mut().map(core::mem::take).unwrap_or_default()
    }

    pub(crate) fn get_mut(&mut self, local_id: u32) -> Option<&mut Connection> {
        self.touch(local_id);
        self.connections.get_mut(&local_id)
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// The sizes of this layer's tables.
    pub(crate) fn sizes(&self) -> TableSizes {
        TableSizes {
            connections: self.connections.len(),
            by_peer: self.remote_ids.len()
                + self.remote_qpns.len()
                + self.sidr_requests.len()
                + self.apm_qps.len(),
            timers: self.timers.len() + self.apm_timers.len(),
            outgoing: self.outgoing.len(),
            ..TableSizes::default()
        }
    }

    /// The connection with these two ids. Both must match (IBTA 12.10.7).
    pub(super) fn find(&mut self, local_id: u32, remote_id: u32) -> Option<&mut Connection> {
        self.get_mut(local_id).filter(|c| c.remote_id == remote_id)
    }

    /// A communication id that is not in use; `None` if the table is full.
    pub(super) fn new_local_id(&mut self) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        (0..ID_ATTEMPTS)
            .map(|_| (self.random)())
            .find(|id| *id != 0 && !self.connections.contains_key(id))
    }

    pub(super) fn insert(&mut self, connection: Connection) {
        self.touch(connection.local_id);
        self.connections.insert(connection.local_id, connection);
    }

    pub(super) fn by_remote_id(&self, guid: u64, remote_id: u32) -> Option<u32> {
        self.remote_ids.get(&(guid, remote_id)).copied()
    }

    pub(super) fn by_remote_qpn(&self, guid: u64, qpn: u32) -> Option<u32> {
        self.remote_qpns.get(&(guid, qpn)).copied()
    }

    pub(super) fn by_sidr_request(&self, remote: IpAddr, request_id: u32) -> Option<u32> {
        self.sidr_requests.get(&(remote, request_id)).copied()
    }

    /// Enters a connection under its peer's ids, so that duplicates and stale requests are noticed.
    pub(super) fn index_peer(&mut self, local_id: u32) {
        if let Some(c) = self.connections.get(&local_id) {
            self.remote_ids.insert((c.remote_guid, c.remote_id), local_id);
            self.remote_qpns.insert((c.remote_guid, c.qp.remote_qpn), local_id);
        }
    }

    pub(super) fn index_sidr(&mut self, local_id: u32) {
        if let Some(c) = self.connections.get(&local_id) {
            self.sidr_requests.insert((c.endpoints.remote, c.remote_id), local_id);
        }
    }

    /// Removes the peer's ids of a connection, because the peer may use them again.
    fn unindex(&mut self, local_id: u32) {
        let Some(c) = self.connections.get(&local_id) else { return };
        let id = (c.remote_guid, c.remote_id);
        let qpn = (c.remote_guid, c.qp.remote_qpn);
        let sidr = (c.endpoints.remote, c.remote_id);
        if self.remote_ids.get(&id) == Some(&local_id) {
            self.remote_ids.remove(&id);
        }
        if self.remote_qpns.get(&qpn) == Some(&local_id) {
            self.remote_qpns.remove(&qpn);
        }
        if self.sidr_requests.get(&sidr) == Some(&local_id) {
            self.sidr_requests.remove(&sidr);
        }
    }

    /// Queues a MAD. A full queue drops it, as a network may.
    pub(super) fn send(&mut self, to: Endpoints, mad: [u8; 256], of: Option<u32>, attempt: u8) {
        if self.outgoing.len() >= self.max_outgoing {
            self.counters.mads_not_sent += 1;
            return;
        }
        let connection = of.and_then(|id| self.connections.get(&id));
        self.outgoing.push_back(OutgoingMad {
            local: to.local,
            remote: to.remote,
            ifindex: to.ifindex,
            traffic_class: to.traffic_class,
            attempt,
            client: connection.and_then(|c| c.client),
            qp_num: connection.map_or(0, |c| c.qp.local_qpn),
            mad,
        });
    }

    pub(crate) fn poll_outgoing(&mut self) -> Option<OutgoingMad> {
        let mad = self.outgoing.pop_front()?;
        self.counters.mads_sent += 1;
        Some(mad)
    }

    pub(super) fn report(&mut self, local_id: u32, event: IbEvent) {
        self.events.push_back((local_id, event));
    }

    /// Takes the next event, with the communication id that it is about.
    pub(crate) fn poll_event(&mut self) -> Option<(u32, IbEvent)> {
        self.events.pop_front()
    }

    pub(super) fn set_deadline(&mut self, local_id: u32, deadline: Option<Duration>) {
        self.touch(local_id);
        let Some(c) = self.connections.get_mut(&local_id) else { return };
        if let Some(old) = c.deadline {
            self.timers.remove(&(old, local_id));
        }
        c.deadline = deadline;
        if let Some(new) = deadline {
            self.timers.insert((new, local_id));
        }
    }

    /// Sends a MAD that expects an answer, and enters the state that waits for the answer.
    pub(super) fn send_and_await(
        &mut self,
        now: Duration,
        local_id: u32,
        mad: [u8; 256],
        state: State,
    ) {
        self.end_paths(local_id);
        let Some(c) = self.connections.get_mut(&local_id) else { return };
        c.state = state;
        let timeout = match state {
            State::DreqSent => DREQ_FIRST_TIMEOUT.min(c.timeout),
            _ => FIRST_TIMEOUT.min(c.timeout),
        };
        c.pending = Some(Pending { mad, timeout, attempt: 0, since: now, refused: false });
        let to = if state == State::DreqSent { c.endpoints_for(0) } else { c.endpoints };
        self.set_deadline(local_id, Some(now + timeout));
        self.send(to, mad, Some(local_id), 0);
    }

    /// Stops repeating the pending MAD, because its answer came.
    pub(super) fn answered(&mut self, local_id: u32) {
        self.end_paths(local_id);
        if let Some(c) = self.connections.get_mut(&local_id) {
            c.pending = None;
        }
        self.set_deadline(local_id, None);
    }

    /// Handles a peer that says that nobody serves the service. Returns whether the request is
    /// repeated.
    pub(super) fn asks_again(&mut self, now: Duration, local_id: u32) -> bool {
        let connection = self.connections.get_mut(&local_id);
        let Some(pending) = connection.and_then(|c| c.pending.as_mut()) else { return false };
        let asked_for = now.saturating_sub(pending.since);
        let left = PATIENCE.saturating_sub(asked_for);
        if left.is_zero() {
            return false;
        }
        pending.refused = true;
        self.set_deadline(local_id, Some(now + asked_for.max(FIRST_PAUSE).min(left)));
        true
    }

    /// Waits longer for the answer, as the peer's MRA asks.
    pub(super) fn postpone(&mut self, now: Duration, local_id: u32, timeout: Duration) {
        let connection = self.connections.get_mut(&local_id);
        if let Some(pending) = connection.and_then(|c| c.pending.as_mut()) {
            pending.timeout = timeout;
        }
        self.set_deadline(local_id, Some(now + timeout));
    }

    /// Ends a connection attempt. Nothing of it is left once it has no owner.
    pub(super) fn reset_to_idle(&mut self, local_id: u32) {
        self.answered(local_id);
        self.unindex(local_id);
        if let Some(c) = self.connections.get_mut(&local_id) {
            c.state = State::Idle;
        }
        self.forget_if_done(local_id);
    }

    /// Ends a connection and enters time-wait, because packets still under way must not meet its
    /// queue pair when it is used again.
    pub(super) fn enter_timewait(&mut self, now: Duration, local_id: u32) {
        self.answered(local_id);
        self.unindex(local_id);
        let Some(c) = self.connections.get_mut(&local_id) else { return };
        // Otherwise the peer may have missed the REP, and ask again because of that.
        let known = matches!(c.state, State::Established | State::DreqSent | State::DreqRcvd);
        if !c.is_active && known {
            self.ended.add(now, (c.remote_guid, c.remote_id));
        }
        c.state = State::Timewait;
        let wait = iba_time(c.qp.ack_timeout.min(TIMEWAIT_MAX));
        self.set_deadline(local_id, Some(now + wait));
    }

    /// Drops a connection that is idle and belongs to nobody.
    pub(super) fn forget_if_done(&mut self, local_id: u32) {
        let done = self
            .connections
            .get(&local_id)
            .is_some_and(|c| c.owner.is_none() && c.state == State::Idle);
        if done {
            self.forget(local_id);
        }
    }

    pub(super) fn forget(&mut self, local_id: u32) {
        self.take(local_id);
    }

    /// Gives a connection away. The peer is told nothing.
    pub(crate) fn take(&mut self, local_id: u32) -> Option<Connection> {
        self.answered(local_id);
        self.unindex(local_id);
        self.connections.remove(&local_id)
    }

    /// Whether there is room for another connection.
    pub(super) fn has_room(&self) -> bool {
        self.connections.len() < self.max_connections
    }

    /// Updates the addresses of the clients' connections. A client that is gone has no addresses;
    /// its remaining connections keep the ones they had.
    pub(crate) fn set_own_addresses(&mut self, mut of: impl FnMut(ClientId) -> Vec<(IpAddr, u32)>) {
        let mut known = BTreeMap::new();
        for c in self.connections.values_mut() {
            let Some(client) = c.client else { continue };
            let addresses = known.entry(client).or_insert_with(|| of(client));
            if !addresses.is_empty() {
                c.alternates.set_own(addresses);
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let first = |timers: &BTreeSet<(Duration, u32)>| timers.first().map(|(at, _)| *at);
        [first(&self.timers), first(&self.apm_timers)].into_iter().flatten().min()
    }

    /// Runs every timer that is due: repeats MADs, gives up, and ends time-waits.
    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        while let Some(&(at, local_id)) = self.timers.first() {
            if at > now {
                break;
            }
            self.set_deadline(local_id, None);
            self.expire(now, local_id);
        }
        self.handle_path_timers(now);
    }

    fn expire(&mut self, now: Duration, local_id: u32) {
        let Some(c) = self.connections.get_mut(&local_id) else { return };
        let state = c.state;
        if state == State::Timewait {
            c.state = State::Idle;
            self.report(local_id, IbEvent::TimewaitExit);
            self.forget_if_done(local_id);
            return;
        }
        let longest = c.timeout;
        let limit = match state {
            State::DreqSent | State::Established | State::MraReqRcvd | State::MraRepRcvd => {
                c.max_retries
            }
            // A slow program has hardly less time than if all were as far apart as the last ones are.
            _ => c.max_retries + early_repeats(longest).saturating_sub(1),
        };
        let mut to = c.endpoints;
        let Some(pending) = &mut c.pending else { return };
        let refused = core::mem::take(&mut pending.refused);
        if refused || pending.attempt < limit {
            if !refused {
                pending.attempt += 1;
                // An MRA may have made it longer than that.
                pending.timeout = pending.timeout.max(longest.min(pending.timeout * 2));
            }
            let (mad, timeout, attempt) = (pending.mad, pending.timeout, pending.attempt);
            if state == State::DreqSent {
                to = c.endpoints_for(attempt);
            }
            self.set_deadline(local_id, Some(now + timeout));
            self.counters.mads_retried += 1;
            self.send(to, mad, Some(local_id), attempt);
            return;
        }
        match state {
            State::DreqSent => {
                self.enter_timewait(now, local_id);
                self.report(local_id, IbEvent::DreqError);
            }
            // The peer knows nothing of moving, or does not answer. It may still be there.
            State::Established => c.pending = None,
            _ => {
                self.report(local_id, IbEvent::Unreachable);
                self.reset_to_idle(local_id);
            }
        }
    }
}

/// How often a message is repeated before the time until it is repeated again is the longest.
fn early_repeats(longest: Duration) -> u8 {
    let times = core::iter::successors(Some(FIRST_TIMEOUT), |time| Some(*time * 2));
    times.take_while(|time| *time < longest).count() as u8
}
