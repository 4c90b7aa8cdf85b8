//! The 40 bytes before the payload in a UD receive buffer (IBTA 8.3, 11.4.1.2; RoCEv2 annex A17.4.3).
//!
//! They are the packet's IPv6 header. For IPv4 they are 20 bytes without meaning, followed by the IPv4
//! header.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{be16, be32, head};
use crate::error::ParseError;

/// The network header of a received datagram, as the receive buffer shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grh {
    /// The sender's address.
    pub src: IpAddr,
    /// The receiver's address, of the same family as the sender's.
    pub dst: IpAddr,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// The number of bytes after the IP header: UDP header and UDP payload with ICRC.
    pub payload_len: u16,
    /// Hop limit or time to live.
    pub hop_limit: u8,
}

/// The protocol number of UDP.
const UDP: u8 = 17;

impl Grh {
    /// Length in bytes.
    pub const LEN: usize = 40;

    /// The 40 bytes. For IPv4, the first 20 are zero. Addresses of two families (which no packet has)
    /// are both written as IPv6.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.src, self.dst) {
            let ip = &mut b[20..];
            ip[0] = 0x45;
            ip[1] = self.traffic_class;
            ip[2..4].copy_from_slice(&self.payload_len.saturating_add(20).to_be_bytes());
            ip[6] = 0x40; // don't fragment
            ip[8] = self.hop_limit;
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = ipv4_checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            return b;
        }
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        b[..4].copy_from_slice(&first.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = UDP;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&as_v6(self.src).octets());
        b[24..].copy_from_slice(&as_v6(self.dst).octets());
        b
    }

    /// Reads the 40 bytes: as IPv6 if they start with its version, otherwise as IPv4 in the last 20.
    ///
    /// # Errors
    /// There are too few bytes, they hold neither kind of header, or the IPv4 header's total length is
    /// less than 20.
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("GRH", buf)?;
        if b[0] >> 4 == 6 {
            let first = be32(b, 0);
            let addr = |at: usize| {
                let hi = u128::from(crate::bytes::be64(b, at)) << 64;
                IpAddr::V6(Ipv6Addr::from_bits(hi | u128::from(crate::bytes::be64(b, at + 8))))
            };
            return Ok(Self {
                src: addr(8),
                dst: addr(24),
                traffic_class: (first >> 20) as u8,
                flow_label: first & 0x000f_ffff,
                payload_len: be16(b, 4),
                hop_limit: b[7],
            });
        }
        if b[20] != 0x45 {
            return Err(ParseError::BadValue {
                what: "GRH version",
                expected: "6 in byte 0, or 0x45 in byte 20",
                got: u64::from(b[20]),
            });
        }
        let Some(payload_len) = be16(b, 22).checked_sub(20) else {
            return Err(ParseError::BadValue {
                what: "GRH IPv4 total length",
                expected: "at least 20",
                got: u64::from(be16(b, 22)),
            });
        };
        Ok(Self {
            src: IpAddr::V4(Ipv4Addr::from_bits(be32(b, 32))),
            dst: IpAddr::V4(Ipv4Addr::from_bits(be32(b, 36))),
            traffic_class: b[21],
            flow_label: 0,
            payload_len,
            hop_limit: b[28],
        })
    }
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The header checksum of RFC 791, over a header whose checksum field is zero.
fn ipv4_checksum(header: &[u8]) -> u16 {
    let mut sum: u32 =
        header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grh(src: &str, dst: &str, flow_label: u32) -> Grh {
        Grh {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            traffic_class: 0x68,
            flow_label,
            payload_len: 300,
            hop_limit: 64,
        }
    }

    #[test]
    fn ipv6_header_fills_all_forty_bytes() {
        let g = grh("fd00::1", "fd00::2", 0xabcde);
        let b = g.to_bytes();
        assert_eq!(b[..8], [0x66, 0x8a, 0xbc, 0xde, 0x01, 0x2c, 17, 64]);
        assert_eq!(Grh::parse(&b), Ok(g));
    }

    #[test]
    fn ipv4_header_sits_in_the_last_twenty_bytes() {
        let g = grh("10.77.0.1", "10.77.0.2", 0);
        let b = g.to_bytes();
        assert_eq!(b[..20], [0; 20]);
        assert_eq!(b[20..24], [0x45, 0x68, 0x01, 0x40]);
        // The checksum of a header that contains its checksum is zero.
        assert_eq!(ipv4_checksum(&b[20..]), 0);
        assert_eq!(Grh::parse(&b), Ok(g));
    }

    #[test]
    fn neither_version_is_an_error() {
        assert!(Grh::parse(&[0; 40]).is_err());
        assert!(Grh::parse(&[0x60; 39]).is_err());
    }
}
