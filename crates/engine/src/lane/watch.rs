//! What the lane's thread remembers from one sleep to the next.

use std::time::Duration;

use crate::lane::busy_poll::BusyPoll;
use crate::lane::deeds::Deeds;

/// The interval at which the lane's thread checks whether the application still polls, at first.
pub(super) const TICK_MIN: Duration = Duration::from_millis(1);
/// The number of checks for collected posts, all in vain, after which a thread stops checking.
pub(super) const VAIN_LOOKS: u32 = 8;
/// How long the lane's thread watches the socket of a program that polls: the first time, and at
/// most.
pub(super) const WATCH_MIN: Duration = Duration::from_millis(20);
pub(super) const WATCH_MAX: Duration = Duration::from_secs(1);
/// The factor by which it watches longer than the last time. Each tick that finds the program
/// polling halves that time again. There are many such ticks with a program that polls for its own
/// completions half of the time, and its memory the other half.
pub(super) const WATCH_GROWTH: u32 = 8;

/// The state that the lane's thread keeps from one sleep to the next.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The number of polls that drove the lane at its last sleep.
    pub(super) polls: u64,
    /// What the application had done by then.
    pub(super) deeds: Deeds,
    /// How often a thread of the application had taken its place then.
    pub(super) stood: u64,
    /// The time until which such threads are expected to come back.
    pub(super) returns_until: Duration,
    /// The number of ticks in a row that found packets which a thread between two events had left.
    pub(super) left: u32,
    /// How long it leaves a polling application alone.
    pub(super) tick: Duration,
    /// The time until which it watches the socket all the same.
    pub(super) watches_until: Duration,
    /// How long it watches the next time.
    pub(super) watch_for: Duration,
    /// How long it polls before it sleeps.
    pub(super) busy_poll: BusyPoll,
    /// The number of checks for collected posts that found none.
    pub(super) vain_looks: u32,
    /// Whether the thread has said in shared memory that it sleeps, and not since that it is awake.
    pub(crate) armed: bool,
    /// Whether an acknowledgement waits for an answer, so that the deadline counts even if the
    /// application polls.
    pub(super) owes: bool,
}

impl Watch {
    /// Creates the state for a thread that polls for up to `busy_poll` before it sleeps.
    pub(crate) fn new(busy_poll: Duration) -> Self {
        Self {
            polls: 0,
            deeds: Deeds::default(),
            stood: 0,
            returns_until: Duration::ZERO,
            left: 0,
            tick: TICK_MIN,
            watches_until: Duration::ZERO,
            watch_for: WATCH_MIN,
            busy_poll: BusyPoll::new(busy_poll),
            vain_looks: VAIN_LOOKS,
            armed: false,
            owes: false,
        }
    }

    /// Lets the thread watch the socket for `watch_for`, even if the application polls, and much
    /// longer the next time.
    pub(crate) fn watch_socket(&mut self, now: Duration) {
        self.watches_until = now + self.watch_for;
        self.watch_for = (self.watch_for * WATCH_GROWTH).min(WATCH_MAX);
    }
}
