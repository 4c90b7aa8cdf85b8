//! The verbs object model: the traits that every Polypath device implements and every front end (C ABI,
//! paravirtual device, Rust programs) uses. They allow one device to be built on another.
//!
//! Names and meanings are those of libibverbs (`man 3 ibv_create_qp` and related pages). Front ends
//! give every object a `token`, an opaque number that events carry (for the C ABI, the address of the C
//! structure).
#![deny(unsafe_code)]

mod attr;
mod error;
mod event;
mod object;

pub use attr::{AddressHandle, DeviceAttr, DeviceInfo, GidEntry, PortAttr, PortState};
pub use error::{Error, Result};
pub use event::{AsyncEvent, AsyncKind, Element};
pub use object::{
    Attend, CompletionChannel, CompletionQueue, Context, CqRequest, Device, DeviceMemory,
    MemoryRegion, MrRequest, MwBind, PagesRequest, PostFailure, QpRequest, QueuePair, SendRequest,
    SharedReceiveQueue, SrqAttr, SrqRequest, ThawRequest, UdTarget, Wc, XrcDomain, XrcSrq,
    XrcdRequest,
};
pub use polypath_types::{
    Access, AhAttr, Completion, FlushScope, MigState, NetworkHeader, Placement, QpAttr, QpAttrMask,
    QpState, QpType, RecvWr, SendData, SendFlags, SendOp, Sge, Sges, WcOpcode, WcStatus,
};
