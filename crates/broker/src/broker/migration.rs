//! Carries out what the connection manager wants done with queue pairs, which processes have, and tells it
//! what became of it (automatic path migration).

use std::rc::Rc;

use polypath_cm::{AlternatePath, ClientId, PathOrder, PathTaken};
use polypath_ipc::migration::{self, PathNews};
use polypath_ipc::{Push, message};

use super::Broker;
use crate::connection::Role;
use crate::sys::process::now;

impl Broker {
    /// Passes the connection manager's orders to the processes. Returns true if there were any.
    pub(super) fn send_path_orders(&mut self) -> bool {
        let mut any = false;
        while let Some(order) = self.cm.poll_path_order() {
            any = true;
            let (client, order) = in_message(&order);
            let Some(pid) = self.connections.get(&client.0).map(|c| c.pid) else { continue };
            let Ok(bytes) = message::encode(&Push::Path(order)) else { continue };
            let bytes: Rc<[u8]> = bytes.into();
            for id in self.streams_of(pid) {
                self.send(id, Rc::clone(&bytes), None);
            }
        }
        any
    }

    /// A process tells what happened to the paths of its queue pairs.
    pub(super) fn take_path_news(&mut self, id: u64, news: &[PathNews]) {
        let Some(pid) = self.connections.get(&id).map(|connection| connection.pid) else { return };
        // An id belongs to the connection that opened its file, which is another one of the process.
        let its = self.connections.iter().filter(|(_, c)| c.role == Role::Control && c.pid == pid);
        let clients: Vec<ClientId> = its.map(|(id, _)| ClientId(*id)).collect();
        for &client in &clients {
            for news in news {
                match *news {
                    PathNews::Migrated { qpn, local, remote, flow_label } => {
                        let taken = PathTaken { local, remote, flow_label: Some(flow_label) };
                        self.cm.path_migrated(now(), client, qpn, Some(taken), &mut self.host);
                    }
                    PathNews::AlternateFailed { qpn } => {
                        self.cm.alternate_failed(now(), client, qpn);
                    }
                    PathNews::PathSet { qpn } => self.cm.has_path_set(now(), client, qpn),
                }
            }
        }
    }
}

fn in_message(order: &PathOrder) -> (ClientId, migration::PathOrder) {
    match *order {
        PathOrder::LoadAlternate { client, qp_num, alternate } => {
            let AlternatePath { device, local, ifindex, remote, .. } = alternate;
            let path = migration::AlternatePath {
                local,
                ifindex,
                remote,
                port_num: device.port_num,
                gid_index: device.gid_index,
                flow_label: alternate.flow_label,
                traffic_class: alternate.traffic_class,
                hop_limit: alternate.hop_limit,
                ack_timeout: alternate.ack_timeout,
                pkey_index: alternate.pkey_index,
            };
            (client, migration::PathOrder::Load { qpn: qp_num, path })
        }
        PathOrder::Migrate { client, qp_num, to: (local, remote), flow_label } => {
            (client, migration::PathOrder::Migrate { qpn: qp_num, local, remote, flow_label })
        }
        PathOrder::Leave { client, qp_num, to: (local, remote) } => {
            (client, migration::PathOrder::Leave { qpn: qp_num, local, remote })
        }
    }
}
