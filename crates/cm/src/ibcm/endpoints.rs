//! The addresses between which a connection's messages go.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};

use crate::env::MadAddress;

/// The local and the remote address of MADs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) ifindex: u32,
    pub(crate) traffic_class: u8,
}

impl Endpoints {
    /// The endpoints of an answer to a received MAD.
    pub(crate) fn answering(from: &MadAddress, traffic_class: u8) -> Self {
        Self { local: from.local, remote: from.remote, ifindex: from.ifindex, traffic_class }
    }
}
