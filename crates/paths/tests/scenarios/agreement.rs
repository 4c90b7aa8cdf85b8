//! How two lanes agree to be multi-path peers, and end it.

use std::time::Duration;

use polypath_paths::*;
use polypath_types::PeerAbilities;

use crate::net::*;
use crate::*;

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
    assert!(net.hosts[0].paths.next_deadline().is_none(), "it is not asked again for that");
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
            if polypath_wire::packet::Packet::parse(&udp).is_ok_and(|p| PathManager::is_control(&p))
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
    let abilities = PeerAbilities {
        reach: 16 << 20,
        joins_reads: true,
        echoes_marks: true,
        drops_copies: true,
        local: false,
        tcp: false,
    };
    assert!(net.has(0, |e| *e == PathEvent::MultipathAgreed { qpn: mine, abilities }));
    assert!(net.has(1, |e| *e == PathEvent::MultipathAgreed { qpn: theirs, abilities }));
    // Who has missed the events asks.
    assert_eq!(net.hosts[0].paths.agreed_abilities(mine), Some(abilities));
    assert_eq!(net.hosts[1].paths.agreed_abilities(theirs), Some(abilities));
    assert_eq!(net.hosts[1].paths.agreed_abilities(mine), None);
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

/// `ibv_modify_qp` with another address in SQD.
#[test]
fn a_queue_pair_attached_elsewhere_leaves_its_peer_unless_that_fails() {
    let mut net = connected(17);
    let (now, peer) = (net.now, net.hosts[0].peer);
    let paths = &mut net.hosts[0].paths;
    let wrong_family = "2001:db8::1".parse().unwrap();
    let refused = paths.reattach(now, QPN[0], QPN[1], ip(0, 0), wrong_family, options());
    assert_eq!(refused, Err(AttachError::Family));
    let status = paths.status();
    assert_eq!((status.peers.len(), status.peers[0].agreed), (1, 1), "as it was");

    let same = paths.reattach(now, QPN[0], QPN[1], ip(0, 0), ip(0, 1), options());
    assert_eq!(same.ok(), peer);
    net.run(50 * MS);
    assert_eq!(net.hosts[0].paths.status().peers[0].agreed, 1, "agreed upon once more");

    let now = net.now;
    let paths = &mut net.hosts[0].paths;
    let other = paths.reattach(now, QPN[0], QPN[1], ip(0, 0), ip(0, 5), options()).unwrap();
    assert_ne!(Some(other), peer);
    paths.detach(now, QPN[0]);
    assert!(!paths.status().peers.iter().any(|p| p.peer == other), "its only queue pair has left");
    // One that is not attached.
    assert!(paths.reattach(now, QPN[0], QPN[1], ip(0, 0), ip(0, 5), options()).is_ok());
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

/// Attaches a second queue pair, between the addresses of link 1.
fn attach_second(net: &mut Net, host: usize) -> PeerId {
    let (mine, theirs) = (QPN[host] + 1, QPN[1 - host] + 1);
    let ends = (ip(1, host), ip(1, 1 - host));
    let h = &mut net.hosts[host];
    let peer = h.paths.attach(net.now, mine, theirs, ends.0, ends.1, options()).unwrap();
    h.peer = Some(peer);
    peer
}

/// Each end takes what the other sends now.
fn assert_understood(net: &mut Net, peers: [PeerId; 2], what: &str) {
    for (host, other) in [(0, 1), (1, 0)] {
        let route = net.hosts[host].paths.route(peers[host]).expect(what);
        let address = *net.hosts[host].paths.path(route.path).unwrap();
        let ends = (address.local, address.remote);
        let found =
            net.hosts[other].paths.classify(peers[other], ends.0, ends.1, UDP, route.tag, 64);
        assert!(found.is_ok(), "{what}: {found:?} at host {other}, tag {:?}", route.tag);
    }
}

#[test]
fn ends_that_begin_with_different_associations_end_in_the_same() {
    for seed in 0..20 * SEEDS {
        let mut net = Net::new(seed, 2 + (seed % 3) as usize);
        for link in &mut net.links {
            link.delay = US * (50 + 40 * (seed as u32 % 60));
            link.loss_per_mille = 50 * (seed % 4);
        }
        net.keep_log = true;
        // Host 0 takes the second address for a stranger's; host 1 already knows it as that of a path.
        let first = attach_second(&mut net, 0);
        let start = net.rng.time(20 * MS);
        net.run(start);
        net.connect();
        let wait = net.rng.time(60 * MS);
        net.run(wait);
        let second = attach_second(&mut net, 1);
        net.hosts[0].peer = Some(first);
        // Old handshakes come late.
        let is_hello = |f: &&Flying| matches!(&f.wire, Wire::Control(bytes) if bytes[0] == 0x64);
        for _ in 0..seed % 5 {
            let pause = net.rng.time(6 * MS);
            net.run(pause);
            let old: Vec<Flying> = net.log.iter().filter(is_hello).cloned().collect();
            let at = net.rng.below(old.len() as u64) as usize;
            if let Some(Flying { to, src, dst, kind: _, wire: Wire::Control(bytes) }) = old.get(at)
            {
                net.control(*to, *src, *dst, bytes);
            }
        }
        net.run(Duration::from_secs(3));
        assert_understood(&mut net, [first, second], &format!("seed {seed}"));
        net.start_traffic();
        net.run(50 * MS);
        assert!(net.hosts.iter().all(|h| h.acked > 0), "seed {seed}");
    }
}

#[test]
fn a_peer_that_has_forgotten_the_association_makes_another() {
    let mut net = connected(18);
    let linger = Config::default().linger;
    net.hosts[0].paths.detach(net.now, QPN[0]);
    net.run(linger - 5 * MS);
    // Its farewell is lost.
    net.cut(0, true);
    net.cut(1, true);
    net.run(10 * MS);
    net.cut(0, false);
    net.cut(1, false);
    net.forget_events();
    net.attach(0);
    net.run(200 * MS);
    assert!(net.has(0, |e| matches!(e, PathEvent::MultipathAgreed { .. })));
    net.assert_same_paths();
    net.start_traffic();
    net.run(100 * MS);
    assert!(net.hosts.iter().all(|h| h.acked > 0));
}

#[test]
fn a_queue_pair_that_comes_before_the_farewell_has_its_paths_probed_at_once() {
    let mut net = connected(19);
    net.hosts[0].paths.detach(net.now, QPN[0]);
    net.run(Duration::from_secs(3));
    let probes = |net: &Net| -> u64 {
        let status = net.hosts[0].paths.status();
        status.peers[0].paths.iter().map(|path| path.counters.probes_sent).sum()
    };
    let before = probes(&net);
    net.attach(0);
    net.run(5 * MS);
    assert!(probes(&net) > before);
}

#[test]
fn a_queue_pair_that_comes_back_during_the_handshake_is_not_taken_for_the_one_before() {
    for round_trips in 0..12 {
        let mut net = Net::new(20, 1);
        // A plain queue pair between the same addresses stays.
        for host in 0..2 {
            let (mine, theirs) = (QPN[host] + 7, QPN[1 - host] + 7);
            let ends = (ip(0, host), ip(0, 1 - host));
            let plain = PathOptions::default();
            net.hosts[host].paths.attach(net.now, mine, theirs, ends.0, ends.1, plain).unwrap();
        }
        net.connect();
        net.run(US * 25 * round_trips);
        net.hosts[0].paths.detach(net.now, QPN[0]);
        net.run(2 * MS);
        net.attach(0);
        net.run(Duration::from_secs(1));
        let peers = [net.hosts[0].peer.unwrap(), net.hosts[1].peer.unwrap()];
        assert_understood(&mut net, peers, &format!("after {round_trips}"));
        net.start_traffic();
        net.run(50 * MS);
        assert!(net.hosts.iter().all(|h| h.acked > 0), "after {round_trips}");
        let refused: u64 = net.hosts.iter().map(|h| h.paths.refusals().malformed).sum();
        assert_eq!(refused, 0, "after {round_trips}");
    }
}

#[test]
fn ends_that_are_in_different_associations_find_together() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        let host = (seed % 2) as usize;
        // Its tags are not those of a new one.
        for link in 0..2 {
            net.cut(link, true);
            net.run(Duration::from_secs(1));
            net.cut(link, false);
            net.run(Duration::from_secs(2));
        }
        let (before, peer) = (net.hosts[host].paths.clone(), net.hosts[host].peer);
        // The other end begins a new association, as if this one had done so, too.
        net.hosts[host].paths.detach(net.now, QPN[host]);
        net.run(Config::default().linger + 10 * MS);
        net.attach(host);
        net.run(100 * MS);
        net.assert_same_paths();
        // This end is in the one of before.
        net.hosts[host].paths = before;
        net.hosts[host].peer = peer;
        // Another association numbers its paths anew.
        net.hosts.iter_mut().for_each(|h| h.fence.clear());
        net.start_traffic();
        net.run(Duration::from_secs(2));
        let peers = [net.hosts[0].peer.unwrap(), net.hosts[1].peer.unwrap()];
        assert_understood(&mut net, peers, &format!("seed {seed}"));
        let acked: Vec<u64> = net.hosts.iter().map(|h| h.acked).collect();
        net.run(100 * MS);
        assert!(net.hosts.iter().zip(acked).all(|(h, before)| h.acked > before), "seed {seed}");
    }
}

#[test]
fn a_queue_pair_that_comes_during_a_trial_of_before_is_not_told_that_there_is_no_path() {
    let mut net = connected(21);
    net.start_traffic();
    net.run(50 * MS);
    net.cut(0, true);
    net.cut(1, true);
    net.run(100 * MS);
    net.hosts[0].traffic = false;
    net.hosts[0].paths.detach(net.now, QPN[0]);
    net.cut(0, false);
    net.cut(1, false);
    net.run(Duration::from_secs(1));
    net.forget_events();
    net.attach(0);
    net.run(200 * MS);
    assert!(!net.has(0, |e| matches!(e, PathEvent::NoPath { .. })));
    assert_eq!(net.up_paths(0), 2);
}

/// Both ends say HELLO a dozen times and then no more. If all of that is lost because no path lives, they are
/// multi-path peers nevertheless, as the path set says.
#[test]
fn a_queue_pair_that_is_connected_in_a_long_outage_is_agreed_after_it() {
    for seed in 0..SEEDS {
        let mut net = connected(seed);
        net.start_traffic();
        net.run(50 * MS);
        net.cut(0, true);
        net.cut(1, true);
        net.run(Duration::from_secs(1));
        net.forget_events();
        for host in 0..2 {
            let (mine, theirs) = (QPN[host] + 7, QPN[1 - host] + 7);
            let (local, remote) = (ip(0, host), ip(0, 1 - host));
            net.hosts[host].paths.attach(net.now, mine, theirs, local, remote, options()).unwrap();
        }
        net.run(Duration::from_secs(6));
        assert!(!net.has(0, |e| matches!(e, PathEvent::MultipathAgreed { .. })), "seed {seed}");
        net.cut(0, false);
        net.cut(1, false);
        net.run(Duration::from_secs(1));
        for (host, before) in QPN.into_iter().enumerate() {
            let new = before + 7;
            let agreed =
                |e: &PathEvent| matches!(e, PathEvent::MultipathAgreed { qpn, .. } if *qpn == new);
            assert!(net.has(host, agreed), "seed {seed}, host {host}");
        }
    }
}

/// The network begins to carry after both ends have said their last HELLO, as behind a switch that has just
/// learned of its ports.
#[test]
fn a_peer_that_is_first_heard_after_the_last_hello_is_asked_again() {
    for seed in 0..SEEDS {
        let mut net = Net::new(seed, 2);
        net.cut(0, true);
        net.cut(1, true);
        net.connect();
        net.run(Duration::from_secs(6));
        net.cut(0, false);
        net.cut(1, false);
        net.run(Duration::from_secs(6));
        assert!(!net.agreed(), "seed {seed}: nobody asks without a reason");
        net.start_traffic();
        net.run(Duration::from_secs(1));
        assert!(net.agreed(), "seed {seed}");
        assert_eq!((net.up_paths(0), net.up_paths(1)), (2, 2), "seed {seed}");
    }
}

/// The connection manager gives each connection a flow label of its own, and with it a peer.
#[test]
fn connections_that_have_ended_leave_no_peers_behind() {
    for kept in [true, false] {
        let mut net = connected(18);
        if !kept {
            let now = net.now;
            (0..2).for_each(|h| net.hosts[h].paths.detach(now, QPN[h]));
        }
        for flow_label in 1..200 {
            for (h, other) in [(0, 1), (1, 0)] {
                let (q, r) = (QPN[h] + 16 * flow_label, QPN[other] + 16 * flow_label);
                let options = PathOptions { flow_label, ..options() };
                net.hosts[h].paths.attach(net.now, q, r, ip(0, h), ip(0, other), options).unwrap();
            }
            net.run(10 * MS);
            for (host, qpn) in net.hosts.iter_mut().zip(QPN) {
                let paths = &mut host.paths;
                assert!(paths.is_agreed(qpn + 16 * flow_label));
                paths.detach(net.now, qpn + 16 * flow_label);
                assert_eq!(paths.check(), Ok(()));
                let status = paths.status();
                assert_eq!(status.peers.len(), 1, "{flow_label}");
                assert_eq!(status.peers[0].paths.len(), 2);
            }
        }
        net.run(Duration::from_secs(10));
        let left = net.hosts.each_ref().map(|h| h.paths.status().peers.len());
        assert_eq!(left, if kept { [1, 1] } else { [0, 0] });
    }
}
