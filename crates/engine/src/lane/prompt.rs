//! Decides whether acknowledgements may wait for the application.
//!
//! An acknowledgement that is sent before a completion is delivered delays the answer that a
//! ping-pong program is about to post. Sent after the answer, it costs no time. But if a program
//! does something else instead, its peer would wait for the acknowledgement. So acknowledgements
//! wait only for applications that came back promptly the last times.

use std::time::Duration;

/// The time within which a return counts as prompt. The program may have to get its processor back first,
/// from a lane's thread that its own packets have woken.
const PROMPT: Duration = Duration::from_micros(60);
/// The time within which an answer to what brought no completion counts as prompt. Before the program sees in
/// its memory what the lane's thread received, that thread sends what is owed and falls asleep.
const ANSWER: Duration = Duration::from_micros(100);

/// The number of prompt returns or answers that a late one cancels. A program that shares its processor is
/// late now and then. If that ended the waiting, the next acknowledgement would go before its answer, and by
/// that make the peer's program late, too.
const LATE: u8 = 8;
type Trust = super::trust::Trust<LATE>;

/// A program that polls, and how promptly it came back after it had got completions.
#[derive(Debug, Default)]
pub(super) struct Promptness {
    /// When completions were last delivered, and whether acknowledgements were owed for what came with them;
    /// `None` after a thread came back.
    given: Option<(Duration, bool)>,
    /// Whether it comes back after completions of any kind.
    returns: Trust,
    /// Whether it comes back after messages. A program that got nothing to answer may wait for its peer
    /// without calling anything, which says nothing of its answers.
    answers: Trust,
}

impl Promptness {
    /// Notes that completions are delivered, and whether acknowledgements are `owed`. Returns whether all
    /// that is left of the round may wait for the application.
    #[inline]
    pub(super) fn given(&mut self, now: Duration, owed: bool) -> bool {
        self.given = Some((now, owed));
        if owed { self.trusted() } else { self.returns.is_enough() }
    }

    /// Notes that a thread is in the lane again.
    #[inline]
    pub(super) fn back(&mut self, now: Duration) {
        if let Some((given, owed)) = self.given.take() {
            let prompt = now.saturating_sub(given) <= PROMPT;
            self.returns.judge(prompt);
            if owed {
                self.answers.judge(prompt);
            }
        }
    }

    /// Whether acknowledgements may wait for the application.
    #[inline]
    pub(super) fn trusted(&self) -> bool {
        self.answers.is_enough()
    }
}

/// The largest batch of packets that an answer may follow. The batches of a stream are larger.
const FEW: usize = 4;

/// Decides whether an acknowledgement of what brought no completion may wait for the application's answer.
///
/// A program may wait for the peer's WRITE in its memory, post its answer, and poll a completion
/// queue only until its own WRITE is complete. If the acknowledgement is sent before the answer, it
/// ends that poll at the peer, so nobody polls when the answer arrives, there as here. If it is
/// sent after the answer, the peer still polls, and no thread needs to be woken. So if the last
/// answers followed at once, the lane's thread lets the acknowledgement wait for a moment, and so does a
/// thread that polls for its own WRITE and gets the peer's first. It does not wait if a thread sleeps until
/// an event of a completion queue: perftest mistakes the event of a message for that of its own send if it
/// comes first.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// The time at which something was received so; `None` after something was posted.
    taken: Option<Duration>,
    trust: Trust,
    /// The latest time for the acknowledgements that wait for an answer.
    ack_by: Option<Duration>,
}

impl Answering {
    /// Notes that this many `packets` were received so, and acknowledgements are owed. Returns whether these
    /// may wait.
    pub(super) fn may_wait(&mut self, now: Duration, packets: usize) -> bool {
        if packets > FEW {
            return false;
        }
        if packets > 0 {
            self.taken.get_or_insert(now);
        }
        let by = self.taken.map(|taken| taken + ANSWER).filter(|_| self.trust.is_enough());
        match by {
            Some(by) if now < by => {
                self.ack_by = Some(by);
                true
            }
            Some(_) => {
                // No answer came.
                self.taken = None;
                self.trust.judge(false);
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
            self.trust.judge(now.saturating_sub(taken) <= ANSWER);
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
            now += ANSWER;
            a.posted(now);
        }
        (a, now)
    }

    #[test]
    fn an_acknowledgement_waits_for_an_answer_that_has_come_the_last_times() {
        let (mut a, mut now) = answering(Trust::ENOUGH);
        assert!(a.may_wait(now, 1));
        assert_eq!(a.ack_by(), Some(now + ANSWER));
        now += ANSWER / 2;
        assert!(a.may_wait(now, 1), "another packet");
        assert_eq!(a.ack_by(), Some(now + ANSWER / 2), "the first one's time counts");
        a.posted(now);
        a.acknowledged();
        assert_eq!(a.ack_by(), None);
        now += Duration::from_secs(1);
        assert!(a.may_wait(now, FEW));
    }

    #[test]
    fn an_acknowledgement_does_not_wait_for_an_answer_that_seldom_comes() {
        let (mut a, now) = answering(Trust::ENOUGH - 1);
        assert!(!a.may_wait(now, 1));
        a.posted(now + ANSWER * 2);
        assert!(!a.may_wait(now, 1), "late: the count begins anew");

        let (mut a, now) = answering(Trust::ENOUGH);
        assert!(!a.may_wait(now, FEW + 1), "a stream");
        assert!(a.may_wait(now, 1));
        assert!(!a.may_wait(now + ANSWER, 0), "no answer came");
        a.acknowledged();
        assert!(!a.may_wait(now + ANSWER * 2, 1), "and none is waited for");
    }

    #[test]
    fn trust_is_earned_slowly_and_lost_soon() {
        let mut p = Promptness::default();
        let mut now = Duration::from_secs(1);
        for _ in 0..Trust::ENOUGH {
            assert!(!p.trusted());
            p.given(now, true);
            now += PROMPT;
            p.back(now);
        }
        assert!(p.trusted());
        now += Duration::from_secs(1);
        p.back(now);
        assert!(p.trusted(), "nothing was given: nothing to be prompt about");
        p.given(now, true);
        p.back(now + PROMPT * 2);
        assert!(!p.trusted());
    }

    #[test]
    fn one_late_return_among_many_prompt_ones_changes_nothing() {
        let (mut p, now) = (Promptness::default(), Duration::from_secs(1));
        let mut back = |after| {
            p.given(now, true);
            p.back(now + after);
            p.trusted()
        };
        (0..Trust::MOST).for_each(|_| _ = back(PROMPT));
        assert!(back(PROMPT * 2), "late once");
        assert!((0..LATE).all(|_| back(PROMPT)) && back(PROMPT * 2), "and much later once more");
        assert!(!back(PROMPT * 2), "late twice in a row");
    }

    #[test]
    fn what_a_program_does_that_got_nothing_to_answer_says_nothing_of_its_answers() {
        let (mut p, now) = (Promptness::default(), Duration::from_secs(1));
        for _ in 0..Trust::MOST {
            p.given(now, true);
            p.back(now);
        }
        for _ in 0..Trust::MOST {
            p.given(now, false);
            p.back(now + PROMPT * 2);
        }
        assert!(p.trusted() && p.given(now, true) && !p.given(now, false));
    }
}
