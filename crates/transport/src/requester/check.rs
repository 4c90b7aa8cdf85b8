//! What must hold between any two calls.

use super::Requester;
use crate::common::Core;
use polypath_types::{PathId, QpState};

impl Requester {
    /// # Errors
    /// Send queue and flight don't agree.
    pub(crate) fn check(&self, core: &Core) -> Result<(), String> {
        self.flight.check()?;
        if self.sq.sent_len() > self.sq.iter().count() {
            return Err(format!("{} work requests are sent, of fewer", self.sq.sent_len()));
        }
        let sent = self.sq.iter().take(self.sq.sent_len());
        if sent.filter(|wqe| wqe.is_answered()).count() != self.sq.answered_len() {
            return Err(format!(
                "{} wait for an answer, not so many were sent",
                self.sq.answered_len()
            ));
        }
        if !matches!(core.attr.state, QpState::Rts | QpState::Sqd) {
            return Ok(());
        }
        // Work requests that were begun have consecutive sequence numbers, without gaps, up to the
        // next one.
        let begun = self.sq.sent_len() + usize::from(self.progress.is_some());
        let mut end = None;
        for wqe in self.sq.iter().take(begun).filter(|wqe| wqe.packets > 0) {
            if end.is_some_and(|end| end != wqe.first) {
                return Err(format!("a work request begins at {}, after {end:?}", wqe.first));
            }
            end = Some(wqe.end());
        }
        if let (Some(sent), Some(wqe)) = (self.progress, self.sq.next()) {
            end = Some(wqe.first + u64::from(sent));
        }
        let next = self.flight.next();
        if end.is_some_and(|end| end != next) {
            return Err(format!("work requests were sent up to {end:?}, packets up to {next}"));
        }
        Ok(())
    }

    /// See [`crate::QueuePair::charges`].
    pub(crate) fn charges(&self) -> impl Iterator<Item = (PathId, u32)> + '_ {
        self.flight.charges()
    }
}
