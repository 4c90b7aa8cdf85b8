//! What broker and processes say of alternate paths (automatic path migration, IBTA 17.2.8).

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// An alternate path of a queue pair, as the connection managers of both ends agreed on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlternatePath {
    /// The local address.
    pub local: IpAddr,
    /// The interface that has the local address.
    pub ifindex: u32,
    /// The peer's address.
    pub remote: IpAddr,
    /// The number of the local address's port, from 1, in its device.
    pub port_num: u8,
    /// The index of the local address in the GID table of that port.
    pub gid_index: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// The traffic class of the IP header.
    pub traffic_class: u8,
    /// From 1.
    pub hop_limit: u8,
    /// The local ACK timeout on this path, 0 to 31: 4.096 µs × 2^n, 0 means none.
    pub ack_timeout: u8,
    /// The index of the partition key.
    pub pkey_index: u16,
}

/// What the connection manager wants done with a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathOrder {
    /// Load the alternate path, and arm the queue pair.
    Load {
        /// The number of the queue pair.
        qpn: u32,
        /// The path.
        path: AlternatePath,
    },
    /// Migrate to the alternate path between these addresses, because the peer has.
    Migrate {
        /// The number of the queue pair.
        qpn: u32,
        /// The path's local address.
        local: IpAddr,
        /// The path's remote address.
        remote: IpAddr,
        /// The path's flow label, which tells it from the one in use if both have the same addresses.
        flow_label: u32,
    },
    /// Migrate to the alternate path between these addresses if the queue pair is armed, so that
    /// connections are spread over the ports.
    Leave {
        /// The number of the queue pair.
        qpn: u32,
        /// The path's local address.
        local: IpAddr,
        /// The path's remote address.
        remote: IpAddr,
    },
}

/// What happened to the paths of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathNews {
    /// It has migrated. This is said again after a broker was killed, and changes nothing then.
    Migrated {
        /// The number of the queue pair.
        qpn: u32,
        /// The local address that it uses now.
        local: IpAddr,
        /// The peer's address that it uses now.
        remote: IpAddr,
        /// The flow label that it uses now, which tells paths between the same addresses apart.
        flow_label: u32,
    },
    /// Its alternate path could not be loaded, or cannot be used any more.
    AlternateFailed {
        /// The number of the queue pair.
        qpn: u32,
    },
    /// Its peer is a multi-path one, whose path set moves it, and it stays armed: nothing is to be agreed on.
    PathSet {
        /// The number of the queue pair.
        qpn: u32,
    },
}
