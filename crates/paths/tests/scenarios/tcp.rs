//! Paths over TCP, beside those over UDP and in place of them.

use std::time::Duration;

use polypath_paths::*;

use crate::net::*;
use crate::*;

const WINDOW: u32 = 1 << 20;

fn config(tcp: bool) -> Config {
    Config { tcp_window: if tcp { WINDOW } else { 0 }, ..Config::default() }
}

fn connected(seed: u64, links: usize, configs: [Config; 2]) -> Net {
    let mut net = Net::with(seed, links, configs);
    net.connect();
    net.run(Duration::from_secs(1));
    assert!(net.agreed(), "seed {seed}");
    net
}

fn tcp_paths(net: &Net, host: usize) -> Vec<PathStatus> {
    let peers = net.hosts[host].paths.status().peers;
    peers.into_iter().flat_map(|p| p.paths).filter(|p| p.address.kind.is_tcp()).collect()
}

fn active_is_tcp(net: &Net, host: usize) -> bool {
    let paths = &net.hosts[host].paths;
    let route = net.hosts[host].peer.and_then(|peer| paths.route(peer));
    let address = route.and_then(|route| paths.path(route.path).copied());
    address.is_some_and(|address| address.kind.is_tcp())
}

fn ends(host: usize) -> StreamEnds {
    StreamEnds { local: ip(0, host), remote: ip(0, 1 - host), slot: 2 - host as u8 }
}

/// Both ends of the stream end, as when a firewall resets it.
fn reset(net: &mut Net) {
    for host in 0..2 {
        net.hosts[host].paths.set_stream(net.now, ends(host), false);
    }
}

#[test]
fn data_moves_to_tcp_when_udp_is_blocked_and_back_when_it_passes() {
    for seed in 0..SEEDS {
        let mut net = connected(seed, 1, [config(true), config(true)]);
        for host in 0..2 {
            let [tcp] = &tcp_paths(&net, host)[..] else { panic!("seed {seed}") };
            assert_eq!(tcp.state, PathState::Up, "seed {seed}");
        }
        net.start_traffic();
        for _ in 0..2 {
            net.run(Duration::from_secs(1));
            assert!((0..2).all(|host| !active_is_tcp(&net, host)), "seed {seed}");
            net.udp_blocked = true;
            net.run(Duration::from_secs(1));
            assert!((0..2).all(|host| active_is_tcp(&net, host)), "seed {seed}");
            net.udp_blocked = false;
            net.run(Duration::from_secs(2));
        }
        assert!((0..2).all(|host| !active_is_tcp(&net, host)), "seed {seed}");
        for host in &net.hosts {
            assert!(
                host.acked > 1000 && host.worst_gap < 200 * MS,
                "seed {seed}: {:?}",
                host.worst_gap
            );
        }
        net.assert_same_paths();
    }
}

#[test]
fn a_handshake_goes_by_tcp_if_udp_never_passes() {
    for seed in 0..SEEDS {
        let mut net = Net::with(seed, 1, [config(true), config(true)]);
        net.udp_blocked = true;
        net.connect();
        net.start_traffic();
        net.run(Duration::from_secs(2));
        assert!(net.agreed(), "seed {seed}");
        assert!((0..2).all(|host| active_is_tcp(&net, host)), "seed {seed}");
        net.reset_gaps();
        net.run(Duration::from_secs(1));
        assert!(net.hosts.iter().all(|h| h.worst_gap < 50 * MS), "seed {seed}");
        net.udp_blocked = false;
        net.run(Duration::from_secs(2));
        assert!((0..2).all(|host| !active_is_tcp(&net, host)), "seed {seed}");
    }
}

#[test]
fn one_end_alone_has_no_tcp() {
    for can in [[true, false], [false, true], [false, false]] {
        let net = connected(3, 2, can.map(config));
        for host in 0..2 {
            assert_eq!(tcp_paths(&net, host).len(), 0, "{can:?}");
            assert!(!net.has(host, |e| matches!(e, PathEvent::StreamWanted { .. })), "{can:?}");
        }
    }
}

#[test]
fn a_stream_that_ends_takes_its_path_down_at_once_and_is_made_again() {
    for seed in 0..SEEDS {
        let mut net = connected(seed, 1, [config(true), config(true)]);
        net.udp_blocked = true;
        net.start_traffic();
        net.run(Duration::from_secs(1));
        net.tcp.cut = [true, true];
        reset(&mut net);
        for host in 0..2 {
            let states: Vec<_> =
                tcp_paths(&net, host).iter().map(|p| (p.state, p.reason)).collect();
            assert_eq!(states, [(PathState::Down, Some(Reason::LinkDown))], "seed {seed}");
        }
        net.run(3 * Duration::from_secs(1));
        net.tcp.cut = [false, false];
        net.run(3 * Duration::from_secs(1));
        assert!((0..2).all(|host| active_is_tcp(&net, host)), "seed {seed}");
        net.reset_gaps();
        net.run(Duration::from_secs(1));
        assert!(net.hosts.iter().all(|h| h.worst_gap < 50 * MS), "seed {seed}");
    }
}

#[test]
fn either_end_may_be_the_one_that_can_connect() {
    for only in 0..2 {
        let mut net = Net::with(1, 1, [config(true), config(true)]);
        net.tcp.cut = [true, true];
        net.connect();
        net.run(100 * MS);
        // Only one of them can call the other: `cut` is by the caller, until it has.
        net.tcp.cut[only] = false;
        net.run(Duration::from_secs(4));
        net.tcp.cut = [false, false];
        assert!(net.hosts.iter().all(|h| !h.paths.alive().count().eq(&0)));
        net.run(Duration::from_secs(1));
        assert!((0..2).all(|h| tcp_paths(&net, h)[0].state == PathState::Up), "{only}");
    }
}

#[test]
fn strangers_and_repetitions_open_no_stream() {
    let mut net = connected(5, 1, [config(true), config(true)]);
    // What the right one says is taken once.
    reset(&mut net);
    let opening = net.hosts[0].paths.stream_opening(net.now, ends(0)).unwrap();
    let callee = &mut net.hosts[1].paths;
    for at in 0..opening.len() {
        let mut bent = opening.clone();
        bent[at] ^= 1;
        // P_Key and PSN are no part of what is authenticated.
        let counts = at == 0 || at > 4 && !(8..12).contains(&at);
        assert!(!counts || !callee.accept_stream(net.now, ends(1), &bent), "byte {at}");
    }
    for len in 0..opening.len() {
        assert!(!callee.accept_stream(net.now, ends(1), &opening[..len]), "{len} bytes");
    }
    for wrong in [
        StreamEnds { slot: 9, ..ends(1) },
        StreamEnds { remote: ip(3, 0), ..ends(1) },
        StreamEnds { local: ip(3, 1), ..ends(1) },
    ] {
        assert!(!callee.accept_stream(net.now, wrong, &opening), "{wrong:?}");
    }
    assert!(callee.accept_stream(net.now, ends(1), &opening));
    assert!(!callee.accept_stream(net.now, ends(1), &opening), "a repetition");
}

#[test]
fn a_hello_opens_a_stream_only_where_there_is_none() {
    let mut net = Net::with(6, 1, [config(true), config(true)]);
    net.udp_blocked = true;
    net.tcp.cut = [true, true];
    net.connect();
    net.run(20 * MS);
    let opening = net.hosts[0].paths.stream_opening(net.now, ends(0)).unwrap();
    let callee = &mut net.hosts[1].paths;
    let wrong = StreamEnds { remote: ip(0, 7), ..ends(1) };
    assert!(!callee.accept_stream(net.now, wrong, &opening), "no queue pair has these addresses");
    assert!(callee.accept_stream(net.now, ends(1), &opening));
    callee.set_stream(net.now, ends(1), true);
    assert!(!callee.accept_stream(net.now, ends(1), &opening), "it must not replace a stream");
}

#[test]
fn other_paths_are_preferred_under_every_policy() {
    use AffinityRule::{Hash, RoundRobin};
    for mode in [
        Mode::ActiveBackup,
        Mode::Balance,
        Mode::Redundant,
        Mode::Efficient,
        Mode::Affinity(Hash),
        Mode::Affinity(RoundRobin),
    ] {
        let on = Config { mode, ..config(true) };
        let mut net = connected(8, 2, [on.clone(), on]);
        net.start_traffic();
        net.run(Duration::from_secs(1));
        let sent = |net: &Net| -> u64 {
            (0..2).flat_map(|h| tcp_paths(net, h)).map(|p| p.counters.sent_bytes).sum()
        };
        assert_eq!((tcp_paths(&net, 0).len(), sent(&net)), (2, 0), "{mode:?}");
        net.udp_blocked = true;
        net.run(Duration::from_secs(1));
        let before = sent(&net);
        assert!(before > 100_000, "{mode:?}");
        assert!(net.hosts.iter().all(|h| h.worst_gap < 300 * MS), "{mode:?}");
        net.udp_blocked = false;
        net.run(Duration::from_secs(2));
        let after = sent(&net);
        net.run(Duration::from_secs(1));
        assert_eq!(sent(&net), after, "{mode:?}");
    }
}

#[test]
fn it_takes_the_room_that_pairs_and_ports_leave_and_at_least_one_place() {
    for (links, ports, expected) in [(1, 1, 1), (2, 1, 2), (2, 3, 2), (1, 8, 1), (8, 1, 1)] {
        let on = Config { ports, ..config(true) };
        let net = connected(9, links, [on.clone(), on]);
        let all = net.paths(0).len();
        let wanted = (links * usize::from(ports) + expected).min(MAX_PATHS);
        assert_eq!((tcp_paths(&net, 0).len(), all), (expected, wanted), "{links} {ports}");
        net.assert_same_paths();
    }
}

#[test]
fn a_setting_takes_it_down_and_up() {
    let mut net = connected(10, 1, [config(true), config(true)]);
    let on = Usage::of(net.hosts[0].paths.config());
    let off = Usage { tcp: false, ..on.clone() };
    net.hosts[0].paths.set_usage(net.now, &off);
    net.run(Duration::from_secs(1));
    let state = |net: &Net, host| tcp_paths(net, host).iter().map(|p| p.state).collect::<Vec<_>>();
    assert_eq!(state(&net, 0), [PathState::Down]);
    assert_ne!(state(&net, 1), [PathState::Up]);
    net.hosts[0].paths.set_usage(net.now, &on);
    net.run(Duration::from_secs(2));
    assert!((0..2).all(|host| state(&net, host) == [PathState::Up]));
}
