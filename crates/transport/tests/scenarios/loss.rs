//! Loss, duplicates and reordering, rule by rule.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use polypath_transport::*;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{NakCode, Reth, Syndrome};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::pair::*;

const WRITE: SendOp = SendOp::Write { va: 0x10000, rkey: ALL };

/// Lets `drop` decide which packets are lost. Returns a list of the opcodes and PSNs of all others.
fn watch(
    p: &mut Pair,
    mut drop: impl FnMut(usize, &Packet<'_>) -> bool + 'static,
) -> Rc<RefCell<Vec<(usize, Opcode, u32)>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    p.filter = Some(Box::new(move |to, packet| {
        if drop(to, packet) {
            return false;
        }
        let bth = &packet.headers.bth;
        log.borrow_mut().push((to, bth.opcode.base(), bth.psn.get()));
        true
    }));
    seen
}

/// Drops the first packet to host `side` for which `which` holds.
fn first(
    side: usize,
    which: impl Fn(&Packet<'_>) -> bool + 'static,
) -> impl FnMut(usize, &Packet<'_>) -> bool {
    let mut done = false;
    move |to, packet| {
        let hit = !done && to == side && which(packet);
        done |= hit;
        hit
    }
}

fn psn(packet: &Packet<'_>) -> u32 {
    packet.headers.bth.psn.get()
}

/// IBTA 9.7.5.2.8: one NAK for a gap, and the requester goes back to it.
#[test]
fn a_gap_is_complained_of_once_and_all_from_there_is_sent_again() {
    let mut p = Pair::new(Setup::default());
    let start = Setup::default().psn[0];
    watch(&mut p, first(1, move |k| psn(k) == start + 3));
    p.nodes[0].post(0, WRITE, 0, 10 * 1024);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    let (a, b) = (p.nodes[0].qp.counters(), p.nodes[1].qp.counters());
    assert_eq!((b.naks_sequence_sent, a.naks_sequence_received), (1, 1));
    assert_eq!((b.out_of_order, a.retransmitted_packets), (6, 7));
    assert_eq!((a.tail_probes, a.timeouts), (0, 0));
    assert_eq!(p.nodes[0].host.paths[0].congestions, 1);
    p.assert_settled();
}

#[test]
fn a_multipath_peer_gets_only_what_is_missing() {
    let mut p = Pair::new(Setup { multipath: true, ..Setup::default() });
    let start = Setup::default().psn[0];
    watch(&mut p, first(1, move |k| psn(k) == start + 3));
    p.nodes[0].write_memory(0, &pattern(10 << 10, 1));
    p.nodes[0].post(0, WRITE, 0, 10 << 10);
    p.run();
    let (a, b) = (p.nodes[0].qp.counters(), p.nodes[1].qp.counters());
    assert_eq!((b.naks_sequence_sent, a.retransmitted_packets, a.tail_probes), (0, 1, 0));
    assert_eq!(p.nodes[1].memory(0x10000, 10 << 10), pattern(10 << 10, 1));
    p.assert_settled();
}

/// Invariant 3: nothing is written to memory before what precedes it.
#[test]
fn memory_is_written_strictly_in_order() {
    let mut p = Pair::new(Setup { multipath: true, ..Setup::default() });
    let start = Setup::default().psn[0];
    watch(&mut p, move |to, k| to == 1 && psn(k) == start + 1);
    p.nodes[0].write_memory(0, &[1; 4096]);
    p.nodes[0].post(0, WRITE, 0, 4096);
    p.run_for(MS * 100);
    assert_eq!(p.nodes[1].memory(0x10000, 1024), [1; 1024]);
    assert_eq!(p.nodes[1].memory(0x10000 + 1024, 3072), [0; 3072]);
}

/// No packet follows the last one, so the responder finds no gap to complain about.
#[test]
fn a_lost_tail_is_probed_for_long_before_the_timeout() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        p.nodes[0].post(0, WRITE, 0, 10); // So that the round trip is known.
        p.run();
        let start = Setup::default().psn[0];
        let mut left = 3;
        watch(&mut p, move |_, k| {
            // The last three packets of six are lost once.
            let hit = left > 0 && psn(k) >= start + 4 && psn(k) <= start + 6;
            left -= u32::from(hit);
            hit
        });
        let began = p.now;
        p.nodes[0].post(1, WRITE, 0, 6 * 1024);
        p.run();
        assert_eq!(p.nodes[0].host.statuses().len(), 2);
        let a = p.nodes[0].qp.counters();
        // The probe itself, and the three that its answer shows to be missing.
        assert_eq!((a.tail_probes, a.timeouts, a.retransmitted_packets), (1, 0, 4));
        assert!(p.now - began < MS * 4);
        assert_eq!(p.nodes[0].host.paths[0].suspected, 1);
    }
}

/// A plain peer's answers have no timestamps, so the first packet of a late answer may be taken for the
/// answer to the probe. The others follow it.
#[test]
fn a_long_answer_that_is_late_is_not_taken_to_be_lost() {
    let mut p = Pair::new(Setup::default());
    p.links[0].delay = MS * 12;
    let read = SendOp::Read { va: 0, rkey: ALL };
    p.nodes[0].post(1, read, 0x40000, 8 * 1024);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    let a = p.nodes[0].qp.counters();
    assert_eq!((a.tail_probes, a.timeouts), (1, 0), "the round trip was not known");
    assert_eq!(p.nodes[0].host.paths[0].congestions, 0);
}

/// IBTA 9.7.1: executed once, acknowledged again.
#[test]
fn a_duplicate_send_is_acknowledged_but_not_executed_again() {
    let mut p = Pair::new(Setup::default());
    watch(&mut p, first(0, |k| k.headers.bth.opcode == Opcode::RC_ACK));
    p.nodes[1].recv(1, 0, 100);
    p.nodes[1].recv(2, 0, 100);
    p.nodes[0].post(0, SendOp::Send, 0, 100);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(p.nodes[1].host.recv_statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.nodes[1].qp.counters().duplicate_requests, 1);
}

/// IBTA 9.7.5.1.5: an atomic is answered from the record, however often it is repeated.
#[test]
fn duplicate_atomic_is_answered_from_the_record() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, max_rd_atomic: 4, ..Setup::default() });
        let mut lost = 0;
        watch(&mut p, move |to, k| {
            let hit = to == 0 && k.opcode().base() == Opcode::RC_ATOMIC_ACK && lost < 6;
            lost += u32::from(hit);
            hit
        });
        for i in 0..4 {
            let op = SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 1 };
            p.nodes[0].post(i, op, 0x200 + 8 * i, 8);
        }
        p.run();
        let got: Vec<u64> = (0..4).map(|i| p.nodes[0].u64_at(0x200 + 8 * i)).collect();
        assert_eq!(got, [0, 1, 2, 3]);
        assert_eq!((p.nodes[1].u64_at(0x100), p.nodes[1].host.atomics), (4, 4));
        assert!(p.nodes[1].qp.counters().duplicate_requests > 0);
        p.assert_settled();
    }
}

/// A request that is late on its way finds the region of its READ gone. The peer, which has its
/// answer, ignores the NAK, and nothing ends.
#[test]
fn a_duplicate_read_whose_region_has_gone_ends_nothing() {
    let mut p = Pair::new(Setup::default());
    p.nodes[1].host.register(0x51, 0, 0x1000, Access::REMOTE_READ);
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: 0x51 }, 0x10000, 100);
    p.run();
    p.nodes[1].host.regions.remove(&0x51);
    let psn = Psn::new(Setup::default().psn[0]);
    let bth = Bth { dest_qpn: QPN[1], psn, ack_req: true, ..Bth::new(Opcode::RC_READ_REQUEST) };
    let reth = Some(Reth { va: 0, rkey: 0x51, len: 100 });
    let again = Packet { headers: Headers { reth, ..Headers::new(bth) }, payload: &[] };
    let node = &mut p.nodes[1];
    node.qp.handle_packet(Duration::from_secs(1), &again, PathId(0), None, &mut node.host);
    p.nodes[0].post(1, WRITE, 0, 100);
    p.run();
    assert_eq!(p.nodes[1].qp.counters().naks_fatal_sent, 1);
    assert_eq!(p.nodes[1].host.events, []);
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    p.assert_settled();
}

/// But a peer that still waits is told why it waits in vain.
#[test]
fn a_read_that_is_repeated_after_its_region_has_gone_fails() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        p.nodes[1].host.register(0x51, 0, 0x1000, Access::REMOTE_READ);
        watch(&mut p, |to, k| to == 0 && k.opcode().is_read_response());
        p.nodes[0].post(0, SendOp::Read { va: 0, rkey: 0x51 }, 0x10000, 100);
        p.run_for(50 * US);
        assert_eq!(p.nodes[0].host.statuses(), []);
        p.nodes[1].host.regions.remove(&0x51);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::RemAccessErr)]);
        assert_eq!(p.nodes[1].qp.state(), QpState::Rts);
    }
}

/// IBTA 9.7.5.1.1: a READ is asked for again from the missing packet on.
#[test]
fn a_read_is_asked_for_again_from_the_missing_response_on() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        let start = Setup::default().psn[0];
        watch(&mut p, first(0, move |k| psn(k) == start + 2));
        p.nodes[1].write_memory(0, &pattern(8 << 10, 4));
        p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0, 8 << 10);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
        assert_eq!(p.nodes[0].memory(0, 8 << 10), pattern(8 << 10, 4));
        let a = p.nodes[0].qp.counters();
        assert_eq!(a.tail_probes, 0, "a gap is seen at once");
        let b = p.nodes[1].qp.counters();
        assert_eq!(b.sent_packets, if multipath { 8 + 1 } else { 8 + 6 });
        p.assert_settled();
    }
}

/// IBTA 9.7.5.1.1: an acknowledgement of what follows a READ says that its response was lost.
#[test]
fn an_implied_nak_brings_the_read_back() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        watch(&mut p, first(0, |k| k.opcode().base().is_read_response()));
        p.nodes[1].write_memory(0, &[9; 100]);
        p.nodes[0].post(0, WRITE, 0, 10);
        p.run();
        p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0, 100);
        p.nodes[0].post(2, WRITE, 0, 10);
        let began = p.now;
        p.run();
        assert_eq!(p.nodes[0].host.statuses().len(), 3);
        assert_eq!(p.nodes[0].memory(0, 100), [9; 100]);
        assert!(multipath || p.now - began < MS, "at once");
        p.assert_settled();
    }
}

/// Acknowledgements never overtake the response to an earlier READ.
#[test]
fn answers_come_in_psn_order() {
    let mut p = Pair::new(Setup { max_rd_atomic: 16, max_dest_rd_atomic: 16, ..Setup::default() });
    let seen = watch(&mut p, |_, _| false);
    for i in 0..20 {
        let op = if i % 3 == 0 { WRITE } else { SendOp::Read { va: 0, rkey: ALL } };
        p.nodes[0].post(i, op, 0x20000, 30_000);
    }
    p.run();
    let answers: Vec<u32> =
        seen.borrow().iter().filter(|(to, ..)| *to == 0).map(|(.., psn)| *psn).collect();
    assert!(answers.is_sorted(), "{answers:?}");
    assert_eq!(p.nodes[0].qp.counters().retransmitted_packets, 0);
}

#[test]
fn ghosts_and_old_acknowledgements_are_ignored() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].post(0, WRITE, 0, 100);
    p.run();
    let start = Setup::default().psn[0];
    for (ahead, syndrome) in [
        (1, Syndrome::ACK),
        (1000, Syndrome::ACK),
        (0, Syndrome::ACK),
        (-5, Syndrome::Nak(NakCode::PsnSequence)),
        (0, Syndrome::Nak(NakCode::RemoteAccess)),
        (0, Syndrome::RnrNak { timer: 0 }),
        (1, Syndrome::Nak(NakCode::RemoteAccess)),
        (0, Syndrome::Reserved(0x9f)),
    ] {
        let mut bth = Bth::new(Opcode::RC_ACK);
        bth.psn = Psn::new((start as i32 + ahead) as u32);
        let mut headers = Headers::new(bth);
        headers.aeth = Some(polypath_wire::ext::Aeth { syndrome, msn: 1 });
        let n = &mut p.nodes[0];
        let packet = Packet { headers, payload: &[] };
        n.qp.handle_packet(p.now, &packet, PathId(0), None, &mut n.host);
    }
    assert_eq!(p.nodes[0].qp.state(), QpState::Rts);
    assert_eq!(p.nodes[0].host.statuses().len(), 1);
    p.nodes[0].post(1, WRITE, 0, 100);
    p.run();
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
}

/// Duplicated and reordered responses change nothing.
#[test]
fn responses_may_come_twice_and_in_any_order() {
    let mut p = Pair::new(Setup { multipath: true, ..Setup::default() });
    p.links[0].duplicate = 500;
    p.links[0].jitter = 100 * US;
    p.nodes[1].write_memory(0, &pattern(60_000, 8));
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0, 60_000);
    p.run();
    assert_eq!(p.nodes[0].memory(0, 60_000), pattern(60_000, 8));
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    p.assert_settled();
}

#[test]
fn round_trips_are_measured_and_reported() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        p.links[0].delay = 150 * US;
        p.nodes[0].post(0, WRITE, 0, 100);
        p.run();
        assert_eq!(p.nodes[0].host.paths[0].rtt, Some(300 * US));
    }
}

/// A lost packet may have been dropped because the program changed its payload while it was being
/// sent. So the repetition, and the packets after it, are sent from a copy that is read once.
#[test]
fn what_is_sent_again_and_what_follows_is_sent_as_a_copy() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        let start = Setup::default().psn[0];
        p.nodes[0].post(0, WRITE, 0, 8 << 10);
        p.run();
        assert!(p.nodes[0].host.changing.iter().all(|changing| !changing));
        p.nodes[0].host.changing.clear();
        watch(&mut p, first(1, move |k| psn(k) == start + 10));
        p.nodes[0].post(1, WRITE, 0, 8 << 10);
        p.run();
        p.nodes[0].post(2, WRITE, 0, 8 << 10);
        p.run();
        let changing = &p.nodes[0].host.changing;
        assert_eq!(changing.iter().filter(|changing| !**changing).count(), 1, "{changing:?}");
        assert!(!changing[0]);
        assert_eq!(p.nodes[0].host.statuses().len(), 3);
    }
}

/// An RNR NAK says that all before it was executed and answered, as an acknowledgement does: an answer that
/// has not come is lost (IBTA 9.7.5.1.1, implied NAK).
#[test]
fn an_answer_lost_before_rnr_naks_is_asked_for_again() {
    let read = SendOp::Read { va: 0x1000, rkey: ALL };
    let write = SendOp::Write { va: 0x10000, rkey: ALL };
    for multipath in [false, true] {
        for (timer, rnr_retry) in [(1, 7), (10, 7), (14, 7), (20, 7), (10, 0), (10, 1), (10, 3)] {
            let setup = Setup { multipath, min_rnr_timer: timer, rnr_retry, ..Setup::default() };
            let mut p = Pair::new(setup);
            p.nodes[0].post(9, write, 0, 10);
            p.run();
            let mut lost = false;
            p.filter = Some(Box::new(move |to, packet| {
                let passes = lost || to == 1 || !packet.opcode().base().is_read_response();
                lost |= !passes;
                passes
            }));
            p.nodes[0].post(0, read, 0, 100);
            p.nodes[0].post(1, SendOp::Send, 0, 100);
            p.run_for(MS * 3000);
            let mut expected = vec![(9, WcStatus::Success), (0, WcStatus::Success)];
            if rnr_retry < 7 {
                expected.push((1, WcStatus::RnrRetryExcErr));
            }
            let statuses = p.nodes[0].host.statuses();
            assert_eq!(statuses, expected, "{multipath} {timer} {rnr_retry}");
        }
    }
}
