//! The types of the verbs API, and the types by which the protocol cores refer to paths. All other
//! crates may use this one; it uses none of them.
#![forbid(unsafe_code)]

mod access;
mod completion;
mod path;
mod queue_pair;
mod work;

pub use access::{Access, FlushScope, Placement};
pub use completion::{Completion, CqSide, NetworkHeader, WcOpcode, WcStatus};
pub use path::{
    Class, DatagramCopies, PathId, PathKind, PathTag, PeerAbilities, PeerId, Pick, Route, Twin,
    TwoPaths, Want,
};
pub use queue_pair::{AhAttr, MigState, QpAttr, QpAttrMask, QpConfig, QpEvent, QpState, QpType};
pub use work::{PostError, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Sges, UdDestination};
