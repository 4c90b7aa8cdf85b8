//! A send queue that its application stops (SQD, IBTA 10.3.1.5).

use polypath_transport::QpState;

use super::Direction;
use crate::judge::{Verdict, demand};

/// The promise about SQ_DRAINED, if the application asked for it.
const TOLD: &str = "a send queue is reported as drained once, when it is drained";

/// The application's progress in stopping the send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drain {
    /// The send queue sends.
    #[default]
    No,
    /// The application has stopped the send queue. Work requests that have begun continue to their end.
    Asked {
        /// Whether the application wants to be told when the send queue is drained.
        notify: bool,
        /// The index of the first work request that was not posted at that time, so that it can't have
        /// begun.
        before: usize,
    },
    /// The application was told: no work request is being executed.
    Told,
}

impl Direction {
    /// Notes that the application has stopped the send queue. With `notify`, it wants to be told when
    /// it is drained.
    pub(crate) fn drains(&mut self, notify: bool) {
        self.drain = Drain::Asked { notify, before: self.posted.len() };
    }

    /// Notes that the event SQ_DRAINED was raised.
    pub(crate) fn drained(&mut self) -> Verdict {
        let asked = matches!(self.drain, Drain::Asked { notify: true, .. });
        self.drain = Drain::Told;
        demand(asked && !self.is_in_between(), TOLD, || self.standing())
    }

    /// Checks that the application was not told earlier that the send queue is drained. To be called if
    /// the queue pair says that it is not drained yet.
    pub(crate) fn still_draining(&self) -> Verdict {
        demand(self.drain != Drain::Told, TOLD, || "it is not drained when asked".to_owned())
    }

    /// Notes that the send queue was drained and sends again.
    pub(crate) fn goes_on(&mut self) -> Verdict {
        let before = core::mem::take(&mut self.drain);
        let told = !matches!(before, Drain::Asked { notify: true, .. });
        demand(told && !self.is_in_between(), TOLD, || self.standing())
    }

    /// Notes that a part of work request `i` is done: checks that it may have begun.
    pub(super) fn works_on(&self, i: usize) -> Verdict {
        let right = match self.drain {
            Drain::No => true,
            Drain::Asked { before, .. } => i < before,
            Drain::Told => false,
        };
        demand(right, "a drained send queue begins nothing", || self.describe(i))
    }

    /// Whether the application has asked for this state, or an error of UC or UD explains it.
    pub(crate) fn may_be(&self, state: QpState) -> bool {
        match state {
            QpState::Rts => self.drain == Drain::No,
            QpState::Sqd => self.drain != Drain::No,
            // A UC or UD send failed.
            QpState::Sqe => !self.reliable,
            _ => false,
        }
    }
}
