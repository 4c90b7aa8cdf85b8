//! Grey failures: a path carries probes and other queue pairs' data, but not that of one.

use std::time::Duration;

use polypath_paths::*;

use crate::net::*;
use crate::*;

const SUFFERS: u32 = QPN[0];

/// Lets host 0 run for `time` while nothing of the queue pair is acknowledged since `since`, as a requester
/// reports it. Other traffic flows. Gives the paths that it took.
fn stall(net: &mut Net, since: Duration, time: Duration) -> Vec<PathId> {
    let end = net.now + time;
    let before = net.hosts[0].events.len();
    while net.now < end {
        net.run(10 * MS);
        let (now, h) = (net.now, &mut net.hosts[0]);
        let Some(route) = h.paths.route_of(h.peer.unwrap(), SUFFERS) else { continue };
        h.paths.stalled(now, route.path, SUFFERS, since);
    }
    net.run(MS);
    let events = net.hosts[0].events[before..].iter();
    let to = |(_, e): &(Duration, PathEvent)| match e {
        PathEvent::Detour { qpn: SUFFERS, to, .. } => Some(*to),
        _ => None,
    };
    events.filter_map(to).collect()
}

fn ways(net: &mut Net) -> (PathId, PathId) {
    let h = &mut net.hosts[0];
    let peer = h.peer.unwrap();
    (h.paths.route(peer).unwrap().path, h.paths.route_of(peer, SUFFERS).unwrap().path)
}

#[test]
fn who_suffers_leaves_a_path_that_carries_others() {
    for seed in 0..5 {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        let since = net.now;
        assert_eq!(stall(&mut net, since, 400 * MS), [], "a stall may pass");
        let taken = stall(&mut net, since, 300 * MS);
        assert_eq!(taken.len(), 1, "seed {seed}");
        let (others, own) = ways(&mut net);
        assert_ne!(others, own);
        assert_eq!(own, taken[0]);
        assert_eq!(net.deaths(), 0, "the path is not dead");
        // Progress: it stays where it is.
        let since = net.now;
        assert_eq!(stall(&mut net, since, 300 * MS), []);
        net.run(Duration::from_secs(10));
        assert_eq!(ways(&mut net), (others, own), "no way back without need");
    }
}

#[test]
fn all_paths_are_tried_again_and_again_each_time_for_longer() {
    let mut net = Net::new(5, 3);
    net.connect();
    net.start_traffic();
    net.run(200 * MS);
    let since = net.now;
    let taken = stall(&mut net, since, Duration::from_secs(10));
    // Three times half a second, then twice one, twice two.
    assert_eq!(taken.len(), 7, "{taken:?}");
    assert!(taken.windows(2).all(|way| way[0] != way[1]), "{taken:?}");
    let since = net.now;
    let taken = stall(&mut net, since, Duration::from_millis(1300));
    assert_eq!(taken.len(), 2, "{taken:?}: there was progress");
}

#[test]
fn a_path_that_is_dead_keeps_nobody_from_trying_the_others_again() {
    let mut net = Net::new(5, 3);
    net.connect();
    net.start_traffic();
    net.run(200 * MS);
    net.link_up(2, false);
    net.run(100 * MS);
    let since = net.now;
    let taken = stall(&mut net, since, Duration::from_secs(5));
    assert_eq!(taken.len(), 4, "{taken:?}: twice half a second, then one, then two");
}

#[test]
fn a_detour_ends_with_its_path() {
    let mut net = connected(6);
    net.start_traffic();
    net.run(100 * MS);
    let since = net.now;
    assert_eq!(stall(&mut net, since, 700 * MS).len(), 1);
    net.cut(1, true);
    net.run(Duration::from_secs(1));
    let (others, own) = ways(&mut net);
    assert_eq!(others, own);
    net.cut(1, false);
    net.run(Duration::from_secs(2));
    let (others, own) = ways(&mut net);
    assert_eq!(others, own);
}

#[test]
fn a_peer_that_does_not_run_sends_nobody_on_a_detour() {
    for seed in 0..5 {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(100 * MS);
        let since = net.now;
        net.pause(1, Duration::from_secs(2));
        assert_eq!(stall(&mut net, since, Duration::from_millis(1990)), []);
    }
}

/// The peer is silent on all paths, and its hold time ends. The queue pair's retries run out on the same
/// path, whether it can use one path or several.
#[test]
fn an_outage_that_was_given_up_ends_on_the_main_path() {
    let mut net = connected(3);
    net.start_traffic();
    net.run(100 * MS);
    let since = net.now;
    let taken = stall(&mut net, since, 700 * MS);
    let (main, own) = ways(&mut net);
    assert_eq!((taken, own != main), (vec![own], true));
    net.cut(0, true);
    net.cut(1, true);
    net.run(Duration::from_secs(20));
    assert!(net.has(0, |e| matches!(e, PathEvent::PeerLost { .. })));
    let (main, own) = ways(&mut net);
    assert_eq!(main, own);
    let h = &mut net.hosts[0];
    let want = Want { qpn: SUFFERS, class: Class::Request, bytes: 1, backlog: 1, asks: false };
    let Pick::Route(picked) = h.paths.pick(h.peer.unwrap(), &want) else { panic!("no route") };
    assert_eq!(picked.path, own);
}
