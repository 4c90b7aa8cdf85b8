//! A deterministic simulator: the real transport and path manager on two hosts, simulated links
//! between them, faults, and a model of what verbs promise as the judge.
//!
//! Everything follows from a seed: topology, settings, what the applications do, which faults
//! happen when. A run that fails is repeated by its seed: `polypath sim --seed N`.
//!
//! What is checked, for every queue pair, plain or multi-path, whatever the network does:
//!
//! - each work request completes exactly once, successfully, in the order of posting;
//! - each message is received exactly once, in order, with its length, immediate data and contents;
//! - memory ends as if each WRITE had been executed once and in order, and when the receiver is told of
//!   a message, all earlier ones are in memory;
//! - READs bring what was there; atomics are executed exactly once each, and every one returns the
//!   value that the order of its counter demands;
//! - everything charged to a path comes back, and nothing stands still when the network is whole again.
//!
//! It is not a model of speed: links have no bandwidth, hosts take no time.
#![forbid(unsafe_code)]

mod faults;
mod flow;
mod host;
mod hunt;
mod link;
mod rng;
mod run;

pub use faults::{Fault, Schedule};
pub use flow::{Flow, Plan};
pub use host::{Entry, Io, KEY, PD, SimHost};
pub use hunt::Hunt;
pub use link::{Datagram, Link, Network, address};
pub use rng::Rng;
pub use run::{Failure, Report, Setup, Simulation, simulate};
