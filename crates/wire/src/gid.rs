//! GIDs: the addresses of RoCE. Their 16 bytes are an IP address (IBTA A17.4.1).

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier. On RoCEv2 it is an IPv6 address, or an IPv4 address mapped into
/// `::ffff:0:0/96`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The empty entry of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// The GID of an IP address.
    pub const fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }

    /// The IP address: IPv4 if it is a mapped one, otherwise IPv6.
    pub const fn to_ip(self) -> IpAddr {
        self.as_ipv6().to_canonical()
    }

    /// The 16 bytes as an IPv6 address, mapped or not.
    const fn as_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.0)
    }

    /// The link-local GID of an Ethernet address, made by EUI-64 (RFC 4291, appendix A): the
    /// universal/local bit is inverted, and `ff:fe` is in the middle. It is index 0 of a RoCE GID
    /// table.
    pub const fn link_local(mac: [u8; 6]) -> Self {
        let eui = eui64(mac);
        let [a, b, c, d, e, f, g, h] = eui;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h])
    }

    /// Whether this is the empty entry.
    pub const fn is_zero(self) -> bool {
        u128::from_be_bytes(self.0) == 0
    }

    /// Whether this is a multicast address: `ff00::/8`, or a mapped IPv4 one of `224.0.0.0/4`.
    pub const fn is_multicast(self) -> bool {
        match self.to_ip() {
            IpAddr::V4(ip) => ip.is_multicast(),
            IpAddr::V6(ip) => ip.is_multicast(),
        }
    }
}

/// The EUI-64 of an Ethernet address, with the universal/local bit inverted. It also serves as node
/// GUID.
pub const fn eui64(mac: [u8; 6]) -> [u8; 8] {
    [mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]]
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self::from_ip(ip)
    }
}

impl From<Gid> for IpAddr {
    fn from(gid: Gid) -> Self {
        gid.to_ip()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_ipv6(), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_mapped() {
        let ip: IpAddr = "10.1.2.3".parse().unwrap();
        let gid = Gid::from_ip(ip);
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(gid.to_ip(), ip);
        assert_eq!(gid.to_string(), "::ffff:10.1.2.3");
    }

    #[test]
    fn ipv6_addresses_are_themselves() {
        let ip: IpAddr = "fd00::7".parse().unwrap();
        assert_eq!(Gid::from_ip(ip).to_ip(), ip);
    }

    #[test]
    fn link_local_is_made_from_the_mac() {
        let gid = Gid::link_local([0x52, 0x54, 0, 0x77, 0, 2]);
        assert_eq!(gid.to_string(), "fe80::5054:ff:fe77:2");
    }

    #[test]
    fn multicast_is_known_in_both_families() {
        assert!(Gid::from_ip("239.1.1.1".parse().unwrap()).is_multicast());
        assert!(Gid::from_ip("ff0e::1".parse().unwrap()).is_multicast());
        assert!(!Gid::from_ip("10.0.0.1".parse().unwrap()).is_multicast());
        assert!(Gid::ZERO.is_zero() && !Gid::ZERO.is_multicast());
    }
}
