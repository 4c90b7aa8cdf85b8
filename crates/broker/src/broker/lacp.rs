//! What `polypath lacp` tells: which interfaces LACP lets carry traffic, and its states.

use std::collections::BTreeMap;

use polypath_ipc::lacp::LacpPort;
use polypath_ipc::message::{LACP_PORTS_MAX, Reply};

use super::Broker;
use super::requests::{Answer, Refusal, reply};

/// What connections said, by their numbers: each speaks for the interfaces of one bond.
pub(super) type LacpNews = BTreeMap<u64, Vec<LacpPort>>;

impl Broker {
    /// Takes over what a connection says. If several speak for an interface, the one counts that connected
    /// last.
    pub(super) fn set_lacp(&mut self, id: u64, ports: Vec<LacpPort>) -> Answer {
        if ports.len() > LACP_PORTS_MAX {
            return Err(Refusal::new(libc::EINVAL, "too many interfaces with LACP"));
        }
        // The broker does not stay for it.
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.watches = true;
        }
        let ports = ports.into_iter().map(LacpPort::cut).collect();
        self.lacp.insert(id, ports);
        self.tell_lacp();
        reply(Reply::Done)
    }

    /// What is told of each interface.
    pub(super) fn lacp_ports(&self) -> BTreeMap<u32, &LacpPort> {
        self.lacp.values().flatten().map(|port| (port.ifindex, port)).collect()
    }

    /// Forgets what a connection that has ended said.
    pub(super) fn forget_lacp(&mut self, id: u64) {
        if self.lacp.remove(&id).is_some() {
            self.tell_lacp();
        }
    }

    fn tell_lacp(&mut self) {
        let ports = self.lacp_ports().into_iter();
        let carry = ports.map(|(ifindex, port)| (ifindex, port.distributing)).collect();
        if self.host.set_lacp(carry) {
            self.push_table();
        }
    }
}
