//! A routing netlink socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// A non-blocking `NETLINK_ROUTE` socket.
#[derive(Debug)]
pub(crate) struct NetlinkSocket(OwnedFd);

impl NetlinkSocket {
    /// Opens a socket that receives the given multicast groups (`RTMGRP_*`).
    pub(crate) fn new(groups: u32) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // NETLINK_ROUTE is 0, like "no protocol".
        let fd = rustix::net::socket_with(family, kind, flags, None)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self(fd))
    }

    /// Sends a message to the kernel, which is the destination of an unconnected netlink socket.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.0, message, SendFlags::empty())?;
        Ok(())
    }

    /// Receives one datagram, which may contain several messages. A datagram from another process,
    /// which can also send to a netlink socket, is returned with length 0.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (got, _, from) = rustix::net::recvfrom(&self.0, buffer, RecvFlags::empty())?;
        let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        Ok(if from.is_some_and(|from| from.pid() == 0) { got } else { 0 })
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
