//! Socket addresses: `sockaddr_in`, `sockaddr_in6` and `sockaddr_ib`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use serde::{Deserialize, Serialize};

use polypath_wire::Gid;

use super::Reader;
use crate::errno;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const AF_IB: u16 = 27;

/// Size of `struct __kernel_sockaddr_storage`.
pub(crate) const STORAGE_LEN: usize = 128;
/// Size of `struct sockaddr_in6`, which the older commands carry.
pub(crate) const SOCKADDR_IN6_LEN: usize = 28;
const SOCKADDR_IN_LEN: usize = 16;
const SOCKADDR_IB_LEN: usize = 48;

/// The family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Inet,
    Inet6,
    Ib,
}

/// A native InfiniBand address (`struct sockaddr_ib`); on Ethernet its GID is an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IbAddress {
    pub(crate) pkey: u16,
    pub(crate) flowinfo: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) sid: u64,
    pub(crate) sid_mask: u64,
    pub(crate) scope_id: u64,
}

/// An address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Address {
    V4 { ip: Ipv4Addr, port: u16 },
    V6 { ip: Ipv6Addr, port: u16, flowinfo: u32, scope_id: u32 },
    Ib(IbAddress),
}

impl Address {
    /// The wildcard of a family, without a port.
    pub(crate) fn wildcard(family: Family) -> Self {
        match family {
            Family::Inet => Self::V4 { ip: Ipv4Addr::UNSPECIFIED, port: 0 },
            Family::Inet6 => {
                Self::V6 { ip: Ipv6Addr::UNSPECIFIED, port: 0, flowinfo: 0, scope_id: 0 }
            }
            Family::Ib => Self::Ib(IbAddress {
                pkey: 0,
                flowinfo: 0,
                gid: [0; 16],
                sid: 0,
                sid_mask: 0,
                scope_id: 0,
            }),
        }
    }

    /// An IP address with its port. The scope is kept for link-local addresses only.
    pub(crate) fn from_ip(ip: IpAddr, port: u16, ifindex: u32) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::V4 { ip, port },
            IpAddr::V6(ip) => {
                let scope_id = if ip.is_unicast_link_local() { ifindex } else { 0 };
                Self::V6 { ip, port, flowinfo: 0, scope_id }
            }
        }
    }

    /// Parses a socket address. Returns `Ok(None)` if its family is 0, and EAFNOSUPPORT for a
    /// family that is none of the three.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, i32> {
        let r = Reader::new(bytes);
        let port = || r.array(2).map(u16::from_be_bytes);
        match r.u16(0)? {
            0 => Ok(None),
            AF_INET => {
                let ip = Ipv4Addr::from(r.array::<4>(4)?);
                Ok(Some(Self::V4 { ip, port: port()? }))
            }
            AF_INET6 => Ok(Some(Self::V6 {
                port: port()?,
                flowinfo: r.array(4).map(u32::from_be_bytes)?,
                ip: Ipv6Addr::from(r.array::<16>(8)?),
                scope_id: r.u32(24)?,
            })),
            AF_IB => Ok(Some(Self::Ib(IbAddress {
                pkey: port()?,
                flowinfo: r.array(4).map(u32::from_be_bytes)?,
                gid: r.array(8)?,
                sid: r.array(24).map(u64::from_be_bytes)?,
                sid_mask: r.array(32).map(u64::from_be_bytes)?,
                scope_id: r.u64(40)?,
            }))),
            _ => Err(errno::EAFNOSUPPORT),
        }
    }

    /// The size of the structure in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::V4 { .. } => SOCKADDR_IN_LEN,
            Self::V6 { .. } => SOCKADDR_IN6_LEN,
            Self::Ib(_) => SOCKADDR_IB_LEN,
        }
    }

    /// The bytes of the structure.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = super::Writer::new(self.len());
        match *self {
            Self::V4 { ip, port } => {
                w.put_u16(0, AF_INET);
                w.put(2, &port.to_be_bytes());
                w.put(4, &ip.octets());
            }
            Self::V6 { ip, port, flowinfo, scope_id } => {
                w.put_u16(0, AF_INET6);
                w.put(2, &port.to_be_bytes());
                w.put(4, &flowinfo.to_be_bytes());
                w.put(8, &ip.octets());
                w.put_u32(24, scope_id);
            }
            Self::Ib(ib) => {
                w.put_u16(0, AF_IB);
                w.put(2, &ib.pkey.to_be_bytes());
                w.put(4, &ib.flowinfo.to_be_bytes());
                w.put(8, &ib.gid);
                w.put(24, &ib.sid.to_be_bytes());
                w.put(32, &ib.sid_mask.to_be_bytes());
                w.put_u64(40, ib.scope_id);
            }
        }
        w.into_bytes()
    }

    pub(crate) fn family(&self) -> Family {
        match self {
            Self::V4 { .. } => Family::Inet,
            Self::V6 { .. } => Family::Inet6,
            Self::Ib(_) => Family::Ib,
        }
    }

    /// The port. A native address has it in the bits of its service id that the mask covers.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::V4 { port, .. } | Self::V6 { port, .. } => *port,
            Self::Ib(ib) => (ib.sid & ib.sid_mask) as u16,
        }
    }

    pub(crate) fn with_port(mut self, new: u16) -> Self {
        match &mut self {
            Self::V4 { port, .. } | Self::V6 { port, .. } => *port = new,
            Self::Ib(ib) => {
                ib.sid = (ib.sid & ib.sid_mask & !0xffff) | u64::from(new);
                ib.sid_mask = u64::MAX;
            }
        }
        self
    }

    /// Replaces the address and keeps the port.
    pub(crate) fn with_ip(self, ip: IpAddr, ifindex: u32) -> Self {
        match self {
            Self::Ib(mut ib) => {
                ib.gid = gid_of(ip);
                Self::Ib(ib)
            }
            _ => Self::from_ip(ip, self.port(), ifindex),
        }
    }

    /// The IP address. A native address has it in its GID.
    pub(crate) fn ip(&self) -> IpAddr {
        match self {
            Self::V4 { ip, .. } => IpAddr::V4(*ip),
            Self::V6 { ip, .. } => IpAddr::V6(*ip),
            Self::Ib(ib) => ip_of(&ib.gid),
        }
    }

    /// Whether this is the wildcard address.
    pub(crate) fn is_unspecified(&self) -> bool {
        match self {
            Self::V4 { ip, .. } => ip.octets()[0] == 0,
            Self::V6 { ip, .. } => ip.is_unspecified(),
            Self::Ib(ib) => ib.gid == [0; 16],
        }
    }

    /// Whether the address is unspecified, or the host's loopback address, which no RDMA port has.
    pub(crate) fn is_any(&self) -> bool {
        self.is_unspecified() || self.ip().is_loopback()
    }

    /// The interface that a link-local address belongs to; EINVAL if the address does not name one.
    pub(crate) fn link_local_scope(&self) -> Result<Option<u32>, i32> {
        match self {
            Self::V6 { ip, scope_id, .. } if ip.is_unicast_link_local() => {
                if *scope_id == 0 {
                    Err(errno::EINVAL)
                } else {
                    Ok(Some(*scope_id))
                }
            }
            _ => Ok(None),
        }
    }

    /// The address in the form that is shown to people.
    pub(crate) fn to_socket_addr(self) -> SocketAddr {
        match self {
            Self::V6 { ip, port, scope_id, .. } => {
                core::net::SocketAddrV6::new(ip, port, 0, scope_id).into()
            }
            _ => SocketAddr::new(self.ip(), self.port()),
        }
    }
}

/// The GID of an IP address.
pub(crate) fn gid_of(ip: IpAddr) -> [u8; 16] {
    Gid::from_ip(ip).0
}

/// The IP address of a GID.
pub(crate) fn ip_of(gid: &[u8; 16]) -> IpAddr {
    Gid(*gid).to_ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for address in [
            Address::V4 { ip: Ipv4Addr::new(10, 0, 0, 1), port: 7174 },
            Address::V6 {
                ip: "fe80::1".parse().unwrap(),
                port: 9,
                flowinfo: 0x000a_bcde,
                scope_id: 3,
            },
            Address::Ib(IbAddress {
                pkey: 0xffff,
                flowinfo: 5,
                gid: [7; 16],
                sid: 0x0000_0000_0106_1234,
                sid_mask: u64::MAX,
                scope_id: 9,
            }),
        ] {
            let bytes = address.encode();
            assert_eq!(bytes.len(), address.len());
            assert_eq!(Address::parse(&bytes), Ok(Some(address)));
            for len in 2..bytes.len().min(8) {
                assert_eq!(Address::parse(&bytes[..len]), Err(errno::EINVAL));
            }
        }
    }

    #[test]
    fn a_native_address_has_its_port_in_the_service_id() {
        let Address::Ib(mut ib) = Address::wildcard(Family::Ib) else { unreachable!() };
        ib.sid = 0x0106_0000;
        ib.sid_mask = 0xffff_ffff_ffff_0000;
        let address = Address::Ib(ib);
        assert_eq!(address.port(), 0);
        let bound = address.with_port(4711);
        assert_eq!(bound.port(), 4711);
        assert!(matches!(bound, Address::Ib(ib) if ib.sid == 0x0106_0000 | 4711));
    }

    #[test]
    fn a_link_local_address_needs_its_interface() {
        let address = |scope_id| Address::V6 {
            ip: "fe80::1".parse().unwrap(),
            port: 0,
            flowinfo: 0,
            scope_id,
        };
        assert_eq!(address(0).link_local_scope(), Err(errno::EINVAL));
        assert_eq!(address(4).link_local_scope(), Ok(Some(4)));
    }
}
