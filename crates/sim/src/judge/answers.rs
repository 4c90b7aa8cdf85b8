//! What a responder sends back: only answers to what the peer has asked for.

use polypath_wire::Psn;

use super::direction::Direction;
use super::{Verdict, demand};

impl Direction {
    /// The responder sends part of an answer with data.
    pub(crate) fn answered(&self, psn: Psn) -> Verdict {
        let asked = self.request_of(psn).is_some_and(|i| self.ops[i].kind.is_answered());
        demand(asked, "only what was asked for is answered", || {
            format!("{:#x}: a READ response with PSN {psn}", self.qpn)
        })
    }
}
