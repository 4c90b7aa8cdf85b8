//! What the connection manager and its host say to each other about alternate paths (APM).
//!
//! The connection manager agrees with the peer on an alternate path and tells the host to load it
//! into the queue pair. The host tells when the queue pair has migrated.

use core::net::IpAddr;

use polypath_wire::Gid;
use polypath_wire::cm::CmPath;

use crate::env::{ClientId, Device};

/// An alternate path of a queue pair, as `IBV_QP_ALT_PATH` needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The device, port and GID of the local address. It is the queue pair's own device wherever
    /// one device has several ports or addresses; else it is another device of the client, and a
    /// host that can't use that answers by [`alternate_failed`](crate::Cm::alternate_failed).
    pub device: Device,
    /// The local address.
    pub local: IpAddr,
    /// The interface that has the local address.
    pub ifindex: u32,
    /// The peer's address.
    pub remote: IpAddr,
    /// The GID of the peer's address.
    pub remote_gid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// The traffic class of the IP header.
    pub traffic_class: u8,
    /// From 1.
    pub hop_limit: u8,
    /// The local ACK timeout on this path, 0 to 31: 4.096 µs × 2^n, 0 means none.
    pub ack_timeout: u8,
    /// The index of the partition key; RoCE has only 0.
    pub pkey_index: u16,
}

impl AlternatePath {
    /// The path as REQ and LAP describe it, with these LIDs.
    pub(crate) fn on_wire(&self, lid: u16) -> CmPath {
        CmPath {
            local_lid: lid,
            remote_lid: lid,
            local_gid: Gid::from_ip(self.local),
            remote_gid: Gid(self.remote_gid),
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            ack_timeout: self.ack_timeout,
            ..CmPath::default()
        }
    }

    /// The two addresses, the local one first.
    pub fn pair(&self) -> (IpAddr, IpAddr) {
        (self.local, self.remote)
    }
}

/// The path that a queue pair uses now, as its host tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTaken {
    /// The local address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Its flow label, which tells paths between the same addresses apart; `None` if the host does not know.
    pub flow_label: Option<u32>,
}

impl PathTaken {
    /// The two addresses, the local one first.
    pub fn pair(&self) -> (IpAddr, IpAddr) {
        (self.local, self.remote)
    }
}

/// Something that the host is to do with a queue pair. Orders are idempotent, and come in the order
/// in which they must be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOrder {
    /// Load the alternate path, in place of one that is loaded already, and arm the queue pair:
    /// `IBV_QP_ALT_PATH`, and `IBV_QP_PATH_MIG_STATE` with `IBV_MIG_REARM` unless the queue pair
    /// is armed. A queue pair that has the path already keeps its state.
    LoadAlternate {
        /// The client whose queue pair it is.
        client: ClientId,
        /// The queue pair's number.
        qp_num: u32,
        /// The path.
        alternate: AlternatePath,
    },
    /// Migrate to the loaded alternate path (`IBV_MIG_MIGRATED`), because the peer has done so.
    /// A queue pair that uses this path already does nothing. As after any migration, the host
    /// answers with [`path_migrated`](crate::Cm::path_migrated); a host that can't follow names the path
    /// that the queue pair still uses.
    Migrate {
        /// The client whose queue pair it is.
        client: ClientId,
        /// The queue pair's number.
        qp_num: u32,
        /// The addresses of the path to migrate to, the local one first.
        to: (IpAddr, IpAddr),
        /// Its flow label. It tells the path from the one in use if both have the same addresses.
        flow_label: u32,
    },
    /// Migrate to the loaded alternate path (`IBV_MIG_MIGRATED`), so that connections are spread over
    /// the ports. A queue pair that is not `IBV_MIG_ARMED`, or has another alternate path by now, does
    /// nothing.
    Leave {
        /// The client whose queue pair it is.
        client: ClientId,
        /// The queue pair's number.
        qp_num: u32,
        /// The addresses of the path to migrate to, the local one first.
        to: (IpAddr, IpAddr),
    },
}
