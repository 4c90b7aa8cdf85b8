//! Policies change while queue pairs send.

use super::tests::{Pair, ends, want};
use crate::config::{AffinityRule, Config, Mode, PathOptions, PeerMode, Usage};
use crate::types::PathEvent;
use polypath_types::{Class, PathId, PeerId, Pick, Want};

const QPN: u32 = 0x01_0011;
const OTHER_QPN: u32 = 0x01_0012;

fn usage(mode: Mode) -> Usage {
    Usage { mode, ..Usage::of(&Config::default()) }
}

fn pair(mode: Mode) -> (Pair, PeerId) {
    Pair::configured(&Config { mode, ..Config::default() }, None)
}

fn set(pair: &mut Pair, usage: &Usage) {
    pair.managers[0].set_usage(pair.now, usage);
    assert_eq!(pair.managers[0].check(), Ok(()));
}

/// The path of the next burst of a queue pair; `None` if it has to wait.
fn path_of(pair: &mut Pair, peer: PeerId, qpn: u32) -> Option<PathId> {
    match pair.managers[0].pick(peer, &Want { qpn, ..want(Class::Request) }) {
        Pick::Route(route) => Some(route.path),
        Pick::Wait => None,
        Pick::NoPath => panic!("no path lives"),
    }
}

/// Another queue pair of host 0 to the same peer.
fn attach_other(pair: &mut Pair, peer: PeerId) {
    let options = PathOptions { multipath: true, ..PathOptions::default() };
    let (local, remote) = ends();
    let manager = &mut pair.managers[0];
    manager.attach(pair.now, OTHER_QPN, 0x02_0023, local, remote, options).unwrap();
    pair.agree_all(peer);
}

#[test]
fn a_queue_pair_that_waits_for_a_full_path_is_woken_by_a_policy_that_knows_another() {
    let (mut pair, peer) = pair(Mode::ActiveBackup);
    let route = pair.pick(peer).unwrap();
    pair.managers[0].sent(pair.now, route.path, route.window);
    assert_eq!(pair.pick(peer).unwrap().window, 0);
    pair.managers[0].wake_when_open(peer);
    set(&mut pair, &usage(Mode::Balance));
    assert_eq!(pair.managers[0].poll_event(), Some(PathEvent::WindowOpened { peer }));
    let other = pair.pick(peer).unwrap();
    assert!(other.path != route.path && other.window > 0);
    // What is in flight on the first path is still counted there, and comes back.
    assert_eq!(pair.managers[0].in_flight(route.path), Some(route.window));
    set(&mut pair, &usage(Mode::ActiveBackup));
    assert_eq!(pair.managers[0].poll_event(), None, "nobody waits");
    pair.managers[0].acked(pair.now, route.path, route.window, None);
    assert_eq!(pair.managers[0].in_flight(route.path), Some(0));
}

/// A policy that is chosen later chooses its main path at once, as if it had been chosen first.
#[test]
fn another_policy_chooses_the_main_path_anew() {
    let (mut pair, peer) = pair(Mode::ActiveBackup);
    let main = pair.managers[0].route(peer).unwrap().path;
    let ifindex = pair.managers[0].path(main).unwrap().ifindex;
    let dear = |mode| {
        let config = Config { costs: vec![(ifindex, 10)], ..Config::default() };
        Usage { mode, ..Usage::of(&config) }
    };
    set(&mut pair, &dear(Mode::ActiveBackup));
    assert_eq!(pair.managers[0].route(peer).unwrap().path, main, "costs do not matter to it");
    set(&mut pair, &dear(Mode::Efficient));
    assert_ne!(pair.managers[0].route(peer).unwrap().path, main, "the cheaper path");
}

#[test]
fn a_longer_hold_time_counts_for_an_outage_that_is_not_over() {
    use core::time::Duration;
    let lost = |hold: u64| {
        let (mut pair, peer) = pair(Mode::ActiveBackup);
        pair.managers[0].set_local(pair.now, &[]);
        let hold = Duration::from_secs(hold);
        set(&mut pair, &Usage { hold, ..usage(Mode::ActiveBackup) });
        let mut lost = None;
        while lost.is_none() {
            while let Some(event) = pair.managers[0].poll_event() {
                if event == (PathEvent::PeerLost { peer }) {
                    lost = Some(pair.now);
                }
            }
            pair.now = pair.managers[0].next_deadline().unwrap().max(pair.now);
            let now = pair.now;
            pair.managers[0].handle_timeout(now);
            while pair.managers[0].poll_transmit(now).is_some() {}
        }
        lost.unwrap()
    };
    let (short, long) = (lost(2), lost(3600));
    assert_eq!(long - short, Duration::from_secs(3598));
}

#[test]
fn the_same_usage_again_changes_nothing_and_wakes_nobody() {
    let mode = Mode::Affinity(AffinityRule::RoundRobin);
    let (mut pair, peer) = pair(mode);
    attach_other(&mut pair, peer);
    let paths = [QPN, OTHER_QPN].map(|qpn| path_of(&mut pair, peer, qpn).unwrap());
    assert_ne!(paths[0], paths[1], "they take turns");
    pair.managers[0].wake_when_open(peer);
    // Another setting changes, and the policy stays: the turns are kept.
    let updelay = pair.now;
    set(&mut pair, &Usage { updelay, ..usage(mode) });
    assert_eq!(pair.managers[0].poll_event(), None);
    let again = [OTHER_QPN, QPN].map(|qpn| path_of(&mut pair, peer, qpn).unwrap());
    assert_eq!([again[1], again[0]], paths);
    // Another policy and back: they are dealt anew, in the order in which they send now.
    set(&mut pair, &usage(Mode::Balance));
    set(&mut pair, &usage(mode));
    let anew = [OTHER_QPN, QPN].map(|qpn| path_of(&mut pair, peer, qpn).unwrap());
    assert_eq!(anew, paths);
}

#[test]
fn a_queue_pair_has_a_policy_of_its_own_until_that_is_taken_back() {
    let (mut pair, peer) = pair(Mode::ActiveBackup);
    attach_other(&mut pair, peer);
    let main = path_of(&mut pair, peer, QPN).unwrap();
    let room = pair.pick(peer).unwrap().window;
    pair.managers[0].sent(pair.now, main, room);
    let mut own = usage(Mode::ActiveBackup);
    own.queue_pairs.insert(OTHER_QPN, Mode::Balance);
    set(&mut pair, &own);
    assert_eq!(path_of(&mut pair, peer, QPN), Some(main), "its own policy is its peer's");
    assert_ne!(path_of(&mut pair, peer, OTHER_QPN), Some(main), "the main path is full");
    let modes = |pair: &Pair| [QPN, OTHER_QPN].map(|qpn| pair.managers[0].own_mode(qpn));
    assert_eq!(modes(&pair), [None, Some(Mode::Balance)]);
    let brief = pair.managers[0].peers_from(peer).next().unwrap();
    assert!(brief.spreads && brief.mode == Some(Mode::ActiveBackup));
    set(&mut pair, &usage(Mode::ActiveBackup));
    assert_eq!(path_of(&mut pair, peer, OTHER_QPN), Some(main));
    // It is kept by the number: a queue pair that comes later has it, and one that goes leaves nothing.
    set(&mut pair, &own);
    pair.managers[0].detach(pair.now, OTHER_QPN);
    assert_eq!((modes(&pair), pair.managers[0].check()), ([None, None], Ok(())));
    attach_other(&mut pair, peer);
    assert_eq!(modes(&pair), [None, Some(Mode::Balance)]);
}

#[test]
fn the_first_subnet_with_the_address_of_a_peer_says_its_policy() {
    let (mut pair, peer) = pair(Mode::ActiveBackup);
    let rule = |ip: &str, prefix_len, mode| PeerMode { ip: ip.parse().unwrap(), prefix_len, mode };
    let (_, remote) = ends();
    let here = remote.to_string();
    let affinity = Mode::Affinity(AffinityRule::Hash);
    let mut mode = |peers: &[PeerMode]| {
        set(&mut pair, &Usage { peers: peers.to_vec(), ..usage(Mode::ActiveBackup) });
        pair.managers[0].peers_from(peer).next().unwrap().mode.unwrap()
    };
    assert_eq!(mode(&[rule(&here, 32, affinity), rule("0.0.0.0", 0, Mode::Balance)]), affinity);
    assert_eq!(
        mode(&[rule("10.9.9.9", 32, affinity), rule(&here, 24, Mode::Balance)]),
        Mode::Balance
    );
    assert_eq!(mode(&[rule("::", 0, Mode::Balance)]), Mode::ActiveBackup);
    // Later peers follow the rules, too.
    let later = [rule("10.0.1.0", 24, Mode::Balance)];
    let mut usage = usage(Mode::ActiveBackup);
    usage.peers = later.to_vec();
    set(&mut pair, &usage);
    let (local, options) = (ends().0, PathOptions { multipath: true, ..PathOptions::default() });
    for (host, expected) in [([10, 0, 1, 77], Mode::Balance), ([10, 0, 2, 77], Mode::ActiveBackup)]
    {
        let qpn = 0x01_0100 + u32::from(host[2]);
        let manager = &mut pair.managers[0];
        let peer = manager.attach(pair.now, qpn, 0x05_0001, local, host.into(), options).unwrap();
        assert_eq!(manager.peers_from(peer).next().unwrap().mode, Some(expected));
    }
}

#[test]
fn a_policy_from_outside_stays_and_single_queue_pairs_may_leave_it() {
    let (mut pair, peer) = Pair::alternating();
    let mut own = usage(Mode::Balance);
    own.queue_pairs.insert(QPN, Mode::ActiveBackup);
    let main = pair.managers[0].route(peer).unwrap().path;
    set(&mut pair, &usage(Mode::Balance));
    let paths = |pair: &mut Pair| [0; 2].map(|_| path_of(pair, peer, QPN).unwrap());
    let alternating = paths(&mut pair);
    assert_ne!(alternating[0], alternating[1]);
    set(&mut pair, &own);
    assert_eq!(paths(&mut pair), [main; 2]);
}

#[test]
fn another_primary_moves_the_main_path_at_once() {
    let (mut pair, peer) = pair(Mode::ActiveBackup);
    let main = pair.managers[0].route(peer).unwrap().path;
    let other = pair.managers[0].path_ids().find(|path| *path != main).unwrap();
    let address = *pair.managers[0].path(other).unwrap();
    let primary = Some(crate::config::Primary::Interface(address.ifindex));
    set(&mut pair, &Usage { primary, ..usage(Mode::ActiveBackup) });
    assert_eq!(pair.managers[0].route(peer).unwrap().path, other);
}
