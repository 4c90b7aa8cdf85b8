//! The error in which each wrong work request ends (IBTA 9.9.2, 9.9.3, 10.10.3; `ibv_poll_cq(3)`).

use polypath_transport::{Access, QpEvent, WcStatus};

use crate::case::{Op, OpKind, Wrong};

/// The way in which the peer refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The status with which the work request completes at the requester.
    pub(crate) status: WcStatus,
    /// The way in which the responder's program is told of it.
    pub(crate) told: Told,
}

/// The way in which the responder's program is told that a request was refused. There is only one for
/// each refusal (C9-222.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The current receive work request completes with this status.
    Receive(WcStatus),
    /// There is no current receive work request, so an asynchronous event is raised.
    Event(QpEvent),
}

/// The refusal of a request for memory, or for an XRC shared receive queue, that does not exist or may
/// not be used so.
pub(crate) const NO_ACCESS: Refusal =
    Refusal { status: WcStatus::RemAccessErr, told: Told::Event(QpEvent::AccessError) };

/// The right that an operation needs at the responder.
fn right(kind: OpKind) -> Access {
    match kind {
        OpKind::Send | OpKind::SendImm | OpKind::SendInv | OpKind::LocalInv | OpKind::Bind => {
            Access::empty()
        }
        OpKind::Write | OpKind::WriteImm | OpKind::AtomicWrite => Access::REMOTE_WRITE,
        OpKind::Flush => Access::FLUSH_GLOBAL,
        OpKind::Read => Access::REMOTE_READ,
        OpKind::FetchAdd | OpKind::CompareSwap | OpKind::SharedAdd => Access::REMOTE_ATOMIC,
    }
}

/// The refusal of a work request by a peer whose queue pair allows `access`; `None` if the peer
/// executes it.
pub(crate) fn refusal(op: &Op, access: Access) -> Option<Refusal> {
    // An unknown shared receive queue comes first, since its protection domain is needed to check the
    // rest.
    if op.wrong == Some(Wrong::Queue) {
        return Some(NO_ACCESS);
    }
    if !access.contains(right(op.kind)) {
        return Some(Refusal {
            status: WcStatus::RemInvReqErr,
            told: Told::Event(QpEvent::RequestError),
        });
    }
    let (status, told) = match op.wrong? {
        // The message takes a receive work request, which ends in error too (class J).
        Wrong::Key if op.kind == OpKind::SendInv => {
            (WcStatus::RemAccessErr, Told::Receive(WcStatus::RemAccessErr))
        }
        Wrong::Key | Wrong::Range | Wrong::Rights => return Some(NO_ACCESS),
        Wrong::ShortReceive => (WcStatus::RemInvReqErr, Told::Receive(WcStatus::LocLenErr)),
        Wrong::ReceiveKey => (WcStatus::RemOpErr, Told::Receive(WcStatus::LocProtErr)),
        Wrong::Queue | Wrong::LocalKey | Wrong::NoReceive | Wrong::QKey | Wrong::Post => {
            return None;
        }
    };
    Some(Refusal { status, told })
}

/// The status with which a work request fails at the requester, without an answer of the peer.
pub(crate) fn local_error(op: &Op) -> Option<WcStatus> {
    (op.wrong == Some(Wrong::LocalKey)).then_some(WcStatus::LocProtErr)
}
