//! What the lane's thread remembers from one sleep to the next.

use std::time::Duration;

use crate::lane::busy_poll::BusyPoll;
use crate::lane::collect::COLLECT_MAX;
use crate::lane::deeds::Deeds;

/// The interval at which the lane's thread checks whether the application still polls, at first.
pub(super) const TICK_MIN: Duration = Duration::from_millis(1);
/// The same after the application has polled for a while, because each check takes the processor
/// from a thread that polls. This is also how long a peer may wait for an answer when polling ends.
pub(super) const TICK_MAX: Duration = Duration::from_millis(4);
/// How long the lane's thread waits for a posting thread to leave the lane.
pub(super) const LOCK_WAIT: Duration = Duration::from_micros(20);
/// How often that time doubles while a thread is found in the lane again and again.
const LOCK_WAIT_DOUBLINGS: u32 = 3;
/// The longest interval between two checks for collected posts. A program that has polled for a while sends
/// them itself, and each check takes its processor from it. This is how long they may wait when polling ends.
pub(super) const LOOK_MAX: Duration = Duration::from_micros(800);
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

/// The number of rounds after which it stops watching, if the program polls and received in each of them what
/// the thread was woken for. Each round costs the program its processor for a moment.
const VAIN_ROUNDS: u32 = 8;

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
    /// The number of packets that it received in the last round.
    pub(crate) received: usize,
    /// The number of times that the program had received something at the last sleep.
    taken: u64,
    /// The number of rounds since the last packet of its own in which the program has received something.
    vain_rounds: u32,
    /// The number of rounds in a row in which the program was in the lane.
    contended: u32,
    /// How long it polls before it sleeps.
    pub(super) busy_poll: BusyPoll,
    /// The interval between its checks for collected posts.
    pub(super) look: Duration,
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
            received: 0,
            taken: 0,
            vain_rounds: 0,
            contended: 0,
            busy_poll: BusyPoll::new(busy_poll),
            look: COLLECT_MAX,
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
        self.vain_rounds = 0;
    }

    /// Notes how the last round ended. `taken` is the number of times that the program has received
    /// something, and `polls` says whether it polls. If it receives again and again what the thread was woken
    /// for, the thread stops watching.
    pub(super) fn round_is_over(&mut self, taken: u64, polls: bool, contended: bool) {
        let program = core::mem::replace(&mut self.taken, taken) != taken;
        match core::mem::take(&mut self.received) {
            0 if program && polls => self.vain_rounds += 1,
            0 => {}
            _ => self.vain_rounds = 0,
        }
        self.contended = if contended { self.contended + 1 } else { 0 };
        if self.vain_rounds >= VAIN_ROUNDS {
            self.watches_until = Duration::ZERO;
        }
    }

    /// Notes a tick at whose end the application polled. If the thread had to watch not long ago, the next
    /// tick is as short as before.
    pub(super) fn is_left_alone(&mut self) {
        if self.watch_for <= WATCH_MIN {
            self.tick = (self.tick * 2).min(TICK_MAX);
        }
        self.watch_for = (self.watch_for / 2).max(WATCH_MIN);
    }

    /// Notes a check for collected posts: whether the program has polled since the last one, and sends them
    /// itself.
    pub(super) fn looked(&mut self, polled: bool) {
        // A program may do much between two polls.
        self.look =
            if polled { (self.look * 2).min(LOOK_MAX) } else { (self.look / 2).max(COLLECT_MAX) };
    }

    /// How long to wait for a thread to leave the lane. If it is found there again and again, it either does
    /// the work, or has no time for it because this thread takes its processor.
    pub(super) fn lock_wait(&self) -> Duration {
        LOCK_WAIT * (1 << self.contended.saturating_sub(1).min(LOCK_WAIT_DOUBLINGS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A thread that watches, and has seen `rounds` rounds of which `received` tells what it received.
    fn watching(rounds: u64, received: impl Fn(u64) -> usize) -> Watch {
        let mut watch = Watch::new(Duration::ZERO);
        watch.watch_socket(SECOND);
        for round in 1..=rounds {
            watch.received = received(round);
            watch.round_is_over(round, true, false);
        }
        watch
    }

    #[test]
    fn a_thread_stops_watching_for_a_program_that_receives_everything_itself() {
        let rounds = u64::from(VAIN_ROUNDS);
        assert!(watching(rounds - 1, |_| 0).watches_until > SECOND);
        assert_eq!(watching(rounds, |_| 0).watches_until, Duration::ZERO);
        let some = |round| usize::from(round % rounds == 0);
        assert!(
            watching(rounds * 8, some).watches_until > SECOND,
            "what it receives now and then counts"
        );
    }

    #[test]
    fn a_round_without_packets_says_nothing() {
        let mut watch = watching(1, |_| 0);
        for _ in 0..100 {
            watch.round_is_over(1, true, true);
        }
        assert!(watch.watches_until > SECOND);
    }

    #[test]
    fn a_thread_waits_longer_for_one_that_is_in_the_lane_again_and_again() {
        let mut watch = watching(0, |_| 0);
        let mut waits = |contended| {
            watch.round_is_over(0, true, contended);
            watch.lock_wait()
        };
        let wanted = [1, 2, 4, 8, 8].map(|times| LOCK_WAIT * times);
        assert_eq!([(); 5].map(|()| waits(true)), wanted);
        assert_eq!([waits(false), waits(true)], [LOCK_WAIT; 2], "it has left between");
    }

    #[test]
    fn ticks_stay_short_until_the_thread_has_not_had_to_watch_for_a_while() {
        let mut watch = watching(0, |_| 0);
        watch.is_left_alone();
        assert_eq!(watch.tick, TICK_MIN);
        (0..8).for_each(|_| watch.is_left_alone());
        assert_eq!((watch.tick, watch.watch_for), (TICK_MAX, WATCH_MIN));
    }
}
