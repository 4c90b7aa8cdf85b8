//! Interfaces and addresses of the network namespace, as the broker last saw them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::gids::NamedGidTable;
use crate::interface::Port;
use crate::paths::PathSelector;

/// Most interfaces in a [`Table`]; more are left out, ports of bridges and those without addresses first.
pub const PORTS_MAX: usize = 64;

/// Most addresses of one [`Port`]; more are left out.
pub const ADDRESSES_MAX: usize = 32;

/// Most path selectors in [`Table::down`].
pub const DOWN_MAX: usize = 64;

/// A snapshot of the network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Counts up with every change; a process may see numbers left out.
    pub generation: u64,
    /// Interfaces, by ascending [`Port::ifindex`].
    pub ports: Vec<Port>,
    /// Interfaces beyond [`PORTS_MAX`], which are left out.
    pub omitted: u32,
    /// The GID tables of the devices the broker knows, by device key (see
    /// [`devices`](fn@crate::devices)). They are kept by the broker so that an unchanged address keeps
    /// its index and all processes, and the CM, agree on it.
    pub gid_tables: Vec<NamedGidTable>,
    /// Paths taken down by hand.
    pub down: Vec<PathSelector>,
}

impl Table {
    /// The interface with this index.
    #[must_use]
    pub fn port(&self, ifindex: u32) -> Option<&Port> {
        self.ports.iter().find(|port| port.ifindex == ifindex)
    }

    /// The interface with this name.
    #[must_use]
    pub fn port_by_name(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The interface that has this address, and may use it.
    #[must_use]
    pub fn port_with_address(&self, ip: IpAddr) -> Option<&Port> {
        self.ports.iter().find(|port| port.addresses.iter().any(|a| a.ip == ip && !a.tentative))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::gids::tests::port;
    use crate::gids::{CHOSEN_TABLES_MAX, GID_TABLE_LEN, GidEntry, GidTable};
    use crate::interface::Address;
    use crate::message::{Push, decode, encode};

    #[test]
    fn the_largest_table_fits_into_a_message() {
        let ip = |n: usize| IpAddr::V6(Ipv6Addr::from_bits(u128::MAX - n as u128));
        let address =
            |n| Address { ip: ip(n), prefix_len: 128, link_local: false, tentative: false };
        let mut full = port(u32::MAX, "fifteen-letters", &[]);
        full.mtu = u32::MAX;
        full.speed_mbps = Some(u32::MAX);
        full.numa_node = Some(u32::MAX);
        full.device_number = Some(u16::MAX);
        full.addresses = (0..ADDRESSES_MAX).map(address).collect();
        let gids = |key: &str, len: usize| {
            let entries: Vec<GidEntry> =
                (0..len).map(|n| GidEntry::new(ip(n), u32::MAX, true)).collect();
            let mut table = GidTable::default();
            table.update(&entries);
            NamedGidTable { key: key.into(), table }
        };
        let mut gid_tables = vec![gids("roce:4294967295", ADDRESSES_MAX + 1); PORTS_MAX];
        let chosen = format!("mp:{}", ["fifteen-letters"; 16].join("+"));
        gid_tables.extend(vec![gids(&chosen, GID_TABLE_LEN); CHOSEN_TABLES_MAX + 1]);
        let table = Table {
            generation: u64::MAX,
            ports: vec![full; PORTS_MAX],
            omitted: u32::MAX,
            gid_tables,
            down: vec![PathSelector::Pair(ip(0), ip(1)); DOWN_MAX],
        };
        let push = Push::Table(Box::new(table));
        assert_eq!(decode::<Push>(&encode(&push).unwrap()).unwrap(), push);
    }
}
