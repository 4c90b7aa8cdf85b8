//! Decides when the lane's own thread works, and when it leaves the work to the application.
//!
//! A thread of the application that polls a completion queue drives the lane itself, without a
//! wake-up and a second thread. Meanwhile the lane's thread only checks every few milliseconds
//! whether the application still polls. When polling ends, or when a completion queue is armed (a
//! thread is about to sleep), the lane's thread waits for the socket itself.
//!
//! A program may alternate between polling a completion queue for its own WRITE and polling its
//! memory for the peer's. While it polls its memory, nobody receives. So a lane's thread that finds
//! packets which nobody receives watches the socket for a time, whether or not the program polls.
//! If it finds such packets again afterwards, it watches much longer the next time. It stops when the
//! program has received again and again what the thread was woken for.
//!
//! A thread that waits for an event of a completion queue may stand in for the lane's thread
//! ([`stand_in`](super::stand_in)). Between two events the lane's thread only ticks, as beside polling.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::lane::busy_poll::BusyPoll;
use crate::lane::collect::COLLECT_MAX;
use crate::lane::deeds::Deeds;
use crate::lane::stand_in::StandIn;
use crate::lane::waker::Waker;
use crate::lane::watch::{LOCK_WAIT, TICK_MAX, TICK_MIN, VAIN_LOOKS, Watch};
use crate::media::local::Exchange;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// The number of ticks in a row with packets left in the socket after which the lane's thread watches it, if
/// threads stand in for it.
pub(super) const LEFT: u32 = 4;
/// The thread does not check for collected posts by itself: it must be woken.
const SLOW: u64 = 0;
/// The thread checks every [`Watch::look`] by itself.
const BRISK: u64 = 1;
/// The same, and something was collected since its last check.
const NEWS: u64 = 2;
/// The longest sleep.
pub(super) const LONGEST: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Sleeper {
    waker: Waker,
    /// The number of polls by the application since the start.
    polls: AtomicU64,
    /// The number of polls that found completions without driving the lane.
    taken: AtomicU64,
    /// The number of polls that received packets.
    received: AtomicU64,
    /// The number of entries for other reasons, such as posts, since the start.
    entries: AtomicU64,
    /// Whether the lane's thread only ticks.
    ticking: AtomicBool,
    /// Whether the lane's thread must wait for the socket, even if the application polls.
    needed: AtomicBool,
    /// The time at which the thread wakes by itself, in nanoseconds on the lane's clock.
    wakes_at: AtomicU64,
    /// Shared memory, whose packets are seen by looking, and wake the thread only if it says that it sleeps.
    memory: Option<Arc<Exchange>>,
    /// [`SLOW`], [`BRISK`] or [`NEWS`].
    collecting: AtomicU64,
    /// The time at which collected posts must be sent, in nanoseconds on the lane's clock;
    /// `u64::MAX` if there are none.
    send_by: AtomicU64,
    pub(super) stand_in: StandIn,
}

/// The reason why a rest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The time is over.
    Over,
    /// The waker or the socket ended it.
    Woken,
    /// Collected posts must be sent.
    Overdue,
}

/// The next task of the lane's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The socket has packets, a deadline is due, or a thread asked: drive the lane.
    Drive,
    /// The same, and an application that seemed to poll has left packets in the socket. If no
    /// thread is in the lane either, call [`Watch::watch_socket`].
    Unpolled,
    /// The application polls, so there is nothing to do.
    Nothing,
}

impl Sleeper {
    pub(crate) fn new(memory: Option<Arc<Exchange>>) -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            memory,
            polls: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            received: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            ticking: AtomicBool::new(false),
            needed: AtomicBool::new(false),
            wakes_at: AtomicU64::new(u64::MAX),
            collecting: AtomicU64::new(SLOW),
            send_by: AtomicU64::new(u64::MAX),
            stand_in: StandIn::new(),
        })
    }

    /// Lets the calling thread wait for the socket in place of the lane's thread, which leaves it. Returns
    /// false if it may not, else call [`Self::step_back`] at the end.
    pub(crate) fn step_in(&self) -> bool {
        if !self.stand_in.take() {
            return false;
        }
        self.wake_unless_ticking();
        true
    }

    /// Notes that there is more to wait for than before. Call this with the lane's lock held, and wake the
    /// lane's thread afterwards.
    pub(crate) fn more_to_wait_for(&self) {
        self.stand_in.more_to_wait_for();
    }

    /// Says in shared memory that a thread is about to sleep. Returns false if there is something to read, so
    /// that it must not.
    pub(crate) fn arm(&self) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.arm())
    }

    /// Notes that the thread that stands in is awake, and waits for all that there is when it sleeps the next
    /// time. Call this with the lane's lock held.
    pub(crate) fn stand_in_is_awake(&self) {
        self.stand_in.learn();
        if let Some(memory) = &self.memory {
            memory.disarm();
        }
    }

    /// Notes that the lane's thread is awake. Shared memory is told so unless another thread may sleep
    /// beside it, which must take the lane's lock before it says so. Call this with the lane's lock held.
    pub(crate) fn is_awake(&self, watch: &mut Watch) {
        if core::mem::take(&mut watch.armed)
            && let Some(memory) = self.memory.as_ref().filter(|_| !self.stand_in.waits_for_all())
        {
            memory.disarm();
        }
    }

    /// Whether the socket has packets, or a thread has asked for this one.
    fn is_readable(&self, socket: RawFd) -> bool {
        self.waker.wait(Some(socket), Duration::ZERO)
    }

    /// Whether packets are in shared memory.
    fn has_in_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.has_more())
    }

    /// Whether a thread that has stepped in may go on.
    pub(crate) fn may_stay(&self) -> bool {
        self.stand_in.may_stay()
    }

    /// Gives the socket back to the lane's thread.
    pub(crate) fn step_back(&self) {
        self.stand_in.give_back();
        self.wake_unless_ticking();
        if !self.stand_in.may_stay() {
            self.needed();
        }
    }

    /// Notes that one more (1) or one less (-1) thread waits for an event that the lane's thread must bring.
    pub(crate) fn others(&self, change: i32) {
        self.stand_in.others(change);
        if change > 0 {
            self.needed();
        }
    }

    /// The number of polls so far, roughly.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// What the application has done so far, roughly.
    fn deeds(&self) -> Deeds {
        let looks = self.polls().wrapping_add(self.taken());
        Deeds { looks, all: looks.wrapping_add(self.entries.load(Ordering::Relaxed)) }
    }

    /// Lets the lane's thread see who waits for the socket now, unless it is about to look anyway.
    fn wake_unless_ticking(&self) {
        if !self.ticking.load(Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Notes that the application drove the lane.
    pub(crate) fn polled(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes that the application polled and found completions without driving the lane.
    pub(crate) fn took(&self) {
        self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes that the application polled and received packets. Call this with the lane's lock held.
    #[inline]
    pub(crate) fn got(&self) {
        self.received
            .store(self.received.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The number of polls that received packets, roughly.
    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The number of polls that found completions without driving the lane, roughly.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Notes that the application entered the lane for another reason. Call this with the lane's
    /// lock held.
    pub(crate) fn entered(&self) {
        self.entries.store(self.entries.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes that the application is about to sleep until an event.
    pub(crate) fn needed(&self) {
        self.needed.swap(true, Ordering::SeqCst);
        if self.ticking.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// Ensures that the thread is awake at `deadline`: wakes it if it would sleep longer.
    pub(crate) fn deadline(&self, deadline: Duration) {
        let at = nanos(deadline);
        if at < self.wakes_at.load(Ordering::Relaxed) && !self.ticking.load(Ordering::Relaxed) {
            self.wakes_at.store(at, Ordering::Relaxed);
            self.waker.wake();
        }
    }

    /// Notes that a post at `now` waits for the next post or a poll, but not longer than
    /// [`COLLECT_MAX`]. Call this with the lane's lock held.
    pub(crate) fn collected(&self, now: Duration) {
        self.send_by.store(nanos(now + COLLECT_MAX), Ordering::Relaxed);
        // Both this and `next_look` use swaps: the later one sees what happened before the earlier
        // one.
        if self.collecting.swap(NEWS, Ordering::SeqCst) == SLOW {
            self.waker.wake();
        }
    }

    /// Notes that collected posts are being sent. Call this with the lane's lock held.
    pub(crate) fn sent(&self) {
        self.send_by.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether posts are collected.
    #[inline]
    pub(crate) fn is_collecting(&self) -> bool {
        self.send_by.load(Ordering::Relaxed) != u64::MAX
    }

    /// Wakes the thread now.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Sleeps until there is something to do; the lane's thread calls this. `contended` says that
    /// the last attempt to drive the lane found the application in it.
    pub(crate) fn sleep(
        &self,
        socket: RawFd,
        now: Duration,
        deadline: Option<Duration>,
        watch: &mut Watch,
        contended: bool,
    ) -> Woken {
        let (polls, deeds) = (self.polls(), self.deeds());
        let since = polls.wrapping_sub(watch.polls);
        let busy = deeds.since(watch.deeds).are_busy(contended);
        // Posts are collected only for programs that poll right after them. Such a program is left
        // alone as long as each check finds that it has polled.
        let collects = !busy && since > 0 && watch.vain_looks < VAIN_LOOKS;
        (watch.polls, watch.deeds) = (polls, deeds);
        watch.round_is_over(self.received(), since > 0, contended);
        let watches = now < watch.watches_until;
        self.stand_in.refuse(watches);
        let stands = self.stand_in.waits_for_all();
        // Threads that stand in do so again and again, with work between.
        if self.stand_in.times() != watch.stood {
            watch.stood = self.stand_in.times();
            watch.returns_until = now + TICK_MAX;
        }
        let returns = now < watch.returns_until && self.stand_in.may_stay();
        let needed = (self.needed.swap(false, Ordering::SeqCst) && !stands) || watch.owes;
        if (busy || collects || returns) && !needed && !watches {
            // Both this and `needed` use swaps: the later one sees what happened before the earlier
            // one. So a request that came too early to see that the thread ticks is seen here.
            self.ticking.swap(true, Ordering::SeqCst);
            if self.needed.load(Ordering::SeqCst) {
                self.ticking.store(false, Ordering::SeqCst);
                return Woken::Drive;
            }
            if contended {
                self.waker.wait(None, LOCK_WAIT);
            }
            let tick = if collects {
                watch.look
            } else if busy {
                watch.tick
            } else {
                TICK_MIN
            };
            let mut rest = self.rest(None, now, tick, watch);
            if rest == Rest::Woken && !self.needed.load(Ordering::SeqCst) {
                // A thread stepped in or back just before the tick began.
                self.waker.clear();
                rest = self.rest(None, clock::now(), tick, watch);
            }
            self.ticking.store(false, Ordering::SeqCst);
            return match rest {
                Rest::Overdue => Woken::Drive,
                Rest::Woken => {
                    self.waker.clear();
                    self.ticked(socket, deeds, returns, watch)
                }
                Rest::Over if collects => match self.polls.load(Ordering::Relaxed) == polls {
                    true => Woken::Drive,
                    false => Woken::Nothing,
                },
                Rest::Over => self.ticked(socket, deeds, returns, watch),
            };
        }
        watch.tick = TICK_MIN;
        if contended {
            // The socket stays readable until that thread has received, so polling it is useless.
            if self.waker.wait(None, watch.lock_wait()) {
                self.waker.clear();
                return Woken::Drive;
            }
            // If it polls, and has received, it will do what else is due.
            if !watches || since == 0 || self.has_in_memory() || self.is_readable(socket) {
                return Woken::Drive;
            }
        }
        let timeout = deadline.map_or(LONGEST, |d| d.saturating_sub(now)).min(LONGEST);
        self.wakes_at.store(nanos(now + timeout), Ordering::Relaxed);
        if stands && !watches {
            // If that thread has stepped back since, it has woken this one.
            self.rest(None, now, timeout, watch);
        } else if !self.poll(socket, now, timeout, &mut watch.busy_poll) {
            watch.armed = true;
            if self.arm() {
                self.rest(Some(socket), now, timeout, watch);
            }
            watch.busy_poll.slept(clock::now().saturating_sub(now));
        }
        // While the thread is awake, nobody knows when it will sleep, so anyone with a deadline
        // wakes it.
        self.wakes_at.store(u64::MAX, Ordering::Relaxed);
        self.waker.clear();
        Woken::Drive
    }

    /// Sleeps for `time` from `now` on, or until another thread wakes it, the socket is readable,
    /// or collected posts must be sent.
    fn rest(
        &self,
        socket: Option<RawFd>,
        now: Duration,
        time: Duration,
        watch: &mut Watch,
    ) -> Rest {
        let (end, mut now, mut polls) = (now + time, now, self.polls());
        loop {
            let next = self.next_look(now, watch);
            let look = next.unwrap_or(end);
            if look <= now {
                return Rest::Overdue;
            }
            if self.waker.wait(socket, look.min(end).saturating_sub(now)) {
                return Rest::Woken;
            }
            let before = core::mem::replace(&mut polls, self.polls());
            if next.is_some() && look <= end {
                watch.looked(polls != before);
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

    /// The time of the thread's next check for collected posts; `None` if it will be woken.
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
            u64::MAX => now + watch.look,
            at => Duration::from_nanos(at),
        })
    }

    /// Polls for the events that `sleep` waits for, if they are likely to come soon. Returns false
    /// if none came.
    fn poll(&self, socket: RawFd, since: Duration, most: Duration, busy: &mut BusyPoll) -> bool {
        let window = busy.window(since).min(most);
        if window.is_zero() {
            return false;
        }
        let until = since + window;
        while clock::now() < until {
            if self.has_in_memory() || self.waker.wait(Some(socket), Duration::ZERO) {
                return true;
            }
            core::hint::spin_loop();
        }
        false
    }

    /// Handles the end of a tick. `before` is what the application had done at its start.
    fn ticked(&self, socket: RawFd, before: Deeds, returns: bool, watch: &mut Watch) -> Woken {
        let deeds = self.deeds();
        let returns = returns || self.stand_in.times() != watch.stood;
        if !self.needed.load(Ordering::SeqCst) {
            if self.is_unpolled(socket, deeds) {
                watch.tick = TICK_MIN;
                watch.left += 1;
                // A thread that stands in is seldom away for long.
                let is_away = returns && watch.left < LEFT;
                return if is_away { Woken::Drive } else { Woken::Unpolled };
            }
            watch.left = 0;
            if deeds.since(before).are_busy(false) {
                watch.is_left_alone();
                return Woken::Nothing;
            }
            if self.stand_in.times() != watch.stood {
                return Woken::Nothing;
            }
        }
        watch.tick = TICK_MIN;
        Woken::Drive
    }

    /// Whether the socket has packets, and the application neither polls nor enters the lane any
    /// more. `before` is what it had done before.
    fn is_unpolled(&self, socket: RawFd, before: Deeds) -> bool {
        if self.stand_in.waits_for_all() {
            return false;
        }
        if !self.has_in_memory() && !self.is_readable(socket) {
            return false;
        }
        self.waker.wait(None, LOCK_WAIT);
        !self.stand_in.waits_for_all() && self.deeds() == before
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
