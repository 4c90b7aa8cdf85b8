//! `RTM_NEWLINK` and `RTM_NEWADDR`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::attributes::{Reader, attributes, text};
use super::bond::{BondData, SlaveData};
use super::{Request, attribute};

/// Leave statistics out, because they are the largest part of a link message.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_LINK_NETNSID: u16 = 37;

/// Kinds of masters whose ports can't be used separately. The ports of a VRF can.
const BUNDLES: [&str; 4] = ["bridge", "bond", "team", "openvswitch"];

/// An interface, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkMessage {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    pub(crate) loopback: bool,
    pub(crate) ethernet: bool,
    pub(crate) enslaved: bool,
    /// The driver's name for the kind of a virtual interface (`veth`, `bridge`); empty for hardware.
    pub(crate) kind: String,
    /// The index of the bridge, bond or VRF that it is a port of; 0 if there is none.
    pub(crate) master: u32,
    /// What is told of it as a bond or team.
    pub(crate) bond: Option<BondData>,
    /// What is told of it as the port of a bond or team.
    pub(crate) slave: Option<SlaveData>,
    /// The index of the interface below it or joined to it (`IFLA_LINK`), if that is in this network
    /// namespace.
    pub(crate) joined: Option<u32>,
}

/// An address, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddressMessage {
    pub(crate) ifindex: u32,
    pub(crate) ip: IpAddr,
    pub(crate) prefix_len: u8,
    pub(crate) link_local: bool,
    pub(crate) tentative: bool,
}

/// `struct ifinfomsg`.
const LINK_LEN: usize = 16;

/// `struct ifaddrmsg`.
const ADDRESS_LEN: usize = 8;

pub(super) fn request() -> Request {
    let mut body = vec![0; LINK_LEN];
    attribute(&mut body, libc::IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    Request { kind: libc::RTM_GETLINK, body }
}

pub(super) fn address_request() -> Request {
    Request { kind: libc::RTM_GETADDR, body: vec![0; ADDRESS_LEN] }
}

pub(crate) fn parse_link(body: &[u8]) -> Option<LinkMessage> {
    let fixed = Reader(body);
    let flags = fixed.u32(8)?.cast_signed();
    let both = libc::IFF_UP | libc::IFF_LOWER_UP;
    let mut link = LinkMessage {
        ifindex: fixed.u32(4)?,
        name: String::new(),
        mac: [0; 6],
        mtu: 0,
        up: flags & both == both,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        ethernet: fixed.u16(2)? == libc::ARPHRD_ETHER,
        enslaved: false,
        kind: String::new(),
        master: 0,
        bond: None,
        slave: None,
        joined: None,
    };
    let mut elsewhere = false;
    for (kind, value) in attributes(body, LINK_LEN) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            // Other link layers have addresses of other lengths, which we do not use.
            libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_MTU => link.mtu = Reader(value).u32(0)?,
            libc::IFLA_MASTER => link.master = Reader(value).u32(0)?,
            libc::IFLA_LINK => link.joined = Some(Reader(value).u32(0)?).filter(|it| *it != 0),
            IFLA_LINK_NETNSID => elsewhere = true,
            libc::IFLA_LINKINFO => {
                let part = |wanted| {
                    attributes(value, 0).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
                };
                link.kind = part(IFLA_INFO_KIND).map(text).unwrap_or_default();
                link.bond = match link.kind.as_str() {
                    "bond" => Some(BondData::parse(part(IFLA_INFO_DATA).unwrap_or_default())),
                    "team" => Some(BondData::default()),
                    _ => None,
                };
                let below = part(IFLA_INFO_SLAVE_KIND).map(text).unwrap_or_default();
                link.enslaved = BUNDLES.contains(&below.as_str());
                link.slave = match below.as_str() {
                    "bond" => {
                        Some(SlaveData::parse(part(IFLA_INFO_SLAVE_DATA).unwrap_or_default()))
                    }
                    "team" => Some(SlaveData::default()),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    link.joined = link.joined.filter(|_| !elsewhere);
    (link.ifindex != 0 && !link.name.is_empty()).then_some(link)
}

pub(super) fn parse_address(body: &[u8]) -> Option<AddressMessage> {
    let fixed = Reader(body);
    let family = libc::c_int::from(fixed.u8(0)?);
    let mut flags = u32::from(fixed.u8(2)?);
    let scope = fixed.u8(3)?;
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(body, ADDRESS_LEN) {
        match kind {
            libc::IFA_LOCAL => local = ip(family, value),
            libc::IFA_ADDRESS => address = ip(family, value),
            libc::IFA_FLAGS => flags = Reader(value).u32(0)?,
            _ => {}
        }
    }
    // A duplicate has IFA_F_TENTATIVE as well as IFA_F_DADFAILED. An optimistic address may be
    // used.
    let unusable = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED;
    Some(AddressMessage {
        ifindex: fixed.u32(4)?,
        // On a point-to-point link IFA_ADDRESS is the peer's address.
        ip: local.or(address)?,
        prefix_len: fixed.u8(1)?,
        link_local: scope == libc::RT_SCOPE_LINK,
        tentative: flags & unusable != 0 && flags & libc::IFA_F_OPTIMISTIC == 0,
    })
}

pub(super) fn ip(family: libc::c_int, value: &[u8]) -> Option<IpAddr> {
    match family {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(flags: i32, kind: &[u8]) -> Vec<u8> {
        let mut body = vec![0; LINK_LEN];
        body[2..4].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
        body[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        body[8..12].copy_from_slice(&flags.to_ne_bytes());
        attribute(&mut body, libc::IFLA_IFNAME, b"eth0\0");
        attribute(&mut body, libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
        attribute(&mut body, libc::IFLA_MTU, &9000_u32.to_ne_bytes());
        let mut info = Vec::new();
        attribute(&mut info, IFLA_INFO_SLAVE_KIND, kind);
        attribute(&mut body, libc::IFLA_LINKINFO, &info);
        body
    }

    #[test]
    fn a_link_is_up_only_with_carrier() {
        let parse = |flags| parse_link(&link(flags, b"vrf\0")).unwrap();
        assert!(!parse(libc::IFF_UP).up);
        assert!(!parse(libc::IFF_LOWER_UP).up);
        let up = parse(libc::IFF_UP | libc::IFF_LOWER_UP);
        assert!(up.up && up.ethernet && !up.enslaved);
        assert_eq!((up.ifindex, up.name.as_str(), up.mtu), (7, "eth0", 9000));
    }

    #[test]
    fn a_port_of_a_bridge_is_enslaved() {
        assert!(parse_link(&link(0, b"bridge\0")).unwrap().enslaved);
    }

    #[test]
    fn a_bond_and_its_ports_are_known() {
        let of = |parts: &[(u16, &[u8])]| {
            let mut body = link(0, b"");
            let mut info = Vec::new();
            parts.iter().for_each(|(kind, value)| attribute(&mut info, *kind, value));
            attribute(&mut body, libc::IFLA_LINKINFO, &info);
            parse_link(&body).unwrap()
        };
        let mut data = Vec::new();
        attribute(&mut data, 1, &[4]);
        let bond = of(&[(IFLA_INFO_KIND, b"bond\0"), (IFLA_INFO_DATA, &data)]);
        assert_eq!((bond.bond.unwrap().mode, bond.slave, bond.enslaved), (Some(4), None, false));
        let team = of(&[(IFLA_INFO_KIND, b"team\0")]);
        assert_eq!(team.bond.unwrap().mode, None);
        let veth_in_bond = [
            (IFLA_INFO_KIND, &b"veth\0"[..]),
            (IFLA_INFO_SLAVE_KIND, b"bond\0"),
            (IFLA_INFO_SLAVE_DATA, &[]),
        ];
        let slave = of(&veth_in_bond);
        assert_eq!((slave.bond, slave.enslaved), (None, true));
        assert_eq!(slave.slave, Some(SlaveData::default()));
        assert_eq!(of(&[(IFLA_INFO_SLAVE_KIND, b"bridge\0")]).slave, None);
    }

    #[test]
    fn a_veth_whose_peer_is_elsewhere_is_told_from_one_whose_peer_is_here() {
        let veth = |netns: bool| {
            let mut body = link(0, b"\0");
            let mut info = Vec::new();
            attribute(&mut info, IFLA_INFO_KIND, b"veth\0");
            attribute(&mut body, libc::IFLA_LINKINFO, &info);
            attribute(&mut body, libc::IFLA_MASTER, &9_u32.to_ne_bytes());
            attribute(&mut body, libc::IFLA_LINK, &3_u32.to_ne_bytes());
            if netns {
                attribute(&mut body, IFLA_LINK_NETNSID, &0_u32.to_ne_bytes());
            }
            parse_link(&body).unwrap()
        };
        let here = veth(false);
        assert_eq!((here.kind.as_str(), here.master, here.joined), ("veth", 9, Some(3)));
        assert_eq!(veth(true).joined, None);
    }

    #[test]
    fn truncated_messages_give_nothing() {
        let whole = link(0, b"vrf\0");
        for len in 0..LINK_LEN + 4 {
            assert_eq!(parse_link(&whole[..len]), None);
        }
        assert_eq!(parse_address(&[libc::AF_INET as u8, 24]), None);
    }

    #[test]
    fn the_local_end_of_a_point_to_point_link_is_ours() {
        let mut body = vec![0; ADDRESS_LEN];
        body[0] = libc::AF_INET as u8;
        attribute(&mut body, libc::IFA_ADDRESS, &[10, 0, 0, 2]);
        attribute(&mut body, libc::IFA_LOCAL, &[10, 0, 0, 1]);
        assert_eq!(parse_address(&body).unwrap().ip.to_string(), "10.0.0.1");
    }

    #[test]
    fn an_optimistic_address_may_be_used() {
        let parse = |flags: u32| {
            let mut body = vec![0; ADDRESS_LEN];
            body[0] = libc::AF_INET6 as u8;
            attribute(&mut body, libc::IFA_ADDRESS, &[1; 16]);
            attribute(&mut body, libc::IFA_FLAGS, &flags.to_ne_bytes());
            parse_address(&body).unwrap().tentative
        };
        assert!(parse(libc::IFA_F_TENTATIVE));
        assert!(!parse(libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC));
    }
}
