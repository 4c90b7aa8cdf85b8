//! Resolves address vectors to IP addresses.

use std::net::IpAddr;

use polypath_topology::DeviceSpec;
use polypath_verbs::{AhAttr, Error, Result};

use crate::port;

/// The addresses that an address vector leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Resolved {
    pub(crate) local: IpAddr,
    pub(crate) ifindex: u32,
    pub(crate) remote: IpAddr,
    pub(crate) flow_label: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) multipath: bool,
}

/// The address that a RoCEv2 GID stands for (IBTA A17.4.1.3).
pub(crate) fn ip_of(gid: [u8; 16]) -> IpAddr {
    std::net::Ipv6Addr::from(gid).to_canonical()
}

/// Checks an address vector against a device's GID table.
pub(crate) fn resolve(device: &DeviceSpec, attr: &AhAttr) -> Result<Resolved> {
    if !attr.is_global {
        return Err(Error::invalid(
            "RoCE addresses are GIDs: set is_global and the GID fields of the address vector",
        ));
    }
    let entry = port::of(device, attr.port_num)?
        .gids
        .get(usize::from(attr.sgid_index))
        .filter(|e| !e.is_empty())
        .ok_or_else(|| Error::invalid(format!("GID index {} is empty", attr.sgid_index)))?;
    let remote = ip_of(attr.dgid);
    if remote.is_unspecified() {
        return Err(Error::invalid("the destination GID is zero"));
    }
    if remote.is_ipv4() != entry.ip.is_ipv4() {
        return Err(Error::invalid(format!(
            "GID index {} is {}, the destination {remote}: choose a GID of the same family",
            attr.sgid_index, entry.ip
        )));
    }
    Ok(Resolved {
        local: entry.ip,
        ifindex: entry.ifindex,
        remote,
        flow_label: attr.flow_label,
        traffic_class: attr.traffic_class,
        hop_limit: if attr.hop_limit == 0 { 64 } else { attr.hop_limit },
        multipath: device.kind.multipath,
    })
}
