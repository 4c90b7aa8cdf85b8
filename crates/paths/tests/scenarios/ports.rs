//! Several paths between the same addresses, by source ports, over links that are several ways.

use std::time::Duration;

use polypath_paths::*;

use crate::net::*;

const SECOND: Duration = Duration::from_secs(1);
/// Fewer than elsewhere, because each takes long.
const SEEDS: u64 = 10;

fn config(ports: u8) -> Config {
    Config { ports, ..Config::default() }
}

/// Two hosts that want so many ports, after their handshake, with links of so many ways.
fn with_ports(seed: u64, links: usize, ports: [u8; 2], ways: u32) -> Net {
    let mut net = Net::with(seed, links, ports.map(config));
    net.links.iter_mut().for_each(|link| link.ways = ways);
    net.connect();
    net.run(200 * MS);
    assert!(net.agreed(), "seed {seed}");
    net.assert_same_paths();
    net
}

/// Two hosts that know each other as plain peers, with one link of so many ways.
fn plain(seed: u64, ways: u32) -> Net {
    let off = Config { multipath: false, ..Config::default() };
    let mut net = Net::with(seed, 1, [off.clone(), off]);
    net.links[0].ways = ways;
    net.connect();
    net
}

#[test]
fn plain_peers_leave_a_silent_way_whichever_of_them_has_data_to_send() {
    let mut all_changes = 0;
    for seed in 0..SEEDS {
        for senders in [&[0][..], &[1], &[0, 1]] {
            let mut net = plain(seed, 2);
            for host in senders {
                net.hosts[*host].traffic = true;
            }
            net.run(300 * MS);
            assert_eq!(changes(&net), 0, "seed {seed}");
            net.links[0].cut_ways = vec![(seed % 2) as u32];
            net.run(SECOND);
            let acked = senders.iter().map(|host| net.hosts[*host].acked).collect::<Vec<_>>();
            let settled = changes(&net);
            net.run(SECOND);
            for (host, before) in senders.iter().zip(acked) {
                let host = &net.hosts[*host];
                assert!(host.acked > before + 100, "seed {seed}, senders {senders:?}");
                assert!(host.worst_gap < 500 * MS, "seed {seed}: {:?}", host.worst_gap);
            }
            assert_eq!(changes(&net), settled, "a port by which the peer answers is kept");
            all_changes += settled;
        }
    }
    assert!(all_changes > 0);
}

/// Nothing answers by any way: sockets are not opened without end.
#[test]
fn a_dead_plain_peer_has_few_port_changes() {
    let mut net = plain(1, 2);
    net.hosts[0].traffic = true;
    net.run(300 * MS);
    net.links[0].cut_ways = vec![0, 1];
    net.run(SECOND * 60);
    let made = changes(&net);
    assert!((10..60).contains(&made), "{made}");
}

/// What takes long for every packet, because queues are long or the peer's machine is slow, is no silence.
#[test]
fn a_slow_plain_peer_keeps_its_port() {
    let off = Config { multipath: false, ..Config::default() };
    let mut net = Net::with(1, 1, [off.clone(), off]);
    net.connect();
    let paths = &mut net.hosts[0].paths;
    let path = paths.path_ids().next().unwrap();
    let port = |paths: &PathManager| paths.path(path).unwrap().source_port;
    let first = port(paths);
    paths.stalled(50 * MS, path, QPN[0], Duration::ZERO);
    assert_eq!(port(paths), first, "nothing is known of its round trips");
    for n in 0..20 {
        let now = SECOND + 300 * MS * n;
        paths.sent(now, path, 1000);
        paths.acked(now + 300 * MS, path, 1000, Some(300 * MS));
    }
    let since = SECOND * 8;
    paths.stalled(since + 600 * MS, path, QPN[0], since);
    assert_eq!(port(paths), first);
    paths.stalled(since + 1000 * MS, path, QPN[0], since);
    assert_ne!(port(paths), first);
}

#[test]
fn loss_alone_changes_no_ports_of_plain_peers() {
    let mut net = plain(3, 2);
    net.links[0].loss_per_mille = 20;
    net.hosts.iter_mut().for_each(|host| host.traffic = true);
    net.run(SECOND * 5);
    assert!(net.hosts.iter().all(|host| host.acked > 1000));
    assert!(changes(&net) < 5, "{}", changes(&net));
}

fn ports(net: &Net, host: usize) -> Vec<u16> {
    net.paths(host).iter().map(|path| path.address.source_port).collect()
}

fn changes(net: &Net) -> u64 {
    (0..2).flat_map(|h| net.paths(h)).map(|path| path.counters.port_changes).sum()
}

#[test]
fn the_larger_setting_counts_if_both_ends_know_of_ports() {
    for (links, wanted, count) in [
        (1, [1, 1], 1),
        (1, [4, 1], 4),
        (1, [2, 3], 3),
        (1, [8, 8], 8),
        (2, [1, 3], 6),
        (2, [8, 8], 8),
        (3, [8, 1], 8),
        // An older version.
        (1, [0, 8], 1),
        (2, [4, 0], 2),
    ] {
        for seed in 0..4 {
            let net = with_ports(seed, links, wanted, 1);
            for h in 0..2 {
                assert_eq!((net.up_paths(h), net.paths(h).len()), (count, count), "{wanted:?}");
                // Each link has its share, and each path between the same addresses its port.
                for link in 0..links {
                    let on = |p: &&PathStatus| p.address.local == ip(link, h);
                    let paths = net.paths(h);
                    let mut own: Vec<u16> =
                        paths.iter().filter(on).map(|p| p.address.source_port).collect();
                    let least = count / links;
                    assert!((least..=least + 1).contains(&own.len()), "{wanted:?}");
                    own.sort_unstable();
                    own.dedup();
                    assert_eq!(own.len(), paths.iter().filter(on).count());
                    assert!(own.iter().all(|port| *port >= 0xc000));
                }
            }
        }
    }
}

#[test]
fn further_addresses_go_before_further_ports() {
    let mut net = Net::with(5, 3, [config(8), config(8)]);
    for host in 0..2 {
        let late = net.hosts[host].local.pop().unwrap();
        net.tell_local(host);
        net.hosts[host].local.push(late);
    }
    net.connect();
    net.run(200 * MS);
    assert_eq!(net.up_paths(0), 8);
    (0..2).for_each(|host| net.tell_local(host));
    net.run(5 * SECOND);
    net.assert_same_paths();
    assert_eq!(net.up_paths(0), 8);
    let on = |link| net.paths(0).iter().filter(|p| p.address.local == ip(link, 0)).count();
    assert_eq!([on(0), on(1), on(2)], [3, 3, 2]);
}

#[test]
fn paths_leave_a_silent_way_and_come_back_to_it() {
    let mut left = 0;
    for seed in 0..SEEDS {
        let mut net = with_ports(seed, 1, [4, 4], 2);
        let before = [ports(&net, 0), ports(&net, 1)];
        net.start_traffic();
        net.run(300 * MS);
        net.reset_gaps();
        net.links[0].cut_ways = vec![(seed % 2) as u32];
        let ways = |net: &Net, h: usize| -> Vec<u32> {
            ports(net, h).iter().map(|port| net.links[0].way(*port)).collect()
        };
        let through = |n: usize| (0..2).all(|h| ways(&net, h)[n] != (seed % 2) as u32);
        let any_through = (0..4).any(through);
        net.run(20 * SECOND);
        for h in 0..2 {
            assert_eq!(net.up_paths(h), 4, "seed {seed}");
            assert!(ways(&net, h).iter().all(|way| *way != (seed % 2) as u32), "seed {seed}");
            let gap = net.hosts[h].worst_gap;
            // The path that takes over may be on the silent way, too.
            assert!(!any_through || gap < 60 * MS, "seed {seed}: {gap:?}");
        }
        left += changes(&net);
        // It is noted once that a path answers by another port, and not that ports are tried.
        let repathed = net.count(0, |e| matches!(e, PathEvent::Repathed { .. }));
        assert!(repathed <= 16, "seed {seed}: {repathed}");
        net.links[0].cut_ways.clear();
        let deaths = net.deaths();
        net.run(60 * SECOND);
        assert_eq!([ports(&net, 0), ports(&net, 1)], before, "seed {seed}");
        assert_eq!((net.deaths(), net.up_paths(0)), (deaths, 4), "seed {seed}");
        let settled = changes(&net);
        net.run(20 * SECOND);
        assert_eq!(changes(&net), settled, "seed {seed}");
    }
    assert!(left > 0);
}

#[test]
fn the_only_path_finds_another_way_within_the_hold_time() {
    for seed in 0..SEEDS {
        let mut net = with_ports(seed, 1, [1, 1], 2);
        net.start_traffic();
        net.run(300 * MS);
        let cut = net.links[0].way(ports(&net, (seed % 2) as usize)[0]);
        net.links[0].cut_ways = vec![cut];
        net.run(15 * SECOND);
        for h in 0..2 {
            assert_eq!(net.up_paths(h), 1, "seed {seed}");
            assert!(!net.has(h, |e| matches!(e, PathEvent::PeerLost { .. })), "seed {seed}");
            assert_ne!(net.links[0].way(ports(&net, h)[0]), cut, "seed {seed}");
        }
        let acked = net.hosts[0].acked;
        net.run(SECOND);
        assert!(net.hosts[0].acked > acked, "seed {seed}");
    }
}

#[test]
fn the_first_port_is_tried_as_well_while_nothing_answers() {
    for seed in 0..SEEDS {
        let mut net = with_ports(seed, 1, [1, 1], 1);
        let before = [ports(&net, 0), ports(&net, 1)];
        net.start_traffic();
        net.run(300 * MS);
        net.cut(0, true);
        net.run(3 * SECOND);
        // A firewall may know the first ports only.
        let first = before.concat();
        net.cut(0, false);
        net.links[0].only = Some(first);
        net.run(5 * SECOND);
        assert_eq!([ports(&net, 0), ports(&net, 1)], before, "seed {seed}");
        assert_eq!(net.up_paths(0), 1, "seed {seed}");
    }
}

#[test]
fn links_that_come_and_go_change_no_port() {
    for seed in 0..SEEDS {
        let mut net = with_ports(seed, 2, [3, 3], 2);
        let before = [ports(&net, 0), ports(&net, 1)];
        net.start_traffic();
        for _ in 0..3 {
            net.run(SECOND);
            net.link_up(0, false);
            net.run(SECOND);
            net.link_up(0, true);
        }
        net.run(12 * SECOND);
        assert_eq!((net.up_paths(0), net.up_paths(1)), (6, 6), "seed {seed}");
        assert_eq!([ports(&net, 0), ports(&net, 1)], before, "seed {seed}");
        assert_eq!(changes(&net), 0, "seed {seed}");
    }
}

#[test]
fn a_port_that_a_program_chose_stays() {
    let mut net = Net::with(3, 1, [config(1), config(1)]);
    let mut before = Vec::new();
    for host in 0..2 {
        let options = PathOptions { flow_label: 0x1234, ..options() };
        let (local, remote) = (ip(0, host), ip(0, 1 - host));
        let h = &mut net.hosts[host];
        let attached = h.paths.attach(net.now, QPN[host], QPN[1 - host], local, remote, options);
        h.peer = Some(attached.unwrap());
    }
    net.run(200 * MS);
    (0..2).for_each(|host| before.extend(ports(&net, host)));
    net.start_traffic();
    net.run(100 * MS);
    net.cut(0, true);
    net.run(5 * SECOND);
    assert_eq!(changes(&net), 0);
    assert_eq!(before, [ports(&net, 0), ports(&net, 1)].concat());
}
