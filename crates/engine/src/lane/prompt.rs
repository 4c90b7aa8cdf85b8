//! Whether the application answers at once what it is given.
//!
//! An acknowledgement sent before a completion is handed out delays the answer that a ping-pong
//! program is about to post; sent after it, it costs no time. But a program that turns to something
//! else instead would keep the peer waiting for it. So acknowledgements wait only for applications
//! that came back promptly the last times.

use std::time::Duration;

/// Coming back within this time is prompt.
const PROMPT: Duration = Duration::from_micros(30);
/// So many prompt returns, or answers, in a row earn trust.
const TRUST: u8 = 8;

#[derive(Debug, Default)]
pub(super) struct Promptness {
    /// When completions were last handed out, if nobody came back since.
    given: Option<Duration>,
    in_a_row: u8,
}

impl Promptness {
    /// Completions are being handed out.
    #[inline]
    pub(super) fn given(&mut self, now: Duration) {
        self.given = Some(now);
    }

    /// Somebody is in the lane again.
    #[inline]
    pub(super) fn back(&mut self, now: Duration) {
        if let Some(given) = self.given.take() {
            let prompt = now.saturating_sub(given) <= PROMPT;
            self.in_a_row = if prompt { (self.in_a_row + 1).min(TRUST) } else { 0 };
        }
    }

    /// Acknowledgements may wait for the application.
    #[inline]
    pub(super) fn trusted(&self) -> bool {
        self.in_a_row >= TRUST
    }
}

/// Packets taken in at once that an answer may follow; a stream comes in larger batches.
const FEW: usize = 4;

/// Whether the application answers at once what the lane's thread takes in.
///
/// A program may wait for the peer's WRITE in its memory, post its answer, and poll a completion queue
/// only until its own WRITE is complete. An acknowledgement that goes ahead of the answer ends that poll at
/// the peer, so the answer finds nobody who polls, there as here. Behind the answer, it finds the peer still
/// polling, and no thread needs to be woken. So where an answer has followed at once the last times,
/// the lane's thread leaves the acknowledgement to the application for a moment. Not where a thread
/// sleeps until an event of a completion queue: perftest takes the event of a message for that of its own
/// send if it comes first.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// When the lane's thread took something in, if nothing was posted since.
    taken: Option<Duration>,
    in_a_row: u8,
    /// When the acknowledgements leave at the latest that wait for an answer.
    ack_by: Option<Duration>,
}

impl Answering {
    /// The lane's thread has taken in so many `packets`, and owes acknowledgements. True: they may wait.
    pub(super) fn may_wait(&mut self, now: Duration, packets: usize) -> bool {
        if packets > FEW {
            return false;
        }
        if packets > 0 {
            self.taken.get_or_insert(now);
        }
        let by = self.taken.map(|taken| taken + PROMPT).filter(|_| self.in_a_row >= TRUST);
        match by {
            Some(by) if now < by => {
                self.ack_by = Some(by);
                true
            }
            Some(_) => {
                // No answer came.
                (self.taken, self.in_a_row) = (None, 0);
                false
            }
            None => false,
        }
    }

    /// When the acknowledgements leave at the latest that wait for an answer; `None`: none do.
    pub(super) fn ack_by(&self) -> Option<Duration> {
        self.ack_by
    }

    /// All acknowledgements have left.
    #[inline]
    pub(super) fn acknowledged(&mut self) {
        self.ack_by = None;
    }

    /// Something is posted to be sent.
    #[inline]
    pub(super) fn posted(&mut self, now: Duration) {
        if let Some(taken) = self.taken.take() {
            let prompt = now.saturating_sub(taken) <= PROMPT;
            self.in_a_row = if prompt { (self.in_a_row + 1).min(TRUST) } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An application that has answered so often.
    fn answering(times: u8) -> (Answering, Duration) {
        let (mut a, mut now) = (Answering::default(), Duration::from_secs(1));
        for _ in 0..times {
            assert!(!a.may_wait(now, 1));
            now += PROMPT;
            a.posted(now);
        }
        (a, now)
    }

    #[test]
    fn an_acknowledgement_waits_for_an_answer_that_has_come_the_last_times() {
        let (mut a, mut now) = answering(TRUST);
        assert!(a.may_wait(now, 1));
        assert_eq!(a.ack_by(), Some(now + PROMPT));
        now += PROMPT / 2;
        assert!(a.may_wait(now, 1), "another packet");
        assert_eq!(a.ack_by(), Some(now + PROMPT / 2), "the first one's time counts");
        a.posted(now);
        a.acknowledged();
        assert_eq!(a.ack_by(), None);
        now += Duration::from_secs(1);
        assert!(a.may_wait(now, FEW));
    }

    #[test]
    fn an_acknowledgement_does_not_wait_for_an_answer_that_seldom_comes() {
        let (mut a, now) = answering(TRUST - 1);
        assert!(!a.may_wait(now, 1));
        a.posted(now + PROMPT * 2);
        assert!(!a.may_wait(now, 1), "late: the count begins anew");

        let (mut a, now) = answering(TRUST);
        assert!(!a.may_wait(now, FEW + 1), "a stream");
        assert!(a.may_wait(now, 1));
        assert!(!a.may_wait(now + PROMPT, 0), "no answer came");
        a.acknowledged();
        assert!(!a.may_wait(now + PROMPT * 2, 1), "and none is waited for");
    }

    #[test]
    fn trust_is_earned_slowly_and_lost_at_once() {
        let mut p = Promptness::default();
        let mut now = Duration::from_secs(1);
        for _ in 0..TRUST {
            assert!(!p.trusted());
            p.given(now);
            now += PROMPT;
            p.back(now);
        }
        assert!(p.trusted());
        now += Duration::from_secs(1);
        p.back(now);
        assert!(p.trusted(), "nothing was given: nothing to be prompt about");
        p.given(now);
        p.back(now + PROMPT * 2);
        assert!(!p.trusted());
    }
}
