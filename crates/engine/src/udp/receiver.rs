//! Receiving.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use polypath_wire::icrc::FlowCrc;

/// A datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Sender's address; IPv4 as such, never mapped.
    pub src: IpAddr,
    /// Sender's UDP port.
    pub src_port: u16,
    /// The address it was sent to.
    pub dst: IpAddr,
    /// Interface it came in by.
    pub ifindex: u32,
    /// IPv4 type of service, or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, or IPv6 hop limit.
    pub hop_limit: u8,
    /// UDP payload, the ICRC included.
    pub datagram: &'a [u8],
    crc: FlowCrc,
    id_guess: u16,
}

impl Received<'_> {
    /// Whether the ICRC is right.
    #[inline]
    pub fn verify(&self) -> bool {
        self.crc.verify(self.datagram, self.id_guess).is_some()
    }
}

/// A lane's slot socket: bound to port 4791 of all addresses, given by the broker.
#[derive(Debug)]
pub struct Receiver {
    fd: OwnedFd,
}

impl Receiver {
    /// Takes a bound UDP socket and sets the options that it may lack.
    ///
    /// # Errors
    /// Not an IPv6 UDP socket, or a kernel without these options.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd })
    }

    /// For `poll`.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Receives one batch without waiting and calls `f` for each datagram in order. Gives how many: 0
    /// if nothing is there.
    ///
    /// # Errors
    /// Of `recvmsg`, except those that mean that there is nothing.
    pub fn receive(&mut self, f: &mut impl FnMut(&Received<'_>)) -> io::Result<usize> {
        let _ = f;
        Err(io::ErrorKind::Unsupported.into())
    }
}
