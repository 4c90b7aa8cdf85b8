//! The published table. It is built from the kernel's data, and keeps unchanged what must stay the
//! same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::BorrowedFd;

use polypath_topology::gids::{CHOSEN_TABLES_MAX, NamedGidTable, eui64};
use polypath_topology::table::{ADDRESSES_MAX, DOWN_MAX, PORTS_MAX};
use polypath_topology::{
    Address, GidTable, KernelBond, KernelSlave, PROVIDERS, PathSelector, Port, Rule, Selection,
    Table,
};

use crate::netlink::{AddressMessage, BondData, Dump, LinkMessage};
use crate::sys::ethtool;
use crate::uplinks::{bond_below, leads_out};

/// Properties of an interface that drivers know and rtnetlink does not report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hardware {
    speed_mbps: Option<u32>,
    numa_node: Option<u32>,
    /// The names of the ports of a bond, in the order in which it keeps them.
    links: Vec<String>,
}

impl Hardware {
    /// Asks the driver. `socket` is any socket of the namespace.
    pub(crate) fn of(link: &LinkMessage, socket: BorrowedFd<'_>) -> Self {
        let links = if link.bond.is_some() { links_in_order(&link.name) } else { Vec::new() };
        let speed_mbps = ethtool::speed_mbps(socket, &link.name);
        Self { speed_mbps, numa_node: numa_node(link), links }
    }
}

/// The names of a bond's ports, in the order in which it keeps them. /proc is that of this network namespace,
/// whatever is mounted elsewhere.
fn links_in_order(bond: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/net/bonding/{bond}")).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("Slave Interface: "));
    names.map(|name| name.trim().to_owned()).collect()
}

/// Reads the NUMA node from sysfs. If sysfs shows another network namespace's interface, its index
/// differs.
fn numa_node(link: &LinkMessage) -> Option<u32> {
    let read = |file| fs::read_to_string(format!("/sys/class/net/{}/{file}", link.name)).ok();
    let same = read("ifindex")?.trim().parse() == Ok(link.ifindex);
    // It is −1 if there is none.
    read("device/numa_node")?.trim().parse().ok().filter(|_| same)
}

/// The published table and what it was built from.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    table: Table,
    /// The hardware of each interface, and whether its link was up when the driver was asked,
    /// because the speed is only known then.
    hardware: BTreeMap<u32, (bool, Hardware)>,
    /// Whether LACP lets interfaces carry traffic, by index.
    lacp: BTreeMap<u32, bool>,
}

impl Tables {
    /// Continues with another broker's table.
    pub(crate) fn from_table(mut table: Table) -> Self {
        // Who speaks LACP tells again.
        table.ports.iter_mut().for_each(|port| port.lacp = None);
        Self { table, hardware: BTreeMap::new(), lacp: BTreeMap::new() }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Updates the table from the kernel's data. `ask` returns the hardware, and `chosen` are the
    /// clients' selections. Returns true if the table changed.
    pub(crate) fn update(
        &mut self,
        dump: Dump,
        chosen: &[&Selection],
        mut ask: impl FnMut(&LinkMessage) -> Hardware,
    ) -> bool {
        let Dump { mut links, addresses, default_ways } = dump;
        links.sort_by_key(|link| link.ifindex);
        links.dedup_by_key(|link| link.ifindex);
        let omitted = leave_out(&mut links, &addresses, &self.table);
        let mut hardware = BTreeMap::new();
        for link in &links {
            // The speed of a bond is that of its ports, which come and go.
            let same = |(up, _): &&(bool, Hardware)| *up == link.up && link.bond.is_none();
            let known = self.hardware.get(&link.ifindex).filter(same);
            let found = known.cloned().unwrap_or_else(|| (link.up, ask(link)));
            hardware.insert(link.ifindex, found);
        }
        self.hardware = hardware;
        let out: BTreeSet<u32> = links
            .iter()
            .filter(|link| leads_out(link, &links, &addresses, &default_ways))
            .map(|link| link.ifindex)
            .collect();
        let bonds: BTreeMap<u32, BondData> =
            links.iter().filter_map(|link| Some((link.ifindex, link.bond?))).collect();
        let above: BTreeMap<u32, u32> = links
            .iter()
            .filter_map(|link| Some((link.ifindex, bond_below(link, &links)?)))
            .collect();
        let port = |link: LinkMessage| {
            let leads_out = out.contains(&link.ifindex);
            let (slave, above) = (self.slave(&link, &bonds), above.get(&link.ifindex).copied());
            Port { slave, above, ..self.port(link, leads_out, &addresses) }
        };
        let ports = links.into_iter().map(port).collect();
        let ports = numbered(ports);
        let mut new = Table { ports, omitted, ..self.table.clone() };
        let first = new.ports.iter().find(|port| !port.loopback);
        new.guid = new.guid.or_else(|| first.map(|port| eui64(port.mac)));
        keep_gid_tables(&mut new, chosen);
        self.publish(new)
    }

    /// Notes that these interfaces are down. Returns true if the table changed.
    pub(crate) fn links_down(&mut self, down: &BTreeSet<u32>) -> bool {
        if !self.table.ports.iter().any(|port| port.link_up && down.contains(&port.ifindex)) {
            return false;
        }
        let mut new = self.table.clone();
        for port in new.ports.iter_mut().filter(|port| down.contains(&port.ifindex)) {
            port.link_up = false;
            // The bond itself may learn of it later.
            if let Some(slave) = &mut port.slave {
                slave.usable = false;
            }
        }
        self.publish(new)
    }

    /// Sets whether LACP lets interfaces carry traffic, by index. Returns true if the table changed.
    pub(crate) fn set_lacp(&mut self, lacp: BTreeMap<u32, bool>) -> bool {
        let mut new = self.table.clone();
        for port in &mut new.ports {
            port.lacp = lacp.get(&port.ifindex).copied();
        }
        self.lacp = lacp;
        self.publish(new)
    }

    /// Sets the clients' selections. Returns true if the table changed.
    pub(crate) fn select(&mut self, chosen: &[&Selection]) -> bool {
        let mut new = self.table.clone();
        keep_gid_tables(&mut new, chosen);
        self.publish(new)
    }

    /// Whether there is room for one more selection beside these.
    pub(crate) fn has_room(chosen: &[&Selection], new: &Selection) -> bool {
        let is_new = new.has_own_gid_tables() && !chosen.contains(&new);
        let owners = chosen.iter().filter(|other| other.has_own_gid_tables());
        let mut names: Vec<String> = owners.map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        !is_new || names.len() < CHOSEN_TABLES_MAX
    }

    /// Takes paths down or up by hand.
    ///
    /// # Errors
    /// An error text, if too many are already down.
    pub(crate) fn set_path(&mut self, selector: &PathSelector, up: bool) -> Result<(), String> {
        let mut new = self.table.clone();
        new.down.retain(|other| other != selector);
        if !up {
            if new.down.len() == DOWN_MAX {
                return Err(format!("at most {DOWN_MAX} paths can be taken down by hand"));
            }
            new.down.push(selector.clone());
        }
        self.publish(new);
        Ok(())
    }

    /// Changes the rules of how mp devices use their paths. Returns whether they are others than before.
    pub(crate) fn change_rules<E>(
        &mut self,
        change: impl FnOnce(&mut Vec<Rule>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut new = self.table.clone();
        change(&mut new.rules)?;
        Ok(self.publish(new))
    }

    fn publish(&mut self, mut new: Table) -> bool {
        new.generation = self.table.generation;
        if new == self.table {
            return false;
        }
        new.generation += 1;
        self.table = new;
        true
    }

    fn port(&self, link: LinkMessage, leads_out: bool, addresses: &[AddressMessage]) -> Port {
        let known = self.table.port(link.ifindex);
        let mine = addresses.iter().filter(|address| address.ifindex == link.ifindex);
        let hardware = self.hardware.get(&link.ifindex).map(|(_, found)| found);
        let speed_mbps = hardware.and_then(|found| found.speed_mbps);
        let numa_node = hardware.and_then(|found| found.numa_node);
        Port {
            ifindex: link.ifindex,
            mac: link.mac,
            mtu: link.mtu,
            link_up: link.up,
            speed_mbps,
            loopback: link.loopback,
            ethernet: link.ethernet,
            enslaved: link.enslaved,
            // A program's device must not lose a member because an address is being changed.
            uplink: leads_out || known.is_some_and(|known| known.uplink),
            numa_node,
            device_number: known.and_then(|known| known.device_number),
            lacp: self.lacp.get(&link.ifindex).copied(),
            bond: link.bond.map(|bond| KernelBond {
                mode: bond.mode,
                xmit_hash_policy: bond.xmit_hash_policy,
            }),
            slave: None,
            above: None,
            addresses: mine.take(ADDRESSES_MAX).map(address).collect(),
            name: link.name,
        }
    }

    /// What is published of the port of a bond or team. `bonds` are the bonds and teams by index.
    fn slave(&self, link: &LinkMessage, bonds: &BTreeMap<u32, BondData>) -> Option<KernelSlave> {
        let slave = link.slave?;
        let uses = |bond: &BondData| bond.uses(link.ifindex, &slave);
        let usable = link.up && bonds.get(&link.master).is_some_and(uses);
        let of_master = self.hardware.get(&link.master).map(|(_, found)| &found.links[..]);
        let at = of_master.and_then(|links| links.iter().position(|name| *name == link.name));
        let place = at.and_then(|at| u16::try_from(at).ok()).unwrap_or(u16::MAX);
        Some(KernelSlave { master: link.master, usable, place })
    }
}

fn address(message: &AddressMessage) -> Address {
    Address {
        ip: message.ip,
        prefix_len: message.prefix_len,
        link_local: message.link_local,
        tentative: message.tentative,
    }
}

/// Leaves out interfaces for which there is no room. Ports of bridges and interfaces without
/// addresses go first, because devices rarely use them. Among equals, those that were in
/// the table before stay. Returns how many were left out.
fn leave_out(links: &mut Vec<LinkMessage>, addresses: &[AddressMessage], before: &Table) -> u32 {
    if links.len() <= PORTS_MAX {
        return 0;
    }
    let addressed: BTreeSet<u32> =
        addresses.iter().filter(|a| !a.link_local).map(|a| a.ifindex).collect();
    links.sort_by_key(|link| {
        // What a bond does depends on all of its ports.
        let useful = link.loopback || link.slave.is_some() || (link.ethernet && !link.enslaved);
        let known = before.port(link.ifindex).is_some();
        (!useful, !addressed.contains(&link.ifindex), !known, link.ifindex)
    });
    let omitted = links.len() - PORTS_MAX;
    links.truncate(PORTS_MAX);
    links.sort_by_key(|link| link.ifindex);
    u32::try_from(omitted).unwrap_or(u32::MAX)
}

/// Gives each usable interface that has no number the lowest free one.
fn numbered(mut ports: Vec<Port>) -> Vec<Port> {
    for port in &mut ports {
        if !port.usable() {
            port.device_number = None;
        }
    }
    for at in 0..ports.len() {
        if ports[at].usable() && ports[at].device_number.is_none() {
            let taken = |n| ports.iter().any(|port| port.device_number == Some(n));
            ports[at].device_number = (0..=u16::MAX).find(|&n| !taken(n));
        }
    }
    ports
}

/// Updates all GID tables: those of the default devices of each kind, and those that clients have
/// selected.
fn keep_gid_tables(table: &mut Table, chosen: &[&Selection]) {
    let standing = PROVIDERS.map(Selection::of);
    let mut kept: Vec<NamedGidTable> = Vec::new();
    for selection in standing.iter().chain(chosen.iter().copied()) {
        for (key, ports) in selection.gid_tables(table) {
            if kept.iter().any(|named| named.key == key) {
                continue;
            }
            let known = table.gid_tables.iter().find(|named| named.key == key);
            let mut gids = known.map_or_else(GidTable::default, |named| named.table.clone());
            gids.update_from_ports(ports);
            kept.push(NamedGidTable { key, table: gids });
        }
    }
    table.gid_tables = kept;
}

#[cfg(test)]
mod tests {
    use polypath_topology::{MP, ROCE};

    use super::*;
    use crate::netlink::{SlaveData, recorded_link};

    fn link(ifindex: u32, name: &str) -> LinkMessage {
        LinkMessage {
            ifindex,
            name: name.into(),
            mac: [2, 0, 0, 0, 0, ifindex as u8],
            mtu: 1500,
            up: true,
            loopback: name == "lo",
            ethernet: name != "lo",
            enslaved: false,
            kind: String::new(),
            master: 0,
            bond: None,
            slave: None,
            joined: None,
        }
    }

    fn address(ifindex: u32, ip: &str) -> AddressMessage {
        let ip = ip.parse().unwrap();
        AddressMessage { ifindex, ip, prefix_len: 24, link_local: false, tentative: false }
    }

    fn update(tables: &mut Tables, links: &[LinkMessage], addresses: &[AddressMessage]) -> bool {
        let dump = Dump { links: links.to_vec(), addresses: addresses.to_vec(), ..Dump::default() };
        tables.update(dump, &[], |_| Hardware::default())
    }

    fn numbers(tables: &Tables) -> Vec<Option<u16>> {
        tables.table().ports.iter().map(|port| port.device_number).collect()
    }

    #[test]
    fn interfaces_that_find_no_room_are_those_without_addresses_and_are_counted() {
        // A host with many containers: the ports of their bridge, and another network card that was
        // added last.
        let mut links: Vec<LinkMessage> = (2..200).map(|n| link(n, "veth")).collect();
        links.iter_mut().for_each(|link| link.enslaved = true);
        links.extend([link(1, "lo"), link(500, "eth0"), link(501, "eth1")]);
        let mut tables = Tables::default();
        update(&mut tables, &links, &[address(500, "10.0.0.1")]);
        let table = tables.table();
        assert_eq!((table.ports.len(), table.omitted), (PORTS_MAX, 201 - PORTS_MAX as u32));
        assert!([1, 500, 501].iter().all(|n| table.port(*n).is_some()));
        assert!(table.ports.is_sorted_by_key(|port| port.ifindex));
        // Interfaces that were there before stay.
        links.extend((600..700).map(|n| LinkMessage { enslaved: true, ..link(n, "veth") }));
        let before: Vec<u32> = table.ports.iter().map(|port| port.ifindex).collect();
        links.reverse();
        update(&mut tables, &links, &[address(500, "10.0.0.1")]);
        let after: Vec<u32> = tables.table().ports.iter().map(|port| port.ifindex).collect();
        assert_eq!(after, before);
        update(&mut tables, &links[..10], &[]);
        assert_eq!(tables.table().omitted, 0);
    }

    #[test]
    fn device_numbers_outlive_the_coming_and_going_of_others() {
        let mut tables = Tables::default();
        let (lo, a, b, c) = (link(1, "lo"), link(2, "a"), link(3, "b"), link(4, "c"));
        update(&mut tables, &[lo.clone(), a, b.clone()], &[]);
        assert_eq!(numbers(&tables), [None, Some(0), Some(1)]);
        update(&mut tables, &[lo.clone(), b.clone()], &[]);
        assert_eq!(numbers(&tables), [None, Some(1)]);
        update(&mut tables, &[lo, b, c], &[]);
        assert_eq!(numbers(&tables), [None, Some(1), Some(0)]);
    }

    #[test]
    fn an_uplink_stays_one_while_its_address_is_changed() {
        let mut tables = Tables::default();
        let veth = LinkMessage { kind: "veth".into(), ..link(2, "a") };
        let uplink = |tables: &Tables| tables.table().port(2).unwrap().uplink;
        update(&mut tables, std::slice::from_ref(&veth), &[]);
        assert!(!uplink(&tables));
        update(&mut tables, std::slice::from_ref(&veth), &[address(2, "10.0.0.1")]);
        assert!(uplink(&tables));
        update(&mut tables, std::slice::from_ref(&veth), &[]);
        assert!(uplink(&tables));
        update(&mut tables, &[], &[]);
        update(&mut tables, &[veth], &[]);
        assert!(!uplink(&tables), "another interface of the same index");
    }

    #[test]
    fn only_a_change_makes_a_new_generation() {
        let mut tables = Tables::default();
        assert!(update(&mut tables, &[link(2, "a")], &[address(2, "10.0.0.1")]));
        assert!(!update(&mut tables, &[link(2, "a")], &[address(2, "10.0.0.1")]));
        assert_eq!(tables.table().generation, 1);
        assert!(update(&mut tables, &[link(2, "a")], &[]));
        assert_eq!(tables.table().generation, 2);
    }

    #[test]
    fn gid_tables_are_kept_in_place_for_all_devices() {
        let mut tables = Tables::default();
        let links = [link(2, "a"), link(3, "b")];
        let all = [address(2, "10.0.0.1"), address(2, "10.0.0.2"), address(3, "10.0.1.1")];
        update(&mut tables, &links, &all);
        update(&mut tables, &links, &all[1..]);
        for selection in [Selection::of(ROCE), Selection::of(MP)] {
            let device = &polypath_topology::devices(tables.table(), &selection)[0];
            assert!(device.ports[0].gids[1].is_empty(), "{selection}");
            assert_eq!(device.ports[0].gids[2].ip.to_string(), "10.0.0.2");
        }
    }

    #[test]
    fn chosen_gid_tables_live_as_long_as_their_selection() {
        let mut tables = Tables::default();
        update(&mut tables, &[link(2, "a"), link(3, "b")], &[]);
        let chosen = Selection::parse("mp:b+a").unwrap();
        let has = |tables: &Tables| tables.table().gid_tables.iter().any(|t| t.key == "mp:b+a");
        assert!(tables.select(&[&chosen]));
        assert!(has(&tables));
        assert!(tables.select(&[]));
        assert!(!has(&tables));
    }

    #[test]
    fn selections_have_a_limit() {
        let mp_over = |name: &str| Selection::parse(&format!("mp:{name}")).unwrap();
        let many: Vec<Selection> =
            (0..CHOSEN_TABLES_MAX).map(|i| mp_over(&format!("e{i}"))).collect();
        let many: Vec<&Selection> = many.iter().collect();
        let one_more = mp_over("other");
        assert!(!Tables::has_room(&many, &one_more));
        assert!(Tables::has_room(&many, &Selection::of(MP)));
        assert!(Tables::has_room(&many, many[0]));
        assert!(Tables::has_room(&many[1..], &one_more));
    }

    #[test]
    fn paths_taken_down_are_remembered_once_and_within_limits() {
        let mut tables = Tables::default();
        let path = |i: usize| PathSelector::Interface(format!("e{i}"));
        for i in 0..DOWN_MAX {
            tables.set_path(&path(i), false).unwrap();
            tables.set_path(&path(i), false).unwrap();
        }
        assert_eq!(tables.table().down.len(), DOWN_MAX);
        assert!(tables.set_path(&path(999), false).is_err());
        tables.set_path(&path(0), true).unwrap();
        tables.set_path(&path(999), false).unwrap();
    }

    #[test]
    fn links_go_down_at_once_and_nothing_else_changes() {
        let mut tables = Tables::default();
        update(&mut tables, &[link(2, "a"), link(3, "b")], &[address(2, "10.0.0.1")]);
        let before = tables.table().clone();
        assert!(!tables.links_down(&[9].into()), "unknown");
        assert!(tables.links_down(&[2, 9].into()));
        assert!(!tables.links_down(&[2].into()), "known already");
        let mut expect = before.clone();
        expect.generation += 1;
        expect.ports[0].link_up = false;
        assert_eq!(*tables.table(), expect);
        assert!(update(&mut tables, &[link(2, "a"), link(3, "b")], &[address(2, "10.0.0.1")]));
        assert_eq!(tables.table().ports, before.ports);
    }

    #[test]
    fn ports_of_a_bond_are_published_with_their_bond() {
        let mut tables = Tables::default();
        let bond = LinkMessage { bond: Some(BondData::default()), ..link(9, "bond0") };
        let below = |ifindex, up| LinkMessage {
            up,
            enslaved: true,
            master: 9,
            slave: Some(SlaveData::default()),
            ..link(ifindex, &format!("e{ifindex}"))
        };
        update(&mut tables, &[below(2, true), below(3, false), bond.clone()], &[]);
        let slave = |tables: &Tables, n| tables.table().port(n).unwrap().slave;
        let unknown = u16::MAX;
        let of = |usable| Some(KernelSlave { master: 9, usable, place: unknown });
        assert_eq!((slave(&tables, 2), slave(&tables, 3)), (of(true), of(false)));
        assert_eq!(slave(&tables, 9), None);
        assert_eq!(tables.table().port(9).unwrap().bond.unwrap().mode_name(), "team");
        // Its speed is asked for whenever anything changes.
        let mut asked = Vec::new();
        let dump = Dump { links: vec![below(2, true), below(3, true), bond], ..Dump::default() };
        tables.update(dump, &[], |link| {
            asked.push(link.ifindex);
            let links =
                if link.ifindex == 9 { vec!["e3".to_owned(), "e2".to_owned()] } else { vec![] };
            Hardware { links, ..Hardware::default() }
        });
        assert_eq!(asked, [3, 9]);
        let place = |n| slave(&tables, n).map(|slave| (slave.usable, slave.place));
        assert_eq!((place(2), place(3)), (Some((true, 1)), Some((true, 0))), "the kernel's order");
        // Its loss is not left to the bond's own tick.
        assert!(tables.links_down(&[3].into()));
        assert_eq!(slave(&tables, 3).map(|slave| slave.usable), Some(false));
        assert!(tables.table().port(9).is_some_and(|bond| bond.link_up));
    }

    /// What a kernel said of a bond and its ports (the file says how). `tag`: the mode.
    fn recorded(tag: &str) -> Vec<LinkMessage> {
        let text = include_str!("../tests/vectors/bonds.txt");
        let of_tag = |line: &&str| line.split(' ').next() == Some(tag);
        let parse = |line: &str| {
            let digits = line.rsplit(' ').next().unwrap().as_bytes().chunks(2);
            let byte = |two: &[u8]| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap();
            recorded_link(&digits.map(byte).collect::<Vec<u8>>()).unwrap()
        };
        let links: Vec<LinkMessage> = text.lines().filter(of_tag).map(parse).collect();
        assert_eq!(links.len(), 3, "{tag}");
        links
    }

    #[test]
    fn bonds_of_all_modes_are_understood_as_a_kernel_tells_of_them() {
        for (tag, mode, hash, usable) in [
            ("0", "balance-rr", None, ["v1", "v0"].as_slice()),
            ("1", "active-backup", None, &["v1"]),
            ("2", "balance-xor", Some("layer3+4"), &["v1", "v0"]),
            ("3", "broadcast", None, &["v1", "v0"]),
            ("4", "802.3ad", Some("layer3+4"), &["v1"]),
            ("5", "balance-tlb", None, &["v1", "v0"]),
            ("6", "balance-alb", None, &["v1", "v0"]),
            ("1-lost", "active-backup", None, &["v0"]),
            ("2-lost", "balance-xor", Some("layer3+4"), &["v0"]),
        ] {
            let links = recorded(tag);
            let bond = links.iter().find(|link| link.name == "bond0").unwrap().ifindex;
            let dump =
                Dump { links, addresses: vec![address(bond, "10.0.0.1")], ..Dump::default() };
            let mut tables = Tables::default();
            tables.update(dump, &[], |link| Hardware {
                links: if link.ifindex == bond { vec!["v1".into(), "v0".into()] } else { vec![] },
                speed_mbps: Some(10_000),
                ..Hardware::default()
            });
            let table = tables.table();
            let port = table.port(bond).unwrap();
            let told = port.bond.unwrap();
            assert_eq!((told.mode_name(), told.hash_policy_name()), (mode, hash), "{tag}");
            let links = polypath_topology::links_of(table, bond);
            let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
            assert_eq!(names, ["v1", "v0"], "{tag}");
            let carry = links.iter().filter(|link| link.slave.is_some_and(|it| it.usable));
            let carry: Vec<&str> = carry.map(|link| link.name.as_str()).collect();
            assert_eq!(carry, usable, "{tag}");
            assert!(links.iter().all(|link| link.enslaved && !link.usable()));
            // The device is there without any choice.
            let devices = polypath_topology::devices(table, &Selection::default());
            let [device] = &devices[..] else { panic!("{tag}: one device") };
            assert_eq!((device.name.as_str(), device.is_active(table)), ("bond0", true));
            let speed = if mode == "broadcast" { 10_000 } else { 10_000 * usable.len() as u32 };
            assert_eq!(device.ports[0].speed_mbps(table), speed, "{tag}");
        }
    }

    #[test]
    fn what_lacp_says_is_kept_while_links_change() {
        let mut tables = Tables::default();
        let links = [link(2, "a"), link(3, "b")];
        update(&mut tables, &links, &[]);
        assert!(tables.set_lacp([(2, true), (3, false)].into()));
        assert!(!tables.set_lacp([(2, true), (3, false)].into()));
        let lacp =
            |tables: &Tables| tables.table().ports.iter().map(|p| p.lacp).collect::<Vec<_>>();
        update(&mut tables, &links, &[address(2, "10.0.0.1")]);
        assert_eq!(lacp(&tables), [Some(true), Some(false)]);
        assert!(tables.set_lacp(BTreeMap::new()));
        assert_eq!(lacp(&tables), [None, None]);
    }

    #[test]
    fn hardware_is_asked_again_when_the_link_comes_up() {
        let mut tables = Tables::default();
        let mut asked = 0;
        for up in [false, false, true, true] {
            let links = vec![LinkMessage { up, ..link(2, "a") }];
            let dump = Dump { links, ..Dump::default() };
            tables.update(dump, &[], |_| {
                asked += 1;
                Hardware { speed_mbps: up.then_some(10_000), ..Hardware::default() }
            });
        }
        assert_eq!(asked, 2);
        assert_eq!(tables.table().ports[0].speed_mbps, Some(10_000));
    }
}
