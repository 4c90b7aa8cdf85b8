//! Chooses the pairs of addresses that make paths.
//!
//! The pair that the queue pairs were connected with comes first. Then one pair for each two interfaces
//! that share a subnet; then, so that no interface stays without a path, routed pairs for the
//! interfaces left over, the first with the first (networks are built in rails). Only probes tell
//! whether a pair really works.
//!
//! Where both ends want several source ports, each pair makes as many paths ([`ways`]): networks that
//! spread flows over equal-cost ways look at the source port. Further pairs go before further ports.
//!
//! A pair of two equal addresses makes no path, because the two `docker0` of two hosts are both
//! 172.17.0.1. Only a peer on this very host is reached by such a pair, and then queue pairs were
//! connected by one.

use core::net::IpAddr;

use crate::bytes::{in_subnet, is_link_local};
use crate::message::Announced;
use crate::types::{MAX_PATHS, MAX_PORTS, PathAddress};
use polypath_types::PathKind;

/// A local and a remote address.
pub(crate) type Pair = (IpAddr, IpAddr);

/// What a packet shows of the path that it came by: the kind, and the pair of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) kind: PathKind,
    pub(crate) pair: Pair,
}

impl Line {
    /// Over UDP.
    pub(crate) fn udp(pair: Pair) -> Self {
        Self { kind: PathKind::Udp, pair }
    }
}

impl PathAddress {
    pub(crate) fn line(&self) -> Line {
        Line { kind: self.kind, pair: (self.local, self.remote) }
    }
}

/// What tells a path from the others of its set, known to both ends: its line, and which of the paths by
/// that line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) line: Line,
    /// The index of its source port, from 0. Each end has a port of its own for it.
    pub(crate) port: u8,
}

/// The paths over UDP that these pairs make with up to so many `ports` each: all pairs come first, then a
/// second port of each, and so on, at most [`MAX_PATHS`] in all.
pub(crate) fn ways(pairs: &[Pair], ports: u8) -> Vec<Way> {
    let of_port = |port| pairs.iter().map(move |&pair| Way { line: Line::udp(pair), port });
    (0..ports.clamp(1, MAX_PORTS)).flat_map(of_port).take(MAX_PATHS).collect()
}

/// Chooses at most [`MAX_PATHS`] pairs out of our and the peer's addresses. `anchors` are pairs that
/// queue pairs were connected with; those whose addresses still exist are kept. `mine` and `theirs`
/// are in order of preference.
pub(crate) fn pairs(anchors: &[Pair], mine: &[Announced], theirs: &[Announced]) -> Vec<Pair> {
    // One of the ends may have moved to the other's host after they were connected.
    let ours = |r: &Announced| mine.iter().any(|l| l.ip == r.ip);
    let same_host =
        anchors.iter().any(|(l, r)| l == r) || (!theirs.is_empty() && theirs.iter().all(ours));
    let mut set = PairSet { mine, theirs, same_host, pairs: Vec::new(), interfaces: Vec::new() };
    for &(l, r) in anchors {
        let known = |list: &[Announced], ip| list.iter().copied().find(|a| a.ip == ip);
        if let (Some(l), Some(r)) = (known(mine, l), known(theirs, r)) {
            set.add(l, r, true);
        }
    }
    let v4_first = anchors.first().is_none_or(|(l, _)| l.is_ipv4());
    for family_v4 in [v4_first, !v4_first] {
        let of_family = |list: &[Announced]| {
            list.iter().copied().filter(|a| a.ip.is_ipv4() == family_v4).collect::<Vec<_>>()
        };
        let (mine, theirs) = (of_family(mine), of_family(theirs));
        // Along the diagonals, so that a full set uses as many interfaces as there are.
        for shift in 0..theirs.len() {
            for (n, l) in mine.iter().enumerate() {
                let r = theirs[(n + shift) % theirs.len()];
                if on_link(l, &r) && (same_host || l.ip != r.ip) {
                    set.add(*l, r, false);
                }
            }
        }
    }
    set.add_left_over();
    set.pairs
}

fn on_link(a: &Announced, b: &Announced) -> bool {
    !is_link_local(a.ip)
        && !a.ip.is_loopback()
        && (in_subnet(b.ip, a.ip, a.prefix_len) || in_subnet(a.ip, b.ip, b.prefix_len))
}

struct PairSet<'a> {
    mine: &'a [Announced],
    theirs: &'a [Announced],
    /// Whether the peer is on this host: queue pairs were connected by a pair of equal addresses, or the peer
    /// has none but ours.
    same_host: bool,
    pairs: Vec<Pair>,
    interfaces: Vec<(u16, u16)>,
}

impl PairSet<'_> {
    /// Adds a pair if there is room. IPv4 and IPv6 between the same two interfaces make one path, not
    /// two.
    fn add(&mut self, l: Announced, r: Announced, anchor: bool) {
        let interfaces = (l.interface, r.interface);
        let double = self.pairs.contains(&(l.ip, r.ip))
            || (!anchor && self.interfaces.contains(&interfaces));
        if !double && self.pairs.len() < MAX_PATHS {
            self.pairs.push((l.ip, r.ip));
            self.interfaces.push(interfaces);
        }
    }

    fn add_left_over(&mut self) {
        let mine = without(self.mine, |i| self.interfaces.iter().any(|p| p.0 == i));
        let theirs = without(self.theirs, |i| self.interfaces.iter().any(|p| p.1 == i));
        let all = |list: &[Announced]| without(list, |_| false);
        for (n, &interface) in mine.iter().enumerate() {
            let partners = if theirs.is_empty() { all(self.theirs) } else { theirs.clone() };
            self.add_routed(interface, partners[..].get(n % partners.len().max(1)).copied());
        }
        for (n, &interface) in theirs.iter().enumerate().skip(mine.len()) {
            let partners = if mine.is_empty() { all(self.mine) } else { mine.clone() };
            if let Some(&partner) = partners.get(n % partners.len().max(1)) {
                self.add_routed(partner, Some(interface));
            }
        }
    }

    /// One pair of these two interfaces, of the same family; link-local addresses only with each
    /// other and as the last resort.
    fn add_routed(&mut self, mine: u16, theirs: Option<u16>) {
        let Some(theirs) = theirs else { return };
        if !self.same_host && self.have_a_common_address(mine, theirs) {
            return;
        }
        let mut best: Option<(bool, Announced, Announced)> = None;
        for l in self.mine.iter().filter(|a| a.interface == mine) {
            for r in self.theirs.iter().filter(|a| a.interface == theirs) {
                let local = is_link_local(l.ip);
                let fits = l.ip.is_ipv4() == r.ip.is_ipv4()
                    && local == is_link_local(r.ip)
                    && l.ip.is_loopback() == r.ip.is_loopback();
                if fits && best.is_none_or(|b| b.0 && !local) {
                    best = Some((local, *l, *r));
                }
            }
        }
        if let Some((_, l, r)) = best {
            self.add(l, r, false);
        }
    }

    /// Whether the two interfaces have the same address: then they are in networks of the same
    /// name, not in the same network.
    fn have_a_common_address(&self, mine: u16, theirs: u16) -> bool {
        let ours = self.mine.iter().filter(|a| a.interface == mine);
        ours.filter(|a| !is_link_local(a.ip))
            .any(|l| self.theirs.iter().any(|r| r.interface == theirs && r.ip == l.ip))
    }
}

/// The interfaces of a list for which `covered` is `false`, in the order of the list.
fn without(list: &[Announced], covered: impl Fn(u16) -> bool) -> Vec<u16> {
    let mut out = Vec::new();
    for a in list {
        if !out.contains(&a.interface) && !covered(a.interface) {
            out.push(a.interface);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Announced> {
        text.split_whitespace()
            .map(|item| {
                let (interface, rest) = item.split_once('=').unwrap();
                let (ip, len) = rest.split_once('/').unwrap();
                Announced {
                    ip: ip.parse().unwrap(),
                    prefix_len: len.parse().unwrap(),
                    interface: interface.parse().unwrap(),
                }
            })
            .collect()
    }

    fn check(anchor: (&str, &str), mine: &str, theirs: &str, want: &[(&str, &str)]) {
        let pair = |(l, r): (&str, &str)| (l.parse().unwrap(), r.parse().unwrap());
        let want: Vec<Pair> = want.iter().map(|p| pair(*p)).collect();
        assert_eq!(pairs(&[pair(anchor)], &list(mine), &list(theirs)), want);
    }

    #[test]
    fn interfaces_on_a_common_subnet_are_paired() {
        check(
            ("10.0.1.1", "10.0.1.2"),
            "1=10.0.1.1/24 2=10.0.2.1/24",
            "5=10.0.1.2/24 6=10.0.2.2/24",
            &[("10.0.1.1", "10.0.1.2"), ("10.0.2.1", "10.0.2.2")],
        );
    }

    #[test]
    fn two_families_on_the_same_interfaces_are_one_path() {
        check(
            ("fd01::1", "fd01::2"),
            "1=10.0.1.1/24 1=fd01::1/64 2=10.0.2.1/24 2=fd02::1/64",
            "1=10.0.1.2/24 1=fd01::2/64 2=10.0.2.2/24 2=fd02::2/64",
            &[("fd01::1", "fd01::2"), ("fd02::1", "fd02::2")],
        );
        check(
            ("fe80::1", "fe80::2"),
            "1=fe80::1/64 2=10.0.2.1/24",
            "1=fe80::2/64 2=10.0.2.2/24",
            &[("fe80::1", "fe80::2"), ("10.0.2.1", "10.0.2.2")],
        );
    }

    #[test]
    fn interfaces_on_one_subnet_make_all_combinations() {
        check(
            ("10.0.0.1", "10.0.0.3"),
            "1=10.0.0.1/24 2=10.0.0.2/24",
            "1=10.0.0.3/24 2=10.0.0.4/24",
            &[
                ("10.0.0.1", "10.0.0.3"),
                ("10.0.0.2", "10.0.0.4"),
                ("10.0.0.1", "10.0.0.4"),
                ("10.0.0.2", "10.0.0.3"),
            ],
        );
    }

    #[test]
    fn routed_rails_are_paired_in_order() {
        check(
            ("10.1.1.1", "10.2.1.1"),
            "1=10.1.1.1/24 2=10.1.2.1/24",
            "1=10.2.1.1/24 2=10.2.2.1/24",
            &[("10.1.1.1", "10.2.1.1"), ("10.1.2.1", "10.2.2.1")],
        );
    }

    #[test]
    fn a_second_interface_reaches_the_only_address_of_the_peer() {
        check(
            ("10.1.1.1", "10.9.1.1"),
            "1=10.1.1.1/24 2=10.1.2.1/24",
            "1=10.9.1.1/24",
            &[("10.1.1.1", "10.9.1.1"), ("10.1.2.1", "10.9.1.1")],
        );
        check(
            ("10.9.1.1", "10.1.1.1"),
            "1=10.9.1.1/24",
            "1=10.1.1.1/24 2=10.1.2.1/24",
            &[("10.9.1.1", "10.1.1.1"), ("10.9.1.1", "10.1.2.1")],
        );
    }

    #[test]
    fn an_address_that_both_ends_have_makes_no_path() {
        check(
            ("10.0.1.1", "10.0.1.2"),
            "1=10.0.1.1/24 2=172.17.0.1/16 2=fe80::42:1/64 3=10.0.2.1/24",
            "1=10.0.1.2/24 2=172.17.0.1/16 2=fe80::42:2/64 3=10.0.2.2/24",
            &[("10.0.1.1", "10.0.1.2"), ("10.0.2.1", "10.0.2.2")],
        );
    }

    #[test]
    fn a_peer_on_this_host_is_reached_by_equal_addresses() {
        check(
            ("10.0.1.1", "10.0.1.1"),
            "1=10.0.1.1/24 2=10.0.2.1/24",
            "1=10.0.1.1/24 2=10.0.2.1/24",
            &[("10.0.1.1", "10.0.1.1"), ("10.0.2.1", "10.0.2.1")],
        );
    }

    #[test]
    fn a_peer_that_has_moved_to_this_host_is_reached_by_equal_addresses() {
        let ours = "1=10.0.1.1/24 2=10.0.2.1/24";
        let equal = ("10.0.1.1", "10.0.1.1");
        check(("10.0.1.1", "10.0.9.9"), ours, "1=10.0.1.1/24", &[equal, ("10.0.2.1", "10.0.1.1")]);
        check(("10.0.1.1", "10.0.9.9"), ours, "", &[]);
    }

    #[test]
    fn ports_fill_what_pairs_leave_in_turn() {
        let pair = |n: u8| (IpAddr::from([10, 0, n, 1]), IpAddr::from([10, 0, n, 2]));
        let of = |count: u8, ports| -> Vec<(u8, u8)> {
            let pairs: Vec<Pair> = (0..count).map(pair).collect();
            let number = |way: &Way| pairs.iter().position(|p| *p == way.line.pair).unwrap() as u8;
            ways(&pairs, ports).iter().map(|way| (number(way), way.port)).collect()
        };
        assert_eq!(of(2, 1), [(0, 0), (1, 0)]);
        assert_eq!(of(2, 0), [(0, 0), (1, 0)], "there is always one");
        assert_eq!(of(1, 3), [(0, 0), (0, 1), (0, 2)]);
        assert_eq!(
            of(3, 8),
            [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2)],
            "as many as fit"
        );
        assert_eq!(of(8, 8).len(), MAX_PATHS);
        assert_eq!(of(1, u8::MAX).len(), usize::from(MAX_PORTS));
        assert!(of(0, 8).is_empty());
    }

    #[test]
    fn never_more_than_the_limit_and_nothing_from_nothing() {
        let mine: String = (0..8).map(|i| format!("{i}=10.0.0.{}/24 ", i + 1)).collect();
        let theirs: String = (0..8).map(|i| format!("{i}=10.0.0.{}/24 ", i + 101)).collect();
        let all = pairs(&[], &list(&mine), &list(&theirs));
        assert_eq!(all.len(), MAX_PATHS);
        let used: std::collections::BTreeSet<_> = all.iter().map(|p| p.0).collect();
        assert_eq!(used.len(), MAX_PATHS, "every local interface has a path");
        assert!(pairs(&[], &list(&mine), &[]).is_empty());
        assert!(pairs(&[], &[], &list(&mine)).is_empty());
    }
}
