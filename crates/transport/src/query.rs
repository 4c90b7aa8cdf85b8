//! What `ibv_query_qp` tells.

use crate::qp::{Halves, QueuePair};
use polypath_types::{QpAttr, QpState};

impl QueuePair {
    /// All attributes, as `ibv_query_qp` returns them. The PSNs are those that come next.
    pub fn query(&self) -> QpAttr {
        let mut attr = QpAttr { cur_state: self.core.attr.state, ..self.core.attr };
        let sends = matches!(attr.state, QpState::Rts | QpState::Sqd | QpState::Sqe);
        let (expected, next) = match &self.halves {
            Halves::Rc(rc) => (Some(rc.1.epsn().get()), rc.0.next_psn()),
            Halves::Uc(sender, receiver) => (Some(receiver.epsn().get()), sender.next_psn()),
            Halves::Ud(sender, _) => (None, sender.next_psn()),
        };
        if let Some(expected) = expected.filter(|_| sends || attr.state == QpState::Rtr) {
            attr.rq_psn = expected;
        }
        if sends {
            attr.sq_psn = next;
        }
        attr
    }
}
