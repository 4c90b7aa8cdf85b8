//! Requests that ask for and change neighbours, and hardware addresses.

use std::net::{IpAddr, Ipv4Addr};

use super::attributes::{Reader, family, ip_attribute};
use super::{Request, attribute};

/// `struct ndmsg` and `struct ifinfomsg`.
const NEIGHBOUR_LEN: usize = 12;
const LINK_LEN: usize = 16;

/// What the kernel knows of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeighbourEntry {
    /// It has a hardware address, which may be old, or needs none.
    Known,
    /// It is being asked for its hardware address.
    Asked,
    /// It has not answered.
    Failed,
    /// Nobody has asked for it.
    Unknown,
}

/// The entry of a neighbour, of which nothing is known but where it is.
fn entry(ifindex: u32, ip: IpAddr) -> Vec<u8> {
    let mut body = vec![0; NEIGHBOUR_LEN];
    body[0] = family(ip);
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    ip_attribute(&mut body, libc::NDA_DST, ip);
    body
}

/// A question for the entry of a neighbour.
pub(super) fn question(ifindex: u32, ip: IpAddr) -> Request {
    Request { kind: libc::RTM_GETNEIGH, body: entry(ifindex, ip) }
}

/// The state in an entry (`struct ndmsg`).
pub(super) fn parse(body: &[u8]) -> NeighbourEntry {
    match Reader(body).u16(8).unwrap_or(libc::NUD_NONE) {
        libc::NUD_NONE => NeighbourEntry::Unknown,
        libc::NUD_INCOMPLETE => NeighbourEntry::Asked,
        libc::NUD_FAILED => NeighbourEntry::Failed,
        _ => NeighbourEntry::Known,
    }
}

/// The entry of a neighbour that was just heard.
pub(super) fn neighbour(ifindex: u32, ip: Ipv4Addr, mac: [u8; 6]) -> Request {
    let mut body = entry(ifindex, ip.into());
    body[8..10].copy_from_slice(&libc::NUD_REACHABLE.to_ne_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_an_entry_is_read() {
        let entry = |state: u16| {
            let mut body = vec![0; NEIGHBOUR_LEN];
            body[8..10].copy_from_slice(&state.to_ne_bytes());
            parse(&body)
        };
        for known in [libc::NUD_REACHABLE, libc::NUD_STALE, libc::NUD_DELAY, libc::NUD_NOARP] {
            assert_eq!(entry(known), NeighbourEntry::Known);
        }
        assert_eq!(entry(libc::NUD_INCOMPLETE), NeighbourEntry::Asked);
        assert_eq!(entry(libc::NUD_FAILED), NeighbourEntry::Failed);
        assert_eq!((entry(0), parse(&[])), (NeighbourEntry::Unknown, NeighbourEntry::Unknown));
    }
}
