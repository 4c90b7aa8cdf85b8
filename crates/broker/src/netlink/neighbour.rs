//! Requests that change neighbours and hardware addresses.

use std::net::Ipv4Addr;

use super::{Request, attribute};

/// `struct ndmsg` and `struct ifinfomsg`.
const NEIGHBOUR_LEN: usize = 12;
const LINK_LEN: usize = 16;

/// The entry of a neighbour that was just heard.
pub(super) fn neighbour(ifindex: u32, ip: Ipv4Addr, mac: [u8; 6]) -> Request {
    let mut body = vec![0; NEIGHBOUR_LEN];
    body[0] = libc::AF_INET as u8;
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[8..10].copy_from_slice(&libc::NUD_REACHABLE.to_ne_bytes());
    attribute(&mut body, libc::NDA_DST, &ip.octets());
    attribute(&mut body, libc::NDA_LLADDR, &mac);
    Request { kind: libc::RTM_NEWNEIGH, body }
}

/// The hardware address that an interface is to have.
pub(super) fn hardware_address(ifindex: u32, mac: [u8; 6]) -> Request {
    let mut body = vec![0; LINK_LEN];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    attribute(&mut body, libc::IFLA_ADDRESS, &mac);
    Request { kind: libc::RTM_SETLINK, body }
}
