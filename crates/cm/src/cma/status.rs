//! The status of the ids, for people.

use core::net::SocketAddr;

use polypath_wire::cm::PortSpace;

use crate::Cm;
use crate::abi::address::Address;
use crate::env::{ClientId, FileId};

/// One id, for `polypath status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdStatus {
    /// The number by which the application's librdmacm knows the id.
    pub id: u32,
    /// The file that holds it.
    pub file: FileId,
    /// The client that has the file open.
    pub client: ClientId,
    /// The state of the id, by the kernel's name.
    pub state: &'static str,
    /// The state of its connection, by the IBTA's name; `None` without a connection.
    pub connection: Option<&'static str>,
    /// The name of the port space.
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
    /// The status of every id.
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
