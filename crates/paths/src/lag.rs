//! Bonds whose ports send from one address, and the hash that chooses the port that a packet leaves by.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use polypath_wire::ROCE_PORT;

use crate::bytes::spread;
use crate::select::Pair;

/// A bond of the kernel's, or interfaces that share an address without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The index of its interface; of the one that has the address, if it is none of the kernel's.
    pub ifindex: u32,
    /// The indexes of the interfaces above it (VLANs, bridges), whose packets it treats as its own.
    pub above: Vec<u32>,
    /// The packets of which it hashes addresses and UDP ports, and nothing else.
    pub hashed: Hashed,
    /// Its ports, in the order in which the kernel keeps them. Without the kernel's bond, the one that has
    /// the address is one of them.
    pub members: Vec<LagMember>,
}

/// The packets of which a bond hashes addresses and UDP ports, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hashed {
    /// All (`xmit_hash_policy layer3+4`).
    All,
    /// Those of IPv4 (`encap3+4`). For others it takes the hash by which the kernel has made their flow
    /// label, which is random.
    Ipv4,
    /// None: nobody knows by which port a packet leaves.
    None,
    /// Those of IPv4, by this lane: the bond is none of the kernel's, and packets are sent by the port that
    /// [`Lag::bound_to`] names. Others leave by the interface that has their address.
    Bound,
}

/// A port of a bond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagMember {
    /// The index of its interface.
    pub ifindex: u32,
    /// Whether the bond sends by it.
    pub usable: bool,
}

/// What is known of the ports of bonds by which peers were silent, by the addresses and the port's index.
pub(crate) type Silences = BTreeMap<(Pair, u32), Silence>;

/// A port of a bond by which a peer was silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// Whether it has not carried since.
    pub(crate) lasts: bool,
    /// When it was left last, or tried.
    pub(crate) tried_at: Duration,
    /// How long after that it is tried again.
    pub(crate) wait: Duration,
}

/// What `layer3+4` makes of the addresses and ports of a UDP packet (Linux' bonding.rst, "xmit_hash_policy"):
/// both ports as one word and both addresses, exclusive-or, folded to their lowest bytes, without the lowest
/// bit. IPv6 addresses are folded to one word first. All words are as in memory.
fn hash(pair: Pair, source_port: u16, destination_port: u16) -> u32 {
    let word = |bytes: [u8; 4]| u32::from_ne_bytes(bytes);
    let of_address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => word(ip.octets()),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            octets.as_chunks().0.iter().fold(0, |sum, bytes| sum ^ word(*bytes))
        }
    };
    let [a, b] = source_port.to_be_bytes();
    let [c, d] = destination_port.to_be_bytes();
    let mut hash = word([a, b, c, d]) ^ of_address(pair.0) ^ of_address(pair.1);
    hash ^= hash >> 16;
    hash ^= hash >> 8;
    hash >> 1
}

impl Lag {
    /// The index of the interface that packets from this source port are to be sent by; `None` if that is
    /// left to the kernel, or if none is usable. While the one that the port belongs to is not usable, what
    /// has no other source port leaves by another one.
    pub fn bound_to(&self, local: IpAddr, remote: IpAddr, source_port: u16) -> Option<u32> {
        let pair = (local, remote);
        if self.hashed != Hashed::Bound || !self.is_known(pair) {
            return None;
        }
        let other = || self.among_usable(pair, source_port);
        self.leaves_by(pair, source_port).or_else(other)
    }

    /// The index of the interface that this source port belongs to, whether it is usable or not; `None` if
    /// the bond is the kernel's.
    pub fn own_port(&self, local: IpAddr, remote: IpAddr, source_port: u16) -> Option<u32> {
        let is_own = self.hashed == Hashed::Bound && self.is_known((local, remote));
        is_own.then(|| self.own((local, remote), source_port).map(|own| own.ifindex)).flatten()
    }

    fn own(&self, pair: Pair, source_port: u16) -> Option<&LagMember> {
        let hash = usize::try_from(hash(pair, source_port, ROCE_PORT)).ok()?;
        self.members.get(hash.checked_rem(self.members.len())?)
    }

    fn among_usable(&self, pair: Pair, source_port: u16) -> Option<u32> {
        let hash = usize::try_from(hash(pair, source_port, ROCE_PORT)).ok()?;
        self.nth_usable(hash)
    }

    /// The index of the `n`th of its usable ports, which are counted in a circle; `None` if none is usable.
    pub(crate) fn nth_usable(&self, n: usize) -> Option<u32> {
        let usable = || self.members.iter().filter(|member| member.usable);
        usable().nth(n.checked_rem(usable().count())?).map(|member| member.ifindex)
    }

    /// The port of the bond by which packets from this source port leave; `None` if it is not usable.
    ///
    /// The kernel chooses among the usable ones. Sockets are bound to interfaces, so without the kernel's
    /// bond a source port has its own among all.
    pub(crate) fn leaves_by(&self, pair: Pair, source_port: u16) -> Option<u32> {
        match self.hashed {
            _ if !self.is_known(pair) => None,
            Hashed::Bound => {
                self.own(pair, source_port).filter(|own| own.usable).map(|own| own.ifindex)
            }
            _ => self.among_usable(pair, source_port),
        }
    }

    /// Whether it sends by its port of this index.
    pub(crate) fn sends_by(&self, port: u32) -> bool {
        self.usable_member(port).is_some()
    }

    /// Its port of this index, if it is usable.
    pub(crate) fn usable_member(&self, port: u32) -> Option<LagMember> {
        self.members.iter().find(|member| member.ifindex == port && member.usable).copied()
    }

    /// Whether the hash of packets between these addresses is known.
    pub(crate) fn is_known(&self, pair: Pair) -> bool {
        match self.hashed {
            Hashed::All => true,
            Hashed::Ipv4 | Hashed::Bound => pair.0.is_ipv4(),
            Hashed::None => false,
        }
    }

    /// The port of the bond for the n-th path between two addresses; `None` if the bond has none, or if its
    /// hash is not known. Both ends begin with the same one, so that where a cable joins each two ports,
    /// a path comes and goes by one cable.
    pub(crate) fn member_of(&self, pair: Pair, n: u8) -> Option<LagMember> {
        if !self.is_known(pair) {
            return None;
        }
        let (a, b) = (pair.0.min(pair.1), pair.0.max(pair.1));
        let first = usize::try_from(spread(a, b, 0)).unwrap_or(0);
        let at = first.wrapping_add(usize::from(n)).checked_rem(self.members.len())?;
        self.members.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_port_stays_with_the_interface_that_it_is_bound_to() {
        let member = |ifindex, usable| LagMember { ifindex, usable };
        let lag = |usable: [bool; 3], hashed| {
            let members = (2..).zip(usable).map(|(n, usable)| member(n, usable)).collect();
            Lag { ifindex: 2, above: vec![], hashed, members }
        };
        let (here, there) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let (all, some) = ([true; 3], [true, false, true]);
        let mut by = [0; 3];
        for port in 0xc000..0xc100 {
            let bound = lag(all, Hashed::Bound).bound_to(here, there, port).unwrap();
            let meanwhile = lag(some, Hashed::Bound).bound_to(here, there, port).unwrap();
            let own = lag(some, Hashed::Bound).own_port(here, there, port);
            assert_eq!(own, Some(bound), "whether it is usable or not");
            assert!(if bound == 3 { meanwhile != 3 } else { meanwhile == bound }, "{port:x}");
            by[bound as usize - 2] += 1;
            assert_eq!(lag(all, Hashed::All).bound_to(here, there, port), None, "the kernel's");
            assert_eq!(lag([false; 3], Hashed::Bound).bound_to(here, there, port), None);
        }
        assert!(by.iter().all(|count| *count > 60), "{by:?}");
        let v6 = "fd00::1".parse().unwrap();
        assert_eq!(lag(all, Hashed::Bound).bound_to(v6, v6, 0xc000), None);
    }

    fn pair(from: &str, to: &str) -> Pair {
        (from.parse().unwrap(), to.parse().unwrap())
    }

    fn lag(usable: &[bool]) -> Lag {
        let member = |(ifindex, usable): (u32, &bool)| LagMember { ifindex, usable: *usable };
        let members = (10..).zip(usable).map(member).collect();
        Lag { ifindex: 9, above: vec![], hashed: Hashed::All, members }
    }

    /// By hand, for a little-endian machine. 10.0.0.1 is 0100000a, 10.0.0.2 is 0200000a, ports 49152 and 4791
    /// (c000 and 12b7) are b71200c0.
    #[test]
    #[cfg(target_endian = "little")]
    fn the_hash_is_that_of_linux() {
        // b71200c0 ^ 0100000a ^ 0200000a = b41200c0; ^ b412 = b412b4d2; ^ b412b4 = b4a6a666; / 2.
        assert_eq!(hash(pair("10.0.0.1", "10.0.0.2"), 49152, 4791), 0x5a53_5333);
        // b71201c0 for port 49153: b41201c0; ^ b412 = b412b5d2; ^ b412b5 = b4a6a767; / 2.
        assert_eq!(hash(pair("10.0.0.1", "10.0.0.2"), 49153, 4791), 0x5a53_53b3);
        // fd00::1 is 000000fd and 01000000, so fc.. folds to 010000fd; fd00::2 to 020000fd; b41200c0 as
        // above.
        assert_eq!(hash(pair("fd00::1", "fd00::2"), 49152, 4791), 0x5a53_5333);
        // fd00:0:0:1::1 has 00000100 in memory, which is 01000000, in its second word as well: 000000fd.
        // ^ 020000fd ^ b71200c0 = b51200c0; ^ b512 = b512b5d2; ^ b512b5 = b5a7a767; / 2.
        assert_eq!(hash(pair("fd00:0:0:1::1", "fd00::2"), 49152, 4791), 0x5ad3_d3b3);
    }

    #[test]
    fn packets_leave_by_the_usable_ports_in_their_order() {
        let pair = pair("10.0.0.1", "10.0.0.2");
        let by = |usable: &[bool], port| lag(usable).leaves_by(pair, port);
        for port in [0xc000, 0xc001, 0xc0de, 0xffff] {
            let hash = hash(pair, port, 4791);
            assert_eq!(by(&[true; 3], port), Some(10 + hash % 3));
            assert_eq!(by(&[true, false, true], port), Some(10 + hash % 2 * 2));
            assert_eq!(by(&[false, true, false], port), Some(11));
            assert_eq!(by(&[false; 2], port), None);
            assert_eq!(by(&[], port), None);
            let unknown = Lag { hashed: Hashed::Ipv4, ..lag(&[true]) };
            assert_eq!(unknown.leaves_by(pair, port), Some(10));
            let six = (IpAddr::from([1_u16; 8]), IpAddr::from([2_u16; 8]));
            assert_eq!((unknown.leaves_by(six, port), unknown.member_of(six, 0)), (None, None));
            assert_eq!(lag(&[true]).leaves_by(six, port), Some(10));
        }
    }

    #[test]
    fn each_port_of_a_bond_has_as_many_paths_and_the_first_differs_by_peer() {
        let mut firsts = [0; 2];
        for peer in 2..100_u8 {
            let pair = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, peer]));
            let (two, four) = (lag(&[true; 2]), lag(&[true; 4]));
            let of = |lag: &Lag, n| lag.member_of(pair, n).unwrap().ifindex;
            assert_ne!(of(&two, 0), of(&two, 1));
            let mut all: Vec<u32> = (0..8).map(|n| of(&four, n)).collect();
            all.sort_unstable();
            assert_eq!(all, [10, 10, 11, 11, 12, 12, 13, 13]);
            firsts[usize::from(of(&two, 0) == 11)] += 1;
        }
        assert!(firsts.iter().all(|count| *count > 30), "{firsts:?}");
        assert_eq!(lag(&[]).member_of((IpAddr::from([0; 4]), IpAddr::from([0; 4])), 0), None);
    }
}
