//! Finds the interfaces that lead out of this host. They belong to the devices that a program gets
//! by default. Some lead out by a bond below them, to whose device they belong ([`bond_below`]).
//!
//! A host of containers and virtual machines has many interfaces that only lead back into it:
//! `docker0`, `virbr0`, the host's ends of its guests' links. Inside a guest, interfaces of the
//! same kinds are the way out. Names do not tell, so the rule looks at what an interface is joined
//! to:
//!
//! - An interface that a default route uses leads out, whatever it is.
//! - Hardware, and interfaces without a kind (network cards of virtual machines), lead out. So do
//!   the kinds that represent hardware below them (VLAN, macvlan, MACsec).
//! - A bridge or bond leads out if one of its ports does so by itself: a bridge over `eth0` does,
//!   but one over guests' links does not.
//! - A veth leads out if its other end is in another network namespace and it has an address whose
//!   network has room for a peer. The host's ends of guests' links do not have such an address:
//!   they are ports of a bridge, or their address is a /32. The same applies to ports of Open
//!   vSwitch and to unknown kinds.
//! - Tunnels (vxlan, geneve, gre, tap) are on top of another interface, and dummies on top of
//!   nothing, so neither leads out.

use crate::netlink::{AddressMessage, LinkMessage};

/// Kinds that are as good as hardware. Each is on top of an interface that leads out, or was moved
/// into this namespace from one where it is.
const LIKE_HARDWARE: [&str; 6] = ["", "vlan", "macvlan", "macvtap", "ipvlan", "macsec"];

/// Kinds whose packets are those of the interface below them, perhaps with a tag.
const ABOVE: [&str; 4] = ["vlan", "macvlan", "macvtap", "ipvlan"];

/// Kinds by which a bridge leads to containers and virtual machines.
const INWARD: [&str; 2] = ["veth", "tun"];

/// How many interfaces above each other are followed.
const STORIES: u8 = 6;

/// Kinds that have ports.
const BUNDLES: [&str; 3] = ["bridge", "bond", "team"];

/// Kinds that are on top of another interface, or of nothing.
const NOWHERE: [&str; 12] = [
    "dummy",
    "ifb",
    "tun",
    "vxlan",
    "geneve",
    "bareudp",
    "gretap",
    "ip6gretap",
    "erspan",
    "ip6erspan",
    "batadv",
    "nlmon",
];

/// Whether an interface leads out of this host. `links` are all interfaces, and `default_ways` are
/// those of default routes.
pub(crate) fn leads_out(
    link: &LinkMessage,
    links: &[LinkMessage],
    addresses: &[AddressMessage],
    default_ways: &[u32],
) -> bool {
    let kind = link.kind.as_str();
    if link.loopback {
        return false;
    }
    if default_ways.contains(&link.ifindex) || LIKE_HARDWARE.contains(&kind) {
        return true;
    }
    if BUNDLES.contains(&kind) {
        let mut ports = links.iter().filter(|port| port.master == link.ifindex);
        return ports.any(|port| {
            // A bond may be the port of a bridge. Deeper nesting is not followed.
            let bundle = BUNDLES.contains(&port.kind.as_str());
            let mut inner = links.iter().filter(|other| bundle && other.master == port.ifindex);
            LIKE_HARDWARE.contains(&port.kind.as_str())
                || inner.any(|inner| LIKE_HARDWARE.contains(&inner.kind.as_str()))
        });
    }
    if NOWHERE.contains(&kind) || (kind == "veth" && link.joined.is_some()) {
        return false;
    }
    let mut own = addresses.iter().filter(|address| address.ifindex == link.ifindex);
    own.any(has_room)
}

/// The index of the bond or team by which all leaves that an interface above it sends; `None` if it is above
/// none. `links` are all interfaces.
pub(crate) fn bond_below(link: &LinkMessage, links: &[LinkMessage]) -> Option<u32> {
    below(link, links, STORIES)
}

fn below(link: &LinkMessage, links: &[LinkMessage], stories: u8) -> Option<u32> {
    let stories = stories.checked_sub(1)?;
    let of = |link: &LinkMessage| {
        link.bond.map(|_| link.ifindex).or_else(|| below(link, links, stories))
    };
    match link.kind.as_str() {
        "bridge" => {
            let ports = links.iter().filter(|port| port.master == link.ifindex);
            // Guests' links lead back into the host.
            let mut ways = ports.filter(|port| !INWARD.contains(&port.kind.as_str())).map(of);
            let first = ways.next()??;
            ways.all(|way| way == Some(first)).then_some(first)
        }
        kind if ABOVE.contains(&kind) => {
            links.iter().find(|other| Some(other.ifindex) == link.joined).and_then(of)
        }
        _ => None,
    }
}

/// Whether an address's network has room for another address.
fn has_room(address: &AddressMessage) -> bool {
    let bits = if address.ip.is_ipv4() { 32 } else { 128 };
    !address.link_local && address.prefix_len < bits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(ifindex: u32, kind: &str, master: u32) -> LinkMessage {
        LinkMessage {
            ifindex,
            name: format!("if{ifindex}"),
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            up: true,
            loopback: false,
            ethernet: true,
            enslaved: master != 0,
            kind: kind.into(),
            master,
            bond: None,
            slave: None,
            joined: None,
        }
    }

    #[test]
    fn what_is_above_a_bond_is_known() {
        let over =
            |ifindex, kind, joined| LinkMessage { joined: Some(joined), ..link(ifindex, kind, 0) };
        let bond = |ifindex, master| LinkMessage {
            bond: Some(crate::netlink::BondData::default()),
            ..link(ifindex, "bond", master)
        };
        let mut in_bridge = over(5, "vlan", 3);
        in_bridge.master = 6;
        let links = [
            link(2, "", 3),
            bond(3, 0),
            over(4, "vlan", 3),
            in_bridge,
            link(6, "bridge", 0),
            link(7, "veth", 6),
            over(8, "macvlan", 6),
            over(9, "vlan", 2),
            link(10, "", 11),
            link(11, "bridge", 0),
            bond(12, 11),
            over(13, "macsec", 3),
            over(14, "ipvlan", 4),
            // Which cannot be.
            over(15, "vlan", 15),
            link(16, "bridge", 0),
        ];
        let found: Vec<(u32, u32)> = links
            .iter()
            .filter_map(|link| Some((link.ifindex, bond_below(link, &links)?)))
            .collect();
        // The bridge 11 has another way out.
        assert_eq!(found, [(4, 3), (5, 3), (6, 3), (8, 3), (14, 3)]);
    }

    fn address(ifindex: u32, text: &str) -> AddressMessage {
        let (ip, prefix_len) = text.split_once('/').unwrap();
        let ip: std::net::IpAddr = ip.parse().unwrap();
        let link_local = text.starts_with("fe80");
        AddressMessage {
            ifindex,
            ip,
            prefix_len: prefix_len.parse().unwrap(),
            link_local,
            tentative: false,
        }
    }

    fn those(links: &[LinkMessage], addresses: &[AddressMessage], ways: &[u32]) -> Vec<u32> {
        let out = links.iter().filter(|link| leads_out(link, links, addresses, ways));
        out.map(|link| link.ifindex).collect()
    }

    #[test]
    fn a_host_of_containers_and_machines_has_its_cards_only() {
        let links = [
            LinkMessage { loopback: true, ..link(1, "", 0) },
            link(2, "", 0),
            link(3, "", 0),
            link(4, "bridge", 0), // docker0
            link(5, "veth", 4),
            link(6, "bridge", 0), // virbr0
            link(7, "tun", 6),
            link(8, "veth", 0), // of a pod
            link(9, "vxlan", 0),
            link(10, "dummy", 0),
            link(11, "bond", 0), // made by loading its driver
        ];
        let addresses = [
            address(2, "10.0.0.1/24"),
            address(4, "172.17.0.1/16"),
            address(6, "192.168.122.1/24"),
            address(8, "10.244.0.1/32"),
            address(8, "fe80::1/64"),
            address(9, "10.244.0.0/32"),
            address(10, "10.96.0.10/24"),
        ];
        assert_eq!(those(&links, &addresses, &[2]), [2, 3]);
    }

    #[test]
    fn a_bridge_or_bond_over_hardware_leads_out() {
        let links = [
            link(2, "bridge", 0),
            link(3, "bond", 2),
            link(4, "", 3),
            link(5, "tun", 2),
            link(6, "bridge", 0),
            link(7, "", 6),
        ];
        let out = those(&links, &[], &[]);
        assert!(out.contains(&2) && out.contains(&6) && !out.contains(&5), "{out:?}");
    }

    #[test]
    fn in_a_container_its_veths_lead_out() {
        let links = [link(2, "veth", 0), link(3, "veth", 0)];
        let addresses = [address(2, "172.17.0.2/16"), address(3, "10.9.0.2/24")];
        assert_eq!(those(&links, &addresses, &[2]), [2, 3]);
        // In some networks a pod has a /32 and a default route.
        assert_eq!(those(&links[..1], &[address(2, "10.244.0.9/32")], &[2]), [2]);
    }

    #[test]
    fn a_veth_to_the_same_namespace_leads_nowhere() {
        let links = [LinkMessage { joined: Some(9), ..link(2, "veth", 0) }];
        assert!(those(&links, &[address(2, "10.0.0.1/24")], &[]).is_empty());
    }

    #[test]
    fn what_the_default_route_leaves_by_leads_out() {
        assert_eq!(those(&[link(2, "tun", 0)], &[], &[2]), [2]);
        assert_eq!(those(&[link(2, "bridge", 0)], &[], &[2]), [2]);
    }
}
