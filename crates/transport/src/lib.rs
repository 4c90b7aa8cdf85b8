//! RC, UC, UD and XRC queue pairs over sets of paths, without I/O.
//!
//! A [`QueuePair`] is one numbered sequence of packets; a path is any way to carry them. The queue
//! pair takes work requests, packets and the time, and gives [`Burst`]s, completions and events to
//! a [`Host`], which is the engine in production and the simulator in tests. Nothing here does
//! I/O, reads a clock, spawns or locks.
#![forbid(unsafe_code)]

mod burst;
mod cause;
mod check;
mod common;
mod explanation;
mod flat;
mod frozen;
mod host;
mod memory;
mod qp;
mod ranges;
mod requester;
mod responder;
mod rq;
mod sq;
mod state;
mod transmit_state;
mod unreliable;

pub use burst::{Burst, PacketHeaders, Payload};
pub use cause::Cause;
pub use explanation::{BadRequest, BadUcWrite, Explanation, What};
pub use flat::{FlatMemory, FlatSegment};
pub use frozen::{ThawError, VERSION as FROZEN_VERSION};
pub use host::{EarlyRoom, Host, Observer, Paths, Queues, Unread};
pub use memory::{AtomicOp, Fault, Memory, RemoteAccess, RemoteKey, Segment};
pub use polypath_telemetry::QpCounters;
pub use polypath_types::*;
pub use qp::QueuePair;
pub use state::{MAX_RD_ATOMIC, ModifyError};
pub use transmit_state::TransmitState;

/// What a packet counts against a path's window beside its payload, in bytes: headers, and a share
/// of what a kernel's receive buffer is charged for a packet's descriptor. Without it a flood of
/// empty messages would pass any window.
pub const PACKET_COST: u32 = 128;

/// How far ahead of the expected packet a multi-path peer's packets are kept, in bytes: so many divided by
/// the path MTU PSNs. What peers are to be told ([`QueuePair::set_peer_reach`]).
pub const REACH: u32 = 16 << 20;
