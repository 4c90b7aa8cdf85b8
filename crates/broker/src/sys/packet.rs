//! A socket for the frames of one type of one interface (packet(7)). It needs `CAP_NET_RAW` in the user
//! namespace that the network namespace belongs to.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{check, own};

/// The Ethernet type of slow protocols (IEEE 802.3, annex 57A).
pub(crate) const ETH_P_SLOW: u16 = 0x8809;

/// The Ethernet type of ARP (RFC 826).
pub(crate) const ETH_P_ARP: u16 = 0x0806;

/// A socket that is bound to an interface and one Ethernet type.
#[derive(Debug)]
pub(crate) struct FrameSocket(OwnedFd);

impl FrameSocket {
    /// Opens the socket for the interface of this index.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`; `ENODEV` if the interface is gone.
    pub(crate) fn open(ifindex: u32, protocol: u16) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Without a protocol it receives nothing before it is bound.
        // SAFETY: socket() takes numbers only.
        let socket = own(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        let ifindex = libc::c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
            sll_ifindex: ifindex,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is valid for `len` bytes, and is only read.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(Self(socket))
    }

    /// Receives what is sent to a group of Ethernet addresses, too.
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub(crate) fn join(&self, ifindex: u32, group: [u8; 6]) -> io::Result<()> {
        let mut member = libc::packet_mreq {
            mr_ifindex: libc::c_int::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address: [0; 8],
        };
        member.mr_address[..6].copy_from_slice(&group);
        // SAFETY: the request is valid for its size, and is only read.
        check(unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const member).cast(),
                size_of::<libc::packet_mreq>() as libc::socklen_t,
            )
        })?;
        Ok(())
    }

    /// Sends a frame, from its Ethernet header on.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.0, frame, rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// Receives a frame that another station sent; length 0 for one that this host sent itself.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut from = libc::sockaddr_ll {
            sll_family: 0,
            sll_protocol: 0,
            sll_ifindex: 0,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the buffer and the address are valid for writing as many bytes as is said.
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
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        Ok(if from.sll_pkttype == libc::PACKET_OUTGOING { 0 } else { got })
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
