//! Datagrams between the addresses of hosts.

use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

use polypath_wire::icrc::Flow;

/// A datagram: the payload that a UDP socket sends, and the fields of its IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The IP addresses and UDP ports.
    pub flow: Flow,
    /// The identification of the IPv4 header, which the ICRC covers.
    pub id: u16,
    /// The traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// The TTL or hop limit.
    pub hop_limit: u8,
    /// The IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// The UDP payload, with the ICRC.
    pub bytes: Vec<u8>,
    /// Whether bits that the ICRC covers were flipped on the way, so that no receiver may accept it.
    pub corrupted: bool,
    /// Whether an attacker made it.
    pub forged: bool,
    /// The virtual time when it was sent.
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

/// The address that a host has on a link after its first one was replaced.
pub fn other_address(link: usize, host: usize, v6: bool) -> IpAddr {
    address(link, host + 100, v6)
}
