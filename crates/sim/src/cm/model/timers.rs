//! The effects of the passing of time: repetitions, giving up, and the end of time-wait.

use core::time::Duration;

use super::{HalfId, Model, Param, State, What, half::Retry};
use crate::cm::abi::{ETIMEDOUT, event};

/// The time that an answer may take (`CMA_CM_RESPONSE_TIMEOUT`, 4.096 µs · 2^20, rounded as in Linux).
pub(super) const RESPONSE: Duration = Duration::from_millis(4096);
/// Twice a packet's lifetime on Ethernet (4.096 µs · 2^16), which the answer to a REQ may take in
/// addition.
pub(super) const FLIGHT: Duration = Duration::from_millis(512);
/// The time that an MRA asks for (`CMA_CM_MRA_SETTING`, 4.096 µs · 2^24), and twice a packet's
/// lifetime.
pub(super) const PATIENCE: Duration = Duration::from_millis(65_536 + 512);
/// The time-wait: how long packets may still be under way (4.096 µs · 2^17, the ACK timeout of the
/// queue pairs).
const TIMEWAIT: Duration = Duration::from_millis(512);
/// The time until the first repetition. Each further one takes twice as long, but not longer than an answer
/// may take.
const FIRST: Duration = Duration::from_secs(1);
/// The same for a DREQ.
const DREQ_FIRST: Duration = Duration::from_millis(250);
/// The number of transmissions of a message: `CMA_MAX_CM_RETRIES` and one.
const TRANSMISSIONS: u32 = 16;
/// How long a request is remembered whose connection has ended.
const REMEMBERED: Duration = Duration::from_secs(10);
/// The time for which a service that does not exist is asked for again.
const ASKS_FOR: Duration = Duration::from_millis(200);
/// The time for which a request waits for its listener.
pub(super) const GRACE: Duration = Duration::from_millis(200);

impl Model {
    /// The time when something has to happen at a host next.
    pub(in crate::cm) fn deadline(&self, host: usize) -> Option<Duration> {
        let early = self.early.iter().filter(|e| e.host == host).map(|e| e.until);
        self.here(host).filter_map(|(_, h)| h.deadline()).chain(early).min()
    }

    /// Lets everything happen that is due at a host by `now`.
    pub(in crate::cm) fn tick(&mut self, now: Duration, host: usize) {
        let due = |h: &super::Half| h.deadline().is_some_and(|at| at <= now);
        loop {
            let next = self.here(host).find(|(_, h)| due(h)).map(|(half, _)| half);
            let Some(half) = next else { break };
            self.expire(now, half);
        }
        self.take_early(now, host);
    }

    /// Sends a MAD that is repeated until it is answered, and enters `state`.
    pub(super) fn send_and_await(&mut self, now: Duration, half: HalfId, what: What, state: State) {
        let h = &mut self.halves[half];
        h.state = state;
        let first = if state == State::DreqSent { DREQ_FIRST } else { FIRST };
        let timeout = first.min(h.longest);
        let (at, since, refused) = (now + timeout, now, false);
        h.retry = Some(Retry { what: what.clone(), at, timeout, sent: 1, since, refused });
        self.send(half, what);
    }

    /// The service does not exist yet: plans to ask again. Returns false if it was asked for long
    /// enough.
    pub(super) fn asks_again(&mut self, now: Duration, half: HalfId) -> bool {
        let Some(retry) = &mut self.halves[half].retry else { return false };
        let last = retry.since + ASKS_FOR;
        if now >= last {
            return false;
        }
        // The time since the first request is doubled.
        let at = now + (now - retry.since).max(Duration::from_millis(5));
        (retry.at, retry.refused) = (at.min(last), true);
        true
    }

    /// The peer asked for patience by an MRA.
    pub(super) fn postpone(&mut self, now: Duration, half: HalfId, state: State) {
        let h = &mut self.halves[half];
        h.state = state;
        if let Some(retry) = &mut h.retry {
            (retry.timeout, retry.at) = (PATIENCE, now + PATIENCE);
        }
    }

    pub(super) fn enter_timewait(&mut self, now: Duration, half: HalfId) {
        let h = &mut self.halves[half];
        // Both ends know that there was a connection.
        let known = matches!(h.state, State::Established | State::DreqSent | State::DreqRcvd);
        if !h.active && known {
            h.remembered = Some(now + REMEMBERED);
        }
        (h.state, h.retry, h.until) = (State::Timewait, None, Some(now + TIMEWAIT));
    }

    /// Ends a connection at once, without a time-wait.
    pub(super) fn become_idle(&mut self, half: HalfId) {
        let h = &mut self.halves[half];
        (h.state, h.retry, h.until) = (State::Idle, None, None);
        h.forgotten = !h.owned;
    }

    fn expire(&mut self, now: Duration, half: HalfId) {
        let h = &mut self.halves[half];
        if h.until.is_some() {
            self.tell(half, event::TIMEWAIT_EXIT, 0, Param::None);
            return self.become_idle(half);
        }
        let Some(retry) = &mut h.retry else { return };
        let refused = core::mem::take(&mut retry.refused);
        // The first ones of a request or REP take the time of one.
        let more = match h.state {
            State::DreqSent | State::MraReqRcvd | State::MraRepRcvd => 0,
            _ => soon(h.longest).saturating_sub(1),
        };
        if refused || retry.sent < TRANSMISSIONS + more {
            retry.sent += u32::from(!refused);
            if !refused && retry.timeout < h.longest {
                retry.timeout = (retry.timeout * 2).min(h.longest);
            }
            retry.at = now + retry.timeout;
            let what = retry.what.clone();
            return self.send(half, what);
        }
        if h.state == State::DreqSent {
            self.enter_timewait(now, half);
            self.ended(half, -ETIMEDOUT);
        } else {
            self.tell(half, event::UNREACHABLE, -ETIMEDOUT, Param::None);
            self.become_idle(half);
        }
    }

    /// Tells the application that the connection has ended.
    pub(super) fn ended(&mut self, half: HalfId, status: i32) {
        self.tell(half, event::DISCONNECTED, status, Param::None);
        let h = &mut self.halves[half];
        if h.owned && h.cma == super::Cma::Connect {
            h.cma = super::Cma::Disconnect;
        }
    }
}

/// The number of transmissions after which an answer has less time than this.
fn soon(longest: Duration) -> u32 {
    (0..16).take_while(|n| FIRST * 2_u32.pow(*n) < longest).count() as u32
}
