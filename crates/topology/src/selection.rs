//! The devices that a program wants, and those that it gets.

use std::fmt;

use crate::bond::{BOND, adopted, settings_of_adopted};
use crate::bonding::{Bonding, PORTS_MAX};
use crate::choice::{Choice, unnamed};
use crate::device::{DeviceSpec, PortSpec};
use crate::error::SelectionError;
use crate::gids::GidTable;
use crate::interface::Port;
use crate::provider::Provider;
use crate::registry::{PROVIDERS, for_interfaces};
use crate::table::Table;

/// The devices that a program wants to see (`POLYPATH_DEVICE`, `polypath run --device`). The default
/// selects nothing: it means the bonds of the kernel's, if one is among the uplinks; else `mp0` over all
/// uplinks if there are two or more; else `roce0`.
///
/// ```
/// use polypath_topology::{ROCE, Selection};
/// let selection = Selection::parse("mp:eth0+eth1").unwrap();
/// assert_eq!(selection.to_string(), "mp:eth0+eth1");
/// assert_eq!(Selection::parse("roce").unwrap(), Selection::of(ROCE));
/// assert!(Selection::parse("eth0").unwrap_err().to_string().contains("roce:eth0"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// The kind and the devices of it; `None` if nothing is selected.
    chosen: Option<(&'static dyn Provider, Choice)>,
}

impl Selection {
    /// The selection that consists only of the prefix of a kind.
    #[must_use]
    pub fn of(provider: &'static dyn Provider) -> Self {
        Self { chosen: Some((provider, Choice::default())) }
    }

    /// Parses a selection: empty, `mp`, `mp:eth0+eth1`, `roce`, `roce:eth0`, `roce:eth0+eth1`,
    /// `bond:eth0+eth1,mode=802.3ad`.
    ///
    /// # Errors
    /// [`SelectionError`], whose text says what to write instead.
    pub fn parse(text: &str) -> Result<Self, SelectionError> {
        Self::parse_among(&PROVIDERS, text)
    }

    /// Parses a selection of devices of these kinds.
    ///
    /// # Errors
    /// [`SelectionError`], whose text says what to write instead.
    pub fn parse_among(
        providers: &[&'static dyn Provider],
        text: &str,
    ) -> Result<Self, SelectionError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        let (prefix, rest) = match text.split_once(':') {
            Some((prefix, rest)) => (prefix, Some(rest)),
            None => (text, None),
        };
        // `bond0` is short for `bond:bond0`.
        let (prefix, rest) = match prefix.strip_prefix(BOND.kind().prefix) {
            Some(number) if rest.is_none() && is_number(number) => (BOND.kind().prefix, Some(text)),
            _ => (prefix, rest),
        };
        let Some(&provider) = providers.iter().find(|p| p.kind().prefix == prefix) else {
            return Err(SelectionError::form(text, providers.iter().map(|p| p.kind())));
        };
        let choice = rest.map(|rest| provider.parse(rest)).transpose()?.unwrap_or_default();
        Ok(Self { chosen: Some((provider, choice)) })
    }

    /// Decides what an empty selection means with these interfaces. Any other selection stays as it is.
    /// The broker does this once per process, so that a second interface that appears later does not
    /// turn a program's `roce0` into `mp0`.
    #[must_use]
    pub fn resolve(&self, table: &Table) -> Self {
        let (provider, choice) = self.resolved(table);
        Self { chosen: Some((provider, choice)) }
    }

    fn resolved(&self, table: &Table) -> (&'static dyn Provider, Choice) {
        let decide = || {
            let all = Choice::default();
            match &adopted(table, &all)[..] {
                [] => (for_interfaces(unnamed(table).len()), all),
                // The name makes sure that it stays this one.
                [bond] => (BOND, Choice::of_interface(&bond.name)),
                [..] => (BOND, all),
            }
        };
        self.chosen.clone().unwrap_or_else(decide)
    }

    /// Checks that the named interfaces exist and that there is at least one device.
    ///
    /// # Errors
    /// [`SelectionError`], whose text names what is there.
    pub fn check(&self, table: &Table) -> Result<(), SelectionError> {
        let missing = |name: &&String| table.port_by_name(name).is_none();
        if let Some(name) = self.interfaces().iter().find(missing) {
            let known: Vec<&str> = table.ports.iter().map(|port| port.name.as_str()).collect();
            return Err(SelectionError::NoInterface {
                name: name.clone(),
                known: known.join(", "),
            });
        }
        if self.plans(table).is_empty() {
            return Err(SelectionError::NothingUsable);
        }
        Ok(())
    }

    /// The names of the interfaces that the user asked for.
    #[must_use]
    pub fn interfaces(&self) -> &[String] {
        self.chosen.as_ref().map_or(&[], |(_, choice)| &choice.interfaces)
    }

    /// The settings that the selection brings along: those of a bond device's mode and options, and none
    /// for other kinds, nor for bonds of the kernel's.
    #[must_use]
    pub fn settings(&self, table: &Table) -> Bonding {
        let (provider, choice) = self.resolved(table);
        if provider.kind() != BOND.kind() || !adopted(table, &choice).is_empty() {
            return Bonding::default();
        }
        choice.bond.unwrap_or_default().settings()
    }

    /// The settings that follow from the modes of the bonds of the kernel's that it selects, or from the
    /// addresses that the members of a bond share. Whatever the user says goes before them.
    #[must_use]
    pub fn settings_below(&self, table: &Table) -> Bonding {
        let (provider, choice) = self.resolved(table);
        if provider.kind() != BOND.kind() {
            return Bonding::default();
        }
        let mut settings = settings_of_adopted(table, &choice);
        if let Some(most) = self.shares(table).iter().map(Vec::len).max() {
            settings.ports = u8::try_from(most).ok().map(|ports| ports.min(PORTS_MAX));
        }
        settings
    }

    /// The interfaces that share IPv4 addresses, by index and whether they carry, the one that has the
    /// addresses first ([`PortSpec::shares`]).
    #[must_use]
    pub fn shares(&self, table: &Table) -> Vec<Vec<(u32, bool)>> {
        let (provider, choice) = self.resolved(table);
        if provider.kind() != BOND.kind() {
            return Vec::new();
        }
        let ports = provider.devices(table, &choice).into_iter().flat_map(|device| device.ports);
        let of = |port: PortSpec| {
            let told = |member: &Port| (member.ifindex, port.carries(table, member));
            let shares = port.shares(table).into_iter();
            shares.map(|share| share.into_iter().map(told).collect()).collect::<Vec<_>>()
        };
        ports.flat_map(of).collect()
    }

    /// The interfaces that this selection would include if a device were not limited to
    /// [`MEMBERS_MAX`](crate::MEMBERS_MAX).
    #[must_use]
    pub fn left_out<'a>(&self, table: &'a Table) -> Vec<&'a Port> {
        let (provider, choice) = self.resolved(table);
        provider.left_out(table, &choice)
    }

    /// The keys of the GID tables that the broker has to keep for this selection, each with its
    /// interfaces.
    #[must_use]
    pub fn gid_tables<'a>(&self, table: &'a Table) -> Vec<(String, Vec<&'a Port>)> {
        let keyed = |port: PortSpec| {
            let interfaces = port.interfaces(table).collect();
            (port.gid_table, interfaces)
        };
        let ports = self.plans(table).into_iter().flat_map(|device| device.ports);
        ports.filter(|port| !port.members.is_empty()).map(keyed).collect()
    }

    /// Whether the broker has to keep GID tables for this selection alone.
    #[must_use]
    pub fn has_own_gid_tables(&self) -> bool {
        self.chosen.as_ref().is_some_and(|(provider, choice)| !provider.shares_gid_tables(choice))
    }

    /// The devices, without their GIDs.
    fn plans(&self, table: &Table) -> Vec<DeviceSpec> {
        let (provider, choice) = self.resolved(table);
        provider.devices(table, &choice)
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.chosen {
            None => Ok(()),
            Some((provider, choice)) => f.write_str(&choice.with_prefix(provider.kind().prefix)),
        }
    }
}

/// The devices that a program with this selection sees, in order. Named interfaces that do not exist
/// are left out ([`Selection::check`] reports them), and so are devices without any interface.
#[must_use]
pub fn devices(table: &Table, selection: &Selection) -> Vec<DeviceSpec> {
    let mut devices = selection.plans(table);
    for port in devices.iter_mut().flat_map(|device| &mut device.ports) {
        // The table is that of the broker, or a new one if the broker keeps none for this port.
        let kept = table.gid_tables.iter().find(|named| named.key == port.gid_table);
        port.gids = match kept {
            Some(named) => named.table.entries().to_vec(),
            None => GidTable::of_ports(port.interfaces(table)).entries().to_vec(),
        };
    }
    devices
}

/// The problem with an interface that settings of multi-path devices name; `None` if there is none, or no
/// such device.
#[must_use]
pub fn interface_problem(
    settings: &Bonding,
    table: &Table,
    selection: &Selection,
) -> Option<String> {
    let devices = devices(table, selection);
    let several: Vec<_> = devices.iter().filter(|device| device.kind.multipath).collect();
    if several.is_empty() {
        return None;
    }
    let ports = several.iter().flat_map(|device| device.interfaces(table));
    let names: Vec<&str> = ports.map(|port| port.name.as_str()).collect();
    settings.interface_problem(&names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{MEMBERS_MAX, OVERHEAD, roce_mtu};
    use crate::gids::NamedGidTable;
    use crate::gids::tests::port;
    use crate::mp::MP;
    use crate::roce::ROCE;

    fn lo() -> Port {
        Port { loopback: true, ethernet: false, mac: [0; 6], ..port(1, "lo", &["127.0.0.1"]) }
    }

    fn table(ports: Vec<Port>) -> Table {
        Table { generation: 1, ports, ..Table::default() }
    }

    fn names(table: &Table, selection: &str) -> Vec<String> {
        let selection = Selection::parse(selection).unwrap();
        devices(table, &selection).into_iter().map(|d| d.name).collect()
    }

    #[test]
    fn one_interface_gives_roce0_two_give_mp0() {
        let one = table(vec![lo(), port(2, "eth0", &[])]);
        assert_eq!(names(&one, ""), ["roce0"]);
        let two = table(vec![lo(), port(2, "eth0", &[]), port(3, "eth1", &[])]);
        assert_eq!(names(&two, ""), ["mp0"]);
        assert_eq!(names(&two, "roce"), ["roce0", "roce1"]);
        assert_eq!(names(&one, "mp"), ["mp0"]);
    }

    #[test]
    fn loopback_is_used_only_if_alone_or_named() {
        let alone = table(vec![lo()]);
        assert_eq!(devices(&alone, &Selection::default())[0].ports[0].members, [1]);
        let both = table(vec![lo(), port(2, "eth0", &[])]);
        assert_eq!(devices(&both, &Selection::of(ROCE))[0].ports[0].members, [2]);
        let named = Selection::parse("roce:lo").unwrap();
        assert_eq!(devices(&both, &named)[0].ports[0].members, [1]);
    }

    #[test]
    fn ports_of_a_bridge_are_not_usable() {
        let slave = Port { enslaved: true, ..port(3, "eth1", &[]) };
        assert_eq!(names(&table(vec![port(2, "eth0", &[]), slave]), ""), ["roce0"]);
    }

    #[test]
    fn the_first_named_member_is_the_primary() {
        let table = table(vec![port(2, "eth0", &["10.0.0.1"]), port(3, "eth1", &["10.0.1.1"])]);
        let devices = devices(&table, &Selection::parse("mp:eth1+eth0").unwrap());
        assert_eq!(devices[0].ports[0].members, [3, 2]);
        assert_eq!(devices[0].ports[0].gids[1].ip.to_string(), "10.0.1.1");
    }

    #[test]
    fn the_mp_guid_differs_in_the_local_bit() {
        let table = table(vec![port(2, "eth0", &[])]);
        let roce = devices(&table, &Selection::of(ROCE))[0].node_guid;
        let mp = devices(&table, &Selection::of(MP))[0].node_guid;
        assert_eq!(roce, 0x5054_00ff_fe00_0002);
        assert_eq!(mp, 0x5254_00ff_fe00_0002);
    }

    #[test]
    fn the_mp_guid_stays_when_its_first_interface_goes() {
        let mut table = table(vec![port(2, "eth0", &[]), port(3, "eth1", &[])]);
        table.guid = Some(7);
        let guid = |table: &Table, text| {
            devices(table, &Selection::parse(text).unwrap()).first().unwrap().node_guid
        };
        let (all, named) = (guid(&table, "mp"), guid(&table, "mp:eth0+eth1"));
        assert_ne!(all, named);
        table.ports.remove(0);
        assert_eq!((guid(&table, "mp"), guid(&table, "mp:eth0+eth1")), (all, named));
    }

    #[test]
    fn the_brokers_gid_table_wins() {
        let mut table = table(vec![port(2, "eth0", &["10.0.0.1"])]);
        let mut kept = GidTable::of_ports([&port(2, "eth0", &["10.0.0.9", "10.0.0.1"])]);
        kept.update_from_ports(&table.ports);
        table.gid_tables.push(NamedGidTable { key: "roce:2".into(), table: kept });
        let device = &devices(&table, &Selection::of(ROCE))[0];
        assert!(device.ports[0].gids[1].is_empty());
        assert_eq!(device.ports[0].gid_index(&device.ports[0].gids[2].gid), Some(2));
    }

    #[test]
    fn the_roce_mtu_fits_through_every_member() {
        let jumbo = Port { mtu: 9000, ..port(2, "eth0", &[]) };
        let table = table(vec![jumbo, port(3, "eth1", &[])]);
        let mtus: Vec<u32> =
            devices(&table, &Selection::of(ROCE)).iter().map(|d| d.roce_mtu(&table)).collect();
        assert_eq!(mtus, [4096, 1024]);
        assert_eq!(devices(&table, &Selection::of(MP))[0].roce_mtu(&table), 1024);
    }

    #[test]
    fn a_member_without_a_link_does_not_make_packets_small() {
        let jumbo = Port { mtu: 9000, ..port(2, "eth0", &[]) };
        let unplugged = Port { link_up: false, ..port(3, "eth1", &[]) };
        let one_up = table(vec![jumbo.clone(), unplugged.clone()]);
        assert_eq!(devices(&one_up, &Selection::of(MP))[0].roce_mtu(&one_up), 4096);
        let none_up = table(vec![Port { link_up: false, ..jumbo }, unplugged]);
        assert_eq!(devices(&none_up, &Selection::of(MP))[0].roce_mtu(&none_up), 1024);
    }

    #[test]
    fn the_least_link_mtu_of_each_roce_mtu() {
        for roce in [4096, 2048, 1024, 512, 256] {
            assert_eq!(roce_mtu(roce + OVERHEAD), roce);
            assert_eq!(roce_mtu(roce + OVERHEAD - 1), if roce > 256 { roce / 2 } else { 256 });
        }
        // 4200 is the usual link MTU for RoCE.
        assert_eq!(roce_mtu(4200), 4096);
    }

    #[test]
    fn what_does_not_lead_out_counts_only_if_named_or_alone() {
        let docker = || Port { uplink: false, ..port(4, "docker0", &["172.17.0.1"]) };
        let host = table(vec![lo(), port(2, "eth0", &[]), port(3, "eth1", &[]), docker()]);
        assert_eq!(devices(&host, &Selection::default())[0].ports[0].members, [2, 3]);
        assert_eq!(names(&host, "roce").len(), 2);
        let named = devices(&host, &Selection::parse("roce:docker0").unwrap());
        assert_eq!(named[0].ports[0].members, [4]);
        let one = table(vec![lo(), port(2, "eth0", &[]), docker()]);
        assert_eq!(names(&one, ""), ["roce0"]);
        assert_eq!(
            devices(&table(vec![lo(), docker()]), &Selection::default())[0].ports[0].members,
            [4]
        );
    }

    #[test]
    fn interfaces_beyond_the_limit_are_left_out_and_known() {
        let ports: Vec<Port> = (2..22).map(|n| port(n, &format!("eth{n}"), &[])).collect();
        let table = table(ports);
        assert_eq!(devices(&table, &Selection::default())[0].ports[0].members.len(), MEMBERS_MAX);
        let left: Vec<u32> =
            Selection::default().left_out(&table).iter().map(|port| port.ifindex).collect();
        assert_eq!(left, [18, 19, 20, 21]);
        assert!(Selection::of(ROCE).left_out(&table).is_empty());
        assert_eq!(names(&table, "roce").len(), 20);
    }

    #[test]
    fn device_numbers_of_the_broker_are_kept() {
        let second = Port { device_number: Some(1), ..port(3, "eth1", &[]) };
        assert_eq!(names(&table(vec![second]), "roce"), ["roce1"]);
    }

    #[test]
    fn an_unset_selection_is_decided_once() {
        let one = table(vec![port(2, "eth0", &[])]);
        let two = table(vec![port(2, "eth0", &[]), port(3, "eth1", &[])]);
        let decided = Selection::default().resolve(&one);
        assert_eq!(devices(&two, &decided)[0].name, "roce0");
    }

    #[test]
    fn selections_print_as_they_parse() {
        for text in ["", "mp", "mp:eth0+eth1", "roce", "roce:lo"] {
            assert_eq!(Selection::parse(text).unwrap().to_string(), text);
        }
        for text in ["eth0", "mp:", "mp:a++b", "roce:a/b", "MP", "mp:a:b"] {
            assert!(matches!(Selection::parse(text), Err(SelectionError::Form { .. })), "{text}");
        }
        assert!(matches!(Selection::parse("mp:a+a"), Err(SelectionError::Twice(_))));
    }

    #[test]
    fn a_wrong_selection_is_refused_with_what_to_write() {
        let refused = |text: &str| Selection::parse(text).unwrap_err().to_string();
        let all = "`eth0` selects no device: write roce, roce:eth0, roce2, roce2:eth0+eth1, mp, \
                   mp:eth0+eth1, bond, bond:bond0 or bond:eth0+eth1,mode=active-backup, with the \
                   names of your interfaces";
        assert_eq!(refused("eth0"), all);
        let mp = "`mp:a++b` selects no device: write mp or mp:eth0+eth1, with the names of your \
                  interfaces";
        assert_eq!(refused("mp:a++b"), mp);
    }

    #[test]
    fn only_several_interfaces_chosen_by_name_have_a_gid_table_of_their_own() {
        let own = |text: &str| Selection::parse(text).unwrap().has_own_gid_tables();
        let texts = ["", "roce", "roce:eth0+eth1", "mp", "mp:eth0"];
        assert_eq!(texts.map(own), [false, false, false, false, true]);
    }

    #[test]
    fn a_missing_interface_is_named_with_those_that_exist() {
        let table = table(vec![lo(), port(2, "eth0", &[])]);
        let error = Selection::parse("roce:eth9").unwrap().check(&table).unwrap_err();
        assert!(error.to_string().contains("lo, eth0"), "{error}");
    }
}
