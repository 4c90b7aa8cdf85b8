//! Chooses the alternate path of a connection among all pairs of addresses that could carry it.

use core::net::IpAddr;
use std::collections::BTreeMap;

use crate::abi::address::gid_of;
use crate::apm::AlternatePath;
use crate::env::{ClientId, Device, Environment, RouteQuery};
use crate::ibcm::Connection;
use crate::path::{HOP_LIMIT, ack_timeout};

/// How much of the primary path an alternate one avoids: 3 both ends' ports, 2 the local interface,
/// 1 the peer's address, 0 neither, but perhaps what lies between.
pub(super) type Class = u8;

/// How many connections use each interface, by its index.
pub(super) type Uses = BTreeMap<u32, usize>;

/// The pair that a queue pair uses, with what that means on this host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Primary {
    pub(super) client: ClientId,
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) ifindex: u32,
    /// The GUID of the queue pair's device.
    pub(super) node_guid: [u8; 8],
}

impl Primary {
    pub(super) fn of(c: &Connection, client: ClientId, env: &mut dyn Environment) -> Self {
        let (local, remote) = c.pair();
        let scope = is_link_local(local).then_some(c.endpoints.ifindex);
        let device = env.device_for(client, local, scope);
        let ifindex = device.map_or(c.endpoints.ifindex, |(_, ifindex)| ifindex);
        Self { client, local, remote, ifindex, node_guid: c.local_guid.to_be_bytes() }
    }

    /// Judges another pair. Addresses of one port are not another path: what counts is the interface
    /// at this end, and at the peer the address, because its interfaces are not known here.
    pub(super) fn class(&self, ifindex: u32, remote: IpAddr) -> Class {
        u8::from(ifindex != self.ifindex) << 1 | u8::from(remote != self.remote)
    }

    /// Whether an address may stand in for one of the primary path's.
    pub(super) fn suits(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.remote.is_ipv4() && is_global(address)
    }

    /// Whether this end's packets from one address to another leave by the interface of the first.
    fn has_route(&self, local: (IpAddr, u32), remote: IpAddr, env: &mut dyn Environment) -> bool {
        let query = RouteQuery { source: Some(local.0), destination: remote, ifindex: None };
        env.route(self.client, &query).is_some_and(|route| route.ifindex == local.1)
    }

    /// The alternate path between two addresses, of which the local one must have a device.
    pub(super) fn path(
        &self,
        c: &Connection,
        local: (IpAddr, Option<u32>),
        remote: IpAddr,
        env: &mut dyn Environment,
    ) -> Option<AlternatePath> {
        let (device, ifindex) = env.device_for(self.client, local.0, local.1)?;
        Some(Self::path_of(c, (device, local.0, ifindex), remote))
    }

    /// The same between an address of a device, with its interface, and one of the peer.
    pub(super) fn path_of(
        c: &Connection,
        (device, local, ifindex): (Device, IpAddr, u32),
        remote: IpAddr,
    ) -> AlternatePath {
        AlternatePath {
            device: Device { gid: gid_of(local), ..device },
            local,
            ifindex,
            remote,
            remote_gid: gid_of(remote),
            flow_label: c.path.flow_label,
            traffic_class: c.path.traffic_class,
            hop_limit: HOP_LIMIT,
            ack_timeout: ack_timeout(c.ack_delay, c.path.packet_life_time),
            pkey_index: 0,
        }
    }

    /// The addresses of this end that would be another path, the best one first.
    pub(super) fn other_addresses(&self, own: &[(IpAddr, u32)]) -> Vec<IpAddr> {
        let others = own.iter().filter(|(ip, i)| *i != self.ifindex && self.suits(*ip));
        let mut others: Vec<IpAddr> = others.map(|(ip, _)| *ip).collect();
        others.sort_by_key(|ip| core::cmp::Reverse(common_prefix(*ip, self.local)));
        others
    }
}

/// The best alternate path with its class; `None` if there is none but those refused. Of equal
/// interfaces, that of the fewest `uses` is the best. Where there are no other addresses, nor another
/// interface at this end whose paths were refused, it is the path by another source port, whose flow label is
/// still to be chosen.
pub(super) fn best(
    c: &Connection,
    primary: &Primary,
    (own, uses): (&[(IpAddr, u32)], &Uses),
    env: &mut dyn Environment,
) -> Option<(Class, AlternatePath)> {
    let mut remotes: Vec<IpAddr> = c.alternates.peer().to_vec();
    remotes.push(primary.remote);
    remotes.sort_unstable();
    remotes.dedup();
    let (mut found, mut is_alone) = (None, true);
    for &(local, ifindex) in own.iter().filter(|(ip, _)| primary.suits(*ip)) {
        for &remote in &remotes {
            let class = primary.class(ifindex, remote);
            let pair = (local, remote);
            if class == 0
                || !primary.suits(remote)
                || own.iter().any(|(ip, _)| *ip == remote)
                || !primary.has_route((local, ifindex), remote, env)
            {
                continue;
            }
            let is_refused = c.migration.refused.contains(&pair);
            // An interface of this end may come to life. An address that the peer refuses has gone there.
            is_alone &= is_refused && ifindex == primary.ifindex;
            if is_refused {
                continue;
            }
            let Some(path) = primary.path(c, (local, Some(ifindex)), remote, env) else { continue };
            let is_preferred = c.migration.preferred == Some(remote);
            let same_device = path.device.node_guid == primary.node_guid;
            let spare = core::cmp::Reverse(uses.get(&ifindex).copied().unwrap_or(0));
            let rank = (class, same_device, is_preferred, spare, common_prefix(local, remote));
            if found.as_ref().is_none_or(|(best, _)| rank > *best) {
                found = Some((rank, path));
            }
        }
    }
    if is_alone {
        return by_another_port(c, primary, own, env).map(|path| (0, path));
    }
    found.map(|((class, ..), path)| (class, path))
}

/// The path between the primary path's addresses by another source port, which may lead another way through
/// the network. Its flow label, which chooses the port, is left 0; `None` if that was refused.
fn by_another_port(
    c: &Connection,
    primary: &Primary,
    own: &[(IpAddr, u32)],
    env: &mut dyn Environment,
) -> Option<AlternatePath> {
    let Primary { local, remote, ifindex, .. } = *primary;
    let possible = own.contains(&(local, ifindex))
        && primary.suits(local)
        && primary.suits(remote)
        && !own.iter().any(|(ip, _)| *ip == remote)
        && !c.migration.refused.contains(&(local, remote))
        && primary.has_route((local, ifindex), remote, env);
    let path = possible.then(|| primary.path(c, (local, Some(ifindex)), remote, env))??;
    Some(AlternatePath { flow_label: 0, ..path })
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

pub(super) use crate::ibcm::{common_prefix, is_global};
