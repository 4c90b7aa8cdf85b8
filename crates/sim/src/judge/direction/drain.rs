//! A send queue that its application stops (SQD, IBTA 10.3.1.5).

use polypath_transport::QpState;

use super::Direction;
use crate::judge::{Verdict, demand};

/// What SQ_DRAINED says, if it was asked for.
const TOLD: &str = "a send queue is said to be drained once, when it is";

/// How far the application has got with stopping the send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drain {
    /// It sends.
    #[default]
    No,
    /// What has begun goes on to its end.
    Asked {
        /// It will be told.
        notify: bool,
        /// This work request was not posted yet, so that it can't have begun.
        before: usize,
    },
    /// It was told: nothing is under way.
    Told,
}

impl Direction {
    /// The application has stopped the send queue; `notify`: it wants to be told when that is drained.
    pub(crate) fn drains(&mut self, notify: bool) {
        self.drain = Drain::Asked { notify, before: self.posted.len() };
    }

    /// SQ_DRAINED.
    pub(crate) fn drained(&mut self) -> Verdict {
        let asked = matches!(self.drain, Drain::Asked { notify: true, .. });
        self.drain = Drain::Told;
        demand(asked && !self.is_in_between(), TOLD, || self.standing())
    }

    /// The queue pair says that the send queue is not drained yet.
    pub(crate) fn still_draining(&self) -> Verdict {
        demand(self.drain != Drain::Told, TOLD, || "it is not, when asked".to_owned())
    }

    /// The send queue was drained, and sends again.
    pub(crate) fn goes_on(&mut self) -> Verdict {
        let before = core::mem::take(&mut self.drain);
        let told = !matches!(before, Drain::Asked { notify: true, .. });
        demand(told && !self.is_in_between(), TOLD, || self.standing())
    }

    /// Something of work request `i` is done: it may have begun.
    pub(super) fn works_on(&self, i: usize) -> Verdict {
        let right = match self.drain {
            Drain::No => true,
            Drain::Asked { before, .. } => i < before,
            Drain::Told => false,
        };
        demand(right, "a drained send queue begins nothing", || self.describe(i))
    }

    /// Whether a state is one that the application has asked for.
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
