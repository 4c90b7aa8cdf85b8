//! Decides how long the lane's thread polls the socket before it sleeps.
//!
//! A program that waits for the peer's WRITE in its memory, without polling a completion queue,
//! depends on the lane's thread for every message. Waking the thread takes several times as long as
//! handling the packet. So while packets follow each other closely, the thread polls for a while
//! before it sleeps, as the kernel's KVM does with halted processors. That time grows while sleeps
//! are short, and falls to zero after a long one. The thread polls only while a processor would
//! otherwise be idle, because taking the processor from the program gains nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The polling time after the first short sleep.
const WINDOW_MIN: Duration = Duration::from_micros(10);
/// The interval at which a polling thread checks whether a processor is idle.
const IDLE_CHECK: Duration = Duration::from_millis(1);
/// How long the thread does not poll after it found no idle processor.
const CROWDED: Duration = Duration::from_millis(20);

/// The polling state of a lane's thread.
#[derive(Debug)]
pub(super) struct BusyPoll {
    /// The longest polling time, as set.
    limit: Duration,
    /// The next polling time.
    window: Duration,
    /// The time of the next check whether a processor is idle.
    check_at: Duration,
    /// The result of the last check.
    idle: bool,
    processors: Processors,
    /// When the thread went to sleep, if it has not told yet that it woke up.
    asleep_since: Option<Duration>,
}

impl BusyPoll {
    /// Creates the state for a thread that polls for up to `limit`; zero turns polling off.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            window: Duration::ZERO,
            check_at: Duration::ZERO,
            idle: false,
            processors: Processors::of_this_thread(),
            asleep_since: None,
        }
    }

    /// Notes that the thread goes to sleep.
    pub(super) fn sleeps(&mut self, now: Duration) {
        self.asleep_since = Some(now);
    }

    /// Notes that it is awake.
    pub(super) fn wakes(&mut self, now: Duration) {
        if let Some(since) = self.asleep_since.take() {
            self.slept(now.saturating_sub(since));
        }
    }

    /// How long the thread should poll now, before it sleeps.
    pub(super) fn window(&mut self, now: Duration) -> Duration {
        if self.window.is_zero() {
            return Duration::ZERO;
        }
        if now >= self.check_at {
            self.idle = self.processors.one_is_idle();
            self.check_at = now + if self.idle { IDLE_CHECK } else { CROWDED };
        }
        if self.idle { self.window } else { Duration::ZERO }
    }

    /// Notes how long the thread slept, including the time it polled, until something came.
    pub(super) fn slept(&mut self, time: Duration) {
        self.window = if time > self.limit {
            Duration::ZERO
        } else {
            (self.window * 2).clamp(WINDOW_MIN.min(self.limit), self.limit)
        };
    }
}

/// The processors that the thread may run on.
#[derive(Debug)]
struct Processors {
    count: usize,
    /// `/proc/loadavg`, whose fourth field tells how many threads are running or runnable
    /// (`proc_loadavg(5)`). `None` if there is no such file, so that nothing is known.
    load: Option<File>,
}

impl Processors {
    fn of_this_thread() -> Self {
        Self {
            count: std::thread::available_parallelism().map_or(1, usize::from),
            load: File::open("/proc/loadavg").ok(),
        }
    }

    /// Whether no other thread waits for a processor while this thread polls.
    fn one_is_idle(&self) -> bool {
        let Some(load) = &self.load else { return false };
        let mut text = [0; 128];
        let Ok(length) = load.read_at(&mut text, 0) else { return false };
        let running = core::str::from_utf8(&text[..length]).ok().and_then(running_threads);
        self.count > 1 && running.is_some_and(|running| running <= self.count)
    }
}

/// The number of running and runnable threads in a text from `/proc/loadavg`: `0.20 0.18 0.12 1/80
/// 11206`.
fn running_threads(loadavg: &str) -> Option<usize> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(100);
    const SHORT: Duration = Duration::from_micros(30);

    fn with_idle_processors() -> BusyPoll {
        BusyPoll { idle: true, check_at: Duration::MAX, ..BusyPoll::new(LIMIT) }
    }

    #[test]
    fn short_sleeps_make_it_poll_longer_and_a_long_one_not_at_all() {
        let mut poll = with_idle_processors();
        let mut windows = Vec::new();
        for _ in 0..6 {
            windows.push(poll.window(Duration::ZERO).as_micros());
            poll.slept(SHORT);
        }
        assert_eq!(windows, [0, 10, 20, 40, 80, 100]);
        poll.slept(LIMIT + SHORT);
        assert_eq!(poll.window(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_limit_of_zero_means_never() {
        let mut poll = BusyPoll { limit: Duration::ZERO, ..with_idle_processors() };
        poll.slept(Duration::ZERO);
        assert_eq!(poll.window(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn it_does_not_poll_where_no_processor_is_idle() {
        let mut poll = with_idle_processors();
        poll.slept(SHORT);
        poll.check_at = Duration::ZERO;
        poll.processors.count = 1;
        assert_eq!(poll.window(Duration::ZERO), Duration::ZERO);
        // The next check is some time off, whatever has changed meanwhile.
        poll.processors.count = usize::MAX;
        assert_eq!(poll.window(CROWDED / 2), Duration::ZERO);
        assert_eq!(poll.window(CROWDED), WINDOW_MIN);
    }

    #[test]
    fn the_kernel_says_how_many_threads_run() {
        assert_eq!(running_threads("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running_threads("0.20 0.18"), None);
        let text = std::fs::read_to_string("/proc/loadavg").unwrap();
        assert!(running_threads(&text).unwrap() >= 1, "this thread runs: {text}");
    }
}
