//! A deterministic simulator. It runs the lane that ships, with its queue pairs and path manager, on
//! two or more hosts, over simulated links and with faults. A model of what verbs promise is the judge.
//!
//! A seed determines a [`Case`]: hosts, links, queue pairs with all their work requests, and faults. A
//! case is explicit data that determines a run completely, so that the run can be repeated and the case
//! reduced: if a promise is broken, [`shrink()`] leaves out whatever is not needed to break it. A
//! [`Trace`] holds the packets with their fates, as text or for Wireshark ([`pcapng`]).
//!
//! The judge checks the following of RC and XRC queue pairs, plain or multi-path, whatever the network
//! does:
//!
//! - the responder executes each request once and in order: each piece of data that it stores is the
//!   next one of the next request, each atomic the next request, and finds what the ones before left;
//! - nothing is acknowledged, and nothing completes, before it was executed; work requests complete
//!   once and in order, unsignaled ones in silence; READs bring what was there, atomics return it;
//! - a fenced request waits for earlier answers; memory changes only for what is outstanding;
//! - what is invalidated, bound, read or written by memory windows (of RC) comes in order too: from when a
//!   window is said to be invalid, not a byte changes by it, though its message may have begun before;
//! - messages arrive once, in order, with their length, immediate data, solicited flag and contents,
//!   each in the receive that it has to take, from the queue pair's own queue, a shared one, or the XRC
//!   one that it names, whose protection domain judges it;
//! - a send queue that is stopped (SQD) ends what it has begun, begins nothing, says once that it is
//!   drained, which is true, and goes on when told to;
//! - an error is reported if, and only if, there is a cause: wrong keys, ranges, rights, receives that
//!   are too short or missing, a peer that refused, ended or died, retries that were really tried. It
//!   has the status that the specification names, on the side that it names; all before it succeeds,
//!   all after it is flushed in order, the event is raised, the queue pair is in the error state;
//! - nonsense is refused when posted; packets with flipped bits are refused, and so are those that
//!   were sent before their path was fenced;
//! - packets of attackers (forged with wrong numbers or from a wrong address, replayed, stale; of every
//!   opcode) change nothing of all that; of those forged with all that can be known it is demanded that
//!   nothing panics and tables agree;
//! - a READ response answers what was asked;
//! - counters, flags and lists inside of lanes, queue pairs and path managers agree after every step (where
//!   debug assertions are on), and each path is charged what is in flight on it;
//! - everything charged to a path comes back, and nothing stands still when the network is whole again.
//!
//! Of UC and UD it checks that each message that arrives was sent, is whole, and comes in order if the
//! network keeps order. All messages must arrive if nothing was dropped.
//!
//! Connection managers are simulated separately, with a model of their own: [`cm`]. The queue pairs
//! here are connected by the simulator itself.
//!
//! The simulator is no model of speed: hosts take no time. It has no sockets and no threads. The judge
//! checks that an error after retries or a peer's death comes, and that it does not come too early. It
//! does not check that the error comes at once.
#![forbid(unsafe_code)]

mod arguments;
mod attack;
mod away;
mod bout;
mod case;
pub mod cm;
mod connect;
mod datagram;
mod drain;
mod draw;
mod faults;
mod freeze;
mod grey;
mod host;
mod hunt;
mod io;
mod judge;
mod layout;
mod link;
mod link_faults;
mod out;
mod overlap;
pub mod pcapng;
mod rng;
mod run;
mod shrink;
mod trace;
mod under_way;
mod words;

pub use arguments::Arguments;
pub use bout::{Attack, Way};
pub use case::{Case, EndPlan, LanePlan, Op, OpKind, PairPlan, Wrong};
pub use datagram::{Datagram, address, other_address};
pub use faults::{Change, Fault, When};
pub use host::{HostPlan, SimHost};
pub use hunt::{Hunt, Subject};
pub use io::{Effect, Io, KEY, NO_KEY, PD, PlantedFault, READ_KEY, SRQNS, WRITE_KEY};
pub use judge::Breach;
pub use link::Network;
pub use link_faults::{Bursts, Holes, LinkFaults, LinkPlan};
pub use rng::Rng;
pub use run::{Failure, Report, Simulation, simulate};
pub use shrink::{Shrunk, run, shrink};
pub use trace::{Drop, Fate, Record, Trace};

/// The examples in the page compile and hold.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/extend/policy.md")]
struct PolicyPage;
