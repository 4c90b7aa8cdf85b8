//! What `polypath lacp` tells: which interfaces LACP lets carry traffic.

use polypath_ipc::message::{LACP_PORTS_MAX, Reply};

use super::Broker;
use super::requests::{Answer, Refusal, reply};

impl Broker {
    /// Takes over what a connection says. The last one that spoke counts.
    pub(super) fn set_lacp(&mut self, id: u64, ports: Vec<(u32, bool)>) -> Answer {
        if ports.len() > LACP_PORTS_MAX {
            return Err(Refusal::new(libc::EINVAL, "too many interfaces with LACP"));
        }
        // The broker does not stay for it.
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.watches = true;
        }
        self.lacp = Some(id);
        self.tell_lacp(ports);
        reply(Reply::Done)
    }

    /// Forgets what a connection that has ended said.
    pub(super) fn forget_lacp(&mut self, id: u64) {
        if self.lacp == Some(id) {
            self.lacp = None;
            self.tell_lacp(Vec::new());
        }
    }

    fn tell_lacp(&mut self, ports: Vec<(u32, bool)>) {
        if self.host.set_lacp(ports.into_iter().collect()) {
            self.push_table();
        }
    }
}
