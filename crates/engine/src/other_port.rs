//! Address vectors of classic programs for another port.
//!
//! On InfiniBand an alternate path by another port has the address vector of the primary one, with another
//! local identifier of the peer at most; which GID belongs to a port is nobody's business but the subnet's.
//! So the example of the "RDMA Aware Networks Programming User Manual" copies the address vector and changes
//! `alt_port_num`. With RoCE the GIDs are the addresses. That of this end is known; that of the peer is
//! taken to be the neighbour with the same number in the other port's network. If it is not, nobody answers
//! there, and the queue pair is never ARMED.

use std::net::IpAddr;

use polypath_topology::gids::gid_of;
use polypath_topology::{DeviceSpec, GidEntry, same_prefix};
use polypath_verbs::{AhAttr, Error, Result};

use crate::address::ip_of;
use crate::port;

/// The address vector by port `number` that corresponds to one by another port. `prefix` says how long the
/// network prefix of an address of this host is, in bits.
///
/// # Errors
/// `EINVAL` if there is no such port, or the peer's address there can't be known.
pub(crate) fn by_port(
    device: &DeviceSpec,
    attr: &AhAttr,
    number: u8,
    prefix: impl Fn(IpAddr) -> Option<u8>,
) -> Result<AhAttr> {
    let from = port::of(device, attr.port_num)?.gids.get(usize::from(attr.sgid_index));
    let to = &port::of(device, number)?.gids;
    let remote = ip_of(attr.dgid);
    // Link-local addresses are made from those of the hardware, each for itself.
    let prefix = |entry: &GidEntry| match entry.ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => None,
        ip => prefix(ip),
    };
    let known = from.and_then(|from| Some((from, prefix(from)?)));
    let known = known.filter(|(from, len)| same_prefix(from.ip, remote, *len));
    let fits = |entry: &GidEntry| {
        !entry.is_empty()
            && entry.ip.is_ipv4() == remote.is_ipv4()
            && known.is_some_and(|(_, len)| prefix(entry) == Some(len))
    };
    let same = usize::from(attr.sgid_index);
    let index = to.get(same).filter(|entry| fits(entry)).map(|_| same);
    let index = index.or_else(|| to.iter().position(fits));
    let (Some((_, len)), Some(index)) = (known, index) else {
        return Err(Error::invalid(format!(
            "alt_port_num is {number}, the address vector is of port {}, and the peer's address by port \
             {number} can't be derived from {remote}: set port_num, sgid_index and dgid of alt_ah_attr",
            attr.port_num
        )));
    };
    let remote = neighbour(to[index].ip, remote, len);
    let sgid_index = u8::try_from(index).unwrap_or(u8::MAX);
    Ok(AhAttr { port_num: number, sgid_index, dgid: gid_of(remote), ..*attr })
}

/// The address of the same number as `host` in the network of `network`, of so many bits.
fn neighbour(network: IpAddr, host: IpAddr, prefix_len: u8) -> IpAddr {
    match (network, host) {
        (IpAddr::V4(network), IpAddr::V4(host)) => {
            let mask = u32::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
            IpAddr::V4((network.to_bits() & !mask | host.to_bits() & mask).into())
        }
        (IpAddr::V6(network), IpAddr::V6(host)) => {
            let mask = u128::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
            IpAddr::V6((network.to_bits() & !mask | host.to_bits() & mask).into())
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_topology::{Address, Port, Selection, Table, devices};

    fn port(ifindex: u32, name: &str, addresses: &[(&str, u8)]) -> Port {
        let addresses = addresses.iter().map(|(ip, prefix_len)| {
            let ip: IpAddr = ip.parse().unwrap();
            let link_local = ip.to_string().starts_with("fe80");
            Address { ip, prefix_len: *prefix_len, link_local, tentative: false }
        });
        Port {
            mac: [2, 0, 0, 0, 0, ifindex as u8],
            device_number: Some(0),
            addresses: addresses.collect(),
            ..Port::ethernet(ifindex, name)
        }
    }

    #[test]
    fn the_peer_has_the_same_number_in_the_network_of_the_other_port() {
        let ports = vec![
            port(2, "eth0", &[("10.0.0.1", 24), ("fd00::1", 64)]),
            port(3, "eth1", &[("10.1.0.77", 24), ("fd01::77", 64)]),
            port(4, "eth2", &[("10.2.0.1", 16)]),
        ];
        let table = Table { ports, ..Table::default() };
        let selection = Selection::parse("roce2:eth0+eth1+eth2").unwrap();
        let device = &devices(&table, &selection)[0];
        let prefix = |ip: IpAddr| {
            let mut all = table.ports.iter().flat_map(|port| &port.addresses);
            all.find(|a| a.ip == ip).map(|a| a.prefix_len)
        };
        let ask = |local: &str, remote: &str, number| {
            let local: IpAddr = local.parse().unwrap();
            let at = device.ports[0].gids.iter().position(|e| e.ip == local).unwrap();
            let dgid = gid_of(remote.parse().unwrap());
            let sgid_index = u8::try_from(at).unwrap();
            let attr = AhAttr { port_num: 1, sgid_index, dgid, ..AhAttr::default() };
            by_port(device, &attr, number, prefix).map(|found| {
                let gids = &device.ports[usize::from(found.port_num) - 1].gids;
                (gids[usize::from(found.sgid_index)].ip.to_string(), ip_of(found.dgid).to_string())
            })
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(ask("10.0.0.1", "10.0.0.2", 2).unwrap(), pair("10.1.0.77", "10.1.0.2"));
        assert_eq!(ask("fd00::1", "fd00::2", 2).unwrap(), pair("fd01::77", "fd01::2"));
        // A network of another size, a peer behind a router, a port that does not exist.
        assert!(ask("10.0.0.1", "10.0.0.2", 3).is_err());
        assert!(ask("10.0.0.1", "10.9.0.2", 2).is_err());
        assert!(ask("10.0.0.1", "10.0.0.2", 4).is_err());
    }
}
