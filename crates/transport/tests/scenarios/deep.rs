//! Thousands of packets in flight, between peers that have told each other their reach.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use polypath_transport::*;
use polypath_wire::opcode::Opcode;
use polypath_wire::psn::Psn;

use crate::pair::*;

const HALF: usize = 512 << 10;
const VA: u64 = HALF as u64;
const ROUND_TRIP: Duration = Duration::from_millis(20);

fn setup() -> Setup {
    Setup { multipath: true, reach: REACH, ..Setup::default() }
}

/// A pair joined by a long path of 10 Gbit/s, with windows that do not matter.
fn far_apart(setup: Setup) -> Pair {
    let mut p = Pair::new(setup);
    for link in &mut p.links {
        link.delay = ROUND_TRIP / 2;
        link.rate = 1250;
    }
    for node in &mut p.nodes {
        node.host.window = 64 << 20;
    }
    p
}

/// Lets host 0 WRITE half a MiB `n` times. Returns how long that took.
fn write(p: &mut Pair, n: u64) -> Duration {
    let data = pattern(HALF, 5);
    p.nodes[0].write_memory(0, &data);
    let from = p.now;
    for i in 0..n {
        p.nodes[0].post(i, SendOp::Write { va: VA, rkey: ALL }, 0, HALF as u32);
    }
    p.run();
    let done: Vec<_> = (0..n).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(p.nodes[0].host.statuses(), done);
    assert!(p.nodes[1].memory(HALF, HALF) == data);
    p.assert_settled();
    p.now - from
}

/// Records how far the packets that arrive at host 1 are ahead of the oldest unacknowledged one at
/// most.
fn watch_flight(p: &mut Pair) -> Rc<RefCell<i32>> {
    let most = Rc::new(RefCell::new(0));
    let seen = Rc::clone(&most);
    let mut acknowledged = Psn::new(setup().psn[0]).prev();
    p.filter = Some(Box::new(move |to, packet| {
        let psn = packet.headers.bth.psn;
        let mut most = seen.borrow_mut();
        if to == 0 {
            acknowledged = psn;
        } else {
            *most = psn.diff(acknowledged).max(*most);
        }
        true
    }));
    most
}

#[test]
fn as_much_is_in_flight_as_the_peer_keeps_of_what_comes_early() {
    let mut p = far_apart(setup());
    // With 256 packets it would take 64 round trips.
    assert!(write(&mut p, 32) < ROUND_TRIP * 3, "16 MiB");

    for (mtu, reach, psns) in [
        (1024, 0, 256),
        (4096, 0, 256),
        (1024, 1 << 10, 256),
        (1024, 1 << 20, 1024),
        (4096, 16 << 20, 4096),
        (1024, 1 << 31, 16384),
        (256, 16 << 20, 65536),
    ] {
        let mut p = far_apart(Setup { mtu, reach, ..setup() });
        p.links[0].rate = 0; // All packets arrive before the first acknowledgement.
        let most = watch_flight(&mut p);
        write(&mut p, 40);
        assert_eq!(*most.borrow(), psns, "MTU {mtu}, reach {reach}");
    }
}

/// Peers that have not said that they read blocks may be of a version that does not.
#[test]
fn blocks_are_sent_to_peers_that_read_them_only() {
    for reach in [0, REACH] {
        let mut p = far_apart(Setup { reach, ..setup() });
        let payloads = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&payloads);
        let start = Setup::default().psn[0];
        let mut lost = false;
        p.filter = Some(Box::new(move |to, packet| {
            if packet.headers.bth.opcode == Opcode::MP_ACK && !packet.payload.is_empty() {
                let sack = packet.headers.sack.unwrap().0;
                seen.borrow_mut().push((
                    packet.headers.bth.psn.get(),
                    sack,
                    packet.payload.to_vec(),
                ));
            }
            let first = to == 1 && packet.headers.bth.psn.get() == start;
            !first || std::mem::replace(&mut lost, true)
        }));
        p.nodes[0].post(0, SendOp::Write { va: VA, rkey: ALL }, 0, 200 << 10);
        p.run();
        p.assert_settled();
        let payloads = payloads.borrow();
        if reach == 0 {
            assert!(payloads.is_empty());
            continue;
        }
        // PSN 0x100 is missing, 0x101 to 0x1c7 are there: bit 0 is the one missing.
        let mut block = vec![0, 0, 1, 1];
        block.extend([0, 0, 0, 199]);
        assert_eq!(payloads.last(), Some(&(0xff, !1, block)));
    }
}

/// Each gap is found at once, whatever lies between it and the first one, and only what was lost is
/// sent again.
#[test]
fn losses_all_over_a_long_flight_are_made_good_within_a_few_round_trips() {
    for (per_mille, acks_per_mille) in [(1, 0), (1, 50), (20, 0), (20, 200)] {
        let mut p = far_apart(setup());
        let lost = Rc::new(RefCell::new(0));
        let count = Rc::clone(&lost);
        let mut rng = Rng(99);
        p.filter = Some(Box::new(move |to, _| {
            let drop = rng.chance(if to == 1 { per_mille } else { acks_per_mille });
            *count.borrow_mut() += u64::from(drop && to == 1);
            !drop
        }));
        let took = write(&mut p, 32);
        let (counters, lost) = (*p.nodes[0].qp.counters(), *lost.borrow());
        let rule = format!("{per_mille} and {acks_per_mille} of 1000: {lost} lost, {counters:?}");
        assert!(lost > 10, "{rule}");
        assert_eq!(counters.timeouts, 0, "{rule}");
        // A tail-loss probe, or an acknowledgement that got lost, may cause a few more.
        assert!(counters.retransmitted_packets <= lost + lost / 4 + 10, "{rule}");
        assert!(took < ROUND_TRIP * 8, "{took:?}, {rule}");
    }
}

/// READ answers that get lost leave gaps, too.
#[test]
fn losses_among_the_answers_of_reads_and_writes_in_between_are_made_good() {
    let mut p = far_apart(Setup { max_rd_atomic: 16, max_dest_rd_atomic: 16, ..setup() });
    let mut rng = Rng(5);
    p.filter = Some(Box::new(move |_, _| !rng.chance(5)));
    let data = pattern(HALF / 2, 6);
    p.nodes[1].write_memory(HALF, &data);
    for i in 0..32 {
        let read = SendOp::Read { va: VA, rkey: ALL };
        p.nodes[0].post(2 * i, read, 0, HALF as u32 / 2);
        let write = SendOp::Write { va: VA + HALF as u64 / 2, rkey: ALL };
        p.nodes[0].post(2 * i + 1, write, HALF as u64, HALF as u32 / 8);
    }
    p.run();
    let done: Vec<_> = (0..64).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(p.nodes[0].host.statuses(), done);
    assert!(p.nodes[0].memory(0, HALF / 2) == data);
    assert_eq!(p.nodes[0].qp.counters().timeouts, 0);
    p.assert_settled();
}

/// Packets that the host has no memory for come again: more slowly, but they come.
#[test]
fn early_packets_take_no_more_memory_than_the_host_gives() {
    const MOST: u32 = 1 << 20;
    let mut p = far_apart(setup());
    p.nodes[1].host.early_max = MOST;
    let mut rng = Rng(3);
    p.filter = Some(Box::new(move |to, _| to == 0 || !rng.chance(2)));
    write(&mut p, 32);
    let most = p.nodes[1].host.early_most;
    assert!((MOST - 4096..=MOST).contains(&most), "{most}");
    assert!(p.nodes[1].qp.counters().dropped_reorder > 0);
}

/// The host gets the memory back when the queue pair goes, whatever it waits for.
#[test]
fn a_queue_pair_that_goes_gives_back_what_early_packets_take() {
    for state in [QpState::Err, QpState::Reset] {
        let mut p = far_apart(setup());
        let start = Setup::default().psn[0];
        p.filter =
            Some(Box::new(move |to, packet| to == 0 || packet.headers.bth.psn.get() != start));
        p.nodes[0].post(0, SendOp::Write { va: VA, rkey: ALL }, 0, HALF as u32);
        p.run_for(ROUND_TRIP);
        assert!(p.nodes[1].host.early > HALF as u32);
        p.nodes[1].modify(&setup().attr(1), state).unwrap();
        assert_eq!(p.nodes[1].host.early, 0, "{state:?}");
    }
}

/// Thousands of packets are lost with the dead path.
#[test]
fn a_long_flight_goes_over_to_another_path() {
    let mut p = far_apart(Setup { paths: 2, ..setup() });
    let data = pattern(HALF, 5);
    p.nodes[0].write_memory(0, &data);
    for i in 0..32 {
        p.nodes[0].post(i, SendOp::Write { va: VA, rkey: ALL }, 0, HALF as u32);
    }
    let mut rng = Rng(4);
    p.filter = Some(Box::new(move |_, _| !rng.chance(10)));
    p.run_for(ROUND_TRIP / 2 + MS);
    p.links[0].cut = [true; 2];
    for side in 0..2 {
        p.set_path(side, 0, false);
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses().len(), 32);
    assert!(p.nodes[1].memory(HALF, HALF) == data);
    assert_eq!(p.nodes[0].qp.counters().timeouts, 0);
    p.assert_settled();
}
