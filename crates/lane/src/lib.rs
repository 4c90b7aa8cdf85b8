//! A lane: queue pairs, the paths that they share, and whose turn it is.
//!
//! The lane is what drives queue pairs ([`polypath_transport`]) and their path manager
//! ([`polypath_paths`]): it hands out what arrives, runs timers, lets queue pairs send by turns, and
//! carries out what the path manager decides. It does no I/O and has no clock: time and packets come in
//! by calls, and all effects go to an [`Outside`]. The engine, the simulator, the model checker and the
//! fuzzer each have an outside of their own, around this one lane.
//!
//! # A round
//!
//! [`Lane::begin`] tells the time. What has arrived goes to [`Lane::handle_packet`], then
//! [`Lane::handle_timeouts`] does what is due, [`Lane::transmit`] sends, [`Lane::acknowledge`] sends the
//! acknowledgements that nothing else carries, and [`Lane::set_timers`] takes in new deadlines, which
//! can wait until everything is sent. [`Lane::run`] is all of these behind what has arrived. Whoever
//! wants something of one queue pair does it in [`Lane::with`], before the rest of a round.
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
