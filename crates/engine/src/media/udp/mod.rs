//! The UDP path: RoCEv2 packets on sockets, many to a system call.
//!
//! [`Receiver`] is the socket that the broker gave the lane, [`Sender`] the lane's own sockets to send
//! from. A [`FlowKey`] is what tells one way through the network from another.

mod batch;
mod medium;
mod receiver;
mod sender;
mod socket;
mod sys;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;

use super::{FlowError, FlowFault, FlowHandle, Flushed, Received, Seal};

pub use receiver::Receiver;
pub use sender::Sender;
pub(crate) use sys::set_option;

/// What a flow's packets have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Source address, one of this host's. Link-local IPv6 wants `ifindex` too.
    pub local: IpAddr,
    /// Destination address.
    pub remote: IpAddr,
    /// Send by this interface whatever the routes say; ignored where the destination is this host.
    pub ifindex: Option<u32>,
    /// Wanted UDP source port, 0xC000 to 0xFFFF; if another process has it, others are tried.
    pub source_port: u16,
    /// IPv4 type of service, or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, or IPv6 hop limit; 0 counts as 64.
    pub hop_limit: u8,
}

/// Most flows that are open at a time in one [`Sender`].
pub const FLOWS_MAX: usize = 65_536;

/// When one [`Sender`] has this many sockets, new flows share them. An ordinary process may have 1,024
/// descriptors, and needs most of them for itself.
pub const SOCKETS_ENOUGH: usize = 64;

/// Sockets of one source address and interface from which on its flows share them: different source ports
/// that spread flows over the equal ways of a network.
pub const SOCKETS_PER_SOURCE: usize = 32;

/// Most sockets of one [`Sender`]: a source address that has none gets one in any case.
pub const SOCKETS_MAX: usize = 192;

fn limit(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, what.to_owned())
}
