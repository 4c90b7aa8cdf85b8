//! Watchers, which are told what happens.

use std::time::{SystemTime, UNIX_EPOCH};

use polypath_ipc::message;
use polypath_telemetry::{Event, Occurrence};

use super::Broker;
use crate::connection::Role;

impl Broker {
    /// Records an event of this host.
    pub(super) fn happened(&mut self, event: Event) {
        self.chronicle.add(0, "", now(event));
    }

    /// Records an event of a process, as the broker sees it.
    pub(super) fn happened_to(&mut self, id: u64, event: impl FnOnce(String) -> Event) {
        let Some(connection) = self.connections.get(&id) else { return };
        let event = event(connection.program.clone());
        self.chronicle.add(connection.pid, &connection.program, now(event));
    }

    /// Records the end of a connection. When its event stream ends, a process is gone.
    pub(super) fn note_end(&mut self, id: u64) {
        if self.connections.get(&id).is_some_and(|connection| connection.role == Role::Events) {
            self.happened_to(id, |program| Event::ProcessGone { program });
        }
    }

    /// Records the events that a process reports.
    pub(super) fn take_events(&mut self, id: u64, lost: u64, events: Vec<Occurrence>) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (pid, program) = (connection.pid, &connection.program);
        if lost > 0 {
            self.chronicle.add(pid, program, now(Event::EventsLost { count: lost }));
        }
        for occurrence in events {
            self.chronicle.add(pid, program, occurrence);
        }
    }

    /// Makes a connection a watcher.
    pub(super) fn begin_watch(&mut self, id: u64, past: bool) {
        let next = self.chronicle.next();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.role = Role::Watching;
            connection.watches = true;
            connection.told_next = if past { 0 } else { next };
        }
    }

    /// Sends the watchers the events that they were not told yet, as far as they have room.
    pub(super) fn feed_watchers(&mut self) {
        let next = self.chronicle.next();
        let behind = self
            .connections
            .iter()
            .filter(|(_, c)| c.role == Role::Watching && c.told_next < next && !c.is_waiting());
        let behind: Vec<u64> = behind.map(|(id, _)| *id).collect();
        for id in behind {
            self.feed(id);
        }
    }

    /// Sends events to one watcher. If it has no room now, it gets them later.
    pub(super) fn feed(&mut self, id: u64) {
        while let Some(connection) = self.connections.get_mut(&id)
            && connection.role == Role::Watching
            && let Some((push, next)) = self.chronicle.batch(connection.told_next)
        {
            let Ok(bytes) = message::encode(&push) else { break };
            let sent = connection.send_news(&bytes);
            let done = !matches!(sent, Ok(true));
            if !done {
                connection.told_next = next;
            }
            self.check(id, sent.map(drop));
            if done {
                break;
            }
        }
        self.watch_or_close(id);
    }
}

fn now(event: Event) -> Occurrence {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Occurrence { at_unix_us: u64::try_from(since.as_micros()).unwrap_or(u64::MAX), event }
}
