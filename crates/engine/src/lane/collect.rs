//! Whether what is posted leaves at once, or with what is posted next.
//!
//! A system call for each small message costs several times as much as all the rest of it. Hardware
//! fetches what is posted while it sends what was posted before; here the thread that posts also sends.
//! So in a run of posts the first leaves at once, and the following wait until several can leave by
//! one system call, or until the program polls. What waits has a post before it whose answer nobody has
//! taken in yet, so the pipe is not empty; and a message that answers another is the first of its run.
//!
//! A program that posts and then does something else would leave its peer without what waits. So only
//! the posts of programs wait that polled promptly after the last runs, and the lane's thread sends
//! what nobody has sent within [`COLLECT_MAX`].

use std::time::Duration;

/// What waits is sent by the lane's thread after this time. Several times what a run takes to collect.
pub(crate) const COLLECT_MAX: Duration = Duration::from_micros(50);
/// A post that comes later than this after the last one begins a run.
const GAP: Duration = Duration::from_micros(50);
/// A program that polls within this time after its last post is prompt.
const PROMPT: Duration = Duration::from_micros(100);
/// Runs of so many posts tell what the program does afterwards; in shorter ones nothing waits.
const RUN: u32 = 4;
/// So many prompt runs in a row earn trust.
const TRUST: u8 = 8;
/// So many are forgotten for one late run.
const LATE: u8 = 4;
/// More than that is not remembered.
const TRUST_MAX: u8 = 16;
/// Posts that wait at most, the last of which takes all of them along.
const POSTS: u32 = 32;
/// Bytes of payload that wait at most. With more the system call does not matter.
const BYTES: usize = 16 << 10;

/// What a lane remembers of its program's posts.
#[derive(Debug, Default)]
pub(super) struct Collector {
    /// When the last post came.
    last: Duration,
    /// Posts of the current run, which ends when the program polls.
    run: u32,
    /// Something was posted since somebody polled or something was received.
    follows: bool,
    /// Polls that found completions, when the last post came.
    taken: u64,
    /// Posts that wait, their payload in bytes, and when the first of them came.
    posts: u32,
    bytes: usize,
    since: Duration,
    trust: u8,
}

impl Collector {
    /// Something with `bytes` of payload was posted, and completions were `taken` so often before; true: it
    /// waits.
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
        let keeps = self.trust >= TRUST
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

    /// A run is over: did the program poll promptly?
    #[inline]
    fn judge(&mut self, prompt: bool) {
        self.trust =
            if prompt { (self.trust + 1).min(TRUST_MAX) } else { self.trust.saturating_sub(LATE) };
        self.run = 0;
    }

    /// Whether something waits.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.posts > 0
    }

    /// Whether the last post is the first that waits.
    #[inline]
    pub(super) fn begins(&self) -> bool {
        self.posts == 1
    }

    /// What waited leaves now.
    #[inline]
    pub(super) fn leaves(&mut self) {
        (self.posts, self.bytes) = (0, 0);
    }

    /// A thread polls, and completions were `taken` so often before.
    #[inline]
    pub(super) fn polled(&mut self, now: Duration, taken: u64) {
        self.follows = false;
        if self.run >= RUN {
            self.judge(taken != self.taken || now.saturating_sub(self.last) <= PROMPT);
        }
        self.run = 0;
    }

    /// Something was received: what is posted next may answer it.
    #[inline]
    pub(super) fn received(&mut self) {
        self.follows = false;
    }

    /// The lane's thread is about to send what waits, which the program has left if it has waited too
    /// long.
    pub(super) fn left(&mut self, now: Duration) {
        if self.waits() && now >= self.since + COLLECT_MAX {
            self.trust = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(1);

    /// A program that has been prompt so often, and its time.
    fn prompt(runs: u8) -> (Collector, Duration) {
        let (mut c, mut now) = (Collector::default(), Duration::from_secs(1));
        for _ in 0..runs {
            run(&mut c, &mut now, RUN);
            c.leaves();
            c.polled(now + SOON, 0);
        }
        (c, now)
    }

    /// How many of so many posts wait in the end.
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
        let (mut c, mut now) = prompt(TRUST - 1);
        assert_eq!(run(&mut c, &mut now, 8), 0);
        c.polled(now, 0);
        assert_eq!(run(&mut c, &mut now, 8), 7, "the first has left");
        assert!(c.waits());
    }

    #[test]
    fn a_poll_that_finds_completions_is_as_good_as_one_that_drives_the_lane() {
        let (mut c, mut now) = (Collector::default(), Duration::from_secs(1));
        for polls in 1..=u64::from(TRUST) {
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
        let (mut c, mut now) = prompt(TRUST_MAX);
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
        let (mut c, mut now) = prompt(TRUST_MAX);
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
            let (mut c, mut now) = prompt(TRUST_MAX);
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
        let (mut c, mut now) = prompt(TRUST);
        assert_eq!(run(&mut c, &mut now, 3), 2);
        c.left(now);
        c.leaves();
        assert_eq!(run(&mut c, &mut now, 1), 1);
    }
}
