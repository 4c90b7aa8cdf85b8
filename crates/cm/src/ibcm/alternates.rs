//! Alternate addresses of a peer. Messages that must arrive go there when the path on which the
//! connection began is dead.
//!
//! A connection manager that has addresses on several interfaces lists them in the private data of
//! its RTU. RDMA CM does not use that field, and other connection managers ignore it. A peer that
//! understands the list answers with an RTU of its own. From then on a DREQ without an answer is
//! repeated on other pairs of addresses, and the peer answers to the address that the DREQ came
//! from. Nothing depends on the lists: they may get lost, and a forged one only adds addresses that
//! a DREQ may go to, and that an alternate path may lead to, if the peer agrees.
//!
//! The list consists of the eight bytes `Polypath`, the version (1), the number of addresses (at
//! most 13), and each address as a GID of 16 bytes.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};

use polypath_wire::Gid;
use polypath_wire::cm::Rtu;

use super::endpoints::Endpoints;

const MAGIC: [u8; 8] = *b"Polypath";
const VERSION: u8 = 1;
const HEAD: usize = MAGIC.len() + 2;
const GID_LEN: usize = 16;

/// The largest number of addresses in a list.
pub(crate) const ADDRESSES_MAX: usize = (Rtu::PRIVATE_DATA_LEN - HEAD) / GID_LEN;

/// The addresses at which both ends of a connection can be reached.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AlternateAddresses {
    /// This end's addresses with their interfaces.
    own: Vec<(IpAddr, u32)>,
    peer: Vec<IpAddr>,
}

impl AlternateAddresses {
    /// Sets this end's current addresses. Link-local ones are left out, because they mean nothing
    /// on another link.
    pub(crate) fn set_own(&mut self, addresses: &[(IpAddr, u32)]) {
        let usable = addresses.iter().filter(|(ip, _)| is_global(*ip));
        self.own = usable.take(ADDRESSES_MAX).copied().collect();
    }

    /// This end's addresses.
    pub(super) fn own(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.own.iter().map(|(ip, _)| *ip)
    }

    pub(super) fn set_peer(&mut self, addresses: Vec<IpAddr>) {
        self.peer = addresses;
    }

    /// The peer's addresses that are known.
    pub(crate) fn peer(&self) -> &[IpAddr] {
        &self.peer
    }

    /// Adds an address that the peer named.
    pub(crate) fn add_peer(&mut self, address: IpAddr) {
        if self.peer.contains(&address) {
            return;
        }
        if self.peer.len() == ADDRESSES_MAX {
            self.peer.remove(0);
        }
        self.peer.push(address);
    }

    /// The list for the peer; empty if this end has only one interface.
    pub(super) fn list(&self) -> Vec<u8> {
        let Some((_, first)) = self.own.first() else { return Vec::new() };
        if self.own.iter().all(|(_, ifindex)| ifindex == first) {
            return Vec::new();
        }
        let mut list = MAGIC.to_vec();
        list.push(VERSION);
        put_addresses(&mut list, self.own());
        list
    }

    /// The addresses for one more attempt. The first attempt uses the path on which the connection
    /// began, unless its local address is gone. The other pairs then take turns, pairs in one
    /// network first.
    pub(super) fn choose(&self, began: Endpoints, attempt: u8) -> Endpoints {
        let mut others: Vec<Endpoints> = self
            .own
            .iter()
            .flat_map(|(local, ifindex)| {
                let peers = self.peer.iter().filter(|r| r.is_ipv4() == local.is_ipv4());
                peers.map(|remote| Endpoints {
                    local: *local,
                    remote: *remote,
                    ifindex: *ifindex,
                    ..began
                })
            })
            .filter(|ends| (ends.local, ends.remote) != (began.local, began.remote))
            .collect();
        others.sort_by_key(|ends| core::cmp::Reverse(common_prefix(ends.local, ends.remote)));
        let is_gone = !self.own.is_empty()
            && is_global(began.local)
            && !self.own.iter().any(|(ip, _)| *ip == began.local);
        if others.is_empty() {
            return began;
        }
        let turns = others.len() + usize::from(!is_gone);
        match usize::from(attempt) % turns {
            0 if !is_gone => began,
            turn => others[turn - usize::from(!is_gone)],
        }
    }
}

/// The addresses of a list; `None` if the private data holds none.
pub(super) fn parse(private_data: &[u8]) -> Option<Vec<IpAddr>> {
    let rest = private_data.strip_prefix(&MAGIC)?;
    let [VERSION, rest @ ..] = rest else { return None };
    addresses(rest)
}

/// Writes addresses, at most [`ADDRESSES_MAX`], and before them their number.
pub(super) fn put_addresses(out: &mut Vec<u8>, addresses: impl Iterator<Item = IpAddr>) {
    let gids: Vec<[u8; GID_LEN]> =
        addresses.take(ADDRESSES_MAX).map(|ip| Gid::from_ip(ip).0).collect();
    out.push(gids.len() as u8);
    out.extend_from_slice(gids.as_flattened());
}

/// Reads them. `None` if there are fewer or too many.
pub(super) fn addresses(bytes: &[u8]) -> Option<Vec<IpAddr>> {
    let [count, gids @ ..] = bytes else { return None };
    let count = usize::from(*count);
    if count > ADDRESSES_MAX {
        return None;
    }
    let gids = gids.chunks_exact(GID_LEN).take(count);
    let addresses = gids.filter_map(|gid| Some(Gid(gid.try_into().ok()?).to_ip()));
    Some(addresses.filter(|ip| is_global(*ip)).collect())
}

/// Whether an address names the same single host on every link.
pub(crate) fn is_global(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(link_local || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

pub(crate) fn common_prefix(a: IpAddr, b: IpAddr) -> u32 {
    let bits = |ip: IpAddr| u128::from_be_bytes(Gid::from_ip(ip).0);
    (bits(a) ^ bits(b)).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn began() -> Endpoints {
        Endpoints { local: ip("10.0.1.1"), remote: ip("10.0.1.2"), ifindex: 2, traffic_class: 0x68 }
    }

    fn alternates(own: &[(&str, u32)], peer: &[&str]) -> AlternateAddresses {
        let mut alternates = AlternateAddresses::default();
        let own: Vec<_> = own.iter().map(|(a, i)| (ip(a), *i)).collect();
        alternates.set_own(&own);
        alternates.set_peer(peer.iter().map(|a| ip(a)).collect());
        alternates
    }

    #[test]
    fn a_list_is_told_only_of_several_interfaces() {
        assert!(alternates(&[("10.0.1.1", 2), ("fd00::1", 2)], &[]).list().is_empty());
        let list = alternates(&[("10.0.1.1", 2), ("fe80::1", 3), ("10.0.2.1", 3)], &[]).list();
        assert_eq!(list.len(), HEAD + 2 * GID_LEN);
        assert_eq!(parse(&list), Some(vec![ip("10.0.1.1"), ip("10.0.2.1")]));
        let many: Vec<(IpAddr, u32)> =
            (0..20).map(|n| (IpAddr::from([10, 0, n, 1]), n.into())).collect();
        let mut alternates = AlternateAddresses::default();
        alternates.set_own(&many);
        assert!(alternates.list().len() <= Rtu::PRIVATE_DATA_LEN);
        assert_eq!(parse(&alternates.list()).unwrap().len(), ADDRESSES_MAX);
    }

    #[test]
    fn what_is_no_list_is_none() {
        assert_eq!(parse(&[0; 224]), None);
        assert_eq!(parse(b"Polypat"), None);
        assert_eq!(parse(b"Polypath\x02\x00"), None);
        assert_eq!(parse(b"Polypath\x01\x0e"), None);
        assert_eq!(parse(b"Polypath\x01\x02"), Some(vec![]));
    }

    #[test]
    fn the_first_way_is_the_one_the_connection_began_on_then_those_of_one_network() {
        let alternates =
            alternates(&[("10.0.1.1", 2), ("10.0.2.1", 3)], &["10.0.1.2", "10.0.2.2", "fd00::2"]);
        assert_eq!(alternates.choose(began(), 0), began());
        let second = alternates.choose(began(), 1);
        assert_eq!((second.local, second.remote), (ip("10.0.2.1"), ip("10.0.2.2")));
        assert_eq!((second.ifindex, second.traffic_class), (3, 0x68));
        assert_eq!(alternates.choose(began(), 4), began());
    }

    #[test]
    fn an_address_that_is_gone_is_no_way() {
        let alternates = alternates(&[("10.0.2.1", 3)], &["10.0.1.2", "10.0.2.2"]);
        let first = alternates.choose(began(), 0);
        assert_eq!((first.local, first.remote), (ip("10.0.2.1"), ip("10.0.2.2")));
        for attempt in 0..10 {
            assert_ne!(alternates.choose(began(), attempt).local, began().local);
        }
        // Without any other addresses the original ones are used.
        assert_eq!(AlternateAddresses::default().choose(began(), 3), began());
    }
}
