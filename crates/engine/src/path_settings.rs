//! The settings and addresses that the path manager gets.

use std::net::{IpAddr, Ipv4Addr};

use polypath_paths::{
    AffinityRule, Config as PathConfig, DownRule, Hashed, Lag, LagMember, LocalAddress, Mode,
    PeerMode, Primary, PrimaryReselect, Usage,
};
use polypath_topology::rules::{Origin, PolicyChoice};
use polypath_topology::{
    self as topology, DeviceSpec, InForce, PathSelector, Policy, Reselect, Selection, Subnet,
    Table, devices,
};

/// The largest number of bytes that a peer may have under way to a lane on one path: as many as one
/// queue pair may have.
const RECEIVE_WINDOW_MAX: u32 = polypath_transport::REACH;

/// The settings of a lane's path manager that never change.
/// `kinds`: whether the lane can share memory with others, and have TCP streams to them.
pub(crate) fn settings(receive_buffer: u32, kinds: (bool, bool)) -> PathConfig {
    let (local, tcp) = kinds;
    PathConfig {
        receive_window: receive_window(receive_buffer),
        reach: polypath_transport::REACH,
        local_window: if local { crate::media::local::WINDOW } else { 0 },
        tcp_window: if tcp { crate::media::tcp::WINDOW } else { 0 },
        ..PathConfig::default()
    }
}

/// What a receive buffer of this size takes: the kernel accounts about two bytes for each byte of payload.
pub(crate) fn receive_window(receive_buffer: u32) -> u32 {
    (receive_buffer / 2).min(RECEIVE_WINDOW_MAX)
}

/// How a lane uses its paths whose queue pairs are at home at this interface, if they have a home.
pub(crate) fn usage(in_force: &InForce, table: &Table, home: Option<u32>) -> Usage {
    let mode = |choice| mode(choice, home);
    let settings = &in_force.settings;
    let defaults = Usage::of(&PathConfig::default());
    let primary = settings
        .primary
        .as_deref()
        .and_then(|name| table.port_by_name(name))
        .map(|port| Primary::Interface(port.ifindex));
    let peer = |(subnet, choice, _): &(Subnet, PolicyChoice, Origin)| PeerMode {
        ip: subnet.ip,
        prefix_len: subnet.prefix_len,
        mode: mode(*choice),
    };
    let of_queue_pair = |(qpn, own): (&u32, &(PolicyChoice, Origin))| (*qpn, mode(own.0));
    Usage {
        mode: mode(in_force.policy.0),
        peers: in_force.peers.iter().map(peer).collect(),
        queue_pairs: in_force.queue_pairs.iter().map(of_queue_pair).collect(),
        costs: settings
            .costs
            .iter()
            .filter_map(|(name, cost)| Some((table.port_by_name(name)?.ifindex, *cost)))
            .collect(),
        primary: primary.or(defaults.primary),
        primary_reselect: match settings.reselect {
            Some(Reselect::Always) => PrimaryReselect::Always,
            Some(Reselect::Better) => PrimaryReselect::Better,
            Some(Reselect::Failure) => PrimaryReselect::Failure,
            None => defaults.primary_reselect,
        },
        updelay: settings.updelay.unwrap_or(defaults.updelay),
        downdelay: settings.downdelay.unwrap_or(defaults.downdelay),
        hold: settings.hold.unwrap_or(defaults.hold),
        rendezvous: settings.rendezvous,
        ecn: settings.ecn.unwrap_or(defaults.ecn),
        ports: settings.ports.unwrap_or(defaults.ports),
        local: is_local_wanted(in_force) && !is_down(table, topology::LOCAL),
        tcp: tcp_port(in_force).is_some() && !is_down(table, topology::TCP),
    }
}

/// Whether the settings want paths through shared memory.
pub(crate) fn is_local_wanted(in_force: &InForce) -> bool {
    in_force.settings.local.unwrap_or(topology::LOCAL_DEFAULT)
}

/// The port of the TCP streams that the settings want; `None` if they want none.
pub(crate) fn tcp_port(in_force: &InForce) -> Option<u16> {
    in_force.settings.tcp.unwrap_or(topology::TCP_DEFAULT).port()
}

/// Whether all paths by an interface, or of a kind, were taken down by hand.
fn is_down(table: &Table, name: &str) -> bool {
    table.down.iter().any(|down| matches!(down, PathSelector::Interface(other) if other == name))
}

/// Queue pairs that were created without a home get their paths in turn where others keep to theirs.
fn mode(choice: PolicyChoice, home: Option<u32>) -> Mode {
    match choice.policy {
        Policy::ActiveBackup => Mode::ActiveBackup,
        Policy::Balance => Mode::Balance,
        Policy::Redundant => Mode::Redundant,
        Policy::Efficient => Mode::Efficient,
        Policy::Affinity => Mode::Affinity(match choice.affinity {
            Some(topology::AffinityRule::Hash) => AffinityRule::Hash,
            Some(topology::AffinityRule::RoundRobin) => AffinityRule::RoundRobin,
            Some(topology::AffinityRule::Cpu | topology::AffinityRule::Numa) => {
                home.map_or(AffinityRule::RoundRobin, AffinityRule::Interface)
            }
            None => AffinityRule::default(),
        }),
    }
}

/// The words for a policy of the path manager, which may follow from one that was `set`.
pub(crate) fn choice(mode: Mode, set: Option<PolicyChoice>) -> PolicyChoice {
    let (policy, affinity) = match mode {
        Mode::ActiveBackup => (Policy::ActiveBackup, None),
        Mode::Balance => (Policy::Balance, None),
        Mode::Redundant => (Policy::Redundant, None),
        Mode::Efficient => (Policy::Efficient, None),
        // It is the home of a queue pair, or what its program asked for. That has no word of its own.
        Mode::Affinity(AffinityRule::Interface(_)) => {
            let rule = set.and_then(|set| set.affinity).filter(|rule| rule.gives_home());
            (Policy::Affinity, rule)
        }
        Mode::Affinity(AffinityRule::Hash) => {
            (Policy::Affinity, Some(topology::AffinityRule::Hash))
        }
        Mode::Affinity(AffinityRule::RoundRobin) => {
            (Policy::Affinity, Some(topology::AffinityRule::RoundRobin))
        }
    };
    PolicyChoice { policy, affinity }
}

/// The interfaces of this process's devices.
fn members(table: &Table, selection: &Selection) -> Vec<u32> {
    devices(table, selection).iter().flat_map(DeviceSpec::members).collect()
}

/// The addresses of the interfaces of this process's devices.
pub(crate) fn local_addresses(table: &Table, selection: &Selection) -> Vec<LocalAddress> {
    let devices = devices(table, selection);
    let shares = shares(table, selection);
    let mut list = Vec::new();
    for port in &table.ports {
        let ports = devices.iter().flat_map(|device| &device.ports);
        let mut over: Vec<_> = ports.filter(|over| over.members.contains(&port.ifindex)).collect();
        let member = !over.is_empty();
        over.retain(|over| !over.carries(table, port));
        let carries = port.link_up && over.is_empty();
        let of_port = |lag: &&Lag| lag.members.iter().any(|member| member.ifindex == port.ifindex);
        let share = shares.iter().find(of_port);
        for address in port.addresses.iter().filter(|a| !a.tentative) {
            let share = share.filter(|_| address.ip.is_ipv4());
            if share.is_some_and(|share| share.ifindex != port.ifindex) {
                continue; // It counts as that of the first one that has it.
            }
            // Of those that share it, each is taken down by itself.
            let name = if share.is_some() { "" } else { &port.name };
            list.push(LocalAddress {
                ip: address.ip,
                prefix_len: address.prefix_len,
                ifindex: port.ifindex,
                link_up: share.map_or(carries, |share| share.members.iter().any(|m| m.usable)),
                usable: member && !table.down.iter().any(|s| s.covers_local(name, address.ip)),
                speed_mbps: port.rate_mbps(table).unwrap_or(0),
            });
        }
    }
    list
}

/// The interfaces of this process's devices that send from the same IPv4 addresses.
fn shares(table: &Table, selection: &Selection) -> Vec<Lag> {
    let member = |(ifindex, carries): (u32, bool)| LagMember {
        ifindex,
        usable: carries && table.port(ifindex).is_some_and(|port| !is_down(table, &port.name)),
    };
    // In an order that does not change with the one that has the address.
    let lag = |share: Vec<(u32, bool)>| {
        let ifindex = share.first().map_or(0, |head| head.0);
        let mut members: Vec<LagMember> = share.into_iter().map(member).collect();
        members.sort_by_key(|member| member.ifindex);
        Lag { ifindex, above: Vec::new(), hashed: Hashed::Bound, members }
    };
    selection.shares(table).into_iter().map(lag).collect()
}

/// The bonds of the kernel's, whose ports can mostly be chosen by source port, and the interfaces of this
/// process's devices that share addresses without one.
pub(crate) fn lags(table: &Table, selection: &Selection) -> Vec<Lag> {
    let member = |link: &topology::Port| LagMember {
        ifindex: link.ifindex,
        usable: link.slave.is_some_and(|slave| slave.usable),
    };
    let lag = |port: &topology::Port| {
        Some(Lag {
            ifindex: port.ifindex,
            above: topology::above(table, port.ifindex).map(|port| port.ifindex).collect(),
            hashed: match port.bond?.hashed_ports() {
                Some(topology::HashedPorts::All) => Hashed::All,
                Some(topology::HashedPorts::Ipv4) => Hashed::Ipv4,
                None => Hashed::None,
            },
            members: topology::links_of(table, port.ifindex).into_iter().map(member).collect(),
        })
    };
    table.ports.iter().filter_map(lag).chain(shares(table, selection)).collect()
}

/// The only IPv4 address at which packets for this process's devices can arrive, and the index of
/// its interface; `None` if there are several or none.
pub(crate) fn sole_ipv4(table: &Table, selection: &Selection) -> Option<(Ipv4Addr, u32)> {
    let members = members(table, selection);
    // The loopback interface's own addresses count only if it has a device.
    let ports = table.ports.iter().filter(|port| !port.loopback || members.contains(&port.ifindex));
    let all = ports.flat_map(|port| port.addresses.iter().map(move |a| (a.ip, port.ifindex)));
    let mut v4 = all.filter_map(|(ip, ifindex)| match ip {
        IpAddr::V4(ip) => Some((ip, ifindex)),
        IpAddr::V6(_) => None,
    });
    let first = v4.next();
    if v4.next().is_none() { first } else { None }
}

/// The rules of paths that were taken down by hand.
pub(crate) fn down_rules(table: &Table) -> Vec<DownRule> {
    let rules = |selector: &PathSelector| match *selector {
        PathSelector::Interface(_) => vec![],
        PathSelector::Address(ip) => vec![
            DownRule { local: None, remote: Some(ip) },
            DownRule { local: Some(ip), remote: None },
        ],
        PathSelector::Pair(from, to) => vec![DownRule { local: Some(from), remote: Some(to) }],
    };
    table.down.iter().flat_map(rules).collect()
}

#[cfg(test)]
mod tests {
    use polypath_topology::{Address, KernelBond, KernelSlave, Port};

    use super::*;

    fn port(ifindex: u32, addresses: &[&str]) -> Port {
        let address = |ip: &&str| Address {
            ip: ip.parse().unwrap(),
            prefix_len: 24,
            link_local: ip.starts_with("fe80"),
            tentative: false,
        };
        Port {
            loopback: ifindex == 1,
            ethernet: ifindex != 1,
            device_number: u16::try_from(ifindex).ok().filter(|_| ifindex != 1),
            addresses: addresses.iter().map(address).collect(),
            ..Port::ethernet(ifindex, &format!("if{ifindex}"))
        }
    }

    /// A bond of the kernel's with two ports, which is told to paths as the kernel uses it.
    fn bonded(mode: u8, usable: [bool; 2]) -> Table {
        let link = |(n, usable): (u16, bool)| Port {
            link_up: usable,
            slave: Some(KernelSlave { master: 9, usable, place: 1 - n }),
            enslaved: true,
            ..port(u32::from(n) + 2, &[])
        };
        let bond = Some(KernelBond { mode: Some(mode), xmit_hash_policy: 1 });
        let bond = Port { bond, ..port(9, &["10.0.0.1"]) };
        let ports = (0..).zip(usable).map(link).chain([bond]).collect();
        Table { ports, ..Table::default() }
    }

    #[test]
    fn a_bonds_ports_are_told_in_the_kernels_order_if_it_hashes_source_ports() {
        let member = |ifindex, usable| LagMember { ifindex, usable };
        let members = vec![member(3, false), member(2, true)];
        let lag = Lag { ifindex: 9, above: vec![], hashed: Hashed::All, members };
        assert_eq!(
            lags(&bonded(4, [true, false]), &Selection::default()),
            std::slice::from_ref(&lag)
        );
        for mode in [0, 1] {
            let unknown = Lag { hashed: Hashed::None, ..lag.clone() };
            assert_eq!(lags(&bonded(mode, [true, false]), &Selection::default()), [unknown]);
        }
        let mut table = bonded(4, [true, false]);
        table.ports.push(Port { above: Some(9), ..port(12, &["10.1.0.1"]) });
        assert_eq!(lags(&table, &Selection::default()), [Lag { above: vec![12], ..lag }]);
        let selection = Selection::parse("bond0").unwrap();
        table.ports[2].name = "bond0".to_owned();
        let usable = |table: &Table| -> Vec<(u32, bool, bool)> {
            let list = local_addresses(table, &selection);
            list.iter().map(|a| (a.ifindex, a.usable, a.link_up)).collect()
        };
        assert_eq!(usable(&table), [(9, true, true), (12, true, true)]);
        table.ports[0].slave.as_mut().unwrap().usable = false;
        assert_eq!(usable(&table), [(9, true, false), (12, true, false)]);
    }

    #[test]
    fn an_address_that_members_share_has_a_link_while_one_of_them_carries() {
        let selection = Selection::parse("bond:if2+if3+if4,mode=802.3ad").unwrap();
        let taken_down = |down: &[&str]| down.iter().map(|text| text.parse().unwrap()).collect();
        let told_with = |up: [bool; 3], lacp: Option<bool>, down: &[&str]| {
            let addresses: [&[&str]; 3] = [&["10.0.0.1"], &["fe80::3"], &["10.0.0.1", "fd00::4"]];
            let of = |(ifindex, (link_up, addresses)): (u32, (bool, &[&str]))| Port {
                link_up,
                lacp: lacp.filter(|_| ifindex == 2),
                ..port(ifindex, addresses)
            };
            let ports = (2..).zip(up.into_iter().zip(addresses)).map(of).collect();
            let table = Table { ports, down: taken_down(down), ..Table::default() };
            let [lag] = &lags(&table, &selection)[..] else { panic!("one share") };
            assert_eq!((lag.ifindex, lag.hashed, &lag.above[..]), (2, Hashed::Bound, &[][..]));
            let usable: Vec<(u32, bool)> =
                lag.members.iter().map(|member| (member.ifindex, member.usable)).collect();
            let list = local_addresses(&table, &selection);
            let list = list.iter().map(|a| (a.ip.to_string(), a.ifindex, a.link_up && a.usable));
            (usable, list.collect::<Vec<_>>())
        };
        let told = |up, lacp| told_with(up, lacp, &[]);
        let address = |ip: &str, ifindex, link_up| (ip.to_owned(), ifindex, link_up);
        let (usable, list) = told([true; 3], None);
        // The others have none of their own, whatever they have of IPv6.
        assert_eq!(usable, [(2, true), (3, true), (4, true)]);
        let all = [
            address("10.0.0.1", 2, true),
            address("fe80::3", 3, true),
            address("fd00::4", 4, true),
        ];
        assert_eq!(list, all);
        let (usable, list) = told([false, true, false], None);
        assert_eq!(usable, [(2, false), (3, true), (4, false)]);
        assert_eq!(list[0], address("10.0.0.1", 2, true), "it leaves by another one");
        assert_eq!(told([false; 3], None).1[0], address("10.0.0.1", 2, false));
        assert_eq!(told([true; 3], Some(false)).0[0], (2, false), "LACP keeps it out");
        let (usable, list) = told_with([true; 3], None, &["if2"]);
        assert_eq!(usable, [(2, false), (3, true), (4, true)], "taken down by hand");
        assert_eq!(list[0], address("10.0.0.1", 2, true), "for the others");
        let (_, list) = told_with([true; 3], None, &["10.0.0.1"]);
        assert_eq!(list[0], address("10.0.0.1", 2, false));
    }

    #[test]
    fn the_addresses_of_a_bond_have_no_link_while_none_of_its_ports_carries() {
        let up = |mode, usable| {
            let table = bonded(mode, usable);
            let all = local_addresses(&table, &Selection::default().resolve(&table));
            all.iter().map(|address| (address.ifindex, address.usable, address.link_up)).collect()
        };
        let of_bond: fn(bool) -> Vec<(u32, bool, bool)> = |link_up| vec![(9, true, link_up)];
        let found: Vec<(u32, bool, bool)> = up(4, [true, false]);
        assert_eq!(found, of_bond(true));
        let found: Vec<(u32, bool, bool)> = up(1, [false, false]);
        assert_eq!(found, of_bond(false), "the bond's own state follows later");
    }

    #[test]
    fn one_ipv4_address_is_the_only_one_whatever_others_have_ipv6() {
        let sole = |ports: &[Port]| {
            let table = Table { ports: ports.to_vec(), ..Table::default() };
            sole_ipv4(&table, &Selection::of(polypath_topology::MP))
        };
        let lo = port(1, &["127.0.0.1", "::1"]);
        let one = port(2, &["fe80::1", "10.0.0.1", "fd00::1"]);
        let expected = Some((Ipv4Addr::new(10, 0, 0, 1), 2));
        assert_eq!(sole(&[lo.clone(), one.clone()]), expected);
        assert_eq!(sole(&[lo.clone(), one.clone(), port(3, &["fd00:1::1"])]), expected);
        assert_eq!(sole(&[lo.clone(), one, port(3, &["10.0.1.1"])]), None);
        assert_eq!(sole(&[lo.clone(), port(2, &["10.0.0.1", "10.0.0.2"])]), None);
        // The loopback interface has a device if it is the only interface, and then its address
        // counts.
        assert_eq!(sole(std::slice::from_ref(&lo)), Some((Ipv4Addr::LOCALHOST, 1)));
        assert_eq!(sole(&[lo, port(2, &[])]), None);
    }
}
