//! Reproduces the MADs of Linux's connection manager over rxe byte by byte, except for random
//! values: communication and transaction ids, first PSNs, and the port that a client got.

mod common;

use core::net::SocketAddr;

use common::*;
use polypath_wire::cm::{CmMad, CmMessage};

/// The CM MADs of a capture, from the vectors of the wire crate.
fn captured(name: &str) -> Vec<[u8; 256]> {
    let path = format!("{}/../wire/tests/vectors/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut mads = Vec::new();
    let mut at = 24;
    while let Some(record) = file.get(at..at + 16) {
        let len = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
        let frame = &file[at + 16..at + 16 + len];
        at += 16 + len;
        // BTH opcode UD SEND-Only to QP1: 12 bytes of BTH, 8 of DETH, the MAD, 4 of ICRC.
        let Some(packet) = frame.len().checked_sub(12 + 8 + 256 + 4).map(|n| &frame[n..]) else {
            continue;
        };
        if packet[0] == 0x64 && packet[5..8] == [0, 0, 1] {
            mads.push(packet[20..276].try_into().unwrap());
        }
    }
    assert!(!mads.is_empty(), "{path} has no MADs");
    mads
}

/// Sets the random values to 0.
fn masked(mad: &[u8; 256]) -> [u8; 256] {
    let mut m = *mad;
    let mut blank = |at: core::ops::Range<usize>| m[24 + at.start..24 + at.end].fill(0);
    match CmMad::parse(mad).unwrap().message {
        CmMessage::Req(_) => {
            blank(0..4);
            blank(44..47); // PSN
            blank(88..91); // flow label, made from the port
            blank(142..144); // port
        }
        CmMessage::Rep(_) => {
            blank(0..8);
            blank(20..23); // PSN
        }
        CmMessage::SidrReq(_) => {
            blank(0..4);
            blank(18..20); // port
        }
        CmMessage::SidrRep(_) => blank(0..4),
        _ => blank(0..8),
    }
    m[8..16].fill(0);
    m
}

#[track_caller]
fn assert_same(ours: &[u8; 256], theirs: &[u8; 256]) {
    let (a, b) = (masked(ours), masked(theirs));
    let differing: Vec<usize> = (0..256).filter(|i| a[*i] != b[*i]).collect();
    assert_eq!(
        a,
        b,
        "differs at offsets {differing:?}:\n{}\n{}",
        CmMad::parse(ours).unwrap(),
        CmMad::parse(theirs).unwrap()
    );
}

fn find(mads: &[[u8; 256]], name: &str) -> [u8; 256] {
    *mads
        .iter()
        .find(|m| CmMad::parse(*m).unwrap().message.name() == name)
        .unwrap_or_else(|| panic!("no {name} in the capture"))
}

/// Our hosts have the addresses and GUIDs of the captured ones, with the two hosts swapped.
fn world() -> (World, Client, Client) {
    let mut w = World::new(2);
    let (server, client) = (w.open(0, 1), w.open(1, 1));
    (w, server, client)
}

fn qpn(mad: &[u8; 256]) -> u32 {
    match CmMad::parse(mad).unwrap().message {
        CmMessage::Req(m) => m.local_qpn,
        CmMessage::Rep(m) => m.local_qpn,
        CmMessage::SidrRep(m) => m.qpn,
        other => panic!("{} has no queue pair", other.name()),
    }
}

/// The parameters with which our REQ or REP is the same as the captured one.
fn param(mad: &[u8; 256]) -> Param {
    match CmMad::parse(mad).unwrap().message {
        CmMessage::Req(m) => Param {
            responder_resources: m.responder_resources,
            initiator_depth: m.initiator_depth,
            flow_control: m.flow_control,
            retry_count: m.retry_count,
            rnr_retry_count: m.rnr_retry_count,
            ..Param::new(m.local_qpn, &m.private_data[36..])
        },
        CmMessage::Rep(m) => Param {
            responder_resources: m.responder_resources,
            initiator_depth: m.initiator_depth,
            flow_control: m.flow_control,
            rnr_retry_count: m.rnr_retry_count,
            ..Param::new(m.local_qpn, &m.private_data)
        },
        other => panic!("{} has no parameters", other.name()),
    }
}

fn replay(name: &str, option: Option<(u32, u8)>, from: core::net::IpAddr, to: core::net::IpAddr) {
    let theirs = captured(name);
    let (req, rep) = (find(&theirs, "REQ"), find(&theirs, "REP"));
    let CmMessage::Req(parsed) = CmMad::parse(&req).unwrap().message else { unreachable!() };
    let address = SocketAddr::new(to, parsed.service_id as u16);
    let (mut w, server, client) = world();
    for host in &mut w.hosts {
        host.env.addresses.retain(|a| a.0.is_ipv4() == to.is_ipv4());
        host.env.addresses.truncate(1);
    }
    w.hosts[0].env.addresses[0].0 = to;
    w.hosts[1].env.addresses[0].0 = from;
    w.listener(server, 1, PS_TCP, address);
    let id = w.create(client, 2, PS_TCP);
    if let Some((name, value)) = option {
        w.set_option(client, id, 0, name, &[value]).unwrap();
    }
    w.resolve_addr(client, id, None, address).unwrap();
    w.expect(client, ADDR_RESOLVED);
    w.resolve_route(client, id).unwrap();
    w.expect(client, ROUTE_RESOLVED);
    w.connect(client, id, &param(&req)).unwrap();
    let request = w.expect(server, CONNECT_REQUEST);
    w.accept(server, request.id, 3, &param(&rep)).unwrap();
    w.expect(client, CONNECT_RESPONSE);
    w.confirm(client, id).unwrap();
    w.expect(server, ESTABLISHED);
    // That of the first connection, if there are several.
    let dreq = theirs.iter().find_map(|m| match CmMad::parse(m).unwrap().message {
        CmMessage::Dreq(d) if [qpn(&req), qpn(&rep)].contains(&d.remote_qpn) => Some((*m, d)),
        _ => None,
    });
    let (dreq, parsed) = dreq.expect("the connection ends");
    let dreq_of_client = parsed.remote_qpn == qpn(&rep);
    let (first, second) = if dreq_of_client {
        ((client, id), (server, request.id))
    } else {
        ((server, request.id), (client, id))
    };
    w.disconnect(first.0, first.1).unwrap();
    w.expect(second.0, DISCONNECTED);
    w.disconnect(second.0, second.1).unwrap();
    w.expect(first.0, DISCONNECTED);

    let ours: Vec<[u8; 256]> = w.sent.iter().map(|m| m.mad).collect();
    for name in ["REQ", "REP", "RTU", "DREP"] {
        assert_same(&find(&ours, name), &find(&theirs, name));
    }
    assert_same(&find(&ours, "DREQ"), &dreq);
    // The flow label is computed from the ports, as in the kernel.
    for req in [find(&ours, "REQ"), req] {
        let CmMessage::Req(m) = CmMad::parse(&req).unwrap().message else { unreachable!() };
        let port = u32::from(u16::from_be_bytes([m.private_data[2], m.private_data[3]]));
        let expected = (port * 31 + u32::from(m.service_id as u16)) & 0xf_ffff;
        assert_eq!(m.primary.flow_label, expected);
    }
}

#[test]
fn rping_looks_as_from_the_kernel() {
    replay("rxe_cm_rping", None, v4(1), v4(0));
}

#[test]
fn rping_over_ipv6_looks_as_from_the_kernel() {
    replay("rxe_cm_rping_v6", None, "fd77::2".parse().unwrap(), "fd77::1".parse().unwrap());
}

#[test]
fn a_type_of_service_looks_as_from_the_kernel() {
    replay("rxe_cm_ucmatose_tos", Some((0, 0x68)), v4(1), v4(0));
}

#[test]
fn perftest_and_rsockets_look_as_from_the_kernel() {
    replay("rxe_cm_ucmatose", None, v4(1), v4(0));
    replay("rxe_cm_rstream", None, v4(1), v4(0));
    // perftest sets the ACK timeout.
    for name in ["rxe_cm_write_bw", "rxe_cm_read_bw", "rxe_cm_send_bw", "rxe_cm_atomic_bw"] {
        replay(name, Some((3, 14)), v4(1), v4(0));
    }
}

#[test]
fn rejections_look_as_from_the_kernel() {
    let theirs = captured("rxe_cm_reject_nolistener");
    let (mut w, _, client) = world();
    let id = w.resolved(client, 2, PS_TCP, SocketAddr::new(v4(0), 9999));
    w.connect(client, id, &param(&find(&theirs, "REQ"))).unwrap();
    w.expect(client, REJECTED);
    let ours: Vec<[u8; 256]> = w.sent.iter().map(|m| m.mad).collect();
    assert_same(&find(&ours, "REJ"), &find(&theirs, "REJ"));

    // The client gives up and says who it was. It has asked as often by then, though not at the same times.
    let theirs = captured("rxe_cm_noanswer");
    let (mut w, _, client) = world();
    w.filter = Box::new(|_| false);
    let id = w.resolved(client, 2, PS_TCP, SocketAddr::new(v4(0), 7174));
    w.connect(client, id, &param(&find(&theirs, "REQ"))).unwrap();
    w.run_for(core::time::Duration::from_secs(5));
    w.destroy(client, id).unwrap();
    w.run_for(core::time::Duration::from_secs(1));
    let ours: Vec<[u8; 256]> = w.sent.iter().map(|m| m.mad).collect();
    assert_same(&find(&ours, "REQ"), &find(&theirs, "REQ"));
    assert_same(&find(&ours, "REJ"), &find(&theirs, "REJ"));
    let names = |mads: &[[u8; 256]]| -> Vec<&str> {
        mads.iter().map(|m| CmMad::parse(m).unwrap().message.name()).collect()
    };
    assert_eq!(names(&ours), names(&theirs));
}

#[test]
fn service_id_resolution_looks_as_from_the_kernel() {
    let theirs = captured("rxe_cm_udaddy_sidr");
    let (mut w, server, client) = world();
    let address = SocketAddr::new(v4(0), 7174);
    w.listener(server, 1, PS_UDP, address);
    let id = w.resolved(client, 2, PS_UDP, address);
    w.connect(client, id, &Param::new(1, b"")).unwrap();
    let request = w.expect(server, CONNECT_REQUEST);
    let rep = find(&theirs, "SIDR_REP");
    w.accept(server, request.id, 3, &Param::new(qpn(&rep), b"")).unwrap();
    w.expect(client, ESTABLISHED);
    let ours: Vec<[u8; 256]> = w.sent.iter().map(|m| m.mad).collect();
    assert_same(&find(&ours, "SIDR_REQ"), &find(&theirs, "SIDR_REQ"));
    assert_same(&find(&ours, "SIDR_REP"), &rep);
}
