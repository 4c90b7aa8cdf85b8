//! GID tables whose entries keep their index.
//!
//! A table is laid out as that of Linux rxe: index 0 is the link-local GID made from the MAC address,
//! followed by one entry per address, with IPv4 as `::ffff:a.b.c.d`. All are RoCE v2. Applications
//! remember indexes. A table is therefore never rebuilt but updated in place, as in the kernel: an
//! address that goes leaves a hole, and a new one takes the first hole.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::interface::Port;

/// The number of entries of a device's GID table (`gid_tbl_len`). It is small because some applications
/// look at every entry through sysfs. Addresses that find no room have no GID.
pub const GID_TABLE_LEN: usize = 64;

/// An entry of a GID table. A hole has an all-zero `gid`; see [`is_empty`](Self::is_empty).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Encoded", into = "Encoded")]
pub struct GidEntry {
    /// The GID, in network byte order.
    pub gid: [u8; 16],
    /// The GID as an address. Packets of this GID leave from it.
    pub ip: IpAddr,
    /// The index of the interface that it is on.
    pub ifindex: u32,
    /// Whether the interface really has the address. Entry 0 is made from the MAC address, and exists
    /// even if the interface does not have the address (because IPv6 is off, or link-local addresses
    /// are made in another way).
    pub assigned: bool,
}

impl GidEntry {
    /// A hole in the table.
    pub const EMPTY: Self =
        Self { gid: [0; 16], ip: IpAddr::V6(Ipv6Addr::UNSPECIFIED), ifindex: 0, assigned: false };

    /// Whether this is a hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gid == [0; 16]
    }

    /// Creates the entry of an address.
    #[must_use]
    pub fn new(ip: IpAddr, ifindex: u32, assigned: bool) -> Self {
        Self { gid: gid_of(ip), ip, ifindex, assigned }
    }

    fn same_place(&self, other: &Self) -> bool {
        self.gid == other.gid && self.ifindex == other.ifindex
    }
}

/// The serialized form of an entry, which contains the address only once.
#[derive(Serialize, Deserialize)]
struct Encoded {
    gid: Ipv6Addr,
    ifindex: u32,
    assigned: bool,
}

impl From<GidEntry> for Encoded {
    fn from(entry: GidEntry) -> Self {
        Self { gid: entry.gid.into(), ifindex: entry.ifindex, assigned: entry.assigned }
    }
}

impl From<Encoded> for GidEntry {
    fn from(encoded: Encoded) -> Self {
        let Encoded { gid, ifindex, assigned } = encoded;
        // `to_canonical()` would change `::1`, and `::` marks a hole, so both must stay IPv6.
        let ip = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
        Self { gid: gid.octets(), ip, ifindex, assigned }
    }
}

/// The GID of an address. IPv4 addresses are mapped (RFC 4291, section 2.5.5.2; IBTA annex A17).
#[must_use]
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The EUI-64 of a MAC address with the universal/local bit inverted (RFC 4291, appendix A), as a
/// number.
#[must_use]
pub fn eui64(mac: [u8; 6]) -> u64 {
    u64::from_be_bytes([mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]])
}

/// The link-local address made from a MAC address.
#[must_use]
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfe80_u128 << 112 | u128::from(eui64(mac)))
}

/// The entries of a port, in the order of a new table.
fn entries_of(port: &Port) -> Vec<GidEntry> {
    let usable = || port.addresses.iter().filter(|address| !address.tentative);
    let own = IpAddr::V6(link_local(port.mac));
    let assigned = usable().any(|address| address.ip == own);
    let first = GidEntry::new(own, port.ifindex, assigned);
    let v4 = usable().filter(|address| address.ip.is_ipv4());
    let v6 = usable().filter(|address| address.ip.is_ipv6() && address.ip != own);
    let rest = v4.chain(v6).map(|address| GidEntry::new(address.ip, port.ifindex, true));
    std::iter::once(first).chain(rest).collect()
}

/// A GID table that is updated in place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidTable {
    entries: Vec<GidEntry>,
}

impl GidTable {
    /// Makes a new table of a device over these ports: the first port's entries, then those of the
    /// others.
    #[must_use]
    pub fn of_ports<'a>(ports: impl IntoIterator<Item = &'a Port>) -> Self {
        let mut table = Self::default();
        table.update_from_ports(ports);
        table
    }

    /// Updates the table for these ports. If several have the same link-local address, it is that of the
    /// first. Returns whether anything changed.
    pub fn update_from_ports<'a>(&mut self, ports: impl IntoIterator<Item = &'a Port>) -> bool {
        let mut wanted: Vec<GidEntry> = Vec::new();
        for entry in ports.into_iter().flat_map(entries_of) {
            // A VLAN has the hardware address of what it is above.
            let link_local = matches!(entry.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            if !link_local || wanted.iter().all(|other| other.gid != entry.gid) {
                wanted.push(entry);
            }
        }
        self.update(&wanted)
    }

    /// Updates the table: entries that are not wanted become holes, new ones take the first hole, and
    /// all others keep their index. Returns whether anything changed.
    pub fn update(&mut self, wanted: &[GidEntry]) -> bool {
        let before = self.entries.clone();
        for entry in &mut self.entries {
            match wanted.iter().find(|new| new.same_place(entry)) {
                Some(new) => *entry = *new,
                None => *entry = GidEntry::EMPTY,
            }
        }
        for new in wanted {
            if self.entries.iter().any(|entry| entry.same_place(new)) {
                continue;
            }
            if let Some(hole) = self.entries.iter_mut().find(|entry| entry.is_empty()) {
                *hole = *new;
            } else if self.entries.len() < GID_TABLE_LEN {
                self.entries.push(*new);
            }
        }
        while self.entries.last().is_some_and(GidEntry::is_empty) {
            self.entries.pop();
        }
        self.entries != before
    }

    /// The entries by index, with holes. All further entries are empty.
    #[must_use]
    pub fn entries(&self) -> &[GidEntry] {
        &self.entries
    }
}

/// The largest number of GID tables in a [`Table`](crate::Table) that belong to mp devices over chosen
/// interfaces.
pub const CHOSEN_TABLES_MAX: usize = 16;

/// A GID table and the device it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedGidTable {
    /// The device's key: `roce:` and the interface's index, `bond:` and that of an adopted bond, or `mp`, or
    /// `mp:` and the names of its interfaces.
    pub key: String,
    /// Its table.
    pub table: GidTable,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::interface::Address;

    pub(crate) fn port(ifindex: u32, name: &str, ips: &[&str]) -> Port {
        let addresses = ips
            .iter()
            .map(|ip| Address {
                ip: ip.parse().unwrap(),
                prefix_len: 24,
                link_local: ip.starts_with("fe80"),
                tentative: false,
            })
            .collect();
        let mac = [0x52, 0x54, 0, 0, 0, ifindex.to_le_bytes()[0]];
        Port { mac, addresses, ..Port::ethernet(ifindex, name) }
    }

    fn ips(table: &GidTable) -> Vec<String> {
        table.entries().iter().map(|e| e.ip.to_string()).collect()
    }

    #[test]
    fn the_link_local_gid_comes_first_and_only_once() {
        let port = port(2, "eth0", &["2001:db8::1", "10.0.0.1", "fe80::5054:ff:fe00:2"]);
        let table = GidTable::of_ports([&port]);
        assert_eq!(ips(&table), ["fe80::5054:ff:fe00:2", "10.0.0.1", "2001:db8::1"]);
        assert!(table.entries()[0].assigned);
        assert_eq!(table.entries()[1].gid[10..], [0xff, 0xff, 10, 0, 0, 1]);
    }

    #[test]
    fn an_unchanged_address_keeps_its_index() {
        let mut table = GidTable::of_ports([&port(2, "eth0", &["10.0.0.1", "10.0.0.2"])]);
        assert!(table.update_from_ports([&port(2, "eth0", &["10.0.0.2"])]));
        assert!(table.entries()[1].is_empty());
        assert_eq!(table.entries()[2].ip.to_string(), "10.0.0.2");
        table.update_from_ports([&port(2, "eth0", &["10.0.0.2", "10.0.0.3"])]);
        assert_eq!(table.entries()[1].ip.to_string(), "10.0.0.3");
        assert!(!table.update_from_ports([&port(2, "eth0", &["10.0.0.2", "10.0.0.3"])]));
    }

    #[test]
    fn an_mp_table_has_the_first_member_first() {
        let (a, b) = (port(2, "eth0", &["10.0.0.1"]), port(3, "eth1", &["10.0.1.1"]));
        let table = GidTable::of_ports([&a, &b]);
        let expect = ["fe80::5054:ff:fe00:2", "10.0.0.1", "fe80::5054:ff:fe00:3", "10.0.1.1"];
        assert_eq!(ips(&table), expect);
    }

    #[test]
    fn a_vlan_does_not_repeat_the_link_local_gid_of_what_it_is_above() {
        let bond = port(9, "bond0", &["10.0.0.1"]);
        let vlan =
            Port { mac: bond.mac, ..port(12, "bond0.100", &["fe80::5054:ff:fe00:9", "10.1.0.1"]) };
        let table = GidTable::of_ports([&bond, &vlan]);
        assert_eq!(ips(&table), ["fe80::5054:ff:fe00:9", "10.0.0.1", "10.1.0.1"]);
        assert_eq!(table.entries()[2].ifindex, 12);
    }

    #[test]
    fn a_tentative_address_has_no_gid_yet() {
        let mut port = port(2, "eth0", &["2001:db8::1"]);
        port.addresses[0].tentative = true;
        assert_eq!(GidTable::of_ports([&port]).entries().len(), 1);
    }

    #[test]
    fn a_table_never_outgrows_its_limit() {
        let many: Vec<String> = (0..100).map(|i| format!("10.0.0.{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(GidTable::of_ports([&port(2, "eth0", &many)]).entries().len(), GID_TABLE_LEN);
    }
}
