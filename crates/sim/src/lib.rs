//! A deterministic simulator: the real transport and path manager on two and more hosts, simulated
//! links between them, faults, and a model of what verbs promise as the judge.
#![forbid(unsafe_code)]

mod case;
mod connect;
mod draw;
mod faults;
mod host;
mod hunt;
mod io;
mod judge;
mod layout;
mod link;
pub mod pcapng;
mod rng;
mod run;
mod shrink;
mod trace;

pub use case::{Case, EndPlan, Kind, Op, PairPlan, Wrong};
pub use faults::{Change, Fault, When};
pub use host::{Entry, HostPlan, SimHost};
pub use hunt::{Hunt, explain};
pub use io::{Did, Io, KEY, Mischief, NO_KEY, PD, READ_KEY, WRITE_KEY};
pub use judge::Breach;
pub use link::{Bursts, Datagram, LinkPlan, Network, Weather, address, other_address};
pub use rng::Rng;
pub use run::{Failure, Report, Simulation, simulate};
pub use shrink::{Shrunk, run, shrink};
pub use trace::{Drop, Fate, Record, Trace};
