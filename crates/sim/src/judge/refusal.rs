//! Which error a wrong work request ends in (IBTA 9.9.2, 9.9.3, 10.10.3; `ibv_poll_cq(3)`).

use polypath_transport::{Access, QpEvent, WcStatus};

use crate::case::{Kind, Op, Wrong};

/// What the peer says to a request that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// How the work request ends at the requester.
    pub(crate) status: WcStatus,
    /// How the receive work request in hand ends at the responder, if there is one.
    pub(crate) receive: Option<WcStatus>,
    /// The asynchronous event at the responder.
    pub(crate) event: QpEvent,
}

/// The right that an operation needs.
fn right(kind: Kind) -> Access {
    match kind {
        Kind::Send | Kind::SendImm => Access::empty(),
        Kind::Write | Kind::WriteImm => Access::REMOTE_WRITE,
        Kind::Read => Access::REMOTE_READ,
        Kind::FetchAdd | Kind::CompareSwap | Kind::SharedAdd => Access::REMOTE_ATOMIC,
    }
}

/// What the peer, whose queue pair allows `access`, says to a work request; `None`: it executes it.
pub(crate) fn refusal(op: &Op, access: Access) -> Option<Refusal> {
    if !access.contains(right(op.kind)) {
        return Some(Refusal {
            status: WcStatus::RemInvReqErr,
            receive: None,
            event: QpEvent::RequestError,
        });
    }
    let (status, receive, event) = match op.wrong? {
        Wrong::Key | Wrong::Range | Wrong::Rights => {
            (WcStatus::RemAccessErr, None, QpEvent::AccessError)
        }
        Wrong::ShortReceive => {
            (WcStatus::RemInvReqErr, Some(WcStatus::LocLenErr), QpEvent::RequestError)
        }
        Wrong::ReceiveKey => (WcStatus::RemOpErr, Some(WcStatus::LocProtErr), QpEvent::Fatal),
        Wrong::LocalKey | Wrong::NoReceive | Wrong::QKey | Wrong::Post => return None,
    };
    Some(Refusal { status, receive, event })
}

/// How a work request ends before, or without, the peer having a say.
pub(crate) fn local_error(op: &Op) -> Option<WcStatus> {
    (op.wrong == Some(Wrong::LocalKey)).then_some(WcStatus::LocProtErr)
}
