//! Paths through shared memory, beside those over UDP.

use std::time::Duration;

use polypath_paths::*;

use crate::net::*;
use crate::*;

const WINDOW: u32 = 100 << 10;

fn config(local: bool) -> Config {
    Config { local_window: if local { WINDOW } else { 0 }, ..Config::default() }
}

/// Two lanes of one host, connected over two links. `can`: which of them can share memory.
fn one_host(seed: u64, can: [bool; 2]) -> Net {
    let mut net = Net::with(seed, 2, can.map(config));
    for host in 0..2 {
        // Each knows the other's addresses as its host's, and does not use them itself.
        let others = net.hosts[1 - host].local.iter().take(2);
        let others: Vec<_> = others.map(|a| LocalAddress { usable: false, ..*a }).collect();
        net.hosts[host].local.extend(others);
        net.tell_local(host);
    }
    net.connect();
    net.run(50 * MS);
    assert!(net.agreed(), "seed {seed}");
    net
}

/// Gives both lanes their end of a channel, as the broker does, or takes it away.
fn channel(net: &mut Net, there: bool) {
    for host in 0..2 {
        net.hosts[host].paths.set_channel(net.now, 2 - host as u8, there);
    }
    net.run(MS);
}

/// Two lanes with a channel, which one of them has asked for.
fn joined(seed: u64) -> Net {
    let mut net = one_host(seed, [true, true]);
    assert_eq!(wanted(&net), 1, "seed {seed}");
    channel(&mut net, true);
    net.run(50 * MS);
    assert!((0..2).all(|host| active_is_local(&net, host)), "seed {seed}");
    net
}

fn wanted(net: &Net) -> usize {
    let asks = |e: &PathEvent| matches!(e, PathEvent::ChannelWanted { .. });
    (0..2).map(|host| net.count(host, asks)).sum()
}

fn is_local(address: &PathAddress) -> bool {
    matches!(address.kind, PathKind::Local { .. })
}

fn active_is_local(net: &Net, host: usize) -> bool {
    let paths = &net.hosts[host].paths;
    let route = net.hosts[host].peer.and_then(|peer| paths.route(peer));
    route.and_then(|route| paths.path(route.path)).is_some_and(is_local)
}

fn local_paths(net: &Net, host: usize) -> Vec<PathStatus> {
    let peers = net.hosts[host].paths.status().peers;
    peers.into_iter().flat_map(|p| p.paths).filter(|p| is_local(&p.address)).collect()
}

#[test]
fn memory_is_preferred_and_its_window_is_that_of_the_ring() {
    for seed in 0..SEEDS {
        let mut net = joined(seed);
        net.start_traffic();
        net.run(500 * MS);
        for host in 0..2 {
            assert!(active_is_local(&net, host), "seed {seed}");
            assert!(net.hosts[host].acked > 1000, "seed {seed}: {}", net.hosts[host].acked);
            let [local] = &local_paths(&net, host)[..] else { panic!("seed {seed}") };
            assert!(local.window <= WINDOW, "seed {seed}: {}", local.window);
            // Round trips of some microseconds make nobody suspicious.
            assert_eq!(local.counters.given_up, 0, "seed {seed}");
        }
        assert_eq!(net.up_paths(0), 3, "seed {seed}: the links are still there");
        net.assert_same_paths();
    }
}

#[test]
fn no_channel_is_wanted_unless_both_can_use_it_and_are_on_one_host() {
    for can in [[true, false], [false, true], [false, false]] {
        let mut net = one_host(1, can);
        assert_eq!(wanted(&net), 0, "{can:?}");
        channel(&mut net, true);
        net.run(100 * MS);
        assert_eq!(local_paths(&net, 0).len() + local_paths(&net, 1).len(), 0, "{can:?}");
    }
    let mut net = Net::with(1, 2, [config(true), config(true)]);
    net.connect();
    net.run(100 * MS);
    assert!(net.agreed());
    assert_eq!(wanted(&net), 0, "two hosts");
}

#[test]
fn if_nobody_gives_a_channel_the_links_are_used() {
    let mut net = one_host(2, [true, true]);
    net.start_traffic();
    net.run(Duration::from_secs(2));
    assert_eq!(wanted(&net), 1, "asked once");
    assert_eq!((net.up_paths(0), net.deaths()), (2, 0));
    assert!(net.hosts[0].acked > 100);
}

#[test]
fn memory_is_asked_for_again_when_an_end_has_left_the_host_and_come_back() {
    for leaver in 0..2 {
        let mut net = joined(4);
        net.start_traffic();
        let here = net.hosts[leaver].local.clone();
        let without_links = here.iter().map(|a| LocalAddress { usable: false, ..*a });
        net.hosts[leaver].local = without_links.collect();
        net.tell_local(leaver);
        channel(&mut net, false);
        net.hosts[leaver].paths.left_host();
        net.run(Duration::from_secs(1));
        assert_eq!(wanted(&net), 1, "{leaver}: it is away");
        net.hosts[leaver].local = here;
        net.tell_local(leaver);
        net.run(Duration::from_secs(1));
        assert!(wanted(&net) > 1, "{leaver}");
        channel(&mut net, true);
        net.run(Duration::from_secs(1));
        assert!((0..2).all(|host| active_is_local(&net, host)), "{leaver}");
    }
}

#[test]
fn a_channel_that_only_one_end_has_carries_nothing() {
    for host in 0..2 {
        let mut net = one_host(3, [true, true]);
        net.start_traffic();
        net.hosts[host].paths.set_channel(net.now, 2 - host as u8, true);
        net.run(Duration::from_secs(1));
        assert!((0..2).all(|host| !active_is_local(&net, host)));
        assert!(net.hosts.iter().all(|h| h.acked > 100 && h.worst_gap < 20 * MS));
        // It comes late.
        channel(&mut net, true);
        net.run(Duration::from_secs(3));
        assert!((0..2).all(|host| active_is_local(&net, host)), "{host}");
    }
}

#[test]
fn traffic_goes_on_over_the_links_when_the_channel_is_over_and_comes_back_with_another() {
    for seed in 0..SEEDS {
        let mut net = joined(seed);
        net.start_traffic();
        net.run(100 * MS);
        net.reset_gaps();
        channel(&mut net, false);
        net.run(300 * MS);
        assert!((0..2).all(|host| local_paths(&net, host).is_empty()), "seed {seed}");
        channel(&mut net, true);
        net.run(Duration::from_secs(1));
        assert!((0..2).all(|host| active_is_local(&net, host)), "seed {seed}");
        for host in 0..2 {
            let gap = net.hosts[host].worst_gap;
            assert!(gap < 30 * MS, "seed {seed}: {gap:?}");
        }
    }
}

#[test]
fn a_silent_ring_is_given_up_like_a_silent_link() {
    for seed in 0..SEEDS {
        for cut in [[true, true], [true, false], [false, true]] {
            let mut net = joined(seed);
            net.start_traffic();
            net.run(100 * MS);
            net.reset_gaps();
            net.memory.cut = cut;
            net.run(400 * MS);
            assert!((0..2).all(|host| !active_is_local(&net, host)), "seed {seed} {cut:?}");
            net.memory.cut = [false, false];
            net.run(Duration::from_secs(2));
            assert!((0..2).all(|host| active_is_local(&net, host)), "seed {seed} {cut:?}");
            for host in 0..2 {
                let gap = net.hosts[host].worst_gap;
                assert!(gap < 200 * MS, "seed {seed} {cut:?}: {gap:?}");
            }
        }
    }
}

#[test]
fn a_setting_takes_it_down_and_up_and_so_does_the_administrator() {
    let mut net = joined(5);
    net.start_traffic();
    let config = net.hosts[0].paths.config().clone();
    let on = Usage::of(&config);
    let off = Usage { local: false, ..on.clone() };
    let pair = DownRule { local: Some(ip(0, 0)), remote: Some(ip(0, 1)) };
    for round in 0..3 {
        for down in [true, false] {
            let paths = &mut net.hosts[0].paths;
            match round {
                0 => paths.set_usage(net.now, if down { &off } else { &on }),
                // The link between the same addresses goes down with it; the other one does not.
                1 => paths.set_down(net.now, if down { core::slice::from_ref(&pair) } else { &[] }),
                _ => paths.set_usage(net.now, if down { &off } else { &on }),
            }
            net.run(Duration::from_secs(1));
            assert!((0..2).all(|host| active_is_local(&net, host) != down), "{round} {down}");
            if down {
                let states =
                    local_paths(&net, 0).iter().map(|p| (p.state, p.reason)).collect::<Vec<_>>();
                assert_eq!(states, [(PathState::Down, Some(Reason::AdminDown))]);
            }
        }
    }
    assert!(net.hosts.iter().all(|h| h.worst_gap < 50 * MS));
}

#[test]
fn a_link_that_goes_down_leaves_the_memory_alone() {
    let mut net = joined(6);
    net.start_traffic();
    net.run(50 * MS);
    net.forget_events();
    net.link_up(0, false);
    net.link_up(1, false);
    net.run(500 * MS);
    assert!((0..2).all(|host| active_is_local(&net, host) && net.up_paths(host) == 1));
    assert!(net.hosts.iter().all(|h| h.worst_gap < 20 * MS));
}

#[test]
fn a_packet_counts_only_for_a_path_of_the_kind_that_it_came_by() {
    let mut net = joined(7);
    let peer = net.hosts[0].peer.unwrap();
    let all = net.hosts[0].paths.status().peers.remove(0).paths;
    let kinds = [UDP, PathKind::Local { slot: 2 }, PathKind::Local { slot: 3 }];
    for path in &all {
        for kind in kinds {
            let PathAddress { local, remote, .. } = path.address;
            let got = net.hosts[0].paths.classify(peer, remote, local, kind, path.tag, 100);
            let fits = kind == path.address.kind;
            let expected = if fits { Ok(path.path) } else { Err(Refused::UnknownSource) };
            assert_eq!(got, expected, "{kind:?} on {:?}", path.address);
        }
    }
    // Nor do handshakes and probes.
    net.keep_log = true;
    net.hosts[1].paths.suspect(net.now, PathId(0));
    net.run(Duration::from_secs(1));
    let log = core::mem::take(&mut net.log);
    let mut refused = 0;
    for Flying { to, src, dst, kind, wire } in log {
        let Wire::Control(bytes) = wire else { continue };
        let other = if kind == UDP { PathKind::Local { slot: 2 - to as u8 } } else { UDP };
        let handled = net.control_by(to, src, dst, other, &bytes);
        refused += usize::from(handled != Handled::Accepted);
    }
    assert!(refused > 0);
    let link = net.refused(0, Refused::UnknownSource);
    assert!(link > 0);
}

#[test]
fn packets_without_a_window_go_by_a_link_while_one_lives() {
    let mut net = joined(9);
    let peer = net.hosts[0].peer.unwrap();
    let kind = |net: &Net| {
        let paths = &net.hosts[0].paths;
        let main = paths.route(peer).unwrap().path;
        paths.path(paths.with_buffer(peer, main)).map(|address| address.kind)
    };
    assert_eq!(kind(&net), Some(UDP));
    net.link_up(0, false);
    net.run(100 * MS);
    assert_eq!(kind(&net), Some(UDP));
    net.link_up(1, false);
    net.run(100 * MS);
    assert_eq!(kind(&net), Some(PathKind::Local { slot: 2 }));
    net.link_up(1, true);
    net.run(Duration::from_secs(1));
    channel(&mut net, false);
    assert_eq!(kind(&net), Some(UDP));
}

#[test]
fn all_data_goes_through_memory_while_it_works_whatever_the_policy() {
    let modes = [Mode::Efficient, Mode::Balance, Mode::Redundant];
    for mode in modes.into_iter().chain([Mode::Affinity(AffinityRule::Hash), Mode::ActiveBackup]) {
        let mut net = joined(8);
        for host in 0..2 {
            let usage = Usage { mode, ..Usage::of(net.hosts[host].paths.config()) };
            net.hosts[host].paths.set_usage(net.now, &usage);
        }
        net.run(50 * MS);
        let over_udp = |net: &Net| {
            let peers = net.hosts[0].paths.status().peers.into_iter().flat_map(|p| p.paths);
            peers.filter(|p| !is_local(&p.address)).map(|p| p.counters.sent_bytes).sum::<u64>()
        };
        let before = over_udp(&net);
        net.start_traffic();
        net.run(500 * MS);
        assert!((0..2).all(|host| active_is_local(&net, host)), "{mode:?}");
        assert!(net.hosts.iter().all(|h| h.acked > 1000), "{mode:?}");
        // Probes only.
        assert!(over_udp(&net) - before < 20_000, "{mode:?}: {}", over_udp(&net) - before);
    }
}
