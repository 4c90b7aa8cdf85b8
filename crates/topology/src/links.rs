//! The links below an interface: a bond of the kernel's has the state and the speed of its ports.

use crate::interface::Port;
use crate::kernel_bond::BROADCAST;
use crate::table::Table;

/// The ports of the bond or team with this index, in the kernel's order.
#[must_use]
pub fn links_of(table: &Table, ifindex: u32) -> Vec<&Port> {
    let of = |port: &Port| port.slave.filter(|slave| slave.master == ifindex);
    let mut links: Vec<&Port> = table.ports.iter().filter(|port| of(port).is_some()).collect();
    links.sort_by_key(|port| of(port).map(|slave| (slave.place, port.ifindex)));
    links
}

/// The interfaces above the bond or team with this index (VLANs, macvlans, ipvlans, bridges) that can carry a
/// device.
pub fn above(table: &Table, ifindex: u32) -> impl Iterator<Item = &Port> {
    table.ports.iter().filter(move |port| port.above == Some(ifindex) && port.usable())
}

impl Port {
    /// The bond or team that it is, or that it stands on.
    fn below<'a>(&'a self, table: &'a Table) -> &'a Self {
        self.above.and_then(|ifindex| table.port(ifindex)).unwrap_or(self)
    }

    /// Whether packets can leave by it now. If it is a bond of the kernel's, or above one, one of the bond's
    /// ports must carry traffic, which shows earlier than the bond's own state.
    #[must_use]
    pub fn carries(&self, table: &Table) -> bool {
        let usable = |link: &&Self| link.slave.is_some_and(|slave| slave.usable);
        self.link_up && self.holds_for_links(table, |links| links.iter().any(usable))
    }

    /// Whether it has a link. If it is a bond of the kernel's, or above one, one of the bond's ports must
    /// have one, even if another one is active: the kernel will choose it in a moment.
    #[must_use]
    pub fn has_link(&self, table: &Table) -> bool {
        self.link_up && self.holds_for_links(table, |links| links.iter().any(|link| link.link_up))
    }

    /// Whether it stands on no bond, or on one of whose ports nothing is known, or on one whose ports satisfy
    /// `holds`.
    fn holds_for_links(&self, table: &Table, holds: impl Fn(&[&Self]) -> bool) -> bool {
        let below = self.below(table);
        if below.bond.is_none() {
            return true;
        }
        let links = links_of(table, below.ifindex);
        links.is_empty() || holds(&links)
    }

    /// The speed in Mbit/s; `None` if no driver reports one. That of a bond of the kernel's, and of what is
    /// above it, is the sum of the ports that carry traffic, or, if all of them send the same, the least.
    #[must_use]
    pub fn rate_mbps(&self, table: &Table) -> Option<u32> {
        let below = self.below(table);
        // What a team's ports carry depends on its runner, which the kernel does not know.
        let Some(mode) = below.bond.and_then(|bond| bond.mode) else { return below.speed_mbps };
        let links = links_of(table, below.ifindex);
        let usable = links.iter().filter(|link| link.slave.is_some_and(|slave| slave.usable));
        let speeds = usable.filter_map(|link| link.speed_mbps);
        let both = |a: u32, b| if mode == BROADCAST { a.min(b) } else { a.saturating_add(b) };
        speeds.reduce(both).or(below.speed_mbps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_bond::{KernelBond, KernelSlave};

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
    fn what_is_above_a_bond_has_its_links_and_its_speed() {
        let (up, idle, down) = ((true, true), (true, false), (false, false));
        let vlan = Port { above: Some(9), ..Port::ethernet(12, "bond0.100") };
        let of = |mode, links| {
            let table = table(mode, links);
            let speed = vlan.rate_mbps(&table);
            (vlan.has_link(&table), vlan.carries(&table), speed)
        };
        assert_eq!(of(Some(4), [up, up]), (true, true, Some(35_000)));
        assert_eq!(of(Some(1), [up, idle]), (true, true, Some(10_000)));
        assert_eq!(of(Some(1), [down, idle]), (true, false, Some(7)), "before its state follows");
        assert_eq!(of(Some(1), [down, down]), (false, false, Some(7)));
        let mut table = table(Some(4), [up, up]);
        let port = Port { enslaved: true, ..vlan.clone() };
        table.ports.extend([vlan, Port { ifindex: 13, ..port }]);
        assert_eq!(above(&table, 9).map(|port| port.ifindex).collect::<Vec<_>>(), [12]);
    }

    #[test]
    fn ports_are_in_the_kernels_order() {
        let table = table(Some(4), [(true, true); 2]);
        let names: Vec<&str> = links_of(&table, 9).iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["eth1", "eth0"]);
        assert!(links_of(&table, 2).is_empty());
    }
}
