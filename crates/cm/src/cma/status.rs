//! What people see of the ids.

use core::net::SocketAddr;

use polypath_wire::cm::PortSpace;

use crate::Cm;
use crate::abi::address::Address;
use crate::env::{ClientId, FileId};

/// One id, for `polypath status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdStatus {
    /// The id as the application's librdmacm knows it.
    pub id: u32,
    /// The file which holds it.
    pub file: FileId,
    /// The client which has the file open.
    pub client: ClientId,
    /// The state of the id, in the kernel's words.
    pub state: &'static str,
    /// The state of its connection, in the IBTA's words, if there is one.
    pub connection: Option<&'static str>,
    /// The port space, in words.
    pub port_space: &'static str,
    /// Local address and port.
    pub local: Option<SocketAddr>,
    /// Remote address and port.
    pub remote: Option<SocketAddr>,
    /// Local queue pair number, 0 if not known.
    pub qp_num: u32,
    /// Remote queue pair number, 0 if not known.
    pub remote_qp_num: u32,
}

impl Cm {
    /// Every id, for people to read.
    pub fn describe(&self) -> Vec<IdStatus> {
        self.ids
            .iter()
            .map(|id| {
                let connection = id.connection.and_then(|c| self.ib.get(c));
                IdStatus {
                    id: id.id,
                    file: id.file,
                    client: id.client,
                    state: id.state.name(),
                    connection: connection.map(|c| c.state.name()),
                    port_space: match id.port_space {
                        PortSpace::Ipoib => "IPOIB",
                        PortSpace::Tcp => "TCP",
                        PortSpace::Udp => "UDP",
                        PortSpace::Ib => "IB",
                    },
                    local: id.source.map(Address::to_socket_addr),
                    remote: id.destination.map(Address::to_socket_addr),
                    qp_num: id.qp_num,
                    remote_qp_num: connection.map_or(0, |c| c.qp.remote_qpn),
                }
            })
            .collect()
    }
}
