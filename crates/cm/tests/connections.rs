//! Connections between two hosts, driven by the commands of librdmacm.

mod common;

use core::net::SocketAddr;
use core::time::Duration;

use common::pairs::*;
use common::*;
use polypath_cm::{CmConfig, MadAddress};
use polypath_wire::Gid;
use polypath_wire::cm::CmMessage;

#[test]
fn a_connection_lives_from_request_to_the_end_of_time_wait() {
    let (mut w, a, b, listener) = pair();
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &Param::new(0x1234, b"hello")).unwrap();

    let request = w.expect(b, CONNECT_REQUEST);
    assert_eq!(request.uid, 0x100);
    assert_ne!(request.id, listener);
    assert_eq!(request.conn_private().len(), 56);
    assert_eq!(&request.conn_private()[..6], b"hello\0");
    assert_eq!(request.qp_num(), 0x1234);
    assert_eq!(request.conn_numbers(), [0, 1, 1, 0, 7, 7]);

    let param = Param { responder_resources: 4, initiator_depth: 2, ..Param::new(0x5678, b"hi") };
    w.accept(b, request.id, 0xb, &param).unwrap();
    let response = w.expect(a, CONNECT_RESPONSE);
    assert_eq!((response.id, response.uid), (id, 0xa));
    assert_eq!(response.conn_private().len(), 196);
    assert_eq!(&response.conn_private()[..3], b"hi\0");
    assert_eq!(response.qp_num(), 0x5678);
    // The peer's initiator depth is this end's responder resources.
    assert_eq!(response.conn_numbers()[1..3], [2, 4]);

    w.confirm(a, id).unwrap();
    let established = w.expect(b, ESTABLISHED);
    assert_eq!((established.id, established.uid), (request.id, 0xb));
    assert_eq!(w.sent_names(), ["REQ", "REP", "RTU"]);

    w.disconnect(a, id).unwrap();
    assert_eq!(w.expect(b, DISCONNECTED).id, request.id);
    w.disconnect(b, request.id).unwrap();
    assert_eq!(w.expect(a, DISCONNECTED).status, 0);
    assert_eq!(w.sent_names(), ["DREQ", "DREP"]);
    assert_eq!(w.expect(a, TIMEWAIT_EXIT).id, id);
    assert_eq!(w.expect(b, TIMEWAIT_EXIT).id, request.id);

    assert_eq!(w.destroy(a, id), Ok(5));
    assert_eq!(w.destroy(b, request.id), Ok(3));
    assert_eq!(w.destroy(b, listener), Ok(1));
    for host in &w.hosts {
        assert_eq!(host.cm.connection_count(), 0);
        assert!(host.cm.describe().is_empty());
        assert_eq!(host.cm.next_deadline(), None);
    }
}

#[test]
fn both_ends_get_attributes_that_fit_each_other() {
    let (mut w, a, b, _) = pair();
    let id = w.resolved(a, 0xa, PS_TCP, server());
    // Before there is a connection, the attributes are just enough for INIT.
    let early = w.qp_attr(a, id, 1).unwrap();
    assert_eq!((early.mask(), early.access_flags()), (0x39, 0));
    w.set_option(a, id, 0, 0, &[0x68]).unwrap();
    w.connect(a, id, &Param::new(0x1234, b"")).unwrap();
    assert_eq!(w.qp_attr(a, id, 2).err(), Some(EINVAL), "the peer is not known yet");
    let request = w.expect(b, CONNECT_REQUEST);
    let b_rtr = w.qp_attr(b, request.id, 2).unwrap();
    let b_rts = w.qp_attr(b, request.id, 3).unwrap();
    w.accept(b, request.id, 0xb, &Param::new(0x5678, b"")).unwrap();
    w.expect(a, CONNECT_RESPONSE);
    let a_init = w.qp_attr(a, id, 1).unwrap();
    let a_rtr = w.qp_attr(a, id, 2).unwrap();
    let a_rts = w.qp_attr(a, id, 3).unwrap();

    // Remote write; with responder resources, also read, atomic and flush.
    assert_eq!((a_init.mask(), a_init.access_flags()), (0x39, 0x30e));
    assert_eq!(a_rtr.mask(), 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20);
    assert_eq!(a_rts.mask(), 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);
    assert_eq!(a_rtr.rq_psn(), b_rts.sq_psn());
    assert_eq!(b_rtr.rq_psn(), a_rts.sq_psn());
    assert_eq!((a_rtr.dest_qp_num(), b_rtr.dest_qp_num()), (0x5678, 0x1234));
    assert_eq!((a_rtr.path_mtu(), b_rtr.path_mtu()), (5, 5));
    assert_eq!(a_rtr.dgid(), Gid::from_ip(v4(1)).0);
    assert_eq!(b_rtr.dgid(), Gid::from_ip(v4(0)).0);
    assert_eq!((a_rtr.grh(), b_rtr.grh()), ([1, 64, 0], [1, 64, 0]));
    assert_eq!(a_rts.numbers(), [1, 0, 0, 0, 17, 7, 7]);
    assert_eq!(b_rts.numbers(), [1, 0, 0, 0, 17, 7, 7]);
    assert_eq!(a_rtr.numbers(), [0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn the_type_of_service_set_before_the_route_reaches_queue_pairs_and_mads() {
    let (mut w, a, b, _) = pair();
    let id = w.create(a, 0xa, PS_TCP);
    w.set_option(a, id, 0, 0, &[0x68]).unwrap();
    w.resolve_addr(a, id, None, server()).unwrap();
    w.resolve_route(a, id).unwrap();
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    w.expect(a, ADDR_RESOLVED);
    let request = w.expect(b, CONNECT_REQUEST);
    assert_eq!(w.qp_attr(b, request.id, 2).unwrap().grh(), [1, 64, 0x68]);
    w.accept(b, request.id, 0xb, &Param::new(2, b"")).unwrap();
    w.run_for(Duration::from_millis(1));
    assert!(w.sent.iter().all(|m| m.traffic_class == 0x68));
}

#[test]
fn a_rejection_carries_its_private_data() {
    let (mut w, a, b, _) = pair();
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.reject(b, request.id, b"go away").unwrap();
    let rejected = w.expect(a, REJECTED);
    assert_eq!((rejected.id, rejected.status), (id, 28));
    assert_eq!(rejected.conn_private().len(), 148);
    assert_eq!(&rejected.conn_private()[..8], b"go away\0");
    w.destroy(b, request.id).unwrap();
    w.destroy(a, id).unwrap();
    assert_eq!(w.hosts[0].cm.connection_count() + w.hosts[1].cm.connection_count(), 0);
}

#[test]
fn a_port_nobody_listens_on_rejects_with_invalid_service_id() {
    let (mut w, a, _, _) = pair();
    let id = w.resolved(a, 0xa, PS_TCP, SocketAddr::new(v4(1), 9999));
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    assert_eq!(w.expect(a, REJECTED).status, 8);
    assert_eq!(w.hosts[1].cm.counters().requests_unserved, 1);
}

#[test]
fn a_request_may_come_a_moment_before_its_listener() {
    let (mut w, a, b, _) = pair();
    for (space, port) in [(PS_TCP, 9999), (PS_UDP, 9998)] {
        let id = w.resolved(a, 0xa, space, SocketAddr::new(v4(1), port));
        w.connect(a, id, &Param::new(1, b"")).unwrap();
        w.run_for(Duration::from_millis(150));
        assert_eq!(w.try_event(a).map(|e| e.kind), None);
        w.listener(b, 0xb, space, SocketAddr::new(v4(1), port));
        w.expect(b, CONNECT_REQUEST);
    }
    assert_eq!(w.hosts[1].cm.counters().requests_unserved, 0);
}

/// Several requests wait for a listener with room for one. Each is handled as if it arrived now.
#[test]
fn a_request_that_finds_no_room_stands_in_nobodys_way() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    for (n, qpn) in [1, 2, 2].into_iter().enumerate() {
        let id = w.resolved(a, n as u64, PS_TCP, server());
        w.connect(a, id, &Param::new(qpn, b"")).unwrap();
    }
    w.run_for(Duration::from_millis(1));
    let id = w.create(b, 0x100, PS_TCP);
    w.bind(b, id, any()).unwrap();
    w.listen(b, id, 1).unwrap();
    w.run_unread(Duration::from_millis(1));
    // One waits, and the others are sent again; none of them counts as stale.
    assert_eq!(w.hosts[1].cm.counters().requests_stale, 0);
    assert_eq!(w.hosts[1].cm.counters().requests_dropped, 2);
}

#[test]
fn silence_is_unreachable_after_all_repetitions_of_the_kernel() {
    let (mut w, a, _, _) = pair();
    w.filter = Box::new(|_| false);
    let id = w.resolved(a, 0xa, PS_TCP, server());
    let start = w.now;
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    let event = w.expect(a, UNREACHABLE);
    assert_eq!((event.id, event.status), (id, -ETIMEDOUT));
    // The kernel sends 16, and waits for 4.608 s after each. Here it is never less, though the first are
    // closer together.
    let (waited, all) = (w.now - start, Duration::from_millis(4608) * 16);
    assert!(waited >= all && waited <= all + Duration::from_secs(4), "{waited:?}");
    assert_eq!(w.sent_names().len(), 18);
    assert_eq!(w.disconnect(a, id), Ok(()));
    w.destroy(a, id).unwrap();
    assert_eq!(w.hosts[0].cm.connection_count(), 0);
}

#[test]
fn destroying_a_connecting_id_tells_the_peer() {
    let (mut w, a, b, _) = pair();
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.destroy(a, id).unwrap();
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.sent_names(), ["REQ", "REJ"]);
    // The application was not told, because it had not accepted; but accepting fails now.
    assert_eq!(w.accept(b, request.id, 0xb, &Param::new(2, b"")), Err(EINVAL));
    w.destroy(b, request.id).unwrap();
    assert_eq!(w.hosts[1].cm.connection_count(), 0);
}

#[test]
fn a_full_backlog_lets_the_peer_try_again() {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let listener = w.create(b, 0x100, PS_TCP);
    w.bind(b, listener, any()).unwrap();
    w.listen(b, listener, 2).unwrap();
    let ids: Vec<u32> = (0..3)
        .map(|n| {
            let id = w.create(a, n, PS_TCP);
            w.resolve_addr(a, id, None, server()).unwrap();
            w.resolve_route(a, id).unwrap();
            w.connect(a, id, &Param::new(100 + id, b"")).unwrap();
            id
        })
        .collect();
    w.run_unread(Duration::from_secs(1));
    assert_eq!(w.hosts[1].cm.counters().requests_dropped, 1);
    let mut accepted = 0;
    for _ in &ids {
        let request = w.expect(b, CONNECT_REQUEST);
        w.accept(b, request.id, 0xb, &Param::new(200 + request.id, b"")).unwrap();
        accepted += 1;
    }
    assert_eq!(accepted, 3);
}

#[test]
fn a_slow_application_keeps_its_peer_waiting_by_mra() {
    let (mut w, a, b, _) = pair();
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.run_for(Duration::from_secs(60));
    assert_eq!(w.sent_names(), ["REQ", "REQ", "MRA"]);
    w.accept(b, request.id, 0xb, &Param::new(2, b"")).unwrap();
    w.expect(a, CONNECT_RESPONSE);
    // The active side may be slow too.
    w.run_for(Duration::from_secs(60));
    assert_eq!(w.sent_names(), ["REP", "REP", "MRA"]);
    w.confirm(a, id).unwrap();
    w.expect(b, ESTABLISHED);
}

#[test]
fn a_lost_rtu_is_sent_again_when_the_rep_is() {
    let (mut w, a, b, _) = pair();
    let mut lost = false;
    w.filter = Box::new(move |mad| {
        let is_rtu = matches!(mad.message, CmMessage::Rtu(_));
        let pass = !is_rtu || lost;
        lost |= is_rtu;
        pass
    });
    establish(&mut w, a, b, server());
    assert_eq!(w.sent_names(), ["REQ", "REP", "RTU", "REP", "RTU"]);
}

#[test]
fn data_before_the_rtu_establishes_the_connection() {
    let (mut w, a, b, _) = pair();
    w.filter = Box::new(|mad| !matches!(mad.message, CmMessage::Rtu(_)));
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.accept(b, request.id, 0xb, &Param::new(2, b"")).unwrap();
    w.expect(a, CONNECT_RESPONSE);
    w.confirm(a, id).unwrap();
    w.notify(b, request.id, 4).unwrap();
    assert_eq!(w.expect(b, ESTABLISHED).id, request.id);
    assert_eq!(w.notify(b, request.id, 4), Err(106), "it is connected already");
    assert_eq!(w.notify(b, request.id, 5), Err(EINVAL));
    w.run_for(Duration::from_secs(100));
    assert!(w.try_event(b).is_none());
}

#[test]
fn a_peer_that_died_disconnects_the_other_end() {
    let (mut w, a, b, _) = pair();
    let (id, _) = establish(&mut w, a, b, server());
    w.sent.clear();
    w.close(b);
    assert_eq!(w.expect(a, DISCONNECTED).id, id);
    w.disconnect(a, id).unwrap();
    w.expect(a, TIMEWAIT_EXIT);
    assert_eq!(w.sent_names(), ["DREQ", "DREP"]);
    w.run_for(Duration::from_secs(10));
    assert_eq!(w.hosts[1].cm.connection_count(), 0);
    assert!(w.hosts[1].cm.describe().is_empty());
}

#[test]
fn requests_nobody_has_read_are_rejected_when_the_listener_goes() {
    let (mut w, a, b, listener) = pair();
    let id = w.resolved(a, 0xa, PS_TCP, server());
    w.connect(a, id, &Param::new(1, b"")).unwrap();
    w.run_unread(Duration::from_secs(1));
    assert_eq!(w.destroy(b, listener), Ok(0));
    assert_eq!(w.expect(a, REJECTED).status, 28);
    assert!(w.try_event(b).is_none());
    assert!(w.hosts[1].cm.describe().is_empty());
}

#[test]
fn a_lost_request_or_reply_is_sent_again_soon() {
    let mut lost = [false; 2];
    let (mut w, a, b, _) = pair();
    w.filter = Box::new(move |mad| {
        let which = match mad.message {
            CmMessage::Req(_) => 0,
            CmMessage::Rep(_) => 1,
            _ => return true,
        };
        core::mem::replace(&mut lost[which], true)
    });
    let start = w.now;
    establish(&mut w, a, b, server());
    assert_eq!(w.sent_names(), ["REQ", "REQ", "REP", "REP", "RTU"]);
    let took = w.now - start;
    assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(2100), "{took:?}");
}

#[test]
fn a_request_that_arrives_after_its_connection_ended_begins_no_other_one() {
    let (mut w, a, b, _) = pair();
    let (id, child) = establish(&mut w, a, b, server());
    let mad = w.sent[0].mad;
    let arrives = |w: &mut World| {
        let from = MadAddress { local: v4(1), remote: v4(0), ifindex: 2, source_qpn: 1 };
        let (now, host) = (w.now, &mut w.hosts[1]);
        host.cm.handle_mad(now, from, &mad, &mut host.env);
    };
    w.disconnect(a, id).unwrap();
    w.expect(b, DISCONNECTED);
    w.disconnect(b, child).unwrap();
    w.expect(b, TIMEWAIT_EXIT);
    w.destroy(b, child).unwrap();
    arrives(&mut w);
    assert!(w.try_event(b).is_none());
    assert_eq!(w.hosts[1].cm.connection_count(), 0);
    w.run_for(Duration::from_secs(10));
    // By then it would be another one.
    arrives(&mut w);
    w.expect(b, CONNECT_REQUEST);
}

#[test]
fn a_dreq_on_a_dead_path_is_repeated_soon_and_says_so_to_the_host() {
    let (mut w, a, b, _) = pair();
    let (id, _) = establish(&mut w, a, b, server());
    w.sent.clear();
    w.filter = Box::new(|_| false);
    w.disconnect(a, id).unwrap();
    w.run_for(Duration::from_secs(2));
    let attempts: Vec<_> = w.sent.iter().map(|m| (m.attempt, m.client.is_some())).collect();
    assert_eq!(attempts, [(0, true), (1, true), (2, true), (3, true)]);
    assert!(w.sent.iter().all(|m| m.qp_num == 0x10_0000 + id));
    // The peer never answers. The end is reported as the kernel reports it.
    let end = w.expect(a, DISCONNECTED);
    assert_eq!((end.id, end.status), (id, -ETIMEDOUT));
    w.expect(a, TIMEWAIT_EXIT);
}

#[test]
fn both_ends_may_disconnect_at_once() {
    let (mut w, a, b, _) = pair();
    let (id, child) = establish(&mut w, a, b, server());
    w.disconnect(a, id).unwrap();
    w.disconnect(b, child).unwrap();
    assert_eq!(w.expect(a, DISCONNECTED).id, id);
    assert_eq!(w.expect(b, DISCONNECTED).id, child);
    w.disconnect(a, id).unwrap();
    w.disconnect(b, child).unwrap();
    w.expect(a, TIMEWAIT_EXIT);
    w.expect(b, TIMEWAIT_EXIT);
}

#[test]
fn a_host_connects_to_itself_by_any_of_its_addresses() {
    let mut w = World::new(1);
    let (a, b) = (w.open(0, 1), w.open(0, 2));
    w.listener(b, 0x100, PS_TCP, any());
    for to in ["10.77.0.1:7174", "127.0.0.1:7174"] {
        let (id, child) = establish(&mut w, a, b, to.parse().unwrap());
        let rtr = w.qp_attr(a, id, 2).unwrap();
        assert_eq!(rtr.dgid(), Gid::from_ip(v4(0)).0, "packets go to the device's address");
        w.disconnect(a, id).unwrap();
        w.expect(b, DISCONNECTED);
        w.disconnect(b, child).unwrap();
        w.expect(a, DISCONNECTED);
        w.expect(a, TIMEWAIT_EXIT);
        w.expect(b, TIMEWAIT_EXIT);
    }
}

#[test]
fn a_thousand_connections_come_and_go() {
    let (mut w, a, b, listener) = pair();
    w.link_faults = LinkFaults { loss: 2, duplication: 2, jitter: Duration::from_millis(2) };
    let mut left = Vec::new();
    for n in 0..1000 {
        let id = w.create(a, n, PS_TCP);
        w.resolve_addr(a, id, None, server()).unwrap();
        w.resolve_route(a, id).unwrap();
        w.connect(a, id, &Param::new(0x10_0000 + n as u32, b"")).unwrap();
        left.push(id);
    }
    let (mut up, mut down, mut qpn) = (0, 0, 0x20_0000);
    let end = w.now + Duration::from_secs(600);
    while down < 2000 {
        while let Some(event) = w.try_event(b) {
            match event.kind {
                CONNECT_REQUEST => {
                    qpn += 1;
                    w.accept(b, event.id, u64::from(event.id), &Param::new(qpn, b"")).unwrap();
                }
                ESTABLISHED => up += 1,
                DISCONNECTED => {
                    w.disconnect(b, event.id).unwrap();
                    w.destroy(b, event.id).unwrap();
                    down += 1;
                }
                kind => panic!("event {kind} at the server"),
            }
        }
        while let Some(event) = w.try_event(a) {
            match event.kind {
                CONNECT_RESPONSE => w.confirm(a, event.id).unwrap(),
                DISCONNECTED => {
                    w.destroy(a, event.id).unwrap();
                    down += 1;
                }
                ADDR_RESOLVED | ROUTE_RESOLVED | TIMEWAIT_EXIT => {}
                kind => panic!("event {kind} at the client"),
            }
        }
        if up == 1000 {
            left.drain(..).for_each(|id| w.disconnect(a, id).unwrap());
        }
        assert!(w.step(end, true) || down == 2000, "up {up} down {down}");
    }
    w.run_for(Duration::from_secs(120));
    w.destroy(b, listener).unwrap();
    for host in &w.hosts {
        assert_eq!((host.cm.connection_count(), host.cm.describe().len()), (0, 0));
    }
}

/// Connects, closes and destroys over faulty links. Everything ends as it should, with any seed.
#[test]
fn loss_duplication_and_reordering_change_nothing_but_time() {
    for seed in 0..300 {
        let mut w = World::with_config(2, seed, &CmConfig::default());
        w.link_faults = LinkFaults {
            loss: seed % 30,
            duplication: seed % 20,
            jitter: Duration::from_millis(seed % 50 * 100),
        };
        let (a, b) = (w.open(0, 1), w.open(1, 1));
        w.listener(b, 0x100, PS_TCP, any());
        let (id, child) = establish(&mut w, a, b, server());
        let first_is_active = seed % 2 == 0;
        let (first, first_id, second, second_id) =
            if first_is_active { (a, id, b, child) } else { (b, child, a, id) };
        w.disconnect(first, first_id).unwrap();
        let mut other_told = false;
        loop {
            match w.event(second).kind {
                DISCONNECTED => other_told = true,
                TIMEWAIT_EXIT => break,
                kind => panic!("seed {seed}: event {kind}"),
            }
            w.disconnect(second, second_id).unwrap();
        }
        assert!(other_told);
        w.expect(first, DISCONNECTED);
        w.expect(first, TIMEWAIT_EXIT);
        w.destroy(a, id).unwrap();
        w.destroy(b, child).unwrap();
        w.run_for(Duration::from_secs(300));
        for host in &w.hosts {
            assert_eq!(host.cm.connection_count(), 0, "seed {seed}");
        }
    }
}

/// Two hosts with two interfaces each, `10.77.0.0/24` and `10.78.0.0/24`.
fn two_links() -> (World, Client, Client) {
    let (mut w, a, b, _) = pair();
    for n in 0..2 {
        let second = format!("10.78.0.{}", n + 1).parse().unwrap();
        w.hosts[n].env.addresses.insert(1, (second, 3));
        w.hosts[n].env.multi_path = true;
    }
    (w, a, b)
}

#[test]
fn with_two_links_a_connection_ends_at_once_though_its_own_is_dead() {
    for first_is_active in [true, false] {
        let (mut w, a, b) = two_links();
        let (id, child) = establish(&mut w, a, b, server());
        w.run_for(Duration::from_millis(1));
        w.sent.clear();
        w.dead.extend([v4(0), v4(1)]);
        let start = w.now;
        let (first, first_id, second, second_id) =
            if first_is_active { (a, id, b, child) } else { (b, child, a, id) };
        w.disconnect(first, first_id).unwrap();
        assert_eq!(w.expect(second, DISCONNECTED).id, second_id);
        w.disconnect(second, second_id).unwrap();
        assert_eq!(w.expect(first, DISCONNECTED).status, 0);
        assert!(w.now - start < Duration::from_millis(300), "{:?}", w.now - start);
        assert_eq!(w.sent_names(), ["DREQ", "DREQ", "DREP"]);
    }
}

#[test]
fn with_two_links_a_lost_address_is_not_even_tried() {
    let (mut w, a, b) = two_links();
    let (id, child) = establish(&mut w, a, b, server());
    w.run_for(Duration::from_millis(1));
    let host = &mut w.hosts[0];
    host.env.addresses.retain(|(ip, _)| *ip != v4(0));
    host.cm.handle_address_change(w.now, &mut host.env);
    w.sent.clear();
    w.disconnect(a, id).unwrap();
    assert_eq!(w.expect(b, DISCONNECTED).id, child);
    w.disconnect(b, child).unwrap();
    assert_eq!(w.expect(a, DISCONNECTED).status, 0);
    assert_eq!(w.sent_names(), ["DREQ", "DREP"]);
}

#[test]
fn several_interfaces_are_told_in_the_rtu_to_those_who_have_several_too() {
    let (mut w, a, b) = two_links();
    establish(&mut w, a, b, server());
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.sent_names(), ["REQ", "REP", "RTU", "RTU"]);
    // A connection manager with one interface, such as the kernel's, sends no list and takes none.
    let (mut w, a, b) = two_links();
    w.hosts[1].env.multi_path = false;
    establish(&mut w, a, b, server());
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.sent_names(), ["REQ", "REP", "RTU"]);
}
