//! Bonds: one device with one port over several links.
//!
//! A bond of the kernel's that is an interface of the table is *adopted*: the device has its name and its
//! addresses, those of the VLANs, macvlans, ipvlans and bridges above it too, as RDMA devices have them in
//! Linux. The kernel chooses the link of each packet, mostly by its UDP source port. Its mode says
//! how many of these there are and how they are used
//! ([`KernelBond::settings`](crate::KernelBond::settings)).
//!
//! A bond without the kernel's stands on several interfaces, which keep their own addresses, and the path
//! manager does what the kernel's driver does for a bond: each mode is one of its policies
//! ([`BondOptions::settings`]).

use crate::bond_options::{BondMode, BondOptions};
use crate::bonding::Bonding;
use crate::choice::Choice;
use crate::device::{Aggregation, DeviceKind, DeviceSpec, MEMBERS_MAX, PortSpec};
use crate::error::SelectionError;
use crate::interface::Port;
use crate::links::{above, links_of};
use crate::mp::{MP, guid};
use crate::provider::Provider;
use crate::table::Table;

/// The provider of `bond0`: a bond of the kernel's, or several interfaces, with the modes and options of
/// Linux bonding.
pub const BOND: &dyn Provider = &Bond;

static KIND: DeviceKind = DeviceKind {
    prefix: "bond",
    forms: &["bond", "bond:bond0", "bond:eth0+eth1,mode=active-backup"],
    title: "bond",
    multipath: true,
};

/// The `index` of a program's only bond device.
const INDEX: u32 = 0x001c_0000;

/// The number of its device file.
const UVERBS: u32 = 920;

/// The bits of a GUID that tell the device from others of the same host.
const OF_KIND: u64 = 0x0300_0000_0000_0000;

/// The bases of both for bonds of the kernel's.
const INDEX_ADOPTED: u32 = 0x0800_0000;
const UVERBS_ADOPTED: u32 = 100_000;

/// The bonds of the kernel's that a choice means: the one that it names, or all that count if nothing is
/// named. Several names, or options, mean a bond without the kernel's.
pub(crate) fn adopted<'a>(table: &'a Table, choice: &Choice) -> Vec<&'a Port> {
    if choice.bond.is_some() || choice.interfaces.len() > 1 {
        return Vec::new();
    }
    let is_bond = |port: &&Port| port.bond.is_some() && port.usable();
    choice.ports(table).into_iter().filter(is_bond).collect()
}

/// How the adopted bonds of a choice use their paths unless the user says otherwise. Several of them have the
/// same settings: enough source ports for each.
pub(crate) fn settings_of_adopted(table: &Table, choice: &Choice) -> Bonding {
    let mut settings = Bonding::default();
    for port in adopted(table, choice) {
        let links = links_of(table, port.ifindex).len();
        let of_this = port.bond.map(|bond| bond.settings(links)).unwrap_or_default();
        if of_this.ports >= settings.ports {
            settings.prefer(&of_this);
        }
    }
    settings
}

fn adopt(table: &Table, port: &Port) -> DeviceSpec {
    let links = links_of(table, port.ifindex).iter().map(|link| link.ifindex).collect();
    let of_name = Choice { text: port.name.clone(), ..Choice::default() };
    let over = above(table, port.ifindex).map(|port| port.ifindex);
    let members = std::iter::once(port.ifindex).chain(over).take(MEMBERS_MAX).collect();
    // What is above it comes and goes, and the table stays.
    let key = format!("{}:{}", KIND.prefix, port.ifindex);
    DeviceSpec {
        name: port.name.clone(),
        kind: &KIND,
        node_guid: guid(table, &of_name, port, OF_KIND),
        index: INDEX_ADOPTED.saturating_add(port.ifindex),
        uverbs: UVERBS_ADOPTED.saturating_add(port.ifindex),
        ports: vec![PortSpec { links, ..PortSpec::new(members, key) }],
    }
}

#[derive(Debug)]
struct Bond;

impl Provider for Bond {
    fn kind(&self) -> &'static DeviceKind {
        &KIND
    }

    /// `eth0+eth1`, options joined by commas, or both with a comma between them.
    fn parse(&self, text: &str) -> Result<Choice, SelectionError> {
        let (names, options) = match text.split_once(',') {
            _ if text.split(',').next().is_some_and(|first| first.contains('=')) => ("", text),
            Some((names, options)) => (names, options),
            None => (text, ""),
        };
        let mut choice = if names.is_empty() && !options.is_empty() {
            Choice::default()
        } else {
            Choice::of_interfaces(&KIND, names)?
        };
        if !options.is_empty() || text.contains(',') {
            let options = BondOptions::parse(options, &choice.interfaces)?;
            let parts = [choice.text, options.to_string()];
            choice.text =
                parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
            choice.bond = Some(options);
        }
        Ok(choice)
    }

    fn devices(&self, table: &Table, choice: &Choice) -> Vec<DeviceSpec> {
        let adopted = adopted(table, choice);
        if !adopted.is_empty() {
            return adopted.into_iter().map(|port| adopt(table, port)).collect();
        }
        let options = choice.bond.clone().unwrap_or_default();
        let mut ports = choice.ports(table);
        ports.truncate(MEMBERS_MAX);
        let Some(first) = ports.first().copied() else { return Vec::new() };
        // The active member is the primary while it has a link.
        ports.sort_by_key(|port| options.primary.as_ref() != Some(&port.name));
        // A device whose options change is the same device.
        let members = Choice { text: choice.interfaces.join("+"), ..Choice::default() };
        let aggregation = Aggregation {
            one_at_a_time: options.mode() == BondMode::ActiveBackup,
            min_links: options.min_links.unwrap_or(0),
            lacp: options.mode() == BondMode::Lacp,
            shares: options.mode().shares(),
        };
        let indexes = ports.iter().map(|port| port.ifindex).collect();
        // Over the same interfaces, mp devices have the same addresses.
        let port = PortSpec::new(indexes, members.with_prefix(MP.kind().prefix));
        vec![DeviceSpec {
            name: "bond0".to_owned(),
            kind: &KIND,
            node_guid: guid(table, &members, first, OF_KIND),
            index: INDEX,
            uverbs: UVERBS,
            ports: vec![PortSpec { aggregation, ..port }],
        }]
    }

    fn left_out<'a>(&self, table: &'a Table, choice: &Choice) -> Vec<&'a Port> {
        match &adopted(table, choice)[..] {
            [] => choice.beyond_room(table),
            bonds => {
                let beyond = |bond: &&Port| above(table, bond.ifindex).skip(MEMBERS_MAX - 1);
                bonds.iter().flat_map(beyond).collect()
            }
        }
    }

    /// The table belongs to the members, whatever the options.
    fn shares_gid_tables(&self, choice: &Choice) -> bool {
        choice.interfaces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gids::tests::port;
    use crate::kernel_bond::{KernelBond, KernelSlave};
    use crate::selection::{Selection, devices};

    /// Two interfaces, of 10 and 25 Gbit/s.
    fn table(up: [bool; 2]) -> Table {
        let of = |ifindex, name: &str, ip, speed, link_up| Port {
            speed_mbps: Some(speed),
            link_up,
            ..port(ifindex, name, &[ip])
        };
        let ports = vec![
            of(2, "eth0", "10.0.0.1", 10_000, up[0]),
            of(3, "eth1", "10.0.1.1", 25_000, up[1]),
        ];
        Table { ports, ..Table::default() }
    }

    fn bond(text: &str, up: [bool; 2]) -> (bool, u32) {
        let table = table(up);
        let selection = Selection::parse(text).unwrap();
        let [device] = &devices(&table, &selection)[..] else { panic!("one device") };
        assert_eq!((device.name.as_str(), device.ports.len()), ("bond0", 1));
        let port = &device.ports[0];
        (port.is_active(&table), port.speed_mbps(&table))
    }

    #[test]
    fn the_port_has_the_state_and_the_speed_of_its_members() {
        for text in ["bond", "bond:eth0+eth1", "bond:mode=802.3ad", "bond:eth0+eth1,mode=broadcast"]
        {
            assert_eq!(bond(text, [true, true]), (true, 35_000), "{text}");
            assert_eq!(bond(text, [false, true]), (true, 25_000), "{text}");
            assert_eq!(bond(text, [false, false]), (false, 0), "{text}");
        }
    }

    #[test]
    fn active_backup_has_the_speed_of_one_member() {
        let text = "bond:eth0+eth1,mode=active-backup";
        assert_eq!(bond(text, [true, true]), (true, 10_000));
        assert_eq!(bond(text, [false, true]), (true, 25_000));
        let text = "bond:eth0+eth1,mode=active-backup,primary=eth1";
        assert_eq!(bond(text, [true, true]), (true, 25_000));
        assert_eq!(bond(text, [true, false]), (true, 10_000));
    }

    #[test]
    fn fewer_members_than_min_links_are_no_link() {
        let text = "bond:eth0+eth1,mode=802.3ad,min_links=2";
        assert_eq!(bond(text, [true, true]), (true, 35_000));
        assert_eq!(bond(text, [true, false]), (false, 10_000));
        assert!(bond("bond:eth0+eth1,min_links=0", [true, false]).0);
    }

    #[test]
    fn a_member_that_lacp_keeps_out_has_no_link_for_an_802_3ad_device_alone() {
        let mut table = table([true, true]);
        table.ports[0].lacp = Some(false);
        table.ports[1].lacp = Some(true);
        for (text, speed) in [
            ("bond:eth0+eth1,mode=802.3ad", 25_000),
            ("bond:eth0+eth1,mode=balance-xor", 35_000),
            ("mp:eth0+eth1", 35_000),
        ] {
            let device = devices(&table, &Selection::parse(text).unwrap()).remove(0);
            assert_eq!(device.ports[0].speed_mbps(&table), speed, "{text}");
        }
    }

    #[test]
    fn the_device_is_the_same_whatever_its_options() {
        let spec = |text| {
            let table = table([true, true]);
            let device = devices(&table, &Selection::parse(text).unwrap()).remove(0);
            (device.node_guid, device.ports[0].gid_table.clone())
        };
        let plain = spec("bond:eth0+eth1");
        assert_eq!(spec("bond:eth0+eth1,mode=active-backup,primary=eth1"), plain);
        assert_eq!(plain.1, "mp:eth0+eth1");
        assert_ne!(spec("mp:eth0+eth1").0, plain.0);
        assert_ne!(spec("bond:mode=1").0, plain.0);
    }

    #[test]
    fn selections_print_as_they_parse() {
        for text in
            ["bond", "bond:eth0+eth1", "bond:mode=balance-xor", "bond:eth0+eth1,mode=802.3ad"]
        {
            assert_eq!(Selection::parse(text).unwrap().to_string(), text);
        }
        let numbered = Selection::parse("bond: eth0 + eth1 , mode=1").unwrap();
        assert_eq!(numbered.to_string(), "bond:eth0+eth1,mode=active-backup");
        for text in ["bond:", "bond:,", "bond:a++b,mode=1", "bond:eth0,"] {
            Selection::parse(text).unwrap_err();
        }
        assert_eq!(Selection::parse("bond12").unwrap().to_string(), "bond:bond12");
        for text in ["bondx", "bond-1", "bond0x"] {
            Selection::parse(text).unwrap_err();
        }
    }

    /// A host with a card of its own, and a bond of the kernel's of two others.
    fn bonded() -> Table {
        let link = |ifindex, place, usable| Port {
            enslaved: true,
            speed_mbps: Some(10_000),
            slave: Some(KernelSlave { master: 9, usable, place }),
            ..port(ifindex, &format!("eth{ifindex}"), &[])
        };
        let bond = Port {
            bond: Some(KernelBond { mode: Some(4), xmit_hash_policy: 1 }),
            speed_mbps: Some(10_000),
            mtu: 9000,
            ..port(9, "bond0", &["10.0.0.1"])
        };
        let ports = vec![link(2, 0, true), link(3, 1, true), port(4, "eth4", &["10.0.9.1"]), bond];
        Table { ports, guid: Some(7), ..Table::default() }
    }

    fn names(table: &Table, text: &str) -> Vec<String> {
        let selection = Selection::parse(text).unwrap();
        devices(table, &selection).into_iter().map(|device| device.name).collect()
    }

    #[test]
    fn a_bond_of_the_kernels_has_a_device_of_its_name_without_any_choice() {
        let mut table = bonded();
        for text in ["", "bond", "bond:bond0", "bond0"] {
            let selection = Selection::parse(text).unwrap();
            selection.check(&table).unwrap();
            let [device] = &devices(&table, &selection)[..] else { panic!("one device") };
            assert_eq!((device.name.as_str(), device.kind), ("bond0", BOND.kind()), "{text}");
            let port = &device.ports[0];
            assert_eq!((&port.members[..], &port.links[..]), (&[9][..], &[2, 3][..]));
            assert_eq!((port.is_active(&table), port.speed_mbps(&table)), (true, 20_000));
            assert_eq!(port.roce_mtu(&table), 4096);
            let ips: Vec<String> = port.entries().map(|(_, gid)| gid.ip.to_string()).collect();
            assert_eq!(ips, ["fe80::5054:ff:fe00:9", "10.0.0.1"], "those of the bond alone");
            assert!(selection.settings(&table).is_empty(), "it has no options of its own");
            assert_eq!(selection.settings_below(&table).to_string(), "balance,ports=2");
        }
        assert_eq!(names(&table, "mp"), ["mp0"]);
        assert_eq!(names(&table, "roce"), ["roce0", "roce1"], "no ports of bonds");
        assert_eq!(names(&table, "bond:eth4"), ["bond0"]);
        let own = Selection::parse("bond:eth4+bond0").unwrap();
        assert_eq!(devices(&table, &own)[0].ports[0].members, [4, 9]);
        assert!(own.settings_below(&table).is_empty());

        table.ports[3].name = "uplink".into();
        assert_eq!(names(&table, ""), ["uplink"]);
        assert_eq!(names(&table, "bond:uplink"), ["uplink"]);
        table.ports[2].bond = Some(KernelBond { mode: Some(1), xmit_hash_policy: 0 });
        assert_eq!(names(&table, ""), ["eth4", "uplink"], "each of several bonds");
        let settings = Selection::default().settings_below(&table);
        assert_eq!(settings.to_string(), "balance,ports=2");
        table.ports[3].enslaved = true;
        assert_eq!(names(&table, ""), ["eth4"], "not one that is the port of a bridge");
    }

    #[test]
    fn a_bond_has_the_addresses_of_what_is_above_it() {
        let mut table = bonded();
        table.ports[3].addresses.clear();
        let selection = Selection::default().resolve(&table);
        let key = |table: &Table| selection.gid_tables(table)[0].0.clone();
        let before = key(&table);
        let vlan = |ifindex, ip: &str| Port {
            above: Some(9),
            mac: table.ports[3].mac,
            mtu: 9000,
            ..port(ifindex, &format!("bond0.{ifindex}"), &[ip])
        };
        let enslaved = Port { enslaved: true, ..vlan(14, "10.14.0.1") };
        let (a, b) = (vlan(12, "10.12.0.1"), vlan(13, "10.13.0.1"));
        table.ports.extend([a, b, enslaved]);
        let [device] = &devices(&table, &selection)[..] else { panic!("one device") };
        let port = &device.ports[0];
        assert_eq!((&port.members[..], &port.links[..]), (&[9, 12, 13][..], &[2, 3][..]));
        let ips: Vec<String> = port.entries().map(|(_, gid)| gid.ip.to_string()).collect();
        assert_eq!(ips, ["fe80::5054:ff:fe00:9", "10.12.0.1", "10.13.0.1"]);
        assert_eq!((port.is_active(&table), port.speed_mbps(&table)), (true, 20_000));
        assert_eq!(key(&table), before, "indexes stay when a VLAN comes");
        assert_eq!(selection.settings_below(&table).to_string(), "balance,ports=2");
        assert!(selection.left_out(&table).is_empty());
        table.ports.extend((20..34).map(|n| Port { above: Some(9), ..Port::ethernet(n, "v") }));
        let left_out = selection.left_out(&table);
        assert_eq!(left_out.iter().map(|port| port.ifindex).collect::<Vec<_>>(), [33]);
        assert_eq!(devices(&table, &selection)[0].ports[0].members.len(), MEMBERS_MAX);
        for link in &mut table.ports[..2] {
            link.link_up = false;
        }
        let port = &devices(&table, &selection)[0].ports[0];
        assert!(!port.is_active(&table), "before the VLANs' own state follows");
    }

    #[test]
    fn a_program_keeps_the_bond_that_it_got() {
        let mut table = bonded();
        let decided = Selection::default().resolve(&table);
        assert_eq!(decided.to_string(), "bond:bond0");
        let before = devices(&table, &decided).remove(0);
        // Ports come and go, and with them the hardware address.
        table.ports.remove(0);
        table.ports[2].mac = [2, 0, 0, 0, 9, 9];
        let after = devices(&table, &decided).remove(0);
        assert_eq!((after.node_guid, after.index), (before.node_guid, before.index));
        assert_eq!(after.ports[0].speed_mbps(&table), 10_000);
        table.ports.pop();
        assert!(devices(&table, &decided).is_empty());
    }

    #[test]
    fn a_wrong_option_is_refused_with_what_to_write() {
        let error = Selection::parse("bond:eth0+eth1,mode=balance-tlb").unwrap_err().to_string();
        assert!(error.starts_with("`mode=balance-tlb` is no option of a bond device"), "{error}");
        assert!(error.contains("mode=balance-xor"), "{error}");
    }
}
