//! Which error a wrong work request ends in (IBTA 9.9.2, 9.9.3, 10.10.3; `ibv_poll_cq(3)`).

use polypath_transport::{Access, QpEvent, WcStatus};

use crate::case::{Op, OpKind, Wrong};

/// What the peer says to a request that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// How the work request ends at the requester.
    pub(crate) status: WcStatus,
    /// How the responder hears of it.
    pub(crate) told: Told,
}

/// How the responder's program hears that a request was refused: in one way only (C9-222.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The receive work request in hand ends so.
    Receive(WcStatus),
    /// There is none: an asynchronous event.
    Event(QpEvent),
}

/// Memory, or an XRC shared receive queue, that is not there or not for this.
pub(crate) const NO_ACCESS: Refusal =
    Refusal { status: WcStatus::RemAccessErr, told: Told::Event(QpEvent::AccessError) };

/// The right that an operation needs.
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

/// What the peer, whose queue pair allows `access`, says to a work request; `None`: it executes it.
pub(crate) fn refusal(op: &Op, access: Access) -> Option<Refusal> {
    // Whose protection domain would judge the rest?
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
        // With the message comes a receive: class J.
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

/// How a work request ends before, or without, the peer having a say.
pub(crate) fn local_error(op: &Op) -> Option<WcStatus> {
    (op.wrong == Some(Wrong::LocalKey)).then_some(WcStatus::LocProtErr)
}
