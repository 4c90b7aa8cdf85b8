//! When the lane's own thread works, and when it leaves the work to the application.
//!
//! A thread of the application that polls a completion queue drives the lane inline: no wake-up,
//! no second thread. While that goes on, the lane's thread only looks every few milliseconds whether
//! it still does. When polling ends, or when a completion queue is armed (somebody is about to sleep),
//! the lane's thread waits for the socket itself.
//!
//! A program may poll a completion queue for its own WRITE, and then its memory for the peer's, on and on:
//! then there is nobody to take that in. So a lane's thread that finds packets which nobody takes watches
//! the socket for a time, whether or not the program polls. If it finds such packets again afterwards, it
//! watches twice as long the next time.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::clock;
use crate::lane::busy_poll::BusyPoll;
use crate::lane::collect::COLLECT_MAX;
use crate::lane::waker::Waker;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// How often the lane's thread looks whether the application still polls, at first.
const TICK_MIN: Duration = Duration::from_millis(1);
/// And when it has polled for a while: each look takes the processor from somebody who polls. A peer
/// waits so long for an answer when polling ends.
const TICK_MAX: Duration = Duration::from_millis(4);
/// How long the lane's thread waits for a thread that posts to leave the lane.
const LOCK_WAIT: Duration = Duration::from_micros(20);
/// As many polls within a tick mean that somebody polls busily.
const BUSY_POLLS: u64 = 32;
/// How long the lane's thread watches the socket of a program that polls: at first, and at most.
const WATCH_MIN: Duration = Duration::from_millis(20);
const WATCH_MAX: Duration = Duration::from_secs(1);
/// How much longer it watches than the last time. Each tick that finds the program polling halves that
/// time; and many find so a program that polls for its own completions half of the time, and its
/// memory otherwise.
const WATCH_GROWTH: u32 = 8;
/// A thread that has looked in vain so often for what is collected, stops to look.
const VAIN_LOOKS: u32 = 8;
/// How the thread looks after what is collected: it must be woken;
const SLOW: u64 = 0;
/// it looks every [`COLLECT_MAX`] by itself;
const BRISK: u64 = 1;
/// the same, and something was collected since it looked last.
const NEWS: u64 = 2;
/// The longest sleep.
const LONGEST: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Sleeper {
    waker: Waker,
    /// Polls by the application since the start.
    polls: AtomicU64,
    /// Those that found completions without driving the lane.
    taken: AtomicU64,
    /// Posts and the like since the start.
    entries: AtomicU64,
    /// The lane's thread only ticks.
    ticking: AtomicBool,
    /// The lane's thread must wait for the socket, polled or not.
    needed: AtomicBool,
    /// Nanoseconds on the lane's clock at which the thread wakes by itself.
    wakes_at: AtomicU64,
    /// [`SLOW`], [`BRISK`] or [`NEWS`].
    collecting: AtomicU64,
    /// Nanoseconds on the lane's clock at which what is collected must leave; `u64::MAX`: nothing is.
    send_by: AtomicU64,
}

/// What the lane's thread remembers from one sleep to the next.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Polls when it last slept.
    polls: u64,
    /// How long it leaves a polling application alone.
    tick: Duration,
    /// Until when it waits for the socket all the same.
    watches_until: Duration,
    /// How long that will be the next time.
    watch_for: Duration,
    /// How long it polls before it sleeps.
    busy_poll: BusyPoll,
    /// How often it has looked for what is collected, and nothing had been.
    vain_looks: u32,
    /// An acknowledgement waits for an answer: the deadline counts, polled or not.
    pub(super) owes: bool,
}

impl Watch {
    /// For a thread that polls for up to `busy_poll` before it sleeps.
    pub(crate) fn new(busy_poll: Duration) -> Self {
        Self {
            polls: 0,
            tick: TICK_MIN,
            watches_until: Duration::ZERO,
            watch_for: WATCH_MIN,
            busy_poll: BusyPoll::new(busy_poll),
            vain_looks: VAIN_LOOKS,
            owes: false,
        }
    }
}

/// How a rest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The time is over.
    Over,
    /// By the waker or the socket.
    Woken,
    /// What is collected must leave.
    Overdue,
}

/// What the lane's thread shall do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The socket has packets, a deadline has come or somebody asked: drive the lane.
    Drive,
    /// The same, and an application that seemed to poll has left packets in the socket. If nobody is in the
    /// lane either, [`Watch::watch_socket`].
    Unpolled,
    /// The application polls: nothing to do.
    Nothing,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            polls: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            ticking: AtomicBool::new(false),
            needed: AtomicBool::new(false),
            wakes_at: AtomicU64::new(u64::MAX),
            collecting: AtomicU64::new(SLOW),
            send_by: AtomicU64::new(u64::MAX),
        })
    }

    /// The application drove the lane.
    pub(crate) fn polled(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The application has polled and found completions without driving the lane.
    pub(crate) fn took(&self) {
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often it has, roughly.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The application has entered the lane for something else. To be called with the lane's lock held.
    pub(crate) fn entered(&self) {
        self.entries.store(self.entries.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The application is about to sleep until an event.
    pub(crate) fn needed(&self) {
        self.needed.swap(true, Ordering::SeqCst);
        if self.ticking.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Something has to be done at `deadline`; wakes the thread if it would sleep longer.
    pub(crate) fn deadline(&self, deadline: Duration) {
        let at = nanos(deadline);
        if at < self.wakes_at.load(Ordering::Relaxed) && !self.ticking.load(Ordering::Relaxed) {
            self.wakes_at.store(at, Ordering::Relaxed);
            self.waker.wake();
        }
    }

    /// What was posted at `now` waits for what is posted next, or for a poll, but not longer than
    /// [`COLLECT_MAX`].
    /// To be called with the lane's lock held.
    pub(crate) fn collected(&self, now: Duration) {
        self.send_by.store(nanos(now + COLLECT_MAX), Ordering::Relaxed);
        // Swaps here and in `next_look`: whichever comes second takes in what came before the first.
        if self.collecting.swap(NEWS, Ordering::SeqCst) == SLOW {
            self.waker.wake();
        }
    }

    /// What was collected is being sent. To be called with the lane's lock held.
    pub(crate) fn sent(&self) {
        self.send_by.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether something is collected.
    #[inline]
    pub(crate) fn is_collecting(&self) -> bool {
        self.send_by.load(Ordering::Relaxed) != u64::MAX
    }

    /// Wakes the thread now.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// The thread's part: sleeps until there is something to do. `contended` says that the last
    /// attempt to drive found the application at it.
    pub(crate) fn sleep(
        &self,
        socket: RawFd,
        now: Duration,
        deadline: Option<Duration>,
        watch: &mut Watch,
        contended: bool,
    ) -> Woken {
        let polls = self.polls.load(Ordering::Relaxed);
        let since = polls.wrapping_sub(watch.polls);
        let busy = is_busy(since, contended);
        // Posts are collected only of programs that poll right after them: such a one is left alone as long
        // as each look finds that it has polled.
        let collects = !busy && since > 0 && watch.vain_looks < VAIN_LOOKS;
        watch.polls = polls;
        let needed = self.needed.swap(false, Ordering::SeqCst) || watch.owes;
        if (busy || collects) && !needed && now >= watch.watches_until {
            // Swaps here and in `needed`: whichever comes second takes in what came before the first, so
            // a request that missed that the thread ticks is seen here.
            self.ticking.swap(true, Ordering::SeqCst);
            if self.needed.load(Ordering::SeqCst) {
                self.ticking.store(false, Ordering::SeqCst);
                return Woken::Drive;
            }
            if contended {
                self.waker.wait(None, LOCK_WAIT);
            }
            let tick = if collects { COLLECT_MAX } else { watch.tick };
            let rest = self.rest(None, now, tick, watch);
            self.ticking.store(false, Ordering::SeqCst);
            return match rest {
                Rest::Overdue => Woken::Drive,
                Rest::Woken => {
                    self.waker.clear();
                    self.ticked(socket, polls, watch)
                }
                Rest::Over if collects => match self.polls.load(Ordering::Relaxed) == polls {
                    true => Woken::Drive,
                    false => Woken::Nothing,
                },
                Rest::Over => self.ticked(socket, polls, watch),
            };
        }
        watch.tick = TICK_MIN;
        if contended {
            // The socket stays readable until that thread has left: no use in asking it.
            if self.waker.wait(None, LOCK_WAIT) {
                self.waker.clear();
            }
            return Woken::Drive;
        }
        let timeout = deadline.map_or(LONGEST, |d| d.saturating_sub(now)).min(LONGEST);
        self.wakes_at.store(nanos(now + timeout), Ordering::Relaxed);
        if !self.poll(socket, now, timeout, &mut watch.busy_poll) {
            self.rest(Some(socket), now, timeout, watch);
            watch.busy_poll.slept(clock::now().saturating_sub(now));
        }
        // While the thread is awake nobody knows when it will sleep: whoever has a deadline wakes it.
        self.wakes_at.store(u64::MAX, Ordering::Relaxed);
        self.waker.clear();
        Woken::Drive
    }

    /// Sleeps for `time` from `now` on, or until another thread wakes it, the socket has something, or
    /// what is collected must leave.
    fn rest(
        &self,
        socket: Option<RawFd>,
        now: Duration,
        time: Duration,
        watch: &mut Watch,
    ) -> Rest {
        let (end, mut now) = (now + time, now);
        loop {
            let look = self.next_look(now, watch).unwrap_or(end);
            if look <= now {
                return Rest::Overdue;
            }
            if self.waker.wait(socket, look.min(end).saturating_sub(now)) {
                return Rest::Woken;
            }
            if look >= end {
                return Rest::Over;
            }
            now = clock::now();
            if now >= end {
                return Rest::Over;
            }
        }
    }

    /// When the thread looks again after what is collected; `None`: it will be woken.
    fn next_look(&self, now: Duration, watch: &mut Watch) -> Option<Duration> {
        let news = self.collecting.swap(BRISK, Ordering::SeqCst) == NEWS;
        watch.vain_looks = if news { 0 } else { watch.vain_looks.saturating_add(1) };
        if watch.vain_looks > VAIN_LOOKS {
            if self.collecting.swap(SLOW, Ordering::SeqCst) != NEWS {
                return None;
            }
            self.collecting.swap(BRISK, Ordering::SeqCst);
            watch.vain_looks = 0;
        }
        Some(match self.send_by.load(Ordering::Relaxed) {
            u64::MAX => now + COLLECT_MAX,
            at => Duration::from_nanos(at),
        })
    }

    /// Polls for what `sleep` waits for, if that is likely to come soon; false: it has not come.
    fn poll(&self, socket: RawFd, since: Duration, most: Duration, busy: &mut BusyPoll) -> bool {
        let until = since + busy.window(since).min(most);
        while clock::now() < until {
            if self.waker.wait(Some(socket), Duration::ZERO) {
                return true;
            }
            core::hint::spin_loop();
        }
        false
    }

    /// A tick is over, before which there had been so many `polls`.
    fn ticked(&self, socket: RawFd, polls: u64, watch: &mut Watch) -> Woken {
        let polls_now = self.polls.load(Ordering::Relaxed);
        if !self.needed.load(Ordering::SeqCst) {
            if self.is_unpolled(socket, polls_now) {
                watch.tick = TICK_MIN;
                return Woken::Unpolled;
            }
            if polls_now.wrapping_sub(polls) >= BUSY_POLLS {
                watch.tick = (watch.tick * 2).min(TICK_MAX);
                watch.watch_for = (watch.watch_for / 2).max(WATCH_MIN);
                return Woken::Nothing;
            }
        }
        watch.tick = TICK_MIN;
        Woken::Drive
    }

    /// Whether the socket has packets and nobody polls for them any more, who had polled so often, nor
    /// does anything else.
    fn is_unpolled(&self, socket: RawFd, polls: u64) -> bool {
        let entries = self.entries.load(Ordering::Relaxed);
        if !self.waker.wait(Some(socket), Duration::ZERO) {
            return false;
        }
        self.waker.wait(None, LOCK_WAIT);
        self.polls.load(Ordering::Relaxed) == polls
            && self.entries.load(Ordering::Relaxed) == entries
    }
}

impl Watch {
    /// From now on the thread waits for the socket, polled or not, for `watch_for`; much longer the next
    /// time.
    pub(crate) fn watch_socket(&mut self, now: Duration) {
        self.watches_until = now + self.watch_for;
        self.watch_for = (self.watch_for * WATCH_GROWTH).min(WATCH_MAX);
    }
}

/// Whether the application polls busily: it did so often since the thread last slept, or was at it
/// just now. Who is in the lane without having polled posts: that takes nothing in, and the thread
/// must not leave the socket to it.
fn is_busy(polls: u64, contended: bool) -> bool {
    polls >= BUSY_POLLS || (contended && polls > 0)
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Longer than any test waits.
    const FOR_EVER: Duration = Duration::from_secs(3600);

    #[test]
    fn the_socket_is_left_to_threads_that_poll_and_not_to_those_that_post() {
        assert!(is_busy(BUSY_POLLS, false));
        assert!(!is_busy(BUSY_POLLS - 1, false), "a few polls before a sleep");
        assert!(is_busy(1, true));
        assert!(!is_busy(0, true), "a thread that posts sends");
    }

    #[test]
    fn what_is_collected_is_sent_by_the_thread_when_its_time_is_over() {
        let (socket, _sender) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let fd = socket.as_raw_fd();
        let sleeper = Sleeper::new().unwrap();
        let mut watch = Watch::new(Duration::ZERO);
        let rest = |watch: &mut Watch| sleeper.rest(Some(fd), clock::now(), FOR_EVER, watch);
        sleeper.collected(clock::now());
        assert!(sleeper.is_collecting());
        // The wake-up, or that the time was over before the thread looked.
        assert_ne!(rest(&mut watch), Rest::Over);
        sleeper.waker.clear();
        // From now on the thread looks by itself.
        sleeper.sent();
        sleeper.collected(clock::now());
        assert!(!sleeper.waker.wait(None, Duration::ZERO), "not woken");
        assert_eq!(rest(&mut watch), Rest::Overdue);
        // And while the application polls busily as well.
        sleeper.sent();
        sleeper.collected(clock::now());
        (0..BUSY_POLLS).for_each(|_| sleeper.polled());
        watch.tick = FOR_EVER;
        assert_eq!(sleeper.sleep(fd, clock::now(), None, &mut watch, false), Woken::Drive);
        sleeper.sent();
        assert!(!sleeper.is_collecting());
    }

    #[test]
    fn a_thread_that_looks_in_vain_stops_to_look_and_is_woken_again() {
        let sleeper = Sleeper::new().unwrap();
        let mut watch = Watch::new(Duration::ZERO);
        let second = Duration::from_secs(1);
        assert_eq!(sleeper.next_look(second, &mut watch), None);
        sleeper.collected(second);
        assert!(sleeper.waker.wait(None, Duration::ZERO), "woken");
        sleeper.waker.clear();
        assert_eq!(sleeper.next_look(second, &mut watch), Some(second + COLLECT_MAX));
        sleeper.sent();
        for _ in 0..VAIN_LOOKS {
            assert_eq!(sleeper.next_look(second, &mut watch), Some(second + COLLECT_MAX));
        }
        sleeper.collected(second);
        assert!(!sleeper.waker.wait(None, Duration::ZERO), "it would have looked once more");
        sleeper.sent();
        for _ in 0..=VAIN_LOOKS {
            assert!(sleeper.next_look(second, &mut watch).is_some());
        }
        assert_eq!(sleeper.next_look(second, &mut watch), None);
        sleeper.collected(second);
        assert!(sleeper.waker.wait(None, Duration::ZERO), "woken");
    }

    #[test]
    fn a_program_whose_posts_are_collected_is_left_alone_while_it_polls_at_all() {
        let (socket, sender) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let fd = socket.as_raw_fd();
        let sleeper = Sleeper::new().unwrap();
        let mut watch = Watch::new(Duration::ZERO);
        sender.send(b"a packet").unwrap();
        sleeper.collected(clock::now());
        sleeper.sent();
        assert_eq!(sleeper.sleep(fd, clock::now(), None, &mut watch, false), Woken::Drive);
        sleeper.polled();
        // One poll, and none since: whoever waits for the packet does not wait for a tick.
        watch.tick = FOR_EVER;
        assert_eq!(sleeper.sleep(fd, clock::now(), None, &mut watch, false), Woken::Drive);
    }

    #[test]
    fn packets_that_nobody_takes_make_the_thread_watch_the_socket_until_somebody_does() {
        let (socket, sender) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let fd = socket.as_raw_fd();
        let sleeper = Sleeper::new().unwrap();
        let mut watch = Watch::new(Duration::ZERO);
        let second = Duration::from_secs(1);
        (0..BUSY_POLLS).for_each(|_| sleeper.polled());
        assert_eq!(sleeper.ticked(fd, 0, &mut watch), Woken::Nothing, "there are no packets");
        sender.send(b"a packet").unwrap();
        assert_eq!(sleeper.ticked(fd, 0, &mut watch), Woken::Unpolled);
        watch.watch_socket(second);
        assert_eq!(watch.watches_until, second + WATCH_MIN);
        // The packet alone wakes it now, polled or not.
        assert_eq!(sleeper.sleep(fd, second, None, &mut watch, false), Woken::Drive);
        // Unpolled again after that: it watches longer.
        assert_eq!(sleeper.ticked(fd, 0, &mut watch), Woken::Unpolled);
        watch.watch_socket(second * 2);
        assert_eq!(watch.watches_until, second * 2 + WATCH_MIN * WATCH_GROWTH);
        socket.recv(&mut [0; 16]).unwrap();
        assert_eq!(sleeper.ticked(fd, 0, &mut watch), Woken::Nothing, "somebody took it");
        assert_eq!(watch.watch_for, WATCH_MAX / 2);
        for _ in 0..8 {
            assert_eq!(sleeper.ticked(fd, 0, &mut watch), Woken::Nothing);
        }
        assert_eq!(watch.watch_for, WATCH_MIN);
        // Polled seldom: the thread works, and does not watch the socket for it.
        assert_eq!(sleeper.ticked(fd, BUSY_POLLS - 1, &mut watch), Woken::Drive);
    }
}
