//! The one place that turns interfaces and a selection into the devices that a program sees.

use std::fmt;

use crate::gids::{GidEntry, GidTable, eui64};
use crate::interface::Port;
use crate::table::Table;

/// Most interfaces of one device, and in a selection.
pub const MEMBERS_MAX: usize = 16;

/// `local_ca_ack_delay` of every device, as rxe's: the exponent of 4.096 µs · 2^n. The broker's CM
/// tells it to peers, the device to applications.
pub const LOCAL_CA_ACK_DELAY: u8 = 15;

/// What a packet with the largest payload has around it, in bytes: IPv6, UDP, BTH, multi-path
/// header, RETH, immediate data, ICRC. That is a multi-path WRITE with immediate data in one packet;
/// atomics have a longer header (AtomicETH) and no payload, XRC has no multi-path header.
pub const OVERHEAD: u32 = 40 + 8 + 12 + 20 + 16 + 4 + 4;

/// The path MTUs of RoCE, largest first.
const ROCE_MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// The RoCE MTU in bytes of an interface with this link MTU: 256 to 4096, a power of two. What is
/// too small even for 256 counts as that.
///
/// ```
/// use polypath_ipc::roce_mtu;
/// assert_eq!([1500, 4200, 9000].map(roce_mtu), [1024, 4096, 4096]);
/// ```
#[must_use]
pub fn roce_mtu(link_mtu: u32) -> u32 {
    ROCE_MTUS.into_iter().find(|mtu| mtu + OVERHEAD <= link_mtu).unwrap_or(256)
}

/// `index` of the one mp device of a program; those of roce devices are interface indexes, from
/// [`ROCE_INDEX`] on. Real devices have small numbers, counted by the kernel.
const MP_INDEX: u32 = 0x0010_0000;
const ROCE_INDEX: u32 = 0x0020_0000;

/// Which devices a program wants to see (`POLYPATH_DEVICE`, `polypath run --device`).
///
/// ```
/// use polypath_ipc::Selection;
/// let selection = Selection::parse("mp:eth0+eth1").unwrap();
/// assert_eq!(selection, Selection::MpOver(vec!["eth0".into(), "eth1".into()]));
/// assert!(Selection::parse("eth0").unwrap_err().to_string().contains("roce:eth0"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Selection {
    /// Nothing said: `mp0` over all uplinks if there are two or more, else `roce0`.
    #[default]
    Unset,
    /// `mp0` over all uplinks.
    Mp,
    /// `mp0` over these interfaces; the first gives it its GUID.
    MpOver(Vec<String>),
    /// One roce device per uplink.
    Roce,
    /// Roce devices over these interfaces, loopback included if named.
    RoceOver(Vec<String>),
}

/// A selection that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// Not of the form of a selection.
    #[error(
        "`{0}` selects no device: write mp, mp:eth0+eth1, roce or roce:eth0, with the names of your \
         interfaces"
    )]
    Form(String),
    /// An interface is named twice.
    #[error("interface `{0}` is named twice in the device selection")]
    Twice(String),
    /// Too many interfaces.
    #[error("a device selection names at most {MEMBERS_MAX} interfaces")]
    TooMany,
    /// There is no such interface.
    #[error("interface `{name}` does not exist in this network namespace (have: {known})")]
    NoInterface {
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// No interface can carry a device.
    #[error("no interface with a link-layer address is there to put a device on")]
    NothingUsable,
}

impl Selection {
    /// Reads a selection: empty, `mp`, `mp:eth0+eth1`, `roce`, `roce:eth0`, `roce:eth0+eth1`.
    ///
    /// # Errors
    /// [`SelectionError`], whose text says what to write instead.
    pub fn parse(text: &str) -> Result<Self, SelectionError> {
        let text = text.trim();
        let form = || SelectionError::Form(text.chars().take(64).collect());
        let (kind, names) = match text.split_once(':') {
            Some((kind, names)) => (kind, Some(parse_names(names, form)?)),
            None => (text, None),
        };
        match (kind, names) {
            ("", None) => Ok(Self::Unset),
            ("mp", None) => Ok(Self::Mp),
            ("mp", Some(names)) => Ok(Self::MpOver(names)),
            ("roce", None) => Ok(Self::Roce),
            ("roce", Some(names)) => Ok(Self::RoceOver(names)),
            _ => Err(form()),
        }
    }

    /// Decides what [`Unset`](Self::Unset) means with these interfaces; any other selection stays
    /// as it is. The broker does this once per process, so that a second interface that appears
    /// later does not turn a program's `roce0` into `mp0`.
    #[must_use]
    pub fn resolve(&self, table: &Table) -> Self {
        match self {
            Self::Unset if standing(table).len() >= 2 => Self::Mp,
            Self::Unset => Self::Roce,
            other => other.clone(),
        }
    }

    /// Checks that the interfaces named exist and that there is at least one device.
    ///
    /// # Errors
    /// [`SelectionError`], whose text names what is there.
    pub fn check(&self, table: &Table) -> Result<(), SelectionError> {
        if let Self::MpOver(names) | Self::RoceOver(names) = self
            && let Some(name) = names.iter().find(|name| table.port_by_name(name).is_none())
        {
            let known: Vec<&str> = table.ports.iter().map(|port| port.name.as_str()).collect();
            return Err(SelectionError::NoInterface {
                name: name.clone(),
                known: known.join(", "),
            });
        }
        if devices(table, self).is_empty() {
            return Err(SelectionError::NothingUsable);
        }
        Ok(())
    }

    /// The interfaces meant, in order; unknown names are left out.
    fn ports<'a>(&self, table: &'a Table) -> Vec<&'a Port> {
        match self {
            Self::MpOver(names) | Self::RoceOver(names) => {
                names.iter().filter_map(|name| table.port_by_name(name)).collect()
            }
            Self::Unset | Self::Roce => standing(table),
            Self::Mp => {
                let mut ports = standing(table);
                ports.truncate(MEMBERS_MAX);
                ports
            }
        }
    }

    /// The interfaces that this selection would take in, were a device not limited to
    /// [`MEMBERS_MAX`].
    #[must_use]
    pub fn left_out<'a>(&self, table: &'a Table) -> Vec<&'a Port> {
        match self.resolve(table) {
            Self::Mp => standing(table).split_off(MEMBERS_MAX.min(standing(table).len())),
            _ => Vec::new(),
        }
    }

    /// Keys of the GID tables that the broker has to keep for this selection, with the interfaces
    /// of each.
    #[must_use]
    pub fn gid_tables<'a>(&self, table: &'a Table) -> Vec<(String, Vec<&'a Port>)> {
        let resolved = self.resolve(table);
        let ports = resolved.ports(table);
        match resolved {
            Self::Mp | Self::MpOver(_) => vec![(resolved.to_string(), ports)],
            _ => ports.into_iter().map(|port| (roce_key(port), vec![port])).collect(),
        }
    }
}

/// The interfaces that count without being named: the uplinks; where there is none, whatever a device
/// can stand on; where there is nothing else, loopback.
fn standing(table: &Table) -> Vec<&Port> {
    let those = |holds: fn(&Port) -> bool| -> Vec<&Port> {
        table.ports.iter().filter(|port| holds(port)).collect()
    };
    let choices = [
        those(|port| port.usable() && port.uplink),
        those(Port::usable),
        those(|port| port.loopback),
    ];
    choices.into_iter().find(|ports| !ports.is_empty()).unwrap_or_default()
}

fn roce_key(port: &Port) -> String {
    format!("roce:{}", port.ifindex)
}

fn parse_names(
    names: &str,
    form: impl Fn() -> SelectionError,
) -> Result<Vec<String>, SelectionError> {
    let mut list: Vec<String> = Vec::new();
    for name in names.split('+').map(str::trim) {
        if name.is_empty() || name.len() > 15 || name.contains(['/', ':', ' ']) {
            return Err(form());
        }
        if list.iter().any(|other| other == name) {
            return Err(SelectionError::Twice(name.to_owned()));
        }
        if list.len() == MEMBERS_MAX {
            return Err(SelectionError::TooMany);
        }
        list.push(name.to_owned());
    }
    Ok(list)
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => Ok(()),
            Self::Mp => f.write_str("mp"),
            Self::MpOver(names) => write!(f, "mp:{}", names.join("+")),
            Self::Roce => f.write_str("roce"),
            Self::RoceOver(names) => write!(f, "roce:{}", names.join("+")),
        }
    }
}

/// Whether a device is plain RoCE or multi-path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// One interface, RoCE v2.
    Roce,
    /// Several interfaces, multi-path with peers that know it.
    Mp,
}

/// A device as a program sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// `roce0`, `roce1` …, `mp0`.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Indexes of its interfaces, the primary first.
    pub members: Vec<u32>,
    /// EUI-64 of the first member's MAC address, as number; an mp device's differs from its first
    /// member's in the local bit. Network byte order in the verbs structures.
    pub node_guid: u64,
    /// For `ibv_get_device_index`: unique, and the same as long as the interface exists.
    pub index: u32,
    /// The GID table by index; see [`GidEntry::is_empty`] for holes. What lies beyond is empty.
    pub gids: Vec<GidEntry>,
}

impl DeviceSpec {
    /// The RoCE MTU in bytes (256 to 4096, a power of two): what fits through every member that has
    /// a link, or through every one if none has.
    #[must_use]
    pub fn roce_mtu(&self, table: &Table) -> u32 {
        let members = || self.ports(table);
        let least = |ports: &mut dyn Iterator<Item = &Port>| ports.map(|port| port.mtu).min();
        let linked = least(&mut members().filter(|port| port.link_up));
        roce_mtu(linked.or_else(|| least(&mut members())).unwrap_or(1500))
    }

    /// Its interfaces that exist, the primary first.
    pub fn ports<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = &'a Port> {
        self.members.iter().filter_map(|&ifindex| table.port(ifindex))
    }

    /// Whether any of its interfaces has a link: the port's state is ACTIVE, else DOWN.
    #[must_use]
    pub fn is_active(&self, table: &Table) -> bool {
        self.ports(table).any(|port| port.link_up)
    }

    /// What its interfaces carry together, in Mbit/s: those that have a link. One whose driver
    /// tells no speed counts as 1,000.
    #[must_use]
    pub fn speed_mbps(&self, table: &Table) -> u32 {
        let linked = self.ports(table).filter(|port| port.link_up);
        linked.map(|port| port.speed_mbps.unwrap_or(1000)).fold(0, u32::saturating_add)
    }

    /// The index of a GID.
    #[must_use]
    pub fn gid_index(&self, gid: &[u8; 16]) -> Option<u8> {
        let at = self.gids.iter().position(|entry| !entry.is_empty() && entry.gid == *gid)?;
        u8::try_from(at).ok()
    }
}

/// Width and speed codes of a port with this rate in Mbit/s (IBTA 14.2.5.6: width 1x = 1, 4x = 2;
/// speed SDR 1, QDR 4, FDR10 8, EDR 32), as the kernel's `ib_get_eth_speed` chooses them.
#[must_use]
pub fn width_and_speed(mbps: u32) -> (u8, u8) {
    match mbps {
        0..=1000 => (1, 1),
        1001..=10_000 => (1, 4),
        10_001..=20_000 => (2, 2),
        20_001..=25_000 => (1, 32),
        25_001..=40_000 => (2, 8),
        _ => (2, 32),
    }
}

/// The devices that a program with this selection sees, in order. Interfaces named but missing are
/// left out ([`Selection::check`] tells about them); a device without any interface does not exist.
#[must_use]
pub fn devices(table: &Table, selection: &Selection) -> Vec<DeviceSpec> {
    let selection = selection.resolve(table);
    let ports = selection.ports(table);
    match selection {
        Selection::Mp | Selection::MpOver(_) => {
            let Some(first) = ports.first() else { return Vec::new() };
            vec![DeviceSpec {
                name: "mp0".to_owned(),
                kind: DeviceKind::Mp,
                node_guid: eui64(first.mac) ^ 0x0200_0000_0000_0000,
                index: MP_INDEX,
                gids: gids(table, &selection.to_string(), &ports),
                members: ports.iter().map(|port| port.ifindex).collect(),
            }]
        }
        _ => {
            let given = table.ports.iter().filter_map(|port| port.device_number).max();
            let mut next = given.map_or(0, |n| n.saturating_add(1));
            let mut number = |port: &Port| {
                port.device_number.unwrap_or_else(|| {
                    next = next.saturating_add(1);
                    next - 1
                })
            };
            ports.iter().map(|port| roce(table, port, number(port))).collect()
        }
    }
}

fn roce(table: &Table, port: &Port, number: u16) -> DeviceSpec {
    DeviceSpec {
        name: format!("roce{number}"),
        kind: DeviceKind::Roce,
        members: vec![port.ifindex],
        node_guid: eui64(port.mac),
        index: ROCE_INDEX.saturating_add(port.ifindex),
        gids: gids(table, &roce_key(port), &[port]),
    }
}

/// The GID table kept by the broker, or one made anew if it keeps none for this device.
fn gids(table: &Table, key: &str, ports: &[&Port]) -> Vec<GidEntry> {
    match table.gid_tables.iter().find(|named| named.key == key) {
        Some(named) => named.table.entries().to_vec(),
        None => GidTable::of_ports(ports.iter().copied()).entries().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gids::NamedGidTable;
    use crate::gids::tests::port;

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
        assert_eq!(devices(&alone, &Selection::Unset)[0].members, [1]);
        let both = table(vec![lo(), port(2, "eth0", &[])]);
        assert_eq!(devices(&both, &Selection::Roce)[0].members, [2]);
        let named = Selection::parse("roce:lo").unwrap();
        assert_eq!(devices(&both, &named)[0].members, [1]);
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
        assert_eq!(devices[0].members, [3, 2]);
        assert_eq!(devices[0].gids[1].ip.to_string(), "10.0.1.1");
    }

    #[test]
    fn the_mp_guid_differs_in_the_local_bit() {
        let table = table(vec![port(2, "eth0", &[])]);
        let roce = devices(&table, &Selection::Roce)[0].node_guid;
        let mp = devices(&table, &Selection::Mp)[0].node_guid;
        assert_eq!(roce, 0x5054_00ff_fe00_0002);
        assert_eq!(mp, 0x5254_00ff_fe00_0002);
    }

    #[test]
    fn the_brokers_gid_table_wins() {
        let mut table = table(vec![port(2, "eth0", &["10.0.0.1"])]);
        let mut kept = GidTable::of_ports([&port(2, "eth0", &["10.0.0.9", "10.0.0.1"])]);
        kept.update_from_ports(&table.ports);
        table.gid_tables.push(NamedGidTable { key: "roce:2".into(), table: kept });
        let device = &devices(&table, &Selection::Roce)[0];
        assert!(device.gids[1].is_empty());
        assert_eq!(device.gid_index(&device.gids[2].gid), Some(2));
    }

    #[test]
    fn the_roce_mtu_fits_through_every_member() {
        let jumbo = Port { mtu: 9000, ..port(2, "eth0", &[]) };
        let table = table(vec![jumbo, port(3, "eth1", &[])]);
        let mtus: Vec<u32> =
            devices(&table, &Selection::Roce).iter().map(|d| d.roce_mtu(&table)).collect();
        assert_eq!(mtus, [4096, 1024]);
        assert_eq!(devices(&table, &Selection::Mp)[0].roce_mtu(&table), 1024);
    }

    #[test]
    fn a_member_without_a_link_does_not_make_packets_small() {
        let jumbo = Port { mtu: 9000, ..port(2, "eth0", &[]) };
        let unplugged = Port { link_up: false, ..port(3, "eth1", &[]) };
        let one_up = table(vec![jumbo.clone(), unplugged.clone()]);
        assert_eq!(devices(&one_up, &Selection::Mp)[0].roce_mtu(&one_up), 4096);
        let none_up = table(vec![Port { link_up: false, ..jumbo }, unplugged]);
        assert_eq!(devices(&none_up, &Selection::Mp)[0].roce_mtu(&none_up), 1024);
    }

    #[test]
    fn the_least_link_mtu_of_each_roce_mtu() {
        for roce in [4096, 2048, 1024, 512, 256] {
            assert_eq!(roce_mtu(roce + OVERHEAD), roce);
            assert_eq!(roce_mtu(roce + OVERHEAD - 1), if roce > 256 { roce / 2 } else { 256 });
        }
        // The usual setting for RoCE.
        assert_eq!(roce_mtu(4200), 4096);
    }

    #[test]
    fn what_does_not_lead_out_counts_only_if_named_or_alone() {
        let docker = || Port { uplink: false, ..port(4, "docker0", &["172.17.0.1"]) };
        let host = table(vec![lo(), port(2, "eth0", &[]), port(3, "eth1", &[]), docker()]);
        assert_eq!(devices(&host, &Selection::Unset)[0].members, [2, 3]);
        assert_eq!(names(&host, "roce").len(), 2);
        let named = devices(&host, &Selection::parse("roce:docker0").unwrap());
        assert_eq!(named[0].members, [4]);
        let one = table(vec![lo(), port(2, "eth0", &[]), docker()]);
        assert_eq!(names(&one, ""), ["roce0"]);
        assert_eq!(devices(&table(vec![lo(), docker()]), &Selection::Unset)[0].members, [4]);
    }

    #[test]
    fn interfaces_beyond_the_limit_are_left_out_and_known() {
        let ports: Vec<Port> = (2..22).map(|n| port(n, &format!("eth{n}"), &[])).collect();
        let table = table(ports);
        assert_eq!(devices(&table, &Selection::Unset)[0].members.len(), MEMBERS_MAX);
        let left: Vec<u32> =
            Selection::Unset.left_out(&table).iter().map(|port| port.ifindex).collect();
        assert_eq!(left, [18, 19, 20, 21]);
        assert!(Selection::Roce.left_out(&table).is_empty());
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
        let decided = Selection::Unset.resolve(&one);
        assert_eq!(devices(&two, &decided)[0].name, "roce0");
    }

    #[test]
    fn selections_print_as_they_parse() {
        for text in ["", "mp", "mp:eth0+eth1", "roce", "roce:lo"] {
            assert_eq!(Selection::parse(text).unwrap().to_string(), text);
        }
        for text in ["eth0", "mp:", "mp:a++b", "roce:a/b", "MP", "mp:a:b"] {
            assert!(matches!(Selection::parse(text), Err(SelectionError::Form(_))), "{text}");
        }
        assert!(matches!(Selection::parse("mp:a+a"), Err(SelectionError::Twice(_))));
    }

    #[test]
    fn a_missing_interface_is_named_with_those_that_exist() {
        let table = table(vec![lo(), port(2, "eth0", &[])]);
        let error = Selection::parse("roce:eth9").unwrap().check(&table).unwrap_err();
        assert!(error.to_string().contains("lo, eth0"), "{error}");
    }
}
