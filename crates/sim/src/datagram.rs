//! Datagrams between the addresses of hosts.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

use polypath_wire::icrc::Flow;

/// A datagram: what a UDP socket takes, and the IP header's share of what it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Addresses and ports.
    pub flow: Flow,
    /// Identification of the IPv4 header, which the ICRC covers.
    pub id: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// UDP payload, ICRC and all.
    pub bytes: Vec<u8>,
    /// Bits that the ICRC covers were flipped on the way: it must not be taken for good.
    pub corrupted: bool,
    /// An attacker made it.
    pub forged: bool,
    /// When it was sent.
    pub sent: Duration,
}

/// The first address of a host on a link: 10.0.`link + 1`.`host + 1`, or fd00:`link + 1`::`host + 1`.
pub fn address(link: usize, host: usize, v6: bool) -> IpAddr {
    let (link, host) = (link as u16 + 1, host as u16 + 1);
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, link, 0, 0, 0, 0, 0, host))
    } else {
        IpAddr::from([10, 0, link as u8, host as u8])
    }
}

/// Another address of a host on a link.
pub fn other_address(link: usize, host: usize, v6: bool) -> IpAddr {
    address(link, host + 100, v6)
}
