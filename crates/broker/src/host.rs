//! The connection manager's environment: routes, devices, multicast membership.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use polypath_cm::{ClientId, Device, Environment, Neighbour, Route, RouteQuery};
use polypath_ipc::settings::Apm;
use polypath_topology::table::PORTS_MAX;
use polypath_topology::{
    DeviceSpec, GidEntry, LOCAL_CA_ACK_DELAY, PathSelector, Rule, Selection, TCP, Table, devices,
    same_prefix,
};

use crate::log::log;
use crate::memberships::Memberships;
use crate::netlink::{NeighbourEntry, Netlink, RouteQuestion};
use crate::sys::udp::UdpSocket;
use crate::tables::{Hardware, Tables};

/// The UDP port for packets that nobody is to take (RFC 863).
const DISCARD: u16 = 9;

/// Interfaces, routes and memberships, and the devices that each client sees.
#[derive(Debug)]
pub(crate) struct Host {
    netlink: Netlink,
    /// Sends what makes the kernel look for neighbours.
    asker: UdpSocket,
    tables: Tables,
    selections: BTreeMap<ClientId, Selection>,
    /// What `POLYPATH_APM` says of each client's ids.
    apm: BTreeMap<ClientId, Apm>,
    memberships: Memberships,
    /// The interfaces that share addresses, and whether they carry; `None` if that is to be found out again.
    shares: Option<Vec<Vec<(u32, bool)>>>,
}

impl Host {
    /// Creates a host. `table` is a predecessor's table, or empty.
    pub(crate) fn new(table: Table) -> std::io::Result<Self> {
        let mut host = Self {
            netlink: Netlink::new()?,
            asker: UdpSocket::new()?,
            tables: Tables::from_table(table),
            selections: BTreeMap::new(),
            apm: BTreeMap::new(),
            memberships: Memberships::default(),
            shares: None,
        };
        host.refresh()?;
        Ok(host)
    }

    pub(crate) fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    pub(crate) fn table(&self) -> &Table {
        self.tables.table()
    }

    /// Reads the kernel's notifications. Links that went down are entered at once, because traffic
    /// waits for that; [`refresh`](Self::refresh) does the rest. Returns true if the table changed.
    pub(crate) fn hear(&mut self) -> std::io::Result<bool> {
        let down = self.netlink.take_changes()?;
        self.shares = None;
        Ok(self.tables.links_down(&down))
    }

    /// Asks the kernel for the current state. Returns true if the table changed.
    pub(crate) fn refresh(&mut self) -> std::io::Result<bool> {
        let dump = self.netlink.dump()?;
        let chosen: Vec<&Selection> = self.selections.values().collect();
        let socket = self.netlink.any_socket();
        let before = self.tables.table().omitted;
        self.shares = None;
        let changed = self.tables.update(dump, &chosen, |link| Hardware::of(link, socket));
        let omitted = self.tables.table().omitted;
        if omitted != before {
            log!("{omitted} interfaces are left out: there is room for {PORTS_MAX}");
        }
        Ok(changed)
    }

    /// Adds a client with its resolved selection. Returns true if the table changed.
    pub(crate) fn add_client(&mut self, client: ClientId, selection: Selection) -> bool {
        self.selections.insert(client, selection);
        self.shares = None;
        self.tables.select(&self.selections.values().collect::<Vec<_>>())
    }

    /// Removes a client. Returns true if the table changed.
    pub(crate) fn remove_client(&mut self, client: ClientId) -> bool {
        self.memberships.leave_all(client);
        self.selections.remove(&client);
        self.apm.remove(&client);
        self.shares = None;
        self.tables.select(&self.selections.values().collect::<Vec<_>>())
    }

    /// Sets whether ids of the client migrate without having asked for it, and how.
    pub(crate) fn set_apm(&mut self, client: ClientId, apm: Apm) {
        self.apm.insert(client, apm);
    }

    /// Sets whether LACP lets interfaces carry traffic, by index. Returns true if the table changed.
    pub(crate) fn set_lacp(&mut self, lacp: BTreeMap<u32, bool>) -> bool {
        self.shares = None;
        self.tables.set_lacp(lacp)
    }

    /// Whether there is room for the GID table of one more selection.
    pub(crate) fn has_room(&self, selection: &Selection) -> bool {
        Tables::has_room(&self.selections.values().collect::<Vec<_>>(), selection)
    }

    /// Takes paths down or up by hand.
    pub(crate) fn set_path(&mut self, selector: &PathSelector, up: bool) -> Result<(), String> {
        self.tables.set_path(selector, up)
    }

    /// Changes the rules of how mp devices use their paths. Returns whether they are others than before.
    pub(crate) fn change_rules<E>(
        &mut self,
        change: impl FnOnce(&mut Vec<Rule>) -> Result<(), E>,
    ) -> Result<bool, E> {
        self.tables.change_rules(change)
    }

    /// The devices that a client sees.
    pub(crate) fn devices_of(&self, client: ClientId) -> Vec<DeviceSpec> {
        let selection = self.selections.get(&client);
        selection.map(|selection| devices(self.table(), selection)).unwrap_or_default()
    }

    /// Whether an address of this host is one of a client's device of several paths.
    pub(crate) fn is_multipath(&self, client: ClientId, local: IpAddr) -> bool {
        self.devices_of(client).iter().filter(|spec| spec.kind.multipath).any(|spec| {
            spec.numbered_ports()
                .any(|(_, port)| port.entries().any(|(_, entry)| entry.ip == local))
        })
    }

    /// Whether all paths over TCP were taken down by hand.
    pub(crate) fn is_tcp_down(&self) -> bool {
        let is_tcp =
            |down: &PathSelector| matches!(down, PathSelector::Interface(name) if name == TCP);
        self.table().down.iter().any(is_tcp)
    }

    fn device(
        &self,
        spec: &DeviceSpec,
        port_num: u8,
        gid_index: usize,
        entry: &GidEntry,
    ) -> Option<Device> {
        Some(Device {
            node_guid: spec.node_guid.to_be_bytes(),
            ibdev_index: spec.index,
            port_num,
            gid_index: u8::try_from(gid_index).ok()?,
            gid: entry.gid,
            active_mtu: mtu_code(spec.port(port_num)?.roce_mtu(self.table())),
            ack_delay: LOCAL_CA_ACK_DELAY,
        })
    }

    /// The first entry of a client's GID tables that fits.
    fn find(
        &self,
        client: ClientId,
        wanted: impl Fn(&GidEntry) -> bool,
    ) -> Option<(Device, GidEntry)> {
        self.devices_of(client).iter().find_map(|spec| {
            spec.numbered_ports().find_map(|(number, port)| {
                let (index, entry) = port.entries().find(|(_, entry)| wanted(entry))?;
                Some((self.device(spec, number, index, entry)?, *entry))
            })
        })
    }

    /// The interface that has an address of this host.
    fn interface_of(&self, ip: IpAddr, ifindex: Option<u32>) -> Option<u32> {
        let has = |port: &&polypath_topology::Port| {
            ifindex.is_none_or(|index| index == port.ifindex)
                && port.addresses.iter().any(|address| address.ip == ip && !address.tentative)
        };
        self.table().ports.iter().find(has).map(|port| port.ifindex)
    }

    /// Whether this host has an address.
    pub(crate) fn has_address(&self, ip: IpAddr) -> bool {
        self.interface_of(ip, None).is_some()
    }

    /// The interface that has an address of this host, 0 if none has.
    pub(crate) fn ifindex_of(&self, ip: IpAddr) -> u32 {
        self.interface_of(ip, None).unwrap_or(0)
    }

    /// The interface by which a packet came, as far as its destination has one: any interface takes packets
    /// for any address of the host, and a bond's do where its members share one.
    pub(crate) fn came_by(&self, local: IpAddr, ifindex: u32) -> u32 {
        let own = || self.interface_of(local, None).filter(|_| !needs_scope(local));
        self.interface_of(local, Some(ifindex)).or_else(own).unwrap_or(ifindex)
    }

    /// The interface to force for a packet from `local` to `remote` that is to leave by `ifindex`, 0 for
    /// none. A packet to an address of this host finds its way only by the kernel's own routes. One from an
    /// address that interfaces share leaves by one of them that carries.
    pub(crate) fn forces(&mut self, local: IpAddr, remote: IpAddr, ifindex: u32) -> u32 {
        let ours = self.has_address(remote) && !needs_scope(remote);
        if ours { 0 } else { self.leaves_by(local, ifindex) }
    }

    /// The interface by which a packet from this address is to leave: the one that has it, or one that shares
    /// it while that one does not carry.
    fn leaves_by(&mut self, local: IpAddr, ifindex: u32) -> u32 {
        if !local.is_ipv4() || ifindex == 0 {
            return ifindex;
        }
        let (table, selections) = (self.tables.table(), self.selections.values());
        let all = || selections.flat_map(|selection| selection.shares(table)).collect();
        let shares = self.shares.get_or_insert_with(all);
        let mut with = shares.iter().filter(|share| share.iter().any(|(own, _)| *own == ifindex));
        let other = with.find_map(|share| {
            let carries = share.iter().find(|(own, _)| *own == ifindex).is_some_and(|(_, it)| *it);
            let other = || share.iter().find(|(_, carries)| *carries);
            if carries { None } else { other() }
        });
        other.map_or(ifindex, |(other, _)| *other)
    }

    /// A way for multicast for which there is no route: from the given address, or from the
    /// client's first one.
    fn any_way(&self, client: ClientId, query: &RouteQuery) -> Option<Route> {
        let suits = |entry: &GidEntry| {
            entry.assigned
                && entry.ip.is_ipv4() == query.destination.is_ipv4()
                && query.source.is_none_or(|source| source == entry.ip)
                && query.ifindex.is_none_or(|index| index == 0 || index == entry.ifindex)
        };
        let (_, entry) = self.find(client, suits)?;
        Some(Route { source: entry.ip, ifindex: entry.ifindex })
    }

    /// Whether an address is on the link of an interface, judged by the prefixes of the interface's
    /// addresses.
    fn on_link(&self, ip: IpAddr, ifindex: u32) -> bool {
        self.table().port(ifindex).is_some_and(|port| {
            port.addresses.iter().any(|address| same_prefix(address.ip, ip, address.prefix_len))
        })
    }
}

/// `enum ibv_mtu`.
fn mtu_code(bytes: u32) -> u8 {
    match bytes {
        4096.. => 5,
        2048.. => 4,
        1024.. => 3,
        512.. => 2,
        _ => 1,
    }
}

fn needs_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl Environment for Host {
    fn route(&mut self, client: ClientId, query: &RouteQuery) -> Option<Route> {
        let RouteQuery { source, destination, ifindex } = *query;
        let ifindex = ifindex.filter(|&index| index != 0);
        let scope = ifindex.filter(|_| needs_scope(destination));
        if self.interface_of(destination, scope).is_some() {
            // The kernel would return the loopback interface, but the device is on the interface
            // that has the address.
            let source = source.unwrap_or(destination);
            let ifindex = self.interface_of(source, ifindex.filter(|_| needs_scope(source)))?;
            return Some(Route { source, ifindex });
        }
        let question = RouteQuestion { to: destination, from: source, ifindex };
        let Ok(answer) = self.netlink.route(&question) else {
            // Multicast needs no route, only an interface.
            return if destination.is_multicast() { self.any_way(client, query) } else { None };
        };
        let source = source.or(answer.source)?;
        // If two interfaces are in one subnet, the kernel returns the first. But a path from the
        // second one's address leaves through the second interface.
        let own = self.interface_of(source, ifindex.filter(|_| needs_scope(source)));
        let own = own.filter(|&own| self.on_link(destination, own));
        Some(Route { source, ifindex: own.unwrap_or(answer.ifindex) })
    }

    fn neighbour(&mut self, route: &Route, remote: IpAddr, asked: bool) -> Neighbour {
        let Route { source, ifindex } = *route;
        let scope = Some(ifindex).filter(|_| needs_scope(remote));
        if remote.is_multicast() || self.interface_of(remote, scope).is_some() {
            return Neighbour::There;
        }
        let through = self.forces(source, remote, ifindex);
        let way = RouteQuestion { to: remote, from: Some(source), ifindex: Some(through) };
        let Ok(answer) = self.netlink.route(&way) else { return Neighbour::There };
        let hop = if answer.gateway { answer.router } else { Some(remote) };
        let Some(hop) = hop.filter(|_| !answer.local) else { return Neighbour::There };
        match self.netlink.neighbour(answer.ifindex, hop) {
            Ok(NeighbourEntry::Known) | Err(_) => Neighbour::There,
            Ok(NeighbourEntry::Asked) => Neighbour::Silent,
            // Interfaces without neighbours have no entry after a packet either.
            Ok(NeighbourEntry::Unknown) if asked => Neighbour::There,
            // The kernel looks for a neighbour when there is a packet for it.
            Ok(NeighbourEntry::Unknown | NeighbourEntry::Failed) => {
                match self.asker.send(&[], SocketAddr::new(remote, DISCARD), source, through, 0) {
                    Ok(()) => Neighbour::Asked,
                    // A rule of this host's says so, and may not for other packets.
                    Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                        Neighbour::There
                    }
                    Err(_) => Neighbour::Silent,
                }
            }
        }
    }

    fn device_for(
        &mut self,
        client: ClientId,
        local: IpAddr,
        ifindex: Option<u32>,
    ) -> Option<(Device, u32)> {
        let ifindex = ifindex.filter(|&index| index != 0);
        let here = |entry: &GidEntry| ifindex.is_none_or(|index| index == entry.ifindex);
        let found = self.find(client, |entry| entry.ip == local && here(entry))?;
        Some((found.0, found.1.ifindex))
    }

    fn any_device(&mut self, client: ClientId) -> Option<(Device, IpAddr, u32)> {
        let up = |entry: &GidEntry| {
            entry.assigned && self.table().port(entry.ifindex).is_some_and(|port| port.link_up)
        };
        let ordinary = |entry: &GidEntry| up(entry) && !needs_scope(entry.ip);
        let found = self
            .find(client, ordinary)
            .or_else(|| self.find(client, up))
            .or_else(|| self.find(client, |_| true))?;
        Some((found.0, found.1.ip, found.1.ifindex))
    }

    fn is_local(&mut self, address: IpAddr, ifindex: Option<u32>) -> bool {
        let ifindex = ifindex.filter(|&index| index != 0);
        self.interface_of(address, ifindex).is_some()
    }

    fn addresses(&mut self, client: ClientId) -> Vec<(IpAddr, u32)> {
        let by_hand = |name: &str, ip| {
            self.table().down.iter().any(|selector| selector.covers_local(name, ip))
        };
        let works = |entry: &GidEntry| {
            let port = self.table().port(entry.ifindex);
            // A link-local address is useless for a peer that does not know the link.
            entry.assigned
                && !needs_scope(entry.ip)
                && port.is_some_and(|port| port.link_up && !by_hand(&port.name, entry.ip))
        };
        let mut addresses = Vec::new();
        for port in self.devices_of(client).iter().flat_map(|spec| &spec.ports) {
            for (_, entry) in port.entries().filter(|(_, entry)| works(entry)) {
                if !addresses.contains(&(entry.ip, entry.ifindex)) {
                    addresses.push((entry.ip, entry.ifindex));
                }
            }
        }
        addresses
    }

    fn apm_by_default(&mut self, client: ClientId) -> bool {
        self.apm.get(&client).is_some_and(|apm| apm.migrates())
    }

    fn balance_interval(&mut self, client: ClientId) -> Option<Duration> {
        self.apm.get(&client)?.balance_interval()
    }

    fn multicast_join(&mut self, client: ClientId, ifindex: u32, group: IpAddr) -> Result<(), i32> {
        self.memberships.join(client, ifindex, group).inspect_err(|errno| {
            let error = std::io::Error::from_raw_os_error(*errno);
            log!("joining {group} on interface {ifindex}: {error}");
        })
    }

    fn multicast_leave(&mut self, client: ClientId, ifindex: u32, group: IpAddr) {
        self.memberships.leave(client, ifindex, group);
    }
}

/// The address in the form that tables use: mapped addresses become IPv4.
pub(crate) fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        // `::1` and similar addresses stay unchanged.
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// Whether a packet can come from this address.
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    let unspecified = ip.is_unspecified() || ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    !ip.is_multicast() && !unspecified
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn mtu_codes_are_those_of_the_verbs() {
        let codes: Vec<u8> = [256, 512, 1024, 2048, 4096].into_iter().map(mtu_code).collect();
        assert_eq!(codes, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_loopback_device_answers_for_its_address() {
        let mut host = Host::new(Table::default()).unwrap();
        let client = ClientId(1);
        host.add_client(client, Selection::parse("roce:lo").unwrap());
        let (device, ifindex) = host.device_for(client, ip("127.0.0.1"), None).unwrap();
        assert_eq!(device.gid_index, 1);
        assert_eq!(host.device_for(client, ip("127.0.0.1"), Some(ifindex + 1)), None);
        assert_eq!(host.device_for(ClientId(2), ip("127.0.0.1"), None), None);
        assert_eq!(host.any_device(client).unwrap().1, ip("127.0.0.1"));
        assert!(host.is_local(ip("127.0.0.1"), None));
        let up = host.table().port(ifindex).unwrap().link_up;
        assert_eq!(host.addresses(client).contains(&(ip("127.0.0.1"), ifindex)), up);
        host.set_path(&"lo".parse().unwrap(), false).unwrap();
        assert_eq!(host.addresses(client), []);
        host.remove_client(client);
        assert_eq!(host.any_device(client), None);
    }

    #[test]
    fn multicast_leaves_through_the_clients_device_if_no_route_says_otherwise() {
        let mut host = Host::new(Table::default()).unwrap();
        let client = ClientId(1);
        host.add_client(client, Selection::parse("roce:lo").unwrap());
        let query = RouteQuery {
            source: Some(ip("127.0.0.1")),
            destination: ip("239.1.2.3"),
            ifindex: None,
        };
        assert_eq!(host.any_way(client, &query).unwrap().source, ip("127.0.0.1"));
        let other = RouteQuery { source: Some(ip("127.0.0.2")), ..query };
        assert_eq!(host.any_way(client, &other), None);
    }

    #[test]
    fn the_route_to_an_own_address_is_the_interface_that_has_it() {
        let mut host = Host::new(Table::default()).unwrap();
        let query = RouteQuery { source: None, destination: ip("127.0.0.1"), ifindex: None };
        let route = host.route(ClientId(1), &query).unwrap();
        assert_eq!(route.source, ip("127.0.0.1"));
        assert_eq!(host.table().port(route.ifindex).unwrap().name, "lo");
    }

    #[test]
    fn only_packets_to_this_host_go_by_the_kernels_routes() {
        let mut host = Host::new(Table::default()).unwrap();
        let [local, other] = ["127.0.0.1", "192.0.2.1"].map(ip);
        assert_eq!(host.forces(local, other, 3), 3);
        assert_eq!(host.forces(local, local, 3), 0);
        assert_eq!(host.forces(local, ip("fe80::1"), 3), 3);
    }
}
