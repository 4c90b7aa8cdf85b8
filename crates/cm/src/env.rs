//! What the connection manager asks its host for: routes, devices and multicast membership.
//!
//! The host answers from its own table of interfaces, addresses and routes; every call must return
//! at once. The client chooses which device stands for an address (one multi-path device, or one
//! plain device per interface), so every question names the client.

use core::net::IpAddr;
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// A client of the host: a process with its choice of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// One open file of the rdma_cm character device.
///
/// `MIGRATE_ID` names the file that holds the id by a descriptor of the client's process. The host
/// replaces that field of the command with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// A question for the route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// The local address the application bound, if it bound one.
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: IpAddr,
    /// The interface that the application named (the scope of a link-local address), if it named
    /// one.
    pub ifindex: Option<u32>,
}

/// The route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The local address to send from.
    pub source: IpAddr,
    /// The interface to send on.
    pub ifindex: u32,
}

/// What is known of the next host on a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// It is there, or this host can't know whether it is.
    There,
    /// It was just asked for.
    Asked,
    /// It has not answered yet.
    Silent,
}

/// The device, port and GID that stand for a local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The node GUID, in the byte order of the wire, as `ibv_get_device_guid` returns it.
    pub node_guid: [u8; 8],
    /// The index that `ibv_get_device_index` returns for the device.
    pub ibdev_index: u32,
    /// The port, from 1.
    pub port_num: u8,
    /// The index of [`gid`](Self::gid) in the port's GID table.
    pub gid_index: u8,
    /// The GID of the local address.
    pub gid: [u8; 16],
    /// The active path MTU as `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    pub active_mtu: u8,
    /// The device's local CA ack delay exponent (`ibv_device_attr.local_ca_ack_delay`).
    pub ack_delay: u8,
}

/// The knowledge of the host that the connection manager asks for.
pub trait Environment {
    /// The route to an address; `None` if there is none.
    fn route(&mut self, client: ClientId, query: &RouteQuery) -> Option<Route>;

    /// The next host on the way to an address: the address itself, or a router. `asked`: the last answer was
    /// [`Neighbour::Asked`].
    fn neighbour(&mut self, route: &Route, remote: IpAddr, asked: bool) -> Neighbour {
        let _ = (route, remote, asked);
        Neighbour::There
    }

    /// The device that stands for a local address, with the interface that has the address; `None`
    /// if the client's choice of devices does not cover it. `ifindex` tells link-local addresses
    /// apart and is `None` where that does not matter.
    fn device_for(
        &mut self,
        client: ClientId,
        local: IpAddr,
        ifindex: Option<u32>,
    ) -> Option<(Device, u32)>;

    /// Some device of the client, with one of its addresses and that address's interface. It serves
    /// connections of the host to itself by its loopback address.
    fn any_device(&mut self, client: ClientId) -> Option<(Device, IpAddr, u32)>;

    /// Whether an address is one of this host's, with or without a device.
    fn is_local(&mut self, address: IpAddr, ifindex: Option<u32>) -> bool;

    /// Every address, with its interface, that packets of the client's devices can now be sent from
    /// and received at: those whose interface works. Peers are told these addresses, as other ways
    /// to this end. A host with only one way may return none.
    fn addresses(&mut self, client: ClientId) -> Vec<(IpAddr, u32)> {
        let _ = client;
        Vec::new()
    }

    /// Whether ids of the client migrate to an alternate path (APM) without having asked for it by
    /// `RDMA_OPTION_IB_APM`. An id that sets the option decides by itself.
    fn apm_by_default(&mut self, client: ClientId) -> bool {
        let _ = client;
        false
    }

    /// The shortest time between two occasions on which the connection manager moves connections of the
    /// client, so that they are spread evenly over its ports; `None` if they stay where they are.
    fn balance_interval(&mut self, client: ClientId) -> Option<Duration> {
        let _ = client;
        None
    }

    /// Joins an IP multicast group on an interface for the client.
    ///
    /// # Errors
    /// The errno that the application gets.
    fn multicast_join(&mut self, client: ClientId, ifindex: u32, group: IpAddr) -> Result<(), i32>;

    /// Leaves a group that the client joined.
    fn multicast_leave(&mut self, client: ClientId, ifindex: u32, group: IpAddr);
}

/// Where a MAD came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddress {
    /// The address of this host that the MAD was sent to.
    pub local: IpAddr,
    /// The address it was sent from.
    pub remote: IpAddr,
    /// The interface it came in on.
    pub ifindex: u32,
    /// The source QPN of the datagram (DETH), 1 for a connection manager.
    pub source_qpn: u32,
}

/// A MAD to send from QP1 to QP1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMad {
    /// The local address to send from.
    pub local: IpAddr,
    /// The address to send to; it may be one of this host's own.
    pub remote: IpAddr,
    /// The interface to send on.
    pub ifindex: u32,
    /// The traffic class of the IP header, from the application's type of service.
    pub traffic_class: u8,
    /// How often the same MAD was sent before, to this address or to another.
    pub attempt: u8,
    /// The client that it is sent for; `None` for answers to unknown peers.
    pub client: Option<ClientId>,
    /// The client's queue pair that it is about; 0 if there is none.
    pub qp_num: u32,
    /// The MAD.
    pub mad: [u8; 256],
}
