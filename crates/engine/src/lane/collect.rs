//! Decides whether posted requests are sent at once, or together with the next ones.
//!
//! A system call for each small message costs several times as much as everything else. Hardware
//! fetches new requests while it sends earlier ones; here the thread that posts also sends. So the
//! first request of a run is sent at once, and the following ones wait until several can be sent in
//! one system call, or until the program polls. A request waits only behind one whose answer nobody
//! has received yet, so packets are always under way. A message that answers another one is the
//! first of its run, so it is never delayed.
//!
//! A program that posts and then does something else would leave the waiting requests unsent. So
//! requests wait only if the program polled promptly after its last runs, and the lane's thread
//! sends those that nobody has sent within [`COLLECT_MAX`]; or within
//! [`LOOK_MAX`](super::watch::LOOK_MAX), if the program has polled for a while before it stopped.

use std::time::Duration;

/// The time after which the lane's thread sends requests that wait, as soon as it looks. It is several times
/// as long as collecting a run takes.
pub(crate) const COLLECT_MAX: Duration = Duration::from_micros(50);
/// A post begins a new run if it comes later than this after the last one.
const GAP: Duration = Duration::from_micros(50);
/// A program that polls within this time after its last post is prompt.
const PROMPT: Duration = Duration::from_micros(100);
/// The length from which on a run shows what the program does afterwards. In shorter runs nothing
/// waits.
const RUN: u32 = 4;
/// The number of prompt runs that one late run cancels.
const LATE: u8 = 4;
type Trust = super::trust::Trust<LATE>;
/// The largest number of posts that wait; the last one sends all of them.
const POSTS: u32 = 32;
/// The largest number of payload bytes that wait. With more, the cost of the system call does not
/// matter.
const BYTES: usize = 16 << 10;

/// A lane's record of its program's posts.
#[derive(Debug, Default)]
pub(super) struct Collector {
    /// The time of the last post.
    last: Duration,
    /// The number of posts in the current run, which ends when the program polls.
    run: u32,
    /// Whether something was posted since the last poll or receive.
    follows: bool,
    /// The number of polls that had found completions at the last post.
    taken: u64,
    /// The number of posts that wait, their payload in bytes, and the time of the first.
    posts: u32,
    bytes: usize,
    since: Duration,
    trust: Trust,
}

impl Collector {
    /// Notes a post with `bytes` of payload. `taken` is the number of polls that found completions
    /// so far. Returns true if the post waits.
    #[inline]
    pub(super) fn keeps(&mut self, now: Duration, bytes: usize, taken: u64) -> bool {
        let pause = now.saturating_sub(self.last) > GAP;
        if self.run >= RUN && taken != self.taken {
            self.judge(true);
        }
        if pause {
            self.run = 0;
            self.follows = false;
        }
        self.last = now;
        self.taken = taken;
        self.run += 1;
        let keeps = self.trust.is_enough()
            && self.follows
            && self.posts + 1 < POSTS
            && self.bytes + bytes <= BYTES;
        self.follows = true;
        if keeps {
            if self.posts == 0 {
                self.since = now;
            }
            self.posts += 1;
            self.bytes += bytes;
        }
        keeps
    }

    /// Judges a run that is over: `prompt` tells whether the program polled promptly.
    #[inline]
    fn judge(&mut self, prompt: bool) {
        self.trust.judge(prompt);
        self.run = 0;
    }

    /// Whether posts wait.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.posts > 0
    }

    /// Whether the last post is the first one that waits.
    #[inline]
    pub(super) fn begins(&self) -> bool {
        self.posts == 1
    }

    /// Notes that the waiting posts are sent.
    #[inline]
    pub(super) fn leaves(&mut self) {
        (self.posts, self.bytes) = (0, 0);
    }

    /// Notes a poll. `taken` is the number of polls that found completions so far.
    #[inline]
    pub(super) fn polled(&mut self, now: Duration, taken: u64) {
        self.follows = false;
        if self.run >= RUN {
            self.judge(taken != self.taken || now.saturating_sub(self.last) <= PROMPT);
        }
        self.run = 0;
    }

    /// Notes that something was received, because the next post may answer it.
    #[inline]
    pub(super) fn received(&mut self) {
        self.follows = false;
    }

    /// Notes that the lane's thread is about to send the waiting posts. If they waited for the full
    /// time, the program did not poll promptly.
    pub(super) fn left(&mut self, now: Duration) {
        if self.waits() && now >= self.since + COLLECT_MAX {
            self.trust.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(1);

    /// A program that was prompt this many times, and its time.
    fn prompt(runs: u8) -> (Collector, Duration) {
        let (mut c, mut now) = (Collector::default(), Duration::from_secs(1));
        for _ in 0..runs {
            run(&mut c, &mut now, RUN);
            c.leaves();
            c.polled(now + SOON, 0);
        }
        (c, now)
    }

    /// How many of this many posts wait in the end.
    fn run(c: &mut Collector, now: &mut Duration, posts: u32) -> u32 {
        for _ in 0..posts {
            *now += SOON;
            if !c.keeps(*now, 64, c.taken) {
                c.leaves();
            }
        }
        c.posts
    }

    #[test]
    fn nothing_waits_before_the_program_has_been_prompt_for_some_runs() {
        let (mut c, mut now) = prompt(Trust::ENOUGH - 1);
        assert_eq!(run(&mut c, &mut now, 8), 0);
        c.polled(now, 0);
        assert_eq!(run(&mut c, &mut now, 8), 7, "the first has left");
        assert!(c.waits());
    }

    #[test]
    fn a_poll_that_finds_completions_is_as_good_as_one_that_drives_the_lane() {
        let (mut c, mut now) = (Collector::default(), Duration::from_secs(1));
        for polls in 1..=u64::from(Trust::ENOUGH) {
            assert_eq!(run(&mut c, &mut now, RUN), 0);
            c.keeps(now, 64, polls);
            c.leaves();
        }
        c.received();
        assert_eq!(run(&mut c, &mut now, 8), 7);
    }

    #[test]
    fn single_posts_between_polls_say_nothing() {
        let (mut c, mut now) = prompt(0);
        for _ in 0..100 {
            run(&mut c, &mut now, RUN - 1);
            c.polled(now, 0);
        }
        assert_eq!(run(&mut c, &mut now, 8), 0);
    }

    #[test]
    fn what_may_be_an_answer_leaves_at_once() {
        let (mut c, mut now) = prompt(Trust::MOST);
        assert_eq!(run(&mut c, &mut now, 1), 0, "behind a poll");
        c.received();
        assert_eq!(run(&mut c, &mut now, 1), 0, "behind a packet");
        now += GAP * 2;
        assert_eq!(run(&mut c, &mut now, 1), 0, "behind a pause");
        assert_eq!(run(&mut c, &mut now, 1), 1);
        c.received();
        assert_eq!(run(&mut c, &mut now, 1), 0, "and takes along what waits");
    }

    #[test]
    fn so_many_leave_together_and_large_ones_at_once() {
        let (mut c, mut now) = prompt(Trust::MOST);
        assert_eq!(run(&mut c, &mut now, POSTS), POSTS - 1);
        assert_eq!(run(&mut c, &mut now, 1), 0, "the last takes all along");
        assert!(!c.keeps(now, BYTES + 1, 0));
        c.leaves();
        assert!(c.keeps(now, BYTES, 0));
        assert!(!c.keeps(now, 1, 0));
    }

    #[test]
    fn a_program_that_does_something_else_after_its_posts_loses_trust_soon() {
        let late: [fn(&mut Collector, Duration); 2] =
            [|c, now| c.polled(now + PROMPT * 2, 0), |c, now| c.left(now + COLLECT_MAX)];
        for late in late {
            let (mut c, mut now) = prompt(Trust::MOST);
            let mut waited = 0;
            while run(&mut c, &mut now, RUN) > 0 {
                late(&mut c, now);
                c.leaves();
                c.polled(now + PROMPT * 2, 0);
                waited += 1;
            }
            assert!(waited <= 3, "{waited} runs");
        }
    }

    #[test]
    fn what_the_lane_s_thread_sends_in_good_time_costs_no_trust() {
        let (mut c, mut now) = prompt(Trust::ENOUGH);
        assert_eq!(run(&mut c, &mut now, 3), 2);
        c.left(now);
        c.leaves();
        assert_eq!(run(&mut c, &mut now, 1), 1);
    }
}
