//! Whether the alternate path of a queue pair works, both ways, while nothing else goes by it.
//!
//! An end in REARM asks its peer by the alternate path, and is ARMED by the answer. An end that is ARMED
//! goes on asking, now and then: so a path that falls silent while it is in reserve is noticed before it is
//! needed, and what lies between (a neighbour entry of the kernel, a flow of a firewall) does not expire.

use core::time::Duration;

/// The time from one answered question to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after which an unanswered question is repeated.
const AGAIN: Duration = Duration::from_millis(100);
/// How many questions in a row must be without an answer, while the primary path brings something, before
/// the alternate path counts as lost. A path that loses one packet of ten is not lost.
const MISSED_MAX: u32 = 5;

/// After so many questions in a row without an answer by either path they are rarer: nobody is there.
const AGAIN_MAX: u32 = 20;

/// What an end that is ARMED does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// It asks by the alternate path, and, if so, by the primary one as well.
    Ask { both: bool },
    /// The alternate path is lost.
    Lost,
}

/// The watch over the alternate path of an end that is ARMED.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    /// When to look next; `None` if nothing is watched.
    at: Option<Duration>,
    /// How many questions have not been answered yet.
    open: u32,
    /// Something came by the primary path since then.
    heard: bool,
    missed: u32,
}

impl Watch {
    /// Begins: the path was shown to work now.
    pub(crate) fn begin(&mut self, now: Duration) {
        *self = Self { at: Some(now + PAUSE), ..Self::default() };
    }

    /// Ends.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// When to look next.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.at
    }

    /// Something came by the primary path.
    #[inline]
    pub(crate) fn heard_by_primary(&mut self) {
        self.heard = true;
    }

    /// The question was answered.
    pub(crate) fn answered(&mut self) {
        (self.open, self.missed) = (0, 0);
    }

    /// Says what to do if it is time to. A peer that says nothing by the primary path either may not run at
    /// the moment, so its silence says nothing of the alternate one; it is asked by both.
    pub(crate) fn look(&mut self, now: Duration) -> Option<Look> {
        if self.at.is_none_or(|at| now < at) {
            return None;
        }
        let both = self.open > 0;
        self.missed += u32::from(both && self.heard);
        if self.missed >= MISSED_MAX {
            self.end();
            return Some(Look::Lost);
        }
        self.open = self.open.saturating_add(1);
        self.heard = false;
        self.at = Some(now + if both && self.open < AGAIN_MAX { AGAIN } else { PAUSE });
        Some(Look::Ask { both })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks whenever it is time to, for so long. `primary` and `alternate` say which path answers.
    fn watch(seconds: u64, primary: bool, alternate: bool) -> (u32, Option<Duration>) {
        let (mut w, mut asked) = (Watch::default(), 0);
        w.begin(Duration::ZERO);
        while let Some(at) = w.deadline().filter(|at| at.as_secs() < seconds) {
            assert_eq!(w.look(at - Duration::from_nanos(1)), None);
            match w.look(at) {
                Some(Look::Ask { both }) => {
                    asked += 1;
                    if primary && both {
                        w.heard_by_primary();
                    }
                    if alternate {
                        w.answered();
                    }
                }
                Some(Look::Lost) => return (asked, Some(at)),
                None => panic!("it is time"),
            }
        }
        (asked, None)
    }

    #[test]
    fn a_path_that_answers_is_asked_once_a_second() {
        assert_eq!(watch(100, true, true), (99, None));
    }

    #[test]
    fn a_path_that_does_not_answer_is_lost_in_time() {
        let (_, lost) = watch(100, true, false);
        assert!(lost.is_some_and(|at| at < Duration::from_secs(4)), "{lost:?}");
    }

    #[test]
    fn a_peer_that_does_not_run_loses_no_path() {
        assert_eq!(watch(100, false, false).1, None);
    }

    #[test]
    fn one_answer_in_five_is_enough() {
        let mut w = Watch::default();
        w.begin(Duration::ZERO);
        for n in 0..1000 {
            let at = w.deadline().unwrap();
            assert!(matches!(w.look(at), Some(Look::Ask { .. })), "{n}");
            w.heard_by_primary();
            if n % 5 == 4 {
                w.answered();
            }
        }
    }
}
