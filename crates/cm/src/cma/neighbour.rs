//! Ids that wait until the next host on the way to their address is known to be there.
//!
//! The kernel resolves the neighbour, too, before it says that an address is resolved. So a program learns of
//! a host that does not exist within the time that it allows for that, and not when all repetitions of its
//! REQ have stayed unanswered.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::resolve::ResolvedRoute;
use crate::abi::address::Address;
use crate::abi::event::{Event, Kind};
use crate::env::{Environment, Route};
use crate::ids::{Attachment, IdState};
use crate::{Cm, errno};

/// How soon the host is asked again; then twice as long each time, up to the second one.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// What an id waits for.
#[derive(Debug)]
struct Wait {
    route: ResolvedRoute,
    destination: Address,
    until: Duration,
    next: Duration,
    pause: Duration,
}

impl Wait {
    /// Whether the neighbour is there.
    fn is_over(&self, asked: bool, env: &mut dyn Environment) -> bool {
        let Attachment { local, ifindex, .. } = self.route.attachment;
        env.has_neighbour(&Route { source: local, ifindex }, self.route.remote, asked)
    }
}

/// The ids that wait.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    waits: BTreeMap<u32, Wait>,
    timers: BTreeSet<(Duration, u32)>,
}

impl Neighbours {
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }

    /// Forgets an id that is gone.
    pub(super) fn forget(&mut self, id: u32) {
        if let Some(wait) = self.waits.remove(&id) {
            self.timers.remove(&(wait.next, id));
        }
    }

    fn put(&mut self, id: u32, wait: Wait) {
        self.timers.insert((wait.next, id));
        self.waits.insert(id, wait);
    }
}

impl Cm {
    /// An id's destination has this route. The id's address is resolved when the neighbour on the way is
    /// there, and is not if that takes longer than `timeout`.
    pub(super) fn route_found(
        &mut self,
        now: Duration,
        id: u32,
        (route, destination): (ResolvedRoute, Address),
        timeout: Duration,
        env: &mut dyn Environment,
    ) {
        let (until, pause) = (now.saturating_add(timeout), FIRST_PAUSE);
        let wait = Wait { route, destination, until, next: now + pause, pause };
        if wait.is_over(false, env) {
            return self.address_resolved(id, &wait);
        }
        if let Some(cm_id) = self.ids.get_mut(id) {
            cm_id.state = IdState::AddrQuery;
            self.neighbours.put(id, wait);
        }
    }

    fn address_resolved(&mut self, id: u32, wait: &Wait) {
        let Some(cm_id) = self.ids.get_mut(id) else { return };
        cm_id.source = Some(wait.route.source);
        cm_id.attachment = Some(wait.route.attachment);
        cm_id.remote = Some(wait.route.remote);
        cm_id.destination = Some(wait.destination);
        cm_id.state = IdState::AddrResolved;
        self.emit(id, &Event::new(Kind::AddrResolved));
    }

    /// An id's destination has no neighbour on the way. The id is as before it was asked for.
    pub(crate) fn address_failed(&mut self, id: u32) {
        if let Some(cm_id) = self.ids.get_mut(id) {
            cm_id.state = IdState::Bound;
        }
        self.emit(id, &Event::new(Kind::AddrError).with_status(-errno::ETIMEDOUT));
    }

    /// Looks after all neighbours that it is time for.
    pub(crate) fn look_for_neighbours(&mut self, now: Duration, env: &mut dyn Environment) {
        while let Some(&(at, id)) = self.neighbours.timers.first()
            && at <= now
        {
            self.neighbours.timers.remove(&(at, id));
            let Some(mut wait) = self.neighbours.waits.remove(&id) else { continue };
            // The device may be gone by now.
            if self.ids.get(id).is_none_or(|cm_id| cm_id.state != IdState::AddrQuery) {
                continue;
            }
            if wait.is_over(true, env) {
                self.address_resolved(id, &wait);
            } else if now >= wait.until {
                self.address_failed(id);
            } else {
                wait.pause = (wait.pause * 2).min(LAST_PAUSE);
                wait.next = (now + wait.pause).min(wait.until);
                self.neighbours.put(id, wait);
            }
        }
    }
}
