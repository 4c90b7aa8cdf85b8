//! What must fail, how, and in which order.

use std::time::Duration;

use polypath_transport::WcStatus::*;
use polypath_transport::*;
use polypath_wire::ext::{NakCode, Syndrome};
use polypath_wire::opcode::Opcode;

use crate::host::PD;
use crate::pair::*;

const WRITE: SendOp = SendOp::Write { va: 0, rkey: ALL };
const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn assert_explained(p: &Pair, side: usize, words: &str) {
    let all = &p.nodes[side].host.explanations;
    assert!(all.iter().any(|e| e.contains(words)), "no explanation says {words:?}: {all:?}");
}

/// The peer's queue pair refuses: the request fails with `status`, later ones are flushed, both ends
/// are in the error state.
fn assert_refused(p: &Pair, status: WcStatus, failed: u64, last: u64) {
    let mut expected: Vec<_> = (0..failed).map(|i| (i, Success)).collect();
    expected.push((failed, status));
    expected.extend((failed + 1..=last).map(|i| (i, WrFlushErr)));
    assert_eq!(p.nodes[0].host.statuses(), expected);
    assert_eq!(p.nodes[0].qp.state(), QpState::Err);
    assert_eq!(p.nodes[1].qp.state(), QpState::Err);
    p.assert_settled();
}

fn setups() -> [Setup; 2] {
    [Setup::default(), Setup { multipath: true, ..Setup::default() }]
}

/// IBTA 9.7.4.1.4, 9.9.3: class C.
#[test]
fn a_bad_remote_key_range_or_right_is_a_remote_access_error() {
    let bad = [
        SendOp::Write { va: 0, rkey: 0xbad },
        SendOp::Write { va: crate::host::MEMORY as u64 - 10, rkey: ALL },
        SendOp::Write { va: u64::MAX - 10, rkey: ALL },
        SendOp::Write { va: 0x100, rkey: 0x51 },
        SendOp::Read { va: 0, rkey: 0xbad },
    ];
    for setup in setups() {
        for (i, op) in bad.into_iter().enumerate() {
            let mut p = Pair::new(setup);
            p.nodes[1].host.register(0x51, 0, 0x1000, Access::REMOTE_READ);
            p.nodes[1].recv(77, 0x1000, 100);
            p.nodes[0].post(0, WRITE, 0, 5000);
            p.nodes[0].post(1, op, 0, 3000);
            p.nodes[0].post(2, WRITE, 0, 5000);
            p.nodes[0].post_with(3, WRITE, SendFlags::empty(), 0, 8);
            p.run();
            assert_refused(&p, RemAccessErr, 1, 3);
            assert_eq!(p.nodes[1].host.recv_statuses(), [(77, WrFlushErr)], "{i}");
            assert_eq!(p.nodes[1].host.events, [QpEvent::AccessError]);
            assert_explained(&p, 0, "remote access error");
            assert_explained(&p, 1, "refused");
        }
    }
}

/// IBTA 9.7.4.1.3: what the queue pair's own access flags forbid is an invalid request.
#[test]
fn an_operation_that_the_queue_pair_forbids_is_an_invalid_request() {
    let faa = SendOp::FetchAdd { va: 0, rkey: ALL, add: 1 };
    for op in [WRITE, SendOp::Read { va: 0, rkey: ALL }, faa] {
        let mut p = Pair::new(Setup { access: Access::empty(), ..Setup::default() });
        p.nodes[0].post(0, op, 0, 8);
        p.run();
        assert_refused(&p, RemInvReqErr, 0, 0);
        assert_eq!(p.nodes[1].host.events, [QpEvent::RequestError]);
    }
}

/// IBTA 9.9.3 table 57: the responder's receive ends with a length error, the sender is refused.
#[test]
fn a_message_longer_than_its_receive_is_refused() {
    for setup in setups() {
        let mut p = Pair::new(setup);
        p.nodes[1].recv(5, 0, 1500);
        p.nodes[1].recv(6, 0, 1500);
        p.nodes[0].post(0, SendOp::Send, 0, 2048);
        p.nodes[0].post(1, SendOp::Send, 0, 8);
        p.run();
        assert_refused(&p, RemInvReqErr, 0, 1);
        assert_eq!(p.nodes[1].host.recv_statuses(), [(5, LocLenErr), (6, WrFlushErr)]);
        assert_eq!(p.nodes[1].host.events, [], "the completion tells it");
    }
}

#[test]
fn a_receive_with_a_bad_key_is_a_remote_operational_error_for_the_sender() {
    let mut p = Pair::new(Setup::default());
    let bad = Sge { addr: 0, len: 100, lkey: 0xbad };
    p.nodes[1].qp.post_recv(RecvWr { wr_id: 5, sges: Sges::from_slice(&[bad]) }).unwrap();
    p.nodes[0].post(0, SendOp::Send, 0, 10);
    p.run();
    assert_refused(&p, RemOpErr, 0, 0);
    assert_eq!(p.nodes[1].host.recv_statuses(), [(5, LocProtErr)]);
    assert_eq!(p.nodes[1].host.events, [], "the completion tells it");
}

/// C9-222.1.1: a failure that does not concern the message that is arriving does not end its
/// receive, but raises an event.
#[test]
fn a_read_whose_region_goes_is_an_event_though_a_message_is_arriving() {
    let mut p = Pair::new(Setup::default());
    p.nodes[1].host.register(0x51, 0, 0x80000, Access::REMOTE_READ);
    p.nodes[1].recv(5, 0x1000, 0x40000);
    // The packets after the first one of the message never arrive.
    p.filter = Some(Box::new(|_, packet| {
        !matches!(packet.opcode(), Opcode::RC_SEND_MIDDLE | Opcode::RC_SEND_LAST)
    }));
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: 0x51 }, 0x10000, 0x40000);
    p.nodes[0].post(1, SendOp::Send, 0, 5000);
    p.run_for(30 * US);
    p.nodes[1].host.regions.remove(&0x51);
    p.run();
    assert_eq!(p.nodes[1].host.recv_statuses(), [(5, WrFlushErr)]);
    assert_eq!(p.nodes[1].host.events, [QpEvent::AccessError]);
}

/// A local fault is reported in its turn: what was posted before completes first.
#[test]
fn a_bad_local_key_fails_in_order() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].post_with(0, WRITE, SIGNALED, 0, 9000);
    let bad = Sge { addr: 0, len: 100, lkey: 0xbad };
    let wr = SendWr {
        wr_id: 1,
        op: WRITE,
        flags: SendFlags::empty(),
        data: SendData::Sges(&[sge(0, 5000), bad]),
        ud: None,
    };
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.nodes[0].post(2, WRITE, 0, 10);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(p.nodes[0].qp.state(), QpState::Err);
    assert_explained(&p, 0, "lkey");
    p.assert_settled();
}

#[test]
fn a_region_that_goes_away_while_a_message_is_sent_is_a_local_error() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].host.register(0x99, 0, 500_000, Access::empty());
    let sges = [Sge { addr: 0, len: 500_000, lkey: 0x99 }];
    let data = SendData::Sges(&sges);
    let wr = SendWr { wr_id: 1, op: WRITE, flags: SIGNALED, data, ud: None };
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.run_for(30 * US);
    p.nodes[0].host.regions.remove(&0x99);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, LocProtErr)]);
    p.assert_settled();
}

#[test]
fn a_read_into_memory_that_may_not_be_written_is_a_local_error() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].host.register(0x99, 0, 5000, Access::REMOTE_READ);
    let sges = [Sge { addr: 0, len: 5000, lkey: 0x99 }];
    let op = SendOp::Read { va: 0, rkey: ALL };
    let wr = SendWr { wr_id: 1, op, flags: SIGNALED, data: SendData::Sges(&sges), ud: None };
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, LocProtErr)]);
    assert_eq!(p.nodes[0].qp.counters().sent_packets, 0);
}

/// IBTA 9.9.2.4.1: retry_cnt times after the first attempt, then RETRY_EXC_ERR; the rest is
/// flushed.
#[test]
fn retries_are_counted_as_modify_qp_says() {
    let mut p = Pair::new(Setup { timeout: 10, retry_cnt: 3, ..Setup::default() });
    p.links[0].cut = [true; 2];
    let start = p.now;
    p.nodes[0].post(0, WRITE, 0, 100);
    p.nodes[0].post(1, WRITE, 0, 100);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, RetryExcErr), (1, WrFlushErr)]);
    let timeout = Duration::from_nanos(4096 << 10);
    // IBTA 9.7.6.1.3: each timeout is detected after four times the timeout at the latest.
    assert!(p.now - start >= timeout * 16 && p.now - start < timeout * 17);
    assert_eq!(p.nodes[0].qp.counters().timeouts, 4);
    assert_explained(&p, 0, "after 3 retries");
    p.assert_settled();
}

/// Probes come every 200 ms at the latest. A longer timeout must come nevertheless, although the
/// only packet that waits for it is sent again and again.
#[test]
fn probes_do_not_put_off_the_timeout() {
    for code in [15, 17, 19] {
        let mut p = Pair::new(Setup { timeout: code, retry_cnt: 1, ..Setup::default() });
        p.links[0].cut = [true; 2];
        let start = p.now;
        p.nodes[0].post(0, WRITE, 0, 100);
        p.run_for(Duration::from_secs(60));
        assert_eq!(p.nodes[0].host.statuses(), [(0, RetryExcErr)], "timeout {code}");
        let timeout = Duration::from_nanos(4096 << code);
        assert!(p.now - start >= timeout * 8);
        assert_eq!(p.nodes[0].qp.counters().timeouts, 2);
    }
}

#[test]
fn timeout_0_never_gives_up() {
    let mut p = Pair::new(Setup { timeout: 0, retry_cnt: 0, ..Setup::default() });
    p.links[0].cut = [true; 2];
    p.nodes[0].post(0, WRITE, 0, 100);
    p.run_for(Duration::from_secs(100));
    assert_eq!(p.nodes[0].qp.state(), QpState::Rts);
    p.links[0].cut = [false; 2];
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success)]);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut p = Pair::new(Setup { timeout: 10, retry_cnt: 1, ..Setup::default() });
    for i in 0..20 {
        p.nodes[0].post(i, WRITE, 0, 100);
        p.links[0].cut = [true; 2];
        p.run_for(12 * MS); // The first attempt is lost, the second is not.
        p.links[0].cut = [false; 2];
        p.run();
    }
    assert_eq!(p.nodes[0].host.statuses(), (0..20).map(|i| (i, Success)).collect::<Vec<_>>());
}

/// IBTA 9.7.5.2.8: no receive work request.
#[test]
fn rnr_is_retried_after_the_timer_and_given_up_after_rnr_retry() {
    for setup in setups() {
        let mut p = Pair::new(Setup { rnr_retry: 2, min_rnr_timer: 14, ..setup });
        let start = p.now;
        p.nodes[0].post(0, SendOp::Send, 0, 100);
        p.nodes[0].post(1, WRITE, 0, 100);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, RnrRetryExcErr), (1, WrFlushErr)]);
        assert_eq!(p.nodes[1].qp.counters().naks_rnr_sent, 3);
        assert!(p.now - start >= MS * 2); // Timer code 14 is 1.28 ms... twice.
        assert_explained(&p, 0, "no receive work request");
        assert_eq!(p.nodes[1].qp.state(), QpState::Rts);
    }
}

#[test]
fn rnr_retry_7_waits_for_ever_and_then_delivers_in_order() {
    for setup in setups() {
        let mut p = Pair::new(setup);
        for i in 0..5 {
            p.nodes[0].post(i, SendOp::Send, 0, 3000);
        }
        p.run_for(50 * MS);
        assert_eq!(p.nodes[0].qp.state(), QpState::Rts);
        for i in 0..5 {
            p.nodes[1].recv(i, 0x1000, 3000);
            p.run_for(MS);
        }
        p.run();
        let all: Vec<_> = (0..5).map(|i| (i, Success)).collect();
        assert_eq!(p.nodes[0].host.statuses(), all);
        assert_eq!(p.nodes[1].host.recv_statuses(), all);
        assert_eq!(p.nodes[0].qp.counters().timeouts, 0);
        p.assert_settled();
    }
}

/// IBTA 9.7.4.1.5.
#[test]
fn more_reads_than_the_responder_agreed_to_are_refused() {
    let mut p = Pair::new(Setup { max_rd_atomic: 4, max_dest_rd_atomic: 1, ..Setup::default() });
    for i in 0..4 {
        p.nodes[0].post(i, SendOp::Read { va: 0, rkey: ALL }, 0, 3000);
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses()[1], (1, RemInvReqErr));
    assert_explained(&p, 1, "max_dest_rd_atomic");
}

#[test]
fn a_send_with_an_unknown_key_to_invalidate_is_refused() {
    let mut p = Pair::new(Setup::default());
    p.nodes[1].recv(1, 0, 100);
    p.nodes[0].post(0, SendOp::SendInv { rkey: 0x4711 }, 0, 8);
    p.run();
    assert_refused(&p, RemAccessErr, 0, 0);
}

/// IBTA 10.3.1.7: in the error state posts are taken and flushed.
#[test]
fn the_error_state_flushes_everything_in_order() {
    let setup = Setup::default();
    let mut p = Pair::new(setup);
    p.links[0].cut = [true; 2];
    for i in 0..3 {
        p.nodes[0].recv(10 + i, 0, 10);
        p.nodes[0].post_with(i, WRITE, SendFlags::empty(), 0, 9000);
    }
    p.run_for(MS);
    p.nodes[0].modify(&setup.attr(0), QpState::Err).unwrap();
    assert_eq!(p.nodes[0].qp.next_deadline(), None);
    p.nodes[0].post(3, WRITE, 0, 10);
    p.nodes[0].recv(13, 0, 10);
    p.run();
    let flushed = |ids: [u64; 4]| ids.map(|i| (i, WrFlushErr)).to_vec();
    assert_eq!(p.nodes[0].host.statuses(), flushed([0, 1, 2, 3]));
    assert_eq!(p.nodes[0].host.recv_statuses(), flushed([10, 11, 12, 13]));
    p.assert_settled();
}

#[test]
fn reset_forgets_everything_without_completions() {
    let setup = Setup::default();
    let mut p = Pair::new(setup);
    p.links[0].cut = [true; 2];
    p.nodes[0].recv(10, 0, 10);
    p.nodes[0].post(0, WRITE, 0, 9000);
    p.run_for(MS);
    p.nodes[0].modify(&setup.attr(0), QpState::Reset).unwrap();
    p.assert_settled();
    p.run();
    assert!(p.nodes[0].host.send_completions.is_empty());
    assert!(p.nodes[0].host.recv_completions.is_empty());
    // And it can be used again.
    p.links[0].cut = [false; 2];
    p.nodes[1].modify(&setup.attr(1), QpState::Reset).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        for side in 0..2 {
            p.nodes[side].modify(&setup.attr(side), state).unwrap();
            p.nodes[side].qp.set_peer(PeerId(0));
        }
    }
    p.nodes[0].post(7, WRITE, 0, 9000);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(7, Success)]);
}

/// IBTA 10.8.2 and the man page of ibv_post_send.
#[test]
fn posts_are_taken_in_the_states_that_take_them() {
    let setup = Setup::default();
    let mut p = Pair::unconnected(setup);
    let n = &mut p.nodes[0];
    let data = SendData::Sges(&[]);
    let send = SendWr { wr_id: 1, op: SendOp::Send, flags: SIGNALED, data, ud: None };
    assert_eq!(n.qp.post_send(&send), Err(PostError::State(QpState::Reset)));
    assert_eq!(n.qp.post_recv(RecvWr::default()), Err(PostError::State(QpState::Reset)));
    for (state, sends) in [
        (QpState::Init, false),
        (QpState::Rtr, false),
        (QpState::Rts, true),
        (QpState::Sqd, true),
        (QpState::Err, true),
    ] {
        n.modify(&setup.attr(0), state).unwrap();
        assert_eq!(n.qp.post_send(&send).is_ok(), sends, "{state:?}");
        assert!(n.qp.post_recv(RecvWr::default()).is_ok());
    }
}

#[test]
fn work_requests_that_make_no_sense_are_refused_at_once() {
    let mut p = Pair::new(Setup::default());
    let n = &mut p.nodes[0];
    let mut post = |op, data: SendData<'_>| {
        n.qp.post_send(&SendWr { wr_id: 0, op, flags: SIGNALED, data, ud: None })
    };
    let invalid = |r: Result<(), PostError>| {
        let e = r.unwrap_err();
        assert!(matches!(e, PostError::Invalid(_)) && e.errno() == 22, "{e:?}");
    };
    let faa = |va| SendOp::FetchAdd { va, rkey: ALL, add: 1 };
    invalid(post(SendOp::Send, SendData::Sges(&[sge(0, 1); 9])));
    invalid(post(SendOp::Send, SendData::Inline(&[0; 257])));
    invalid(post(SendOp::Send, SendData::Sges(&[sge(0, 1 << 30); 3])));
    invalid(post(SendOp::Read { va: 0, rkey: 0 }, SendData::Inline(&[0; 8])));
    invalid(post(faa(0), SendData::Sges(&[sge(0, 4)])));
    invalid(post(faa(4), SendData::Sges(&[sge(0, 8)])));
    let sges = Sges::from_slice(&[sge(0, 1); 9]);
    invalid(n.qp.post_recv(RecvWr { wr_id: 0, sges }));
    for _ in 0..64 {
        n.qp.post_recv(RecvWr::default()).unwrap();
    }
    let full = n.qp.post_recv(RecvWr::default()).unwrap_err();
    assert_eq!((full, full.errno()), (PostError::Full, 12));
}

/// IBTA 10.3.1.5: work requests that were started end, the others wait for RTS.
#[test]
fn sqd_drains_what_was_started_and_says_so() {
    let setup = Setup::default();
    let mut p = Pair::new(setup);
    p.nodes[0].post(0, WRITE, 0, 500_000);
    p.nodes[0].post(1, WRITE, 0, 100);
    p.run_for(30 * US);
    let mut attr = setup.attr(0);
    attr.state = QpState::Sqd;
    attr.en_sqd_async_notify = true;
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    let n = &mut p.nodes[0];
    n.qp.modify(&attr, mask, &mut n.host).unwrap();
    assert!(n.qp.query().sq_draining);
    let rts = QpAttr { state: QpState::Rts, ..attr };
    let early = n.qp.modify(&rts, QpAttrMask::STATE, &mut n.host);
    assert_eq!(early, Err(ModifyError::Draining));
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success)]);
    assert_eq!(p.nodes[0].host.events, [QpEvent::SqDrained]);
    assert!(!p.nodes[0].qp.query().sq_draining);
    let n = &mut p.nodes[0];
    n.qp.modify(&rts, QpAttrMask::STATE, &mut n.host).unwrap();
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success)]);
}

/// IBTA 11.6.3.1.
#[test]
fn a_shared_receive_queue_is_used_and_its_last_wqe_is_told() {
    let setup = Setup { srq: true, ..Setup::default() };
    let mut p = Pair::new(setup);
    assert!(p.nodes[1].qp.post_recv(RecvWr::default()).is_err());
    for i in 0..3 {
        let sges = Sges::from_slice(&[sge(0, 100)]);
        p.nodes[1].host.srq.push_back(RecvWr { wr_id: i, sges });
    }
    p.nodes[0].post(0, SendOp::Send, 0, 10);
    p.nodes[0].post(1, SendOp::Send, 0, 10);
    p.run();
    assert_eq!(p.nodes[1].host.recv_statuses(), [(0, Success), (1, Success)]);
    p.nodes[1].modify(&setup.attr(1), QpState::Err).unwrap();
    assert_eq!(p.nodes[1].host.events, [QpEvent::LastWqeReached]);
    assert_eq!(p.nodes[1].host.srq.len(), 1);
}

/// IBTA 10.2.9. What the peer names is of the queue pair's protection domain all the same.
#[test]
fn receives_of_a_shared_queue_are_checked_against_its_protection_domain() {
    for (srq_pd, status) in [(PD, Success), (PD + 1, LocProtErr)] {
        let mut p = Pair::new(Setup { srq: true, ..Setup::default() });
        let host = &mut p.nodes[1].host;
        (host.srq_pd, host.made_up) = (Some(srq_pd), true);
        host.srq.push_back(RecvWr { wr_id: 0, sges: Sges::from_slice(&[sge(0, 100)]) });
        p.nodes[0].post(0, WRITE, 0, 10);
        p.nodes[0].post(1, SendOp::Send, 0, 10);
        p.run();
        assert_eq!(p.nodes[1].host.recv_statuses(), [(0, status)]);
        assert_eq!(p.nodes[0].host.statuses()[0], (0, Success));
    }
}

/// IBTA 11.6.3.1: data arrives while still in RTR.
#[test]
fn communication_established_is_told_once() {
    let setup = Setup::default();
    let mut p = Pair::unconnected(setup);
    for side in 0..2 {
        for state in [QpState::Init, QpState::Rtr] {
            p.nodes[side].modify(&setup.attr(side), state).unwrap();
        }
        p.nodes[side].qp.set_peer(PeerId(0));
    }
    p.nodes[0].modify(&setup.attr(0), QpState::Rts).unwrap();
    p.nodes[0].post(0, WRITE, 0, 10);
    p.nodes[0].post(1, WRITE, 0, 10);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success)]);
    assert_eq!(p.nodes[1].host.events, [QpEvent::CommEstablished]);
}

#[test]
fn packets_of_other_services_and_states_are_dropped_and_counted() {
    let setup = Setup::default();
    let mut p = Pair::new(setup);
    let bth =
        polypath_wire::Bth { dest_qpn: QPN[1], ..polypath_wire::Bth::new(Opcode::UC_SEND_ONLY) };
    let packet = polypath_wire::Packet { headers: polypath_wire::Headers::new(bth), payload: &[] };
    let n = &mut p.nodes[1];
    n.qp.handle_packet(p.now, &packet, PathId(0), None, &mut n.host);
    assert_eq!(n.qp.counters().dropped_service, 1);
    n.modify(&setup.attr(1), QpState::Err).unwrap();
    n.qp.handle_packet(p.now, &packet, PathId(0), None, &mut n.host);
    assert_eq!(n.qp.counters().dropped_state, 1);
}

/// An acknowledgement that is due leaves before the queue pair closes.
#[test]
fn closing_right_after_the_last_message_does_not_lose_its_acknowledgement() {
    let setup = Setup::default();
    let mut p = Pair::new(setup);
    p.filter = Some(Box::new(|_, _| true));
    p.nodes[0].post(0, WRITE, 0, 10);
    p.pump();
    let (to, bytes) = p.take_packet();
    let packet = polypath_wire::Packet::parse(&bytes).unwrap();
    let n = &mut p.nodes[to];
    n.qp.handle_packet(p.now, &packet, PathId(0), None, &mut n.host);
    n.modify(&setup.attr(1), QpState::Err).unwrap();
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success)]);
}

/// IBTA 9.7.4.1.2, 9.7.4.1.6: packets that no honest requester sends.
#[test]
fn malformed_sequences_are_refused_as_invalid_requests() {
    let packets: [&[(Opcode, usize)]; 6] = [
        &[(Opcode::RC_SEND_MIDDLE, 1024)],
        &[(Opcode::RC_SEND_FIRST, 100)],
        &[(Opcode::RC_SEND_ONLY, 1025)],
        &[(Opcode::RC_SEND_FIRST, 1024), (Opcode::RC_SEND_ONLY, 8)],
        &[(Opcode::RC_SEND_FIRST, 1024), (Opcode::RC_WRITE_LAST, 8)],
        &[(Opcode::RC_SEND_FIRST, 1024), (Opcode::RC_SEND_LAST, 0)],
    ];
    for list in packets {
        let setup = Setup::default();
        let mut p = Pair::new(setup);
        p.nodes[1].recv(1, 0, 9000);
        for (i, (opcode, len)) in list.iter().enumerate() {
            let mut bth = polypath_wire::Bth::new(*opcode);
            bth.psn = polypath_wire::Psn::new(setup.psn[0] + i as u32);
            let payload = vec![0; *len];
            let headers = polypath_wire::Headers::new(bth);
            let packet = polypath_wire::Packet { headers, payload: &payload };
            let n = &mut p.nodes[1];
            n.qp.handle_packet(p.now, &packet, PathId(0), None, &mut n.host);
        }
        let n = &mut p.nodes[1];
        n.qp.flush_acks(&mut n.host);
        let (_, nak) = n.host.out.pop().unwrap();
        let nak = polypath_wire::Packet::parse(&nak).unwrap();
        assert_eq!(nak.headers.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(nak.headers.bth.psn.get(), setup.psn[0] + list.len() as u32 - 1);
        assert_eq!(n.qp.state(), QpState::Err);
        assert_eq!(n.host.recv_completions.len(), 1);
    }
}

/// Memory is registered but not there (pages that were unmapped, a file that was cut). Whoever
/// asked for it gets an access error, as for a wrong key, whichever part of it is gone.
#[test]
fn a_request_for_memory_that_is_gone_is_a_remote_access_error() {
    let requests = [
        (WRITE, 9000),
        (SendOp::AtomicWrite { va: 0x2000, rkey: ALL }, 8),
        (SendOp::FetchAdd { va: 0x2000, rkey: ALL, add: 1 }, 8),
        (SendOp::CompareSwap { va: 0x2000, rkey: ALL, compare: 0, swap: 1 }, 8),
        (SendOp::Read { va: 0x2000, rkey: ALL }, 100),
        (SendOp::Read { va: 0, rkey: ALL }, 9000),
        (SendOp::Read { va: 0, rkey: ALL }, 90_000),
    ];
    for setup in setups() {
        for (op, len) in requests {
            let mut p = Pair::new(setup);
            p.nodes[1].host.gone = 0x2000..0x2010;
            p.nodes[0].post(0, SendOp::Write { va: 0x8000, rkey: ALL }, 0x8000, 5000);
            p.nodes[0].post(1, op, 0x8000, len);
            p.nodes[0].post(2, SendOp::Write { va: 0x8000, rkey: ALL }, 0x8000, 5000);
            p.run();
            assert_refused(&p, RemAccessErr, 1, 2);
            assert_eq!(p.nodes[1].host.events, [QpEvent::AccessError], "{op:?} {len}");
            assert_eq!(p.nodes[1].host.atomics, 0);
            assert_explained(&p, 1, "refused");
        }
    }
}

/// IBTA 9.7.5.2.4, 10.10.3.2: a receive whose memory is gone is a local error at the responder and
/// a remote operational error at the requester.
#[test]
fn a_receive_whose_memory_is_gone_ends_both_sides() {
    for setup in setups() {
        let mut p = Pair::new(setup);
        p.nodes[1].host.gone = 0x2000..0x2010;
        p.nodes[1].recv(7, 0, 9000);
        p.nodes[0].post(0, SendOp::Send, 0x8000, 9000);
        p.nodes[0].post(1, WRITE, 0x8000, 100);
        p.run();
        assert_refused(&p, RemOpErr, 0, 1);
        assert_eq!(p.nodes[1].host.recv_statuses(), [(7, LocProtErr)]);
    }
}

/// A work request whose own memory is gone fails once all before it are complete. Packets of its
/// message that were sent by then do no harm.
#[test]
fn a_work_request_whose_memory_is_gone_fails_after_all_before_it() {
    let requests = [
        (WRITE, 9000),
        (WRITE, 90_000),
        (SendOp::Send, 9000),
        (SendOp::AtomicWrite { va: 0, rkey: ALL }, 8),
        (SendOp::Read { va: 0, rkey: ALL }, 9000),
        (SendOp::FetchAdd { va: 0, rkey: ALL, add: 1 }, 8),
    ];
    for setup in setups() {
        for (op, len) in requests {
            let mut p = Pair::new(setup);
            p.nodes[0].host.gone = 0x9000..0x9010;
            let at = if len == 8 { 0x9000 } else { 0x8000 };
            p.nodes[1].recv(7, 0, 100_000);
            p.nodes[0].post(0, WRITE, 0, 5000);
            p.nodes[0].post(1, op, at, len);
            p.nodes[0].post(2, WRITE, 0, 5000);
            p.run();
            let expected = [(0, Success), (1, LocProtErr), (2, WrFlushErr)];
            assert_eq!(p.nodes[0].host.statuses(), expected, "{op:?} {len}");
            assert_eq!(p.nodes[0].qp.state(), QpState::Err);
            assert_explained(&p, 0, "the memory of the region is gone");
            p.assert_settled();
        }
    }
}
