//! Datagrams between lanes that have no connected queue pair with each other.

use std::net::IpAddr;
use std::time::Duration;

use polypath_paths::*;

use crate::SEEDS;
use crate::net::*;

/// Number 5 of the lane of a host.
fn qpn(host: usize) -> u32 {
    (host as u32 + 1) << 16 | 5
}

/// Both hosts have queue pairs for datagrams, and address handles of each other's first address: the paths of
/// these.
fn exchanging(net: &mut Net) -> [PathId; 2] {
    [0, 1].map(|h| {
        let paths = &mut net.hosts[h].paths;
        paths.take_datagrams();
        paths.ud_path(net.now, ip(0, h), ip(0, 1 - h), options()).unwrap()
    })
}

/// Where a datagram of a host goes now: the addresses.
fn send(net: &mut Net, host: usize, path: PathId) -> (IpAddr, IpAddr) {
    let (now, paths) = (net.now, &mut net.hosts[host].paths);
    let by = paths.ud_route_to(now, path, qpn(1 - host));
    let address = paths.path(by).copied().unwrap();
    assert_eq!(paths.check(), Ok(()));
    (address.local, address.remote)
}

/// Sends one each millisecond.
fn send_for(net: &mut Net, host: usize, path: PathId, time: Duration) {
    let end = net.now + time;
    while net.now < end {
        send(net, host, path);
        net.run(MS);
    }
}

/// Either end alone sends, or both do.
#[test]
fn the_first_datagram_makes_an_association_and_later_ones_survive_a_dead_path() {
    for seed in 0..SEEDS {
        let mut net = Net::new(seed, 2);
        let handles = exchanging(&mut net);
        let senders = [&[0][..], &[1], &[0, 1]][seed as usize % 3];
        for &h in senders {
            assert_eq!(send(&mut net, h, handles[h]), (ip(0, h), ip(0, 1 - h)), "seed {seed}");
        }
        net.run(200 * MS);
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
        net.assert_same_paths();
        for &h in senders {
            send_for(&mut net, h, handles[h], 100 * MS);
        }
        net.cut(0, true);
        for &h in senders {
            send_for(&mut net, h, handles[h], 150 * MS);
            assert_eq!(send(&mut net, h, handles[h]), (ip(1, h), ip(1, 1 - h)), "seed {seed}");
        }
        net.cut(0, false);
        for &h in senders {
            send_for(&mut net, h, handles[h], 1000 * MS);
            assert_eq!(send(&mut net, h, handles[h]), (ip(0, h), ip(0, 1 - h)), "seed {seed}");
        }
        assert!(net.hosts.iter().all(|h| h.paths.status().peers[0].qpns.is_empty()));
    }
}

#[test]
fn what_exchanges_no_datagrams_any_more_is_forgotten() {
    for seed in 0..SEEDS {
        let mut net = Net::new(seed, 2);
        let [path, _] = exchanging(&mut net);
        send_for(&mut net, 0, path, 100 * MS);
        net.run(Duration::from_secs(50));
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
        net.run(Duration::from_secs(80));
        for host in &net.hosts {
            assert!(host.paths.status().peers.is_empty(), "seed {seed}");
            assert_eq!(host.paths.next_deadline(), None, "seed {seed}");
        }
        // And begins again.
        send_for(&mut net, 0, path, 100 * MS);
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
    }
}

/// A queue pair that is connected later joins the association, and keeps it.
#[test]
fn connected_queue_pairs_share_the_association() {
    for seed in 0..SEEDS {
        let mut net = Net::new(seed, 2);
        let [path, _] = exchanging(&mut net);
        send_for(&mut net, 0, path, 100 * MS);
        net.connect();
        net.run(100 * MS);
        assert!(net.agreed(), "seed {seed}");
        let peers = |net: &Net| net.hosts.each_ref().map(|h| h.paths.status().peers.len());
        assert_eq!(peers(&net), [1, 1], "seed {seed}");
        net.start_traffic();
        net.run(Duration::from_secs(130));
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
        assert!(net.hosts.iter().all(|h| h.acked > 0), "seed {seed}");
    }
}

/// HELLOs to number 0 of a host's lane.
fn hellos(net: &Net, to: usize) -> usize {
    let is_hello = |f: &&Flying| f.to == to && matches!(&f.wire, Wire::Control(b) if b[0] == 0x64);
    net.log.iter().filter(is_hello).count()
}

#[test]
fn peers_that_do_not_answer_cost_a_few_packets() {
    let plain = Config { multipath: false, ..Config::default() };
    // The other end is plain, or has no queue pair for datagrams.
    for config in [plain, Config::default()] {
        let mut net = Net::with(3, 2, [Config::default(), config]);
        net.keep_log = true;
        let path = net.hosts[0].paths.ud_path(net.now, ip(0, 0), ip(0, 1), options()).unwrap();
        for _ in 0..10 {
            send_for(&mut net, 0, path, Duration::from_secs(1));
        }
        let first = hellos(&net, 1);
        assert!((4..=12).contains(&first), "{first}");
        assert_eq!(hellos(&net, 0), 0);
        for _ in 0..180 {
            send_for(&mut net, 0, path, 10 * MS);
            net.run(990 * MS);
        }
        assert!(hellos(&net, 1) - first <= 9, "{} more", hellos(&net, 1) - first);
        // It has come by now.
        net.hosts[1].paths.take_datagrams();
        send_for(&mut net, 0, path, 10 * MS);
        net.run(Duration::from_secs(61));
        send_for(&mut net, 0, path, 10 * MS);
        net.run(Duration::from_secs(30));
        let associated = !net.hosts[1].paths.status().peers.is_empty();
        assert_eq!(associated, net.hosts[1].paths.config().multipath);
    }
}

#[test]
fn groups_oneself_and_strangers_numbers_begin_nothing() {
    let mut net = Net::new(4, 2);
    exchanging(&mut net);
    let paths = &mut net.hosts[0].paths;
    for (to, number) in [
        (IpAddr::from([224, 0, 0, 9]), 0xff_ffff),
        (IpAddr::from([224, 0, 0, 9]), qpn(1)),
        (ip(1, 0), qpn(1)),
        (ip(0, 1), 17),
        (ip(0, 1), 0xff_0011),
    ] {
        let path = paths.ud_path(net.now, ip(0, 0), to, options()).unwrap();
        paths.ud_route_to(net.now, path, number);
        let unwanted = PathOptions { multipath: false, ..options() };
        let path = paths.ud_path(net.now, ip(0, 0), ip(0, 1), unwanted).unwrap();
        paths.ud_route_to(net.now, path, qpn(1));
    }
    assert!(paths.status().peers.is_empty() && paths.poll_transmit(net.now).is_none());
}

/// Whoever can send to a lane can begin to shake hands with it. It gets one answer for each packet, and takes
/// no room for long.
#[test]
fn handshakes_of_strangers_take_bounded_room_for_a_short_time() {
    let mut net = Net::new(5, 2);
    net.keep_log = true;
    let [path, _] = exchanging(&mut net);
    send(&mut net, 0, path);
    net.run(MS / 10);
    let hello = net.log.iter().find_map(|f| match &f.wire {
        Wire::Control(b) if f.to == 1 => Some(b.clone()),
        _ => None,
    });
    let mut hello = hello.unwrap();
    let mut net = Net::new(6, 2);
    exchanging(&mut net);
    net.keep_log = true;
    for n in 0..1000_u32 {
        let src = IpAddr::from((0x0a09_0000 | n).to_be_bytes());
        // Its nonce.
        hello[36..40].copy_from_slice(&n.to_be_bytes());
        let refused = Handled::Refused(Refused::Limit);
        let expected = if n < 64 { Handled::Accepted } else { refused };
        assert_eq!(net.control(1, src, ip(0, 1), &hello), expected);
    }
    let host = &mut net.hosts[1];
    assert_eq!(host.paths.status().peers.len(), 64);
    let mut answers = 0;
    let mut take = |paths: &mut PathManager, now| {
        while paths.poll_transmit(now).is_some() {
            answers += 1;
        }
    };
    take(&mut host.paths, net.now);
    let later = net.now + Duration::from_secs(6);
    host.paths.handle_timeout(later);
    take(&mut host.paths, later);
    assert!(answers <= 64, "{answers}");
    assert_eq!((host.paths.status().peers.len(), host.paths.check()), (0, Ok(())));
}

/// A lane that there was no room for gets its turn when another one is not needed any more.
#[test]
fn datagrams_to_many_lanes_begin_handshakes_as_far_as_there_is_room() {
    const MOST: usize = 64;
    let mut net = Net::new(5, 2);
    exchanging(&mut net);
    let (now, paths) = (net.now, &mut net.hosts[0].paths);
    let handles = [7, 8].map(|n| paths.ud_path(now, ip(0, 0), ip(0, n), options()).unwrap());
    let send = |net: &mut Net, handle: PathId, lane: u32| {
        let (now, paths) = (net.now, &mut net.hosts[0].paths);
        paths.ud_route_to(now, handle, lane << 16 | 5);
        assert_eq!(paths.check(), Ok(()));
        paths.status().peers.len()
    };
    for lane in 1..=32 {
        assert_eq!(send(&mut net, handles[0], lane), 2 * lane as usize - 1);
        assert_eq!(send(&mut net, handles[0], lane), 2 * lane as usize - 1, "known");
        assert_eq!(send(&mut net, handles[1], lane), 2 * lane as usize);
    }
    assert_eq!(send(&mut net, handles[1], 33), MOST, "no room");
    // Datagrams by the one handle keep its pairs; those of the other end.
    for _ in 0..13 {
        net.run(10_000 * MS);
        send(&mut net, handles[0], 1);
    }
    assert_eq!(send(&mut net, handles[0], 1), MOST / 2);
    assert_eq!(send(&mut net, handles[1], 33), MOST / 2 + 1);
}
