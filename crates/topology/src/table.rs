//! Interfaces and addresses of the network namespace, as the broker last saw them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::gids::NamedGidTable;
use crate::interface::Port;
use crate::selector::PathSelector;

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
