//! Checks that a responder answers with data only requests that ask for it.

use polypath_wire::Psn;

use super::direction::Direction;
use super::{Verdict, demand};

impl Direction {
    /// Notes that the responder sent a READ response with this PSN, which must belong to a request that
    /// is answered so.
    pub(crate) fn answered(&self, psn: Psn) -> Verdict {
        let asked = self.request_of(psn).is_some_and(|i| self.ops[i].kind.is_answered());
        demand(asked, "only what was asked for is answered", || {
            format!("{:#x}: a READ response with PSN {psn}", self.qpn)
        })
    }
}
