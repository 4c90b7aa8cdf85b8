//! A bond without the kernel's: one device with one port over several interfaces, used as the modes of
//! Linux bonding say.
//!
//! Members keep their own addresses, and the path manager does what the kernel's driver does for a bond:
//! each mode is one of its policies ([`BondOptions::settings`]).

use crate::bond_options::{BondMode, BondOptions};
use crate::choice::Choice;
use crate::device::{Aggregation, DeviceKind, DeviceSpec, MEMBERS_MAX, PortSpec};
use crate::error::SelectionError;
use crate::interface::Port;
use crate::mp::{MP, guid};
use crate::provider::Provider;
use crate::table::Table;

/// The provider of `bond0`: several interfaces, with the modes and options of Linux bonding.
pub const BOND: &dyn Provider = &Bond;

static KIND: DeviceKind = DeviceKind {
    prefix: "bond",
    forms: &["bond", "bond:eth0+eth1,mode=active-backup"],
    title: "bond",
    multipath: true,
};

/// The `index` of a program's only bond device.
const INDEX: u32 = 0x001c_0000;

/// The number of its device file.
const UVERBS: u32 = 920;

/// The bits of a GUID that tell the device from others of the same host.
const OF_KIND: u64 = 0x0300_0000_0000_0000;

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
        choice.beyond_room(table)
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
    }

    #[test]
    fn a_wrong_option_is_refused_with_what_to_write() {
        let error = Selection::parse("bond:eth0+eth1,mode=balance-tlb").unwrap_err().to_string();
        assert!(error.starts_with("`mode=balance-tlb` is no option of a bond device"), "{error}");
        assert!(error.contains("mode=balance-xor"), "{error}");
    }
}
