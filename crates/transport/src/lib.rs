//! RC, UC and UD queue pairs over sets of paths, without I/O.
//!
//! A [`QueuePair`] is one numbered sequence of packets; a path is any way to carry them. The queue
//! pair takes work requests, packets and the time, and gives [`Burst`]s, completions and events to
//! a [`Host`], which is the engine in production and the simulator in tests. Nothing here does
//! I/O, reads a clock, spawns or locks.
#![forbid(unsafe_code)]

mod host;
mod types;

pub use host::{AtomicOp, Burst, Fault, Host, PathId, PathTag, PeerId, Route, Segment};
pub use types::*;
