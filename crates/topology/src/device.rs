//! A device as a program sees it.

use crate::gids::GidEntry;
use crate::interface::Port;
use crate::table::Table;

/// The largest number of interfaces of one device, and in a selection.
pub const MEMBERS_MAX: usize = 16;

/// `local_ca_ack_delay` of every device, as of rxe: the exponent n of 4.096 µs · 2^n. The broker's
/// connection manager tells it to peers, the device tells it to applications.
pub const LOCAL_CA_ACK_DELAY: u8 = 15;

/// The number of bytes around the largest payload of a packet: IPv6, UDP, BTH, multi-path header, RETH,
/// immediate data and ICRC, for a multi-path WRITE with immediate data in one packet. Atomics have a
/// longer header (AtomicETH) but no payload; XRC has no multi-path header.
pub const OVERHEAD: u32 = 40 + 8 + 12 + 20 + 16 + 4 + 4;

/// The path MTUs of RoCE, largest first.
const ROCE_MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// The RoCE MTU in bytes of an interface with this link MTU in bytes: a power of two from 256 to 4096.
/// A link MTU that is too small even for 256 also gives 256.
///
/// ```
/// use polypath_topology::roce_mtu;
/// assert_eq!([1500, 4200, 9000].map(roce_mtu), [1024, 4096, 4096]);
/// ```
#[must_use]
pub fn roce_mtu(link_mtu: u32) -> u32 {
    ROCE_MTUS.into_iter().find(|mtu| mtu + OVERHEAD <= link_mtu).unwrap_or(256)
}

/// A kind of device. Different kinds have different prefixes.
#[derive(Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// The prefix that a user writes to choose such devices, which is also the beginning of their
    /// names: `roce`, `mp`.
    pub prefix: &'static str,
    /// All forms that a user may write, as examples with interfaces `eth0` and `eth1`; the most
    /// specific form is last.
    pub forms: &'static [&'static str],
    /// The name that `polypath devices` shows.
    pub title: &'static str,
    /// Whether its queue pairs use all of its interfaces, with peers that support multi-path.
    pub multipath: bool,
}

/// How the interfaces of a port make one link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Aggregation {
    /// Whether only one of them carries data at a time: the first that has a link.
    pub one_at_a_time: bool,
    /// How many of them must have a link for the port to be ACTIVE; 0 means 1.
    pub min_links: u8,
    /// Whether an interface counts as without a link while LACP ([`Port::lacp`]) keeps it out.
    pub lacp: bool,
    /// Whether one of them sends from another's IPv4 addresses, too ([`PortSpec::shares`]).
    pub shares: bool,
}

/// A port of a device: interfaces, and the GID table of their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// The indexes of its interfaces, the primary first.
    pub members: Vec<u32>,
    /// The indexes of the ports of the kernel's bond that it stands on, in the kernel's order; none if it
    /// stands on no bond, or has not adopted it.
    pub links: Vec<u32>,
    /// The key of its GID table among those of a [`Table`].
    pub gid_table: String,
    /// How the interfaces make one link.
    pub aggregation: Aggregation,
    /// The GID table by index. See [`GidEntry::is_empty`] for holes. All further entries are empty.
    pub gids: Vec<GidEntry>,
}

impl PortSpec {
    /// A port without GIDs: [`devices`](fn@crate::devices) fills them in.
    #[must_use]
    pub fn new(members: Vec<u32>, gid_table: String) -> Self {
        Self { members, gid_table, ..Self::default() }
    }

    /// The interfaces that exist, the primary first.
    pub fn interfaces<'a>(&self, table: &'a Table) -> impl Iterator<Item = &'a Port> {
        self.members.iter().filter_map(|&ifindex| table.port(ifindex))
    }

    /// Whether packets can leave by one of its interfaces now: it carries ([`Port::carries`]), and LACP does
    /// not keep it out.
    #[must_use]
    pub fn carries(&self, table: &Table, interface: &Port) -> bool {
        interface.carries(table) && !self.keeps_out(interface)
    }

    /// Its interfaces that are not above another one of them.
    pub fn lowest<'a>(&self, table: &'a Table) -> impl Iterator<Item = &'a Port> {
        let is_lowest = |port: &&Port| port.above.is_none_or(|it| !self.members.contains(&it));
        self.interfaces(table).filter(is_lowest)
    }

    /// Whether one of its interfaces counts as having a link.
    fn has_link(&self, table: &Table, interface: &Port) -> bool {
        interface.has_link(table) && !self.keeps_out(interface)
    }

    fn keeps_out(&self, interface: &Port) -> bool {
        self.aggregation.lacp && interface.lacp == Some(false)
    }

    /// The RoCE MTU in bytes (a power of two from 256 to 4096): the largest that fits every member with
    /// a link, or every member if none has a link.
    #[must_use]
    pub fn roce_mtu(&self, table: &Table) -> u32 {
        let least = |ports: &mut dyn Iterator<Item = &Port>| ports.map(|port| port.mtu).min();
        let linked = least(&mut self.interfaces(table).filter(|port| self.has_link(table, port)));
        roce_mtu(linked.or_else(|| least(&mut self.interfaces(table))).unwrap_or(1500))
    }

    /// Whether enough of its interfaces have a link (one, unless
    /// [`min_links`](Aggregation::min_links) says otherwise), so that its state is ACTIVE; otherwise it is
    /// DOWN.
    #[must_use]
    pub fn is_active(&self, table: &Table) -> bool {
        let linked = self.lowest(table).filter(|port| self.has_link(table, port)).count();
        linked >= usize::from(self.aggregation.min_links.max(1))
    }

    /// The sum of the speeds of its interfaces that have a link, in Mbit/s, without those above others, or
    /// that of the first one if only one carries data at a time. An interface whose driver reports no speed
    /// counts as 1,000.
    #[must_use]
    pub fn speed_mbps(&self, table: &Table) -> u32 {
        let room = if self.aggregation.one_at_a_time { 1 } else { usize::MAX };
        let linked = self.lowest(table).filter(|port| self.has_link(table, port)).take(room);
        linked.map(|port| port.rate_mbps(table).unwrap_or(1000)).fold(0, u32::saturating_add)
    }

    /// The entries of its GID table that are not empty, with their indexes.
    pub fn entries(&self) -> impl Iterator<Item = (usize, &GidEntry)> {
        self.gids.iter().enumerate().filter(|(_, entry)| !entry.is_empty())
    }

    /// The index of a GID, or `None` if the table does not contain it.
    #[must_use]
    pub fn gid_index(&self, gid: &[u8; 16]) -> Option<u8> {
        let at = self.entries().find(|(_, entry)| entry.gid == *gid)?.0;
        u8::try_from(at).ok()
    }
}

/// A device as a program sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The name: `roce0`, `roce1`, …, `mp0` or `bond0`, or that of a bond of the kernel's.
    pub name: String,
    /// Its kind.
    pub kind: &'static DeviceKind,
    /// The node GUID, as a number in host byte order: the EUI-64 of the first member's MAC address.
    /// That of an mp device differs from its first member's in the universal/local bit.
    pub node_guid: u64,
    /// The number for `ibv_get_device_index`. It is unique and stays the same as long as the interface
    /// exists. Real devices have small numbers, counted by the kernel.
    pub index: u32,
    /// The number N of its file `/dev/infiniband/uverbsN`. Real devices have small numbers.
    pub uverbs: u32,
    /// Its ports: the first is number 1.
    pub ports: Vec<PortSpec>,
}

impl DeviceSpec {
    /// What sends for it: the ports of the kernel's bonds that it stands on, or else its interfaces.
    #[must_use]
    pub fn links(&self) -> Vec<u32> {
        let links: Vec<u32> = self.ports.iter().flat_map(|port| port.links.clone()).collect();
        if links.is_empty() { self.members().collect() } else { links }
    }

    /// The port of this number, from 1.
    #[must_use]
    pub fn port(&self, number: u8) -> Option<&PortSpec> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// The ports with their numbers.
    pub fn numbered_ports(&self) -> impl Iterator<Item = (u8, &PortSpec)> {
        (1..).zip(&self.ports)
    }

    /// The indexes of the interfaces of all ports, the primary first.
    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.ports.iter().flat_map(|port| port.members.iter().copied())
    }

    /// The interfaces that exist, the primary first.
    pub fn interfaces<'a, 'b: 'a>(&'b self, table: &'a Table) -> impl Iterator<Item = &'a Port> {
        self.members().filter_map(|ifindex| table.port(ifindex))
    }

    /// The name of its device file, such as `uverbs900`.
    #[must_use]
    pub fn uverbs_name(&self) -> String {
        format!("uverbs{}", self.uverbs)
    }

    /// The RoCE MTU in bytes that fits each of its ports that is ACTIVE, or each if none is. A datagram
    /// has to fit, because its queue pair may use any port.
    #[must_use]
    pub fn roce_mtu(&self, table: &Table) -> u32 {
        let least = |ports: &mut dyn Iterator<Item = &PortSpec>| {
            ports.map(|port| port.roce_mtu(table)).min()
        };
        let active = least(&mut self.ports.iter().filter(|port| port.is_active(table)));
        active.or_else(|| least(&mut self.ports.iter())).unwrap_or(256)
    }

    /// Whether any of its ports is ACTIVE.
    #[must_use]
    pub fn is_active(&self, table: &Table) -> bool {
        self.ports.iter().any(|port| port.is_active(table))
    }
}

/// The width and speed codes of a port with this rate in Mbit/s (IBTA 14.2.5.6: width 1x is 1, 4x is 2;
/// speed SDR is 1, DDR 2, QDR 4, FDR10 8, EDR 32). They are those of the kernel's `ib_get_eth_speed`,
/// except that it reports FDR10 for 1,001 to 10,000 Mbit/s.
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
