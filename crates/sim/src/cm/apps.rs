//! Carries out what applications do, at the planned times.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use polypath_cm::FileId;

use super::abi::{self, Param, event};
use super::case::{Decision, EndPlan, Place, Quit};
use super::model::{FIRST_HALF, HalfId, State};
use super::run::CmSimulation;
use super::step::{Action, Step};
use crate::datagram::address;
use crate::judge::{Verdict, breach, demand};

impl CmSimulation {
    pub(super) fn act(&mut self, action: Action) -> Verdict {
        let place = match &action {
            Action::Fault(fault) => return self.fault(*fault),
            Action::Wake(place) => return self.send_and_check(place.host),
            Action::Listen(l) => self.case.listeners[*l].place,
            Action::Attempt(a) => self.case.attempts[*a].place,
            Action::Unlisten(l) => {
                let l = &self.model.listeners[*l];
                match self.place_of(l.host, l.file) {
                    Some(place) => place,
                    None => return Ok(()),
                }
            }
            Action::Half(half, _) => {
                let h = &self.model.halves[*half];
                match self.place_of(h.host, h.file) {
                    Some(place) => place,
                    None => return Ok(()),
                }
            }
        };
        let process = &self.processes[&place];
        if process.files.is_empty() {
            return Ok(());
        }
        if process.paused_until > self.now {
            let until = process.paused_until;
            self.plan(until, action);
            return Ok(());
        }
        match action {
            Action::Listen(l) => self.listen(place, l)?,
            Action::Unlisten(l) => self.unlisten(place, l)?,
            Action::Attempt(a) => self.attempt(place, a)?,
            Action::Half(half, step) => self.half(place, half, step)?,
            Action::Fault(_) | Action::Wake(_) => {}
        }
        self.send_and_check(place.host)
    }

    /// The process that has a file open; `None` if it has ended.
    fn place_of(&self, host: usize, file: FileId) -> Option<Place> {
        let mine = |(place, p): (&Place, &super::run::Process)| {
            (place.host == host && p.files.contains(&file)).then_some(*place)
        };
        self.processes.iter().find_map(mine)
    }

    /// The event channel that a process opened first.
    fn file(&self, place: Place) -> FileId {
        self.processes[&place].files.first().copied().unwrap_or(FileId(0))
    }

    fn listen(&mut self, place: Place, number: usize) -> Verdict {
        let plan = self.case.listeners[number].clone();
        let at = (place, self.file(place));
        let uid = self.model.listeners.len() as u64;
        let create = abi::create(uid, plan.service, true);
        let Some(response) = self.command(at, &create, Ok(()), "create an id to listen")? else {
            return Ok(());
        };
        let id = abi::number(&response);
        let (service, link) = (plan.service, plan.link);
        let listener = self.model.listener_created(place.host, at.1, (service, link), id);
        let any = match self.case.v6 {
            true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let must = self.model.bind(listener);
        let ip = link.map_or(any, |link| address(link, place.host, self.case.v6));
        let bind = abi::bind(id, SocketAddr::new(ip, plan.service.port));
        if self.command(at, &bind, must, "bind")?.is_some() {
            self.model.listen(self.now, listener, plan.backlog);
            self.command(at, &abi::listen(id, plan.backlog), Ok(()), "listen")?;
        }
        if let Some(until) = plan.until {
            let then = self.now + until.saturating_sub(plan.at);
            self.plan(then, Action::Unlisten(listener));
        }
        Ok(())
    }

    fn unlisten(&mut self, place: Place, listener: usize) -> Verdict {
        if self.model.listeners[listener].destroyed {
            return Ok(());
        }
        let (id, file) = (self.model.listeners[listener].id, self.model.listeners[listener].file);
        let must = self.model.destroy_listener(self.now, listener);
        self.destroyed((place, file), id, must)
    }

    /// Destroys an id, and checks the response, which says how many of its events were reported.
    fn destroyed(&mut self, at: (Place, FileId), id: u32, reported: u32) -> Verdict {
        let response = self.command(at, &abi::destroy(id), Ok(()), "destroy")?;
        let got = response.map(|r| abi::number(&r));
        demand(got == Some(reported), "events are counted", || {
            format!("{}: id {id}: {got:?} events reported instead of {reported}", at.0)
        })
    }

    fn attempt(&mut self, place: Place, attempt: usize) -> Verdict {
        let plan = self.case.attempts[attempt].clone();
        let at = (place, self.file(place));
        let uid = self.model.halves.len() as u64 + FIRST_HALF;
        let create = abi::create(uid, plan.service, false);
        let Some(response) = self.command(at, &create, Ok(()), "create an id to connect")? else {
            return Ok(());
        };
        let id = abi::number(&response);
        let half = self.model.created(at.1, attempt, id);
        let (from, to) = self.model.destination(attempt);
        let must = self.model.resolve_addr(half);
        if self.command(at, &abi::resolve_addr(id, from, to), must, "resolve address")?.is_none() {
            let then = self.now + plan.active.destroy_after;
            self.plan(then, Action::Half(half, Step::Destroy));
        }
        Ok(())
    }

    fn half(&mut self, place: Place, half: HalfId, step: Step) -> Verdict {
        let now = self.now;
        let h = &self.model.halves[half];
        let Some(id) = h.id else { return Ok(()) };
        let (active, owned, attempt, at) = (h.active, h.owned, h.attempt, (place, h.file));
        match step {
            Step::ResolveRoute => {
                let must = self.model.resolve_route(half);
                self.command(at, &abi::resolve_route(id), must, "resolve route")?;
            }
            Step::Connect => {
                let param = self.param(half);
                let must = self.model.connect(now, half);
                let done = self.command(at, &abi::connect(id, &param), must, "connect")?;
                let end = self.case.attempts[attempt].active.clone();
                match done {
                    Some(_) => self.plan_end(half, &end),
                    None => self.plan(now + end.destroy_after, Action::Half(half, Step::Destroy)),
                }
            }
            Step::Decide if active => {
                self.learn(at, half, id)?;
                self.agree(half)?;
                let must = self.model.confirm(now, half);
                let done = self.command(at, &abi::accept(id, 0, None), must, "confirm")?;
                let after = self.case.attempts[attempt].data_after;
                let peer = self.model.halves[half].peer;
                // Only now the queue pair may send.
                if let (Some(_), Some(after), Some(peer)) = (done, after, peer) {
                    self.plan(now + after, Action::Half(peer, Step::Notify));
                }
            }
            Step::Decide => self.decide(at, half, id)?,
            Step::Notify => {
                let must = self.model.notify(half);
                self.command(at, &abi::notify(id), must, "notify of data")?;
            }
            Step::Disconnect => {
                let must = self.model.disconnect(now, half);
                self.command(at, &abi::disconnect(id), must, "disconnect")?;
            }
            Step::Migrate => self.migrate(at, half, id)?,
            Step::Destroy if owned => {
                let reported = self.model.destroy(now, half);
                self.destroyed(at, id, reported)?;
            }
            // The id is destroyed already.
            Step::Destroy => {}
        }
        Ok(())
    }

    fn migrate(&mut self, at: (Place, FileId), half: HalfId, id: u32) -> Verdict {
        let other = self.processes[&at.0].files.iter().find(|f| **f != at.1).copied();
        let Some(to) = other else { return Ok(()) };
        let must = self.model.migrate(half, to);
        let done = self.command((at.0, to), &abi::migrate(id, at.1.0), must, "migrate")?;
        let (got, reported) = (done.map(|r| abi::number(&r)), self.model.halves[half].reported);
        demand(got.is_none_or(|got| got == reported), "events are counted", || {
            format!("{}: id {id}: {got:?} events reported instead of {reported}", at.0)
        })
    }

    fn decide(&mut self, at: (Place, FileId), half: HalfId, id: u32) -> Verdict {
        let (now, attempt) = (self.now, self.model.halves[half].attempt);
        match self.case.attempts[attempt].decision {
            Decision::Accept => {
                self.learn(at, half, id)?;
                let param = self.param(half);
                let uid = self.model.halves[half].uid;
                let must = self.model.accept(now, half);
                self.command(at, &abi::accept(id, uid, Some(&param)), must, "accept")?;
            }
            Decision::Reject => {
                let private = self.model.private(half);
                let must = self.model.reject(now, half);
                self.command(at, &abi::reject(id, &private), must, "reject")?;
                let after = self.case.attempts[attempt].passive.destroy_after;
                self.plan(now + after, Action::Half(half, Step::Destroy));
            }
            Decision::Destroy => self.half(at.0, half, Step::Destroy)?,
            Decision::Ignore => {}
        }
        Ok(())
    }

    /// Asks for what the queue pair has to know about the peer, if the peer is known.
    fn learn(&mut self, at: (Place, FileId), half: HalfId, id: u32) -> Verdict {
        let h = &self.model.halves[half];
        if h.ud || !h.owned || !matches!(h.state, State::RepRcvd | State::ReqRcvd) {
            return Ok(());
        }
        if h.cma != super::model::Cma::Connect {
            return Ok(());
        }
        let [rtr, rts] = [2, 3].map(|state| abi::qp_attr(id, state));
        let rtr = self.command(at, &rtr, Ok(()), "ask for attributes")?;
        let rts = self.command(at, &rts, Ok(()), "ask for attributes")?;
        let (Some(rtr), Some(rts)) = (rtr, rts) else {
            return breach("commands end as they must", "no attributes");
        };
        self.model.halves[half].attr = Some(abi::attr(&rtr, &rts));
        Ok(())
    }

    fn param(&self, half: HalfId) -> Param {
        let plan = self.model.plan(half);
        Param {
            qpn: self.model.qpn(half),
            private: self.model.private(half),
            numbers: plan.numbers,
        }
    }

    /// Plans what an application does on its own.
    fn plan_end(&mut self, half: HalfId, end: &EndPlan) {
        if let Some((after, quit)) = end.quit {
            let step = match quit {
                Quit::Disconnect => Step::Disconnect,
                Quit::Destroy => Step::Destroy,
            };
            self.plan(self.now + after, Action::Half(half, step));
        }
        if let Some(after) = end.migrate_after {
            self.plan(self.now + after, Action::Half(half, Step::Migrate));
        }
    }

    /// Plans what a listening application does about a request that it sees.
    pub(super) fn requested(&mut self, child: HalfId) {
        let end = self.model.plan(child).passive.clone();
        self.plan(self.now + end.decide_after, Action::Half(child, Step::Decide));
        self.plan_end(child, &end);
    }

    /// Plans what an application does about an event of an id.
    pub(super) fn react(&mut self, half: HalfId, kind: u32) {
        let plan = self.model.plan(half);
        let end = if self.model.halves[half].active { &plan.active } else { &plan.passive };
        let end = end.clone();
        let mut then = |after, step| self.plan(self.now + after, Action::Half(half, step));
        match kind {
            event::ADDR_RESOLVED => then(core::time::Duration::ZERO, Step::ResolveRoute),
            event::ROUTE_RESOLVED => then(core::time::Duration::ZERO, Step::Connect),
            event::CONNECT_RESPONSE => then(end.decide_after, Step::Decide),
            event::DISCONNECTED => {
                if let Some(after) = end.agree_after {
                    then(after, Step::Disconnect);
                }
                then(end.destroy_after, Step::Destroy);
            }
            event::REJECTED | event::UNREACHABLE | event::ADDR_ERROR | event::DEVICE_REMOVAL => {
                then(end.destroy_after, Step::Destroy);
            }
            _ => {}
        }
    }
}
