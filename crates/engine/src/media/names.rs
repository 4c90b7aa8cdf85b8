//! The interface of each address, for the wrappers of media.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use polypath_topology::Table;

use crate::notify::lock;

/// The names of interfaces by their addresses. Both halves of a medium share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<IpAddr, Arc<str>>>>);

impl Names {
    /// Learns the addresses of a table. Former addresses may still be asked for, so they are kept
    /// until another interface gets them.
    pub(super) fn learn(&self, table: &Table) {
        let mut names = lock(&self.0);
        for port in &table.ports {
            let name: Arc<str> = port.name.as_str().into();
            names.extend(port.addresses.iter().map(|a| (a.ip.to_canonical(), name.clone())));
        }
    }

    /// The interface that has a local address; `None` for multicast addresses.
    pub(super) fn of(&self, local: IpAddr) -> Option<Arc<str>> {
        lock(&self.0).get(&local.to_canonical()).cloned()
    }
}
