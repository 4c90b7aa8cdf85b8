//! The effects of the MADs of peers.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::cm::{Mraed, RejectReason, Rejected, SidrStatus};

use super::{Cma, HalfId, Id, Model, Param, Sent, State, What};
use crate::cm::abi::event;

impl Model {
    /// A MAD that was sent comes to a host. (A forged MAD changes nothing.)
    pub(in crate::cm) fn deliver(&mut self, now: Duration, host: usize, sent: &Sent) {
        // Answers go back to where the MAD came from.
        let back = (sent.way.1, sent.way.0);
        let (from, to) = (half_of(sent.from), half_of(sent.to));
        match (&sent.what, from, to) {
            (What::Req | What::SidrReq, Some(from), _) => {
                let service = self.plan(from).service;
                self.request(now, host, Ok(from), service, back);
            }
            (What::Rep, Some(from), Some(to)) => self.rep(now, host, (from, to), back),
            (What::Rtu { list }, Some(from), Some(to)) => self.rtu(host, (from, to), *list, back),
            (What::Mra(mraed), Some(from), Some(to)) => self.mra(now, host, (from, to), *mraed),
            (What::Rej { rejected, reason, private }, _, _) => {
                if let Some(to) = self.rejected(host, (from, to), *rejected, *reason) {
                    self.rej(now, to, *reason, private.clone());
                }
            }
            (What::Dreq, Some(from), Some(to)) => self.dreq(now, host, (from, to), back),
            (What::Drep, _, Some(to)) => {
                let h = &self.halves[to];
                let meant = h.peer.is_some() && h.peer == from;
                let waits = matches!(h.state, State::DreqSent | State::DreqRcvd);
                if self.is_here(to, host) && meant && waits {
                    self.enter_timewait(now, to);
                    self.ended(to, 0);
                }
            }
            (What::SidrRep { status, private }, _, Some(to))
                if self.is_here(to, host) && self.halves[to].state == State::SidrReqSent =>
            {
                self.resolved(now, to, *status, private.clone());
            }
            _ => {}
        }
    }

    /// Handles a REP: it is the first answer, or it asks for the RTU again.
    fn rep(
        &mut self,
        now: Duration,
        host: usize,
        (from, to): (HalfId, HalfId),
        back: (IpAddr, IpAddr),
    ) {
        if !self.is_here(to, host) {
            return;
        }
        let (state, peer) = (self.halves[to].state, self.halves[to].peer);
        match (peer, state) {
            (None, State::ReqSent | State::MraReqRcvd) => {
                if self.stale(now, host, from, Rejected::Rep, back) {
                    return;
                }
                let private = self.private(from);
                let plan = self.plan(from);
                // The passive end answers with the numbers that it was asked for.
                let [responder, mut initiator, _, rnr_retries] = plan.numbers;
                if plan.service.xrc {
                    initiator = 0;
                }
                let numbers = [Some(initiator), Some(responder), None, Some(rnr_retries)];
                let param = Param::Conn { qpn: plan.passive.qpn, numbers, private };
                let h = &mut self.halves[to];
                (h.peer, h.state, h.retry) = (Some(from), State::RepRcvd, None);
                self.tell(to, event::CONNECT_RESPONSE, 0, param);
            }
            (Some(known), State::Established) if known == from => {
                let rtu = self.rtu_of(to);
                self.send_to(to, rtu, Id::Of(from), back);
            }
            (Some(known), State::RepRcvd) if known == from => {
                self.send_to(to, What::Mra(Mraed::Rep), Id::Of(from), back);
            }
            _ => {}
        }
    }

    fn rtu(
        &mut self,
        host: usize,
        (from, to): (HalfId, HalfId),
        list: bool,
        back: (IpAddr, IpAddr),
    ) {
        if !self.is_here(to, host) || self.halves[to].peer != Some(from) {
            // This end is gone, and the MAD that told the peer so was lost.
            let (rejected, reason) = (Rejected::Other, RejectReason::InvalidCommId);
            let rej = What::Rej { rejected, reason, private: Vec::new() };
            return self.answer(host, rej, (Id::Of(to), Id::Of(from)), back);
        }
        if let Some(rej) = self.halves[to].answered.clone() {
            return self.send_to(to, rej, Id::Of(from), back);
        }
        if self.halves[to].active {
            return;
        }
        // A connection with several addresses answers with its own list.
        if list && self.halves[to].ways > 1 {
            self.send_to(to, What::Rtu { list }, Id::Of(from), back);
        }
        if matches!(self.halves[to].state, State::RepSent | State::MraRepRcvd) {
            self.establish(to);
        }
    }

    fn mra(&mut self, now: Duration, host: usize, (from, to): (HalfId, HalfId), mraed: Mraed) {
        if !self.is_here(to, host) {
            return;
        }
        let h = &self.halves[to];
        match (mraed, h.state) {
            (Mraed::Req, State::ReqSent) if h.peer.is_none() => {
                self.postpone(now, to, State::MraReqRcvd);
            }
            (Mraed::Rep, State::RepSent) if h.peer == Some(from) => {
                self.postpone(now, to, State::MraRepRcvd);
            }
            _ => {}
        }
    }

    /// The end that a REJ concerns, if it is still there.
    fn rejected(
        &self,
        host: usize,
        (from, to): (Option<HalfId>, Option<HalfId>),
        rejected: Rejected,
        reason: RejectReason,
    ) -> Option<HalfId> {
        if reason == RejectReason::Timeout {
            // An end that gave up may never have learned which end it had asked for.
            let mut here = self.here(host);
            let asked = here.find(|(_, h)| !h.active && h.peer == from && h.knows_peer());
            return asked.map(|(child, _)| child);
        }
        let to = to.filter(|to| self.is_here(*to, host))?;
        let peer = self.halves[to].peer;
        let meant = if rejected == Rejected::Req { peer.is_none() } else { peer == from };
        meant.then_some(to)
    }

    fn rej(&mut self, now: Duration, to: HalfId, reason: RejectReason, private: Vec<u8>) {
        let unserved = reason == RejectReason::InvalidServiceId;
        if self.halves[to].state == State::ReqSent && unserved && self.asks_again(now, to) {
            return;
        }
        match self.halves[to].state {
            State::ReqSent
            | State::MraReqRcvd
            | State::ReqRcvd
            | State::RepSent
            | State::MraRepRcvd => {
                let param = Param::Private { ud: false, private };
                self.tell(to, event::REJECTED, reason.code().into(), param);
                if reason == RejectReason::StaleConnection {
                    self.enter_timewait(now, to);
                } else {
                    self.become_idle(to);
                }
            }
            State::DreqSent | State::RepRcvd | State::Established => {
                let param = Param::Private { ud: false, private };
                self.tell(to, event::REJECTED, reason.code().into(), param);
                self.enter_timewait(now, to);
            }
            _ => {}
        }
    }

    fn dreq(
        &mut self,
        now: Duration,
        host: usize,
        (from, to): (HalfId, HalfId),
        back: (IpAddr, IpAddr),
    ) {
        let known = self.is_here(to, host) && self.halves[to].peer == Some(from);
        if !known {
            // This end is gone, so the peer may end as well.
            return self.answer(host, What::Drep, (Id::Of(to), Id::Of(from)), back);
        }
        match self.halves[to].state {
            State::RepSent | State::MraRepRcvd | State::DreqSent | State::Established => {
                let h = &mut self.halves[to];
                (h.state, h.retry) = (State::DreqRcvd, None);
                let owned = h.owned;
                self.ended(to, 0);
                if !owned {
                    // No application is left that could agree.
                    self.send_drep(now, to);
                }
            }
            State::Timewait | State::Idle => {
                self.send_to(to, What::Drep, Id::Of(from), back);
            }
            _ => {}
        }
    }

    /// Handles the answer to a service id resolution.
    fn resolved(&mut self, now: Duration, to: HalfId, status: u8, private: Vec<u8>) {
        if status == SidrStatus::Unsupported.code() && self.asks_again(now, to) {
            return;
        }
        self.become_idle(to);
        if status == 0 {
            let param = Param::Ud { qpn: self.plan(to).passive.qpn, private };
            self.tell(to, event::ESTABLISHED, 0, param);
        } else {
            let param = Param::Private { ud: true, private };
            self.tell(to, event::UNREACHABLE, status.into(), param);
        }
        debug_assert!(self.halves[to].cma != Cma::Free);
    }
}

fn half_of(id: Id) -> Option<HalfId> {
    match id {
        Id::Of(half) => Some(half),
        Id::Raw(_) => None,
    }
}
