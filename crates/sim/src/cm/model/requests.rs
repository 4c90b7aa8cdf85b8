//! Requests for connections and for the resolution of services, and the listeners that get them.

use core::net::IpAddr;
use core::time::Duration;

use polypath_cm::FileId;
use polypath_wire::cm::{RejectReason, Rejected};

use super::timers::{GRACE, RESPONSE};
use super::{
    Cma, Due, Early, Expected, FIRST_HALF, Half, HalfId, Id, Model, Owner, Param, State, What,
};
use crate::cm::abi::event;
use crate::cm::case::Service;

/// The status of a SIDR_REP for a service that no process has.
const UNSUPPORTED: u8 = 1;
/// The status of a SIDR_REP of a service that refuses.
const REFUSED: u8 = 2;

impl Model {
    /// Whether any process listens on a service, on whatever address.
    pub(in crate::cm) fn serves(&self, host: usize, service: Service) -> bool {
        let life = self.life[host];
        self.listeners.iter().any(|l| {
            l.listening && !l.destroyed && (l.host, l.life) == (host, life) && l.service == service
        })
    }

    /// Handles a request of an end, or a forged request, given by its communication id. `way` holds the
    /// addresses of the answer.
    pub(super) fn request(
        &mut self,
        now: Duration,
        host: usize,
        from: Result<HalfId, u32>,
        service: Service,
        way: (IpAddr, IpAddr),
    ) {
        if self.serves(host, service) {
            return self.serve(now, host, from, service, way);
        }
        let (from, forged) = (from.ok(), from.err());
        let same = |e: &Early| (e.host, e.from, e.forged) == (host, from, forged);
        if !self.early.iter().any(same) {
            let until = now + GRACE;
            self.early.push(Early { host, until, from, forged, service, way });
        }
    }

    /// Serves the requests whose listener has come, or that have waited long enough.
    pub(super) fn take_early(&mut self, now: Duration, host: usize) {
        let waiting = core::mem::take(&mut self.early);
        let is_due = |e: &Early| e.host == host && (e.until <= now || self.serves(host, e.service));
        let (due, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_due);
        self.early = rest;
        for e in due {
            let from = e.from.ok_or_else(|| e.forged.unwrap_or(0));
            self.serve(now, host, from, e.service, e.way);
        }
    }

    fn serve(
        &mut self,
        now: Duration,
        host: usize,
        from: Result<HalfId, u32>,
        service: Service,
        way: (IpAddr, IpAddr),
    ) {
        let served = self.serves(host, service);
        let refuse = |model: &mut Self, reason: RejectReason, to: Id| {
            let (what, local) = if service.ud {
                (What::SidrRep { status: UNSUPPORTED, private: Vec::new() }, to)
            } else {
                (What::Rej { rejected: Rejected::Req, reason, private: Vec::new() }, Id::Raw(0))
            };
            model.answer(host, what, (local, to), way);
        };
        let from = match from {
            Ok(from) => from,
            Err(forged) => {
                return refuse(self, RejectReason::InvalidServiceId, Id::Raw(forged));
            }
        };
        let known = |h: &Half| !h.active && h.peer == Some(from);
        let again = self.here(host).find(|(_, h)| known(h) && h.knows_peer()).map(|(c, _)| c);
        if let Some(child) = again {
            return self.asked_again(child, way);
        }
        let over = |h: &Half| {
            (h.host, h.life, h.peer) == (host, self.life[host], Some(from))
                && h.remembered.is_some_and(|until| now < until)
        };
        if !service.ud && self.halves.iter().any(over) {
            return;
        }
        if !service.ud && self.stale(now, host, from, Rejected::Req, way) {
            return;
        }
        if !served {
            return refuse(self, RejectReason::InvalidServiceId, Id::Of(from));
        }
        // Without room, the request is dropped silently, and the peer sends it again.
        if self.held(host) < self.case.max_connections {
            self.announce(host, from, service);
        }
    }

    /// Handles a repeated request whose connection still exists.
    fn asked_again(&mut self, child: HalfId, way: (IpAddr, IpAddr)) {
        let h = &self.halves[child];
        match (h.state, h.answered.clone()) {
            // The application has not decided yet.
            (State::ReqRcvd, _) => {
                let peer = h.peer.map_or(Id::Raw(0), Id::Of);
                let mra = What::Mra(polypath_wire::cm::Mraed::Req);
                self.send_to(child, mra, peer, way);
            }
            (State::SidrRepSent, Some(rep)) => self.send(child, rep),
            _ => {}
        }
    }

    /// Handles a request or REP with a queue pair of the peer that is connected here already: it is
    /// refused as stale. The old connection ends if the message comes from the peer's address. Returns
    /// whether it was stale.
    pub(super) fn stale(
        &mut self,
        now: Duration,
        host: usize,
        from: HalfId,
        rejected: Rejected,
        way: (IpAddr, IpAddr),
    ) -> bool {
        let (peer_host, qpn) = (self.halves[from].host, self.qpn(from));
        let uses = |h: &Half| {
            let peer = h.peer.filter(|_| h.knows_peer() && !h.ud);
            peer.is_some_and(|p| {
                p != from && self.halves[p].host == peer_host && self.qpn(p) == qpn
            })
        };
        let Some(old) = self.here(host).find(|(_, h)| uses(h)).map(|(i, _)| i) else {
            return false;
        };
        let reason = RejectReason::StaleConnection;
        let what = What::Rej { rejected, reason, private: Vec::new() };
        // A REP names our end, so the refusal names it as well.
        let local = match rejected {
            Rejected::Rep => self.halves[from].peer.map_or(Id::Raw(0), Id::Of),
            _ => Id::Raw(0),
        };
        self.answer(host, what, (local, Id::Of(from)), way);
        // Only a sender at the address where the connection began can be the peer.
        if self.halves[old].state == State::Established && self.way(old).1 == way.1 {
            self.send_and_await(now, old, What::Dreq, State::DreqSent);
        }
        true
    }

    pub(in crate::cm) fn qpn(&self, half: HalfId) -> u32 {
        let plan = self.plan(half);
        if self.halves[half].active { plan.active.qpn } else { plan.passive.qpn }
    }

    /// Announces a new connection to a listening application.
    fn announce(&mut self, host: usize, from: HalfId, service: Service) {
        let asker = &self.halves[from];
        let (attempt, ud) = (asker.attempt, asker.ud);
        let (life, link) = (self.life[host], self.plan(from).link);
        let takes = |l: &super::Listener| {
            l.listening
                && !l.destroyed
                && (l.host, l.life, l.service) == (host, life, service)
                && l.link.is_none_or(|own| own == link)
        };
        let listener = self.listeners.iter().position(takes);
        let file = listener.map_or(FileId(0), |l| self.listeners[l].file);
        let state = if ud { State::SidrReqRcvd } else { State::ReqRcvd };
        let uid = self.halves.len() as u64 + FIRST_HALF;
        let half = Half::new((host, life, file), attempt, ud, state);
        let child = self.halves.len();
        let ways = self.own_ways(host);
        let half = Half { peer: Some(from), longest: RESPONSE, uid, ways, ..half };
        self.halves.push(half);
        let Some(listener) = listener else {
            // A process listens, but not on this address.
            return self.refuse_unseen(child, RejectReason::ConsumerDefined);
        };
        if self.has_device(host, link, file).is_err() {
            return self.refuse_unseen(child, RejectReason::InvalidGid);
        }
        let l = &mut self.listeners[listener];
        if l.backlog == 0 {
            self.halves[child].forgotten = true;
            return;
        }
        l.backlog -= 1;
        let h = &mut self.halves[child];
        (h.owned, h.cma, h.listener) = (true, Cma::Connect, Some(listener));
        let private = self.private(from);
        let plan = self.plan(from);
        let [responder, initiator, retries, rnr_retries] = plan.numbers;
        let param = if ud {
            Param::Private { ud, private }
        } else {
            // The initiator depth of the peer is the responder resources of this end.
            let numbers = match service.xrc {
                true => [initiator, 0, 0, 0],
                false => [initiator, responder, retries, rnr_retries],
            };
            let numbers = numbers.map(Some);
            Param::Conn { qpn: plan.active.qpn, numbers, private }
        };
        let event = Expected {
            owner: Owner::Listener(listener),
            kind: event::CONNECT_REQUEST,
            status: 0,
            child: Some(child),
            param,
        };
        self.queue.push((file, event));
    }

    fn refuse_unseen(&mut self, child: HalfId, reason: RejectReason) {
        let (host, way) = (self.halves[child].host, self.way(child));
        let peer = self.halves[child].peer.map_or(Id::Raw(0), Id::Of);
        let (what, local) = if self.halves[child].ud {
            (What::SidrRep { status: REFUSED, private: Vec::new() }, peer)
        } else {
            let rejected = Rejected::Req;
            (What::Rej { rejected, reason, private: Vec::new() }, Id::Raw(0))
        };
        self.due.push(Due { host, what, local, remote: peer, way, any_way: false });
        self.halves[child].forgotten = true;
    }
}

/// Forged MADs, and their answers.
impl Model {
    /// Handles a forged request for a service that no process has.
    pub(in crate::cm) fn forged_request(
        &mut self,
        now: Duration,
        host: usize,
        id: u32,
        service: Service,
        way: (IpAddr, IpAddr),
    ) {
        self.request(now, host, Err(id), service, way);
    }

    /// Notes that a host has to answer a forged MAD.
    pub(in crate::cm) fn forged(
        &mut self,
        host: usize,
        what: What,
        ids: (Id, Id),
        way: (IpAddr, IpAddr),
    ) {
        self.answer(host, what, ids, way);
    }
}
