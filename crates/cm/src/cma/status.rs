//! The status of the ids, for people.

use core::net::{IpAddr, SocketAddr};

use polypath_wire::cm::{ApStatus, PortSpace, SprStatus};

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
    /// What is known of migration; `None` unless both ends want it.
    pub migration: Option<MigrationStatus>,
}

/// The migration of one connection, for `polypath status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    /// The addresses of the alternate path, the local one first.
    pub alternate: Option<(IpAddr, IpAddr)>,
    /// How often the connection has migrated.
    pub migrations: u32,
    /// The status of the latest APR that came (IBTA table 116).
    pub last_apr: Option<u8>,
    /// The status of the latest SPR that came: 0 accepted, 1 busy, 2 refused.
    pub last_spr: Option<u8>,
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
                    migration: connection.filter(|c| c.migration.is_on()).map(|c| {
                        let m = &c.migration;
                        MigrationStatus {
                            alternate: m.alternate.map(|path| path.pair()),
                            migrations: m.epoch,
                            last_apr: m.last_apr.map(ApStatus::code),
                            last_spr: m.last_spr.map(SprStatus::code),
                        }
                    }),
                }
            })
            .collect()
    }
}
