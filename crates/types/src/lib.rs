//! The words of the verbs API as Rust types, and those by which the protocol cores name paths to each
//! other. Everything above stands on them; they stand on nothing.
#![forbid(unsafe_code)]

mod access;
mod completion;
mod path;
mod queue_pair;
mod work;

pub use access::{Access, FlushScope, Placement};
pub use completion::{Completion, CqSide, NetworkHeader, WcOpcode, WcStatus};
pub use path::{Class, PathId, PathTag, PeerId, Pick, Route, Want};
pub use queue_pair::{AhAttr, MigState, QpAttr, QpAttrMask, QpConfig, QpEvent, QpState, QpType};
pub use work::{PostError, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Sges, UdDestination};
