//! Big-endian reading and writing of message fields.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads fields from the front of a message; every method returns `None` when too few bytes are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
    pub(crate) fn ip(&mut self) -> Option<IpAddr> {
        self.take::<16>().map(ip_from)
    }
}

/// The address in the 16 bytes of an IPv6 address; IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn ip_from(bytes: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
}

/// Whether one host may own this address: not unspecified, multicast or broadcast.
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_unspecified() && !v4.is_multicast() && v4 != Ipv4Addr::BROADCAST,
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast(),
    }
}

/// Whether this is an IPv6 address that is valid on one link only.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Whether `a` lies in the subnet of `b` with a prefix of `len` bits; `false` if the families differ.
pub(crate) fn in_subnet(a: IpAddr, b: IpAddr, len: u8) -> bool {
    let (a, b, width) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let host_bits = width - u32::from(len).min(width);
    let shift = |x: u128| x.checked_shr(host_bits).unwrap_or(0);
    shift(a) == shift(b)
}

/// Spreads paths over source ports.
pub(crate) fn spread(local: IpAddr, remote: IpAddr, salt: u32) -> u32 {
    let mut h = 0x811c_9dc5u32 ^ salt;
    for ip in [local, remote] {
        for byte in ip_bytes(ip) {
            h = (h ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    }
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    #[test]
    fn subnets_are_compared_by_their_prefix() {
        assert!(in_subnet(ip("10.0.1.2"), ip("10.0.1.1"), 24));
        assert!(!in_subnet(ip("10.0.2.2"), ip("10.0.1.1"), 24));
        assert!(in_subnet(ip("10.0.2.2"), ip("99.0.1.1"), 0));
        assert!(!in_subnet(ip("10.0.1.2"), ip("10.0.1.1"), 32));
        assert!(in_subnet(ip("fd00::1"), ip("fd00::2"), 64));
        assert!(in_subnet(ip("fd00::1"), ip("1::"), 0));
        assert!(!in_subnet(ip("fd00::1"), ip("10.0.1.1"), 0));
        assert!(!in_subnet(ip("10.0.1.2"), ip("10.0.1.1"), 200));
    }

    #[test]
    fn ipv4_travels_as_mapped_ipv6() {
        let bytes = ip_bytes(ip("10.0.1.2"));
        assert_eq!(&bytes[10..], &[0xff, 0xff, 10, 0, 1, 2]);
        assert_eq!(Reader(&bytes).ip(), Some(ip("10.0.1.2")));
        assert_eq!(Reader(&bytes[1..]).ip(), None);
    }
}
