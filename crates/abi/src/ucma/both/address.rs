//! Socket addresses in commands, and the source address for a destination.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::net::UdpSocket;

/// `sizeof(struct sockaddr_in6)`, which the older commands contain.
pub(super) const IN6: usize = 28;
/// `sizeof(struct sockaddr_ib)`, and its family.
const IB: usize = 48;
const AF_IB: u16 = 27;

/// An address in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Ip(SocketAddr),
    /// A native InfiniBand address (`struct sockaddr_ib`).
    Ib {
        any: bool,
        port: u16,
    },
}

/// The first `N` bytes from an offset on.
fn at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl Address {
    /// Parses an address; `None` if its family is 0 or unknown.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let port = || at(bytes, 2).map(u16::from_be_bytes);
        match i32::from(u16::from_ne_bytes(at(bytes, 0)?)) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(at::<4>(bytes, 4)?);
                Some(Self::Ip(SocketAddrV4::new(ip, port()?).into()))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(at::<16>(bytes, 8)?);
                let scope = u32::from_ne_bytes(at(bytes, 24)?);
                Some(Self::Ip(SocketAddrV6::new(ip, port()?, 0, scope).into()))
            }
            family if family == i32::from(AF_IB) => Some(Self::Ib {
                any: at::<16>(bytes, 8)? == [0; 16],
                port: u16::from_be_bytes(at(bytes.get(..IB)?, 30)?),
            }),
            _ => None,
        }
    }

    /// Whether it is the wildcard address.
    pub(super) fn is_any(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().to_canonical().is_unspecified(),
            Self::Ib { any, .. } => *any,
        }
    }

    pub(super) fn is_loopback(&self) -> bool {
        matches!(self, Self::Ip(address) if address.ip().to_canonical().is_loopback())
    }

    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Ip(address) => address.port(),
            Self::Ib { port, .. } => *port,
        }
    }

    /// The offset of the port in its bytes.
    pub(super) fn port_at(&self) -> usize {
        match self {
            Self::Ip(_) => 2,
            Self::Ib { .. } => 30,
        }
    }
}

/// An IP address as a `sockaddr_in` or `sockaddr_in6`, without a port.
pub(super) fn sockaddr(address: SocketAddr) -> [u8; IN6] {
    let mut bytes = [0; IN6];
    match address {
        SocketAddr::V4(v4) => {
            bytes[0..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes[0..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// The source address of packets to this destination, according to the kernel's routes; `None`
/// without a route. Nothing is sent.
pub(super) fn source(destination: SocketAddr) -> Option<SocketAddr> {
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    let mut to = destination;
    // Any port is good enough, but some systems reject 0.
    to.set_port(to.port().max(1));
    socket.connect(to).ok()?;
    socket.local_addr().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["10.1.2.3:0", "[fd00::7]:0", "127.0.0.1:0", "[fe80::1%3]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::parse(&sockaddr(address)), Some(Address::Ip(address)), "{text}");
        }
        assert_eq!(Address::parse(&[0; IN6]), None);
        assert_eq!(Address::parse(&[2, 0, 1]), None);
    }

    #[test]
    fn wildcards_and_loopback_are_told_in_either_family() {
        let parse = |text: &str| Address::parse(&sockaddr(text.parse().unwrap())).unwrap();
        assert!(parse("0.0.0.0:0").is_any() && parse("[::]:0").is_any());
        assert!(parse("127.8.0.1:0").is_loopback() && parse("[::1]:0").is_loopback());
        assert!(parse("[::ffff:127.0.0.1]:0").is_loopback());
        assert!(!parse("10.0.0.1:0").is_any() && !parse("10.0.0.1:0").is_loopback());
    }

    #[test]
    fn a_native_address_has_its_port_in_the_service_id() {
        let mut bytes = [0; IB];
        bytes[0] = 27;
        bytes[30..32].copy_from_slice(&7471_u16.to_be_bytes());
        let wildcard = Address::parse(&bytes).unwrap();
        assert!(wildcard.is_any() && wildcard.port() == 7471 && wildcard.port_at() == 30);
        bytes[23] = 1;
        assert!(!Address::parse(&bytes).unwrap().is_any());
    }

    #[test]
    fn loopback_is_reached_from_loopback() {
        let from = source("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(from.ip().is_loopback(), "{from}");
    }
}
