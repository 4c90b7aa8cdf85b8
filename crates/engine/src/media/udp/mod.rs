//! UDP paths: RoCEv2 packets on sockets, with many packets per system call.
//!
//! [`Receiver`] is the socket that the broker gave the lane. [`Sender`] holds the lane's own
//! sockets for sending. A [`FlowKey`] tells one way through the network from another.

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
use std::os::fd::OwnedFd;

use super::{FlowError, FlowFault, FlowHandle, Flushed, Received, Seal};

pub use receiver::Receiver;
pub(crate) use receiver::Reports;
pub use sender::Sender;
pub(crate) use sys::{replace, set_option, udp_socket};

/// The properties that a flow's packets share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The source address, one of this host's. A link-local IPv6 address also needs `ifindex`.
    pub local: IpAddr,
    /// Destination address.
    pub remote: IpAddr,
    /// The interface to send on, regardless of routes; ignored if the destination is this host.
    pub ifindex: Option<u32>,
    /// The UDP source port to use, 0xC000 to 0xFFFF. If another process has it, others are tried.
    pub source_port: u16,
    /// IPv4 type of service, or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, or IPv6 hop limit; 0 stands for 64.
    pub hop_limit: u8,
}

/// The largest number of open flows in one [`Sender`].
pub const FLOWS_MAX: usize = 65_536;

/// The number of sockets from which on new flows of a [`Sender`] share sockets. A process usually
/// may have 1,024 descriptors, and needs most of them for itself.
pub const SOCKETS_ENOUGH: usize = 64;

/// The number of sockets with one source address and interface from which on its flows share them.
/// Different source ports spread flows over equal-cost ways of a network.
pub const SOCKETS_PER_SOURCE: usize = 32;

/// The largest number of sockets in one [`Sender`]. Until then, a source address without a socket
/// always gets one.
pub const SOCKETS_MAX: usize = 192;

/// A socket that nothing is sent to.
pub(crate) fn unbound() -> io::Result<OwnedFd> {
    udp_socket(true)
}

fn limit(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, what.to_owned())
}
