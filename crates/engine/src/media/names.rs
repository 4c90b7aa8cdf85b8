//! Which interface has an address: what wrappers of media are told of the host.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use polypath_topology::Table;

use crate::notify::lock;

/// Names of interfaces by their addresses, shared by the halves of a medium.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<IpAddr, Arc<str>>>>);

impl Names {
    /// Addresses that are gone may still be spoken of: they stay until somebody else has them.
    pub(super) fn learn(&self, table: &Table) {
        let mut names = lock(&self.0);
        for port in &table.ports {
            let name: Arc<str> = port.name.as_str().into();
            names.extend(port.addresses.iter().map(|a| (a.ip.to_canonical(), name.clone())));
        }
    }

    /// The interface that has a local address; multicast packets are of none.
    pub(super) fn of(&self, local: IpAddr) -> Option<Arc<str>> {
        lock(&self.0).get(&local.to_canonical()).cloned()
    }
}
