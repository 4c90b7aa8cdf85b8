//! XRC: an initiator connects to a target (IBTA annex A14; `rdma_create_ep(3)` with
//! `IBV_QPT_XRC_SEND` and `IBV_QPT_XRC_RECV`). The expected values are what Linux sends and says.

mod common;

use common::pairs::*;
use common::*;
use polypath_wire::cm::{CmMad, CmMessage, CmService};

/// `enum ibv_qp_type`.
const RC: u8 = 2;
const XRC_SEND: u8 = 9;
const XRC_RECV: u8 = 10;

/// A client on host 0, and on host 1 a server that listens for queue pairs of a type.
fn pair_of(qp_type: u8) -> (World, Client, Client) {
    let mut w = World::new(2);
    let (a, b) = (w.open(0, 1), w.open(1, 1));
    let id = w.try_create(b, 0x100, PS_IB, qp_type).unwrap();
    w.start_listening(b, id, any());
    (w, a, b)
}

/// An id of host 0 for a queue pair of a type, whose route is resolved.
fn resolved(w: &mut World, a: Client, qp_type: u8) -> u32 {
    let id = w.try_create(a, 0xa, PS_IB, qp_type).unwrap();
    w.resolve(a, id, server());
    id
}

fn message(w: &World, at: usize) -> CmMessage {
    CmMad::parse(&w.sent[at].mad).unwrap().message
}

#[test]
fn an_initiator_connects_to_a_target() {
    let (mut w, a, b) = pair_of(XRC_RECV);
    let id = resolved(&mut w, a, XRC_SEND);
    let early = w.qp_attr(a, id, 1).unwrap();
    assert_eq!((early.mask(), early.access_flags()), (0x39, 0));
    w.set_option(a, id, 0, 3, &[18]).unwrap();
    let param = Param { responder_resources: 3, initiator_depth: 5, ..Param::new(0x1234, b"hi") };
    w.connect(a, id, &param).unwrap();
    let request = w.expect(b, CONNECT_REQUEST);
    // The fields that only the other half would need are 0.
    assert_eq!((request.qp_num(), request.conn_numbers()), (0x1234, [0, 5, 0, 0, 0, 0]));
    let CmMessage::Req(req) = message(&w, 0) else { panic!() };
    assert_eq!((req.service, req.extended_transport, req.srq), (CmService::Extended, 1, false));

    let b_rtr = w.qp_attr(b, request.id, 2).unwrap();
    let b_rts = w.qp_attr(b, request.id, 3).unwrap();
    let param = Param { responder_resources: 4, initiator_depth: 2, ..Param::new(0x5678, b"yo") };
    w.accept(b, request.id, 0xb, &param).unwrap();
    let response = w.expect(a, CONNECT_RESPONSE);
    assert_eq!((response.qp_num(), &response.conn_private()[..2]), (0x5678, &b"yo"[..]));
    let CmMessage::Rep(rep) = message(&w, 1) else { panic!() };
    assert_eq!((rep.local_qpn, rep.local_eecn, rep.srq), (0, 0x5678, true));
    assert_eq!((rep.initiator_depth, rep.responder_resources), (0, 4));

    let a_rtr = w.qp_attr(a, id, 2).unwrap();
    let a_rts = w.qp_attr(a, id, 3).unwrap();
    let peer = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
    assert_eq!((a_rtr.mask(), b_rtr.mask()), (peer, peer | 1 << 15 | 1 << 17));
    assert_eq!((a_rtr.dest_qp_num(), b_rtr.dest_qp_num()), (0x5678, 0x1234));
    assert_eq!((a_rtr.rq_psn(), b_rtr.rq_psn()), (b_rts.sq_psn(), a_rts.sq_psn()));
    assert_eq!(a_rts.mask(), 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);
    assert_eq!(b_rts.mask(), 1 | 1 << 9 | 1 << 16);
    // READs in flight, time-out as the option says, retries.
    assert_eq!(a_rts.numbers(), [4, 0, 0, 0, 18, 7, 7]);
    assert_eq!(b_rtr.numbers()[1], 5);

    w.confirm(a, id).unwrap();
    assert_eq!(w.expect(b, ESTABLISHED).id, request.id);
    w.disconnect(a, id).unwrap();
    assert_eq!(w.expect(b, DISCONNECTED).id, request.id);
    w.disconnect(b, request.id).unwrap();
    assert_eq!(w.expect(a, DISCONNECTED).id, id);
    assert_eq!(w.sent_names(), ["REQ", "REP", "RTU", "DREQ", "DREP"]);
}

#[test]
fn nobody_but_a_target_serves_an_initiator() {
    let (mut w, a, _) = pair_of(RC);
    let id = resolved(&mut w, a, XRC_SEND);
    w.connect(a, id, &Param::new(0x1234, b"")).unwrap();
    assert_eq!(w.expect(a, REJECTED).id, id);
}

#[test]
fn a_target_serves_nobody_but_an_initiator_and_asks_nobody() {
    let (mut w, a, _) = pair_of(XRC_RECV);
    let id = resolved(&mut w, a, RC);
    w.connect(a, id, &Param::new(0x1234, b"")).unwrap();
    assert_eq!(w.expect(a, REJECTED).id, id);
    let id = resolved(&mut w, a, XRC_RECV);
    assert_eq!(w.connect(a, id, &Param::new(0x1234, b"")), Err(EINVAL));
}
