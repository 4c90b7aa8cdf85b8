//! Two hosts whose connections migrate: real connection managers, and queue pairs that are no more than
//! their migration state machine.
//!
//! The simulation is the host: it executes [`PathOrder`](polypath_cm::PathOrder)s after some time, and
//! tells migrations after some time. Queue pairs migrate by themselves, at either end or at both, or
//! follow a packet of the peer. Addresses go and come back, MADs are lost, doubled and late,
//! connections end, and hosts fail to load a path.
//!
//! The judge demands, when all links work again and everything is quiet:
//!
//! - both ends of each connection use the same two addresses, and have the same alternate path, one of
//!   another link;
//! - every queue pair is armed, because there is a backup for each;
//! - the connection managers believe what is so;
//! - connections are spread over the links, if the host that began them balances them.
//!
//! At all times: a connection starts no two LAPs or SAPs within 100 ms, repeats none more often than
//! agreed, only the active end sends LAPs and only the passive end SAPs, and none is sent for a
//! connection that ends. An MRA is sent only for a LAP that came more than once and has no answer yet,
//! and an active end that got one repeats the LAP only when the time is over that it asks for. In the
//! end nothing is left behind.

mod queue_pair;
mod rules;
mod run;
mod step;

pub use run::ApmCase;
pub use step::ApmReport;
