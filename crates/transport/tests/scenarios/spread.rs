//! Several paths at once: each has its own order, round trips and probes.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use polypath_transport::*;

use crate::host::PathEnd;
use crate::pair::*;

const WRITE: SendOp = SendOp::Write { va: 0x8_0000, rkey: ALL };
const LEN: u32 = 400_000;
/// What a packet of a whole MTU is charged.
const FULL: u64 = 1024 + PACKET_COST as u64;

fn short_and_long_setup() -> Setup {
    let (reach, joins_reads) = (1 << 20, true);
    Setup { paths: 2, multipath: true, reach, joins_reads, ..Setup::default() }
}

/// A short and a long path; both ends send by both, one burst each time.
fn short_and_long(delays: [Duration; 2]) -> Pair {
    short_and_long_with(short_and_long_setup(), delays)
}

fn short_and_long_with(setup: Setup, delays: [Duration; 2]) -> Pair {
    let mut p = Pair::new(setup);
    for (link, delay) in p.links.iter_mut().zip(delays) {
        link.delay = delay;
    }
    for node in &mut p.nodes {
        node.host.spread = Some(8_000);
        // The path manager's probes have measured them.
        for (end, delay) in node.host.paths.iter_mut().zip(delays) {
            end.rtt = Some(delay * 2);
        }
    }
    p.nodes[0].write_memory(0, &pattern(LEN as usize, 5));
    p
}

fn paths(p: &Pair) -> [PathEnd; 2] {
    [0, 1].map(|path| p.nodes[0].host.paths[path])
}

fn assert_written(p: &Pair) {
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(p.nodes[1].memory(0x8_0000, LEN as usize), pattern(LEN as usize, 5));
    p.assert_settled();
}

/// Drops the packets with a payload that come to host 1 by a path and whose numbers `drops`
/// contains, counted from 0.
fn drop_by(p: &mut Pair, path: u8, drops: impl Fn(u32) -> bool + 'static) {
    let mut seen = 0;
    p.filter = Some(Box::new(move |to, packet| {
        let by = packet.headers.mp.map(|mp| mp.path_id);
        if to != 1 || by != Some(path) || packet.payload.is_empty() {
            return true;
        }
        seen += 1;
        !drops(seen - 1)
    }));
}

#[test]
fn what_a_short_path_overtakes_on_a_long_one_is_not_lost() {
    for long in [1, 5, 50] {
        let mut p = short_and_long([100 * US, long * MS]);
        p.nodes[0].post(0, WRITE, 0, LEN);
        p.run();
        assert_written(&p);
        let counters = p.nodes[0].qp.counters();
        assert_eq!((counters.retransmitted_packets, counters.timeouts), (0, 0), "{long} ms");
        for path in paths(&p) {
            assert!(path.acked > u64::from(LEN) / 8, "{path:?}");
            assert_eq!((path.lost, path.congestions), (0, 0), "{path:?}");
        }
    }
}

/// Nobody knows yet how long the path is, so at most one packet is asked for again after a while.
#[test]
fn a_path_of_unknown_length_is_not_taken_for_lossy() {
    let mut p = short_and_long([100 * US, 50 * MS]);
    p.nodes[0].host.paths[1].rtt = None;
    p.nodes[0].post(0, WRITE, 0, LEN);
    p.run();
    assert_written(&p);
    let counters = p.nodes[0].qp.counters();
    let (again, probes) = (counters.retransmitted_packets, counters.tail_probes);
    assert!(again <= probes && probes <= 3, "{again} again, {probes} probes");
}

#[test]
fn a_loss_is_found_by_the_order_of_its_own_path() {
    for lossy in [0, 1] {
        let mut p = short_and_long([100 * US, 5 * MS]);
        drop_by(&mut p, lossy as u8, |n| n == 20);
        p.nodes[0].post(0, WRITE, 0, LEN);
        p.run();
        assert_written(&p);
        let counters = p.nodes[0].qp.counters();
        assert_eq!((counters.retransmitted_packets, counters.tail_probes), (1, 0), "{lossy}");
        let paths = paths(&p);
        assert_eq!((paths[lossy].lost, paths[1 - lossy].lost), (FULL, 0));
    }
}

/// Several packets are lost on both paths, first transmissions and repetitions: each comes again
/// until it has arrived.
#[test]
fn losses_on_both_paths_are_repaired() {
    for seed in 0..20 {
        let mut p = short_and_long([100 * US, 3 * MS]);
        p.rng = Rng(seed);
        p.links.iter_mut().for_each(|link| link.loss = 30);
        p.nodes[0].post(0, WRITE, 0, LEN);
        p.run();
        assert_written(&p);
        assert_eq!(p.nodes[0].qp.counters().timeouts, 0, "seed {seed}");
    }
}

#[test]
fn the_end_of_a_short_path_is_asked_for_after_its_own_round_trips() {
    let mut p = short_and_long([100 * US, 40 * MS]);
    // The round trip of each path is known.
    p.nodes[0].post(0, WRITE, 0, LEN);
    p.run();
    let n = paths(&p).map(|path| path.acked / FULL);
    p.nodes[0].post(1, WRITE, 0, 64_000);
    let began = p.now;
    // Everything on the short path is lost, so that nothing there overtakes anything.
    drop_by(&mut p, 0, |_| true);
    p.run_for(10 * MS);
    let [short, long] = paths(&p);
    assert!(short.suspected >= 1 && long.suspected == 0, "{short:?} {long:?}");
    assert!(short.acked / FULL == n[0] && long.acked / FULL == n[1], "nothing has come back");
    p.filter = None;
    p.run();
    assert!(p.now - began < 200 * MS, "took {:?}", p.now - began);
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
    assert_eq!(paths(&p)[1].lost, 0, "the long one had lost nothing");
    p.assert_settled();
}

#[test]
fn the_round_trips_of_one_path_do_not_disturb_those_of_the_other() {
    let mut p = short_and_long([100 * US, 20 * MS]);
    for n in 0..8 {
        p.nodes[0].post(n, WRITE, 0, LEN / 4);
    }
    p.run();
    let [short, long] = paths(&p);
    // Packets that arrive early wait for those of the long path; that wait is no part of their own
    // round trip.
    assert!(short.rtt_max < MS, "{short:?}");
    assert!((40 * MS..42 * MS).contains(&long.rtt_max), "{long:?}");
    p.assert_settled();
}

#[test]
fn a_path_dies_while_both_carry_and_the_other_goes_on_undisturbed() {
    let mut p = short_and_long([100 * US, MS]);
    p.nodes[0].post(0, WRITE, 0, LEN);
    p.run_for(500 * US);
    p.links[1].cut = [true; 2];
    p.run_for(200 * US);
    let outstanding = paths(&p).map(|path| path.outstanding);
    assert!(outstanding[1] > 0);
    let congestions = paths(&p)[0].congestions;
    for side in 0..2 {
        p.lose_path(side, 1);
    }
    assert_eq!(paths(&p)[0].outstanding, outstanding[0]);
    assert_eq!(paths(&p)[1].outstanding, 0);
    let began = p.now;
    p.run();
    assert!(p.now - began < 5 * MS, "took {:?}", p.now - began);
    assert_written(&p);
    assert_eq!((paths(&p)[0].lost, paths(&p)[0].congestions), (0, congestions));
    assert_eq!(p.nodes[0].qp.counters().failovers, 1);
}

#[test]
fn answers_to_reads_come_back_by_the_paths_that_they_were_asked_by() {
    let mut p = short_and_long([100 * US, 5 * MS]);
    p.nodes[1].write_memory(0, &pattern(LEN as usize, 9));
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0x8_0000, LEN);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(p.nodes[0].memory(0x8_0000, LEN as usize), pattern(LEN as usize, 9));
    assert_eq!(p.nodes[0].qp.counters().retransmitted_packets, 0);
    for path in paths(&p) {
        assert!(path.acked > u64::from(LEN) / 8 && path.lost == 0, "{path:?}");
    }
    p.assert_settled();
}

/// One READ may be outstanding, and yet both paths carry it: its parts count once.
#[test]
fn parts_of_one_read_are_asked_for_by_both_paths_at_once() {
    let mut took = [Duration::ZERO; 2];
    for (joins_reads, took) in [false, true].into_iter().zip(&mut took) {
        let few = Setup { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..short_and_long_setup() };
        let mut p = short_and_long_with(Setup { joins_reads, ..few }, [2 * MS, 2 * MS]);
        p.nodes[1].write_memory(0, &pattern(LEN as usize, 9));
        p.nodes[0].host.window = 20_000;
        let began = p.now;
        p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0x8_0000, LEN);
        p.nodes[0].post(1, SendOp::FetchAdd { va: 0, rkey: ALL, add: 1 }, 0x8_0000 - 8, 8);
        p.run();
        *took = p.now - began;
        let good = WcStatus::Success;
        assert_eq!(p.nodes[0].host.statuses(), [(0, good), (1, good)]);
        assert_eq!(p.nodes[0].memory(0x8_0000, LEN as usize), pattern(LEN as usize, 9));
        p.assert_settled();
    }
    assert!(took[1] * 3 < took[0] * 2, "{took:?}");
}

/// Parts that are lost, doubled and late, and a limit of one READ: the answer is that of one READ.
#[test]
fn parts_of_a_read_survive_losses() {
    for seed in 0..40 {
        let few = Setup { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..short_and_long_setup() };
        let mut p = short_and_long_with(few, [100 * US, 3 * MS]);
        p.rng = Rng(seed);
        for link in &mut p.links {
            (link.loss, link.duplicate) = (30, 30);
        }
        p.nodes[1].write_memory(0, &pattern(LEN as usize, 9));
        for n in 0..3 {
            p.nodes[0].post(2 * n, SendOp::Read { va: 0, rkey: ALL }, 0x8_0000, LEN);
            p.nodes[0].post(2 * n + 1, WRITE, 0x8_0000, LEN / 8);
        }
        p.run();
        let statuses = p.nodes[0].host.statuses();
        assert!(statuses.iter().all(|(_, s)| *s == WcStatus::Success), "seed {seed}: {statuses:?}");
        assert_eq!(statuses.len(), 6);
        assert_eq!(p.nodes[0].memory(0x8_0000, LEN as usize), pattern(LEN as usize, 9));
        p.assert_settled();
    }
}

/// Drops requests of READs that come to host 1, whose numbers `drops` contains, counted from 0. Gives the
/// number of those that came.
fn drop_requests(p: &mut Pair, drops: impl Fn(u32) -> bool + 'static) -> Rc<Cell<u32>> {
    let count = Rc::new(Cell::new(0));
    let seen = Rc::clone(&count);
    p.filter = Some(Box::new(move |to, packet| {
        if to != 1 || !packet.headers.bth.opcode.base().is_read_request() {
            return true;
        }
        seen.set(seen.get() + 1);
        !drops(seen.get() - 1)
    }));
    count
}

/// All later ones wait for a request that was lost, so waiting for a probe would cost several round trips.
#[test]
fn a_lost_request_is_found_when_the_peer_has_a_later_one_of_its_path() {
    for lost in 0..4 {
        let setup = Setup { max_rd_atomic: 16, max_dest_rd_atomic: 16, ..short_and_long_setup() };
        let mut p = short_and_long_with(setup, [100 * US, 5 * MS]);
        p.nodes[1].write_memory(0, &pattern(LEN as usize, 9));
        let requests = drop_requests(&mut p, move |n| n == lost);
        let began = p.now;
        for n in 0..8u32 {
            let at = u64::from(n * LEN / 8);
            p.nodes[0].post(n.into(), SendOp::Read { va: at, rkey: ALL }, 0x8_0000 + at, LEN / 8);
        }
        p.run();
        assert_eq!(p.nodes[0].memory(0x8_0000, LEN as usize), pattern(LEN as usize, 9));
        let counters = p.nodes[0].qp.counters();
        assert_eq!((counters.tail_probes, counters.timeouts), (0, 0), "{lost}: {counters:?}");
        assert!(p.now - began < 35 * MS, "{lost}: {:?}", p.now - began);
        assert!(requests.get() > 8, "{lost}");
        p.assert_settled();
    }
}

/// A sender that has used up its turn on one path continues on another, whatever it has to send.
#[test]
fn small_messages_are_spread_too_and_complete_in_order() {
    let mut p = short_and_long([100 * US, 2 * MS]);
    for n in 0..64 {
        p.nodes[0].post(n, WRITE, 0, 2_000);
    }
    p.run();
    let order: Vec<u64> = p.nodes[0].host.statuses().iter().map(|(id, _)| *id).collect();
    assert_eq!(order, (0..64).collect::<Vec<_>>());
    assert!(paths(&p).iter().all(|path| path.acked > 20_000 && path.lost == 0));
    p.assert_settled();
}
