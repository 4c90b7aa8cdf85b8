//! The source ports that a path tries while it does not answer, and its return to the first one.

use core::time::Duration;
use std::collections::VecDeque;

/// The most ports remembered, so that late answers are known for those of the port that was asked by.
const MAX_RECENT: usize = 16;
/// Probes by one port before another one is tried; doubled after every second change, at most so often.
const PROBES: u32 = 2;
const DOUBLINGS: u32 = 2;
/// Between two probes by the first port, of a path that answers by another one.
const HOME_INTERVAL: Duration = Duration::from_secs(1);
/// So many of them must be answered in a row before the path goes back; doubled with each recent death of
/// the path, at most so often.
const HOME_ANSWERS: u32 = 3;
const HOME_DOUBLINGS: u32 = 5;
/// A path that sends no probes comes back to its first port after so long; doubled each time that it
/// leaves it soon again, at most so often.
const AWAY: Duration = Duration::from_secs(2);
const AWAY_DOUBLINGS: u32 = 5;
/// The bit by which numbers of such probes differ from those of other probes.
pub(crate) const HOME_MARK: u32 = 1 << 31;

/// The source ports that a path has had since it answered last.
#[derive(Clone, Debug)]
pub(crate) struct PortTurns {
    /// The first port. It was drawn when all ways were there, so the ports of all paths together use the
    /// network best.
    home: u16,
    /// The port by which it answered last; the first one if it never did.
    settled: u16,
    /// Probes that went out by the current port, unanswered, and when the last one did.
    asked: u32,
    asked_at: Duration,
    /// When a probe of the peer last came by the path.
    heard_at: Duration,
    /// Since when it has the current port.
    changed_at: Duration,
    /// Changes since it answered last.
    changes: u32,
    /// The ports before the current one, and until when each was used.
    recent: VecDeque<(Duration, u16)>,
    home_probes: HomeProbes,
    /// How often in a row it has left its first port soon after it came back.
    absences: u32,
}

/// Probes by the first port, while the path answers by another one.
#[derive(Clone, Copy, Debug, Default)]
struct HomeProbes {
    next_at: Duration,
    number: u32,
    unanswered: bool,
    /// How many in a row were answered.
    answered: u32,
}

impl PortTurns {
    pub(crate) fn new(port: u16) -> Self {
        Self {
            home: port,
            settled: port,
            asked: 0,
            asked_at: Duration::ZERO,
            heard_at: Duration::ZERO,
            changed_at: Duration::ZERO,
            changes: 0,
            recent: VecDeque::new(),
            home_probes: HomeProbes::default(),
            absences: 0,
        }
    }

    /// The first port.
    pub(crate) fn home(&self) -> u16 {
        self.home
    }

    /// The port by which it answered last.
    pub(crate) fn settled(&self) -> u16 {
        self.settled
    }

    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// For how long it has had the current port.
    pub(crate) fn calm_since(&self, now: Duration) -> Duration {
        now.saturating_sub(self.changed_at)
    }

    /// A probe goes out by the current port.
    pub(crate) fn ask(&mut self, now: Duration) {
        self.asked = self.asked.saturating_add(1);
        self.asked_at = now;
    }

    /// A probe of the peer has come by the path.
    pub(crate) fn hear(&mut self, now: Duration) {
        self.heard_at = now;
    }

    /// Whether the current port has been tried for long enough. `wait`: how long an answer usually takes.
    ///
    /// An end that hears the peer's probes while its own are not answered knows that the peer's port is good
    /// and its own is bad, so it changes as soon as an answer is overdue. The other end stays meanwhile,
    /// because it hears nothing.
    pub(crate) fn is_due(&self, now: Duration, wait: Duration) -> bool {
        let heard = self.heard_at > self.asked_at && now >= self.changed_at + wait;
        self.asked >= PROBES << (self.changes / 2).min(DOUBLINGS) || (self.asked > 0 && heard)
    }

    /// The same for a path whose first port gets at least so many probes.
    pub(crate) fn is_due_after(&self, probes: u32, now: Duration, wait: Duration) -> bool {
        self.is_due(now, wait) && (self.changes > 0 || self.asked >= probes)
    }

    /// The path leaves the port `from` for another one.
    pub(crate) fn change(&mut self, now: Duration, from: u16) {
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((now, from));
        self.changes = self.changes.saturating_add(1);
        (self.asked, self.changed_at) = (0, now);
    }

    /// The port by which a probe went out at that time, if it is not the current one.
    pub(crate) fn port_at(&self, sent: Duration) -> Option<u16> {
        self.recent.iter().find(|(until, _)| sent < *until).map(|(_, port)| *port)
    }

    /// The path answers by this port. Returns the one by which it had answered before, if it is another.
    pub(crate) fn settle(&mut self, now: Duration, port: u16) -> Option<u16> {
        let before = core::mem::replace(&mut self.settled, port);
        (self.asked, self.changes) = (0, 0);
        self.recent.clear();
        let next_at = now + HOME_INTERVAL;
        self.home_probes =
            HomeProbes { next_at, unanswered: false, answered: 0, ..self.home_probes };
        (before != port).then_some(before)
    }

    /// A path that asks by nothing but data leaves the port `from`, which it had for long if `calm`.
    /// Returns how long it stays away from the first one.
    pub(crate) fn stay_away(&mut self, from: u16, calm: bool) -> Duration {
        if from == self.home {
            self.absences = if calm { 0 } else { (self.absences + 1).min(AWAY_DOUBLINGS) };
        }
        AWAY * (1 << self.absences)
    }

    /// When the next probe by the first port is due; `None` if the path uses that port.
    pub(crate) fn home_at(&self) -> Option<Duration> {
        (self.settled != self.home).then_some(self.home_probes.next_at)
    }

    /// Whether enough of them were answered. `deaths`: of the path lately.
    pub(crate) fn is_home_proven(&self, deaths: u32) -> bool {
        self.home_probes.answered >= HOME_ANSWERS << deaths.min(HOME_DOUBLINGS)
    }

    /// A probe by the first port goes out: its number.
    pub(crate) fn ask_home(&mut self, now: Duration) -> u32 {
        let probes = &mut self.home_probes;
        if core::mem::replace(&mut probes.unanswered, true) {
            probes.answered = 0;
        }
        probes.number = probes.number.wrapping_add(1) | HOME_MARK;
        probes.next_at = now + HOME_INTERVAL;
        probes.number
    }

    /// A probe of this number is answered. Returns whether it was asked.
    pub(crate) fn home_answered(&mut self, number: u32) -> bool {
        let probes = &mut self.home_probes;
        let asked = probes.number == number && core::mem::take(&mut probes.unanswered);
        probes.answered = probes.answered.saturating_add(u32::from(asked));
        asked
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
            while !turns.is_due(MS, MS) {
                turns.ask(MS);
                probes += 1;
            }
            patience.push(probes);
            turns.change(MS * change, 2);
        }
        assert_eq!(patience, [2, 2, 4, 4, 8, 8, 8, 8, 8, 8]);
    }

    #[test]
    fn who_hears_the_peer_and_is_not_heard_changes_at_once() {
        let mut turns = PortTurns::new(1);
        turns.hear(MS);
        turns.change(MS * 10, 1);
        turns.ask(MS * 10);
        assert!(!turns.is_due(MS * 30, MS * 5), "what was heard before says nothing");
        turns.hear(MS * 12);
        assert!(!turns.is_due(MS * 14, MS * 5), "the answer may be under way");
        assert!(turns.is_due(MS * 15, MS * 5));
        turns.change(MS * 15, 2);
        assert!(!turns.is_due(MS * 30, MS * 5), "nothing was asked by this port");
    }

    #[test]
    fn an_answer_is_known_for_that_of_the_port_by_which_was_asked() {
        let mut turns = PortTurns::new(1);
        turns.change(MS * 10, 1);
        turns.change(MS * 20, 2);
        assert_eq!(turns.port_at(MS * 9), Some(1));
        assert_eq!(turns.port_at(MS * 10), Some(2));
        assert_eq!(turns.port_at(MS * 20), None, "the current one");
        assert_eq!((turns.settle(MS, 3), turns.settle(MS, 3)), (Some(1), None));
        assert_eq!((turns.settled(), turns.changes(), turns.port_at(MS)), (3, 0, None));
        for n in 0..100 {
            turns.change(MS * n, n as u16);
        }
        assert_eq!(turns.recent.len(), MAX_RECENT);
    }

    #[test]
    fn the_first_port_is_proven_by_answers_in_a_row() {
        let mut turns = PortTurns::new(1);
        assert_eq!(turns.home_at(), None);
        turns.settle(MS, 2);
        assert_eq!(turns.home_at(), Some(MS + HOME_INTERVAL));
        let answered = |turns: &mut PortTurns| {
            let number = turns.ask_home(MS);
            assert!(turns.home_answered(number) && !turns.home_answered(number), "each once");
        };
        answered(&mut turns);
        answered(&mut turns);
        let late = turns.ask_home(MS);
        turns.ask_home(MS);
        assert!(!turns.home_answered(late));
        (0..2).for_each(|_| answered(&mut turns));
        assert!(!turns.is_home_proven(0), "one was lost, so the count began anew");
        answered(&mut turns);
        assert!(turns.is_home_proven(0) && !turns.is_home_proven(1));
        (0..3).for_each(|_| answered(&mut turns));
        assert!(turns.is_home_proven(1) && !turns.is_home_proven(u32::MAX));
        turns.settle(MS, 1);
        assert_eq!((turns.home_at(), turns.is_home_proven(0)), (None, false));
    }
}
