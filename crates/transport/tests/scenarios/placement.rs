//! ATOMIC WRITE and FLUSH (IBTA annex A19): memory placement.

use polypath_transport::WcStatus::*;
use polypath_transport::*;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{Feth, NakCode, Reth, Syndrome};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::pair::*;

const GLOBAL: Access = Access::FLUSH_GLOBAL;

fn atomic_write(va: u64) -> SendOp {
    SendOp::AtomicWrite { va, rkey: ALL }
}

fn flush(va: u64, len: u32) -> SendOp {
    let scope = FlushScope::Range { va, len };
    SendOp::Flush { rkey: ALL, scope, placement: Placement::GLOBAL }
}

fn post_value(node: &mut Node, wr_id: u64, va: u64, value: u64) {
    let bytes = value.to_ne_bytes();
    let data = SendData::Inline(&bytes);
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    node.qp.post_send(&SendWr { wr_id, op: atomic_write(va), flags, data, ud: None }).unwrap();
}

fn setups() -> [Setup; 2] {
    [Setup::default(), Setup { multipath: true, paths: 2, ..Setup::default() }]
}

#[test]
fn what_was_written_is_there_when_it_is_flushed() {
    for setup in setups() {
        let mut p = Pair::new(setup);
        let data = pattern(5000, 1);
        p.nodes[0].write_memory(0, &data);
        p.nodes[0].post(0, SendOp::Write { va: 0x8000, rkey: ALL }, 0, 5000);
        p.nodes[0].post(1, flush(0x8000 + 4999, 1), 0, 0);
        post_value(&mut p.nodes[0], 2, 0x8000, 0x0123_4567_89ab_cdef);
        let all =
            SendOp::Flush { rkey: ALL, scope: FlushScope::Region, placement: Placement::GLOBAL };
        p.nodes[0].post(3, all, 0, 0);
        p.run();
        assert_eq!(
            p.nodes[0].host.statuses(),
            [(0, Success), (1, Success), (2, Success), (3, Success)]
        );
        let opcodes: Vec<_> = p.nodes[0].host.send_completions.iter().map(|c| c.opcode).collect();
        let expected =
            [WcOpcode::RdmaWrite, WcOpcode::Flush, WcOpcode::AtomicWrite, WcOpcode::Flush];
        assert_eq!(opcodes, expected);
        let peer = &p.nodes[1];
        assert_eq!((peer.u64_at(0x8000), peer.host.atomic_writes), (0x0123_4567_89ab_cdef, 1));
        let range = FlushScope::Range { va: 0x8000 + 4999, len: 1 };
        let flushes = [(range, GLOBAL, data[4999]), (FlushScope::Region, GLOBAL, 0)];
        assert_eq!(peer.host.flushes, flushes);
        p.assert_settled();
    }
}

/// The data of an ATOMIC WRITE may be anywhere that a SEND's may, and needs no room for inline
/// data.
#[test]
fn an_atomic_write_takes_its_bytes_from_memory_too() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].write_memory(0x100, &7u64.to_ne_bytes());
    p.nodes[0].post(0, atomic_write(0x40), 0x100, 8);
    p.run();
    assert_eq!((p.nodes[0].host.statuses(), p.nodes[1].u64_at(0x40)), (vec![(0, Success)], 7));
}

/// The formats of Linux rxe: FETH before RETH; an empty READ response answers both.
#[test]
fn packets_are_those_of_the_annex() {
    let mut p = Pair::new(Setup::default());
    post_value(&mut p.nodes[0], 0, 0x40, 0x0102_0304);
    p.nodes[0].post(1, flush(0x20, 0x10), 0, 0);
    p.pump();
    let (to, bytes) = p.take_packet();
    assert_eq!((to, bytes[0], bytes.len()), (1, 0x1d, 12 + 16 + 8 + 4));
    assert_eq!(bytes[12 + 16..][..8], 0x0102_0304u64.to_ne_bytes());
    let (to, bytes) = p.take_packet();
    assert_eq!((to, bytes[0], bytes.len()), (1, 0x1c, 12 + 4 + 16 + 4));
    assert_eq!(bytes[12..][..12], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x20]);

    let mut p = Pair::new(Setup::default());
    p.filter = Some(Box::new(|to, packet| {
        let right = to == 1 || packet.opcode() == Opcode::RC_READ_RESPONSE_ONLY;
        assert!(right && (to == 1 || packet.payload.is_empty()), "{packet}");
        true
    }));
    post_value(&mut p.nodes[0], 0, 0x40, 1);
    p.nodes[0].post(1, flush(0x20, 0x10), 0, 0);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success)]);
}

/// Linux rxe computes the ICRC of a FLUSH in its own way and drops any other.
#[test]
fn a_flush_finds_out_how_the_peer_wants_it_covered() {
    for (twice, lost, covers) in [
        (true, 0, &[false, true, true, true][..]),
        // Dropped by the network, and by the peer that follows the IBTA's rule.
        (false, 1, &[false, true, false, false, false]),
        (false, 0, &[false, false, false]),
    ] {
        let mut p = Pair::new(Setup::default());
        p.nodes[0].host.takes_twice = Some(twice);
        let mut seen = 0;
        p.filter = Some(Box::new(move |to, packet| {
            seen += u32::from(to == 1 && packet.opcode() == Opcode::RC_FLUSH);
            to == 0 || seen > lost
        }));
        for id in 0..3 {
            p.nodes[0].post(id, flush(0x20, 0x10), 0, 0);
            p.run();
        }
        let expected: Vec<_> = (0..3).map(|id| (id, Success)).collect();
        assert_eq!(p.nodes[0].host.statuses(), expected);
        assert_eq!(p.nodes[0].host.flush_covers, covers, "{twice} {lost}");
    }
}

/// Peers that use several paths cover it in only one way.
#[test]
fn a_flush_of_several_paths_is_covered_by_the_rule() {
    let mut p = Pair::new(setups()[1]);
    let mut seen = 0;
    p.filter = Some(Box::new(move |to, packet| {
        seen += u32::from(to == 1 && packet.opcode().is_flush());
        to == 0 || seen > 2
    }));
    p.nodes[0].post(0, flush(0x20, 0x10), 0, 0);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, Success)]);
    let covers = &p.nodes[0].host.flush_covers;
    assert!(covers.len() > 2 && !covers.contains(&true), "{covers:?}");
}

#[test]
fn a_duplicate_is_answered_and_not_executed_again() {
    for setup in setups() {
        let mut p = Pair::new(setup);
        let mut lost = 0;
        p.filter = Some(Box::new(move |to, packet| {
            lost += u32::from(to == 0 && packet.headers.aeth.is_some());
            to == 1 || lost > 3
        }));
        post_value(&mut p.nodes[0], 0, 0x40, 1);
        p.nodes[0].post(1, flush(0x40, 8), 0, 0);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, Success), (1, Success)]);
        let peer = &p.nodes[1];
        assert!(peer.qp.counters().duplicate_requests > 0);
        assert_eq!((peer.host.atomic_writes, peer.host.flushes.len()), (1, 1));
        p.assert_settled();
    }
}

/// A request that was not answered on a path that died is sent again on another, and executed once.
#[test]
fn a_fail_over_executes_nothing_twice() {
    let mut p = Pair::new(Setup { multipath: true, paths: 2, ..Setup::default() });
    p.links[0].cut = [true, false];
    for i in 0..4 {
        post_value(&mut p.nodes[0], i, 0x40 + i * 8, i + 1);
    }
    p.nodes[0].post(4, flush(0x40, 32), 0, 0);
    p.run_for(MS);
    assert_eq!((p.nodes[1].host.atomic_writes, p.nodes[0].host.statuses().len()), (4, 0));
    for side in 0..2 {
        p.set_path(side, 0, false);
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), (0..5).map(|i| (i, Success)).collect::<Vec<_>>());
    assert_eq!((p.nodes[1].host.atomic_writes, p.nodes[1].host.flushes.len()), (4, 1));
    p.assert_settled();
}

#[test]
fn no_more_are_outstanding_than_max_rd_atomic_and_a_fence_waits_for_them() {
    let mut p = Pair::new(Setup { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..Setup::default() });
    for i in 0..3 {
        post_value(&mut p.nodes[0], i, 0x40, i);
    }
    p.nodes[0].post_with(3, SendOp::Write { va: 0, rkey: ALL }, SendFlags::FENCE, 0, 8);
    p.pump();
    let sent = |p: &mut Pair| (0..2).map(|_| p.take_packet().1[0]).collect::<Vec<_>>();
    assert_eq!(sent(&mut p), [0x1d, 0x1d]);
    assert_eq!(p.next_event(), p.nodes[0].qp.next_deadline(), "nothing else is on the wire");

    let mut p = Pair::new(Setup { max_dest_rd_atomic: 1, ..Setup::default() });
    post_value(&mut p.nodes[0], 0, 0x40, 1);
    p.nodes[0].post(1, flush(0x40, 8), 0, 0);
    p.run();
    assert_eq!(p.nodes[0].host.statuses()[1], (1, RemInvReqErr));
}

#[test]
fn what_key_range_or_right_does_not_allow_is_a_remote_access_error() {
    let bad = |rkey, scope, placement| SendOp::Flush { rkey, scope, placement };
    let range = |va, len| FlushScope::Range { va, len };
    let end = crate::host::MEMORY as u64;
    let cases = [
        bad(0xbad, FlushScope::Region, Placement::GLOBAL),
        bad(0xbad, range(0, 0), Placement::GLOBAL),
        bad(ALL, range(end - 4, 8), Placement::GLOBAL),
        bad(ALL, range(u64::MAX, 2), Placement::GLOBAL),
        bad(0x51, range(0, 8), Placement::GLOBAL),
        bad(ALL, FlushScope::Region, Placement::PERSISTENT),
        bad(ALL, range(0, 8), Placement::GLOBAL | Placement::PERSISTENT),
        SendOp::AtomicWrite { va: 0, rkey: 0xbad },
        SendOp::AtomicWrite { va: end, rkey: ALL },
        SendOp::AtomicWrite { va: 0, rkey: 0x51 },
    ];
    let access = Setup::default().access | Access::FLUSH_PERSISTENT;
    for op in cases {
        let mut p = Pair::new(Setup { access, ..Setup::default() });
        p.nodes[1].host.register(0x51, 0, 0x1000, Access::REMOTE_READ);
        let len = if matches!(op, SendOp::Flush { .. }) { 0 } else { 8 };
        p.nodes[0].post(0, op, 0, len);
        p.nodes[0].post(1, flush(0, 8), 0, 0);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, RemAccessErr), (1, WrFlushErr)], "{op:?}");
        assert_eq!(p.nodes[1].host.events, [QpEvent::AccessError]);
        assert_eq!((p.nodes[1].host.atomic_writes, p.nodes[1].host.flushes.len()), (0, 0));
        p.assert_settled();
    }
}

#[test]
fn what_the_queue_pair_does_not_allow_is_an_invalid_request() {
    let persistent =
        SendOp::Flush { rkey: ALL, scope: FlushScope::Region, placement: Placement::PERSISTENT };
    let all = Setup::default().access;
    for (access, op, len) in [
        (all - Access::FLUSH_GLOBAL, flush(0, 8), 0),
        (all, persistent, 0),
        (all - Access::REMOTE_WRITE, atomic_write(0), 8),
    ] {
        let mut p = Pair::new(Setup { access, ..Setup::default() });
        p.nodes[0].post(0, op, 0, len);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, RemInvReqErr)], "{op:?}");
        assert_eq!(p.nodes[1].host.events, [QpEvent::RequestError]);
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_when_posted() {
    let nothing =
        SendOp::Flush { rkey: ALL, scope: FlushScope::Region, placement: Placement::empty() };
    let long = flush(0, (1 << 31) + 1);
    let cases =
        [(nothing, 0), (long, 0), (flush(0, 8), 8), (atomic_write(0x44), 8), (atomic_write(0), 4)];
    let data = [0; 8];
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut p = Pair::new(Setup { qp_type, ..Setup::default() });
        let mut post = |op, data| {
            let flags = SendFlags::INLINE;
            let ud = None;
            p.nodes[0].qp.post_send(&SendWr { wr_id: 0, op, flags, data, ud })
        };
        for (op, len) in cases {
            let result = post(op, SendData::Inline(&data[..len]));
            assert!(matches!(result, Err(PostError::Invalid(_))), "{op:?}");
        }
        let good = post(atomic_write(0), SendData::Inline(&data));
        assert_eq!(good.is_ok(), qp_type == QpType::Rc, "UC has neither of both");
    }
}

/// Packets that our requester never sends.
#[test]
fn malformed_requests_are_refused() {
    let reth = Some(Reth { va: 0x40, rkey: ALL, len: 8 });
    let feth = |placement, selectivity| Some(Feth { placement, selectivity });
    let skew = Some(Reth { va: 0x44, rkey: ALL, len: 8 });
    let short = Some(Reth { va: 0x40, rkey: ALL, len: 4 });
    let cases = [
        (Opcode::RC_FLUSH, feth(0, 0), reth, [].as_slice()),
        (Opcode::RC_FLUSH, feth(4, 0), reth, &[]),
        (Opcode::RC_FLUSH, feth(1, 2), reth, &[]),
        (Opcode::RC_FLUSH, feth(1, 0), reth, &[0; 8]),
        (Opcode::RC_ATOMIC_WRITE, None, reth, &[0; 4]),
        (Opcode::RC_ATOMIC_WRITE, None, reth, &[0; 16]),
        (Opcode::RC_ATOMIC_WRITE, None, short, &[0; 8]),
        (Opcode::RC_ATOMIC_WRITE, None, skew, &[0; 8]),
    ];
    for (opcode, feth, reth, payload) in cases {
        let mut p = Pair::new(Setup::default());
        let psn = Psn::new(Setup::default().psn[0]);
        let bth = Bth { dest_qpn: QPN[1], psn, ..Bth::new(opcode) };
        let packet = Packet { headers: Headers { feth, reth, ..Headers::new(bth) }, payload };
        let node = &mut p.nodes[1];
        node.qp.handle_packet(p.now, &packet, PathId(0), None, &mut node.host);
        node.qp.flush_acks(&mut node.host);
        let (_, answer) = &node.host.out[0];
        let aeth = Packet::parse(answer).unwrap().headers.aeth.unwrap();
        assert_eq!(aeth.syndrome, Syndrome::Nak(NakCode::InvalidRequest), "{}", packet.headers);
        assert_eq!((node.host.atomic_writes, node.host.flushes.len()), (0, 0));
    }
}
