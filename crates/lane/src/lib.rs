//! A lane: queue pairs, the paths that they share, and the order in which they send.
//!
//! The lane drives queue pairs ([`polypath_transport`]) and their path manager
//! ([`polypath_paths`]): it hands out packets that arrive, runs timers, lets queue pairs send in
//! turns, and carries out the path manager's decisions. It does no I/O and has no clock: time and
//! packets come in by calls, and all effects go to an [`Outside`]. The engine, the simulator, the
//! model checker and the fuzzer each have their own outside for the same lane.
//!
//! # A round
//!
//! [`Lane::begin`] sets the time. Packets that have arrived go to [`Lane::handle_packet`]. Then
//! [`Lane::handle_timeouts`] runs the timers that are due, [`Lane::transmit`] sends,
//! [`Lane::acknowledge`] sends the acknowledgements that no other packet carries, and
//! [`Lane::set_timers`] notes new deadlines, which can wait until everything is sent. [`Lane::run`]
//! does all of this after the packets have been handed in. Work on a single queue pair is done in
//! [`Lane::with`], before the rest of a round.
#![forbid(unsafe_code)]

mod blocked;
mod check;
mod events;
mod host;
mod lane;
mod outside;
mod receive;
mod schedule;
mod table;

pub use host::{QpHost, Visit};
pub use lane::{Lane, LaneConfig};
pub use outside::{NotSent, Outside, Overrun};
pub use receive::{Arrival, Refusal, Taken};
pub use table::{Entry, QpTable};
