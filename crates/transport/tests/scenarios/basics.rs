//! Every operation on a clean path.

use polypath_transport::*;

use crate::pair::*;

const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn ok(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::Success)).collect()
}

/// IBTA 9.7.2: messages of every number of packets, the last one of any length.
#[test]
fn send_arrives_whole_for_every_length_around_the_mtu() {
    for multipath in [false, true] {
        for len in [0u32, 1, 3, 4, 1023, 1024, 1025, 2048, 2049, 5000, 70_000] {
            let mut p = Pair::new(Setup { multipath, ..Setup::default() });
            let data = pattern(len as usize, u64::from(len));
            p.nodes[0].write_memory(0, &data);
            p.nodes[1].recv(7, 0x1000, 80_000);
            p.nodes[0].post(1, SendOp::Send, 0, len);
            p.run();
            assert_eq!(p.nodes[1].memory(0x1000, len as usize), data);
            assert_eq!(p.nodes[0].host.statuses(), ok([1]));
            let c = p.nodes[1].host.recv_completions[0];
            assert_eq!((c.wr_id, c.byte_len, c.opcode), (7, len, WcOpcode::Recv));
            assert_eq!((c.qpn, c.src_qpn), (QPN[1], QPN[0]));
            p.assert_settled();
        }
    }
}

#[test]
fn scatter_and_gather_lists_of_any_shape_are_followed() {
    let mut p = Pair::new(Setup { mtu: 256, ..Setup::default() });
    let data = pattern(3000, 5);
    p.nodes[0].write_memory(0, &data);
    let gather: Vec<Sge> =
        [(0, 100), (100, 0), (100, 1), (101, 899), (1000, 2000)].map(|(a, n)| sge(a, n)).into();
    let scatter = [(0x9000, 700), (0x8000, 300), (0x7000, 0), (0x6000, 2500)];
    let sges = Sges::from_slice(&scatter.map(|(a, n)| sge(a, n)));
    p.nodes[1].qp.post_recv(RecvWr { wr_id: 1, sges }).unwrap();
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        flags: SIGNALED,
        data: SendData::Sges(&gather),
        ud: None,
    };
    p.nodes[0].qp.post_send(&wr).unwrap();
    p.run();
    assert_eq!(p.nodes[1].memory(0x9000, 700), &data[..700]);
    assert_eq!(p.nodes[1].memory(0x8000, 300), &data[700..1000]);
    assert_eq!(p.nodes[1].memory(0x6000, 2000), &data[1000..]);
}

#[test]
fn write_read_and_atomics_do_what_they_say() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        let data = pattern(9000, 1);
        p.nodes[0].write_memory(0, &data);
        let there = |va| SendOp::Write { va, rkey: ALL };
        let back = |va| SendOp::Read { va, rkey: ALL };
        p.nodes[0].post(1, there(0x2000), 0, 9000);
        p.nodes[0].post(2, back(0x2000), 0x8000, 9000);
        p.nodes[0].post(3, SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 5 }, 0x200, 8);
        p.nodes[0].post(4, SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 6 }, 0x208, 8);
        let cas = |compare| SendOp::CompareSwap { va: 0x100, rkey: ALL, compare, swap: 100 };
        p.nodes[0].post(5, cas(12), 0x210, 8);
        p.nodes[0].post(6, cas(11), 0x218, 8);
        p.nodes[0].post(7, back(0x100), 0x220, 8);
        p.nodes[0].post(8, back(0), 0x220, 0);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), ok(1..=8));
        assert_eq!(p.nodes[1].memory(0x2000, 9000), data);
        assert_eq!(p.nodes[0].memory(0x8000, 9000), data);
        let got: Vec<u64> = (0..5).map(|i| p.nodes[0].u64_at(0x200 + 8 * i)).collect();
        assert_eq!(got, [0, 5, 11, 11, 100]);
        p.assert_settled();
    }
}

#[test]
fn immediate_solicited_and_invalidate_reach_the_receiver() {
    let mut p = Pair::new(Setup::default());
    p.nodes[1].host.register(0x77, 0, 64, Access::REMOTE_WRITE);
    for i in 0..3 {
        p.nodes[1].recv(i, 0x1000, 100);
    }
    let imm = [1, 2, 3, 4];
    let n = &mut p.nodes[0];
    n.post_with(1, SendOp::SendImm(imm), SIGNALED | SendFlags::SOLICITED, 0, 10);
    n.post(2, SendOp::WriteImm { va: 0x3000, rkey: ALL, imm }, 0, 3000);
    n.post(3, SendOp::SendInv { rkey: 0x77 }, 0, 0);
    p.run();
    let c = &p.nodes[1].host.recv_completions;
    assert_eq!((c[0].imm, c[0].solicited, c[0].byte_len), (Some(imm), true, 10));
    assert_eq!((c[1].imm, c[1].opcode), (Some(imm), WcOpcode::RecvRdmaWithImm));
    assert_eq!((c[1].byte_len, c[1].solicited), (3000, false));
    assert_eq!(c[2].invalidated_rkey, Some(0x77));
    assert!(!p.nodes[1].host.regions.contains_key(&0x77));
}

#[test]
fn inline_data_may_be_overwritten_after_the_post() {
    let mut p = Pair::new(Setup::default());
    p.nodes[1].recv(1, 0x1000, 100);
    let mut data = *b"inline";
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SIGNALED | SendFlags::INLINE,
        data: SendData::Inline(&data),
        ud: None,
    };
    p.nodes[0].qp.post_send(&wr).unwrap();
    data.fill(0);
    p.run();
    assert_eq!(p.nodes[1].memory(0x1000, 6), b"inline");
    assert_eq!(data, [0; 6]);
}

#[test]
fn unsignaled_work_requests_complete_silently_and_free_their_slots() {
    let mut p = Pair::new(Setup { max_send_wr: 4, ..Setup::default() });
    for round in 0..10 {
        for i in 0..4 {
            let op = SendOp::Write { va: 0, rkey: ALL };
            p.nodes[0].post_with(round * 4 + i, op, SendFlags::empty(), 0, 100);
        }
        let wr = SendWr {
            wr_id: 99,
            op: SendOp::Write { va: 0, rkey: ALL },
            flags: SIGNALED,
            data: SendData::Inline(&[]),
            ud: None,
        };
        assert_eq!(p.nodes[0].qp.post_send(&wr), Err(PostError::Full));
        p.run();
    }
    assert!(p.nodes[0].host.send_completions.is_empty());
    assert_eq!(p.nodes[0].qp.counters().tail_probes, 0);
}

/// IBTA 10.8.3.3: a fenced work request waits for READs and atomics before it.
#[test]
fn a_fenced_request_starts_only_after_earlier_reads() {
    let mut p = Pair::new(Setup::default());
    p.nodes[1].write_memory(0, &pattern(5000, 3));
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0x1000, 5000);
    let write = SendOp::Write { va: 0, rkey: ALL };
    p.nodes[0].post_with(2, write, SIGNALED | SendFlags::FENCE, 0x1000, 5000);
    p.pump();
    assert_eq!(p.nodes[0].qp.counters().sent_packets, 1);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), ok([1, 2]));
}

#[test]
fn no_more_reads_are_outstanding_than_max_rd_atomic() {
    let mut p = Pair::new(Setup { max_rd_atomic: 2, ..Setup::default() });
    for i in 0..10 {
        p.nodes[0].post(i, SendOp::Read { va: 0, rkey: ALL }, 0x1000, 100);
    }
    p.pump();
    assert_eq!(p.nodes[0].qp.counters().sent_packets, 2);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), ok(0..10));
}

#[test]
fn long_reads_are_split_into_requests_that_fit_the_window() {
    let mut p = Pair::new(Setup { mtu: 4096, ..Setup::default() });
    p.nodes[1].write_memory(0, &pattern(500_000, 9));
    p.nodes[0].host.window = 64 << 10;
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0, 500_000);
    while !p.run_to_rest(10 * US) {
        assert!(p.nodes[0].host.paths[0].outstanding <= 64 << 10);
    }
    assert_eq!(p.nodes[0].host.statuses(), ok([1]));
    assert_eq!(p.nodes[0].memory(0, 500_000), pattern(500_000, 9));
    p.assert_settled();
}

/// 24-bit PSNs wrap in the middle of messages, for requests and for responses.
#[test]
fn psns_wrap() {
    for multipath in [false, true] {
        let setup = Setup { psn: [0xff_fffe, 0xff_ffff], mtu: 256, multipath, ..Setup::default() };
        let mut p = Pair::new(setup);
        for side in 0..2 {
            let data = pattern(5000, side as u64);
            p.nodes[side].write_memory(0, &data);
            p.nodes[side].post(1, SendOp::Write { va: 0x2000, rkey: ALL }, 0, 5000);
            p.nodes[side].post(2, SendOp::Read { va: 0x2000, rkey: ALL }, 0x4000, 5000);
        }
        p.run();
        for side in 0..2 {
            assert_eq!(p.nodes[side].host.statuses(), ok([1, 2]));
            assert_eq!(p.nodes[side].memory(0x4000, 5000), pattern(5000, side as u64));
            assert_eq!(p.nodes[side].qp.counters().dropped(), 0);
        }
    }
}

#[test]
fn local_work_requests_complete_in_their_place() {
    let mut p = Pair::new(Setup::default());
    p.nodes[0].host.register(0x55, 0, 64, Access::REMOTE_WRITE);
    p.nodes[0].post(1, SendOp::Write { va: 0, rkey: ALL }, 0, 5000);
    p.nodes[0].post(2, SendOp::LocalInv { rkey: 0x55 }, 0, 0);
    p.nodes[0].post(3, SendOp::BindMw { mw: 1, rkey: 0x66 }, 0, 0);
    p.nodes[0].post(4, SendOp::Write { va: 0, rkey: ALL }, 0, 10);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), ok(1..=4));
    let opcodes: Vec<_> = p.nodes[0].host.send_completions.iter().map(|c| c.opcode).collect();
    use WcOpcode::*;
    assert_eq!(opcodes, [RdmaWrite, LocalInv, BindMw, RdmaWrite]);
}

/// IBTA 17.2.8: MigReq is 1 in every packet while the migration state is MIGRATED.
#[test]
fn every_packet_says_mig_req() {
    let mut p = Pair::new(Setup::default());
    p.filter = Some(Box::new(|_, packet| {
        assert!(packet.headers.bth.mig_req);
        assert_eq!(packet.headers.bth.pkey, 0xffff);
        true
    }));
    p.nodes[0].post(1, SendOp::Write { va: 0, rkey: ALL }, 0, 5000);
    p.nodes[0].post(2, SendOp::Read { va: 0, rkey: ALL }, 0, 5000);
    p.run();
}

#[test]
fn acknowledgements_are_coalesced() {
    let mut p = Pair::new(Setup { sq_sig_all: true, ..Setup::default() });
    for i in 0..30 {
        p.nodes[0].post(i, SendOp::Write { va: 0, rkey: ALL }, 0, 8);
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), ok(0..30));
    assert_eq!(p.nodes[1].qp.counters().acks_sent, 1); // They all arrived in one batch.
}

#[test]
fn both_directions_at_once() {
    let mut p = Pair::new(Setup { mtu: 512, ..Setup::default() });
    for side in 0..2 {
        p.nodes[side].write_memory(0, &pattern(200_000, side as u64));
        for i in 0..8 {
            p.nodes[side].recv(i, 0x80000 + i * 0x8000, 0x8000);
            p.nodes[side].post(i, SendOp::Send, i * 20_000, 20_000);
        }
    }
    p.run();
    for side in 0..2 {
        assert_eq!(p.nodes[side].host.statuses(), ok(0..8));
        assert_eq!(p.nodes[side].host.recv_statuses(), ok(0..8));
        for i in 0..8 {
            let there = p.nodes[1 - side].memory(i * 20_000, 20_000).to_vec();
            assert_eq!(p.nodes[side].memory(0x80000 + i * 0x8000, 20_000), there);
        }
    }
    p.assert_settled();
}

/// What follows may need no packet, and so ask for no acknowledgement.
#[test]
fn an_unsignaled_request_before_a_local_one_is_acknowledged_at_once() {
    for multipath in [false, true] {
        let mut p = Pair::new(Setup { multipath, ..Setup::default() });
        let write = SendOp::Write { va: 0x10000, rkey: ALL };
        p.nodes[0].post_with(0, write, SendFlags::empty(), 0, 100);
        p.nodes[0].host.register(0x777, 0, 10, Access::LOCAL_WRITE);
        let (op, flags) = (SendOp::LocalInv { rkey: 0x777 }, SendFlags::SIGNALED);
        let wr = SendWr { wr_id: 1, op, flags, data: SendData::Sges(&[]), ud: None };
        p.nodes[0].qp.post_send(&wr).unwrap();
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(p.nodes[0].qp.counters().tail_probes, 0, "{multipath}");
    }
}
