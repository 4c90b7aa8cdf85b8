//! What is written down of ids, so that another connection manager can take this one's place on the same host
//! if this one is killed.
//!
//! The host asks after each of its turns which ids have changed ([`Cm::take_changed_ids`]) and writes down
//! what [`Cm::kept_id`] says of them. The other manager gets what was written ([`Cm::restore_file`]). Peers
//! are told nothing, because nothing has changed for them.
//!
//! Nobody knows what the last message was of what was under way. So an address that was being resolved is
//! not, a connection that was being made ends as one whose peer does not answer, and one that was being ended
//! is ended again. A request that the program had not accepted is not kept: the peer asks again. All other
//! events that the application has not got are.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Cm;
use crate::abi::event::{EVENT_LEN, Event, Kind};
use crate::cma::multicast::Membership;
use crate::env::{Environment, FileId};
use crate::errno;
use crate::files::Queued;
use crate::ibcm::{Connection, State};
use crate::ids::CmId;
use crate::moving::{CantMove, MovedFile};

/// The most memberships of multicast groups that are kept of an id. The others end with the manager.
pub const KEPT_MEMBERSHIPS_MAX: usize = 16;

/// The most events that are kept of an id.
const KEPT_EVENTS_MAX: usize = 16;

/// An id with its connection, its multicast groups, and the events that the application has not got.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptId {
    id: CmId,
    connection: Option<Connection>,
    memberships: Vec<(u32, Membership)>,
    events: Vec<KeptEvent>,
    end: Option<End>,
}

/// An event that waits. Its structure is kept without the zeros at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeptEvent {
    order: u64,
    membership: Option<u32>,
    bytes: Vec<u8>,
}

impl KeptEvent {
    /// `None` for a request that the program has not accepted: the peer asks again.
    fn of(event: &Queued) -> Option<Self> {
        if event.child.is_some() {
            return None;
        }
        let length = event.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let (order, membership) = (event.order, event.membership);
        Some(Self { order, membership, bytes: event.bytes[..length].to_vec() })
    }

    fn queued(mut self, owner: u32) -> Queued {
        self.bytes.resize(EVENT_LEN, 0);
        let Self { order, membership, bytes } = self;
        Queued { order, membership, ..Queued::of(owner, bytes) }
    }
}

/// How something that was under way ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum End {
    Unreachable,
    Disconnect,
    TimewaitExit,
}

impl End {
    fn of(state: State) -> Option<Self> {
        match state {
            State::ReqSent
            | State::MraReqRcvd
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::SidrReqSent => Some(Self::Unreachable),
            State::DreqSent => Some(Self::Disconnect),
            State::Timewait => Some(Self::TimewaitExit),
            State::Idle
            | State::ReqRcvd
            | State::MraReqSent
            | State::Established
            | State::DreqRcvd
            | State::SidrReqRcvd
            | State::SidrRepSent => None,
        }
    }
}

impl KeptId {
    /// The file that holds the id.
    pub fn file(&self) -> FileId {
        self.id.file
    }

    /// The number of the id, below 65,536.
    pub fn number(&self) -> u32 {
        self.id.id
    }

    /// The same without its last event; `None` if there is none. For a host that has no room for all.
    pub fn with_fewer_events(mut self) -> Option<Self> {
        self.events.pop().map(|_| self)
    }
}

impl Cm {
    /// The numbers of the ids that have changed, or are gone, since the last call, if
    /// [`CmConfig::keeps`](crate::CmConfig::keeps) is set.
    pub fn take_changed_ids(&mut self) -> Vec<u32> {
        let mut ids = self.ids.take_changed();
        let touched = self.ib.take_touched();
        ids.extend(touched.into_iter().filter_map(|c| self.ib.get(c)?.owner));
        ids.into_iter().collect()
    }

    /// What is to be written down of an id; `None` if nothing is to be known of it.
    pub fn kept_id(&self, number: u32) -> Option<KeptId> {
        let found = self.ids.get(number)?;
        found.uid?;
        let mut id = found.clone();
        let connection = id.connection.and_then(|c| self.ib.get(c));
        let end = connection.and_then(|c| End::of(c.state));
        let connection = connection.filter(|c| c.needs_no_answer() || c.state == State::DreqSent);
        let connection = connection.cloned().map(|c| match c.state {
            State::DreqSent => Connection { state: State::Established, ..c },
            _ => c,
        });
        id.connection = connection.as_ref().map(|c| c.local_id);
        let numbers = core::mem::take(&mut id.memberships).into_iter().take(KEPT_MEMBERSHIPS_MAX);
        let memberships =
            numbers.filter_map(|number| Some((number, self.memberships.get(number)?.clone())));
        let memberships = memberships.collect();
        let waiting = || self.files.events_of(id.file, number);
        let events = waiting().filter_map(KeptEvent::of).take(KEPT_EVENTS_MAX).collect();
        // The requests that are not kept take no place in the backlog.
        id.backlog += waiting().filter(|event| event.child.is_some()).count() as u32;
        Some(KeptId { id, connection, memberships, events, end })
    }

    /// Takes over a file of a manager that was killed, with the ids that were written down of it. The file
    /// must be open and new.
    ///
    /// # Errors
    /// Something that it holds is not free. Then the file is to be closed.
    pub fn restore_file(
        &mut self,
        now: Duration,
        file: FileId,
        kept: Vec<KeptId>,
        env: &mut dyn Environment,
    ) -> Result<(), CantMove> {
        let (mut ids, mut connections) = (Vec::new(), Vec::new());
        let (mut memberships, mut ends) = (Vec::new(), Vec::new());
        let mut waiting = Vec::new();
        for KeptId { id, connection, memberships: of_id, events, end } in kept {
            waiting.extend(events.into_iter().map(|event| event.queued(id.id)));
            ends.extend(end.map(|end| (id.id, end)));
            memberships.extend(of_id);
            ids.push(id);
            connections.extend(connection);
        }
        let kept = MovedFile { ids, connections, memberships };
        waiting.sort_by_key(|event| event.order);
        // They come before what the ids are told because this manager has taken over.
        waiting.into_iter().for_each(|event| self.enqueue(file, event));
        self.take_over(now, file, kept, false, env)?;
        for (id, end) in ends {
            self.bring_to_end(now, id, end);
        }
        Ok(())
    }

    fn bring_to_end(&mut self, now: Duration, id: u32, end: End) {
        let event = match end {
            End::Unreachable => Event::new(Kind::Unreachable).with_status(-errno::ETIMEDOUT),
            End::TimewaitExit => Event::new(Kind::TimewaitExit),
            End::Disconnect => {
                if let Some(connection) = self.ids.get(id).and_then(|id| id.connection) {
                    self.ib.disconnect(now, connection);
                }
                return;
            }
        };
        self.emit(id, &event);
    }
}
