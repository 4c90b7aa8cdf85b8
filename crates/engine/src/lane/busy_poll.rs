//! How long the lane's thread polls the socket before it sleeps.
//!
//! A program that waits for the peer's WRITE in its memory, and polls no completion queue, waits for the
//! lane's thread with every message. To be woken takes the thread several times as long as to take
//! the packet in. So where packets follow each other closely, the thread polls for a while before it
//! sleeps, as the kernel's KVM does with halted processors: the time grows while sleeps turn out to be
//! short and falls to nothing when one was long. It polls only while a processor would be idle
//! otherwise, because a poller that takes the processor from the program gains nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The first time that the thread polls for, after one short sleep.
const WINDOW_MIN: Duration = Duration::from_micros(10);
/// How often a polling thread looks whether a processor is idle.
const IDLE_CHECK: Duration = Duration::from_millis(1);
/// How long it does not poll after no processor was.
const CROWDED: Duration = Duration::from_millis(20);

/// When, and for how long, the lane's thread polls.
#[derive(Debug)]
pub(super) struct BusyPoll {
    /// The longest time, as set.
    limit: Duration,
    /// The time for which it polls next.
    window: Duration,
    /// When to look again whether a processor is idle.
    check_at: Duration,
    /// What the last look found.
    idle: bool,
    processors: Processors,
}

impl BusyPoll {
    /// Polls for up to `limit`; zero: never.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            window: Duration::ZERO,
            check_at: Duration::ZERO,
            idle: false,
            processors: Processors::of_this_thread(),
        }
    }

    /// For how long the thread polls now, before it sleeps.
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

    /// The thread slept for so long, what it polled before included, until there was something.
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
    /// `/proc/loadavg`, whose fourth field says how many threads run or could (`proc_loadavg(5)`).
    /// `None`: there is no such file, and nothing is known.
    load: Option<File>,
}

impl Processors {
    fn of_this_thread() -> Self {
        Self {
            count: std::thread::available_parallelism().map_or(1, usize::from),
            load: File::open("/proc/loadavg").ok(),
        }
    }

    /// Whether no other thread waits for a processor while this one polls.
    fn one_is_idle(&self) -> bool {
        let Some(load) = &self.load else { return false };
        let mut text = [0; 128];
        let Ok(length) = load.read_at(&mut text, 0) else { return false };
        let running = core::str::from_utf8(&text[..length]).ok().and_then(running_threads);
        self.count > 1 && running.is_some_and(|running| running <= self.count)
    }
}

/// How many threads run or could, of what `/proc/loadavg` says: `0.20 0.18 0.12 1/80 11206`.
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
        // The next look is some time off, whatever changed meanwhile.
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
