//! The record of what happened on a lane. It is kept for `polypath status`, and sent to the broker
//! for those who watch.
//!
//! Events are recorded under the lane's lock as plain values. Readers turn them into text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use polypath_ipc::status::FailoverStatus;
use polypath_telemetry::{Event, Level};

use crate::clock;
use crate::lane::noted::{Failure, News, Noted, Unwritten};
use crate::lane::waker::Waker;

/// The length of each list that is kept for `polypath status`.
const KEPT: usize = 64;
/// The largest number of events that wait for the broker.
const UNTOLD_MAX: usize = 1024;

/// Wakes the thread that sends events to the broker, once for many events.
#[derive(Debug)]
pub(crate) struct Messenger {
    waker: Waker,
    called: AtomicBool,
}

impl Messenger {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { waker: Waker::new()?, called: AtomicBool::new(false) })
    }

    /// The waker, which is readable after a call.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    fn call(&self) {
        if !self.called.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Notes that the thread begins to work, so that later events have to wake it again.
    pub(crate) fn begin(&self) {
        self.waker.clear();
        self.called.store(false, Ordering::Release);
    }
}

/// The record of one lane.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    errors: VecDeque<Noted>,
    notes: VecDeque<Noted>,
    failovers: VecDeque<FailoverStatus>,
    /// Records that are not yet written to the log. They are in a box, because the thread that
    /// releases the lock takes them along.
    unwritten: Option<Box<Unwritten>>,
    /// Records that the broker was not told yet, oldest first.
    untold: VecDeque<Noted>,
    /// The number of records that were lost because this list was full.
    lost: u64,
    messenger: Option<Arc<Messenger>>,
}

impl Journal {
    /// Tells events to the broker from now on.
    pub(crate) fn tell_by(&mut self, messenger: Arc<Messenger>) {
        self.messenger = Some(messenger);
    }

    /// Lets the events thread look for what it is to do.
    pub(crate) fn call(&self) {
        if let Some(messenger) = &self.messenger {
            messenger.call();
        }
    }

    /// Records an event.
    pub(crate) fn note(&mut self, now: Duration, event: Event) {
        self.keep(Noted { at: now, news: News::Event(event) });
    }

    /// Records why a queue pair failed, or dropped something.
    pub(crate) fn note_failure(&mut self, now: Duration, failure: Failure) {
        self.keep(Noted { at: now, news: News::Failure(failure) });
    }

    fn keep(&mut self, noted: Noted) {
        if crate::log::is_on() {
            self.unwritten.get_or_insert_default().push(noted.clone());
        }
        match &noted.news {
            News::Event(Event::FailOver { peer, from, to, reason }) => {
                let (peer, from, to, reason) = (*peer, *from, *to, *reason);
                let at_unix_us = clock::realtime_ns(noted.at) / 1000;
                let failover =
                    FailoverStatus { at_unix_us, peer, from, to, reason, blackout_us: 0 };
                keep(&mut self.failovers, KEPT, failover);
            }
            News::Event(Event::TrafficResumed { peer, blackout_us, .. }) => {
                let last = self.failovers.iter_mut().rev().find(|f| f.peer == *peer);
                if let Some(last) = last.filter(|last| last.blackout_us == 0) {
                    last.blackout_us = blackout_us.0;
                }
            }
            News::Event(event) if event.kind().level != Level::Error => {
                keep(&mut self.notes, KEPT, noted.clone());
            }
            News::Event(_) | News::Failure(_) => {
                keep(&mut self.errors, KEPT, noted.clone());
            }
        }
        if let Some(messenger) = &self.messenger {
            if keep(&mut self.untold, UNTOLD_MAX, noted) {
                self.lost += 1;
            }
            messenger.call();
        }
    }

    /// Takes the records for the log. Dropping the result writes them, so it must be dropped after
    /// the lane's lock is released.
    #[inline]
    pub(super) fn take_unwritten(&mut self) -> Option<Box<Unwritten>> {
        // Usually there are none. Then nothing is stored, because the next thread that takes the lock
        // would have to fetch it.
        self.unwritten.as_ref()?;
        self.unwritten.take()
    }

    /// The last errors, oldest first.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &Noted> {
        self.errors.iter()
    }

    /// The last other events, oldest first.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &Noted> {
        self.notes.iter()
    }

    /// The last fail-overs, oldest first.
    pub(crate) fn failovers(&self) -> impl Iterator<Item = &FailoverStatus> {
        self.failovers.iter()
    }

    /// Takes up to `most` events that the broker was not told yet, oldest first, and the number of
    /// those that were lost before them.
    pub(crate) fn take_untold(&mut self, most: usize) -> (Vec<Noted>, u64) {
        let most = most.min(self.untold.len());
        (self.untold.drain(..most).collect(), std::mem::take(&mut self.lost))
    }

    /// Puts back the result of [`take_untold`](Self::take_untold), as far as there is room.
    pub(crate) fn put_back_untold(&mut self, events: Vec<Noted>, lost: u64) {
        self.lost += lost;
        for event in events.into_iter().rev() {
            if self.untold.len() == UNTOLD_MAX {
                self.lost += 1;
            } else {
                self.untold.push_front(event);
            }
        }
    }
}

/// Adds an item to a bounded list. Returns true if the oldest item was removed to make room.
fn keep<T>(list: &mut VecDeque<T>, most: usize, item: T) -> bool {
    let full = list.len() == most;
    if full {
        list.pop_front();
    }
    list.push_back(item);
    full
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use polypath_telemetry::{InterfaceName, Micros, PathName, Qpn, Reason};

    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn failover(peer: IpAddr) -> Event {
        let interface = InterfaceName::new("eth0");
        let to = PathName { local: PEER, remote: PEER, interface };
        Event::FailOver { peer, from: None, to, reason: Reason::LinkDown }
    }

    fn overrun(qpn: u32) -> Event {
        Event::CompletionQueueOverrun { qpn: Qpn(qpn) }
    }

    #[test]
    fn the_blackout_is_that_of_the_peers_last_fail_over() {
        let mut journal = Journal::default();
        let other = IpAddr::from([10, 0, 0, 3]);
        journal.note(Duration::ZERO, failover(PEER));
        journal.note(Duration::ZERO, failover(other));
        let (blackout_us, reason) = (Micros(7), Reason::LinkDown);
        journal.note(Duration::ZERO, Event::TrafficResumed { peer: PEER, blackout_us, reason });
        let blackouts: Vec<u64> = journal.failovers().map(|f| f.blackout_us).collect();
        assert_eq!(blackouts, [7, 0]);
    }

    #[test]
    fn errors_do_not_push_notes_out() {
        let mut journal = Journal::default();
        let link = InterfaceName::new("eth0");
        journal.note(Duration::ZERO, Event::LinkUp { interface: link });
        (0..1000).for_each(|qpn| journal.note(Duration::ZERO, overrun(qpn)));
        assert_eq!((journal.notes().count(), journal.errors().count()), (1, KEPT));
        assert_eq!(journal.errors().last().unwrap().news, News::Event(overrun(999)));
    }

    #[test]
    fn what_the_broker_is_not_told_of_is_bounded_and_the_rest_counted() {
        let mut journal = Journal::default();
        journal.note(Duration::ZERO, overrun(0));
        assert_eq!(journal.take_untold(8), (Vec::new(), 0), "nobody is there to tell it");
        let messenger = Arc::new(Messenger::new().unwrap());
        journal.tell_by(messenger.clone());
        (0..UNTOLD_MAX as u32 + 5).for_each(|qpn| journal.note(Duration::ZERO, overrun(qpn)));
        assert!(messenger.waker().wait(None, Duration::ZERO));
        messenger.begin();
        assert!(!messenger.waker().wait(None, Duration::ZERO));
        let (first, lost) = journal.take_untold(2);
        assert_eq!((&first[0].news, first.len(), lost), (&News::Event(overrun(5)), 2, 5));
        assert_eq!(journal.take_untold(usize::MAX).0.len(), UNTOLD_MAX - 2);
        journal.note(Duration::ZERO, overrun(1));
        assert!(messenger.waker().wait(None, Duration::ZERO), "called again");
        journal.note(Duration::ZERO, overrun(2));
        let (both, _) = journal.take_untold(8);
        (3..UNTOLD_MAX as u32 + 2).for_each(|qpn| journal.note(Duration::ZERO, overrun(qpn)));
        journal.put_back_untold(both, 4);
        let (first, lost) = journal.take_untold(1);
        assert_eq!((&first[0].news, lost), (&News::Event(overrun(2)), 5), "there was room for one");
    }
}
