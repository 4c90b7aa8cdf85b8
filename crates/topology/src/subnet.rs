//! Subnets, by which a user names peers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The addresses of one family that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    /// Its first address.
    pub ip: IpAddr,
    /// The number of bits that its addresses have in common: 0 to 32, or to 128 for IPv6.
    pub prefix_len: u8,
}

/// The error of a text that is no subnet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubnetError {
    /// It does not have the form of one.
    #[error(
        "`{0}` is no subnet: write an address with the length of its prefix (10.0.1.0/24, fd00::/64), or an \
         address alone"
    )]
    Form(String),
    /// Bits beyond the prefix are set.
    #[error("`{ip}/{}` has bits beyond its prefix: write {subnet}, or {ip} alone", subnet.prefix_len)]
    Bits {
        /// The address as it was given.
        ip: IpAddr,
        /// The subnet that the address is in.
        subnet: Subnet,
    },
}

impl Subnet {
    /// Whether it has this address. IPv4 addresses that are mapped into IPv6 count as IPv4.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_ipv4() == self.ip.is_ipv4() && masked(ip, self.prefix_len) == self.ip
    }
}

/// Whether two addresses are of one family and begin with the same `prefix_len` bits.
#[must_use]
pub fn same_prefix(a: IpAddr, b: IpAddr, prefix_len: u8) -> bool {
    masked(a, prefix_len) == masked(b, prefix_len)
}

/// An address with the bits beyond the prefix cleared.
fn masked(ip: IpAddr, prefix_len: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len).min(32)).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix_len).min(128)).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & mask).into())
        }
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || SubnetError::Form(text.chars().take(64).collect());
        let (ip, len) = match text.split_once('/') {
            Some((ip, len)) => (ip, Some(len)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| form())?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let prefix_len: u8 = match len {
            None => width,
            Some(len) => len.parse().ok().filter(|len| *len <= width).ok_or_else(form)?,
        };
        let subnet = Self { ip: masked(ip, prefix_len), prefix_len };
        if subnet.ip != ip {
            return Err(SubnetError::Bits { ip, subnet });
        }
        // A peer with a mapped address is known by its IPv4 address.
        match ip.to_canonical() {
            v4 @ IpAddr::V4(_) if prefix_len >= 96 && ip.is_ipv6() => {
                Ok(Self { ip: v4, prefix_len: prefix_len - 96 })
            }
            _ => Ok(subnet),
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ip, prefix_len } = self;
        if *prefix_len == if ip.is_ipv4() { 32 } else { 128 } {
            return ip.fmt(f);
        }
        write!(f, "{ip}/{prefix_len}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> Subnet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_compare_within_a_family() {
        assert!(same_prefix(ip("10.0.0.1"), ip("10.0.0.200"), 24));
        assert!(!same_prefix(ip("10.0.0.1"), ip("10.0.1.1"), 24));
        assert!(same_prefix(ip("10.0.0.1"), ip("192.168.0.1"), 0));
        assert!(!same_prefix(ip("10.0.0.1"), ip("2001:db8::1"), 0));
        assert!(same_prefix(ip("2001:db8::1"), ip("2001:db8::2"), 64));
    }

    #[test]
    fn what_is_printed_parses_back() {
        for text in ["10.0.1.0/24", "10.0.1.7", "0.0.0.0/0", "fd00::/64", "::/0", "fd00::7"] {
            assert_eq!(subnet(text).to_string(), text);
        }
        assert_eq!(subnet("::ffff:10.0.1.0/120"), subnet("10.0.1.0/24"));
    }

    #[test]
    fn a_subnet_has_the_addresses_of_its_family_that_begin_as_it_does() {
        let has = |text: &str, ip: &str| subnet(text).contains(ip.parse().unwrap());
        assert!(has("10.0.1.0/24", "10.0.1.255") && !has("10.0.1.0/24", "10.0.2.1"));
        assert!(has("10.0.1.0/24", "::ffff:10.0.1.9"), "it is IPv4");
        assert!(has("0.0.0.0/0", "10.0.2.1") && !has("0.0.0.0/0", "fd00::1"));
        assert!(has("fd00::/64", "fd00::1:2") && !has("fd00::/64", "fd00:0:0:1::1"));
        assert!(has("::/0", "fd00::1") && !has("::/0", "10.0.0.1"));
        assert!(has("10.0.1.7", "10.0.1.7") && !has("10.0.1.7", "10.0.1.6"));
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for text in ["", "eth0", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "10.0.0.0/", "1.2.3.4/x"]
        {
            let error = text.parse::<Subnet>().unwrap_err().to_string();
            assert!(error.contains("write an address") && error.contains(text), "{error}");
        }
        let error = "10.0.1.7/24".parse::<Subnet>().unwrap_err().to_string();
        assert!(error.contains("write 10.0.1.0/24, or 10.0.1.7 alone"), "{error}");
    }
}
