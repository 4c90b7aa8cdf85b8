//! A bond or team of the kernel's, and its ports, as rtnetlink tells of them.

use serde::{Deserialize, Serialize};

/// A bond or team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelBond {
    /// The mode, as in `IFLA_BOND_MODE`; `None` for a team, which does not tell it.
    pub mode: Option<u8>,
    /// The hash that spreads flows, as in `IFLA_BOND_XMIT_HASH_POLICY`.
    pub xmit_hash_policy: u8,
}

/// A port of a bond or team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSlave {
    /// The index of the bond or team.
    pub master: u32,
    /// Whether it carries traffic: it has a link, and the bond says nothing against it.
    pub usable: bool,
}

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
const OF_PORTS: [u8; 2] = [1, 4];

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
        self.hashes() && !OF_PORTS.contains(&self.xmit_hash_policy)
    }

    fn hashes(&self) -> bool {
        matches!(self.mode, Some(2 | 4))
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
        assert_eq!(bond(Some(4), 1).mode_name(), "802.3ad");
        assert_eq!(bond(Some(4), 1).hash_policy_name(), Some("layer3+4"));
        assert_eq!(bond(Some(1), 1).hash_policy_name(), None);
        assert_eq!(
            (bond(None, 0).mode_name(), bond(Some(9), 0).mode_name()),
            ("team", "an unknown mode")
        );
    }
}
