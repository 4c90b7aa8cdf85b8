//! RC, UC, UD and XRC queue pairs over sets of paths, without I/O.
//!
//! A [`QueuePair`] is one numbered sequence of packets; a path is any way to carry them. The queue
//! pair takes work requests, packets and the time. It gives [`Burst`]s, completions and events to a
//! [`Host`], which is the engine in production and the simulator in tests. This crate does no I/O,
//! reads no clock, starts no threads and takes no locks.
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
mod migrating;
mod migration;
mod proof;
mod qp;
mod query;
mod ranges;
mod requester;
mod responder;
mod rq;
mod sq;
mod state;
mod transmit_state;
mod unreliable;
mod viewing;

pub use burst::{Burst, PacketHeaders, Payload};
pub use cause::Cause;
pub use explanation::{BadRequest, BadUcWrite, Explanation, What};
pub use flat::{FlatMemory, FlatSegment};
pub use frozen::{ThawError, VERSION as FROZEN_VERSION};
pub use host::{EarlyRoom, Host, Observer, Paths, Queues, Unread};
pub use memory::{AtomicOp, Fault, Memory, RemoteAccess, RemoteKey, Segment};
pub use migration::{CameBy, MigrationNews, MigrationStatus};
pub use polypath_telemetry::{MigrationCause, QpCounters};
pub use polypath_types::*;
pub use qp::QueuePair;
pub use state::{MAX_RD_ATOMIC, ModifyError};
pub use transmit_state::TransmitState;
pub use viewing::SetChange;

/// The bytes that a packet counts against a path's window in addition to its payload: its headers,
/// and a share of what a kernel charges a receive buffer for the packet's descriptor. Without it, a
/// flood of empty messages would fit any window.
pub const PACKET_COST: u32 = 128;

/// How far ahead of the expected packet a multi-path peer's packets are kept, in bytes. Divided by
/// the path MTU, it is a number of PSNs. It is what peers are told ([`QueuePair::set_peer_abilities`]).
pub const REACH: u32 = 16 << 20;
