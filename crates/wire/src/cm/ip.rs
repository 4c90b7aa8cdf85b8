//! IP addressing for communication management: the header in the private data of REQ and SIDR_REQ, and
//! the service ids of ports (IBTA annex A11, "RDMA IP CM Service").

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::bytes::{array, be16, head, put};
use crate::error::ParseError;
use crate::gid::Gid;

/// The port spaces of RDMA CM, `enum rdma_port_space`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// `RDMA_PS_IPOIB`: multicast and datagrams with IPoIB's Q_Key.
    Ipoib,
    /// `RDMA_PS_TCP`: connections.
    Tcp,
    /// `RDMA_PS_UDP`: datagrams.
    Udp,
    /// `RDMA_PS_IB`: native service ids.
    Ib,
}

impl PortSpace {
    /// The number in the third and fourth byte of a service id.
    pub const fn code(self) -> u16 {
        match self {
            Self::Ipoib => 0x0002,
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }

    /// The port space with this number, or `None`.
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            0x0002 => Some(Self::Ipoib),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }
}

/// The service id of a port: the port space, then the port in the low 16 bits.
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    (space.code() as u64) << 16 | port as u64
}

/// The port space and port of a service id, or `None` if [`service_id`] can't have made it.
pub const fn port_of(service_id: u64) -> Option<(PortSpace, u16)> {
    if service_id >> 32 != 0 {
        return None;
    }
    match PortSpace::from_code((service_id >> 16) as u16) {
        Some(space) => Some((space, service_id as u16)),
        None => None,
    }
}

/// The first 36 bytes of the private data: the IP addresses of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CmaHeader {
    /// The port of the end that connects.
    pub src_port: u16,
    /// The address of the end that connects.
    pub src: IpAddr,
    /// The address of the end that is connected to, of the same family. Its port is in the service id.
    pub dst: IpAddr,
}

impl CmaHeader {
    /// Length in bytes.
    pub const LEN: usize = 36;

    /// Reads the header from the front of the private data.
    ///
    /// # Errors
    /// There are too few bytes, a version other than 0.0, or an IP version other than 4 and 6.
    pub fn parse(private_data: &[u8]) -> Result<Self, ParseError> {
        let b: &[u8; Self::LEN] = head("RDMA IP CM header", private_data)?;
        if b[0] != 0 {
            return Err(ParseError::BadValue {
                what: "RDMA IP CM version",
                expected: "0",
                got: u64::from(b[0]),
            });
        }
        let addr = |at: usize| -> IpAddr {
            if b[1] >> 4 == 4 {
                IpAddr::V4(Ipv4Addr::from_octets(array(b, at + 12)))
            } else {
                IpAddr::V6(Ipv6Addr::from_octets(array(b, at)))
            }
        };
        if !matches!(b[1] >> 4, 4 | 6) {
            return Err(ParseError::BadValue {
                what: "RDMA IP CM IP version",
                expected: "4 or 6",
                got: u64::from(b[1] >> 4),
            });
        }
        Ok(Self { src_port: be16(b, 2), src: addr(4), dst: addr(20) })
    }

    /// The header's bytes. An IPv4 address fills the last 4 of its 16, the others are zero; addresses of
    /// two families are both written as IPv6.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put(&mut b, 2, self.src_port.to_be_bytes());
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.src, self.dst) {
            b[1] = 4 << 4;
            put(&mut b, 16, src.octets());
            put(&mut b, 32, dst.octets());
        } else {
            b[1] = 6 << 4;
            put(&mut b, 4, Gid::from_ip(self.src).0);
            put(&mut b, 20, Gid::from_ip(self.dst).0);
        }
        b
    }

    /// The address and port of the end that connects.
    pub const fn source(&self) -> SocketAddr {
        SocketAddr::new(self.src, self.src_port)
    }
}
