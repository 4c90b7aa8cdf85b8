//! A bond or team of the kernel's, and its ports, as rtnetlink tells of them.

use serde::{Deserialize, Serialize};

use crate::bonding::{Bonding, PORTS_MAX, Policy};

/// A bond or team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelBond {
    /// The mode, as in `IFLA_BOND_MODE`; `None` for a team, which does not tell it.
    pub mode: Option<u8>,
    /// The hash that spreads flows, as in `IFLA_BOND_XMIT_HASH_POLICY`.
    pub xmit_hash_policy: u8,
}

/// The packets of which a bond hashes addresses and UDP ports, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashedPorts {
    /// All (`layer3+4`).
    All,
    /// Those of IPv4 (`encap3+4`). IPv6 packets have a random hash of their own, of which the kernel makes
    /// their flow label, and which it prefers.
    Ipv4,
}

/// A port of a bond or team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSlave {
    /// The index of the bond or team.
    pub master: u32,
    /// Whether it carries traffic: it has a link, and the bond says nothing against it.
    pub usable: bool,
    /// Its place among the ports, in the order in which the kernel keeps them, from 0.
    pub place: u16,
}

const ROUND_ROBIN: u8 = 0;
const XOR: u8 = 2;
/// The mode in which all ports send the same.
pub(crate) const BROADCAST: u8 = 3;
const LACP: u8 = 4;

/// The modes in the order of their numbers.
const MODES: [&str; 7] = [
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
];

/// The hash policies in the order of their numbers.
const HASH_POLICIES: [&str; 6] =
    ["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"];

/// The hash policies that look at UDP ports.
const LAYER34: u8 = 1;
const ENCAP34: u8 = 4;

impl KernelBond {
    /// The mode's name; `team` for a team.
    #[must_use]
    pub fn mode_name(&self) -> &'static str {
        let Some(mode) = self.mode else { return "team" };
        MODES.get(usize::from(mode)).copied().unwrap_or("an unknown mode")
    }

    /// The hash policy's name, in modes that hash (`balance-xor` and `802.3ad`).
    #[must_use]
    pub fn hash_policy_name(&self) -> Option<&'static str> {
        let name = HASH_POLICIES.get(usize::from(self.xmit_hash_policy)).copied();
        self.hashes().then(|| name.unwrap_or("an unknown policy"))
    }

    /// Whether everything to one peer leaves by the same port, because the hash does not look at UDP ports.
    #[must_use]
    pub fn has_one_link_per_peer(&self) -> bool {
        self.hashes() && !matches!(self.xmit_hash_policy, LAYER34 | ENCAP34)
    }

    /// Of which packets the port by which they leave can be computed from their addresses and UDP ports; `None`
    /// if of none.
    #[must_use]
    pub fn hashed_ports(&self) -> Option<HashedPorts> {
        match self.xmit_hash_policy {
            _ if !self.hashes() => None,
            LAYER34 => Some(HashedPorts::All),
            ENCAP34 => Some(HashedPorts::Ipv4),
            _ => None,
        }
    }

    /// How a device that adopts the bond uses its paths unless the user says otherwise. `links` is the number
    /// of its ports. Where the kernel spreads what has different UDP source ports, there are as many of these
    /// as ports, and a queue pair uses all; elsewhere there is one path.
    #[must_use]
    pub fn settings(&self, links: usize) -> Bonding {
        let spreads = match self.mode {
            Some(ROUND_ROBIN) => true,
            Some(XOR | LACP) => !self.has_one_link_per_peer(),
            _ => false,
        };
        if !spreads {
            return Bonding::default();
        }
        let ports = u8::try_from(links).unwrap_or(PORTS_MAX).clamp(1, PORTS_MAX);
        Bonding { policy: Some(Policy::Balance), ports: Some(ports), ..Bonding::default() }
    }

    fn hashes(&self) -> bool {
        matches!(self.mode, Some(XOR | LACP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_modes_that_hash_without_ports_have_one_link_per_peer() {
        let bond = |mode, xmit_hash_policy| KernelBond { mode, xmit_hash_policy };
        for (mode, policy, one) in [
            (Some(4), 0, true),
            (Some(4), 1, false),
            (Some(2), 2, true),
            (Some(2), 3, true),
            (Some(2), 4, false),
            (Some(2), 5, true),
            (Some(1), 0, false),
            (None, 0, false),
        ] {
            assert_eq!(bond(mode, policy).has_one_link_per_peer(), one, "{mode:?} {policy}");
        }
        for (mode, policy, hashed) in [
            (Some(4), 1, Some(HashedPorts::All)),
            (Some(2), 4, Some(HashedPorts::Ipv4)),
            (Some(2), 0, None),
            (Some(1), 1, None),
            (None, 1, None),
        ] {
            assert_eq!(bond(mode, policy).hashed_ports(), hashed, "{mode:?} {policy}");
        }
        assert_eq!(bond(Some(4), 1).mode_name(), "802.3ad");
        assert_eq!(bond(Some(4), 1).hash_policy_name(), Some("layer3+4"));
        assert_eq!(bond(Some(1), 1).hash_policy_name(), None);
        assert_eq!(
            (bond(None, 0).mode_name(), bond(Some(9), 0).mode_name()),
            ("team", "an unknown mode")
        );
    }
    #[test]
    fn a_queue_pair_uses_all_ports_where_the_kernel_spreads_source_ports() {
        let of = |mode, xmit_hash_policy, links| {
            KernelBond { mode, xmit_hash_policy }.settings(links).to_string()
        };
        for (mode, policy) in [(0, 0), (2, 1), (2, 4), (4, 1), (4, 4)] {
            assert_eq!(of(Some(mode), policy, 2), "balance,ports=2", "{mode} {policy}");
        }
        for (mode, policy) in [(1, 1), (2, 0), (2, 2), (3, 1), (4, 0), (4, 5), (5, 1), (6, 1)] {
            assert_eq!(of(Some(mode), policy, 2), "", "{mode} {policy}");
        }
        assert_eq!(of(None, 0, 2), "", "a team");
        assert_eq!(
            (of(Some(4), 1, 0), of(Some(4), 1, 99)),
            ("balance,ports=1".to_owned(), "balance,ports=8".to_owned())
        );
    }
}
