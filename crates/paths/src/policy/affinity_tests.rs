//! Tests of affinity, with two managers that have agreed on two paths.

use super::AnyPolicy;
use super::tests::{MS, Pair, ends, want};
use crate::config::{AffinityRule, Config, Mode, PathOptions};
use polypath_types::{Class, PathId, PeerId, Pick, Want};

const RULES: [AffinityRule; 2] = [AffinityRule::Hash, AffinityRule::RoundRobin];
/// The queue pairs of most tests.
const MANY: u32 = 64;
/// A receive buffer that does not limit anything.
const WIDE: u32 = 16 << 20;

/// Two managers with this rule, and the paths of host 0: the main one and the other.
fn keeping(rule: AffinityRule, receive_window: u32) -> (Pair, PeerId, [PathId; 2]) {
    let mode = Mode::Affinity(rule);
    let (pair, peer) =
        Pair::configured(&Config { mode, receive_window, ..Config::default() }, None);
    let main = pair.managers[0].route(peer).unwrap().path;
    let other = pair.managers[0].path_ids().find(|path| *path != main).unwrap();
    (pair, peer, [main, other])
}

/// The number of the n-th queue pair of host 0.
fn number(n: u32) -> u32 {
    0x01_0100 + n
}

impl Pair {
    /// The answer to the n-th queue pair of host 0.
    fn answer(&mut self, peer: PeerId, n: u32, class: Class) -> Pick {
        self.managers[0].pick(peer, &Want { qpn: number(n), ..want(class) })
    }

    fn path_of(&mut self, peer: PeerId, n: u32) -> PathId {
        match self.answer(peer, n, Class::Request) {
            Pick::Route(route) => route.path,
            pick => panic!("queue pair {n}: {pick:?}"),
        }
    }

    /// The path of each of so many queue pairs.
    fn paths_of(&mut self, peer: PeerId, count: u32) -> Vec<PathId> {
        (0..count).map(|n| self.path_of(peer, n)).collect()
    }

    /// The number of queue pairs that the policy of host 0 keeps something of.
    fn known(&self, peer: PeerId) -> usize {
        match &self.managers[0].peers.get(peer).unwrap().policy {
            AnyPolicy::Affinity(policy) => policy.known(),
            policy => panic!("{policy:?}"),
        }
    }
}

#[test]
fn queue_pairs_are_spread_evenly_over_the_paths() {
    for (rule, share) in [(AffinityRule::Hash, 22..=42), (AffinityRule::RoundRobin, 32..=32)] {
        let (mut pair, peer, [main, _]) = keeping(rule, WIDE);
        let paths = pair.paths_of(peer, MANY);
        let on_main = paths.iter().filter(|path| **path == main).count();
        assert!(share.contains(&on_main), "{rule:?}: {on_main} of {MANY} on the main path");
    }
}

#[test]
fn shares_stay_equal_when_queue_pairs_come_and_go() {
    let (mut pair, peer, [main, _]) = keeping(AffinityRule::RoundRobin, WIDE);
    let before = pair.paths_of(peer, 8);
    // All of one path end.
    let gone = (0..8).filter(|n| before[*n as usize] == main).collect::<Vec<_>>();
    assert_eq!(gone.len(), 4);
    for n in &gone {
        pair.managers[0].peers.get_mut(peer).unwrap().policy.forget(number(*n));
    }
    let later: Vec<_> = (8..12).map(|n| pair.path_of(peer, n)).collect();
    assert_eq!(later, [main; 4], "the path that has lost its queue pairs");
    let then: Vec<_> = (12..14).map(|n| pair.path_of(peer, n)).collect();
    assert_ne!(then[0], then[1], "then in turn again");
}

#[test]
fn a_queue_pair_keeps_to_an_interface_while_that_carries() {
    let (mut pair, peer, paths) = keeping(AffinityRule::Hash, WIDE);
    for path in paths {
        let ifindex = pair.managers[0].path(path).unwrap().ifindex;
        let by = |pair: &mut Pair| {
            let set = Mode::Affinity(AffinityRule::Interface(ifindex));
            pair.managers[0].peers.get_mut(peer).unwrap().policy = AnyPolicy::of(set);
            pair.paths_of(peer, MANY)
        };
        assert!(by(&mut pair).iter().all(|other| *other == path));
        pair.lose_link_of(path);
        assert!(by(&mut pair).iter().all(|other| *other != path), "another one meanwhile");
        pair.restore_links();
        assert!(by(&mut pair).iter().all(|other| *other == path), "and it returns");
    }
}

#[test]
fn the_loss_of_a_path_moves_only_its_queue_pairs_and_its_return_brings_them_back() {
    for rule in RULES {
        for lost in [0, 1] {
            let (mut pair, peer, paths) = keeping(rule, WIDE);
            let before = pair.paths_of(peer, MANY);
            pair.lose_link_of(paths[lost]);
            let without = pair.paths_of(peer, MANY);
            assert!(without.iter().all(|path| *path == paths[1 - lost]), "{rule:?}: {without:?}");
            pair.restore_links();
            assert_eq!(pair.paths_of(peer, MANY), before, "{rule:?}, path {lost}");
        }
    }
}

#[test]
fn a_queue_pair_keeps_its_path_whatever_it_sends_and_whoever_comes_and_goes() {
    for rule in RULES {
        let (mut pair, peer, _) = keeping(rule, WIDE);
        let before = pair.paths_of(peer, MANY);
        for round in 0..20 {
            for n in 0..MANY {
                let path = pair.path_of(peer, n);
                assert_eq!(path, before[n as usize], "{rule:?}, round {round}, queue pair {n}");
                pair.managers[0].sent(pair.now, path, 64 * n);
                pair.managers[0].acked(pair.now, path, 64 * n, Some(MS));
            }
            pair.path_of(peer, 1000 + round);
            pair.run(1);
        }
    }
}

#[test]
fn a_queue_pair_waits_for_its_path_and_uses_no_other() {
    for rule in RULES {
        let (mut pair, peer, _) = keeping(rule, WIDE);
        let path = pair.path_of(peer, 0);
        let window = pair.managers[0].path_window(path);
        pair.managers[0].sent(pair.now, path, window);
        for class in [Class::Request, Class::Urgent] {
            let Pick::Route(route) = pair.answer(peer, 0, class) else { panic!("{class:?}") };
            assert_eq!((route.path, route.window), (path, 0), "{rule:?}, {class:?}");
        }
    }
}

#[test]
fn answers_use_the_path_that_they_were_asked_by_and_take_no_turn() {
    for rule in RULES {
        let (mut pair, peer, paths) = keeping(rule, WIDE);
        for asked_by in paths {
            let answer = pair.answer(peer, 0, Class::Answer { asked_by });
            assert!(matches!(answer, Pick::Route(route) if route.path == asked_by), "{answer:?}");
        }
        assert_eq!(pair.known(peer), 0);
    }
}

#[test]
fn all_paths_together_send_no_more_than_the_peer_takes() {
    const BUFFER: u32 = 96 << 10;
    let (mut pair, peer, _) = keeping(AffinityRule::RoundRobin, BUFFER);
    let mut sent = 0;
    for n in [0, 1].into_iter().cycle() {
        match pair.answer(peer, n, Class::Request) {
            Pick::Route(route) if route.window >= 4096 => {
                pair.managers[0].sent(pair.now, route.path, 4096);
                sent += 4096;
            }
            pick => {
                assert_eq!(pick, Pick::Wait);
                break;
            }
        }
    }
    assert!((BUFFER - 4096..=BUFFER).contains(&sent), "{sent}");
    assert!(matches!(pair.answer(peer, 0, Class::Urgent), Pick::Route(_)), "it does not wait");
}

#[test]
fn a_queue_pair_that_is_gone_is_forgotten() {
    let (mut pair, peer, _) = keeping(AffinityRule::RoundRobin, WIDE);
    let (local, remote) = ends();
    let options = PathOptions { multipath: true, ..PathOptions::default() };
    for n in 0..MANY {
        let of_peer = pair.managers[0]
            .attach(pair.now, number(n), 0x02_0022, local, remote, options)
            .unwrap();
        assert_eq!(of_peer, peer);
    }
    pair.paths_of(peer, MANY);
    assert_eq!(pair.known(peer), 0, "they are not agreed");
    pair.agree_all(peer);
    pair.paths_of(peer, MANY);
    assert_eq!(pair.known(peer), MANY as usize);
    for n in 0..MANY {
        pair.managers[0].detach(pair.now, number(n));
    }
    assert_eq!(pair.known(peer), 0);
}
