//! The source ports that a path tries while it does not answer.

use core::time::Duration;
use std::collections::VecDeque;

/// The most ports remembered, so that late answers are known for those of the port that was asked by.
const MAX_RECENT: usize = 8;
/// Probes by one port before another one is tried; doubled after every second change, at most so often.
const PROBES: u32 = 2;
const DOUBLINGS: u32 = 3;

/// The source ports that a path has had since it answered last.
#[derive(Clone, Debug)]
pub(crate) struct PortTurns {
    /// The port by which it answered last; the first one if it never did.
    settled: u16,
    /// Probes that went out by the current port, unanswered.
    asked: u32,
    /// Changes since it answered last.
    changes: u32,
    /// The ports before the current one, and until when each was used.
    recent: VecDeque<(Duration, u16)>,
}

impl PortTurns {
    pub(crate) fn new(port: u16) -> Self {
        Self { settled: port, asked: 0, changes: 0, recent: VecDeque::new() }
    }

    /// The port by which it answered last.
    pub(crate) fn settled(&self) -> u16 {
        self.settled
    }

    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// A probe goes out by the current port.
    pub(crate) fn ask(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// Whether the current port has been tried for long enough.
    pub(crate) fn is_due(&self) -> bool {
        self.asked >= PROBES << (self.changes / 2).min(DOUBLINGS)
    }

    /// The same for a path whose first port gets at least so many probes.
    pub(crate) fn is_due_after(&self, probes: u32) -> bool {
        self.is_due() && (self.changes > 0 || self.asked >= probes)
    }

    /// The path leaves the port `from` for another one.
    pub(crate) fn change(&mut self, now: Duration, from: u16) {
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((now, from));
        self.changes = self.changes.saturating_add(1);
        self.asked = 0;
    }

    /// The port by which a probe went out at that time, if it is not the current one.
    pub(crate) fn port_at(&self, sent: Duration) -> Option<u16> {
        self.recent.iter().find(|(until, _)| sent < *until).map(|(_, port)| *port)
    }

    /// The path answers by this port. Returns the one by which it had answered before, if it is another.
    pub(crate) fn settle(&mut self, port: u16) -> Option<u16> {
        let before = core::mem::replace(self, Self::new(port)).settled;
        (before != port).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// How many probes a port gets before each of the first changes.
    #[test]
    fn the_pace_of_changes_slows_down_to_a_bound() {
        let mut turns = PortTurns::new(1);
        let mut patience = Vec::new();
        for change in 0..10 {
            let mut probes = 0;
            while !turns.is_due() {
                turns.ask();
                probes += 1;
            }
            patience.push(probes);
            turns.change(MS * change, 2);
        }
        assert_eq!(patience, [2, 2, 4, 4, 8, 8, 16, 16, 16, 16]);
    }

    #[test]
    fn an_answer_is_known_for_that_of_the_port_by_which_was_asked() {
        let mut turns = PortTurns::new(1);
        turns.change(MS * 10, 1);
        turns.change(MS * 20, 2);
        assert_eq!(turns.port_at(MS * 9), Some(1));
        assert_eq!(turns.port_at(MS * 10), Some(2));
        assert_eq!(turns.port_at(MS * 20), None, "the current one");
        assert_eq!((turns.settle(3), turns.settle(3)), (Some(1), None));
        assert_eq!((turns.settled(), turns.changes(), turns.port_at(MS)), (3, 0, None));
        for n in 0..100 {
            turns.change(MS * n, n as u16);
        }
        assert_eq!(turns.recent.len(), MAX_RECENT);
    }
}
