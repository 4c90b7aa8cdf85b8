//! Datagrams between lanes that have no connected queue pair with each other.

use std::net::IpAddr;
use std::time::Duration;

use polypath_paths::*;
use polypath_types::{Class, Pick, Want};
use polypath_wire::bth::Bth;
use polypath_wire::ext::{Deth, MpHeader};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};

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

/// A datagram of host 0 to host 1, as each of the two ends of a lane would see it: the packets that are sent.
fn send_twice(net: &mut Net, path: PathId) -> Vec<(IpAddr, Vec<u8>)> {
    let paths = &mut net.hosts[0].paths;
    let by = paths.ud_route_to(net.now, path, qpn(1));
    let twins = paths.ud_twins(path, qpn(1));
    let Some(copies) = twins.and_then(|twins| paths.number_datagram(twins)) else {
        return vec![(paths.path(by).unwrap().local, Vec::new())];
    };
    let copy = |n: usize| {
        let mut headers = Headers::new(Bth::new(Opcode::MP_DATAGRAM));
        let tag = copies.tags[n];
        headers.mp = Some(MpHeader {
            flags: MpHeader::TWICE | if n == 1 { MpHeader::COPY } else { 0 },
            path_id: tag.id,
            generation: tag.generation,
            msg: copies.number,
            offset: copies.association,
            ..MpHeader::default()
        });
        headers.deth = Some(Deth { qkey: 0, src_qpn: qpn(0) });
        let mut packet = headers.packet(b"");
        packet.extend([0; 4]);
        (paths.path(twins.unwrap()[n]).unwrap().local, packet)
    };
    vec![copy(0), copy(1)]
}

/// Whether host 1 takes it.
fn takes(net: &mut Net, (src, packet): &(IpAddr, Vec<u8>)) -> bool {
    let packet = Packet::parse(packet).unwrap();
    !net.hosts[1].paths.is_datagram_copy(*src, &packet)
}

fn redundant(links: usize, seed: u64) -> (Net, PathId) {
    let mut net = Net::new(seed, links);
    let [path, _] = exchanging(&mut net);
    set_mode(&mut net, Mode::Redundant);
    send_for(&mut net, 0, path, 300 * MS);
    (net, path)
}

fn set_mode(net: &mut Net, mode: Mode) {
    let paths = &mut net.hosts[0].paths;
    let usage = Usage { mode, ..Usage::of(paths.config()) };
    paths.set_usage(net.now, &usage);
}

#[test]
fn a_datagram_that_is_sent_twice_is_taken_once_whichever_copy_comes_first() {
    for seed in 0..SEEDS {
        let (mut net, path) = redundant(2, seed);
        for n in 0..50 {
            let copies = send_twice(&mut net, path);
            let [one, other] = &copies[..] else { panic!("seed {seed}: {copies:?}") };
            assert_eq!([one.0, other.0], [ip(0, 0), ip(1, 0)], "seed {seed}");
            let (one, other) = if n % 3 == 0 { (other, one) } else { (one, other) };
            assert!(takes(&mut net, one), "seed {seed}, datagram {n}");
            // Some are lost.
            assert!(n % 5 == 0 || !takes(&mut net, other), "seed {seed}, datagram {n}");
        }
    }
}

#[test]
fn datagrams_go_by_two_of_those_paths_that_live_while_the_policy_says_so() {
    for seed in 0..SEEDS {
        let (mut net, path) = redundant(3, seed);
        let by = |net: &mut Net| {
            send_twice(net, path).into_iter().map(|(src, _)| src).collect::<Vec<_>>()
        };
        let first = by(&mut net);
        assert_eq!((first.len(), first[0]), (2, ip(0, 0)), "seed {seed}");
        net.cut(0, true);
        send_for(&mut net, 0, path, 300 * MS);
        let mut left = by(&mut net);
        left.sort();
        assert_eq!(left, [ip(1, 0), ip(2, 0)], "seed {seed}");
        net.cut(1, true);
        send_for(&mut net, 0, path, 300 * MS);
        assert_eq!(by(&mut net), [ip(2, 0)], "seed {seed}");
        net.cut(0, false);
        net.cut(1, false);
        send_for(&mut net, 0, path, 2000 * MS);
        assert_eq!(by(&mut net)[0], ip(0, 0), "seed {seed}");
        set_mode(&mut net, Mode::Balance);
        assert_eq!(by(&mut net), [ip(0, 0)], "seed {seed}");
        set_mode(&mut net, Mode::Redundant);
        assert_eq!(by(&mut net).len(), 2, "seed {seed}");
    }
}

#[test]
fn an_older_version_gets_one_copy() {
    let older = Config { drops_copies: false, ..Config::default() };
    let mut net = Net::with(3, 2, [Config::default(), older]);
    let [path, _] = exchanging(&mut net);
    set_mode(&mut net, Mode::Redundant);
    send_for(&mut net, 0, path, 300 * MS);
    assert_eq!(net.up_paths(0), 2);
    assert_eq!(send_twice(&mut net, path).len(), 1);
}

/// The receiver has forgotten the association, or somebody else uses its number.
#[test]
fn of_copies_that_no_association_explains_the_first_is_taken() {
    let (mut net, path) = redundant(2, 5);
    let copies = send_twice(&mut net, path);
    let stranger = IpAddr::from([192, 0, 2, 1]);
    for _ in 0..2 {
        let taken = [0, 1].map(|n| takes(&mut net, &(stranger, copies[n].1.clone())));
        assert_eq!(taken, [true, false]);
    }
    assert!(takes(&mut net, &copies[1]), "strangers change nothing");
}

/// One process may have devices with several paths and with one, and datagrams or queue pairs of the first
/// kind have made an association between the lanes. An end of the second kind takes nothing from other
/// addresses.
#[test]
fn a_queue_pair_whose_other_end_has_one_path_keeps_to_it() {
    let by = |net: &mut Net| {
        let (now, host) = (net.now, &mut net.hosts[0]);
        let class = Class::Request;
        let want = Want { qpn: QPN[0], bytes: 4096, backlog: 1 << 20, asks: false, class };
        let Pick::Route(route) = host.paths.pick(host.peer.unwrap(), &want) else {
            panic!("no route")
        };
        host.paths.sent(now, route.path, 4096);
        let address = host.paths.path(route.path).unwrap();
        (address.local, address.remote, route.twin.is_some())
    };
    for mode in [Mode::Balance, Mode::ActiveBackup, Mode::Redundant] {
        let config = Config { mode, ..Config::default() };
        let mut net = Net::with(5, 2, [config.clone(), config]);
        let [handle, _] = exchanging(&mut net);
        send_for(&mut net, 0, handle, 100 * MS);
        assert_eq!(net.up_paths(0), 2);
        net.attach(0);
        let one = PathOptions::default();
        let (now, other) = (net.now, &mut net.hosts[1].paths);
        let peer = other.attach(now, QPN[1], QPN[0], ip(0, 1), ip(0, 0), one).unwrap();
        // More than the window of one path, which never opens.
        for _ in 0..3000 {
            let (src, dst, twice) = by(&mut net);
            assert_eq!((src, dst, twice), (ip(0, 0), ip(0, 1), false), "{mode:?}");
            let other = &mut net.hosts[1].paths;
            other.classify(peer, src, dst, PathKind::Udp, None, 4096).unwrap();
            net.run(MS);
        }
        assert_eq!(net.hosts[0].paths.status().peers[0].agreed, 0);
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
