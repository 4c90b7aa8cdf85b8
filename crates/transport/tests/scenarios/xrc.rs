//! XRC: an initiator on side 0, its target on side 1 (IBTA annex A14).

use std::time::Duration;

use polypath_transport::*;
use polypath_wire::Service;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{Reth, XrcEth};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::pair::*;

const SIGNALED: SendFlags = SendFlags::SIGNALED;
/// Two shared receive queues of the target's domain.
const A: u32 = 0x00_0007;
const B: u32 = 0xfe_dcba;

fn pair(setup: Setup) -> Pair {
    let mut p = Pair::new(Setup { qp_type: QpType::XrcSend, ..setup });
    for srqn in [A, B] {
        p.nodes[1].host.xrc.insert(srqn, [].into());
    }
    p
}

fn recv(p: &mut Pair, srqn: u32, wr_id: u64, addr: u64, len: u32) {
    let wr = RecvWr { wr_id, sges: Sges::from_slice(&[sge(addr, len)]) };
    p.nodes[1].host.xrc.get_mut(&srqn).unwrap().push_back(wr);
}

fn post(p: &mut Pair, srqn: u32, wr_id: u64, op: SendOp, addr: u64, len: u32) {
    let sges = [sge(addr, len)];
    let data = SendData::Sges(if len == 0 { &[] } else { &sges });
    let wr = SendWr { wr_id, op, flags: SIGNALED, data, ud: None };
    p.nodes[0].qp.post_xrc_send(&wr, srqn).unwrap();
}

fn received(p: &Pair) -> Vec<(u32, u64, WcStatus, u32)> {
    let all = p.nodes[1].host.xrc_completions.iter();
    all.map(|(srqn, c)| (*srqn, c.wr_id, c.status, c.byte_len)).collect()
}

/// o14-5 and following: the XRCETH of each message names the queue.
#[test]
fn each_message_takes_a_receive_of_the_queue_that_it_names() {
    let mut p = pair(Setup::default());
    let data = pattern(5000, 1);
    p.nodes[0].write_memory(0, &data);
    recv(&mut p, A, 1, 0x10000, 8000);
    recv(&mut p, B, 2, 0x20000, 8000);
    recv(&mut p, B, 3, 0x30000, 0);
    post(&mut p, B, 10, SendOp::Send, 0, 5000);
    post(&mut p, A, 11, SendOp::SendImm([1, 2, 3, 4]), 0, 100);
    post(&mut p, B, 12, SendOp::WriteImm { va: 0x40000, rkey: ALL, imm: [5; 4] }, 0, 3000);
    p.run();
    let good = WcStatus::Success;
    assert_eq!(received(&p), [(B, 2, good, 5000), (A, 1, good, 100), (B, 3, good, 3000)]);
    let c = p.nodes[1].host.xrc_completions[0].1;
    assert_eq!((c.qpn, c.src_qpn), (QPN[1], QPN[0]));
    assert!(p.nodes[1].host.recv_completions.is_empty());
    assert_eq!(p.nodes[1].memory(0x20000, 5000), data);
    assert_eq!(p.nodes[1].memory(0x40000, 3000), &data[..3000]);
    assert_eq!(p.nodes[0].host.statuses(), [(10, good), (11, good), (12, good)]);
    p.assert_settled();
}

#[test]
fn packets_are_of_xrc_and_only_requests_name_a_queue() {
    let mut p = pair(Setup::default());
    p.filter = Some(Box::new(|to, packet| {
        assert_eq!(packet.opcode().service(), Service::Xrc, "{packet}");
        assert_eq!(packet.headers.xrc, (to == 1).then_some(XrcEth { srqn: A }));
        assert!(packet.headers.fit_opcode());
        true
    }));
    recv(&mut p, A, 1, 0x10000, 8000);
    post(&mut p, A, 1, SendOp::Send, 0, 4000);
    post(&mut p, A, 2, SendOp::Read { va: 0, rkey: ALL }, 0x2000, 4000);
    post(&mut p, A, 3, SendOp::FetchAdd { va: 0x8000, rkey: ALL, add: 3 }, 0x3000, 8);
    p.run();
    assert_eq!(p.nodes[0].host.statuses().len(), 3);
    assert_eq!(p.nodes[1].u64_at(0x8000), 3);
}

/// XRC survives every loss that RC survives.
#[test]
fn every_operation_is_executed_once_whatever_is_lost() {
    for seed in 0..40 {
        let mut p = pair(Setup { mtu: 256, ..Setup::default() });
        p.rng = Rng(seed);
        p.links[0] = Link { loss: 40, duplicate: 30, jitter: 30 * US, ..Link::default() };
        let data = pattern(6000, seed);
        p.nodes[0].write_memory(0, &data);
        p.nodes[1].write_memory(0x5_0000, &data);
        for i in 0..8 {
            recv(&mut p, if i % 2 == 0 { A } else { B }, i, 0x1_0000 + i * 0x2000, 0x2000);
            post(&mut p, if i % 2 == 0 { A } else { B }, i, SendOp::Send, 0, 6000);
            let at = 0x8000 + i * 8;
            post(&mut p, A, 100 + i, SendOp::FetchAdd { va: 0x8000, rkey: ALL, add: 1 }, at, 8);
        }
        post(&mut p, B, 200, SendOp::Read { va: 0x5_0000, rkey: ALL }, 0x6_0000, 6000);
        p.run();
        assert_eq!(p.nodes[0].host.statuses().len(), 17, "seed {seed}");
        assert!(p.nodes[0].host.statuses().iter().all(|s| s.1 == WcStatus::Success));
        for i in 0..8 {
            assert_eq!(p.nodes[1].memory(0x1_0000 + i * 0x2000, 6000), data, "seed {seed}");
            assert_eq!(p.nodes[0].u64_at(0x8000 + i * 8), i as u64);
        }
        assert_eq!(p.nodes[0].memory(0x6_0000, 6000), data);
        assert_eq!((p.nodes[1].host.atomics, received(&p).len()), (8, 8));
        p.assert_settled();
    }
}

/// A14: a queue that does not exist, or is of another domain, ends the connection as a wrong key
/// does.
#[test]
fn a_queue_outside_of_the_domain_is_a_remote_access_error() {
    let ops = [
        SendOp::Send,
        SendOp::Write { va: 0, rkey: ALL },
        SendOp::Read { va: 0, rkey: ALL },
        SendOp::FetchAdd { va: 0, rkey: ALL, add: 1 },
    ];
    for op in ops {
        let mut p = pair(Setup::default());
        post(&mut p, 0x1234, 1, op, 0, 8);
        post(&mut p, A, 2, SendOp::Send, 0, 8);
        p.run();
        let failed = [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(p.nodes[0].host.statuses(), failed);
        assert!(p.nodes[1].host.events.contains(&QpEvent::AccessError));
        assert_eq!(p.nodes[1].qp.state(), QpState::Err);
        assert!(p.nodes[1].host.memory.iter().all(|b| *b == 0));
    }
}

#[test]
fn a_queue_that_changes_within_a_message_is_an_invalid_request() {
    let mut p = pair(Setup::default());
    recv(&mut p, A, 1, 0x1000, 8000);
    recv(&mut p, B, 2, 0x1000, 8000);
    for (i, (opcode, srqn)) in
        [(Opcode::RC_SEND_FIRST, A), (Opcode::RC_SEND_MIDDLE, B)].into_iter().enumerate()
    {
        let psn = Psn::new(Setup::default().psn[0] + i as u32);
        let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(opcode.to_xrc()) };
        let headers = Headers { xrc: Some(XrcEth { srqn }), ..Headers::new(bth) };
        let packet = Packet { headers, payload: &[1; 1024] };
        let node = &mut p.nodes[1];
        node.qp.handle_packet(Duration::from_secs(1), &packet, PathId(0), None, &mut node.host);
    }
    // The receive in hand completes where it was taken from.
    assert_eq!(received(&p), [(A, 1, WcStatus::RemInvReqErr, 0)]);
    assert_eq!(p.nodes[1].host.xrc[&B].len(), 1);
    assert!(!p.nodes[1].host.events.contains(&QpEvent::RequestError));
}

#[test]
fn an_empty_queue_is_receiver_not_ready() {
    let mut p = pair(Setup { min_rnr_timer: 12, ..Setup::default() });
    recv(&mut p, B, 1, 0x1000, 100);
    post(&mut p, A, 1, SendOp::Send, 0, 8);
    p.run_for(MS / 2);
    assert_eq!(p.nodes[0].qp.counters().naks_rnr_received, 1);
    recv(&mut p, A, 2, 0x1000, 100);
    p.run();
    assert_eq!(received(&p), [(A, 2, WcStatus::Success, 8)]);
}

/// As for a region that has gone: a requester that does not wait for the answer ignores it.
#[test]
fn a_duplicate_read_whose_queue_has_gone_ends_nothing() {
    let mut p = pair(Setup::default());
    post(&mut p, A, 1, SendOp::Read { va: 0, rkey: ALL }, 0x1000, 100);
    p.run();
    p.nodes[1].host.xrc.remove(&A);
    let psn = Psn::new(Setup::default().psn[0]);
    let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(Opcode::RC_READ_REQUEST.to_xrc()) };
    let reth = Some(Reth { va: 0, rkey: ALL, len: 100 });
    let headers = Headers { reth, xrc: Some(XrcEth { srqn: A }), ..Headers::new(bth) };
    let node = &mut p.nodes[1];
    let late = Packet { headers, payload: &[] };
    node.qp.handle_packet(Duration::from_secs(1), &late, PathId(0), None, &mut node.host);
    post(&mut p, B, 2, SendOp::Read { va: 0, rkey: ALL }, 0x1000, 100);
    p.run();
    assert_eq!(p.nodes[1].qp.counters().naks_fatal_sent, 1);
    assert_eq!(p.nodes[1].host.events, []);
    let good = WcStatus::Success;
    assert_eq!(p.nodes[0].host.statuses(), [(1, good), (2, good)]);
}

#[test]
fn a_target_that_fails_flushes_the_receive_in_hand_to_its_own_queue() {
    let mut p = pair(Setup::default());
    recv(&mut p, B, 5, 0x1000, 8000);
    p.filter = Some(Box::new(|_, packet| !packet.opcode().is_last()));
    post(&mut p, B, 1, SendOp::Send, 0, 3000);
    p.run_for(MS);
    let attr = Setup::default().attr(1);
    p.nodes[1].modify(&attr, QpState::Err).unwrap();
    assert_eq!(received(&p), [(B, 5, WcStatus::WrFlushErr, 0)]);
    // The queue itself remains: no LAST_WQE_REACHED, and nothing is flushed.
    assert!(p.nodes[1].host.events.iter().all(|e| *e != QpEvent::LastWqeReached));
}

#[test]
fn each_side_has_only_its_own_queue() {
    let mut p = pair(Setup::default());
    let wr =
        SendWr { wr_id: 1, op: SendOp::Send, flags: SIGNALED, data: SendData::Sges(&[]), ud: None };
    let invalid = |r: Result<(), PostError>| matches!(r, Err(PostError::Invalid(_)));
    assert!(invalid(p.nodes[1].qp.post_send(&wr)));
    assert!(invalid(p.nodes[1].qp.post_xrc_send(&wr, A)));
    assert!(invalid(p.nodes[0].qp.post_xrc_send(&wr, 1 << 24)));
    assert!(p.nodes.iter_mut().all(|n| invalid(n.qp.post_recv(RecvWr::default()))));
    assert!(invalid(Pair::new(Setup::default()).nodes[0].qp.post_xrc_send(&wr, A)));
}

#[test]
fn packets_of_rc_and_of_the_wrong_direction_are_not_for_xrc() {
    let mut p = pair(Setup::default());
    for (side, opcode) in [
        (0, Opcode::RC_ACK),
        (1, Opcode::RC_SEND_ONLY),
        (0, Opcode::RC_SEND_ONLY.to_xrc()),
        (1, Opcode::RC_ACK.to_xrc()),
    ] {
        let node = &mut p.nodes[side];
        let packet = Packet { headers: Headers::new(Bth::new(opcode)), payload: &[] };
        node.qp.handle_packet(Duration::ZERO, &packet, PathId(0), None, &mut node.host);
    }
    assert!(p.nodes.iter().all(|n| n.qp.counters().dropped_service == 2));
}

#[test]
fn a_bind_that_is_flushed_is_taken_back() {
    let mut p = Pair::new(Setup::default());
    let attr = Setup::default().attr(0);
    p.nodes[0].modify(&attr, QpState::Err).unwrap();
    p.nodes[0].post(1, SendOp::BindMw { mw: 3, rkey: 0x301 }, 0, 0);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(p.nodes[0].host.cancelled, [(3, QPN[0], 0x301)]);
    p.nodes[0].post(2, SendOp::BindMw { mw: 3, rkey: 0x302 }, 0, 0);
    p.nodes[0].modify(&attr, QpState::Reset).unwrap();
    assert_eq!(p.nodes[0].host.cancelled, [(3, QPN[0], 0x301), (3, QPN[0], 0x302)]);
}
