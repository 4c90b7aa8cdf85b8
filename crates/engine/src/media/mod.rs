//! What carries packets: media, each with a half to send by ([`Tx`]) and one to receive by ([`Rx`]).
//!
//! A path is named by two addresses. Which medium carries it is asked when its flow is opened
//! ([`Tx::carries`]); neither queue pairs nor the path manager know.

mod capture;
mod delay_queue;
mod faults;
mod flow;
mod gather;
mod joined;
mod judge;
mod medium;
mod names;
#[cfg(test)]
mod pair;
#[allow(unsafe_code)]
mod payload;
mod received;
mod start;
#[cfg(test)]
mod toy;
mod trace;
#[allow(unsafe_code)]
pub mod udp;
mod wait_set;
mod wrappers;

pub use flow::{Capabilities, FlowError, FlowFault, FlowHandle, Flushed, Seal};
pub(crate) use joined::{Flow, Receivers, Senders};
pub use medium::{Rx, Tx};
pub use received::Received;
pub(crate) use start::start;
pub(crate) use wrappers::Wrappers;

/// A medium: what it sends by, and what it receives by.
pub type Halves = (Box<dyn Tx>, Box<dyn Rx>);
