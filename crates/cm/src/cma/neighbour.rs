//! Ids that wait until the next host on the way to their address is known to be there.
//!
//! The kernel resolves the neighbour, too, before it says that an address is resolved. So a program learns of
//! a host that does not exist within the time that it allows for that, and not when all repetitions of its
//! REQ have stayed unanswered.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::resolve::{ResolvedRoute, find_route};
use crate::abi::address::Address;
use crate::abi::event::{Event, Kind};
use crate::env::{Environment, Neighbour, Route};
use crate::ids::IdState;
use crate::{Cm, errno};

/// How soon the host is asked again; then twice as long each time, up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// What an id waits for.
#[derive(Debug)]
struct Wait {
    destination: Address,
    until: Duration,
    next: Duration,
    pause: Duration,
    /// Whether the last answer was [`Neighbour::Asked`].
    asked: bool,
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
    pub(crate) fn forget(&mut self, id: u32) {
        if let Some(wait) = self.waits.remove(&id) {
            self.timers.remove(&(wait.next, id));
        }
    }
}

impl Cm {
    /// Looks for the way to an id's destination. The id's address is resolved when the neighbour on the way
    /// is there, and is not if that takes longer than `timeout`.
    ///
    /// # Errors
    /// There is no route, or no device has it. The id is as before.
    pub(super) fn find_way(
        &mut self,
        now: Duration,
        id: u32,
        destination: Address,
        timeout: Duration,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let (until, pause) = (now.saturating_add(timeout), FIRST_PAUSE);
        let wait = Wait { destination, until, next: now + pause, pause, asked: false };
        self.look(now, id, wait, env)
    }

    /// Looks after all neighbours that it is time for.
    pub(crate) fn look_for_neighbours(&mut self, now: Duration, env: &mut dyn Environment) {
        while let Some(&(at, id)) = self.neighbours.timers.first()
            && at <= now
        {
            self.neighbours.timers.remove(&(at, id));
            let Some(mut wait) = self.neighbours.waits.remove(&id) else { continue };
            if self.ids.get(id).is_none_or(|cm_id| cm_id.state != IdState::AddrQuery) {
                continue;
            }
            wait.pause = (wait.pause * 2).min(LAST_PAUSE);
            wait.next = (now + wait.pause).min(wait.until.max(now));
            // The route may be another one by now, or gone.
            if let Err(error) = self.look(now, id, wait, env) {
                self.not_resolved(id, error);
            }
        }
    }

    fn look(
        &mut self,
        now: Duration,
        id: u32,
        mut wait: Wait,
        env: &mut dyn Environment,
    ) -> Result<(), i32> {
        let Some(cm_id) = self.ids.get(id) else { return Ok(()) };
        let found = find_route(cm_id, &wait.destination, env)?;
        let at = found.attachment;
        let route = Route { source: at.local, ifindex: at.ifindex };
        match env.neighbour(&route, found.remote, wait.asked) {
            Neighbour::There => self.resolved(id, &found, wait.destination),
            // At first it has a moment, whatever the program says.
            _ if wait.next <= now => return Err(errno::ETIMEDOUT),
            answer => {
                wait.asked = answer == Neighbour::Asked;
                if let Some(cm_id) = self.ids.get_mut(id) {
                    cm_id.state = IdState::AddrQuery;
                }
                self.neighbours.timers.insert((wait.next, id));
                self.neighbours.waits.insert(id, wait);
            }
        }
        Ok(())
    }

    fn resolved(&mut self, id: u32, found: &ResolvedRoute, destination: Address) {
        let Some(cm_id) = self.ids.get_mut(id) else { return };
        cm_id.source = Some(found.source);
        cm_id.attachment = Some(found.attachment);
        cm_id.remote = Some(found.remote);
        cm_id.destination = Some(destination);
        cm_id.state = IdState::AddrResolved;
        self.emit(id, &Event::new(Kind::AddrResolved));
    }

    /// An id's address was not resolved. The id is as before it was asked for.
    pub(crate) fn not_resolved(&mut self, id: u32, error: i32) {
        if let Some(cm_id) = self.ids.get_mut(id) {
            cm_id.state = IdState::Bound;
        }
        self.emit(id, &Event::new(Kind::AddrError).with_status(-error));
    }
}
