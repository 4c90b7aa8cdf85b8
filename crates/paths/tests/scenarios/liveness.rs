//! What is alive: suspicion, trials, death, silence.

use std::time::Duration;

use polypath_paths::*;

use crate::net::*;
use crate::*;

#[test]
fn silent_cut_moves_traffic_within_25_ms() {
    let mut worst = Duration::ZERO;
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        net.start_traffic();
        let lead = net.rng.time(50 * MS);
        net.run(50 * MS + lead);
        net.reset_gaps();
        net.cut(0, true);
        net.run(100 * MS);
        for h in 0..2 {
            assert_eq!(net.active_link(h), Some(1), "seed {seed}");
            worst = worst.max(net.hosts[h].worst_gap);
            assert!(net.has(h, |e| matches!(e, PathEvent::Resumed { .. })), "seed {seed}");
        }
    }
    assert!(worst < 25 * MS, "{worst:?}");
}

/// Data that is spread goes on by the other paths, whichever of them is the main one.
#[test]
fn a_fail_over_of_spread_traffic_ends_with_any_path_that_carries() {
    let config = || Config { mode: Mode::Balance, ..Config::default() };
    let mut net = Net::with(3, 3, [config(), config()]);
    net.connect();
    net.run(200 * MS);
    let main = net.active_link(0).unwrap();
    net.link_up(main, false);
    let now = net.now;
    let main = net.active_link(0).unwrap();
    let h = &mut net.hosts[0];
    let up = h.paths.status().peers[0].paths.clone();
    let is_other =
        |path: &&PathStatus| path.state == PathState::Up && path.address.local != ip(main, 0);
    let other = up.iter().find(is_other).unwrap().path;
    h.paths.sent(now, other, 100);
    h.paths.acked(now + MS, other, 100, None);
    net.run(MS);
    let resumed = net.count(0, |e| matches!(e, PathEvent::Resumed { .. }));
    assert_eq!(resumed, 1);
}

/// Who waits for the window has nothing under way, and so no timer of its own.
#[test]
fn copies_to_a_peer_that_is_gone_do_not_keep_the_window_closed() {
    let config = || Config { mode: Mode::Redundant, ..Config::default() };
    let mut net = Net::with(4, 1, [config(), config()]);
    net.connect();
    net.run(200 * MS);
    let now = net.now;
    let h = &mut net.hosts[0];
    let peer = h.peer.unwrap();
    let route = h.paths.route(peer).unwrap();
    h.paths.sent_twice(now, route.path, route.window);
    h.paths.wake_when_open(peer);
    net.cut(0, true);
    net.run(Duration::from_secs(17));
    assert!(net.has(0, |e| matches!(e, PathEvent::PeerLost { .. })));
    assert!(net.has(0, |e| matches!(e, PathEvent::WindowOpened { .. })));
    let h = &mut net.hosts[0];
    assert_eq!(h.paths.route(peer).unwrap().path, route.path, "it never died");
    assert_eq!(h.paths.sent_twice_on(route.path), 0);
}

#[test]
fn a_silent_path_is_left_long_before_its_queue_would_be_empty() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        for link in &mut net.links {
            link.pace = 600 * US;
        }
        net.hosts[0].traffic = true;
        let lead = net.rng.time(50 * MS);
        net.run(400 * MS + lead);
        let status = net.hosts[0].paths.status();
        let longest = status.peers[0].paths.iter().filter_map(|path| path.rtt).max();
        assert!(longest.is_some_and(|rtt| rtt > 15 * MS), "seed {seed}: {longest:?}");
        net.cut(0, true);
        let cut_at = net.now;
        net.run(50 * MS);
        assert_eq!(net.active_link(0), Some(1), "seed {seed}");
        let left_at = net.hosts[0].events.iter().rev().find(|(_, event)| failed_over(event));
        let took = left_at.map(|(at, _)| *at - cut_at);
        assert!(took.is_some_and(|took| took < 12 * MS), "seed {seed}: {took:?}");
    }
}

#[test]
fn a_cut_in_one_direction_is_as_good_as_a_whole_one() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        net.reset_gaps();
        net.links[0].cut[(seed % 2) as usize] = true;
        net.run(200 * MS);
        for h in 0..2 {
            assert_eq!(net.active_link(h), Some(1), "seed {seed}");
            assert!(net.hosts[h].worst_gap < 25 * MS, "{:?}", net.hosts[h].worst_gap);
        }
    }
}

#[test]
fn link_down_moves_traffic_at_once_and_the_peer_is_told() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        net.reset_gaps();
        // Only one host sees its link go down; for the other it is a silent cut.
        net.cut(0, true);
        net.hosts[0].local[0].link_up = false;
        net.tell_local(0);
        assert_eq!(net.active_link(0), Some(1));
        net.run(50 * MS);
        assert_eq!(net.active_link(1), Some(1));
        for h in 0..2 {
            assert!(net.hosts[h].worst_gap < 3 * MS, "{:?}", net.hosts[h].worst_gap);
        }
        assert!(net.has(1, |e| matches!(
            e,
            PathEvent::PathDead { reason: Reason::PeerNotice | Reason::ProbesLost, .. }
        )));
    }
}

#[test]
fn a_descheduled_process_is_not_a_dead_path() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        for link in &mut net.links {
            link.loss_per_mille = 5;
        }
        net.start_traffic();
        net.run(50 * MS);
        for _ in 0..60 {
            let host = net.rng.below(2) as usize;
            let time = net.rng.time(30 * MS);
            net.pause(host, time);
            let until = net.rng.time(40 * MS);
            net.run(until);
        }
        assert_eq!(net.deaths(), 0, "seed {seed}");
    }
}

#[test]
fn loss_on_a_path_is_not_its_death() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        for link in &mut net.links {
            link.loss_per_mille = 50;
        }
        net.start_traffic();
        net.run(Duration::from_secs(2));
        assert_eq!(net.deaths(), 0, "seed {seed}");
    }
}

#[test]
fn a_peer_that_stands_still_is_waited_for() {
    let mut net = connected(3);
    net.start_traffic();
    net.run(100 * MS);
    net.pause(1, Duration::from_secs(5));
    net.run(Duration::from_secs(4));
    assert!(net.has(0, |e| matches!(e, PathEvent::NoPath { .. })));
    assert_eq!(net.active_link(0), None);
    assert_eq!(net.deaths(), 0, "silence of all is nobody's death");
    net.run(Duration::from_secs(2));
    assert!(net.active_link(0).is_some());
    let before = net.hosts[0].acked;
    net.run(100 * MS);
    assert!(net.hosts[0].acked > before);
}

/// A silence of all paths that is too short to hold anything: nobody dies, nothing is held, but who waits
/// hears when it is over.
#[test]
fn the_end_of_a_silence_is_told() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        assert!(!net.has(0, |e| matches!(e, PathEvent::PathHeard { .. })), "seed {seed}");
        net.cut(0, true);
        net.cut(1, true);
        net.run(150 * MS);
        net.cut(0, false);
        net.cut(1, false);
        net.run(100 * MS);
        assert!(!net.has(0, |e| matches!(e, PathEvent::NoPath { .. })), "seed {seed}");
        // Data that came through first would say so too, but it is not sent in the silence.
        assert!(net.has(0, |e| matches!(e, PathEvent::PathHeard { .. })), "seed {seed}");
        assert_eq!(net.deaths(), 0, "seed {seed}");
    }
}

/// Who answers at once has not been silent, however long ago it was asked before: else the retries of a
/// queue pair whose peer has gone would never run out while its host lives.
#[test]
fn a_pause_between_questions_is_no_silence() {
    for seed in 0..5 {
        let mut net = connected(seed);
        net.run(100 * MS);
        for _ in 0..20 {
            net.run(45 * MS);
            let (now, host) = (net.now, &mut net.hosts[0]);
            let route = host.paths.route(host.peer.unwrap()).unwrap();
            host.paths.suspect(now, route.path);
            net.run(5 * MS);
        }
        assert!(!net.has(0, |e| matches!(e, PathEvent::PathHeard { .. })), "seed {seed}");
    }
}

/// What was sent before the silence may be answered before any probe is.
#[test]
fn data_that_is_acknowledged_ends_a_silence_of_all_paths() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        let peer = net.hosts[0].peer.unwrap();
        let path = net.hosts[0].paths.route(peer).unwrap().path;
        net.cut(0, true);
        net.cut(1, true);
        net.run(Duration::from_secs(1));
        assert!(net.has(0, |e| matches!(e, PathEvent::NoPath { .. })), "seed {seed}");
        assert_eq!(net.active_link(0), None, "seed {seed}");
        let now = net.now;
        net.hosts[0].paths.acked(now, path, 0, None);
        assert_eq!(net.hosts[0].paths.route(peer).map(|r| r.path), Some(path), "seed {seed}");
        net.forget_events();
        net.run(MS);
        let told = |e: &PathEvent| matches!(e, PathEvent::ActiveChanged { to, .. } if *to == path);
        assert!(net.has(0, told), "seed {seed}");
    }
}

#[test]
fn a_lane_that_hardly_runs_still_notices_that_all_paths_are_gone() {
    let mut net = connected(21);
    net.start_traffic();
    net.run(100 * MS);
    net.cut(0, true);
    net.cut(1, true);
    for _ in 0..150 {
        net.pause(0, 8 * MS);
        net.run(20 * MS);
    }
    assert!(net.has(0, |e| matches!(e, PathEvent::NoPath { .. })));
}

/// Each end asks a path that never answered more and more seldom. When it carries at last, the end that asks
/// second must not wait for its own turn: the first one uses the path already.
#[test]
fn a_path_that_carries_at_last_is_used_by_both_ends_together() {
    let alive = |e: &PathEvent| matches!(e, PathEvent::PathAlive { .. });
    for seed in 0..SEEDS {
        let mut net = Net::new(seed, 2);
        net.links[1].cut[(seed % 2) as usize] = true;
        net.connect();
        // The ends ask at times of their own.
        net.run(Duration::from_secs(1));
        net.pause(0, 1000 * MS);
        net.run(Duration::from_secs(6));
        assert_eq!((net.up_paths(0), net.up_paths(1)), (1, 1), "seed {seed}");
        net.forget_events();
        net.cut(1, false);
        let mut waited = 0;
        while !net.has(0, alive) && !net.has(1, alive) {
            net.run(MS);
            waited += 1;
            assert!(waited < 3000, "seed {seed}: nobody asks");
        }
        net.run(10 * MS);
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
    }
}

#[test]
fn all_paths_gone_for_two_seconds_and_back() {
    for seed in 0..SEEDS {
        let visible = seed % 3 == 0;
        let gone = |net: &mut Net, link: usize, gone: bool| {
            if visible {
                net.link_up(link, !gone);
            } else {
                net.cut(link, gone);
            }
        };
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        for link in 0..2 {
            gone(&mut net, link, true);
        }
        net.run(Duration::from_secs(2));
        for h in 0..2 {
            assert_eq!(net.active_link(h), None, "seed {seed}");
            assert_eq!(net.count(h, |e| matches!(e, PathEvent::NoPath { .. })), 1);
        }
        let first = net.rng.below(2) as usize;
        for link in [first, 1 - first] {
            gone(&mut net, link, false);
            net.run(100 * MS);
        }
        let before = [net.hosts[0].acked, net.hosts[1].acked];
        net.run(200 * MS);
        for (h, before) in before.into_iter().enumerate() {
            assert!(net.hosts[h].acked > before, "seed {seed}");
            assert!(!net.has(h, |e| matches!(e, PathEvent::PeerLost { .. })));
        }
    }
}

#[test]
fn a_peer_that_never_returns_is_given_up_after_the_hold_time() {
    let mut net = connected(5);
    net.start_traffic();
    net.cut(0, true);
    net.cut(1, true);
    net.run(Config::default().hold + Duration::from_secs(3));
    assert!(net.has(0, |e| matches!(e, PathEvent::PeerLost { .. })));
    assert!(net.active_link(0).is_some(), "retry counters have something to send on");
}

#[test]
fn a_lane_that_runs_only_now_and_then_still_fails_over() {
    for seed in 0..10 {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(50 * MS);
        net.cut(0, true);
        for _ in 0..30 {
            net.pause(0, 9 * MS);
            net.pause(1, 8 * MS);
            net.run(9 * MS + 100 * US);
        }
        assert_eq!(net.active_link(0), Some(1), "seed {seed}");
        assert_eq!(net.active_link(1), Some(1), "seed {seed}");
    }
}

#[test]
fn idle_associations_notice_a_cut_and_send_little() {
    let mut net = connected(10);
    net.run(Duration::from_secs(10));
    let probes = |net: &Net| -> u64 {
        net.hosts[0].paths.status().peers[0].paths.iter().map(|p| p.counters.probes_sent).sum()
    };
    let before = probes(&net);
    net.run(Duration::from_secs(10));
    assert!(probes(&net) - before <= 2 * 10 * 2 + 2, "{}", probes(&net) - before);
    net.cut(1, true);
    net.run(Duration::from_secs(1));
    let dead = |p: &PathStatus| p.state == PathState::Dead;
    for h in 0..2 {
        assert!(net.hosts[h].paths.status().peers[0].paths.iter().any(dead));
    }
}

#[test]
fn long_round_trips_do_not_kill() {
    for seed in 0..10 {
        let mut net = Net::new(seed, 2);
        net.links[0].delay = 40 * MS;
        net.links[1].delay = 200 * US;
        net.links[0].jitter = 10 * MS;
        net.connect();
        net.start_traffic();
        net.run(Duration::from_secs(5));
        assert!(net.agreed());
        assert_eq!(net.deaths(), 0, "seed {seed}: {:?}", net.hosts[0].events);
        net.cut(0, true);
        net.run(Duration::from_secs(1));
        assert_eq!(net.active_link(0), Some(1));
    }
}

#[test]
fn random_faults_end_in_agreement() {
    for seed in 0..25 {
        let mut net = Net::new(1000 + seed, 3);
        net.connect();
        net.start_traffic();
        net.run(100 * MS);
        for _ in 0..60 {
            let link = net.rng.below(3) as usize;
            match net.rng.below(8) {
                0 => net.cut(link, true),
                1 => net.links[link].cut[0] ^= true,
                2 => net.link_up(link, false),
                3 => net.links[link].loss_per_mille = net.rng.below(300),
                4 => {
                    let host = net.rng.below(2) as usize;
                    let time = net.rng.time(50 * MS);
                    net.pause(host, time);
                }
                _ => net.link_up(link, true),
            }
            let time = net.rng.time(150 * MS);
            net.run(time);
        }
        for link in 0..3 {
            net.link_up(link, true);
            net.links[link].loss_per_mille = 0;
        }
        // The longest delay that flapping can lead to, and some.
        net.hosts[0].traffic = false;
        net.hosts[1].traffic = false;
        net.run(Config::default().updelay_max + Duration::from_secs(5));
        net.assert_same_paths();
        net.start_traffic();
        let before = [net.hosts[0].acked, net.hosts[1].acked];
        net.run(100 * MS);
        for (h, before) in before.into_iter().enumerate() {
            assert!(net.hosts[h].acked > before, "seed {seed}");
            let status = net.hosts[h].paths.status();
            let up = |p: &PathStatus| p.state == PathState::Up;
            assert!(status.peers[0].paths.iter().all(up), "seed {seed}: {status:#?}");
            assert!(!net.has(h, |e| matches!(e, PathEvent::PeerLost { .. })), "seed {seed}");
        }
    }
}

/// A carrier says nothing about the way behind it.
#[test]
fn a_path_whose_link_is_back_has_to_answer_first() {
    for seed in 0..5 {
        let mut net = connected(seed);
        net.start_traffic();
        net.cut(0, true);
        for up in [false, true] {
            net.run(50 * MS);
            net.hosts[0].local[0].link_up = up;
            net.tell_local(0);
        }
        for _ in 0..2000 {
            assert_eq!((net.up_paths(0), net.active_link(0)), (1, Some(1)), "seed {seed}");
            net.run(MS);
        }
        net.cut(0, false);
        net.run(Duration::from_secs(10));
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
    }
}

/// Without traffic that is missed, a silent cut is found by the next regular probe, half a second later. A
/// send that fails on this host says so earlier.
#[test]
fn a_failed_send_has_the_path_probed_at_once() {
    for cut in [true, false] {
        let mut net = connected(33);
        net.run(Duration::from_secs(3));
        let (now, host) = (net.now, &mut net.hosts[0]);
        let path = host.paths.route(host.peer.unwrap()).unwrap().path;
        net.links[0].cut = [cut, cut];
        net.hosts[0].paths.send_failed(now, path);
        net.run(30 * MS);
        assert_eq!(net.active_link(0), Some(usize::from(cut)), "a hint, no proof");
        assert_eq!(net.deaths() > 0, cut);
    }
}

/// The peer is given up after 15 seconds in which this process looked for it, not after it was stopped for
/// as long.
#[test]
fn a_stop_does_not_use_up_the_hold_time() {
    let lost = |net: &Net| net.has(0, |e| matches!(e, PathEvent::PeerLost { .. }));
    for ends_well in [true, false] {
        let mut net = connected(8);
        net.start_traffic();
        net.run(100 * MS);
        net.cut(0, true);
        net.cut(1, true);
        net.run(Duration::from_secs(1));
        assert!(net.has(0, |e| matches!(e, PathEvent::NoPath { .. })));
        net.pause(0, Duration::from_secs(60));
        net.run(Duration::from_secs(61));
        assert!(!lost(&net), "given up as soon as it woke");
        if ends_well {
            net.cut(0, false);
            net.run(Duration::from_secs(1));
            assert_eq!(net.active_link(0), Some(0));
        }
        net.run(Duration::from_secs(15));
        assert_eq!(lost(&net), !ends_well);
    }
}
