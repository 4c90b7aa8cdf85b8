//! Scenarios of two lanes over simulated links, in virtual time, over seeds.

mod net;

use std::time::Duration;

use net::{MS, Net, QPN, US, Wire, ip, options};
use polypath_paths::{
    Config, Handled, PathEvent, PathState, Primary, PrimaryReselect, Reason, Refused,
};

const SEEDS: u64 = 40;

fn connected(seed: u64) -> Net {
    let mut net = Net::new(seed, 2);
    net.connect();
    net.run(100 * MS);
    assert!(net.agreed(), "seed {seed}");
    net
}

fn failed_over(e: &PathEvent) -> bool {
    matches!(e, PathEvent::ActiveChanged { reason, .. }
        if !matches!(reason, Reason::Primary | Reason::Association))
}

#[test]
fn both_ends_agree_and_number_the_paths_alike() {
    for seed in 0..SEEDS {
        let mut net = Net::new(seed, 1 + (seed % 4) as usize);
        for link in &mut net.links {
            link.loss_per_mille = 100;
        }
        net.connect();
        net.run(Duration::from_secs(2));
        assert!(net.agreed(), "seed {seed}");
        net.assert_same_paths();
        let status = net.hosts[0].paths.status();
        assert_eq!(status.peers[0].paths.len(), net.links.len());
        assert!(status.peers[0].paths.iter().all(|p| p.state == PathState::Up), "seed {seed}");
    }
}

#[test]
fn agreement_takes_two_round_trips_and_does_not_care_who_is_first() {
    for first in 0..2 {
        let mut net = Net::new(7, 2);
        net.attach(first);
        net.run(30 * MS);
        assert!(!net.agreed());
        net.attach(1 - first);
        net.run(MS);
        assert!(net.agreed());
        net.assert_same_paths();
    }
}

#[test]
fn a_peer_without_multipath_is_plain_and_left_alone() {
    let off = Config { multipath: false, ..Config::default() };
    let mut net = Net::with(1, 2, [Config::default(), off]);
    net.connect();
    net.start_traffic();
    net.run(Duration::from_secs(10));
    assert!(!net.has(0, |e| matches!(e, PathEvent::MultipathAgreed { .. })));
    assert!(net.hosts[0].paths.next_deadline().is_none(), "no timers for plain peers");
    let status = net.hosts[0].paths.status();
    assert!(status.peers[0].note.contains("does not answer"), "{}", status.peers[0].note);
    // Silence is no reason to give up its only path, a link event is.
    net.cut(0, true);
    net.run(Duration::from_secs(3));
    assert_eq!(net.active_link(0), Some(0));
    net.link_up(0, false);
    assert_eq!(net.active_link(0), None);
    assert!(net.has(0, |e| matches!(e, PathEvent::NoPath { .. })));
    net.link_up(0, true);
    assert_eq!(net.active_link(0), Some(0));
}

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
fn a_dead_path_is_used_again_after_updelay_and_not_before() {
    let mut net = connected(6);
    net.start_traffic();
    net.cut(0, true);
    net.run(500 * MS);
    assert_eq!(net.active_link(0), Some(1));
    net.forget_events();
    net.cut(0, false);
    net.run(190 * MS);
    assert!(!net.has(0, |e| matches!(e, PathEvent::PathAlive { .. })));
    net.run(400 * MS);
    assert!(net.has(0, |e| matches!(e, PathEvent::PathAlive { .. })));
    assert_eq!(net.active_link(0), Some(1), "no primary: traffic stays");
    net.cut(1, true);
    net.run(100 * MS);
    assert_eq!(net.active_link(0), Some(0));
    assert_eq!(net.active_link(1), Some(0));
}

#[test]
fn primary_reselect_decides_on_the_way_back() {
    for (reselect, faster, back) in [
        (PrimaryReselect::Always, false, true),
        (PrimaryReselect::Better, false, false),
        (PrimaryReselect::Better, true, true),
        (PrimaryReselect::Failure, true, false),
    ] {
        let config = Config {
            primary: Some(Primary::Interface(2)),
            primary_reselect: reselect,
            ..Config::default()
        };
        let mut net = Net::with(8, 2, [config, Config::default()]);
        net.hosts[0].local[0].speed_mbps = if faster { 100_000 } else { 10_000 };
        net.hosts[0].local[1].speed_mbps = 10_000;
        net.tell_local(0);
        net.connect();
        net.start_traffic();
        net.run(100 * MS);
        net.link_up(0, false);
        net.run(300 * MS);
        assert_eq!(net.active_link(0), Some(1));
        net.link_up(0, true);
        net.run(Duration::from_secs(1));
        assert_eq!(net.active_link(0), Some(if back { 0 } else { 1 }), "{reselect:?}");
    }
}

#[test]
fn flapping_is_damped() {
    for seed in 0..8 {
        let primary = Config { primary: Some(Primary::Interface(2)), ..Config::default() };
        let mut net = Net::with(seed, 2, [primary.clone(), primary]);
        net.connect();
        net.start_traffic();
        net.run(100 * MS);
        for i in 0..50 {
            net.cut(0, i % 2 == 0);
            net.run(200 * MS);
        }
        // 25 cuts: the path must not be tried again after each.
        for h in 0..2 {
            assert!(net.count(h, failed_over) <= 3, "seed {seed}: {}", net.count(h, failed_over));
        }
        net.cut(0, false);
        net.run(Duration::from_secs(30));
        assert_eq!(net.active_link(0), Some(0), "in the end it is trusted again");
    }
}

#[test]
fn flapping_while_the_other_path_is_gone_still_carries() {
    let mut net = connected(9);
    net.start_traffic();
    net.run(50 * MS);
    net.link_up(1, false);
    for i in 0..10 {
        net.cut(0, i % 2 == 0);
        net.run(200 * MS);
    }
    let before = net.hosts[0].acked;
    net.run(100 * MS);
    assert!(net.hosts[0].acked > before);
}

#[test]
fn an_address_removed_and_another_added_change_the_set_on_both_ends() {
    for seed in 0..SEEDS {
        let mut net = Net::new(seed, 3);
        let host = (seed % 2) as usize;
        // The third address comes later.
        let third = net.hosts[host].local.pop().unwrap();
        net.tell_local(host);
        net.connect();
        net.start_traffic();
        net.run(200 * MS);
        assert_eq!(net.up_paths(0), 2);
        net.hosts[host].local.push(third);
        net.tell_local(host);
        net.run(300 * MS);
        net.assert_same_paths();
        assert_eq!(net.up_paths(0), 3, "seed {seed}");
        net.reset_gaps();
        // The one that the queue pair was connected with goes.
        net.hosts[host].local[0].usable = false;
        let gone = net.hosts[host].local[0];
        let h = &mut net.hosts[host];
        let rest: Vec<_> = h.local[1..].to_vec();
        h.paths.set_local(net.now, &rest);
        net.hosts[host].local[0] = gone;
        net.run(300 * MS);
        net.assert_same_paths();
        assert_eq!(net.up_paths(0), 2, "seed {seed}");
        for h in 0..2 {
            assert_ne!(net.active_link(h), Some(0));
            assert!(net.hosts[h].worst_gap < 5 * MS, "{:?}", net.hosts[h].worst_gap);
        }
        net.hosts[host].local[0].usable = true;
        net.tell_local(host);
        net.run(Duration::from_secs(1));
        net.assert_same_paths();
        assert_eq!(net.up_paths(0), 3, "seed {seed}");
    }
}

#[test]
fn a_path_taken_down_by_the_administrator_keeps_its_number() {
    let mut net = connected(20);
    net.start_traffic();
    net.run(50 * MS);
    net.reset_gaps();
    net.hosts[1].local[0].usable = false;
    net.tell_local(1);
    net.run(100 * MS);
    net.assert_same_paths();
    for h in 0..2 {
        assert_eq!(net.active_link(h), Some(1));
        assert!(net.hosts[h].worst_gap < 5 * MS, "{:?}", net.hosts[h].worst_gap);
    }
    let status = net.hosts[1].paths.status();
    let down = &status.peers[0].paths[0];
    assert_eq!((down.state, down.reason), (PathState::Down, Some(Reason::AdminDown)));
    net.hosts[1].local[0].usable = true;
    net.tell_local(1);
    net.run(Duration::from_secs(1));
    net.assert_same_paths();
    assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2));
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
        net.hosts[0].paths.status().peers[0].paths.iter().map(|p| p.probes_sent).sum()
    };
    let before = probes(&net);
    net.run(Duration::from_secs(10));
    assert!(probes(&net) - before <= 2 * 10 * 2 + 2, "{}", probes(&net) - before);
    net.cut(1, true);
    net.run(Duration::from_secs(1));
    let dead = |p: &polypath_paths::PathStatus| p.state == PathState::Dead;
    for h in 0..2 {
        assert!(net.hosts[h].paths.status().peers[0].paths.iter().any(dead));
    }
}

#[test]
fn forged_replayed_and_damaged_control_is_refused() {
    let mut net = Net::new(11, 2);
    net.keep_log = true;
    net.connect();
    net.run(Duration::from_secs(1));
    let before = net.hosts[1].paths.status();
    let log = net.log.clone();
    let frames: Vec<_> = log
        .iter()
        .filter(|f| f.to == 1)
        .filter_map(|f| match &f.wire {
            // Not the handshake, which is accepted again and changes nothing.
            Wire::Control(b) if b[0] != 0x64 => Some((f.src, f.dst, b.clone())),
            _ => None,
        })
        .collect();
    assert!(frames.len() > 4);
    for (src, dst, bytes) in &frames {
        let again = net.control(1, *src, *dst, bytes);
        assert_eq!(again, Handled::Refused(Refused::Replay));
        for at in 12..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(matches!(net.control(1, *src, *dst, &bad), Handled::Refused(_)));
        }
        // From or to other addresses.
        for (src, dst) in [(ip(0, 0), ip(1, 1)), ("10.9.9.9".parse().unwrap(), *dst)] {
            let got = net.control(1, src, dst, bytes);
            assert_eq!(got, Handled::Refused(Refused::Authentication));
        }
        // Reflected to its sender.
        assert!(matches!(net.control(0, *dst, *src, bytes), Handled::Refused(_)));
    }
    let after = net.hosts[1].paths.status();
    assert_eq!(before.peers, after.peers);
    assert!(net.refused(1, Refused::Authentication) > 0);
    assert!(net.refused(1, Refused::Replay) > 0);
}

#[test]
fn handshakes_of_strangers_are_refused_and_old_ones_do_no_harm() {
    let mut net = Net::new(12, 2);
    net.keep_log = true;
    net.connect();
    net.run(100 * MS);
    let log = net.log.clone();
    let hellos: Vec<_> = log
        .iter()
        .filter_map(|f| match &f.wire {
            Wire::Control(b) if b[0] == 0x64 => Some((f.to, f.src, f.dst, b.clone())),
            _ => None,
        })
        .collect();
    let paths = |net: &Net| -> Vec<_> {
        let status = net.hosts[1].paths.status();
        status.peers[0].paths.iter().map(|p| (p.tag, p.state, p.address)).collect()
    };
    let before = paths(&net);
    for (to, src, dst, bytes) in &hellos {
        let stranger = "10.0.1.77".parse().unwrap();
        let got = net.control(*to, stranger, *dst, bytes);
        assert_eq!(got, Handled::Refused(Refused::UnknownSource));
        net.control(*to, *src, *dst, bytes);
        for at in (0..bytes.len()).filter(|at| !(12..16).contains(at)) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            let mut udp = bad.clone();
            udp.extend_from_slice(&[0; 4]);
            if polypath_wire::packet::Packet::parse(&udp)
                .is_ok_and(|p| polypath_paths::PathManager::is_control(&p))
            {
                net.control(*to, *src, *dst, &bad);
            }
        }
    }
    net.run(100 * MS);
    assert_eq!(before, paths(&net));
    assert_eq!(net.deaths(), 0);
}

#[test]
fn a_restarted_peer_on_the_same_addresses_and_slot_begins_a_new_association() {
    let mut net = connected(13);
    let mut other = Net::new(14, 2);
    core::mem::swap(&mut net.hosts[1], &mut other.hosts[1]);
    // The process is new; on our side a new queue pair is connected to its queue pair.
    let (mine, theirs) = (QPN[0] + 1, QPN[1] + 1);
    let now = net.now;
    let peer = net.hosts[0].paths.attach(now, mine, theirs, ip(0, 0), ip(0, 1), options());
    assert_eq!(peer.ok(), net.hosts[0].peer, "same addresses, same slot");
    let peer = net.hosts[1].paths.attach(now, theirs, mine, ip(0, 1), ip(0, 0), options());
    net.hosts[1].peer = peer.ok();
    net.run(100 * MS);
    assert!(net.has(0, |e| *e == PathEvent::MultipathAgreed { qpn: mine }));
    assert!(net.has(1, |e| *e == PathEvent::MultipathAgreed { qpn: theirs }));
    net.assert_same_paths();
    net.start_traffic();
    net.run(100 * MS);
    assert!(net.hosts[0].acked > 0 && net.hosts[1].acked > 0);
    net.cut(0, true);
    net.run(100 * MS);
    assert_eq!(net.active_link(0), Some(1));
}

#[test]
fn thousands_of_queue_pairs_share_one_association() {
    let mut net = connected(15);
    let now = net.now;
    for i in 1..2000 {
        for (h, other) in [(0, 1), (1, 0)] {
            let (q, r) = (QPN[h] + i * 16, QPN[other] + i * 16);
            let peer = net.hosts[h].paths.attach(now, q, r, ip(0, h), ip(0, other), options());
            assert_eq!(peer.ok(), net.hosts[h].peer);
        }
    }
    net.run(500 * MS);
    for h in 0..2 {
        let status = net.hosts[h].paths.status();
        assert_eq!((status.peers.len(), status.peers[0].agreed), (1, 2000));
    }
    // All queue pairs over the other addresses, too.
    let now = net.now;
    for (h, other) in [(0, 1), (1, 0)] {
        let (q, r) = (QPN[h] + 7, QPN[other] + 7);
        net.hosts[h].paths.attach(now, q, r, ip(1, h), ip(1, other), options()).unwrap();
    }
    net.run(50 * MS);
    let status = net.hosts[0].paths.status();
    assert_eq!(status.peers[1].agreed, 1);
    assert_eq!(status.peers[0].paths, status.peers[1].paths, "the same association");
}

#[test]
fn detached_queue_pairs_leave_nothing_behind() {
    let mut net = connected(16);
    for (h, qpn) in QPN.into_iter().enumerate() {
        let now = net.now;
        net.hosts[h].paths.detach(now, qpn);
        net.hosts[h].peer = None;
    }
    net.run(Duration::from_secs(20));
    for h in 0..2 {
        assert!(net.hosts[h].paths.status().peers.is_empty());
        assert!(net.hosts[h].paths.next_deadline().is_none());
    }
    // And again.
    net.forget_events();
    net.connect();
    net.run(100 * MS);
    assert!(net.agreed());
    net.assert_same_paths();
}

#[test]
fn after_a_farewell_the_peers_queue_pairs_are_plain() {
    let mut net = connected(17);
    net.start_traffic();
    net.run(50 * MS);
    let now = net.now;
    net.hosts[1].traffic = false;
    net.hosts[1].paths.close(now);
    net.run(5 * MS);
    assert!(net.active_link(0).is_some());
    assert_eq!(net.deaths(), 0);
    assert!(net.hosts[0].paths.status().peers[0].remote_instance.is_none());
}

#[test]
fn path_mtu_black_hole_is_found_by_data_that_never_arrives() {
    let mut net = connected(18);
    let h = &mut net.hosts[0];
    let peer = h.peer.unwrap();
    let path = h.paths.route(peer).unwrap().path;
    h.paths.sent(net.now, path, 4096);
    for _ in 0..200 {
        net.run(5 * MS);
        let now = net.now;
        let h = &mut net.hosts[0];
        let path = h.paths.route(peer).unwrap().path;
        h.paths.suspect(now, path);
    }
    assert!(net.has(0, |e| matches!(e, PathEvent::PathDead { reason: Reason::DataStalled, .. })));
}

#[test]
fn whoever_found_little_room_is_told_when_there_is_more() {
    let mut net = connected(22);
    let now = net.now;
    let h = &mut net.hosts[0];
    let peer = h.peer.unwrap();
    let route = h.paths.route(peer).unwrap();
    h.paths.sent(now, route.path, route.window - 1000);
    assert_eq!(h.paths.route(peer).unwrap().window, 1000);
    let opened = |h: &mut net::Host| {
        core::iter::from_fn(|| h.paths.poll_event())
            .any(|e| matches!(e, PathEvent::WindowOpened { .. }))
    };
    h.paths.acked(now, route.path, 2000, None);
    assert!(!opened(h), "not for crumbs");
    h.paths.acked(now, route.path, 30_000, None);
    assert!(opened(h));
    h.paths.acked(now, route.path, 10_000, None);
    assert!(!opened(h), "once");
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
fn datagrams_are_led_around_a_dead_path() {
    let mut net = connected(19);
    let now = net.now;
    let ud = net.hosts[0].paths.ud_path(now, ip(0, 0), ip(0, 1), options()).unwrap();
    assert_eq!(net.hosts[0].paths.ud_route(ud), ud);
    net.link_up(0, false);
    let around = net.hosts[0].paths.ud_route(ud);
    assert_eq!(net.hosts[0].paths.path(around).unwrap().local, ip(1, 0));
    net.link_up(0, true);
    net.run(Duration::from_secs(1));
    assert_eq!(net.hosts[0].paths.ud_route(ud), ud);
    net.hosts[0].paths.release_ud(ud);
    assert!(net.hosts[0].paths.path(ud).is_none());
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
            let up = |p: &polypath_paths::PathStatus| p.state == PathState::Up;
            assert!(status.peers[0].paths.iter().all(up), "seed {seed}: {status:#?}");
            assert!(!net.has(h, |e| matches!(e, PathEvent::PeerLost { .. })), "seed {seed}");
        }
    }
}
