//! Selectors, by which a user names paths.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest interface name in bytes (`IFNAMSIZ` − 1).
const INTERFACE_MAX: usize = 15;

/// A set of paths: those over an interface, from or to an address, or between two addresses.
///
/// ```
/// use polypath_topology::PathSelector;
/// assert_eq!("eth0".parse(), Ok(PathSelector::Interface("eth0".into())));
/// assert_eq!(
///     "10.0.0.1-10.0.0.2".parse(),
///     Ok(PathSelector::Pair("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()))
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathSelector {
    /// All paths that leave through the interface of this name.
    Interface(String),
    /// All paths from or to this address.
    Address(IpAddr),
    /// The paths between a local and a remote address, in this order.
    Pair(IpAddr, IpAddr),
}

impl PathSelector {
    /// Whether the path over `interface` from `local` to `remote` is in the set.
    #[must_use]
    pub fn matches(&self, interface: &str, local: IpAddr, remote: IpAddr) -> bool {
        match self {
            Self::Interface(name) => name == interface,
            Self::Address(ip) => *ip == local || *ip == remote,
            Self::Pair(from, to) => *from == local && *to == remote,
        }
    }

    /// Whether every path from `local` over `interface` is in the set.
    #[must_use]
    pub fn covers_local(&self, interface: &str, local: IpAddr) -> bool {
        match self {
            Self::Interface(name) => name == interface,
            Self::Address(ip) => *ip == local,
            Self::Pair(..) => false,
        }
    }
}

/// The error of a text that names no paths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no path: write an interface (eth0), an address (10.0.0.1) or a local and a remote \
     address (10.0.0.1-10.0.0.2)"
)]
pub struct PathSelectorError(String);

impl FromStr for PathSelector {
    type Err = PathSelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(ip) = text.parse() {
            return Ok(Self::Address(ip));
        }
        if let Some((from, to)) = text.split_once('-')
            && let (Ok(from), Ok(to)) = (from.trim().parse(), to.trim().parse())
        {
            return Ok(Self::Pair(from, to));
        }
        let bad = |c: char| c.is_whitespace() || c == '/' || c == ':' || c.is_control();
        if text.is_empty() || text.len() > INTERFACE_MAX || text.contains(bad) {
            return Err(PathSelectorError(text.chars().take(64).collect()));
        }
        Ok(Self::Interface(text.to_owned()))
    }
}

impl fmt::Display for PathSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => f.write_str(name),
            Self::Address(ip) => ip.fmt(f),
            Self::Pair(from, to) => write!(f, "{from}-{to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_name_with_a_dash_is_an_interface() {
        assert_eq!("veth-a".parse(), Ok(PathSelector::Interface("veth-a".into())));
    }

    #[test]
    fn what_is_printed_parses_back() {
        for text in ["eth0", "fe80::1", "10.0.0.1", "2001:db8::1-2001:db8::2"] {
            assert_eq!(text.parse::<PathSelector>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        for text in ["", "a b", "an-interface-name-too-long", "eth0/1"] {
            let error = text.parse::<PathSelector>().unwrap_err();
            assert!(error.to_string().contains("10.0.0.1-10.0.0.2"));
        }
    }
}
