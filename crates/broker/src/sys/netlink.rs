//! A routing netlink socket.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{check, own};

/// A non-blocking `NETLINK_ROUTE` socket.
#[derive(Debug)]
pub(crate) struct NetlinkSocket(OwnedFd);

impl NetlinkSocket {
    /// Opens a socket that hears the given multicast groups (`RTMGRP_*`).
    pub(crate) fn new(groups: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain integers.
        let fd = own(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: sockaddr_nl is plain data, for which all zeroes is a value.
        let mut address: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = groups;
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: `address` is valid for `len` bytes.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(Self(fd))
    }

    /// Sends a message to the kernel, which is where an unconnected netlink socket sends to.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: `message` is valid for its length.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives one datagram, which may hold several messages. Only the kernel is listened to:
    /// another process can send to a netlink socket too, and gets length 0.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: as in `new`.
        let mut from: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: buffer and address are valid for their lengths.
        let got = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut from).cast(),
                &raw mut len,
            )
        };
        let Ok(got) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
        Ok(if from.nl_pid == 0 { got } else { 0 })
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
