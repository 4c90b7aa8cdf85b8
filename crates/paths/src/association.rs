//! The state that two lanes have agreed upon.

use core::net::IpAddr;
use core::time::Duration;

use crate::bytes::is_link_local;
use crate::config::LocalAddress;
use crate::coupling::Coupling;
use crate::id::{ByNumber, PathNumber};
use crate::key::{Key, Nonce, ReplayWindow};
use crate::message::{Announced, MAX_ADDRESSES};
use crate::path::Past;
use crate::seen::Seen;
use crate::select::Pair;
use polypath_types::{PathId, PeerAbilities, PeerId};

/// Comparative probing while a path is suspected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    /// By the clock that stands still while the lane does not run
    /// ([`Clock::awake`](crate::clock::Clock::awake)).
    pub(crate) started: Duration,
    pub(crate) rounds: u32,
    pub(crate) next_round: Duration,
}

/// The remote lane, and the paths to it.
#[derive(Clone, Debug)]
pub(crate) struct Association {
    /// The number by which the peer addresses it: random, with the table's index in the low half.
    pub(crate) number: u32,
    pub(crate) remote_number: Option<u32>,
    pub(crate) remote_instance: u64,
    pub(crate) remote_slot: u8,
    pub(crate) local_nonce: Nonce,
    pub(crate) remote_nonce: Nonce,
    pub(crate) key: Key,
    /// The peer whose handshake created it.
    pub(crate) proposer: PeerId,
    /// Whether the peer has proven that it has the key.
    pub(crate) confirmed: bool,
    pub(crate) sequence: u64,
    pub(crate) replay: ReplayWindow,
    /// Pairs of addresses that queue pairs were connected with.
    pub(crate) anchors: Vec<Pair>,
    pub(crate) remote_addresses: Vec<Announced>,
    pub(crate) remote_addresses_version: u32,
    /// The peer's receive window in bytes; 0 only before [`confirmed`](Self::confirmed).
    pub(crate) remote_window: u32,
    pub(crate) remote_abilities: PeerAbilities,
    /// The source ports that each end wants for a pair of addresses; 0 for one that knows of one only.
    pub(crate) local_ports: u8,
    pub(crate) remote_ports: u8,
    /// The address list that we announce, its version (which is that of
    /// [`local_ports`](Self::local_ports), too), and the version that the peer has.
    pub(crate) announced: Vec<Announced>,
    pub(crate) announced_version: u32,
    pub(crate) announced_seen: u32,
    /// The version of the leader's table and, at the leader, the version that the peer has.
    pub(crate) table_version: u32,
    pub(crate) table_seen: u32,
    pub(crate) paths: ByNumber<Option<PathId>>,
    /// The last generation used for each number, so that no generation is used twice.
    pub(crate) generations: ByNumber<u16>,
    /// Paths that left the set, in order, the latest at the end; at most
    /// [`MAX_PATHS`](crate::MAX_PATHS).
    pub(crate) past: Vec<Past>,
    /// The pairs of addresses that its paths lead between
    /// ([`Associations::set_ends`](crate::associations)).
    pub(crate) ends: Vec<Pair>,
    pub(crate) trial: Option<Trial>,
    /// When a probe or data of ours was last answered, by the same clock as [`Trial::started`].
    pub(crate) last_answer: Duration,
    /// When the first probe after [`last_answer`](Self::last_answer) was sent, by the same clock.
    pub(crate) asked: Option<Duration>,
    pub(crate) last_traffic: Duration,
    /// When the next control message is due, and the interval to the one after; zero if none is to be
    /// repeated.
    pub(crate) control_at: Duration,
    pub(crate) control_interval: Duration,
    pub(crate) peers: Vec<PeerId>,
    /// Whether a channel to the remote lane was asked for. If there is none, the host does not give one.
    pub(crate) asked_channel: bool,
    /// Whether one of its paths is a TCP stream.
    pub(crate) has_tcp: bool,
    /// Whether one of its paths is of another kind than UDP.
    pub(crate) has_several_kinds: bool,
    /// Which of its paths share a bottleneck; `None` while no two have carried data together.
    pub(crate) coupling: Option<Box<Coupling>>,
    /// The datagrams that were sent by two paths, wrapping, and those that came.
    pub(crate) datagrams_sent: u32,
    pub(crate) datagrams_seen: Option<Box<Seen>>,
    /// Since when it has no queue pairs.
    pub(crate) unused_since: Option<Duration>,
}

impl Association {
    pub(crate) fn new(
        local: (u64, Nonce),
        remote: (u64, Nonce),
        remote_slot: u8,
        proposer: PeerId,
    ) -> Self {
        Self {
            number: 0,
            remote_number: None,
            remote_instance: remote.0,
            remote_slot,
            local_nonce: local.1,
            remote_nonce: remote.1,
            key: Key::derive(local, remote),
            proposer,
            confirmed: false,
            sequence: 0,
            replay: ReplayWindow::default(),
            anchors: Vec::new(),
            remote_addresses: Vec::new(),
            remote_addresses_version: 0,
            remote_window: 0,
            remote_abilities: PeerAbilities::default(),
            local_ports: 0,
            remote_ports: 0,
            announced: Vec::new(),
            announced_version: 1,
            announced_seen: 0,
            table_version: 0,
            table_seen: 0,
            paths: ByNumber::default(),
            generations: ByNumber::default(),
            past: Vec::new(),
            ends: Vec::new(),
            trial: None,
            last_answer: Duration::ZERO,
            asked: None,
            last_traffic: Duration::ZERO,
            control_at: Duration::ZERO,
            control_interval: Duration::ZERO,
            peers: Vec::new(),
            asked_channel: false,
            has_tcp: false,
            has_several_kinds: false,
            coupling: None,
            datagrams_sent: 0,
            datagrams_seen: None,
            unused_since: None,
        }
    }

    /// Takes over the peer's address list.
    pub(crate) fn set_remote_addresses(&mut self, version: u32, list: Vec<Announced>) {
        self.remote_addresses_version = version;
        self.remote_addresses = list;
        // It may have come to this host.
        self.asked_channel = false;
    }

    /// Whether this end numbers the paths.
    pub(crate) fn is_leader(&self) -> bool {
        self.local_nonce < self.remote_nonce
    }

    /// The source ports that each pair of addresses gets, if there is room: the larger setting counts, so
    /// that one end can decide alone.
    pub(crate) fn ports(&self) -> u8 {
        match self.local_ports.min(self.remote_ports) {
            0 => 1,
            _ => self.local_ports.max(self.remote_ports),
        }
    }

    /// A rank that both ends compute alike. If a peer could be in either of two associations, it is in
    /// the one of the greater rank.
    pub(crate) fn rank(&self) -> (Nonce, Nonce) {
        let (a, b) = (self.local_nonce, self.remote_nonce);
        (a.min(b), a.max(b))
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = (PathNumber, PathId)> + Clone + use<> {
        self.paths.iter().filter_map(|(number, path)| Some((number, path?)))
    }
}

/// Whether `a` comes after `b`, modulo 2^16.
pub(crate) fn newer(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) > 0
}

/// An interface's number in an announcement: the low 16 bits of its index, or the next free number if
/// an interface of a lower index has that one.
fn interface_number(local: &[LocalAddress], ifindex: u32) -> u16 {
    let mut lower: Vec<u32> = local.iter().map(|a| a.ifindex).filter(|i| *i < ifindex).collect();
    lower.sort_unstable();
    lower.dedup();
    let mut taken = Vec::with_capacity(lower.len());
    let mut next = |ifindex: u32| {
        let mut number = ifindex as u16;
        while taken.contains(&number) {
            number = number.wrapping_add(1);
        }
        taken.push(number);
        number
    };
    for other in lower {
        next(other);
    }
    next(ifindex)
}

/// The list of our addresses to announce: first those that queue pairs were connected with, then one of
/// each family per interface. A loopback address is in it only if queue pairs use it; a link-local one
/// also if the interface has no other address. An address that was announced stays in the list while it
/// exists, even if an administrator takes it down for a while, so that its path keeps its number.
pub(crate) fn announce(
    local: &[LocalAddress],
    anchors: &[Pair],
    before: &[Announced],
) -> Vec<Announced> {
    let mut list: Vec<Announced> = Vec::new();
    let anchored = |a: &&LocalAddress| anchors.iter().any(|(l, _)| *l == a.ip);
    let narrow = |a: &&LocalAddress| is_link_local(a.ip) || a.ip.is_loopback();
    let known = |a: &&LocalAddress| a.usable || before.iter().any(|b| b.ip == a.ip);
    let usable = || local.iter().filter(known);
    let mut add = |a: &LocalAddress, double_if: fn(&Announced, IpAddr) -> bool| {
        let interface = interface_number(local, a.ifindex);
        let double =
            list.iter().any(|b| b.ip == a.ip || (b.interface == interface && double_if(b, a.ip)));
        if !double && list.len() < MAX_ADDRESSES {
            list.push(Announced { ip: a.ip, prefix_len: a.prefix_len, interface });
        }
    };
    usable().filter(anchored).for_each(|a| add(a, |_, _| false));
    let same_family = |b: &Announced, ip: IpAddr| b.ip.is_ipv4() == ip.is_ipv4();
    usable().filter(|a| !narrow(a)).for_each(|a| add(a, same_family));
    usable().filter(|a| narrow(a) && !a.ip.is_loopback()).for_each(|a| add(a, |_, _| true));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_compared_modulo_their_width() {
        assert!(newer(2, 1));
        assert!(!newer(1, 1));
        assert!(newer(0, u16::MAX));
        assert!(!newer(u16::MAX, 0));
    }

    #[test]
    fn interfaces_whose_indexes_end_alike_are_two() {
        let local: Vec<LocalAddress> = [("10.0.1.1", 7), ("10.0.2.1", 0x1_0007), ("10.0.3.1", 8)]
            .map(|(ip, ifindex)| LocalAddress {
                ip: ip.parse().unwrap(),
                prefix_len: 24,
                ifindex,
                link_up: true,
                usable: true,
                speed_mbps: 0,
            })
            .into();
        let announced: Vec<u16> = announce(&local, &[], &[]).iter().map(|a| a.interface).collect();
        assert_eq!(announced, [7, 9, 8]);
    }

    #[test]
    fn one_address_per_interface_and_family_is_announced() {
        let local: Vec<LocalAddress> = [
            ("127.0.0.1", 1, true),
            ("fe80::1", 2, true),
            ("10.0.1.1", 2, true),
            ("10.0.1.9", 2, true),
            ("fd01::1", 2, true),
            ("fe80::2", 3, true),
            ("10.0.4.1", 4, false),
        ]
        .into_iter()
        .map(|(ip, ifindex, usable)| LocalAddress {
            ip: ip.parse().unwrap(),
            prefix_len: 24,
            ifindex,
            link_up: true,
            usable,
            speed_mbps: 0,
        })
        .collect();
        let ips = |anchors: &[Pair]| -> Vec<String> {
            announce(&local, anchors, &[]).iter().map(|a| a.ip.to_string()).collect()
        };
        assert_eq!(ips(&[]), ["10.0.1.1", "fd01::1", "fe80::2"]);
        let anchor = ("10.0.1.9".parse().unwrap(), "10.0.1.2".parse().unwrap());
        assert_eq!(ips(&[anchor]), ["10.0.1.9", "fd01::1", "fe80::2"]);
        let anchor = ("127.0.0.1".parse().unwrap(), "127.0.0.1".parse().unwrap());
        assert_eq!(ips(&[anchor]), ["127.0.0.1", "10.0.1.1", "fd01::1", "fe80::2"]);
    }
}
