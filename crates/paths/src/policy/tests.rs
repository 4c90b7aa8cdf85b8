//! Tests that the trait takes another policy: a manager with a toy that uses all paths.

use core::net::IpAddr;
use core::time::Duration;

use super::*;
use crate::config::{Config, LaneIdentity, LocalAddress, PathOptions};
use crate::manager::PathManager;
use crate::types::{PathAddress, PathEvent, Reason};
use polypath_types::{Class, PathKind, PeerId, Pick, Route};
use polypath_wire::packet::Packet;

/// Sends bursts by all paths that are up, in turn.
#[derive(Clone, Debug, Default)]
struct Alternate {
    turn: usize,
}

impl Policy for Alternate {
    /// Skips a path whose window is closed.
    fn pick(&mut self, _: &Want, set: &PathSet<'_>) -> Next {
        let open: Vec<PathId> = set.up().filter(|path| set.room(*path) > 0).collect();
        self.turn += 1;
        match open.get(self.turn % open.len().max(1)) {
            Some(path) => Next::By { path: *path, bytes: 0 },
            None => Next::Wait,
        }
    }

    fn spreads(&self) -> bool {
        true
    }
}

const QPN: [u32; 2] = [0x01_0011, 0x02_0022];
pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) fn want(class: Class) -> Want {
    Want { qpn: QPN[0], bytes: 4096, backlog: 4096, asks: false, class }
}

fn ip(link: usize, host: usize) -> IpAddr {
    IpAddr::from([10, 0, link as u8 + 1, host as u8 + 1])
}

/// The addresses that the queue pairs of host 0 are connected with: its own and the peer's.
pub(super) fn ends() -> (IpAddr, IpAddr) {
    (ip(0, 0), ip(0, 1))
}

fn addresses(host: usize, up: [bool; 2]) -> [LocalAddress; 2] {
    [0, 1].map(|link| LocalAddress {
        ip: ip(link, host),
        prefix_len: 24,
        ifindex: link as u32 + 2,
        link_up: up[link],
        usable: true,
        speed_mbps: 0,
    })
}

/// Two managers, joined by two links.
pub(super) struct Pair {
    pub(super) now: Duration,
    pub(super) managers: [PathManager; 2],
    up: [bool; 2],
    events: Vec<PathEvent>,
}

impl Pair {
    pub(super) fn alternating() -> (Self, PeerId) {
        Self::with(|| Box::new(Alternate::default()))
    }

    /// Two managers that have agreed; host 0 has this policy.
    fn with(make: MakePolicy) -> (Self, PeerId) {
        Self::configured(&Config::default(), Some(make))
    }

    /// Two managers with these settings that have agreed; host 0 has the policy, if one is given.
    pub(super) fn configured(config: &Config, make: Option<MakePolicy>) -> (Self, PeerId) {
        let managers = [0, 1].map(|host| {
            let lane = LaneIdentity { instance: host as u64 + 1, slot: host as u8 + 1 };
            let mut manager = PathManager::new(config.clone(), lane, [host as u8; 16]);
            if let (0, Some(make)) = (host, make) {
                manager.set_policy(make);
            }
            manager.set_local(Duration::ZERO, &addresses(host, [true; 2]));
            manager
        });
        let mut pair = Self { now: MS, managers, up: [true; 2], events: Vec::new() };
        let options = PathOptions { multipath: true, ..PathOptions::default() };
        let [peer, _] = [0, 1].map(|host| {
            let (local, remote) = (ip(0, host), ip(0, 1 - host));
            let manager = &mut pair.managers[host];
            manager.attach(MS, QPN[host], QPN[1 - host], local, remote, options).unwrap()
        });
        pair.run(200);
        (pair, peer)
    }

    /// A manager with these settings and a peer that takes plain RoCE only, and the only path to it.
    pub(super) fn plain(config: &Config) -> (PathManager, PeerId, PathId) {
        let lane = LaneIdentity { instance: 1, slot: 1 };
        let mut manager = PathManager::new(config.clone(), lane, [0; 16]);
        manager.set_local(Duration::ZERO, &addresses(0, [true; 2]));
        let (local, remote) = ends();
        let options = PathOptions { multipath: false, ..PathOptions::default() };
        let peer = manager.attach(MS, QPN[0], QPN[1], local, remote, options).unwrap();
        let path = manager.route(peer).unwrap().path;
        (manager, peer, path)
    }

    /// The queue pairs of the first manager's peer are agreed, as after a handshake of each.
    pub(super) fn agree_all(&mut self, peer: PeerId) {
        self.managers[0].peers.get_mut(peer).unwrap().unagreed.clear();
    }

    pub(super) fn run(&mut self, ms: u32) {
        for _ in 0..ms {
            self.now += MS;
            for from in [0, 1] {
                self.managers[from].handle_timeout(self.now);
                while let Some(out) = self.managers[from].poll_transmit(self.now) {
                    let link = (0..2).find(|link| ip(*link, from) == out.address.local).unwrap();
                    if !self.up[link] {
                        continue;
                    }
                    let mut udp = out.packet;
                    udp.extend_from_slice(&[0; 4]);
                    let packet = Packet::parse(&udp).unwrap();
                    let (src, dst) = (out.address.local, out.address.remote);
                    self.managers[1 - from].handle_control(
                        self.now,
                        src,
                        dst,
                        out.address.kind,
                        &packet,
                    );
                }
            }
            while let Some(event) = self.managers[0].poll_event() {
                self.events.push(event);
            }
            self.managers.iter().for_each(|manager| manager.check().unwrap());
        }
    }

    /// The link of a path of host 0 goes down.
    pub(super) fn lose_link_of(&mut self, path: PathId) {
        let of_path = self.managers[0].path(path).unwrap().local;
        let link = (0..2).find(|link| ip(*link, 0) == of_path).unwrap();
        self.up[link] = false;
        self.managers[0].set_local(self.now, &addresses(0, self.up));
        self.run(20);
    }

    /// All links are up again, for long enough that their paths have proved themselves.
    pub(super) fn restore_links(&mut self) {
        self.up = [true; 2];
        self.managers[0].set_local(self.now, &addresses(0, self.up));
        self.run(1500);
    }

    /// Where the next burst of host 0 goes; `None`: it waits.
    pub(super) fn pick(&mut self, peer: PeerId) -> Option<Route> {
        match self.managers[0].pick(peer, &want(Class::Request)) {
            Pick::Route(route) => Some(route),
            Pick::Wait => None,
            Pick::NoPath => panic!("no path lives"),
        }
    }

    /// The links that eight bursts of host 0 use.
    fn links(&mut self, peer: PeerId) -> [usize; 2] {
        let mut count = [0; 2];
        for _ in 0..8 {
            let route = self.pick(peer).unwrap();
            let local = self.managers[0].path(route.path).unwrap().local;
            count[(0..2).find(|link| ip(*link, 0) == local).unwrap()] += 1;
        }
        count
    }
}

#[test]
fn a_policy_may_send_bursts_by_all_paths() {
    let (mut pair, peer) = Pair::alternating();
    assert_eq!(pair.links(peer), [4, 4]);
    // The other side accepts both: the same peer, each path with its own tag.
    for _ in 0..2 {
        let route = pair.pick(peer).unwrap();
        let PathAddress { local, remote, .. } = *pair.managers[0].path(route.path).unwrap();
        let theirs = pair.managers[1].status().peers[0].peer;
        assert!(route.tag.is_some());
        pair.managers[1].classify(theirs, local, remote, PathKind::Udp, route.tag, 64).unwrap();
    }
}

#[test]
fn a_policy_sees_the_windows_and_its_peer_is_woken_by_any_path() {
    let (mut pair, peer) = Pair::alternating();
    let full = pair.pick(peer).unwrap();
    pair.managers[0].sent(pair.now, full.path, full.window);
    let other = pair.pick(peer).unwrap();
    assert_ne!(other.path, full.path);
    assert_eq!(pair.pick(peer).unwrap().path, other.path, "the full one is left out");
    pair.managers[0].sent(pair.now, other.path, other.window);
    assert_eq!(pair.pick(peer), None);
    // Progress on either path wakes the waiting queue pair, once.
    for path in [full, other] {
        pair.managers[0].wake_when_open(peer);
        pair.managers[0].acked(pair.now, path.path, path.window, None);
        assert_eq!(pair.managers[0].poll_event(), Some(PathEvent::WindowOpened { peer }));
        pair.managers[0].sent(pair.now, path.path, path.window);
        pair.managers[0].acked(pair.now, path.path, path.window, None);
        assert_eq!(pair.managers[0].poll_event(), None, "nobody waits");
        pair.managers[0].sent(pair.now, path.path, path.window);
    }
}

#[test]
fn a_question_changes_nothing() {
    let (mut pair, peer) = Pair::alternating();
    let main = pair.managers[0].route(peer).unwrap();
    pair.managers[0].sent(pair.now, main.path, main.window);
    for _ in 0..3 {
        let route = pair.managers[0].route(peer).unwrap();
        assert_eq!((route.path, route.window), (main.path, 0));
        assert_eq!(pair.managers[0].route_of(peer, QPN[0]), Some(route));
    }
    pair.managers[0].acked(pair.now, main.path, main.window, None);
    assert_eq!(pair.managers[0].poll_event(), None, "who only asked is not told");
}

#[test]
fn only_requests_wait_and_only_while_something_is_in_flight() {
    #[derive(Clone, Debug)]
    struct Lazy;
    impl Policy for Lazy {
        fn pick(&mut self, _: &Want, _: &PathSet<'_>) -> Next {
            Next::Wait
        }
    }
    let (mut pair, peer) = Pair::with(|| Box::new(Lazy));
    let main = pair.managers[0].route(peer).unwrap().path;
    assert_eq!(pair.pick(peer).unwrap().path, main, "it would wait for ever");
    pair.managers[0].sent(pair.now, main, 4096);
    assert_eq!(pair.pick(peer), None);
    let members: Vec<PathId> = pair.managers[0].path_ids().collect();
    let other = members.into_iter().find(|path| *path != main).unwrap();
    for (class, path) in [
        (Class::Urgent, main),
        (Class::Answer { asked_by: other }, other),
        (Class::Answer { asked_by: PathId(999) }, main),
    ] {
        let Pick::Route(route) = pair.managers[0].pick(peer, &want(class)) else {
            panic!("{class:?} waits")
        };
        assert_eq!(route.path, path, "{class:?}");
    }
}

#[test]
fn a_path_that_is_not_of_the_set_or_does_not_live_is_not_taken() {
    #[derive(Clone, Debug)]
    struct Stray;
    impl Policy for Stray {
        fn pick(&mut self, want: &Want, _: &PathSet<'_>) -> Next {
            Next::By { path: PathId(want.bytes), bytes: 7 }
        }
    }
    let (mut pair, peer) = Pair::with(|| Box::new(Stray));
    let main = pair.managers[0].route(peer).unwrap().path;
    let other = pair.managers[0].path_ids().find(|path| *path != main).unwrap();
    let mut picked = |path: PathId| {
        let want = Want { bytes: path.0, ..want(Class::Request) };
        match pair.managers[0].pick(peer, &want) {
            Pick::Route(route) => (route.path, route.quantum),
            pick => panic!("{pick:?}"),
        }
    };
    assert_eq!(picked(other), (other, 7));
    assert_eq!(picked(PathId(999)), (main, 7));
    pair.lose_link_of(other);
    let want = Want { bytes: other.0, ..want(Class::Request) };
    let Pick::Route(route) = pair.managers[0].pick(peer, &want) else { panic!() };
    assert_eq!(route.path, main);
}

#[test]
fn a_policy_loses_one_path_and_goes_on_by_the_other() {
    let (mut pair, peer) = Pair::alternating();
    let main = pair.managers[0].route(peer).unwrap().path;
    let main_link =
        (0..2).find(|link| ip(*link, 0) == pair.managers[0].path(main).unwrap().local).unwrap();
    for (link, moves) in [(1 - main_link, false), (main_link, true)] {
        pair.up = [true; 2];
        pair.up[link] = false;
        pair.events.clear();
        let now = pair.now;
        pair.managers[0].set_local(now, &addresses(0, pair.up));
        pair.run(20);
        let mut only = [0; 2];
        only[1 - link] = 8;
        assert_eq!(pair.links(peer), only);
        let dead =
            |e: &PathEvent| matches!(e, PathEvent::PathDead { reason: Reason::LinkDown, .. });
        assert!(pair.events.iter().any(dead), "queue pairs are told to send again");
        let moved = |e: &PathEvent| matches!(e, PathEvent::ActiveChanged { .. });
        assert_eq!(pair.events.iter().any(moved), moves, "only the main path is said to move");
        // The path is back and has proved itself.
        pair.restore_links();
        assert_eq!(pair.links(peer), [4, 4]);
    }
    // No path is left.
    pair.up = [false; 2];
    let now = pair.now;
    pair.managers[0].set_local(now, &addresses(0, pair.up));
    assert_eq!(pair.managers[0].route(peer), None);
    pair.run(1);
    assert!(pair.events.contains(&PathEvent::NoPath { peer }));
}
