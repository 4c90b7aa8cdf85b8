//! The protocol between a process and the broker.
//!
//! One broker runs per network namespace and user. It listens on the abstract Unix socket
//! `@polypath-<uid>` (abstract names belong to a network namespace, so there is exactly one name
//! per broker). The socket is `SOCK_SEQPACKET`: every datagram is one [`message`], encoded by
//! postcard.
//!
//! A process has two connections. On the *control* connection it sends requests and waits for the
//! answers ([`Client::call`]). What it opens there (lanes, CM files) lives as long as the
//! connection, so that a process that dies leaves nothing behind. The *event* connection
//! ([`EventStream`]) brings the broker's notifications: a new [`Table`](polypath_topology::Table)
//! whenever a link or an address changes, requests for a status report, paths taken down by hand.
//!
//! ```no_run
//! use polypath_ipc::{Client, Hello};
//! use polypath_topology::devices;
//!
//! # fn main() -> Result<(), polypath_ipc::IpcError> {
//! let hello = Hello::of_this_process("");
//! let mut broker = Client::connect_or_start(&hello)?;
//! let table = broker.table()?;
//! for device in devices(&table, broker.selection()) {
//!     println!("{} over {:?}", device.name, device.members().collect::<Vec<_>>());
//! }
//! let lane = broker.open_lane()?; // lane.socket receives what is addressed to QPNs of lane.slot
//! println!("QPNs {:#x}…", u32::from(lane.slot) << 16);
//! # Ok(())
//! # }
//! ```
//!
//! [`port`] tells who has UDP port 4791 and whose brokers run, if connecting fails.
//!
//! No input is trusted: a message that does not decode, is too long, or comes from another user is
//! an error and never a panic.

mod client;
mod diag;
mod error;
pub mod faults;
pub mod lacp;
pub mod message;
pub mod migration;
pub mod port;
pub mod sched;
pub mod settings;
pub mod socket;
mod start;
pub mod status;
mod text;
pub mod time;

pub use client::{Client, CmFile, EventStream, HangUp, Lane, SLOT_MAX};
pub use error::IpcError;
pub use message::{Hello, Push, Reply, Request};
pub use status::Status;
