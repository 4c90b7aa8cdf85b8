//! The effects of the commands of applications.

use core::time::Duration;

use polypath_cm::FileId;
use polypath_wire::cm::{RejectReason, Rejected};

use super::timers::{FLIGHT, RESPONSE};
use super::{Cma, Expected, FIRST_HALF, Half, HalfId, Listener, Model, Owner, Param, State, What};
use crate::cm::abi::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, EISCONN, ENODEV, ENOENT, ENOMEM, event};
use crate::cm::case::Service;

/// The room for private data of an application in each message, in bytes.
const REQ_ROOM: usize = 56;
const REP_ROOM: usize = 196;
const REJ_ROOM: usize = 148;
const SIDR_REQ_ROOM: usize = 180;
const SIDR_REP_ROOM: usize = 136;

type Outcome = Result<(), i32>;

impl Model {
    /// Notes that an id for a connection was created.
    pub(in crate::cm) fn created(&mut self, file: FileId, attempt: usize, id: u32) -> HalfId {
        let plan = &self.case.attempts[attempt];
        let host = plan.place.host;
        let place = (host, self.life[host], file);
        let uid = self.halves.len() as u64 + FIRST_HALF;
        let half = Half::new(place, attempt, plan.service.ud, State::Fresh);
        self.halves.push(Half { id: Some(id), uid, named: true, owned: true, ..half });
        self.halves.len() - 1
    }

    pub(in crate::cm) fn listener_created(
        &mut self,
        host: usize,
        file: FileId,
        (service, link): (Service, Option<usize>),
        id: u32,
    ) -> usize {
        self.listeners.push(Listener {
            host,
            life: self.life[host],
            file,
            service,
            link,
            id,
            removed: false,
            address_lost: false,
            bound: false,
            listening: false,
            backlog: 0,
            reported: 0,
            destroyed: false,
        });
        self.listeners.len() - 1
    }

    pub(in crate::cm) fn bind(&mut self, listener: usize) -> Outcome {
        let l = &self.listeners[listener];
        if let Some(link) = l.link {
            self.has_device(l.host, link, l.file)?;
        }
        let rival = |o: &Listener| o.bound && !o.destroyed && o.life == l.life && o.host == l.host;
        for other in self.listeners.iter().filter(|o| rival(o) && o.service == l.service) {
            match (l.link, other.link) {
                (Some(link), Some(its)) if link == its => return Err(EADDRINUSE),
                (Some(_), Some(_)) => {}
                _ => return Err(EADDRNOTAVAIL),
            }
        }
        self.listeners[listener].bound = true;
        Ok(())
    }

    /// Fails unless an address of a host has a device for a process.
    pub(super) fn has_device(&self, host: usize, link: usize, file: FileId) -> Outcome {
        if self.lost.contains(&(host, link)) {
            return Err(EADDRNOTAVAIL);
        }
        if self.without_device.contains(&file) { Err(ENODEV) } else { Ok(()) }
    }

    pub(in crate::cm) fn listen(&mut self, now: Duration, listener: usize, backlog: u32) {
        let l = &mut self.listeners[listener];
        l.backlog = if backlog == 0 { 1024 } else { backlog };
        l.listening = true;
        let host = l.host;
        self.take_early(now, host);
    }

    /// Destroys a listening id. Returns how many of its events were reported.
    pub(in crate::cm) fn destroy_listener(&mut self, now: Duration, listener: usize) -> u32 {
        let l = &mut self.listeners[listener];
        l.destroyed = true;
        let reported = l.reported;
        self.drop_events(now, Owner::Listener(listener));
        reported
    }

    /// Drops the unread events of an id that is destroyed, and the connections that only those events
    /// announce.
    fn drop_events(&mut self, now: Duration, owner: Owner) {
        let mut unseen = Vec::new();
        self.queue.retain(|(_, e)| {
            let goes = e.owner == owner || e.child.is_some_and(|child| owner == Owner::Half(child));
            if goes {
                unseen.push(e.clone());
            }
            !goes
        });
        for event in unseen {
            match (event.owner, event.child) {
                (Owner::Listener(l), Some(child)) if owner == Owner::Half(child) => {
                    self.listeners[l].backlog += 1;
                }
                (_, Some(child)) => {
                    self.destroy(now, child);
                }
                _ => {}
            }
        }
    }

    /// Fails unless a command may name the id.
    fn usable(&self, half: HalfId) -> Outcome {
        let h = &self.halves[half];
        match h.cma {
            _ if !h.owned => Err(ENOENT),
            Cma::Removed => Err(ENODEV),
            _ => Ok(()),
        }
    }

    pub(in crate::cm) fn resolve_addr(&mut self, half: HalfId) -> Outcome {
        self.usable(half)?;
        // A source address was given, so the id is bound to it first.
        let (h, link) = (&self.halves[half], self.plan(half).link);
        self.has_device(h.host, link, h.file)?;
        self.halves[half].cma = Cma::Resolved;
        self.push(half, event::ADDR_RESOLVED, 0, Param::None);
        Ok(())
    }

    pub(in crate::cm) fn resolve_route(&mut self, half: HalfId) -> Outcome {
        self.usable(half)?;
        self.push(half, event::ROUTE_RESOLVED, 0, Param::None);
        Ok(())
    }

    pub(in crate::cm) fn connect(&mut self, now: Duration, half: HalfId) -> Outcome {
        self.usable(half)?;
        let h = &self.halves[half];
        let (ud, host) = (h.ud, h.host);
        if self.private(half).len() > if ud { SIDR_REQ_ROOM } else { REQ_ROOM } {
            return Err(EINVAL);
        }
        if self.held(host) >= self.case.max_connections {
            return Err(ENOMEM);
        }
        let ways = self.own_ways(host);
        let h = &mut self.halves[half];
        (h.cma, h.asked, h.ways) = (Cma::Connect, true, ways);
        if ud {
            h.longest = RESPONSE;
            self.send_and_await(now, half, What::SidrReq, State::SidrReqSent);
        } else {
            h.longest = RESPONSE + FLIGHT;
            self.send_and_await(now, half, What::Req, State::ReqSent);
        }
        Ok(())
    }

    /// The listening application accepts.
    pub(in crate::cm) fn accept(&mut self, now: Duration, half: HalfId) -> Outcome {
        self.usable(half)?;
        if self.halves[half].cma != Cma::Connect {
            return Err(EINVAL);
        }
        let private = self.private(half);
        let (ud, state) = (self.halves[half].ud, self.halves[half].state);
        let done = match ud {
            true if private.len() > SIDR_REP_ROOM || state != State::SidrReqRcvd => Err(EINVAL),
            true => {
                self.answer_sidr(half, 0, private);
                Ok(())
            }
            false if private.len() > REP_ROOM || state != State::ReqRcvd => Err(EINVAL),
            false => {
                self.send_and_await(now, half, What::Rep, State::RepSent);
                Ok(())
            }
        };
        match done {
            Ok(()) => self.halves[half].named = true,
            Err(_) => {
                let _ = self.refuse(now, half, Vec::new());
            }
        }
        done
    }

    /// The connecting application confirms.
    pub(in crate::cm) fn confirm(&mut self, now: Duration, half: HalfId) -> Outcome {
        self.usable(half)?;
        if self.halves[half].cma != Cma::Connect {
            return Err(EINVAL);
        }
        if self.halves[half].state != State::RepRcvd {
            let _ = self.refuse(now, half, Vec::new());
            return Err(EINVAL);
        }
        self.halves[half].state = State::Established;
        let rtu = self.rtu_of(half);
        self.send(half, rtu);
        Ok(())
    }

    pub(in crate::cm) fn reject(&mut self, now: Duration, half: HalfId) -> Outcome {
        self.usable(half)?;
        let private = self.private(half);
        let room = if self.halves[half].ud { SIDR_REP_ROOM } else { REJ_ROOM };
        if private.len() > room {
            return Err(EINVAL);
        }
        self.refuse(now, half, private)
    }

    fn refuse(&mut self, now: Duration, half: HalfId, private: Vec<u8>) -> Outcome {
        if self.halves[half].ud {
            if self.halves[half].state != State::SidrReqRcvd {
                return Err(EINVAL);
            }
            self.answer_sidr(half, 2, private);
            return Ok(());
        }
        self.send_rej(now, half, RejectReason::ConsumerDefined, private)
    }

    /// Answers a SIDR_REQ. The answer is kept, in case the request comes again.
    fn answer_sidr(&mut self, half: HalfId, status: u8, private: Vec<u8>) {
        let rep = What::SidrRep { status, private };
        let h = &mut self.halves[half];
        h.state = State::SidrRepSent;
        h.answered = Some(rep.clone());
        self.send(half, rep);
    }

    /// Sends a REJ of what came last. If a REP was sent, a time-wait follows.
    fn send_rej(
        &mut self,
        now: Duration,
        half: HalfId,
        reason: RejectReason,
        private: Vec<u8>,
    ) -> Outcome {
        let rejected = match self.halves[half].state {
            State::ReqRcvd => Rejected::Req,
            State::RepRcvd => Rejected::Rep,
            State::ReqSent | State::MraReqRcvd | State::RepSent | State::MraRepRcvd => {
                Rejected::Other
            }
            _ => return Err(EINVAL),
        };
        let rep_sent = matches!(self.halves[half].state, State::RepSent | State::MraRepRcvd);
        let rej = What::Rej { rejected, reason, private };
        self.send(half, rej.clone());
        if rep_sent {
            // The peer may not get the REJ, and may confirm.
            self.halves[half].answered = Some(rej);
            self.enter_timewait(now, half);
        } else {
            self.become_idle(half);
        }
        Ok(())
    }

    pub(in crate::cm) fn disconnect(&mut self, now: Duration, half: HalfId) -> Outcome {
        self.usable(half)?;
        match self.halves[half].state {
            // The id has an address, but no connection yet.
            State::Fresh => return Err(EINVAL),
            State::Established => self.send_and_await(now, half, What::Dreq, State::DreqSent),
            State::DreqRcvd => self.send_drep(now, half),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn send_drep(&mut self, now: Duration, half: HalfId) {
        self.send(half, What::Drep);
        self.enter_timewait(now, half);
    }

    /// The queue pair saw data before the RTU.
    pub(in crate::cm) fn notify(&mut self, half: HalfId) -> Outcome {
        self.usable(half)?;
        match self.halves[half].state {
            State::RepSent | State::MraRepRcvd => {
                self.establish(half);
                Ok(())
            }
            State::Established => Err(EISCONN),
            _ => Err(EINVAL),
        }
    }

    pub(super) fn establish(&mut self, half: HalfId) {
        let h = &mut self.halves[half];
        (h.state, h.retry) = (State::Established, None);
        self.tell(half, event::ESTABLISHED, 0, Param::None);
    }

    /// Destroys an id, because its application did so or died. Returns how many of its events were
    /// reported.
    pub(in crate::cm) fn destroy(&mut self, now: Duration, half: HalfId) -> u32 {
        let h = &mut self.halves[half];
        let reported = h.reported;
        let defined = RejectReason::ConsumerDefined;
        match h.state {
            State::ReqSent | State::MraReqRcvd => {
                let _ = self.send_rej(now, half, RejectReason::Timeout, Vec::new());
            }
            State::ReqRcvd | State::RepRcvd | State::RepSent | State::MraRepRcvd => {
                let _ = self.send_rej(now, half, defined, Vec::new());
            }
            State::Established => {
                h.longest = h.longest.min(RESPONSE);
                self.send_and_await(now, half, What::Dreq, State::DreqSent);
            }
            State::DreqRcvd => self.send_drep(now, half),
            State::SidrReqRcvd => {
                self.answer_sidr(half, 2, Vec::new());
                self.become_idle(half);
            }
            State::SidrReqSent | State::SidrRepSent => self.become_idle(half),
            State::Fresh | State::Idle | State::DreqSent | State::Timewait => {}
        }
        let h = &mut self.halves[half];
        h.longest = h.longest.min(RESPONSE);
        h.owned = false;
        h.forgotten |= matches!(h.state, State::Fresh | State::Idle);
        self.drop_events(now, Owner::Half(half));
        reported
    }

    /// Moves an id to another event channel, with its unread events.
    pub(in crate::cm) fn migrate(&mut self, half: HalfId, to: FileId) -> Outcome {
        if !self.halves[half].owned {
            return Err(ENOENT);
        }
        self.halves[half].file = to;
        for (file, event) in &mut self.queue {
            if event.owner == Owner::Half(half) {
                *file = to;
            }
        }
        Ok(())
    }

    /// Closes a file of a process that died.
    pub(in crate::cm) fn close(&mut self, now: Duration, file: FileId) {
        for l in 0..self.listeners.len() {
            if self.listeners[l].file == file && !self.listeners[l].destroyed {
                self.destroy_listener(now, l);
            }
        }
        for half in 0..self.halves.len() {
            if self.halves[half].file == file && self.halves[half].owned {
                self.destroy(now, half);
            }
        }
        self.queue.retain(|(f, _)| *f != file);
    }

    /// Removes the device of a process. Connections that nobody has accepted end; all other ids can
    /// only be destroyed.
    pub(in crate::cm) fn remove_device(&mut self, now: Duration, file: FileId) {
        self.without_device.insert(file);
        for listener in 0..self.listeners.len() {
            let l = &mut self.listeners[listener];
            let attached = l.bound && l.link.is_some();
            if l.file == file && attached && !l.destroyed && !l.removed {
                (l.removed, l.listening) = (true, false);
                self.push_listener(listener, event::DEVICE_REMOVAL);
            }
        }
        for half in 0..self.halves.len() {
            let h = &self.halves[half];
            if h.file != file || !h.owned || matches!(h.cma, Cma::Removed | Cma::Free) {
                continue;
            }
            if h.named {
                self.halves[half].cma = Cma::Removed;
                self.push(half, event::DEVICE_REMOVAL, 0, Param::None);
            } else {
                self.destroy(now, half);
            }
        }
    }

    fn push_listener(&mut self, listener: usize, kind: u32) {
        let owner = Owner::Listener(listener);
        let event = Expected { owner, kind, status: 0, child: None, param: Param::None };
        self.queue.push((self.listeners[listener].file, event));
    }

    /// Removes an address, or brings it back. Ids that have it and are not connected yet are told when
    /// it goes. Connections tell their peers about the other addresses.
    pub(in crate::cm) fn address(&mut self, host: usize, link: usize, there: bool) {
        if there {
            self.lost.remove(&(host, link));
        } else {
            self.lost.insert((host, link));
        }
        let (life, ways) = (self.life[host], self.own_ways(host));
        for half in 0..self.halves.len() {
            // Without any address, connections keep the number of addresses that they had.
            if self.is_here(half, host) && ways > 0 && self.halves[half].cma != Cma::Free {
                self.halves[half].ways = ways;
            }
            let h = &self.halves[half];
            if (h.host, h.life) != (host, life) || !h.owned || h.cma != Cma::Resolved {
                continue;
            }
            let lost = self.has_device(host, self.plan(half).link, h.file).is_err();
            if lost && !h.address_lost {
                self.push(half, event::ADDR_CHANGE, 0, Param::None);
            }
            self.halves[half].address_lost = lost;
        }
        for listener in 0..self.listeners.len() {
            let l = &self.listeners[listener];
            let gone = l.destroyed || l.removed || !l.bound || (l.host, l.life) != (host, life);
            let Some(own) = l.link.filter(|_| !gone) else { continue };
            let lost = self.has_device(host, own, l.file).is_err();
            if lost && !l.address_lost {
                self.push_listener(listener, event::ADDR_CHANGE);
            }
            self.listeners[listener].address_lost = lost;
        }
    }
}
