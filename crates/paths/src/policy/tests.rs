//! Another policy stands on the same seam: a manager with a toy that uses all paths.

use core::net::IpAddr;
use core::time::Duration;

use super::*;
use crate::config::{LaneIdentity, LocalAddress, PathOptions};
use crate::manager::PathManager;
use crate::types::{PathAddress, PathEvent, Reason};
use polypath_types::PeerId;
use polypath_wire::packet::Packet;

/// Bursts go by all paths that are up, in turn.
#[derive(Clone, Debug)]
pub(crate) struct Alternate {
    main: PathId,
    up: Vec<PathId>,
    turn: usize,
}

impl Policy for Alternate {
    fn main(&self) -> PathId {
        self.main
    }

    /// One whose window is closed is passed over.
    fn pick(&mut self, paths: &Slab<PathId, Path>) -> PathId {
        let open = |path: &PathId| paths.get(*path).is_some_and(|p| p.congestion.room() > 0);
        let open: Vec<PathId> = self.up.iter().copied().filter(open).collect();
        self.turn += 1;
        open.get(self.turn % open.len().max(1)).copied().unwrap_or(self.main)
    }

    fn uses(&self, path: PathId) -> bool {
        self.main == path || self.up.contains(&path)
    }

    fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        let is_up = |path: &PathId| set.state(*path) == Some(PathState::Up);
        self.up = set.members.iter().copied().filter(is_up).collect();
        match self.up.first() {
            None => Choice::NoPath,
            Some(_) if !set.outage && self.up.contains(&self.main) => Choice::Stay,
            Some(first) => Choice::Move(*first),
        }
    }

    fn set_main(&mut self, path: PathId) {
        self.main = path;
    }
}

const QPN: [u32; 2] = [0x01_0011, 0x02_0022];
const MS: Duration = Duration::from_millis(1);

fn ip(link: usize, host: usize) -> IpAddr {
    IpAddr::from([10, 0, link as u8 + 1, host as u8 + 1])
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
struct Pair {
    now: Duration,
    managers: [PathManager; 2],
    up: [bool; 2],
    events: Vec<PathEvent>,
}

impl Pair {
    /// Agreed, and host 0 has the toy.
    fn alternating() -> (Self, PeerId) {
        let managers = [0, 1].map(|host| {
            let lane = LaneIdentity { instance: host as u64 + 1, slot: host as u8 + 1 };
            let mut manager = PathManager::new(Config::default(), lane, [host as u8; 16]);
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
        let p = pair.managers[0].peers.get_mut(peer).unwrap();
        let main = p.policy.main();
        p.policy = AnyPolicy::Alternate(Alternate { main, up: vec![main], turn: 0 });
        pair.run(200);
        (pair, peer)
    }

    fn run(&mut self, ms: u32) {
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
                    self.managers[1 - from].handle_control(self.now, src, dst, &packet);
                }
            }
            while let Some(event) = self.managers[0].poll_event() {
                self.events.push(event);
            }
            self.managers.iter().for_each(|manager| manager.check().unwrap());
        }
    }

    /// The links that eight bursts of host 0 go by.
    fn links(&mut self, peer: PeerId) -> [usize; 2] {
        let mut count = [0; 2];
        for _ in 0..8 {
            let route = self.managers[0].route_of(peer, QPN[0]).unwrap();
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
    // Both are taken from the other side: the same peer, each path with its own tag.
    for _ in 0..2 {
        let route = pair.managers[0].route(peer).unwrap();
        let PathAddress { local, remote, .. } = *pair.managers[0].path(route.path).unwrap();
        let theirs = pair.managers[1].status().peers[0].peer;
        assert!(route.tag.is_some());
        pair.managers[1].classify(theirs, local, remote, route.tag, 64).unwrap();
    }
}

#[test]
fn a_policy_sees_the_windows_and_its_peer_is_woken_by_any_path() {
    let (mut pair, peer) = Pair::alternating();
    let full = pair.managers[0].route(peer).unwrap();
    pair.managers[0].sent(pair.now, full.path, full.window);
    let other = pair.managers[0].route(peer).unwrap();
    assert_ne!(other.path, full.path);
    assert_eq!(pair.managers[0].route(peer).unwrap().path, other.path, "the full one is left out");
    pair.managers[0].sent(pair.now, other.path, other.window);
    assert_eq!(pair.managers[0].route(peer).unwrap().window, 0);
    // Progress on the path that is not the main one wakes who waits.
    let main = pair.managers[0].peers.get(peer).unwrap().policy.main();
    let second = if full.path == main { other } else { full };
    pair.managers[0].route_by(peer, second.path);
    pair.managers[0].acked(pair.now, second.path, second.window, None);
    assert_eq!(pair.managers[0].poll_event(), Some(PathEvent::WindowOpened { peer }));
}

#[test]
fn a_policy_loses_one_path_and_goes_on_by_the_other() {
    let (mut pair, peer) = Pair::alternating();
    let main = pair.managers[0].peers.get(peer).unwrap().policy.main();
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
        // It is back and has proved itself.
        pair.up = [true; 2];
        let now = pair.now;
        pair.managers[0].set_local(now, &addresses(0, pair.up));
        pair.run(1500);
        assert_eq!(pair.links(peer), [4, 4]);
    }
    // None is left.
    pair.up = [false; 2];
    let now = pair.now;
    pair.managers[0].set_local(now, &addresses(0, pair.up));
    assert_eq!(pair.managers[0].route(peer), None);
    pair.run(1);
    assert!(pair.events.contains(&PathEvent::NoPath { peer }));
}
