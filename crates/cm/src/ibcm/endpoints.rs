//! Between which addresses a connection's messages go.

use core::net::IpAddr;

use crate::env::MadAddress;

/// The two addresses between which MADs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) ifindex: u32,
    pub(crate) traffic_class: u8,
}

impl Endpoints {
    /// Back to where a MAD came from.
    pub(crate) fn answering(from: &MadAddress, traffic_class: u8) -> Self {
        Self { local: from.local, remote: from.remote, ifindex: from.ifindex, traffic_class }
    }
}
