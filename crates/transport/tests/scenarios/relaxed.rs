//! Data that may go into memory before its turn (`IBV_ACCESS_RELAXED_ORDERING`).

use std::time::Duration;

use polypath_transport::*;

use crate::pair::*;

const LEN: usize = 512 << 10;
const VA: u64 = LEN as u64;
const MTU: usize = 1024;
const LATENCY: Duration = Duration::from_millis(10);

/// A pair joined by a long path, on which the packet `number` of host 0 is lost the first time.
fn losing(number: u32) -> Pair {
    let setup = Setup { multipath: true, reach: REACH, ..Setup::default() };
    let lost = polypath_wire::psn::Psn::new(setup.psn[0]).add(number);
    let mut p = Pair::new(setup);
    for link in &mut p.links {
        link.delay = LATENCY;
        link.rate = 1250;
    }
    for node in &mut p.nodes {
        node.host.window = 64 << 20;
    }
    p.nodes[0].write_memory(0, &pattern(LEN, 5));
    let mut once = true;
    p.filter = Some(Box::new(move |to, packet| {
        to == 0 || packet.headers.bth.psn != lost || !std::mem::take(&mut once)
    }));
    p
}

fn write(p: &mut Pair, wr_id: u64, rkey: u32) {
    p.nodes[0].post(wr_id, SendOp::Write { va: VA, rkey }, 0, LEN as u32);
}

/// All that was sent has arrived, and nothing of it was acknowledged in time to repeat the lost packet.
fn arrive(p: &mut Pair) {
    p.run_for(LATENCY + Duration::from_millis(3));
}

fn finish(p: &mut Pair, n: u64) {
    p.run();
    let done: Vec<_> = (0..n).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(p.nodes[0].host.statuses(), done);
    assert!(p.nodes[1].memory(LEN, LEN) == pattern(LEN, 5));
    p.assert_settled();
}

#[test]
fn the_rest_of_a_write_is_in_memory_before_a_lost_packet_comes_again() {
    let mut p = losing(1);
    write(&mut p, 0, RELAXED);
    arrive(&mut p);
    let (data, node) = (pattern(LEN, 5), &p.nodes[1]);
    assert!(node.memory(LEN, MTU) == &data[..MTU], "what came in order");
    assert!(node.memory(LEN + MTU, MTU) == [0; MTU], "what was lost");
    assert!(node.memory(LEN + 2 * MTU, LEN - 2 * MTU) == &data[2 * MTU..], "what came after it");
    let packets = (LEN / MTU - 2) as u64;
    assert_eq!(node.qp.counters().placed_early, packets);
    assert!(node.host.early < LEN as u32 / 2, "only headers wait: {}", node.host.early);
    assert!(p.nodes[0].host.statuses().is_empty(), "nothing completes early");
    finish(&mut p, 1);
    assert_eq!(p.nodes[1].qp.counters().dropped_reorder, 0);
}

#[test]
fn elsewhere_data_waits_for_its_turn() {
    let mut p = losing(1);
    write(&mut p, 0, ALL);
    arrive(&mut p);
    assert!(p.nodes[1].memory(LEN + MTU, LEN - MTU) == vec![0; LEN - MTU]);
    assert!(p.nodes[1].host.early > LEN as u32);
    finish(&mut p, 1);
    assert_eq!(p.nodes[1].qp.counters().placed_early, 0);
}

/// What is missing may be a READ of the same memory, or a request that is refused.
#[test]
fn nothing_is_placed_before_all_earlier_messages_are_executed() {
    let mut p = losing(0);
    write(&mut p, 0, RELAXED);
    arrive(&mut p);
    assert!(p.nodes[1].memory(LEN, LEN) == vec![0; LEN]);
    assert_eq!(p.nodes[1].qp.counters().placed_early, 0);
    finish(&mut p, 1);

    // The second WRITE waits for the first, although its own first packet is here.
    let mut p = losing(1);
    write(&mut p, 0, RELAXED);
    p.nodes[0].post(1, SendOp::Write { va: 0, rkey: RELAXED }, 0, 4 * MTU as u32);
    arrive(&mut p);
    assert!(p.nodes[1].memory(0, 4 * MTU) == vec![0; 4 * MTU]);
    finish(&mut p, 2);
    assert!(p.nodes[1].memory(0, 4 * MTU) == &pattern(LEN, 5)[..4 * MTU]);
}

/// A READ returns what was there before the WRITE that follows it, even if its answer has to be sent again.
#[test]
fn answers_of_a_read_before_it_have_the_old_data() {
    for seed in 0..20 {
        let mut p = losing(0);
        let old = pattern(LEN, 9);
        p.nodes[1].write_memory(LEN, &old);
        let mut rng = Rng(seed);
        p.filter = Some(Box::new(move |_, _| !rng.chance(30)));
        let place = VA;
        p.nodes[0].post(0, SendOp::Read { va: VA, rkey: ALL }, place, 64 * MTU as u32);
        write(&mut p, 1, RELAXED);
        finish(&mut p, 2);
        assert!(p.nodes[0].memory(place as usize, 64 * MTU) == &old[..64 * MTU], "seed {seed}");
    }
}

#[test]
fn a_frozen_queue_pair_knows_what_it_has_placed() {
    let mut p = losing(1);
    write(&mut p, 0, RELAXED);
    arrive(&mut p);
    let (now, node) = (p.now, &mut p.nodes[1]);
    let fresh = QueuePair::new(*node.qp.config());
    let bytes = std::mem::replace(&mut node.qp, fresh).freeze(now, &mut node.host);
    assert_eq!(node.host.early, 0);
    let config = QueuePair::frozen_config(&bytes).unwrap();
    let mut thawed = QueuePair::thaw(&bytes, config.pd, now, &mut node.host).unwrap();
    thawed.set_peer(PeerId(0));
    node.qp = thawed;
    finish(&mut p, 1);
}

/// A region that goes while its data is arriving refuses the WRITE, however much of it was placed.
#[test]
fn a_region_that_goes_refuses_what_it_has_of_the_write() {
    let mut p = losing(1);
    write(&mut p, 0, RELAXED);
    arrive(&mut p);
    assert!(p.nodes[1].qp.counters().placed_early > 0);
    let (pd, qpn) = (crate::host::PD, p.nodes[1].qp.config().qpn);
    p.nodes[1].host.invalidate(RemoteKey { pd, qpn, rkey: RELAXED }).unwrap();
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::RemAccessErr)]);
    p.assert_settled();
}
