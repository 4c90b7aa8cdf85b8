//! Everything is sent by two paths. Nothing is executed twice, and what one path loses is not missed.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use polypath_transport::*;
use polypath_wire::opcode::Opcode;

use crate::pair::*;

const WRITE: SendOp = SendOp::Write { va: 0x8_0000, rkey: ALL };
const READ: SendOp = SendOp::Read { va: 0x4_0000, rkey: ALL };
const ADD: SendOp = SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 1 };

/// Two paths with these delays. Host 0 sends everything by both; host 1 has another policy.
fn twice_by(delays: [Duration; 2], setup: Setup) -> Pair {
    let setup = Setup { paths: 2, multipath: true, reach: 1 << 20, ..setup };
    let mut p = Pair::new(setup);
    for (link, delay) in p.links.iter_mut().zip(delays) {
        link.delay = delay;
    }
    p.nodes[0].host.twin_window = Some(u32::MAX);
    p
}

/// Posts some of everything, and checks what became of it at the end.
fn run_everything(p: &mut Pair) {
    const LEN: u32 = 20_000;
    p.nodes[0].write_memory(0, &pattern(LEN as usize, 5));
    p.nodes[1].write_memory(0x4_0000, &pattern(LEN as usize, 6));
    for n in 0..12 {
        p.nodes[1].recv(n, 0xc_0000 + n * 0x1000, 0x1000);
    }
    for n in 0..12 {
        p.nodes[0].post(4 * n, SendOp::Send, 0, 3000);
        p.nodes[0].post(4 * n + 1, WRITE, 0, LEN);
        p.nodes[0].post(4 * n + 2, READ, 0x2_0000, LEN);
        p.nodes[0].post(4 * n + 3, ADD, 0x3_0000 + n * 8, 8);
        p.run();
    }
    let done: Vec<_> = (0..48).map(|n| (n, WcStatus::Success)).collect();
    assert_eq!(p.nodes[0].host.statuses(), done);
    let received: Vec<_> = (0..12).map(|n| (n, WcStatus::Success)).collect();
    assert_eq!(p.nodes[1].host.recv_statuses(), received);
    assert_eq!(p.nodes[1].memory(0x8_0000, LEN as usize), pattern(LEN as usize, 5));
    assert_eq!(p.nodes[0].memory(0x2_0000, LEN as usize), pattern(LEN as usize, 6));
    assert_eq!((p.nodes[1].host.atomics, p.nodes[1].u64_at(0x100)), (12, 12), "exactly once");
    for n in 0..12 {
        assert_eq!(p.nodes[0].u64_at(0x3_0000 + n * 8), n as u64, "the first answer counts");
        assert_eq!(p.nodes[1].memory(0xc_0000 + n * 0x1000, 3000), pattern(3000, 5));
    }
    p.assert_settled();
    let checks = p.nodes.iter().map(|node| node.qp.check());
    assert_eq!(checks.collect::<Result<Vec<_>, _>>().map(drop), Ok(()));
}

/// Nothing is asked for again, and no path is taken to be congested or suspected.
fn assert_undisturbed(p: &Pair) {
    let counters = p.nodes[0].qp.counters();
    let again = (counters.retransmitted_packets, counters.timeouts, counters.tail_probes);
    assert_eq!(again, (0, 0, 0), "{counters:?}");
    for path in &p.nodes[0].host.paths {
        assert_eq!((path.lost, path.congestions, path.suspected), (0, 0, 0), "{path:?}");
    }
}

#[test]
fn what_arrives_twice_is_executed_once() {
    for delays in [[100 * US, 100 * US], [100 * US, 700 * US], [700 * US, 100 * US], [20 * MS, MS]]
    {
        let mut p = twice_by(delays, Setup::default());
        run_everything(&mut p);
        assert_undisturbed(&p);
        let (sender, receiver) = (p.nodes[0].qp.counters(), p.nodes[1].qp.counters());
        assert_eq!(sender.copies_left_out, 0);
        assert_eq!(receiver.copies_second, sender.copies_sent, "each came twice");
        assert_eq!(receiver.duplicate_requests + sender.duplicate_responses, 0);
    }
}

/// Each of the two paths in turn loses what it carries, in one direction or in both.
#[test]
fn what_one_path_loses_is_not_missed() {
    for (lossy, long) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for seed in 0..20 {
            let mut delays = [100 * US; 2];
            delays[long] = 2 * MS;
            let mut p = twice_by(delays, Setup::default());
            p.rng = Rng(seed);
            p.links[lossy].loss = if seed < 10 { 20 } else { 500 };
            run_everything(&mut p);
            // If the first path is short and loses something, it asks for what the other still carries.
            if (lossy, long) != (0, 1) {
                assert_undisturbed(&p);
            }
        }
    }
}

#[test]
fn losses_on_both_paths_are_repaired() {
    for seed in 0..40 {
        let mut p = twice_by([100 * US, 300 * US], Setup::default());
        p.rng = Rng(seed);
        p.links.iter_mut().for_each(|link| {
            (link.loss, link.duplicate, link.jitter) = (100, 50, 200 * US);
        });
        run_everything(&mut p);
        assert_eq!(p.nodes[0].qp.counters().timeouts, 0, "seed {seed}");
    }
}

/// Counts the packets of a kind that arrive at a host.
fn count(p: &mut Pair, host: usize, is_it: fn(Opcode) -> bool) -> Rc<Cell<u32>> {
    let seen = Rc::new(Cell::new(0));
    let counter = Rc::clone(&seen);
    p.filter = Some(Box::new(move |to, packet| {
        let fits = to == host && is_it(packet.opcode().base());
        counter.set(counter.get() + u32::from(fits));
        true
    }));
    seen
}

#[test]
fn a_read_that_is_asked_twice_is_answered_twice_and_by_both_paths() {
    for delays in [[100 * US; 2], [100 * US, 900 * US], [900 * US, 100 * US]] {
        let mut p = twice_by(delays, Setup::default());
        let answers = count(&mut p, 0, Opcode::is_read_response);
        p.nodes[0].post(0, READ, 0, 10 * 1024);
        p.run();
        assert_eq!(answers.get(), 20, "{delays:?}");
        let by = [0, 1].map(|path: usize| p.nodes[0].host.answers[path].len());
        assert_eq!(by, [10, 10]);
        assert_eq!(p.nodes[0].qp.counters().copies_second, 10);
        p.assert_settled();
    }
}

#[test]
fn each_path_acknowledges_what_came_by_it_and_measures_its_own_round_trip() {
    let delays = [100 * US, 5 * MS];
    let mut p = twice_by(delays, Setup::default());
    for n in 0..20 {
        p.nodes[0].post(n, WRITE, 0, 64);
        p.run();
    }
    let host = &p.nodes[0].host;
    assert_eq!(host.sent_twice, [20 * u64::from(64 + PACKET_COST); 2]);
    for (path, delay) in delays.into_iter().enumerate() {
        assert_eq!(host.answers[path].len(), 20);
        let rtt = host.paths[path].rtt.unwrap();
        assert!(rtt >= 2 * delay && rtt < 2 * delay + 100 * US, "{rtt:?}");
    }
    assert_undisturbed(&p);
}

#[test]
fn a_copy_for_which_its_path_has_no_room_is_left_out() {
    let mut p = twice_by([100 * US; 2], Setup::default());
    p.nodes[0].host.twin_window = Some(3000);
    p.nodes[0].post(0, WRITE, 0, 100_000);
    p.nodes[0].post(1, WRITE, 0, 64);
    p.run();
    let counters = p.nodes[0].qp.counters();
    assert_eq!((counters.copies_left_out, counters.copies_sent), (98, 1));
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
    assert_eq!(p.nodes[0].host.sent_twice[1], u64::from(64 + PACKET_COST));
    assert_undisturbed(&p);
    p.assert_settled();
}

/// The second complaint arrives after the packet was sent again. It is about the first transmission.
#[test]
fn the_same_complaint_by_both_paths_counts_once() {
    let setup = Setup { rnr_retry: 1, min_rnr_timer: 12, ..Setup::default() };
    let mut p = twice_by([100 * US, 500 * US], setup);
    p.nodes[0].post(0, SendOp::Send, 0, 64);
    p.run_for(900 * US);
    assert_eq!(p.nodes[1].qp.counters().naks_rnr_sent, 2, "each path has its own");
    p.nodes[1].recv(9, 0x1000, 64);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(p.nodes[1].host.recv_statuses(), [(9, WcStatus::Success)]);
    assert_eq!(p.nodes[0].qp.counters().naks_rnr_received, 2);
    p.assert_settled();
}

#[test]
fn a_complaint_that_one_path_loses_comes_by_the_other() {
    for lossy in [0, 1] {
        let mut p = twice_by([100 * US; 2], Setup { min_rnr_timer: 14, ..Setup::default() });
        p.links[lossy].cut = [true, false];
        p.nodes[0].post(0, SendOp::Send, 0, 64);
        p.run_for(MS);
        assert_eq!(p.nodes[0].qp.counters().naks_rnr_received, 1, "path {lossy} is silent");
        p.nodes[1].recv(9, 0x1000, 64);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    }
}

#[test]
fn plain_peers_get_one_packet_each() {
    let mut p = Pair::new(Setup { paths: 2, ..Setup::default() });
    p.nodes[0].host.twin_window = Some(u32::MAX);
    p.nodes[0].post(0, WRITE, 0, 64);
    p.run();
    assert_eq!(p.nodes[0].qp.counters().copies_sent, 0);
    p.assert_settled();
}

#[test]
fn each_copy_has_the_number_of_its_path() {
    let mut p = twice_by([100 * US; 2], Setup::default());
    let by = Rc::new(Cell::new([0; 2]));
    let counter = Rc::clone(&by);
    p.filter = Some(Box::new(move |to, packet| {
        let mut seen = counter.get();
        if let Some(mp) = packet.headers.mp.filter(|_| to == 1) {
            assert!(mp.is_twice());
            seen[usize::from(mp.path_id)] += 1;
        }
        counter.set(seen);
        true
    }));
    p.nodes[0].post(0, WRITE, 0, 5 * 1024);
    p.nodes[0].post(1, READ, 0, 64);
    p.run();
    assert_eq!(by.get(), [6, 6]);
}
