//! Decides whether acknowledgements may wait for the application.
//!
//! An acknowledgement that is sent before a completion is delivered delays the answer that a
//! ping-pong program is about to post. Sent after the answer, it costs no time. But if a program
//! does something else instead, its peer would wait for the acknowledgement. So acknowledgements
//! wait only for applications that came back promptly the last times.

use std::time::Duration;

/// The time within which a return counts as prompt.
const PROMPT: Duration = Duration::from_micros(30);
/// The number of prompt returns or answers in a row after which acknowledgements wait.
const TRUST: u8 = 8;

#[derive(Debug, Default)]
pub(super) struct Promptness {
    /// The time at which completions were last delivered; `None` after a thread came back.
    given: Option<Duration>,
    in_a_row: u8,
}

impl Promptness {
    /// Notes that completions are delivered.
    #[inline]
    pub(super) fn given(&mut self, now: Duration) {
        self.given = Some(now);
    }

    /// Notes that a thread is in the lane again.
    #[inline]
    pub(super) fn back(&mut self, now: Duration) {
        if let Some(given) = self.given.take() {
            let prompt = now.saturating_sub(given) <= PROMPT;
            self.in_a_row = if prompt { (self.in_a_row + 1).min(TRUST) } else { 0 };
        }
    }

    /// Whether acknowledgements may wait for the application.
    #[inline]
    pub(super) fn trusted(&self) -> bool {
        self.in_a_row >= TRUST
    }
}

/// The largest batch of packets that an answer may follow. The batches of a stream are larger.
const FEW: usize = 4;

/// Decides whether an acknowledgement of the lane's thread may wait for the application's answer.
///
/// A program may wait for the peer's WRITE in its memory, post its answer, and poll a completion
/// queue only until its own WRITE is complete. If the acknowledgement is sent before the answer, it
/// ends that poll at the peer, so nobody polls when the answer arrives, there as here. If it is
/// sent after the answer, the peer still polls, and no thread needs to be woken. So if the last
/// answers followed at once, the lane's thread lets the acknowledgement wait for a moment. It does
/// not if a thread sleeps until an event of a completion queue: perftest mistakes the event of a
/// message for that of its own send if it comes first.
/// send if it comes first.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// The time at which the lane's thread received something; `None` after something was posted.
    taken: Option<Duration>,
    in_a_row: u8,
    /// The latest time for the acknowledgements that wait for an answer.
    ack_by: Option<Duration>,
}

impl Answering {
    /// Notes that the lane's thread has received this many `packets` and owes acknowledgements.
    /// Returns whether these may wait.
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

    /// The latest time for the acknowledgements that wait for an answer; `None` if none wait.
    pub(super) fn ack_by(&self) -> Option<Duration> {
        self.ack_by
    }

    /// Notes that all acknowledgements were sent.
    #[inline]
    pub(super) fn acknowledged(&mut self) {
        self.ack_by = None;
    }

    /// Notes that a request to send is posted.
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

    /// An application that has answered this many times.
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
