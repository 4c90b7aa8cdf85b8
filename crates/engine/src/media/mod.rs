//! Media, which carry packets. Each has a sending half ([`Tx`]) and a receiving half ([`Rx`]).
//!
//! A path is named by two addresses. The medium that carries it is chosen when its flow is opened
//! ([`Tx::carries`]). Queue pairs and the path manager do not know the medium.

mod capture;
mod connections;
mod delay_queue;
mod faults;
mod flow;
mod gather;
mod joined;
mod judge;
// `local/memory.rs` maps what two processes share.
#[allow(unsafe_code)]
pub(crate) mod local;
mod medium;
mod names;
mod open_flows;
#[cfg(test)]
pub(crate) mod pair;
#[allow(unsafe_code)]
mod payload;
mod received;
#[cfg(test)]
mod run;
mod start;
pub(crate) mod tcp;
#[cfg(test)]
mod toy;
mod trace;
#[allow(unsafe_code)]
pub mod udp;
mod wait_set;
mod wrappers;
mod writer;

pub use flow::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal};
pub(crate) use joined::{Flow, Receivers, Senders};
pub use medium::{Rx, Tx};
#[cfg(test)]
pub(crate) use open_flows::OpenFlows;
pub use received::Received;
pub(crate) use start::start;
pub(crate) use wrappers::Wrappers;

/// A medium: its sending and its receiving half.
pub type Halves = (Box<dyn Tx>, Box<dyn Rx>);
