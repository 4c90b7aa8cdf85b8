//! The UDP path: RoCEv2 packets on sockets, many to a system call.
//!
//! [`Receiver`] is the socket that the broker gave the lane, [`Sender`] the lane's own sockets to send
//! from. A [`FlowKey`] is what tells one way through the network from another.

mod batch;
mod payload;
mod receiver;
mod sender;
mod socket;
mod sys;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;

pub use receiver::{Received, Receiver};
pub use sender::Sender;

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

/// Names an open flow of one [`Sender`]. Not used again after [`Sender::close`] before 2^32 others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowHandle {
    index: u32,
    serial: u32,
}

/// What went wrong on a flow since [`Sender::take_flow_errors`] was last called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowError {
    /// Whose.
    pub flow: FlowHandle,
    /// What [`Sender::open`] was told about the flow.
    pub tag: u32,
    /// What.
    pub kind: FlowFault,
    /// Packets that were not sent, or, for [`FlowFault::TooBig`], that were sent in fragments.
    pub packets: u32,
}

/// Why packets of a flow did not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowFault {
    /// The socket's or the interface's queue was full: `errno`. Packets were dropped, as a wire drops them.
    Congested(i32),
    /// Packets of this UDP payload, in bytes, are larger than the interface's MTU. From now on they leave in
    /// fragments.
    TooBig(u16),
    /// No route, interface down, a firewall's refusal, the address is gone, or anything else: `errno`.
    Refused(i32),
}

/// What [`Sender::flush`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Packets handed to the kernel.
    pub sent: u32,
    /// Bytes of them (UDP payload).
    pub sent_bytes: u64,
    /// Those of them that leave in fragments.
    pub fragmented: u32,
    /// Packets that were not; [`Sender::take_flow_errors`] says why.
    pub dropped: u32,
}

/// Most flows that are open at a time in one [`Sender`].
pub const FLOWS_MAX: usize = 65_536;

/// Sockets of one [`Sender`] from which on flows share those that there are. An ordinary process may have 1,024
/// descriptors, of which its own are most.
pub const SOCKETS_ENOUGH: usize = 64;

/// Sockets of one source address and interface from which on its flows share them: different source ports
/// that spread flows over the equal ways of a network.
pub const SOCKETS_PER_SOURCE: usize = 32;

/// Most sockets of one [`Sender`]: a source address that has none gets one in any case.
pub const SOCKETS_MAX: usize = 192;

fn limit(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, what.to_owned())
}
