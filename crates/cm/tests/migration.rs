//! Automatic path migration: agreed by LAP, suggested by SAP, followed when a queue pair migrates.

mod common;

use core::net::SocketAddr;
use core::time::Duration;

use common::migrating::*;
use common::pairs::{PORT, server};
use common::*;
use polypath_cm::{ClientId, PathOrder};
use polypath_wire::Gid;
use polypath_wire::cm::{ApStatus, CmMad, CmMessage};

const A_QP: u32 = 0x10_0000;
const B_QP: u32 = 0x20_0000;
const PATH_MIG: u32 = 6;

#[test]
fn both_ends_load_the_other_path_once_when_the_connection_is_there() {
    let mut two = Two::connected(&[0, 1]);
    two.settle();
    let [a_qp, b_qp] = two.qps();
    for (host, qp) in [(0, a_qp), (1, b_qp)] {
        let orders = two.w.orders(host);
        let [PathOrder::LoadAlternate { client, qp_num, alternate }] = orders[..] else {
            panic!("{orders:?}");
        };
        assert_eq!((client, qp_num), (ClientId(1), qp));
        assert_eq!(alternate.pair(), (on(1, host), on(1, 1 - host)));
        assert_eq!((alternate.ifindex, alternate.device.gid_index), (3, 2));
        assert_eq!(alternate.remote_gid, Gid::from_ip(on(1, 1 - host)).0);
        assert_eq!((alternate.hop_limit, alternate.ack_timeout), (64, 17));
    }
    let names = two.w.sent_names();
    assert_eq!(names, ["REQ", "REP", "RTU", "RTU", "LAP", "APR"]);
    assert_eq!(two.w.hosts[0].cm.counters().alternates_loaded, 1);
}

#[test]
fn nothing_is_sent_to_a_peer_that_did_not_ask_for_it() {
    for migrates in [[true, false], [false, true], [false, false]] {
        let mut two = Two::new(&[0, 1], migrates);
        two.establish();
        two.w.run_for(Duration::from_secs(600));
        let names = two.w.sent_names();
        assert_eq!(names, ["REQ", "REP", "RTU", "RTU"]);
        let [a_qp, b_qp] = two.qps();
        two.w.migrated(two.a, a_qp, None);
        two.w.migrated(two.b, b_qp, None);
        two.w.change_addresses(1, &addresses(1, &[0, 1, 2]));
        two.settle();
        assert!(two.w.sent_names().is_empty());
        assert!(two.w.orders(0).is_empty() && two.w.orders(1).is_empty());
    }
}

/// A peer that knows no migration says that it accepts an alternate path, because it sends zeros.
#[test]
fn an_acceptance_without_the_bit_means_nothing() {
    let mut two = Two::new(&[0, 1], [true, true]);
    two.w.filter = Box::new(|_| true);
    let a = two.a;
    two.w.hosts[1].env.migrates = false;
    let id = two.w.create(a, 1, PS_TCP);
    named(&mut two, id);
    two.w.connect(a, id, &Param::new(A_QP, b"")).unwrap();
    let request = two.w.expect(two.b, CONNECT_REQUEST);
    two.w.accept(two.b, request.id, 2, &Param::new(B_QP, b"")).unwrap();
    two.w.expect(a, CONNECT_RESPONSE);
    assert_eq!(two.w.qp_attr(a, id, 2).unwrap().mask() & 1 << 14, 0);
    two.w.confirm(a, id).unwrap();
    two.settle();
    assert!(two.w.orders(0).is_empty());
}

/// Resolves an id, and names the second link's addresses as its alternate path.
fn named(two: &mut Two, id: u32) {
    let (w, a) = (&mut two.w, two.a);
    w.resolve_addr(a, id, None, SocketAddr::new(v4(1), PORT)).unwrap();
    w.expect(a, ADDR_RESOLVED);
    let record = |flags: u32, link: u8| {
        let mut b = vec![0; 72];
        b[..4].copy_from_slice(&flags.to_ne_bytes());
        b[16..32].copy_from_slice(&Gid::from_ip(on(link, 1)).0);
        b[32..48].copy_from_slice(&Gid::from_ip(on(link, 0)).0);
        b[8 + 47] = 64; // hop limit
        b[58..60].copy_from_slice(&[0xff, 0xff]); // partition key
        (b[8 + 54], b[8 + 56]) = (0x85, 0x90); // MTU and life time, exactly
        b
    };
    let same = [record(1 | 2 | 8 | 32, 0), record(4 | 8 | 32, 0)].concat();
    assert_eq!(w.set_option(a, id, 1, 1, &same), Err(EINVAL));
    let value = [record(1 | 2 | 8 | 32, 0), record(4 | 8 | 32, 1)].concat();
    w.set_option(a, id, 1, 1, &value).unwrap();
    w.expect(a, ROUTE_RESOLVED);
}

#[test]
fn a_path_named_by_the_application_is_armed_while_connecting() {
    let mut two = Two::new(&[0, 1, 2], [true; 2]);
    let (a, b) = (two.a, two.b);
    let id = two.w.create(a, 1, PS_TCP);
    named(&mut two, id);
    two.w.connect(a, id, &Param::new(A_QP, b"")).unwrap();
    let request = two.w.expect(b, CONNECT_REQUEST).id;
    // Managers that know no migration take a path without LIDs for none.
    let CmMessage::Req(req) = CmMad::parse(&two.w.sent[0].mad).unwrap().message else {
        panic!("the first message is the REQ");
    };
    let offered = req.alternate.unwrap();
    assert_eq!((offered.local_lid, offered.remote_lid, req.sap_supported), (0, 0, true));
    two.w.accept(b, request, 2, &Param::new(B_QP, b"")).unwrap();
    two.w.expect(a, CONNECT_RESPONSE);
    for (client, id) in [(a, id), (b, request)] {
        let rtr = two.w.qp_attr(client, id, 2).unwrap();
        assert_eq!(rtr.mask() & (1 << 14 | 1 << 18), 1 << 14);
        let dgid = Gid::from_ip(on(1, 1 - client.host)).0;
        assert_eq!(rtr.bytes[72..88], dgid);
        // sgid index, port and time-out of the alternate path.
        assert_eq!((rtr.bytes[92], rtr.bytes[137], rtr.bytes[138]), (2, 1, 17));
        let rts = two.w.qp_attr(client, id, 3).unwrap();
        assert_eq!(rts.mask() & (1 << 14 | 1 << 18), 1 << 14 | 1 << 18);
        assert_eq!(u32_at(&rts.bytes, 16), 1, "IBV_MIG_REARM");
        // Both paths are shown.
        let paths = two.w.query(client, id, 1, 512).unwrap();
        assert_eq!((u32_at(&paths, 0), paths.len()), (2, 8 + 2 * 72));
    }
    two.w.confirm(a, id).unwrap();
    two.settle();
    assert_eq!(two.alternate(), Some((on(1, 0), on(1, 1))));
    assert!(!two.w.sent_names().contains(&"LAP"), "it is agreed already");
    assert_eq!((two.w.orders(0).len(), two.w.orders(1).len()), (1, 1));
}

#[test]
fn a_lost_answer_is_given_again_and_nothing_is_loaded_twice() {
    for lost in ["LAP", "APR"] {
        let mut two = Two::new(&[0, 1], [true; 2]);
        let mut left = 3;
        two.w.filter = Box::new(move |mad| {
            let drops = mad.message.name() == lost && left > 0;
            left -= i32::from(drops);
            !drops
        });
        two.establish();
        two.w.run_for(Duration::from_secs(30));
        assert_eq!((two.w.orders(0).len(), two.w.orders(1).len()), (1, 1));
        let loaded = [0, 1].map(|host: usize| two.w.hosts[host].cm.counters().alternates_loaded);
        assert_eq!(loaded, [1, 1]);
        let laps: Vec<_> = two
            .w
            .sent
            .iter()
            .map(|m| CmMad::parse(&m.mad).unwrap())
            .filter(|m| m.message.name() == "LAP")
            .collect();
        assert_eq!(laps.len(), 4);
        assert!(laps.iter().all(|lap| *lap == laps[0]));
    }
}

#[test]
fn attempts_that_nobody_answers_end() {
    let mut two = Two::new(&[0, 1], [true; 2]);
    two.w.filter = Box::new(|mad| !matches!(mad.message.name(), "LAP" | "SAP"));
    two.establish();
    two.w.run_for(Duration::from_secs(3600));
    let names = two.w.sent_names();
    let count = |name| names.iter().filter(|n| **n == name).count();
    assert!((16..=200).contains(&count("LAP")), "{}", count("LAP"));
    assert!((16..=200).contains(&count("SAP")), "{}", count("SAP"));
    two.w.run_for(Duration::from_secs(3600));
    assert!(two.w.sent_names().is_empty());
    // An event starts over.
    two.w.filter = Box::new(|_| true);
    two.w.change_addresses(0, &addresses(0, &[0, 1]));
    two.settle();
    assert_eq!(two.alternate(), Some((on(1, 0), on(1, 1))));
}

#[test]
fn after_a_migration_the_former_path_becomes_the_alternate_one() {
    let mut two = Two::connected(&[0, 1]);
    two.settle();
    let qps = two.qps();
    for turn in 0..4u8 {
        let (now, next) = ((turn + 1) % 2, turn % 2);
        two.w.migrated(two.a, qps[0], None);
        two.w.migrated(two.b, qps[1], Some((on(now, 1), on(now, 0))));
        two.settle();
        assert_eq!(two.alternate(), Some((on(next, 0), on(next, 1))));
        for host in [0, 1] {
            let orders = two.w.orders(host);
            let last = loads(&orders).last().unwrap().pair();
            assert_eq!(last, (on(next, host), on(next, 1 - host)));
            assert!(follows(&orders).is_empty());
        }
        let status = two.w.hosts[1].cm.describe().iter().find_map(|id| id.migration).unwrap();
        assert_eq!(status.migrations, u32::from(turn) + 1);
    }
    // The connection's own messages go by the path that it uses.
    two.w.migrated(two.a, qps[0], None);
    two.w.migrated(two.b, qps[1], None);
    two.w.sent.clear();
    let id = two.w.hosts[0].cm.describe()[0].id;
    two.w.disconnect(two.a, id).unwrap();
    two.w.run_for(Duration::from_millis(1));
    let dreq = &two.w.sent[0];
    assert_eq!((dreq.local, dreq.remote, dreq.ifindex), (on(1, 0), on(1, 1), 3));
}

/// A migration is told to the peer's host by the next message, if no packet did it.
#[test]
fn an_end_follows_the_peer_whichever_has_migrated() {
    for first in [0, 1] {
        let mut two = Two::connected(&[0, 1]);
        two.settle();
        two.take_orders();
        let (clients, qps) = ([two.a, two.b], two.qps());
        two.w.migrated(clients[first], qps[first], None);
        two.settle();
        let other = 1 - first;
        let orders = two.w.orders(other);
        let to = (on(1, other), on(1, first));
        assert_eq!(follows(&orders).first(), Some(&to), "{orders:?}");
        assert!(loads(&orders).is_empty());
        two.w.migrated(clients[other], qps[other], Some(to));
        two.settle();
        assert_eq!(two.alternate(), Some((on(0, 0), on(0, 1))));
    }
}

/// Both migrate at once, but to different paths, because the second alternate path was loaded by the
/// passive end only.
#[test]
fn ends_that_have_parted_meet_where_the_active_end_is() {
    let mut two = Two::connected(&[0, 1]);
    two.settle();
    two.take_orders();
    let qps = two.qps();
    for host in [0, 1] {
        two.w.hosts[host].env.addresses = addresses(host, &[0, 1, 2]);
    }
    two.w.migrated(two.a, qps[0], Some((on(1, 0), on(1, 1))));
    two.w.migrated(two.b, qps[1], Some((on(2, 1), on(2, 0))));
    two.settle();
    let orders = two.w.orders(1);
    assert_eq!(loads(&orders)[0].pair(), (on(1, 1), on(1, 0)));
    assert_eq!(follows(&orders)[0], (on(1, 1), on(1, 0)));
    assert!(two.w.orders(0).is_empty());
    two.w.migrated(two.b, qps[1], Some((on(1, 1), on(1, 0))));
    two.settle();
    assert!(two.alternate().is_some());
}

#[test]
fn the_application_and_the_host_tell_the_same_migration() {
    for application_first in [false, true] {
        let mut two = Two::new(&[0, 1], [true; 2]);
        let (id, _) = two.establish();
        two.settle();
        let (a, qps) = (two.a, two.qps());
        for migrations in 1..4 {
            let tell = |two: &mut Two, is_application: bool| {
                if is_application {
                    two.w.notify(a, id, PATH_MIG).unwrap();
                } else {
                    two.w.migrated(a, qps[0], None);
                }
            };
            tell(&mut two, application_first);
            two.w.migrated(two.b, qps[1], None);
            // The next path is loaded before the other one tells.
            two.settle();
            tell(&mut two, !application_first);
            two.settle();
            let ids = two.w.hosts[0].cm.describe();
            assert_eq!(ids[0].migration.unwrap().migrations, migrations);
            assert!(two.alternate().is_some());
        }
    }
}

/// Only the passive end has a second address, and the active end can't know it.
#[test]
fn the_passive_end_suggests_its_new_address() {
    let mut two = Two::new(&[0], [true; 2]);
    two.establish();
    two.settle();
    assert!(!two.w.sent_names().contains(&"SAP"), "there is nothing to suggest");
    let both = [(on(0, 1), 2), (on(1, 1), 3)];
    two.w.change_addresses(1, &both);
    two.settle();
    assert_eq!(two.w.sent_names(), ["SAP", "SPR", "LAP", "APR"]);
    assert_eq!(two.alternate(), Some((on(0, 0), on(1, 1))));
    // The active end gets a second interface: now both ends' ports differ.
    two.w.change_addresses(0, &addresses(0, &[0, 1]));
    two.settle();
    assert_eq!(two.alternate(), Some((on(1, 0), on(1, 1))));
}

#[test]
fn an_alternate_path_that_is_lost_is_replaced_and_comes_back() {
    for loser in [0, 1] {
        let mut two = Two::connected(&[0, 1, 2]);
        two.settle();
        let first = two.alternate().unwrap();
        let lost = if first.0 == on(1, 0) { 1 } else { 2 };
        let kept = 3 - lost;
        two.w.change_addresses(loser, &addresses(loser, &[0, kept]));
        two.settle();
        assert_eq!(two.alternate(), Some((on(kept, 0), on(kept, 1))), "host {loser}");
        // Without any other, the last one stays loaded; as soon as there is one, it is taken.
        two.w.change_addresses(loser, &addresses(loser, &[0]));
        two.settle();
        two.w.change_addresses(loser, &addresses(loser, &[0, lost]));
        two.settle();
        let got = two.alternate().unwrap();
        let here = if loser == 0 { got.0 } else { got.1 };
        assert_eq!(here, on(lost, loser), "host {loser}");
    }
}

#[test]
fn a_host_that_can_not_load_a_path_is_given_another_one_but_not_for_ever() {
    let mut two = Two::connected(&[0, 1, 2]);
    let mut failed = Vec::new();
    for _ in 0..50 {
        two.settle();
        for order in two.w.orders(0) {
            let PathOrder::LoadAlternate { client, qp_num, alternate } = order else { continue };
            failed.push(alternate.pair());
            two.w.hosts[0].cm.alternate_failed(two.w.now, client, qp_num);
        }
    }
    assert!((2..=20).contains(&failed.len()), "{failed:?}");
    assert_ne!(failed[0], failed[1]);
}

#[test]
fn the_option_has_two_places_and_can_be_taken_back() {
    for (level, value) in [(0, &[1u8][..]), (1, &[1]), (1, &1i32.to_ne_bytes())] {
        let mut two = Two::new(&[0, 1], [false, true]);
        let (a, b) = (two.a, two.b);
        let id = two.w.create(a, 1, PS_TCP);
        two.w.set_option(a, id, level, 2, value).unwrap();
        two.w.resolve(a, id, server());
        two.w.connect(a, id, &Param::new(A_QP, b"")).unwrap();
        let request = two.w.expect(b, CONNECT_REQUEST).id;
        two.w.accept(b, request, 2, &Param::new(B_QP, b"")).unwrap();
        two.w.expect(a, CONNECT_RESPONSE);
        two.w.confirm(a, id).unwrap();
        two.settle();
        assert!(two.alternate().is_some());
        // The end that asked is told; the other one, which does not know of it, is not.
        let events = core::iter::from_fn(|| two.w.try_event(a));
        let kinds: Vec<_> = events.map(|e| (e.kind, e.status, e.id)).collect();
        assert_eq!(kinds, [(0x41_5010, 0, id), (0x41_5012, 0, id)]);
        assert_eq!(two.w.expect(b, ESTABLISHED).id, request);
        assert!(two.w.try_event(b).is_none());
        // From now on there is no migration any more at this end.
        two.w.set_option(a, id, level, 2, &[0]).unwrap();
        two.w.sent.clear();
        two.w.change_addresses(1, &addresses(1, &[0, 2]));
        two.settle();
        let names = two.w.sent_names();
        assert_eq!(names, ["SAP", "SPR"], "the suggestion is refused");
        two.w.set_option(a, id, level, 2, value).unwrap();
        two.settle();
        assert!(two.alternate().is_some());
    }
    let mut two = Two::new(&[0, 1], [true, true]);
    let a = two.a;
    let id = two.w.create(a, 1, PS_TCP);
    assert_eq!(two.w.set_option(a, id, 1, 2, &[]), Err(EINVAL));
    // Four bytes at level 0 are the kernel's RDMA_OPTION_ID_AFONLY.
    two.w.set_option(a, id, 0, 2, &0i32.to_ne_bytes()).unwrap();
    two.w.set_option(a, id, 0, 2, &[0]).unwrap();
    two.w.resolve(a, id, server());
    two.w.connect(a, id, &Param::new(A_QP, b"")).unwrap();
    two.w.run_for(Duration::from_millis(1));
    let CmMessage::Req(req) = CmMad::parse(&two.w.sent[0].mad).unwrap().message else {
        panic!("the first message is the REQ");
    };
    assert!(!req.sap_supported, "the id decided otherwise than the default");
    let datagrams = two.w.create(a, 1, PS_UDP);
    assert_eq!(two.w.set_option(a, datagrams, 0, 2, &[1]), Err(EINVAL));
}

/// Whatever is lost, doubled and late, both ends end up with the same two paths.
#[test]
fn ends_agree_over_a_bad_network() {
    for seed in 0..100 {
        let mut two = Two::new(&[0, 1, 2], [true; 2]);
        two.w.rng = Rng::new(seed);
        two.establish();
        two.w.link_faults =
            LinkFaults { loss: 30, duplication: 30, jitter: Duration::from_millis(400) };
        let qps = two.qps();
        for _ in 0..10 {
            let wait = two.w.rng.below(3000);
            two.w.run_for(Duration::from_millis(wait));
            let host = two.w.rng.below(2) as usize;
            let links: &[u8] = [&[0, 1, 2][..], &[0, 1], &[0, 2]][two.w.rng.below(3) as usize];
            two.w.change_addresses(host, &addresses(host, links));
        }
        two.w.run_for(Duration::from_secs(300));
        two.w.link_faults = LinkFaults::default();
        for host in [0, 1] {
            two.w.change_addresses(host, &addresses(host, &[0, 1, 2]));
        }
        two.w.run_for(Duration::from_secs(60));
        assert!(two.alternate().is_some(), "seed {seed}");
        let paths = |name: &&str| ["LAP", "APR", "SAP", "SPR"].contains(name);
        let count = two.w.sent_names().iter().filter(|name| paths(name)).count();
        assert!(count < 200, "seed {seed}: {count} messages");
        for (host, qp) in qps.into_iter().enumerate() {
            let last = *loads(&two.w.orders(host)).last().unwrap();
            let ids = two.w.hosts[host].cm.describe();
            let status = ids.iter().find(|id| id.qp_num == qp).unwrap();
            assert_eq!(status.migration.unwrap().alternate, Some(last.pair()), "seed {seed}");
        }
    }
}

type Change<'a> = &'a dyn Fn(&mut polypath_wire::cm::Lap);

/// Each refused LAP names what is wrong with it.
#[test]
fn a_lap_is_refused_with_its_reason() {
    let mut two = Two::connected(&[0, 1, 2]);
    two.settle();
    let sent = two.w.sent.iter().rev().map(|m| CmMad::parse(&m.mad).unwrap());
    let (tid, real) = sent
        .filter_map(|mad| match mad.message {
            CmMessage::Lap(lap) => Some((mad.tid, lap)),
            _ => None,
        })
        .next()
        .unwrap();
    two.take_orders();
    let mut number = tid;
    let mut ask = |two: &mut Two, change: Change<'_>| {
        let mut lap = real;
        change(&mut lap);
        number += 1 << 32;
        two.w.sent.clear();
        let from = polypath_cm::MadAddress {
            local: on(0, 1),
            remote: on(0, 0),
            ifindex: 2,
            source_qpn: 1,
        };
        let (now, host) = (two.w.now, &mut two.w.hosts[1]);
        host.cm.handle_mad(now, from, &CmMad::new(number, lap).to_bytes(), &mut host.env);
        let out = host.cm.poll_mad().expect("each LAP is answered");
        let CmMad { tid, message: CmMessage::Apr(apr) } = CmMad::parse(&out.mad).unwrap() else {
            panic!("a LAP is answered by an APR");
        };
        assert_eq!((tid, out.remote), (number, on(0, 0)));
        (apr.status, apr.info.as_slice().to_vec())
    };
    let gid = |ip| Gid::from_ip(ip);
    let refusals: [(ApStatus, Change<'_>); 8] = [
        (ApStatus::InvalidCommId, &|lap| lap.remote_comm_id ^= 1),
        (ApStatus::InvalidCommId, &|lap| lap.local_comm_id ^= 1),
        (ApStatus::InvalidQpn, &|lap| lap.remote_qpn ^= 1),
        (ApStatus::InvalidHopLimit, &|lap| lap.alternate.hop_limit = 0),
        (ApStatus::IsCurrent, &|lap| {
            (lap.alternate.local_gid, lap.alternate.remote_gid) = (gid(on(0, 0)), gid(on(0, 1)));
        }),
        (ApStatus::Reject, &|lap| lap.alternate.local_gid = gid("ff02::1".parse().unwrap())),
        (ApStatus::Reject, &|lap| lap.alternate.local_gid = gid(on(2, 1))),
        (ApStatus::Reject, &|lap| lap.alternate.local_gid = Gid([0; 16])),
    ];
    for (i, (status, change)) in refusals.iter().enumerate() {
        assert_eq!(ask(&mut two, *change), (*status, Vec::new()), "refusal {i}");
    }
    let (status, info) =
        ask(&mut two, &|lap| lap.alternate.remote_gid = gid("192.0.2.7".parse().unwrap()));
    assert_eq!(status, ApStatus::InvalidGid);
    assert_eq!(info.len(), 16, "a better address comes with it");
    let better = Gid(info.try_into().unwrap()).to_ip();
    assert!([on(1, 1), on(2, 1)].contains(&better));
    assert!(two.w.orders(1).is_empty(), "nothing was loaded");
    assert_eq!(ask(&mut two, &|_| {}).0, ApStatus::Ok);
    assert_eq!(loads(&two.w.orders(1)).len(), 1);
    // One that was late comes after a newer one.
    let mut late = real;
    let path = if real.alternate.remote_gid == gid(on(1, 1)) { 2 } else { 1 };
    late.alternate.local_gid = gid(on(path, 0));
    late.alternate.remote_gid = gid(on(path, 1));
    let from =
        polypath_cm::MadAddress { local: on(0, 1), remote: on(0, 0), ifindex: 2, source_qpn: 1 };
    let (now, host) = (two.w.now, &mut two.w.hosts[1]);
    host.cm.handle_mad(now, from, &CmMad::new(tid - (1 << 32), late).to_bytes(), &mut host.env);
    assert!(host.cm.poll_mad().is_none());
    assert!(two.w.orders(1).is_empty());
}

/// The queue pair has migrated, and its new address is gone before anybody was told.
#[test]
fn a_migration_to_an_address_that_is_gone_is_known() {
    let mut two = Two::connected(&[0, 1, 2]);
    two.settle();
    let qps = two.qps();
    let to = two.alternate().unwrap();
    let (other, lost) = if to.0 == on(1, 0) { (2, 1) } else { (1, 2) };
    two.w.change_addresses(0, &addresses(0, &[0, other]));
    two.settle();
    assert_eq!(two.alternate().unwrap().0, on(other, 0));
    two.w.migrated(two.a, qps[0], Some(to));
    two.w.orders(1);
    two.settle();
    let status = two.w.hosts[0].cm.describe()[0].migration.unwrap();
    assert_eq!(status.migrations, 1);
    assert_eq!(follows(&two.w.orders(1)).first(), Some(&(on(lost, 1), on(lost, 0))));
}

/// The list of the passive end's addresses gets lost, so the path on which the connection began is all
/// that the active end knows.
#[test]
fn the_path_that_was_left_is_not_forgotten() {
    let mut two = Two::new(&[0, 1], [true; 2]);
    let mut rtus = 0;
    two.w.filter = Box::new(move |mad| {
        rtus += i32::from(mad.message.name() == "RTU");
        !(mad.message.name() == "RTU" && rtus == 2)
    });
    two.establish();
    two.settle();
    let qps = two.qps();
    assert!(two.w.sent_names().contains(&"SAP"), "the active end did not know a second address");
    assert_eq!(two.alternate(), Some((on(1, 0), on(1, 1))));
    two.w.migrated(two.a, qps[0], None);
    two.w.migrated(two.b, qps[1], None);
    two.settle();
    assert!(!two.w.sent_names().contains(&"SAP"), "it needed no suggestion");
    assert_eq!(two.alternate(), Some((on(0, 0), on(0, 1))));
}

/// The passive end has loaded another path, and every answer that said so got lost.
#[test]
fn after_lost_answers_the_path_is_asked_for_again() {
    let mut two = Two::connected(&[0, 1, 2]);
    two.settle();
    let first = two.alternate().unwrap();
    let kept = if first.0 == on(1, 0) { 2 } else { 1 };
    two.w.filter = Box::new(|mad| mad.message.name() != "APR");
    two.w.change_addresses(0, &addresses(0, &[0, kept]));
    two.w.run_for(Duration::from_secs(1200));
    two.w.filter = Box::new(|_| true);
    two.w.change_addresses(0, &addresses(0, &[0, 1, 2]));
    two.settle();
    assert!(two.alternate().is_some(), "and both ends agree");
}

#[test]
fn paths_are_changed_at_a_bounded_rate() {
    let mut two = Two::connected(&[0, 1, 2]);
    two.settle();
    two.w.sent.clear();
    for turn in 0..50 {
        two.w.change_addresses(0, &addresses(0, &[0, 1 + turn % 2]));
        two.w.run_for(Duration::from_millis(1));
    }
    let laps = two.w.sent_names().iter().filter(|name| **name == "LAP").count();
    assert!((1..=2).contains(&laps), "{laps} LAPs within 50 ms");
    two.settle();
    assert!(two.alternate().is_some());
}

/// Linux sends zeros in the field, which mean that it accepts.
#[test]
fn a_manager_that_accepts_without_looking_gets_no_path() {
    let mut two = Two::new(&[0, 1], [true; 2]);
    let a = two.a;
    two.w.filter = Box::new(|_| false);
    let id = two.w.create(a, 1, PS_TCP);
    named(&mut two, id);
    two.w.connect(a, id, &Param::new(A_QP, b"")).unwrap();
    two.w.run_for(Duration::from_millis(1));
    let CmMad { tid, message: CmMessage::Req(req) } = CmMad::parse(&two.w.sent[0].mad).unwrap()
    else {
        panic!("the first message is the REQ");
    };
    let rep = polypath_wire::cm::Rep {
        local_comm_id: 77,
        remote_comm_id: req.local_comm_id,
        local_qpn: B_QP,
        local_ca_guid: 78,
        ..polypath_wire::cm::Rep::default()
    };
    let from =
        polypath_cm::MadAddress { local: on(0, 0), remote: on(0, 1), ifindex: 2, source_qpn: 1 };
    let (now, host) = (two.w.now, &mut two.w.hosts[0]);
    host.cm.handle_mad(now, from, &CmMad::new(tid, rep).to_bytes(), &mut host.env);
    two.w.expect(a, CONNECT_RESPONSE);
    assert_eq!(two.w.qp_attr(a, id, 2).unwrap().mask() & 1 << 14, 0);
    two.w.confirm(a, id).unwrap();
    two.w.sent.clear();
    two.w.run_for(Duration::from_secs(600));
    assert_eq!(two.w.sent_names(), ["RTU"]);
    assert!(two.w.orders(0).is_empty());
}
