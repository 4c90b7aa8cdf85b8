//! A bond or team of the kernel's, and its ports, as rtnetlink tells of them.

use serde::{Deserialize, Serialize};

use crate::bonding::{Bonding, PORTS_MAX, Policy};
use crate::interface::Port;
use crate::table::Table;

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
    /// Its place among the ports, in the order in which the kernel keeps them, from 0.
    pub place: u16,
}

const ROUND_ROBIN: u8 = 0;
const XOR: u8 = 2;
const BROADCAST: u8 = 3;
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

    /// Whether the port by which a packet leaves can be computed from its addresses and UDP ports. With
    /// `encap3+4` it depends on what the kernel has noted beside the packet as well.
    #[must_use]
    pub fn is_computable(&self) -> bool {
        self.hashes() && self.xmit_hash_policy == LAYER34
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

/// The ports of the bond or team with this index, in the kernel's order.
#[must_use]
pub fn links_of(table: &Table, ifindex: u32) -> Vec<&Port> {
    let of = |port: &Port| port.slave.filter(|slave| slave.master == ifindex);
    let mut links: Vec<&Port> = table.ports.iter().filter(|port| of(port).is_some()).collect();
    links.sort_by_key(|port| of(port).map(|slave| (slave.place, port.ifindex)));
    links
}

impl Port {
    /// Whether packets can leave by it now. If it is a bond of the kernel's, one of its ports must carry
    /// traffic, which shows earlier than the bond's own state.
    #[must_use]
    pub fn carries(&self, table: &Table) -> bool {
        let usable = |link: &&Port| link.slave.is_some_and(|slave| slave.usable);
        self.link_up && self.holds_for_links(table, |links| links.iter().any(usable))
    }

    /// Whether it has a link. If it is a bond of the kernel's, one of its ports must have one, even if
    /// another one is active: the kernel will choose it in a moment.
    #[must_use]
    pub fn has_link(&self, table: &Table) -> bool {
        self.link_up && self.holds_for_links(table, |links| links.iter().any(|link| link.link_up))
    }

    /// Whether it is no bond, or one of whose ports nothing is known, or one whose ports satisfy `holds`.
    fn holds_for_links(&self, table: &Table, holds: impl Fn(&[&Port]) -> bool) -> bool {
        if self.bond.is_none() {
            return true;
        }
        let links = links_of(table, self.ifindex);
        links.is_empty() || holds(&links)
    }

    /// The speed in Mbit/s; `None` if no driver reports one. That of a bond of the kernel's is the sum of the
    /// ports that carry traffic, or, if all of them send the same, the least.
    #[must_use]
    pub fn rate_mbps(&self, table: &Table) -> Option<u32> {
        // What a team's ports carry depends on its runner, which the kernel does not know.
        let Some(mode) = self.bond.and_then(|bond| bond.mode) else { return self.speed_mbps };
        let links = links_of(table, self.ifindex);
        let usable = links.iter().filter(|link| link.slave.is_some_and(|slave| slave.usable));
        let speeds = usable.filter_map(|link| link.speed_mbps);
        let both = |a: u32, b| if mode == BROADCAST { a.min(b) } else { a.saturating_add(b) };
        speeds.reduce(both).or(self.speed_mbps)
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

    /// A bond in this mode with two ports, of 10 and 25 Gbit/s, of which each has a link, and carries.
    fn table(mode: Option<u8>, links: [(bool, bool); 2]) -> Table {
        let link = |(n, (link_up, usable)): (u16, (bool, bool))| Port {
            link_up,
            speed_mbps: Some([10_000, 25_000][usize::from(n)]),
            enslaved: true,
            slave: Some(KernelSlave { master: 9, usable, place: 1 - n }),
            ..Port::ethernet(u32::from(n) + 2, &format!("eth{n}"))
        };
        let bond = Port {
            bond: Some(KernelBond { mode, xmit_hash_policy: 1 }),
            speed_mbps: Some(7),
            ..Port::ethernet(9, "bond0")
        };
        let ports = (0..).zip(links).map(link).chain([bond]).collect();
        Table { ports, ..Table::default() }
    }

    #[test]
    fn the_speed_of_a_bond_is_that_of_the_ports_that_carry() {
        let (up, idle, down) = ((true, true), (true, false), (false, false));
        for (mode, links, speed) in [
            (Some(4), [up, up], 35_000),
            (Some(0), [up, down], 10_000),
            (Some(1), [idle, up], 25_000),
            (Some(3), [up, up], 10_000),
            (Some(4), [down, down], 7),
            (None, [up, up], 7),
        ] {
            let table = table(mode, links);
            assert_eq!(table.ports[2].rate_mbps(&table), Some(speed), "{mode:?} {links:?}");
            assert_eq!(table.ports[0].rate_mbps(&table), Some(10_000));
        }
    }

    #[test]
    fn a_bond_has_a_link_while_a_port_has_one_and_carries_while_a_port_does() {
        let (up, idle, down) = ((true, true), (true, false), (false, false));
        let of = |links| {
            let table = table(Some(1), links);
            (table.ports[2].has_link(&table), table.ports[2].carries(&table))
        };
        assert_eq!(of([up, down]), (true, true));
        assert_eq!(of([down, idle]), (true, false), "before the kernel's fail-over");
        assert_eq!(of([down, down]), (false, false), "before the bond's own state follows");
        let mut alone = table(Some(1), [up, up]);
        alone.ports.drain(..2);
        assert!(alone.ports[0].carries(&alone) && alone.ports[0].has_link(&alone));
        alone.ports[0].link_up = false;
        assert!(!alone.ports[0].carries(&alone));
    }

    #[test]
    fn ports_are_in_the_kernels_order() {
        let table = table(Some(4), [(true, true); 2]);
        let names: Vec<&str> = links_of(&table, 9).iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["eth1", "eth0"]);
        assert!(links_of(&table, 2).is_empty());
    }
}
