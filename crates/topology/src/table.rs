//! Interfaces and addresses of the network namespace, as the broker last saw them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::gids::NamedGidTable;
use crate::interface::Port;
use crate::rules::Rule;
use crate::selector::PathSelector;

/// The largest number of interfaces in a [`Table`]. If there are more, some are left out, ports of
/// bridges and interfaces without addresses first.
pub const PORTS_MAX: usize = 64;

/// The largest number of addresses of one [`Port`]. Further addresses are left out.
pub const ADDRESSES_MAX: usize = 32;

/// The largest number of path selectors in [`Table::down`].
pub const DOWN_MAX: usize = 64;

/// A snapshot of the network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// A number that grows with every change. A process may miss numbers.
    pub generation: u64,
    /// The interfaces, by ascending [`Port::ifindex`].
    pub ports: Vec<Port>,
    /// The number of interfaces that are left out because of [`PORTS_MAX`].
    pub omitted: u32,
    /// The GID tables of the devices that the broker knows, by device key (see
    /// [`devices`](fn@crate::devices)). The broker keeps them, so that an unchanged address keeps its
    /// index and all processes and the connection manager agree on it.
    pub gid_tables: Vec<NamedGidTable>,
    /// The paths taken down by hand.
    pub down: Vec<PathSelector>,
    /// The GUID that those of mp devices are made from: that of the first interface that the broker saw. It
    /// stays when that interface goes, because programs know their devices by it. `None` if there was none
    /// yet.
    pub guid: Option<u64>,
    /// How mp devices use their paths: what commands have set, then what the configuration file says.
    pub rules: Vec<Rule>,
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

    /// The interface that has this address and can use it.
    #[must_use]
    pub fn port_with_address(&self, ip: IpAddr) -> Option<&Port> {
        self.ports.iter().find(|port| port.addresses.iter().any(|a| a.ip == ip && !a.tentative))
    }
}
