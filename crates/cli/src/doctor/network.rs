//! Interfaces, GIDs, MTU and routes of the devices that a program would see.

use super::{Finding, mtu};
use crate::text::count;
use polypath_topology::{
    Address, DeviceSpec, KernelBond, OVERHEAD, Port, Selection, Table, devices, links_of,
};
use std::fs;
use std::net::IpAddr;

/// The smallest MTU that IPv6 allows (RFC 8200, section 5).
const MTU_LEAST: u32 = 1280;
/// The MTU that carries the largest path MTU, 4096 bytes.
const MTU_GOOD: u32 = 4096 + OVERHEAD;

pub(super) fn check(table: &Table, selection: &Selection) -> Vec<Finding> {
    if let Err(error) = selection.check(table) {
        return vec![Finding::error(
            error.to_string(),
            "choose with --device; `ip link` shows the interfaces",
        )];
    }
    let mut findings = Vec::new();
    let shares = Shares(selection.shares(table));
    for device in devices(table, selection) {
        let ports: Vec<&Port> = device.interfaces(table).collect();
        let lowest: Vec<&Port> = device.ports.iter().flat_map(|port| port.lowest(table)).collect();
        findings.push(describe(&device, &ports));
        findings.extend(shares.describe(table));
        findings.extend(judge_ports(&device.name, &ports, &shares));
        findings.extend(ports.iter().filter_map(|port| judge_bond(port)));
        if device.kind.multipath {
            if let [only] = lowest[..] {
                findings.extend(judge_only_member(table, only));
            }
            findings.extend(judge_members(&ports, &shares));
            findings.extend(mtu::members(&device.name, device.roce_mtu(table), &ports));
        }
        findings.extend(ports.iter().filter_map(|port| {
            let mode =
                fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{}/rp_filter", port.name));
            let all = fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter");
            let number = |text: std::io::Result<String>| text.ok()?.trim().parse::<u8>().ok();
            judge_rp_filter(port, number(mode).max(number(all)), lowest.len(), &shares)
        }));
    }
    if let Some((what, cure)) = crate::devices::left_out(table, selection) {
        findings.push(Finding::warning(what, cure));
    }
    for selector in &table.down {
        findings.push(Finding::warning(
            format!("paths taken down by hand: {selector}"),
            format!("polypath path up {selector}"),
        ));
    }
    findings
}

/// Warns of a bond of the kernel's that sends everything to a peer by one of its ports.
fn judge_bond(port: &Port) -> Option<Finding> {
    let bond = port.bond.filter(KernelBond::has_one_link_per_peer)?;
    let (name, policy) = (&port.name, bond.hash_policy_name().unwrap_or_default());
    Some(Finding::warning(
        format!(
            "{name} has xmit_hash_policy {policy}: all RDMA to a peer leaves by one of its ports, whatever \
             the number of queue pairs"
        ),
        format!("as root: ip link set {name} type bond xmit_hash_policy layer3+4"),
    ))
}

fn describe(device: &DeviceSpec, ports: &[&Port]) -> Finding {
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    let gids = device.ports.iter().map(|port| port.entries().count()).sum::<usize>();
    let names = names.join(", ");
    Finding::ok(format!(
        "device {} over {names}, {} (`polypath devices` lists them)",
        device.name,
        count(gids as u64, "GID")
    ))
}

/// The interfaces that send from the same addresses, by index, the one that has them first.
struct Shares(Vec<Vec<(u32, bool)>>);

impl Shares {
    /// The index of the interface whose addresses this one uses, if it shares any.
    fn head_of(&self, port: &Port) -> Option<u32> {
        let with =
            |share: &&Vec<(u32, bool)>| share.iter().any(|(index, _)| *index == port.ifindex);
        self.0.iter().find(with)?.first().map(|(index, _)| *index)
    }

    fn describe(&self, table: &Table) -> Vec<Finding> {
        let name = |index: &u32| table.port(*index).map(|port| port.name.as_str());
        let of = |share: &Vec<(u32, bool)>| {
            let mut names = share.iter().filter_map(|(index, _)| name(index));
            let head = names.next()?;
            let others = names.collect::<Vec<_>>().join(", ");
            Some(Finding::ok(format!("{others} sends from the IPv4 addresses of {head}, too")))
        };
        self.0.iter().filter_map(of).collect()
    }
}

fn judge_ports(device: &str, ports: &[&Port], shares: &Shares) -> Vec<Finding> {
    let mut findings = Vec::new();
    if ports.iter().all(|port| !port.link_up) {
        let cure = ports.iter().map(|port| format!("ip link set {} up", port.name));
        let cure = cure.collect::<Vec<_>>().join("; ");
        findings.push(Finding::error(format!("{device}: no interface has a link"), cure));
    }
    for port in ports {
        let name = &port.name;
        if !port.link_up && ports.iter().any(|other| other.link_up) {
            let cure = format!("ip link set {name} up, or check the cable");
            findings.push(Finding::warning(format!("{name} has no link"), cure));
        }
        let served = |it: &&Port| {
            let above = it.ifindex == port.ifindex || it.above == Some(port.ifindex);
            above && it.addresses.iter().any(routable)
        };
        if !ports.iter().any(served) && shares.head_of(port).is_none() {
            findings.push(Finding::warning(
                format!(
                    "{name} has only its link-local GID: `-g 1` and rdma_cm have no address there"
                ),
                match port.loopback {
                    true => format!("ip link set {name} up"),
                    false => format!("give it an address: ip addr add ADDRESS/PREFIX dev {name}"),
                },
            ));
        }
        for address in port.addresses.iter().filter(|address| address.tentative) {
            findings.push(Finding::warning(
                format!("{} on {name} is tentative: another host may have it", address.ip),
                "wait a second; if it stays so, choose another address",
            ));
        }
        if port.mtu < MTU_LEAST {
            findings.push(Finding::warning(
                format!("{name} has an MTU of {}: packets become very small", port.mtu),
                format!("ip link set {name} mtu 1500"),
            ));
        } else if port.mtu < MTU_GOOD {
            let what =
                format!("{name} has an MTU of {}: with 9000, large transfers are faster", port.mtu);
            findings.push(Finding::note(what));
        }
    }
    findings
}

fn routable(address: &Address) -> bool {
    !address.link_local && !address.tentative
}

/// Checks that two members of one mp device are in different subnets, unless they share an address, and have
/// the same MTU.
fn judge_members(ports: &[&Port], shares: &Shares) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, one) in ports.iter().enumerate() {
        for two in &ports[number + 1..] {
            // A member without a link is not compared.
            if one.mtu != two.mtu && one.link_up == two.link_up {
                findings.push(Finding::warning(
                    format!(
                        "{} has MTU {}, {} has {}: the smaller counts",
                        one.name, one.mtu, two.name, two.mtu
                    ),
                    format!(
                        "ip link set {} mtu {}",
                        if one.mtu < two.mtu { &one.name } else { &two.name },
                        one.mtu.max(two.mtu)
                    ),
                ));
            }
            let head = shares.head_of(one);
            let together = head.is_some() && head == shares.head_of(two);
            if let Some(ip) = same_subnet(one, two).filter(|_| !together) {
                findings.push(Finding::warning(
                    format!(
                        "{} and {} are in the same subnet ({ip}): the kernel answers for both on either \
                         and may send all through one",
                        one.name, two.name
                    ),
                    "give each link a subnet of its own, or as root: sysctl -w \
                     net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
                ));
            }
        }
    }
    findings
}

/// Warns if the only interface is one link, too: a bond of the kernel's has several.
fn judge_only_member(table: &Table, only: &Port) -> Option<Finding> {
    let links = links_of(table, only.above.unwrap_or(only.ifindex));
    let name = &only.name;
    if only.bond.is_none() && only.above.is_none() {
        let what = format!("only {name} is there: nothing to fail over to");
        return Some(Finding::warning(what, "give the host a second interface"));
    }
    let linked = links.iter().filter(|link| link.link_up).count();
    (linked < 2).then(|| {
        let what = format!("{linked} of the ports of {name} has a link: nothing to fail over to");
        let cure = format!("check the cables, or as root: ip link set INTERFACE master {name}");
        Finding::warning(what, cure)
    })
}

/// An address of `one` in a subnet in which `two` has an address too.
fn same_subnet(one: &Port, two: &Port) -> Option<IpAddr> {
    let pairs = one.addresses.iter().flat_map(|a| two.addresses.iter().map(move |b| (a, b)));
    pairs
        .filter(|(a, b)| routable(a) && routable(b) && a.prefix_len == b.prefix_len)
        .find(|(a, b)| network(a) == network(b))
        .map(|(a, _)| a.ip)
}

/// The network part of an address as a number of 128 bits, and whether it is IPv4.
fn network(address: &Address) -> Option<(bool, u128)> {
    let (bits, width) = match address.ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let host_bits = u32::checked_sub(width, u32::from(address.prefix_len))?;
    Some((width == 32, bits.checked_shr(host_bits).unwrap_or(0)))
}

fn judge_rp_filter(
    port: &Port,
    mode: Option<u8>,
    members: usize,
    shares: &Shares,
) -> Option<Finding> {
    const STRICT: u8 = 1;
    let bare = !port.addresses.iter().any(|address| address.ip.is_ipv4());
    if let (Some(1..), true, Some(_)) = (mode, bare, shares.head_of(port)) {
        let name = &port.name;
        return Some(Finding::warning(
            format!("{name} has no IPv4 address and drops all IPv4 packets (rp_filter is not 0)"),
            format!(
                "as root: sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.{name}.rp_filter=0, or give \
                 {name} the address that it shares"
            ),
        ));
    }
    (mode == Some(STRICT) && members > 1).then(|| {
        let name = &port.name;
        Finding::warning(
            format!("{name} drops packets whose answer would leave through another interface (rp_filter 1)"),
            format!("as root: sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{name}.rp_filter=2"),
        )
    })
}

#[cfg(test)]
mod tests {
    use polypath_topology::KernelSlave;

    use super::*;
    use crate::doctor::Level;

    const NONE: Shares = Shares(Vec::new());

    fn port(name: &str, ip: &str) -> Port {
        Port {
            mac: [2; 6],
            mtu: 9000,
            addresses: vec![Address {
                ip: ip.parse().unwrap(),
                prefix_len: 24,
                link_local: false,
                tentative: false,
            }],
            ..Port::ethernet(2, name)
        }
    }

    fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn a_bond_that_does_not_look_at_ports_is_a_warning_with_its_cure() {
        let judge = |xmit_hash_policy| {
            let bond = Some(KernelBond { mode: Some(4), xmit_hash_policy });
            judge_bond(&Port { bond, ..Port::ethernet(2, "bond0") })
        };
        let found = judge(0).unwrap();
        assert!(found.what.contains("bond0 has xmit_hash_policy layer2:"), "{found:?}");
        assert!(found.cure.ends_with("bond0 type bond xmit_hash_policy layer3+4"), "{found:?}");
        assert_eq!(judge(1), None);
        assert_eq!(judge_bond(&Port::ethernet(2, "eth0")), None);
    }

    #[test]
    fn a_good_pair_of_members_gives_no_finding() {
        let (a, b) = (port("eth0", "10.0.0.1"), port("eth1", "10.0.1.1"));
        assert_eq!(judge_members(&[&a, &b], &NONE), []);
        assert_eq!(judge_ports("mp0", &[&a, &b], &NONE), []);
    }

    #[test]
    fn the_smaller_mtu_counts_only_if_both_have_a_link() {
        let (large, mut small) = (port("eth0", "10.0.0.1"), port("eth1", "10.0.1.1"));
        small.mtu = 1500;
        assert!(judge_members(&[&large, &small], &NONE)[0].what.contains("the smaller counts"));
        small.link_up = false;
        assert_eq!(judge_members(&[&large, &small], &NONE), []);
    }

    #[test]
    fn members_in_one_subnet_are_a_warning() {
        let (a, b) = (port("eth0", "10.0.0.1"), port("eth1", "10.0.0.9"));
        assert!(judge_members(&[&a, &b], &NONE)[0].cure.contains("arp_ignore"));
    }

    #[test]
    fn members_that_share_an_address_need_no_subnets_of_their_own_but_an_open_filter() {
        let (a, mut b) = (port("eth0", "10.0.0.1"), port("eth1", "10.0.0.1"));
        b.ifindex = a.ifindex + 1;
        let shares = Shares(vec![vec![(a.ifindex, true), (b.ifindex, true)]]);
        assert_eq!(judge_members(&[&a, &b], &shares), []);
        assert!(judge_rp_filter(&b, Some(2), 2, &shares).is_none(), "it has the address, too");
        b.addresses.clear();
        assert_eq!(judge_ports("bond0", &[&a, &b], &shares), []);
        let found = judge_rp_filter(&b, Some(2), 2, &shares).unwrap();
        assert!(found.cure.contains("conf.eth1.rp_filter=0"), "{found:?}");
        assert!(judge_rp_filter(&b, Some(0), 2, &shares).is_none());
        assert!(judge_rp_filter(&b, Some(2), 2, &NONE).is_none());
        let table = Table { ports: vec![a, b], ..Table::default() };
        assert!(shares.describe(&table)[0].what.starts_with("eth1 sends from"));
    }

    #[test]
    fn a_bond_with_one_link_has_nothing_to_fail_over_to_either() {
        let link = |n: u32, link_up| Port {
            link_up,
            slave: Some(KernelSlave { master: 9, usable: link_up, place: 0 }),
            ..Port::ethernet(n, &format!("eth{n}"))
        };
        let bond = Port {
            bond: Some(KernelBond { mode: Some(4), xmit_hash_policy: 1 }),
            ..Port::ethernet(9, "bond0")
        };
        let vlan = Port { above: Some(9), ..Port::ethernet(12, "bond0.100") };
        for (second, warns) in [(true, false), (false, true)] {
            let ports = vec![link(2, true), link(3, second), bond.clone(), vlan.clone()];
            let table = Table { ports, ..Table::default() };
            for only in [&bond, &vlan] {
                assert_eq!(judge_only_member(&table, only).is_some(), warns);
            }
        }
        let alone = judge_only_member(&Table::default(), &port("eth0", "10.0.0.1")).unwrap();
        assert!(alone.what.contains("only eth0 is there"));
    }

    #[test]
    fn no_link_at_all_is_an_error_one_of_two_a_warning() {
        let (up, mut down) = (port("eth0", "10.0.0.1"), port("eth1", "10.0.1.1"));
        down.link_up = false;
        assert_eq!(levels(&judge_ports("roce1", &[&down], &NONE)), [Level::Error]);
        assert_eq!(levels(&judge_ports("mp0", &[&up, &down], &NONE)), [Level::Warning]);
    }

    #[test]
    fn an_interface_without_an_address_says_what_will_be_missed() {
        let mut bare = port("eth0", "10.0.0.1");
        bare.addresses.clear();
        assert!(judge_ports("roce0", &[&bare], &NONE)[0].what.contains("-g 1"));
        let vlan = Port { above: Some(2), ifindex: 3, ..port("eth0.100", "10.0.1.1") };
        assert_eq!(judge_ports("bond0", &[&bare, &vlan], &NONE), []);
    }

    #[test]
    fn strict_reverse_path_filtering_matters_with_several_members() {
        let port = port("eth0", "10.0.0.1");
        assert!(judge_rp_filter(&port, Some(1), 2, &NONE).is_some());
        assert!(judge_rp_filter(&port, Some(1), 1, &NONE).is_none());
        assert!(judge_rp_filter(&port, Some(2), 2, &NONE).is_none());
    }
}
