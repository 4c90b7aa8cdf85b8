//! Requests before the expected PSN: only what was executed is answered again (IBTA 9.7.4.1.3).

use std::time::Duration;

use polypath_transport::*;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{AtomicEth, MpHeader, Reth, Syndrome};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::pair::{ALL, MS, Pair, QPN, Setup, pattern};

/// The first PSN of the requester.
fn start() -> Psn {
    Psn::new(Setup::default().psn[0])
}

/// Hands host 1 a packet as the peer would send it.
fn forge(p: &mut Pair, headers: Headers) {
    let multipath = p.nodes[1].qp.is_multipath();
    let mut headers = headers;
    if multipath {
        headers.bth.opcode = headers.bth.opcode.to_mp();
        headers.mp = Some(MpHeader { generation: 1, ..MpHeader::default() });
    }
    let packet = Packet { headers, payload: &[] };
    let node = &mut p.nodes[1];
    node.qp.handle_packet(Duration::from_secs(1), &packet, PathId(0), None, &mut node.host);
}

fn read(psn: Psn, va: u64, rkey: u32, len: u32) -> Headers {
    let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(Opcode::RC_READ_REQUEST) };
    Headers { reth: Some(Reth { va, rkey, len }), ..Headers::new(bth) }
}

fn fetch_add(psn: Psn, va: u64, add: u64) -> Headers {
    let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(Opcode::RC_FETCH_ADD) };
    let atomic = Some(AtomicEth { va, rkey: ALL, swap_add: add, compare: 0 });
    Headers { atomic, ..Headers::new(bth) }
}

/// The packets that host 1 sends as the answer to a forged one.
fn answers(p: &mut Pair) -> u64 {
    let before = p.nodes[1].qp.counters().sent_packets;
    p.pump();
    p.nodes[1].qp.counters().sent_packets - before
}

fn pairs() -> impl Iterator<Item = Pair> {
    [false, true].into_iter().map(|multipath| {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        p.nodes[1].write_memory(0, &pattern(0x4000, 3));
        p
    })
}

#[test]
fn a_read_that_was_never_executed_is_not_served() {
    for mut p in pairs() {
        p.nodes[0].post(0, SendOp::Write { va: 0x8000, rkey: ALL }, 0, 4096);
        p.run();
        // A PSN before everything, that of a WRITE, and one that reaches beyond the expected PSN.
        for (psn, len) in [(start().sub(1), 100), (start(), 100), (start().add(3), 1 << 20)] {
            forge(&mut p, read(psn, 0, ALL, len));
        }
        forge(&mut p, read(start().sub(1), 0, ALL, u32::MAX));
        forge(&mut p, read(start().sub(1), 0, ALL + 1, u32::MAX));
        assert_eq!(answers(&mut p), 0);
        let c = p.nodes[1].qp.counters();
        assert_eq!((c.dropped_no_original, c.naks_fatal_sent, c.duplicate_requests), (5, 0, 0));
        assert_eq!(p.nodes[1].qp.state(), QpState::Rts);
        assert_eq!(p.nodes[1].host.events, []);
        p.nodes[0].post(1, SendOp::Write { va: 0x8000, rkey: ALL }, 0, 4096);
        p.run();
        assert_eq!(p.nodes[0].host.statuses().len(), 2);
    }
}

/// Nobody can try out keys, addresses or lengths.
#[test]
fn a_read_is_repeated_as_it_was_asked_for_or_from_a_later_packet_on() {
    for mut p in pairs() {
        p.nodes[0].post(0, SendOp::Read { va: 0x100, rkey: ALL }, 0, 3000);
        p.run();
        for (k, va, rkey, len) in [
            (0, 0x100, ALL + 1, 3000),
            (0, 0x101, ALL, 3000),
            (0, 0x100, ALL, 3001),
            (0, 0x100, ALL, 4096),
            (0, 0x100, ALL, 100),
            (0, 0x100, ALL, 0),
            (1, 0x100, ALL, 3000),
            (1, 0x500, ALL, 3000),
            (2, 0x500, ALL, 952),
        ] {
            forge(&mut p, read(start().add(k), va, rkey, len));
            assert_eq!(answers(&mut p), 0, "{k} {va:#x} {rkey:#x} {len}");
        }
        let c = p.nodes[1].qp.counters();
        assert_eq!((c.dropped_no_original, c.naks_fatal_sent), (9, 0));
        for (k, va, len, packets) in
            [(0, 0x100, 3000, 3), (1, 0x500, 1976, 2), (1, 0x500, 1024, 1), (2, 0x900, 952, 1)]
        {
            forge(&mut p, read(start().add(k), va, ALL, len));
            assert_eq!(answers(&mut p), packets, "{k} {va:#x} {len}");
        }
        p.run();
        assert_eq!(p.nodes[1].qp.state(), QpState::Rts);
    }
}

#[test]
fn a_repeated_read_needs_the_rights_that_the_first_needed() {
    for mut p in pairs() {
        p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0x10000, 100);
        p.run();
        let attr = QpAttr { access: Access::REMOTE_WRITE, ..Setup::default().attr(1) };
        let attr = QpAttr { state: QpState::Rts, ..attr };
        let node = &mut p.nodes[1];
        let mask = QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS;
        node.qp.modify(&attr, mask, &mut node.host).unwrap();
        let before = node.qp.counters().sent_bytes;
        forge(&mut p, read(start(), 0, ALL, 100));
        p.run();
        let node = &p.nodes[1];
        assert_eq!(node.qp.counters().sent_bytes, before);
        assert_eq!((node.qp.counters().naks_fatal_sent, node.qp.state()), (1, QpState::Rts));
    }
}

/// IBTA 9.7.4.1.5.
#[test]
fn no_read_is_served_if_max_dest_rd_atomic_is_0() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, max_dest_rd_atomic: 0, ..Setup::default() });
        forge(&mut p, read(start().sub(1), 0, ALL, 100));
        assert_eq!(answers(&mut p), 0);
        p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0x10000, 100);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::RemInvReqErr)]);
        assert_eq!(p.nodes[1].host.events, [QpEvent::RequestError]);
    }
}

/// A repeated READ of a plain peer drops the later answers, but only if that READ was executed.
#[test]
fn a_forged_old_read_does_not_cut_answers_that_are_to_be_sent() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].post(0, SendOp::Write { va: 0x8000, rkey: ALL }, 0, 100);
    p.run();
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0x10000, 1000);
    p.pump();
    let (to, bytes) = p.take_packet();
    assert_eq!(to, 1);
    let node = &mut p.nodes[1];
    let request = Packet::parse(&bytes).unwrap();
    node.qp.handle_packet(p.now, &request, PathId(0), None, &mut node.host);
    forge(&mut p, read(start().sub(5), 0, ALL, 100));
    let began = p.now;
    p.run();
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
    assert!(p.now - began < MS, "nothing had to be asked for again");
}

/// On several paths packets may come early. A forged packet whose PSN is near enough is kept until the
/// peer's own arrives, and is thrown away then: the peer's packet is delayed, not lost.
#[test]
fn a_forged_early_packet_does_not_shut_out_the_peers_own() {
    let mut p = Pair::new(Setup { multipath: true, ..Setup::default() });
    let write = |psn, va, msg| {
        let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(Opcode::RC_WRITE_ONLY.to_mp()) };
        let reth = Some(Reth { va, rkey: ALL, len: 0 });
        let mp = Some(MpHeader { generation: 1, msg, ..MpHeader::default() });
        Headers { reth, mp, ..Headers::new(bth) }
    };
    // Without the first packet nothing is executed; the peer's second meets the forged one.
    let mut first = true;
    p.filter = Some(Box::new(move |to, k: &Packet<'_>| {
        let hit = first && to == 1 && k.headers.bth.psn == start();
        first &= !hit;
        !hit
    }));
    let forged = Packet { headers: write(start().add(1), 0x9000, 77), payload: &[] };
    let node = &mut p.nodes[1];
    node.qp.handle_packet(p.now, &forged, PathId(0), None, &mut node.host);
    p.nodes[0].write_memory(0, &pattern(4096, 5));
    p.nodes[0].post(1, SendOp::Write { va: 0x8000, rkey: ALL }, 0, 4096);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.nodes[1].memory(0x8000, 4096), pattern(4096, 5));
    assert_eq!(p.nodes[1].qp.counters().dropped_reorder, 2);
    p.assert_settled();
}

/// The bytes kept are bounded; a request that would need more waits until answers have been sent.
#[test]
fn a_request_waits_when_no_more_answers_can_be_put_by() {
    const READ: u32 = 20 << 20;
    for multipath in [false, true] {
        let setup = Setup { multipath, mtu: 4096, ..Setup::default() };
        let mut p = Pair::new(setup);
        p.nodes[1].host.memory = vec![7; READ as usize];
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
        p.nodes[1].host.register(ALL, 0, READ.into(), all);
        // As from a peer that asks for as much at once as the standard allows.
        forge(&mut p, read(start(), 0, ALL, READ));
        let mut psn = start().add(READ / 4096);
        let payload = [9; 4096];
        let write = |p: &mut Pair, psn: Psn, at: u64| {
            let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(Opcode::RC_WRITE_ONLY) };
            let reth = Some(Reth { va: at, rkey: ALL, len: 4096 });
            let mut headers = Headers { reth, ..Headers::new(bth) };
            if multipath {
                headers.bth.opcode = headers.bth.opcode.to_mp();
                headers.mp = Some(MpHeader { generation: 1, ..MpHeader::default() });
            }
            let packet = Packet { headers, payload: &payload };
            let node = &mut p.nodes[1];
            node.qp.handle_packet(p.now, &packet, PathId(0), None, &mut node.host);
        };
        for at in (0..16 << 20).step_by(4096) {
            write(&mut p, psn, at);
            psn = psn.next();
        }
        assert!(p.nodes[1].memory(0, 16 << 20).iter().all(|b| *b == 9));
        write(&mut p, psn, 16 << 20);
        assert_eq!(p.nodes[1].memory(16 << 20, 4096), [7; 4096], "it waits");
        let seen = std::rc::Rc::new(std::cell::RefCell::new((0, 0, 0)));
        let sink = seen.clone();
        p.filter = Some(Box::new(move |_, k: &Packet<'_>| {
            let mut seen = sink.borrow_mut();
            if k.opcode().base().is_read_response() {
                seen.0 += k.payload.len() as u32;
                seen.1 += u32::from(k.payload.iter().any(|b| *b != 7));
            } else {
                let naks = k.headers.aeth.map(|a| matches!(a.syndrome, Syndrome::Nak(_)));
                seen.2 += u32::from(naks == Some(true) && k.headers.bth.psn == psn);
            }
            false
        }));
        p.run_for(MS);
        // Multi-path packets are kept, others asked for again.
        assert_eq!(*seen.borrow(), (READ, 0, u32::from(!multipath)));
        if !multipath {
            write(&mut p, psn, 16 << 20);
        }
        assert_eq!(p.nodes[1].memory(16 << 20, 4096), [9; 4096]);
        p.nodes[1].qp.check().unwrap();
    }
}

#[test]
fn atomics_and_empty_answers_are_repeated_only_to_who_asked() {
    for mut p in pairs() {
        p.nodes[0].post(0, SendOp::FetchAdd { va: 0, rkey: ALL, add: 1 }, 0x10000, 8);
        p.nodes[0].post(1, SendOp::AtomicWrite { va: 8, rkey: ALL }, 0x10000, 8);
        p.run();
        let atomic_write = |psn, va| {
            let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(Opcode::RC_ATOMIC_WRITE) };
            Headers { reth: Some(Reth { va, rkey: ALL, len: 8 }), ..Headers::new(bth) }
        };
        forge(&mut p, fetch_add(start(), 8, 1));
        forge(&mut p, fetch_add(start(), 0, 2));
        forge(&mut p, fetch_add(start().add(1), 0, 1));
        forge(&mut p, fetch_add(start().sub(1), 0, 1));
        forge(&mut p, atomic_write(start(), 8));
        forge(&mut p, atomic_write(start().add(1), 16));
        assert_eq!(answers(&mut p), 0);
        assert_eq!(p.nodes[1].qp.counters().dropped_no_original, 6);
        forge(&mut p, fetch_add(start(), 0, 1));
        assert_eq!(answers(&mut p), 1);
        forge(&mut p, atomic_write(start().add(1), 8));
        assert_eq!(answers(&mut p), 1);
        assert_eq!((p.nodes[1].host.atomics, p.nodes[1].host.atomic_writes), (1, 1));
    }
}

/// One repetition follows any loss; many show that the answers are lost each time.
#[test]
fn a_plain_peer_that_repeats_a_request_again_and_again_does_not_hear_the_answers() {
    for mut p in pairs() {
        let plain = !p.nodes[1].qp.is_multipath();
        let unheard = |p: &Pair| p.nodes[1].host.unheard.clone();
        p.nodes[0].post(0, SendOp::Read { va: 0x100, rkey: ALL }, 0, 3000);
        p.run();
        for _ in 0..2 {
            for (k, va, len) in [(0, 0x100, 3000), (1, 0x500, 1976)] {
                forge(&mut p, read(start().add(k), va, ALL, len));
            }
        }
        assert_eq!(unheard(&p), []);
        forge(&mut p, read(start(), 0x100, ALL, 3000));
        assert_eq!(unheard(&p), if plain { vec![PathId(0)] } else { vec![] });
        // A new request shows that the answers have arrived.
        p.run();
        p.nodes[0].post(1, SendOp::Write { va: 0x8000, rkey: ALL }, 0, 100);
        p.run();
        p.nodes[1].host.unheard.clear();
        for _ in 0..2 {
            forge(&mut p, read(start(), 0x100, ALL, 3000));
        }
        assert_eq!(unheard(&p), []);
    }
}

/// Questions are repeated until they are answered by a certain path, so they say nothing of answers.
#[test]
fn questions_of_a_queue_pair_that_may_migrate_are_no_unheard_requests() {
    for migrates in [false, true] {
        let mut p = Pair::new(Setup::default());
        if migrates {
            let node = &mut p.nodes[1];
            node.qp.set_alternate(Some(PeerId(7)), &mut node.host);
        }
        p.nodes[0].post(0, SendOp::Write { va: 0x100, rkey: ALL }, 0, 0);
        p.run();
        for _ in 0..4 {
            let bth = Bth { dest_qpn: QPN[1], psn: start(), ..Bth::new(Opcode::RC_WRITE_ONLY) };
            let reth = Some(Reth { va: 0x100, rkey: ALL, len: 0 });
            forge(&mut p, Headers { reth, ..Headers::new(bth) });
        }
        assert_eq!(p.nodes[1].host.unheard.is_empty(), migrates);
    }
}
