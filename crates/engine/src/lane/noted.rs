//! The records of what happened on a lane. Under the lane's lock they are only values; their text
//! is made after the lock is released.

use std::fmt;
use std::time::Duration;

use polypath_telemetry::{Errno, Event, Occurrence, Qpn};
use polypath_transport::Explanation;

use crate::{clock, log};

/// The largest length of an event's text in bytes.
const TEXT_MAX: usize = 1024;
/// The largest number of records that are written to the log for one hold of a lane's lock.
const LINES_MAX: usize = 256;

/// The reason why a queue pair failed, or dropped something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) explanation: Explanation,
    /// The recent error that kept this host from sending on the queue pair's path.
    pub(crate) obstacle: Option<Errno>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.explanation)?;
        match self.obstacle {
            Some(errno) => write!(f, "; this host could not send packets there: {errno}"),
            None => Ok(()),
        }
    }
}

/// A record's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Event(Event),
    Failure(Failure),
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event) => event.fmt(f),
            Self::Failure(failure) => failure.fmt(f),
        }
    }
}

/// A record and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// The time on the clock of [`crate::clock::now`].
    pub(crate) at: Duration,
    pub(crate) news: News,
}

impl Noted {
    /// The event for the broker and its users, with its text if it has one.
    pub(crate) fn occurrence(self) -> Occurrence {
        let mut event = match self.news {
            News::Event(event) => event,
            News::Failure(failure) => Event::QueuePairError {
                qpn: Qpn(failure.explanation.qpn),
                text: failure.to_string(),
            },
        };
        event.cut(TEXT_MAX);
        Occurrence { at_unix_us: clock::realtime_ns(self.at) / 1000, event }
    }
}

/// Records to be written to the log after the lane's lock is released. Dropping this writes them.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    lines: Vec<Noted>,
    /// The number of records that were left out because there were too many.
    lost: u64,
}

impl Unwritten {
    pub(super) fn push(&mut self, noted: Noted) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(noted);
        } else {
            self.lost += 1;
        }
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        for Noted { at, news } in &self.lines {
            log::line_of(*at, news);
        }
        if self.lost > 0 {
            log::line(&Event::EventsLost { count: self.lost }.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use polypath_telemetry::Level;
    use polypath_transport::{PathId, What};

    use super::*;
    use crate::lane::Lane;
    use crate::log::tests::with_lines;

    fn failure(qpn: u32) -> Failure {
        let (dest, path) = (0x12, Some(PathId(3)));
        let what = What::DatagramTooLong { bytes: 5000, mtu: 1024 };
        Failure { explanation: Explanation { qpn, dest, path, what }, obstacle: None }
    }

    const WORDS: &str = "QP 0x000007 to 0x000012, path 3: a datagram of 5000 bytes is longer than the port's \
                         MTU, 1024: dropped";

    #[test]
    fn an_obstacle_is_told_behind_the_explanation() {
        let failure = Failure { obstacle: Some(Errno(libc::EPERM)), ..failure(7) };
        let obstacle = Errno(libc::EPERM);
        assert_eq!(
            failure.to_string(),
            format!("{WORDS}; this host could not send packets there: {obstacle}")
        );
    }

    #[test]
    fn a_failure_is_an_event_of_its_queue_pair() {
        let at = Duration::from_secs(5);
        let told = Noted { at, news: News::Failure(failure(7)) }.occurrence();
        assert_eq!(told.event, Event::QueuePairError { qpn: Qpn(7), text: WORDS.into() });
        assert_eq!(told.event.kind().level, Level::Error);
        assert_eq!(told.at_unix_us, clock::realtime_ns(at) / 1000);
    }

    #[test]
    fn what_was_noted_is_written_to_the_log_when_the_lock_has_been_given_back() {
        let lane = Lane::still(9).unwrap();
        let lines = Rc::new(RefCell::new(Vec::new()));
        let (hear, other) = (lines.clone(), lane.clone());
        let hearer = move |line: &str| {
            assert!(other.is_free(), "somebody has the lane's lock");
            hear.borrow_mut().push(line.to_owned());
        };
        with_lines(hearer, || {
            lane.enter(|state| {
                state.io.journal.note_failure(state.io.now, failure(7));
                state.io.note(Event::CompletionQueueOverrun { qpn: Qpn(8) });
                assert!(lines.borrow().is_empty());
            });
            let overrun = Event::CompletionQueueOverrun { qpn: Qpn(8) }.to_string();
            assert_eq!(lines.take(), [WORDS.to_owned(), overrun]);
            lane.drive();
            assert!(lines.take().is_empty(), "written twice");

            let count = LINES_MAX as u32 + 5;
            lane.enter(|state| {
                (0..count)
                    .for_each(|qpn| state.io.journal.note_failure(state.io.now, failure(qpn)));
            });
            let written = lines.take();
            assert_eq!(written.len(), LINES_MAX + 1);
            assert_eq!(written.last().unwrap(), "5 events are missing: too many at once");
        });
    }
}
