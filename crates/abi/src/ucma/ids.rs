//! The ids that exist, and how many events of each were delivered to the program.
//!
//! The kernel drops the events of an id that is destroyed, and returns how many it delivered
//! before, so that librdmacm waits until those are acknowledged. Here events travel through a
//! socket, so the broker can neither take them back nor know which were read. So both are done on
//! this side.

use std::collections::HashMap;

use libc::c_int;

use crate::ucma::both::Both;
use crate::ucma::layout::{CONNECT_REQUEST, MULTICAST};

/// What must be done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventFate {
    /// The program gets it.
    Deliver,
    /// Drop it, because its id is gone. If it is a connection request, the id that it announced
    /// must end too.
    Drop(Option<u32>),
    /// Forward it, because its id moved to the file with this number before the event was read.
    Forward(u64),
}

/// An id, or a multicast membership.
#[derive(Clone, Copy, Debug)]
struct Id {
    /// The program's name of it.
    uid: u64,
    /// The number of events that were delivered to the program.
    reported: u32,
    /// The id that a membership belongs to.
    owner: Option<u32>,
    /// The file that it moved to, if it did.
    home: Option<u64>,
}

/// All ids of the process.
pub(crate) struct Ids {
    ids: Option<HashMap<u32, Id>>,
    /// Memberships have their own numbers.
    memberships: Option<HashMap<u32, Id>>,
    /// Listening ids by the program's name.
    by_uid: Option<HashMap<u64, u32>>,
    /// The number of threads in `GET_EVENT`, by descriptor.
    waiting: Option<HashMap<c_int, u32>>,
    /// The ids that the kernel has too, or alone.
    pub(crate) both: Both,
}

/// The head of `rdma_ucm_event_resp`.
struct Event {
    uid: u64,
    id: u32,
    kind: u32,
}

fn parse(bytes: &[u8]) -> Option<Event> {
    Some(Event {
        uid: u64::from_ne_bytes(bytes.get(0..8)?.try_into().ok()?),
        id: u32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?),
        kind: u32::from_ne_bytes(bytes.get(12..16)?.try_into().ok()?),
    })
}

impl Ids {
    pub(crate) const fn new() -> Self {
        Self { ids: None, memberships: None, by_uid: None, waiting: None, both: Both::new() }
    }

    /// Adds an id that `CREATE_ID` created.
    pub(crate) fn created(&mut self, id: u32, uid: u64) {
        let entry = Id { uid, reported: 0, owner: None, home: None };
        self.ids.get_or_insert_default().insert(id, entry);
        if uid != 0 {
            self.by_uid.get_or_insert_default().insert(uid, id);
        }
    }

    /// Notes the name that `ACCEPT` gave an id.
    pub(crate) fn named(&mut self, id: u32, uid: u64) {
        if let Some(entry) = self.ids.get_or_insert_default().get_mut(&id) {
            entry.uid = uid;
            self.by_uid.get_or_insert_default().insert(uid, id);
        }
    }

    /// Adds a membership that `JOIN_MCAST` created.
    pub(crate) fn joined(&mut self, membership: u32, uid: u64, owner: u32) {
        let entry = Id { uid, reported: 0, owner: Some(owner), home: None };
        self.memberships.get_or_insert_default().insert(membership, entry);
    }

    /// Removes an id for `DESTROY_ID`. Returns how many of its events were delivered.
    pub(crate) fn destroyed(&mut self, id: u32) -> u32 {
        let Some(entry) = self.ids.get_or_insert_default().remove(&id) else { return 0 };
        self.memberships.get_or_insert_default().retain(|_, m| m.owner != Some(id));
        let by_uid = self.by_uid.get_or_insert_default();
        if by_uid.get(&entry.uid) == Some(&id) {
            by_uid.remove(&entry.uid);
        }
        entry.reported
    }

    /// Removes a membership for `LEAVE_MCAST`. Returns how many of its events were delivered.
    pub(crate) fn left(&mut self, membership: u32) -> u32 {
        let entry = self.memberships.get_or_insert_default().remove(&membership);
        entry.map_or(0, |entry| entry.reported)
    }

    /// Notes the file that `MIGRATE_ID` moved an id to.
    pub(crate) fn moved(&mut self, id: u32, home: u64) {
        if let Some(entry) = self.ids.get_or_insert_default().get_mut(&id) {
            entry.home = Some(home);
        }
    }

    /// The number of events of an id that were delivered.
    pub(crate) fn reported(&self, id: u32) -> u32 {
        self.id(id).map_or(0, |entry| entry.reported)
    }

    fn id(&self, id: u32) -> Option<&Id> {
        self.ids.as_ref()?.get(&id)
    }

    fn membership(&self, event: &Event) -> Option<&Id> {
        self.memberships.as_ref()?.get(&event.id).filter(|m| m.uid == event.uid)
    }

    fn listener(&self, event: &Event) -> Option<u32> {
        self.by_uid.as_ref()?.get(&event.uid).copied()
    }

    /// Decides about an event that arrived on a file.
    pub(crate) fn judge(&self, event: &[u8], file: u64) -> EventFate {
        let Some(event) = parse(event) else { return EventFate::Drop(None) };
        let (owner, child) = match event.kind {
            CONNECT_REQUEST => (self.listener(&event), Some(event.id)),
            kind if MULTICAST.contains(&kind) => {
                (self.membership(&event).and_then(|m| m.owner), None)
            }
            _ => (Some(event.id), None),
        };
        match owner.and_then(|id| self.id(id)) {
            None => EventFate::Drop(child),
            Some(Id { home: Some(home), .. }) if *home != file => EventFate::Forward(*home),
            Some(_) => EventFate::Deliver,
        }
    }

    /// Decides about an event that was received. If it is to be delivered, it is counted.
    pub(crate) fn delivered(&mut self, bytes: &[u8], file: u64) -> EventFate {
        let verdict = self.judge(bytes, file);
        let (EventFate::Deliver, Some(event)) = (verdict, parse(bytes)) else { return verdict };
        let counted = match event.kind {
            CONNECT_REQUEST => {
                let listener = self.listener(&event);
                self.created(event.id, 0);
                listener
            }
            kind if MULTICAST.contains(&kind) => {
                let owner = self.membership(&event).and_then(|m| m.owner);
                if let Some(entry) = self.memberships.get_or_insert_default().get_mut(&event.id) {
                    entry.reported += 1;
                }
                owner
            }
            _ => Some(event.id),
        };
        if let Some(entry) = counted.and_then(|id| self.ids.as_mut()?.get_mut(&id)) {
            entry.reported += 1;
        }
        verdict
    }

    /// Notes that a thread begins to wait for an event.
    pub(crate) fn begin_wait(&mut self, fd: c_int) {
        *self.waiting.get_or_insert_default().entry(fd).or_default() += 1;
    }

    /// Notes that a thread got an event, or was interrupted.
    pub(crate) fn end_wait(&mut self, fd: c_int) {
        if let Some(count) = self.waiting.get_or_insert_default().get_mut(&fd) {
            *count = count.saturating_sub(1);
        }
    }

    /// Whether any thread waits.
    pub(crate) fn somebody_waits(&self, fd: c_int) -> bool {
        self.waiting.as_ref().and_then(|waiting| waiting.get(&fd)).is_some_and(|&count| count > 0)
    }

    /// Notes that the descriptor is a new file.
    pub(crate) fn forget_waiters(&mut self, fd: c_int) {
        self.waiting.get_or_insert_default().remove(&fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = 1;

    fn event(uid: u64, id: u32, kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 368];
        bytes[0..8].copy_from_slice(&uid.to_ne_bytes());
        bytes[8..12].copy_from_slice(&id.to_ne_bytes());
        bytes[12..16].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_connection_request_counts_for_the_listener() {
        let mut ids = Ids::new();
        ids.created(1, 0x1000);
        assert_eq!(ids.delivered(&event(0x1000, 2, CONNECT_REQUEST), FILE), EventFate::Deliver);
        ids.named(2, 0x2000);
        assert_eq!(ids.delivered(&event(0x2000, 2, 9), FILE), EventFate::Deliver);
        assert_eq!((ids.reported(1), ids.reported(2)), (1, 1));
    }

    #[test]
    fn events_of_a_destroyed_id_are_dropped_and_its_children_ended() {
        let mut ids = Ids::new();
        ids.created(1, 0x1000);
        assert_eq!(ids.delivered(&event(0x1000, 1, 0), FILE), EventFate::Deliver);
        assert_eq!(ids.destroyed(1), 1);
        assert_eq!(ids.delivered(&event(0x1000, 1, 2), FILE), EventFate::Drop(None));
        assert_eq!(
            ids.delivered(&event(0x1000, 5, CONNECT_REQUEST), FILE),
            EventFate::Drop(Some(5))
        );
        assert_eq!(ids.destroyed(1), 0);
    }

    #[test]
    fn events_of_an_id_that_moved_follow_it() {
        let mut ids = Ids::new();
        ids.created(1, 0x1000);
        ids.moved(1, 2);
        assert_eq!(ids.delivered(&event(0x1000, 1, 10), FILE), EventFate::Forward(2));
        assert_eq!(ids.delivered(&event(0x1000, 5, CONNECT_REQUEST), FILE), EventFate::Forward(2));
        assert_eq!(ids.reported(1), 0);
        assert_eq!(ids.delivered(&event(0x1000, 1, 10), 2), EventFate::Deliver);
        assert_eq!(ids.reported(1), 1);
    }

    #[test]
    fn multicast_events_count_for_the_membership_and_the_id() {
        let mut ids = Ids::new();
        ids.created(1, 0x1000);
        ids.joined(7, 0x7000, 1);
        assert_eq!(ids.delivered(&event(0x7000, 7, 12), FILE), EventFate::Deliver);
        assert_eq!((ids.left(7), ids.reported(1)), (1, 1));
        assert_eq!(ids.delivered(&event(0x7000, 7, 13), FILE), EventFate::Drop(None));
    }

    #[test]
    fn a_truncated_event_is_dropped() {
        assert_eq!(Ids::new().delivered(&[0; 15], FILE), EventFate::Drop(None));
    }

    #[test]
    fn waiters_are_counted_by_descriptor() {
        let mut ids = Ids::new();
        ids.begin_wait(3);
        assert!(ids.somebody_waits(3) && !ids.somebody_waits(4));
        ids.end_wait(3);
        assert!(!ids.somebody_waits(3));
    }
}
