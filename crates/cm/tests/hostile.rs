//! Messages and commands that no well-behaved peer or application sends.

mod common;

use core::net::SocketAddr;
use core::time::Duration;

use common::*;
use polypath_cm::{CmConfig, FileId, MadAddress};
use polypath_wire::Gid;
use polypath_wire::Psn;
use polypath_wire::cm::{
    ApStatus, CmMad, CmMessage, CmPath, CmaHeader, Drep, Dreq, Info, Lap, Mra, Mraed, Rej,
    RejectReason, Rejected, Req, Sap, SidrReq, SprStatus,
};

fn established(w: &mut World) -> (Client, Client, u32, u32) {
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    w.listener(b, 0x100, PS_TCP, "0.0.0.0:7174".parse().unwrap());
    let id = w.resolved(a, 0xa, PS_TCP, SocketAddr::new(v4(1), 7174));
    w.connect(a, id, &Param::new(0x11, b"")).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    w.accept(b, request.id, 0xb, &Param::new(0x22, b"")).unwrap();
    w.expect(a, CONNECT_RESPONSE);
    w.confirm(a, id).unwrap();
    w.expect(b, ESTABLISHED);
    (a, b, id, request.id)
}

/// The communication ids of the first connection: the active end's, then the passive end's.
fn comm_ids(w: &World) -> (u32, u32) {
    let rtu = w.sent.iter().find_map(|m| match CmMad::parse(&m.mad).unwrap().message {
        CmMessage::Rtu(rtu) => Some((rtu.local_comm_id, rtu.remote_comm_id)),
        _ => None,
    });
    rtu.expect("an RTU was sent")
}

/// Sends a forged MAD to host 1 and returns what it answers.
fn inject(w: &mut World, message: impl Into<CmMessage>) -> Vec<CmMessage> {
    inject_bytes(w, &CmMad::new(7, message).to_bytes())
}

fn inject_bytes(w: &mut World, mad: &[u8]) -> Vec<CmMessage> {
    w.run_for(Duration::from_micros(1));
    let from = MadAddress { local: v4(1), remote: v4(200), ifindex: 2, source_qpn: 1 };
    let now = w.now;
    let host = &mut w.hosts[1];
    host.cm.handle_mad(now, from, mad, &mut host.env);
    let mut answers = Vec::new();
    while let Some(mad) = host.cm.poll_mad() {
        answers.push(CmMad::parse(&mad.mad).unwrap().message);
    }
    answers
}

fn req(n: u32, guid: u64) -> Req {
    let header = CmaHeader { src_port: 9, src: v4(200), dst: v4(1) };
    let mut private_data = [0; 92];
    private_data[..36].copy_from_slice(&header.to_bytes());
    Req {
        local_comm_id: n,
        service_id: 0x0106_1c06,
        local_ca_guid: guid,
        local_qpn: n & 0xff_ffff,
        mtu: 5,
        starting_psn: Psn::new(1),
        local_cm_response_timeout: 31,
        max_cm_retries: 15,
        primary: CmPath {
            local_gid: Gid::from_ip(v4(200)),
            remote_gid: Gid::from_ip(v4(1)),
            ack_timeout: 31,
            ..CmPath::default()
        },
        private_data,
        ..Req::default()
    }
}

#[test]
fn a_dreq_must_know_both_ids_and_the_queue_pair() {
    let mut w = World::new(2);
    let (_, b, _, _) = established(&mut w);
    let (active, passive) = comm_ids(&w);
    let dreq = |local, remote, qpn| Dreq {
        local_comm_id: local,
        remote_comm_id: remote,
        remote_qpn: qpn,
        private_data: [0; 220],
    };
    // A peer that asks about a connection that does not exist is told that it is over.
    for (local, remote) in [(active ^ 1, passive), (active, passive ^ 1)] {
        let answers = inject(&mut w, dreq(local, remote, 0x22));
        assert!(matches!(answers[..], [CmMessage::Drep(Drep { remote_comm_id, .. })]
            if remote_comm_id == local));
    }
    assert!(inject(&mut w, dreq(active, passive, 0x23)).is_empty());
    assert!(w.try_event(b).is_none());
    assert_eq!(w.hosts[1].cm.describe()[1].connection, Some("ESTABLISHED"));
    assert_eq!(w.hosts[1].cm.counters().mads_unmatched, 3);
}

#[test]
fn rejections_must_know_the_connection() {
    let mut w = World::new(2);
    let (_, b, _, _) = established(&mut w);
    let (active, passive) = comm_ids(&w);
    for (local, remote, rejected, reason) in [
        (active ^ 1, passive, Rejected::Other, RejectReason::ConsumerDefined),
        (active, passive ^ 1, Rejected::Other, RejectReason::ConsumerDefined),
        (active, passive, Rejected::Req, RejectReason::ConsumerDefined),
        (active ^ 1, passive, Rejected::Other, RejectReason::Timeout),
    ] {
        let rej = Rej {
            local_comm_id: local,
            remote_comm_id: remote,
            rejected,
            reason,
            info: Info::EMPTY,
            private_data: [0; 148],
        };
        assert!(inject(&mut w, rej).is_empty());
    }
    assert!(w.try_event(b).is_none());
}

#[test]
fn a_forged_request_for_a_queue_pair_in_use_takes_nothing_down() {
    let mut w = World::new(2);
    let (_, b, _, _) = established(&mut w);
    let guid = u64::from_be_bytes(w.hosts[0].env.node_guid);
    let forged = Req { local_qpn: 0x11, ..req(0x999, guid) };
    let answers = inject(&mut w, forged);
    assert!(
        matches!(answers[..], [CmMessage::Rej(r)] if r.reason == RejectReason::StaleConnection)
    );
    assert!(w.try_event(b).is_none());
}

/// A message with a wrong queue pair, or one that changes nothing, does not tell where the peer is.
#[test]
fn a_message_that_does_not_fit_does_not_move_the_peer() {
    let mut w = World::new(2);
    let (_, b, _, child) = established(&mut w);
    let (active, passive) = comm_ids(&w);
    let dreq = |qpn| Dreq {
        local_comm_id: active,
        remote_comm_id: passive,
        remote_qpn: qpn,
        private_data: [0; 220],
    };
    let lap = Lap {
        local_comm_id: active,
        remote_comm_id: passive,
        remote_qpn: 0x22,
        remote_cm_response_timeout: 20,
        alternate: CmPath::default(),
        private_data: [0; 168],
    };
    inject(&mut w, dreq(0x23));
    inject(&mut w, lap);
    // The same from that address would end the connection, if the peer was there.
    let guid = u64::from_be_bytes(w.hosts[0].env.node_guid);
    let answers = inject(&mut w, Req { local_qpn: 0x11, ..req(0x999, guid) });
    assert_eq!(answers.len(), 1, "{answers:?}");
    // And the DREP would go there.
    let real = MadAddress { local: v4(1), remote: v4(0), ifindex: 2, source_qpn: 1 };
    let (now, host) = (w.now, &mut w.hosts[1]);
    host.cm.handle_mad(now, real, &CmMad::new(7, dreq(0x22)).to_bytes(), &mut host.env);
    inject(&mut w, dreq(0x23));
    inject(&mut w, lap);
    w.expect(b, DISCONNECTED);
    w.disconnect(b, child).unwrap();
    w.run_for(Duration::from_millis(1));
    assert_eq!(w.sent.last().map(|m| m.remote), Some(v4(0)));
}

#[test]
fn alternate_paths_are_declined_politely() {
    let mut w = World::new(2);
    established(&mut w);
    let (active, passive) = comm_ids(&w);
    let lap = |remote, qpn| Lap {
        local_comm_id: active,
        remote_comm_id: remote,
        remote_qpn: qpn,
        remote_cm_response_timeout: 20,
        alternate: CmPath::default(),
        private_data: [0; 168],
    };
    for (remote, qpn, expected) in [
        (passive, 0x22, ApStatus::Unsupported),
        (passive, 0x23, ApStatus::InvalidQpn),
        (passive ^ 1, 0x22, ApStatus::InvalidCommId),
    ] {
        let answers = inject(&mut w, lap(remote, qpn));
        assert!(matches!(answers[..], [CmMessage::Apr(apr)] if apr.status == expected));
        let Lap { local_comm_id, remote_comm_id, remote_qpn, .. } = lap(remote, qpn);
        let sap = Sap {
            local_comm_id,
            remote_comm_id,
            remote_qpn,
            local_lid: 0xffff,
            local_gid: Gid::from_ip(v4(0)),
            private_data: [0; 168],
        };
        let answers = inject(&mut w, sap);
        assert!(matches!(answers[..], [CmMessage::Spr(spr)] if spr.status == SprStatus::Reject));
    }
}

#[test]
fn a_flood_of_requests_fills_a_backlog_and_nothing_more() {
    let mut w = World::new(2);
    let b = w.open(1, 1);
    w.listener(b, 0x100, PS_TCP, "0.0.0.0:7174".parse().unwrap());
    for n in 1..10_000 {
        assert!(inject_unread(&mut w, &CmMad::new(7, req(n, 1)).to_bytes()) <= 1);
    }
    let cm = &w.hosts[1].cm;
    assert_eq!((cm.describe().len(), cm.connection_count()), (129, 128));
    assert_eq!(cm.counters().requests_dropped, 9_999 - 128);

    let sidr = w.open(1, 2);
    w.listener(sidr, 0x200, PS_UDP, "0.0.0.0:7174".parse().unwrap());
    for n in 1..10_000 {
        let private_data = {
            let mut p = [0; 216];
            p[..36].copy_from_slice(&req(n, 1).private_data[..36]);
            p
        };
        let request =
            SidrReq { request_id: n, pkey: 0xffff, service_id: 0x0111_1c06, private_data };
        assert!(inject_unread(&mut w, &CmMad::new(7, request).to_bytes()) <= 1);
    }
    assert_eq!(w.hosts[1].cm.connection_count(), 256);
}

/// The same without taking events. Returns how many MADs it provoked.
fn inject_unread(w: &mut World, mad: &[u8]) -> usize {
    let from = MadAddress { local: v4(1), remote: v4(200), ifindex: 2, source_qpn: 1 };
    let now = w.now;
    let host = &mut w.hosts[1];
    host.cm.handle_mad(now, from, mad, &mut host.env);
    core::iter::from_fn(|| host.cm.poll_mad()).count()
}

#[test]
fn a_peer_can_not_make_a_dead_connection_last() {
    let mut w = World::new(2);
    let b = w.open(1, 1);
    w.listener(b, 0x100, PS_TCP, "0.0.0.0:7174".parse().unwrap());
    // It asks for response time-outs of two hours and for an ACK timeout as long.
    inject_unread(&mut w, &CmMad::new(7, req(1, 1)).to_bytes());
    let request = w.expect(b, CONNECT_REQUEST);
    w.accept(b, request.id, 0xb, &Param::new(2, b"")).unwrap();
    w.run_for(Duration::from_millis(1));
    let mra = Mra {
        local_comm_id: 1,
        remote_comm_id: comm_id_of_rep(&w),
        mraed: Mraed::Rep,
        service_timeout: 31,
        private_data: [0; 222],
    };
    inject_unread(&mut w, &CmMad::new(7, mra).to_bytes());
    w.close(b);
    w.run_for(Duration::from_secs(300));
    assert_eq!(w.hosts[1].cm.connection_count(), 0);
}

fn comm_id_of_rep(w: &World) -> u32 {
    let rep = w.sent.iter().find_map(|m| match CmMad::parse(&m.mad).unwrap().message {
        CmMessage::Rep(rep) => Some(rep.local_comm_id),
        _ => None,
    });
    rep.expect("a REP was sent")
}

#[test]
fn requests_that_make_no_sense_are_refused_with_their_reason() {
    let mut w = World::new(2);
    let b = w.open(1, 1);
    w.listener(b, 0x100, PS_TCP, "0.0.0.0:7174".parse().unwrap());
    let good = req(5, 1);
    // XRC is the only extended transport, and this listener is no target.
    let service = polypath_wire::cm::CmService::Extended;
    let xrc = Req { service, extended_transport: Req::EXTENDED_XRC, ..good };
    let none = Req { extended_transport: 0, ..xrc };
    let other = Req { extended_transport: Req::EXTENDED_XRC + 1, ..xrc };
    let mut no_header = good;
    no_header.private_data[0] = 1;
    let mut elsewhere = good;
    elsewhere.primary.remote_gid = Gid::from_ip(v4(7));
    for (bad, reason) in [
        (Req { mtu: 0, ..good }, RejectReason::InvalidMtu),
        (Req { mtu: 6, ..good }, RejectReason::InvalidMtu),
        (Req { service: polypath_wire::cm::CmService::Rd, ..good }, RejectReason::InvalidTransport),
        (Req { service: polypath_wire::cm::CmService::Uc, ..good }, RejectReason::ConsumerDefined),
        (xrc, RejectReason::ConsumerDefined),
        (none, RejectReason::InvalidTransport),
        (other, RejectReason::InvalidTransport),
        (no_header, RejectReason::ConsumerDefined),
        (elsewhere, RejectReason::InvalidGid),
    ] {
        let answers = inject(&mut w, bad);
        let got = match answers[..] {
            [CmMessage::Rej(rej)] => rej.reason,
            ref other => panic!("{reason:?}: {other:?}"),
        };
        assert_eq!(got, reason);
    }
    assert_eq!(w.hosts[1].cm.connection_count(), 0);
    assert!(w.try_event(b).is_none());
}

/// Requests that nobody serves wait a moment for a listener. Of a flood only some wait, and none
/// waits twice.
#[test]
fn a_flood_of_requests_for_nobody_is_bounded_and_rejected() {
    let mut w = World::new(2);
    let mut at_once = 0;
    for n in 1..=100 {
        let request = Req { service_id: u64::MAX, ..req(n, 1) };
        for _ in 0..2 {
            for answer in inject(&mut w, request) {
                assert!(
                    matches!(answer, CmMessage::Rej(rej) if rej.reason == RejectReason::InvalidServiceId)
                );
                at_once += 1;
            }
        }
    }
    assert_eq!(at_once, 2 * (100 - 64));
    w.run_for(Duration::from_millis(250));
    assert_eq!(w.hosts[1].cm.counters().requests_unserved, at_once + 64);
    assert_eq!(w.hosts[1].cm.connection_count(), 0);
}

/// Random damage to real messages, and noise: nothing panics, and the tables stay small.
#[test]
fn damaged_mads_harm_nothing() {
    let mut seeds = World::new(2);
    established(&mut seeds);
    let samples: Vec<[u8; 256]> = seeds.sent.iter().map(|m| m.mad).collect();
    for seed in 0..200 {
        let mut w = World::with_config(2, seed, &CmConfig::default());
        let (a, b, id, child) = established(&mut w);
        let live: Vec<[u8; 256]> = w.sent.iter().map(|m| m.mad).chain(samples.clone()).collect();
        for _ in 0..200 {
            let mut mad = live[w.rng.below(live.len() as u64) as usize].to_vec();
            for _ in 0..w.rng.below(6) {
                let at = 16 + w.rng.below(240) as usize;
                mad[at] = w.rng.next() as u8;
            }
            if w.rng.chance(20) {
                mad[17] = 0x10 + w.rng.below(14) as u8;
            }
            if w.rng.chance(5) {
                mad.truncate(w.rng.below(257) as usize);
            }
            inject_bytes(&mut w, &mad);
            if w.rng.chance(10) {
                w.run_for(Duration::from_secs(1));
            }
        }
        for (client, id) in [(a, id), (b, child)] {
            let _ = w.disconnect(client, id);
            w.destroy(client, id).unwrap();
        }
        w.close(a);
        w.close(b);
        w.run_for(Duration::from_secs(400));
        for host in &w.hosts {
            assert_eq!(host.cm.connection_count(), 0, "seed {seed}");
        }
        assert!(w.hosts[1].cm.counters().mads_malformed > 0);
    }
}

#[test]
fn a_mad_from_another_queue_pair_than_qp1_is_dropped() {
    let mut w = World::new(2);
    let from = MadAddress { local: v4(1), remote: v4(0), ifindex: 2, source_qpn: 2 };
    let mad = CmMad::new(7, req(5, 1)).to_bytes();
    let host = &mut w.hosts[1];
    host.cm.handle_mad(Duration::ZERO, from, &mad, &mut host.env);
    assert_eq!(host.cm.counters().mads_malformed, 1);
    assert!(host.cm.poll_mad().is_none());
}

/// Random commands with sensible and senseless fields: nothing panics.
#[test]
fn senseless_commands_harm_nothing() {
    for seed in 0..300 {
        let mut w = World::with_config(2, seed, &CmConfig::default());
        let (a, b, _, _) = established(&mut w);
        let _ = b;
        for _ in 0..200 {
            let len = w.rng.below(320) as usize;
            let mut bytes: Vec<u8> =
                (0..len).map(|_| if w.rng.chance(70) { 0 } else { w.rng.next() as u8 }).collect();
            if len >= 8 && w.rng.chance(95) {
                let cmd = w.rng.below(26) as u32;
                bytes[0..4].copy_from_slice(&cmd.to_ne_bytes());
                bytes[4..6].copy_from_slice(&((len - 8) as u16).to_ne_bytes());
                bytes[6..8].copy_from_slice(&400u16.to_ne_bytes());
                // Ids are small numbers; families and sizes are where addresses are.
                for at in [0usize, 8, 16, 44, 56, 272, 280] {
                    if w.rng.chance(60) && at + 12 <= len {
                        let id = w.rng.below(4) as u8;
                        bytes[8 + at..12 + at].copy_from_slice(&[id, 0, 0, 0]);
                    }
                }
                for at in [8usize, 16, 24, 28, 144] {
                    if w.rng.chance(50) && at + 10 <= len {
                        bytes[8 + at] = [2, 10, 27][w.rng.below(3) as usize];
                        bytes[9 + at] = 0;
                    }
                }
            }
            let host = &mut w.hosts[a.host];
            let _ = host.cm.command(w.now, a.file, &bytes, &mut host.env);
        }
        let host = &mut w.hosts[0];
        assert!(host.cm.command(w.now, FileId(99), &[0; 32], &mut host.env).is_err());
        w.run_for(Duration::from_secs(200));
        w.close(a);
        w.close(b);
        w.run_for(Duration::from_secs(200));
        for host in &w.hosts {
            assert_eq!((host.cm.connection_count(), host.cm.describe().len()), (0, 0));
        }
    }
}
