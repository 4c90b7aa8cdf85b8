//! The recent events of all processes and of the interfaces, for watchers.
//!
//! There is one list for all watchers. A watcher is only a number: that of the next event that it
//! is told. So a watcher that does not read costs nothing. When it reads again, it is told how many
//! events it has missed.

use std::collections::VecDeque;

use polypath_ipc::message::{Push, TOLD_MAX, Told};
use polypath_telemetry::Occurrence;

/// The number of events that are kept.
const KEPT: usize = 4096;
/// The largest length of an event's text in bytes.
const TEXT_MAX: usize = 1024;

/// The last events, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Chronicle {
    list: VecDeque<Told>,
    /// The number of the next event.
    next: u64,
}

impl Chronicle {
    /// The number of the next event.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Adds an event of a process, or of this host (`pid` 0).
    pub(crate) fn add(&mut self, pid: u32, program: &str, mut occurrence: Occurrence) {
        occurrence.event.cut(TEXT_MAX);
        if self.list.len() == KEPT {
            self.list.pop_front();
        }
        self.list.push_back(Told {
            number: self.next,
            pid,
            program: program.to_owned(),
            occurrence,
        });
        self.next += 1;
    }

    /// The next events for a watcher, and the number of the event after them; `None` if there are
    /// no new events. `from` is the number of the first event that it was not told.
    pub(crate) fn batch(&self, from: u64) -> Option<(Push, u64)> {
        let oldest = self.next - self.list.len() as u64;
        if from >= self.next {
            return None;
        }
        let first = from.max(oldest);
        let at = usize::try_from(first - oldest).unwrap_or(usize::MAX);
        let events: Vec<Told> = self.list.iter().skip(at).take(TOLD_MAX).cloned().collect();
        let after = first + events.len() as u64;
        Some((Push::Events { lost: first - from, events }, after))
    }
}

#[cfg(test)]
mod tests {
    use polypath_ipc::message;
    use polypath_telemetry::{Event, InterfaceName, Qpn};

    use super::*;

    fn occurrence() -> Occurrence {
        let interface = InterfaceName::new("eth0");
        Occurrence { at_unix_us: 1, event: Event::LinkUp { interface } }
    }

    fn numbers(batch: Option<(Push, u64)>) -> (u64, Vec<u64>, u64) {
        let Some((Push::Events { lost, events }, next)) = batch else { panic!("{batch:?}") };
        (lost, events.iter().map(|told| told.number).collect(), next)
    }

    #[test]
    fn a_watcher_is_told_everything_once_and_in_order() {
        let mut chronicle = Chronicle::default();
        assert!(chronicle.batch(0).is_none());
        (0..TOLD_MAX + 2).for_each(|_| chronicle.add(1, "p", occurrence()));
        let (lost, first, next) = numbers(chronicle.batch(0));
        assert_eq!((lost, first.len(), next), (0, TOLD_MAX, TOLD_MAX as u64));
        let (lost, rest, next) = numbers(chronicle.batch(next));
        assert_eq!((lost, rest), (0, vec![TOLD_MAX as u64, TOLD_MAX as u64 + 1]));
        assert!(chronicle.batch(next).is_none());
        assert_eq!(next, chronicle.next());
    }

    #[test]
    fn a_slow_watcher_is_told_how_many_events_it_missed() {
        let mut chronicle = Chronicle::default();
        (0..KEPT + 10).for_each(|_| chronicle.add(1, "p", occurrence()));
        let (lost, events, _) = numbers(chronicle.batch(3));
        assert_eq!((lost, events[0]), (7, 10));
        assert_eq!(chronicle.list.len(), KEPT);
    }

    #[test]
    fn the_largest_batch_fits_into_a_message() {
        let mut chronicle = Chronicle::default();
        let program = "x".repeat(message::TEXT_MAX);
        for _ in 0..TOLD_MAX {
            let text = "y".repeat(100_000);
            let event = Event::QueuePairError { qpn: Qpn(u32::MAX), text };
            chronicle.add(u32::MAX, &program, Occurrence { at_unix_us: u64::MAX, event });
        }
        let (push, _) = chronicle.batch(0).unwrap();
        assert!(message::encode(&push).is_ok());
    }
}
