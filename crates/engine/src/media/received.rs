//! A packet that arrived.

use std::net::IpAddr;

use polypath_paths::PathKind;
use polypath_wire::ParseError;
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Packet;

/// A packet that arrived on some medium.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The sender's address. IPv4 addresses are never mapped.
    pub src: IpAddr,
    /// Sender's UDP port; 0 where the medium has no ports.
    pub src_port: u16,
    /// The address that it was sent to.
    pub dst: IpAddr,
    /// What it came by.
    pub kind: PathKind,
    /// The interface that it came in on; for packets from this host to itself, the loopback
    /// interface. 0 if it is not known.
    pub ifindex: u32,
    /// IPv4 type of service, or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, or IPv6 hop limit.
    pub hop_limit: u8,
    /// The packet from the BTH on. If the medium does not verify, this is the UDP payload, which
    /// ends with the ICRC; if it does, there is no ICRC.
    pub datagram: &'a [u8],
    /// The flow's part of the ICRC; `None` if the medium has verified the packet.
    pub(super) crc: Option<FlowCrc>,
    /// The IPv4 identification that it was most likely sent with. The segments of one UDP_SEGMENT
    /// send are numbered from 0, and arrive coalesced.
    pub(super) id_guess: u16,
}

impl<'a> Received<'a> {
    /// A UDP payload that did not come through a socket, as in a test. Its ICRC is checked.
    pub fn new(src: IpAddr, src_port: u16, dst: IpAddr, datagram: &'a [u8]) -> Self {
        let crc = Some(FlowCrc::new(&Flow::new(src, dst, src_port)));
        Self { src_port, crc, ..Self::verified(src, dst, datagram) }
    }

    /// A packet, from the BTH to its padding, that is known to be exactly as it was sent: see
    /// [`Capabilities::verified`](super::Capabilities::verified).
    pub fn verified(src: IpAddr, dst: IpAddr, packet: &'a [u8]) -> Self {
        Self {
            src,
            src_port: 0,
            dst,
            kind: PathKind::Udp,
            ifindex: 0,
            traffic_class: 0,
            hop_limit: 64,
            datagram: packet,
            crc: None,
            id_guess: 0,
        }
    }

    /// Whether the packet is exactly as it was sent: the medium has verified it, or its ICRC is
    /// correct. This reads the whole datagram.
    #[inline]
    pub fn verify(&self) -> bool {
        self.crc.is_none_or(|crc| {
            crc.verify(self.datagram, self.id_guess).is_some() || self.is_flush_of_rxe(&crc)
        })
    }

    #[cold]
    fn is_flush_of_rxe(&self, crc: &FlowCrc) -> bool {
        self.datagram.first() == Some(&Opcode::RC_FLUSH.0)
            && crc.verify_twice(self.datagram, self.id_guess).is_some()
    }

    /// Parses the packet and calls `f` with it.
    ///
    /// # Errors
    /// Those of [`Packet::parse`]; `f` is not called.
    #[inline]
    pub fn parse_with<R>(&self, f: impl FnOnce(&Packet<'_>) -> R) -> Result<R, ParseError> {
        match self.crc {
            Some(_) => Packet::parse_with(self.datagram, f),
            None => Packet::parse_body_with(self.datagram, f),
        }
    }
}
