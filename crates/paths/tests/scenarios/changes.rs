//! Which path is taken: return, primaries, addresses, windows.

use std::time::Duration;

use polypath_paths::*;

use crate::net::*;
use crate::*;

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

/// It had no queue pairs any more, so nothing of it failed.
#[test]
fn the_end_of_an_association_whose_first_link_is_down_is_no_outage() {
    for link in 0..2 {
        let mut net = connected(7);
        net.run(100 * MS);
        for (host, qpn) in net.hosts.iter_mut().zip(QPN) {
            host.paths.detach(net.now, qpn);
        }
        net.link_up(link, false);
        net.run(Duration::from_secs(10));
        for host in 0..2 {
            assert!(net.hosts[host].paths.status().peers.is_empty());
            assert!(!net.has(host, |e| matches!(e, PathEvent::NoPath { .. })), "link {link}");
        }
    }
}

/// A silence of all paths kills none of them, so the primary path does not have to come back from the
/// dead: it is preferred again as soon as it answers, even if another path answered first.
#[test]
fn the_primary_that_answers_last_after_a_silence_is_used_again() {
    for seed in 0..8 {
        let primary = Config { primary: Some(Primary::Interface(2)), ..Config::default() };
        let mut net = Net::with(seed, 2, [primary, Config::default()]);
        net.connect();
        net.start_traffic();
        net.run(100 * MS);
        assert_eq!(net.active_link(0), Some(0), "seed {seed}");
        let peer = net.hosts[0].peer.unwrap();
        let main = net.hosts[0].paths.route(peer).unwrap().path;
        net.cut(0, true);
        net.cut(1, true);
        net.run(Duration::from_secs(1));
        assert_eq!(net.active_link(0), None, "seed {seed}");
        let now = net.now;
        let other = net.hosts[0].paths.alive().find(|path| *path != main).unwrap();
        net.hosts[0].paths.acked(now, other, 0, None);
        assert_eq!(net.active_link(0), Some(1), "seed {seed}");
        net.cut(0, false);
        net.cut(1, false);
        net.run(Duration::from_secs(1));
        assert_eq!(net.deaths(), 0, "seed {seed}");
        assert_eq!(net.active_link(0), Some(0), "seed {seed}");
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

/// The peer knows only addresses that are no more, and no path of the set has the new one.
#[test]
fn a_host_whose_addresses_have_all_changed_is_found_again() {
    for seed in 0..5 {
        for host in 0..2 {
            let mut net = connected(seed);
            net.run(100 * MS);
            let [first, second] = net.hosts[host].local[..] else { unreachable!() };
            let other = LocalAddress { ip: "10.9.9.9".parse().unwrap(), ..second };
            for list in [&[first, other][..], &[other], &[second]] {
                net.hosts[host].local = list.to_vec();
                net.tell_local(host);
                net.run(if list.len() > 1 { 50 * MS } else { MS });
            }
            net.start_traffic();
            net.run(Duration::from_secs(3));
            net.assert_same_paths();
            assert_eq!((net.up_paths(0), net.up_paths(1)), (1, 1), "seed {seed} host {host}");
        }
    }
}

/// Queue pairs have to run out of retries, which they do on a route only.
#[test]
fn a_peer_that_is_given_up_leaves_a_route_even_if_the_path_was_removed() {
    for seed in 0..5 {
        for host in 0..2 {
            let mut net = connected(seed);
            net.pause(1 - host, Duration::from_secs(100));
            let [first, second] = net.hosts[host].local[..] else { unreachable!() };
            let other = |ip: &str| ip.parse().unwrap();
            let list = [
                LocalAddress { ip: other("10.9.8.9"), link_up: false, ..first },
                LocalAddress { ip: other("10.9.9.9"), link_up: false, ..second },
            ];
            net.hosts[host].local = list.to_vec();
            net.tell_local(host);
            net.run(Duration::from_secs(20));
            assert!(net.has(host, |e| matches!(e, PathEvent::PeerLost { .. })), "seed {seed}");
            let host = &mut net.hosts[host];
            assert!(host.paths.route(host.peer.unwrap()).is_some(), "seed {seed}");
        }
    }
}

#[test]
fn a_single_path_is_taken_down_by_both_its_addresses() {
    let mut net = connected(22);
    net.start_traffic();
    net.run(50 * MS);
    net.reset_gaps();
    let down = |net: &mut Net, rules: &[DownRule]| {
        let now = net.now;
        net.hosts[1].paths.set_down(now, rules);
        net.run(100 * MS);
    };
    let other = DownRule { local: Some(ip(0, 1)), remote: Some(ip(1, 0)) };
    down(&mut net, &[other]);
    assert_eq!(net.active_link(0), Some(0), "no such path is used");
    let rule = DownRule { local: Some(ip(0, 1)), remote: Some(ip(0, 0)) };
    down(&mut net, &[other, rule]);
    for h in 0..2 {
        assert_eq!(net.active_link(h), Some(1));
        assert!(net.hosts[h].worst_gap < 5 * MS, "{:?}", net.hosts[h].worst_gap);
    }
    let status = net.hosts[1].paths.status();
    assert_eq!(status.peers[0].paths[0].reason, Some(Reason::AdminDown));
    down(&mut net, &[]);
    net.run(Duration::from_secs(1));
    assert_eq!([net.up_paths(0), net.up_paths(1)], [2, 2]);
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
    net.run(Duration::from_secs(3));
    assert_eq!(net.up_paths(0), 1, "what one end does not use is of no use to the other");
    net.hosts[1].local[0].usable = true;
    net.tell_local(1);
    net.run(Duration::from_secs(1));
    net.assert_same_paths();
    assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2));
}

#[test]
fn whoever_waits_for_room_is_told_when_there_is_more() {
    let mut net = connected(22);
    let now = net.now;
    let h = &mut net.hosts[0];
    let peer = h.peer.unwrap();
    let route = h.paths.route(peer).unwrap();
    h.paths.sent(now, route.path, route.window - 1000);
    assert_eq!(h.paths.route(peer).unwrap().window, 1000);
    h.paths.wake_when_open(peer);
    let opened = |h: &mut Host| {
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
fn an_address_that_comes_back_is_told_although_no_path_of_the_set_lives() {
    for host in 0..2 {
        let mut net = connected(41);
        net.start_traffic();
        let all = net.hosts[host].local.clone();
        let now = net.now;
        net.hosts[host].paths.set_local(now, &all[1..]);
        net.run(300 * MS);
        assert_eq!(net.up_paths(0), 1, "the first path has left the set");
        net.cut(1, true);
        net.run(Duration::from_secs(1));
        assert_eq!(net.active_link(0), None);
        net.tell_local(host);
        net.run(Duration::from_secs(2));
        for h in 0..2 {
            assert_eq!(net.active_link(h), Some(0), "host {h}, told by host {host}");
        }
    }
}

/// Each host has moved while the other could not hear it: both know only addresses that are no more.
/// Those that the queue pairs were connected with are the ones that both remember.
#[test]
fn hosts_that_have_both_moved_find_each_other_at_the_old_addresses() {
    for seed in 0..5 {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        let old = [0, 1].map(|host| net.hosts[host].local.clone());
        let tell = |net: &mut Net, host: usize, list: &[LocalAddress]| {
            net.hosts[host].local = list.to_vec();
            net.tell_local(host);
        };
        for (host, had) in old.iter().enumerate() {
            let other = |n: u8| LocalAddress {
                ip: [10, 0, n + 1, host as u8 + 101].into(),
                ..had[usize::from(n)]
            };
            tell(&mut net, host, &[other(0), other(1)]);
            net.run(Duration::from_secs(1));
            assert_eq!(net.up_paths(host), 2, "seed {seed} host {host}");
        }
        for host in 0..2 {
            tell(&mut net, host, &[]);
        }
        net.run(300 * MS);
        for (host, had) in old.iter().enumerate() {
            tell(&mut net, host, had);
        }
        net.run(Duration::from_secs(3));
        net.assert_same_paths();
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
    }
}

/// Both hosts get addresses at once that neither has ever had.
#[test]
fn hosts_that_have_both_moved_to_new_addresses_find_each_other_at_the_rendezvous() {
    for seed in 0..10 {
        for named in [[true, true], [true, false], [false, true], [false, false]] {
            let rendezvous = |named: bool| named.then_some(RENDEZVOUS);
            let config = |named| Config { rendezvous: rendezvous(named), ..Config::default() };
            let mut net = Net::with(seed, 2, named.map(config));
            net.connect();
            net.start_traffic();
            net.run(200 * MS);
            net.links[0].loss_per_mille = 100;
            let old = [0, 1].map(|host| net.hosts[host].local.clone());
            for host in 0..2 {
                net.hosts[host].local.clear();
                net.tell_local(host);
            }
            net.run(Duration::from_secs(1));
            for (host, had) in old.iter().enumerate() {
                let elsewhere = |n: u8| LocalAddress {
                    ip: [10, 7, n, host as u8 + 1].into(),
                    ..had[usize::from(n)]
                };
                net.hosts[host].local = vec![elsewhere(0), elsewhere(1)];
                net.tell_local(host);
            }
            net.run(Duration::from_secs(4));
            let both = named == [true, true];
            let found = [0, 1].map(|host| net.up_paths(host) > 0);
            assert_eq!(found, [both; 2], "seed {seed} {named:?}");
            if both {
                let before = net.hosts[0].acked;
                net.run(Duration::from_secs(1));
                assert!(net.hosts[0].acked > before + 100, "seed {seed}");
            }
        }
    }
}

/// A late packet of a path that left the set must never pass for one of the path that has its number now,
/// whether the path left because it had died or because there was a better pair.
#[test]
fn no_tag_ever_stands_for_two_paths() {
    for host in 0..2 {
        let mut net = connected(7);
        let [first, second] = net.hosts[host].local[..] else { unreachable!() };
        let far = LocalAddress { ip: [10, 9, 9, 9].into(), ifindex: 9, ..second };
        let mut seen = std::collections::BTreeMap::new();
        for round in 0..40u8 {
            let near = LocalAddress { ip: [10, 0, 2, 100 + round].into(), ifindex: 8, ..second };
            for list in [&[first, far][..], &[first, far, near]] {
                net.hosts[host].local = list.to_vec();
                net.tell_local(host);
                net.run(50 * MS);
                net.assert_same_paths();
                for p in &net.hosts[host].paths.status().peers[0].paths {
                    let tag = p.tag.unwrap();
                    let pair = (p.address.local, p.address.remote);
                    let before = seen.insert((tag.id, tag.generation), pair);
                    assert!(before.is_none_or(|b| b == pair), "{tag:?}: {before:?}, now {pair:?}");
                }
            }
        }
        let numbers: std::collections::BTreeSet<_> = seen.keys().map(|(id, _)| id).collect();
        assert!(seen.len() > 2 * numbers.len(), "numbers have come back: {seen:?}");
    }
}

#[test]
fn addresses_that_a_handshake_tells_first_make_a_path() {
    for seed in 0..SEEDS {
        let host = (seed % 2) as usize;
        let mut net = Net::new(seed, 1);
        net.connect();
        net.run(100 * MS);
        net.hosts[host].local[0].ip = "10.0.1.101".parse().unwrap();
        net.tell_local(host);
        net.run(100 * MS);
        assert_eq!(net.up_paths(host), 1, "seed {seed}");
        // The first address comes back while nothing gets through; then a queue pair is connected
        // before the change is told once more.
        net.cut(0, true);
        net.hosts[host].local[0].ip = ip(0, host);
        net.tell_local(host);
        net.run(Duration::from_secs(1));
        net.hosts[host].paths.detach(net.now, QPN[host]);
        net.cut(0, false);
        net.attach(host);
        net.run(Duration::from_secs(1));
        net.assert_same_paths();
        net.start_traffic();
        net.run(100 * MS);
        assert!(net.hosts.iter().all(|h| h.acked > 0), "seed {seed}");
    }
}

/// Both hosts have the same addresses as before, or each path has other ones.
#[test]
fn who_comes_to_a_host_with_another_receive_buffer_is_sent_no_more_than_that_takes() {
    for (seed, renumbered) in (0..SEEDS).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(500 * MS);
        let windows = |net: &Net| {
            let status = net.hosts[1].paths.status();
            let members = status.peers[0].paths.iter().filter(|p| p.state == PathState::Up);
            members.map(|p| p.window).collect::<Vec<_>>()
        };
        assert!(windows(&net).iter().all(|window| *window > 16 << 10), "{:?}", windows(&net));
        let here = net.hosts[0].local.clone();
        net.hosts[0].local.clear();
        net.tell_local(0);
        net.hosts[0].paths.left_host();
        net.run(200 * MS);
        net.hosts[0].paths.set_receive_window(16 << 10);
        net.hosts[0].local = here;
        if renumbered {
            // Of its two addresses it has one.
            net.hosts[0].local.remove(0);
        }
        net.tell_local(0);
        net.run(Duration::from_secs(3));
        let told = windows(&net);
        assert!(!told.is_empty(), "seed {seed}");
        assert!(told.iter().all(|window| *window <= 16 << 10), "seed {seed}: {told:?}");
        assert!(net.hosts[1].acked > 100, "seed {seed}");
    }
}

#[test]
fn traffic_of_a_link_that_is_lost_with_several_paths_moves_once() {
    for seed in 0..20 {
        let primary = Some(Primary::Interface(2));
        let config = Config { ports: 4, primary, ..Config::default() };
        let mut net = Net::with(seed, 2, [config.clone(), config]);
        net.connect();
        net.run(200 * MS);
        net.start_traffic();
        net.run(100 * MS);
        (0..2).for_each(|host| net.hosts[host].events.clear());
        let link = net.active_link(0).unwrap();
        net.link_up(link, false);
        net.run(100 * MS);
        for host in 0..2 {
            let moved = |e: &&(Duration, PathEvent)| matches!(e.1, PathEvent::ActiveChanged { .. });
            let count = net.hosts[host].events.iter().filter(moved).count();
            assert_eq!(count, 1, "seed {seed}, host {host}: {:?}", net.hosts[host].events);
            assert_eq!(net.active_link(host), Some(1 - link));
        }
    }
}
