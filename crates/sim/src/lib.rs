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
//! - The responder executes each request once and in order. Each piece of data that it stores is
//!   the next one of the next request. Each atomic is the next request, and finds the value that
//!   the earlier ones left.
//! - Nothing is acknowledged, and nothing completes, before it was executed. Work requests complete
//!   once and in order, unsignaled ones without a completion. READs bring the data that was there,
//!   and atomics return the value that was there.
//! - A fenced request waits for earlier answers. Memory changes only for requests that are
//!   outstanding.
//! - Invalidations, binds, and accesses by memory windows (of RC) come in order as well. Once a
//!   window is reported as invalid, no byte changes by it, even if a message had begun before.
//! - Messages arrive once and in order, with their length, immediate data, solicited flag and
//!   contents. Each takes the right receive: from the queue pair's own queue, from a shared one, or
//!   from the XRC shared receive queue that it names, whose protection domain is used for it.
//! - A send queue that is stopped (SQD) finishes the requests that it has begun, begins no others,
//!   reports once and truly that it is drained, and continues when told to.
//! - An error is reported if, and only if, there is a cause: wrong keys, ranges or rights, receives
//!   that are too short or missing, a peer that refused, was ended or died, or retries that were
//!   really made. It has the status that the specification names, at the end that the specification
//!   names. All requests before it succeed, all after it are flushed in order, the event is raised,
//!   and the queue pair is in the error state.
//! - An invalid work request is refused when it is posted. Packets with flipped bits are refused,
//!   and so are packets that were sent before their path was given up.
//! - Packets of attackers (forged with wrong numbers or from a wrong address, replayed, stale; of
//!   every opcode) change nothing of this. If an attacker forges packets with all that can be
//!   known, only two promises remain: nothing panics, and tables agree.
//! - A READ response answers a request that asks for one.
//! - Counters, flags and lists inside lanes, queue pairs and path managers agree after every step
//!   (if debug assertions are on), and each path is charged for the bytes that are in flight on it.
//! - Everything charged to a path is given back, and nothing stands still when the network is whole
//!   again.
//! - Of RC queue pairs that migrate (a subject of its own), both ends are ARMED on the same path in the end.
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
mod lanes;
mod layout;
mod link;
mod link_faults;
mod migrating;
mod out;
mod overlap;
pub mod pcapng;
mod ports;
mod report;
mod rng;
mod run;
mod shrink;
mod trace;
mod under_way;
mod usage;
mod words;

pub use arguments::Arguments;
pub use bout::{Attack, Way};
pub use case::{Case, EndPlan, LanePlan, Op, OpKind, PairPlan, Wrong};
pub use datagram::{Datagram, address, other_address};
pub use faults::{Change, Fault, When};
pub use host::{HostPlan, SimHost};
pub use hunt::{Hunt, Subject};
pub use io::{Effect, Io, KEY, NO_KEY, PD, PlantedFault, READ_KEY, RELAXED_KEY, SRQNS, WRITE_KEY};
pub use judge::Breach;
pub use link::Network;
pub use link_faults::{Bursts, Holes, LinkFaults, LinkPlan};
pub use report::Report;
pub use rng::Rng;
pub use run::{Failure, Simulation, simulate};
pub use shrink::{Shrunk, run, shrink};
pub use trace::{Drop, Fate, Record, Trace};
pub use usage::any_change;

/// The examples in the page compile and hold.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/extend/policy.md")]
struct PolicyPage;
