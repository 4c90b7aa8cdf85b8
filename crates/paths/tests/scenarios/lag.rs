//! Hosts with bonds of the kernel's: which of its ports a path leaves by, and what becomes of it.

use std::time::Duration;

use polypath_paths::*;

use crate::net::*;

const SECOND: Duration = Duration::from_secs(1);
/// The indexes of a bond's ports begin with this one.
const FIRST: u32 = 100;

fn config(ports: u8) -> Config {
    Config { ports, mode: Mode::Balance, ..Config::default() }
}

/// Tells a host of its bond's ports, and has the kernel send by those that are usable.
fn tell(net: &mut Net, host: usize, usable: &[bool]) {
    let hashed = if net.links[0].bound[host] { Hashed::Bound } else { Hashed::All };
    let ifindex = net.hosts[host].local[0].ifindex;
    let member = |(n, usable): (u32, &bool)| LagMember { ifindex: FIRST + n, usable: *usable };
    let members = (0..).zip(usable).map(member).collect();
    net.links[0].bonds[host] = usable.to_vec();
    let now = net.now;
    net.hosts[host].paths.set_lags(now, &[Lag { ifindex, above: vec![], hashed, members }]);
    net.tell_local(host);
}

/// The same where ports come or go: an adopted bond wants as many source ports as it has ports.
fn enslave(net: &mut Net, host: usize, links: usize) {
    tell(net, host, &vec![true; links]);
    let usage = Usage::of(&config(links as u8));
    let now = net.now;
    net.hosts[host].paths.set_usage(now, &usage);
}

/// Two hosts with bonds of so many ports (0: an ordinary interface), after their handshake.
fn bonded(seed: u64, links: [usize; 2]) -> Net {
    bonded_as(seed, links, [false; 2])
}

/// The same, where hosts may bind their source ports to the ports of the bond.
fn bonded_as(seed: u64, links: [usize; 2], bound: [bool; 2]) -> Net {
    let wanted = links.map(|links| config(links.max(1) as u8));
    let mut net = Net::with(seed, 1, wanted);
    net.links[0].bound = bound;
    for (host, links) in links.into_iter().enumerate() {
        if links > 0 {
            tell(&mut net, host, &vec![true; links]);
        }
    }
    net.connect();
    net.run(200 * MS);
    assert!(net.agreed(), "seed {seed}");
    net.assert_same_paths();
    net
}

/// The bond's port that each path of a host that is up leaves by, as the kernel has it.
fn members(net: &Net, host: usize) -> Vec<usize> {
    let up = net.paths(host).into_iter().filter(|path| path.state == PathState::Up);
    let by = |path: PathStatus| {
        let PathAddress { local, remote, source_port, .. } = path.address;
        let member = net.links[0].member(host, (local, remote), source_port).unwrap();
        let known = path.leaves_by;
        assert_eq!(known, Some(FIRST + member as u32), "what it is taken to be");
        member
    };
    let mut all: Vec<usize> = up.map(by).collect();
    all.sort_unstable();
    all
}

#[test]
fn each_port_of_a_bond_has_as_many_paths() {
    for seed in 0..20 {
        for (links, of) in [
            ([2, 0], [vec![0, 1], vec![]]),
            ([2, 2], [vec![0, 1], vec![0, 1]]),
            ([4, 2], [vec![0, 1, 2, 3], vec![0, 0, 1, 1]]),
            ([1, 4], [vec![0; 4], vec![0, 1, 2, 3]]),
        ] {
            let net = bonded(seed, links);
            for (host, members_of) in of.iter().enumerate().filter(|(host, _)| links[*host] > 0) {
                assert_eq!(members(&net, host), *members_of, "{links:?} host {host} seed {seed}");
            }
        }
    }
}

#[test]
fn the_paths_by_a_lost_port_are_given_up_at_once_and_come_back_with_it() {
    for seed in 0..20 {
        for (links, lost) in [(2, 0), (2, 1), (4, 2)] {
            let mut net = bonded(seed, [links, 2]);
            net.start_traffic();
            net.run(300 * MS);
            net.reset_gaps();
            // Three at a time are no power of two.
            let mut usable = vec![true; links];
            usable[lost] = false;
            if links == 4 {
                usable[lost + 1] = false;
            }
            let left: Vec<usize> = (0..links).filter(|n| usable[*n]).collect();
            tell(&mut net, 0, &usable);
            // Before any time passes.
            assert_eq!(members(&net, 0), left, "seed {seed}");
            let down = net.paths(0).into_iter().filter(|path| path.state == PathState::Down);
            assert!(down.clone().count() == links - left.len());
            assert!(down.into_iter().all(|path| path.reason == Some(Reason::LinkDown)));
            net.run(2 * SECOND);
            assert_eq!(members(&net, 0), left, "seed {seed}");
            let gaps = [0, 1].map(|host| net.hosts[host].worst_gap);
            assert!(gaps[0] < 20 * MS, "seed {seed}: {gaps:?}");
            let by = net.links[0].by_port[0];
            net.run(SECOND);
            assert!((0..links).all(|n| usable[n] || net.links[0].by_port[0][n] == by[n]));

            tell(&mut net, 0, &vec![true; links]);
            net.run(2 * SECOND);
            assert_eq!(members(&net, 0), (0..links).collect::<Vec<_>>(), "seed {seed}");
            net.assert_same_paths();
        }
    }
}

/// Interfaces that share an address: the lane binds source ports to them, and none of these moves.
#[test]
fn paths_stay_with_the_interfaces_that_their_ports_are_bound_to() {
    for seed in 0..20 {
        for (links, lost) in [(2, 0), (2, 1), (4, 2)] {
            let mut net = bonded_as(seed, [links, 2], [true, seed % 2 == 0]);
            net.start_traffic();
            net.run(300 * MS);
            net.reset_gaps();
            let ports = |net: &Net| -> Vec<u16> {
                net.paths(0).iter().map(|path| path.address.source_port).collect()
            };
            let before = ports(&net);
            let mut usable = vec![true; links];
            usable[lost] = false;
            tell(&mut net, 0, &usable);
            let left: Vec<usize> = (0..links).filter(|n| usable[*n]).collect();
            assert_eq!(members(&net, 0), left, "seed {seed}");
            net.run(2 * SECOND);
            assert_eq!((members(&net, 0), ports(&net)), (left, before.clone()), "seed {seed}");
            assert!(net.hosts[0].worst_gap < 20 * MS, "seed {seed}");
            tell(&mut net, 0, &vec![true; links]);
            net.run(2 * SECOND);
            assert_eq!(members(&net, 0), (0..links).collect::<Vec<_>>(), "seed {seed}");
            assert_eq!(ports(&net), before, "seed {seed}");
            net.assert_same_paths();
        }
    }
}

/// Settings that name an interface mean the one that a path leaves by, not the one that has the address.
#[test]
fn an_interface_that_shares_an_address_is_chosen_by_its_own_index() {
    for seed in 0..10 {
        for wanted in 0..2 {
            let mut net = bonded_as(seed, [2, 0], [true, false]);
            let now = net.now;
            let primary = Some(Primary::Interface(FIRST + wanted));
            let usage = Usage { mode: Mode::ActiveBackup, primary, ..Usage::of(&config(2)) };
            // The address is on the first of them.
            net.hosts[0].local[0].ifindex = FIRST;
            tell(&mut net, 0, &[true; 2]);
            net.hosts[0].paths.set_usage(now, &usage);
            net.run(SECOND);
            let peer = net.hosts[0].peer.unwrap();
            let route = net.hosts[0].paths.route(peer).unwrap();
            let by = net.hosts[0].paths.lag_member(route.path);
            assert_eq!(by, Some(FIRST + wanted), "seed {seed}");
        }
    }
}

#[test]
fn enslaving_and_releasing_moves_paths_and_ends_none() {
    for seed in 0..20 {
        let mut net = bonded(seed, [2, 2]);
        net.start_traffic();
        net.run(300 * MS);
        let deaths = net.deaths();
        tell(&mut net, 0, &[true]);
        assert_eq!(members(&net, 0), [0, 0], "seed {seed}");
        net.run(SECOND);
        tell(&mut net, 0, &[true; 4]);
        net.run(SECOND);
        let moved = members(&net, 0);
        assert!(moved.len() == 2 && moved[0] != moved[1], "{moved:?}");
        assert_eq!(net.deaths(), deaths, "seed {seed}");
        // A bond that is no bond any more is as other links are.
        net.links[0].bonds[0].clear();
        let now = net.now;
        net.hosts[0].paths.set_lags(now, &[]);
        net.run(SECOND);
        assert_eq!((net.up_paths(0), net.deaths()), (2, deaths), "seed {seed}");
        assert!(net.paths(0).iter().all(|path| net.hosts[0].paths.lag_member(path.path).is_none()));
    }
}

/// Either host may be the one that numbers the paths.
#[test]
fn ports_that_are_enslaved_get_paths_and_those_released_lose_theirs_while_data_flows() {
    for seed in 0..20 {
        for host in 0..2 {
            let mut net = bonded(seed, [2, 2]);
            net.start_traffic();
            net.run(300 * MS);
            for (links, other) in
                [(4, vec![0, 0, 1, 1]), (2, vec![0, 1]), (1, vec![0, 1]), (4, vec![0, 0, 1, 1])]
            {
                net.reset_gaps();
                enslave(&mut net, host, links);
                net.run(2 * SECOND);
                let wanted = (0..links.max(2)).map(|n| n % links).collect::<Vec<_>>();
                assert_eq!(members(&net, host), wanted, "seed {seed}, host {host}");
                assert_eq!(members(&net, 1 - host), other, "seed {seed}, host {host}");
                net.assert_same_paths();
                let gaps = [0, 1].map(|host| net.hosts[host].worst_gap);
                assert!(gaps.iter().all(|gap| *gap < 30 * MS), "seed {seed}, {links}: {gaps:?}");
            }
        }
    }
}

/// The link loses everything while the peer is told: it is told again.
#[test]
fn a_peer_that_was_out_of_reach_learns_later_of_ports_that_came() {
    for seed in 0..10 {
        for host in 0..2 {
            let mut net = bonded(seed, [2, 2]);
            net.start_traffic();
            net.run(300 * MS);
            net.cut(0, true);
            enslave(&mut net, host, 4);
            net.run(SECOND);
            net.cut(0, false);
            net.run(3 * SECOND);
            assert_eq!(members(&net, host), [0, 1, 2, 3], "seed {seed}, host {host}");
            net.assert_same_paths();
        }
    }
}

/// A port came while the handshake was under way.
#[test]
fn ports_that_come_during_the_handshake_count() {
    for seed in 0..20 {
        for late in [Duration::ZERO, 40 * US, 80 * US, 120 * US, 160 * US, MS] {
            let mut net = Net::with(seed, 1, [config(2), config(2)]);
            (0..2).for_each(|host| tell(&mut net, host, &[true; 2]));
            net.connect();
            net.run(late);
            enslave(&mut net, 0, 4);
            net.run(2 * SECOND);
            assert_eq!(members(&net, 0), [0, 1, 2, 3], "seed {seed}, {late:?}");
        }
    }
}

#[test]
fn an_older_peer_keeps_its_only_path() {
    for seed in 0..4 {
        let mut net = Net::with(seed, 1, [config(2), config(0)]);
        tell(&mut net, 0, &[true; 2]);
        net.connect();
        net.run(300 * MS);
        enslave(&mut net, 0, 4);
        net.run(SECOND);
        assert_eq!([0, 1].map(|host| net.paths(host).len()), [1, 1]);
    }
}

#[test]
fn a_path_that_tries_other_source_ports_keeps_to_its_port_of_the_bond() {
    let mut changed = 0;
    for seed in 0..10 {
        let mut net = bonded(seed, [2, 2]);
        net.links[0].ways = 2;
        net.start_traffic();
        net.run(300 * MS);
        net.links[0].cut_ways = vec![(seed % 2) as u32];
        net.run(20 * SECOND);
        for host in 0..2 {
            assert_eq!(members(&net, host), [0, 1], "seed {seed}");
        }
        changed += net.paths(0).iter().map(|path| path.counters.port_changes).sum::<u64>();
    }
    assert!(changed > 0);
}

#[test]
fn flow_labels_do_not_put_two_paths_on_one_port_of_a_bond() {
    for flow_label in 1..40 {
        let mut net = Net::with(1, 1, [config(2), config(2)]);
        for host in 0..2 {
            tell(&mut net, host, &[true, true]);
            let options = PathOptions { flow_label, ..options() };
            let (local, remote, now) = (ip(0, host), ip(0, 1 - host), net.now);
            let h = &mut net.hosts[host];
            let attached = h.paths.attach(now, QPN[host], QPN[1 - host], local, remote, options);
            h.peer = Some(attached.unwrap());
        }
        net.run(300 * MS);
        for host in 0..2 {
            assert_eq!(members(&net, host), [0, 1], "flow label {flow_label}");
        }
    }
}

#[test]
fn a_path_with_a_flow_label_leaves_a_lost_port_of_the_bond() {
    let mut net = Net::with(1, 1, [config(2), config(2)]);
    tell(&mut net, 0, &[true, true]);
    let options = PathOptions { flow_label: 0x1234, ..options() };
    let now = net.now;
    let (local, remote) = (ip(0, 0), ip(0, 1));
    let paths = &mut net.hosts[0].paths;
    let peer = paths.attach(now, QPN[0], QPN[1], local, remote, options).unwrap();
    let path = paths.route(peer).unwrap().path;
    for (usable, by) in [([true, false], 0), ([false, true], 1), ([true, true], 1)] {
        tell(&mut net, 0, &usable);
        let paths = &net.hosts[0].paths;
        assert_eq!(paths.lag_member(path), Some(FIRST + by));
        assert!(paths.alive().any(|alive| alive == path));
    }
}

#[test]
fn a_silent_plain_peer_is_tried_by_another_port_of_the_bond() {
    for usable in [&[true, true][..], &[true, true, true], &[true, false, true], &[false, true]] {
        let off = Config { multipath: false, ..Config::default() };
        let mut net = Net::with(1, 1, [off.clone(), off]);
        tell(&mut net, 0, usable);
        net.connect();
        let paths = &mut net.hosts[0].paths;
        let path = paths.path_ids().next().unwrap();
        let mut before = paths.lag_member(path).unwrap();
        for second in 1..20 {
            paths.stalled(SECOND * 3 * second, path, QPN[0], Duration::ZERO);
            let now = paths.lag_member(path).unwrap();
            let only = usable.iter().filter(|usable| **usable).count() == 1;
            assert_eq!(now == before, only, "{usable:?}");
            before = now;
        }
    }
}

#[test]
fn a_queue_pair_keeps_to_its_vlan() {
    for bonded in [false, true] {
        let mut net = Net::with(1, 2, [config(1), config(1)]);
        for host in 0..2 {
            let [bond, vlan] = [0, 1].map(|n| net.hosts[host].local[n].ifindex);
            let lag =
                Lag { ifindex: bond, above: vec![vlan], hashed: Hashed::None, members: vec![] };
            let lags = if bonded { vec![lag] } else { vec![] };
            net.hosts[host].paths.set_lags(net.now, &lags);
            net.tell_local(host);
        }
        net.connect();
        net.run(300 * MS);
        assert!(net.agreed());
        for host in 0..2 {
            let mut from: Vec<_> = net.paths(host).iter().map(|path| path.address.local).collect();
            from.sort_unstable();
            let all = [ip(0, host), ip(1, host)];
            assert_eq!(from, if bonded { &all[..1] } else { &all }, "over a bond: {bonded}");
        }
    }
}

/// Hosts whose ports are joined by cables, in the same order or in another one.
#[test]
fn a_lost_cable_takes_no_more_than_its_share_and_traffic_goes_on() {
    for seed in 0..10 {
        for (order, lost) in [([0, 1], 0), ([0, 1], 1), ([1, 0], 0), ([1, 0], 1)] {
            for (silent, ports) in [(false, 2), (true, 2), (false, 1), (true, 1)] {
                let what =
                    format!("seed {seed}, order {order:?}, cable {lost}, silent {silent}, {ports}");
                let mut net = Net::with(seed, 1, [config(ports), config(ports)]);
                net.links[0].bound = [true; 2];
                net.links[0].cables = [vec![0, 1], order.to_vec()];
                for host in 0..2 {
                    tell(&mut net, host, &[true; 2]);
                }
                net.connect();
                net.run(200 * MS);
                assert!(net.agreed(), "{what}");
                net.start_traffic();
                net.run(300 * MS);
                net.reset_gaps();
                net.links[0].cut_cables = vec![lost];
                if !silent {
                    for host in 0..2 {
                        let usable = [0, 1].map(|port| net.links[0].cables[host][port] != lost);
                        tell(&mut net, host, &usable);
                    }
                }
                net.run(3 * SECOND);
                let gaps = [0, 1].map(|host| net.hosts[host].worst_gap);
                let longest = if silent { 2500 * MS } else { 50 * MS };
                assert!(gaps.iter().all(|gap| *gap < longest), "{what}: {gaps:?}");
                if ports == 2 && order == [0, 1] {
                    let up = net.paths(0).iter().filter(|path| path.state == PathState::Up).count();
                    assert_eq!(up, 1, "{what}: the other path has lost nothing");
                }

                net.links[0].cut_cables = vec![];
                (0..2).for_each(|host| tell(&mut net, host, &[true; 2]));
                // A path that has tried its way to another port goes back when its own one has proved itself.
                let seconds = if silent { 60 } else { 4 };
                let back = (0..seconds).any(|_| {
                    net.run(SECOND);
                    ports == 1 || members(&net, 0) == [0, 1]
                });
                assert!(back, "{what}: {:?}", members(&net, 0));
                net.assert_same_paths();
            }
        }
    }
}

/// One address pair over two cables, both of which are lost, one after the other. Whichever comes back first
/// carries the traffic, also where it is not the one that a path would have by itself.
#[test]
fn the_first_cable_that_comes_back_carries_the_traffic() {
    for seed in 0..5 {
        for (order, first, back) in [
            ([0, 1], 0, 0),
            ([0, 1], 0, 1),
            ([0, 1], 1, 0),
            ([0, 1], 1, 1),
            ([1, 0], 0, 0),
            ([1, 0], 0, 1),
            ([1, 0], 1, 0),
            ([1, 0], 1, 1),
        ] {
            for ports in [1, 2] {
                let what = format!(
                    "seed {seed}, order {order:?}, {first} lost first, {back} back, {ports}"
                );
                let mut net = Net::with(seed, 1, [config(ports), config(ports)]);
                net.links[0].bound = [true; 2];
                net.links[0].cables = [vec![0, 1], order.to_vec()];
                (0..2).for_each(|host| tell(&mut net, host, &[true; 2]));
                net.connect();
                net.run(200 * MS);
                net.start_traffic();
                net.run(300 * MS);
                let cut = |net: &mut Net, cables: &[usize]| {
                    net.links[0].cut_cables = cables.to_vec();
                    for host in 0..2 {
                        let lost = &net.links[0].cables[host];
                        let usable = [0, 1].map(|port| !cables.contains(&lost[port]));
                        tell(net, host, &usable);
                    }
                };
                cut(&mut net, &[first]);
                net.run(300 * MS);
                cut(&mut net, &[0, 1]);
                net.run(SECOND);
                cut(&mut net, &[1 - back]);
                net.run(SECOND);
                net.reset_gaps();
                net.run(SECOND);
                for host in 0..2 {
                    let up = net.paths(host).iter().any(|path| path.state == PathState::Up);
                    assert!(up, "{what}: host {host}");
                    let gap = net.hosts[host].worst_gap;
                    assert!(gap < 50 * MS, "{what}: host {host}, {gap:?}");
                }
                cut(&mut net, &[]);
                net.run(6 * SECOND);
                if ports == 2 {
                    assert_eq!(members(&net, 0), [0, 1], "{what}");
                }
                net.assert_same_paths();
            }
        }
    }
}
