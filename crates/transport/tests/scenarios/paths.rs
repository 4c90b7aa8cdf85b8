//! Several paths: fail-over, fences, and waiting while there is no path.

use std::time::Duration;

use polypath_transport::*;

use crate::pair::*;

const WRITE: SendOp = SendOp::Write { va: 0x10000, rkey: ALL };

fn setup() -> Setup {
    Setup { paths: 2, multipath: true, ..Setup::default() }
}

/// Invariant 1; design section 2: fail-over is "send the unacknowledged PSNs on another path".
#[test]
fn what_was_outstanding_on_a_dead_path_goes_by_another_at_once() {
    let mut p = Pair::new(setup());
    p.nodes[0].write_memory(0, &pattern(60_000, 1));
    p.nodes[0].post(0, WRITE, 0, 60_000);
    p.links[0].cut = [true; 2];
    p.run_for(100 * US);
    assert!(p.nodes[0].host.paths[0].outstanding > 0);
    let began = p.now;
    for side in 0..2 {
        p.set_path(side, 0, false);
    }
    assert_eq!(p.nodes[0].host.paths[0].outstanding, 0);
    p.run();
    assert!(p.now - began < MS, "took {:?}", p.now - began);
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    assert_eq!(p.nodes[1].memory(0x10000, 60_000), pattern(60_000, 1));
    assert_eq!(p.nodes[0].qp.counters().failovers, 1);
    assert_eq!(p.nodes[0].host.paths[0].congestions, 0);
    p.assert_settled();
}

/// An atomic whose answer was lost with its path is not executed again.
#[test]
fn atomics_are_exact_through_a_fail_over() {
    let mut p = Pair::new(setup());
    for i in 0..4 {
        p.nodes[0].post(i, SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 1 }, 8 * i, 8);
    }
    p.links[0].cut = [true, false]; // Requests arrive, answers do not.
    p.run_for(MS);
    assert_eq!(p.nodes[1].u64_at(0x100), 4);
    for side in 0..2 {
        p.set_path(side, 0, false);
    }
    p.run();
    assert_eq!((p.nodes[1].u64_at(0x100), p.nodes[1].host.atomics), (4, 4));
    let got: Vec<u64> = (0..4).map(|i| p.nodes[0].u64_at(8 * i)).collect();
    assert_eq!(got, [0, 1, 2, 3]);
}

/// In RTR a path change leaves nothing to send: a queue pair that asked for a turn forever would
/// keep a processor busy.
#[test]
fn a_queue_pair_that_only_receives_stays_idle() {
    let mut p = Pair::unconnected(setup());
    let node = &mut p.nodes[0];
    for state in [QpState::Init, QpState::Rtr] {
        node.modify(&setup().attr(0), state).unwrap();
    }
    node.qp.set_peer(PeerId(0));
    node.qp.on_path_change(p.now, None, &mut node.host);
    assert_eq!(node.qp.poll_transmit(p.now, &mut node.host), TransmitState::Idle);
    assert!(!node.qp.wants_transmit());
}

/// A path that was only silent is heard again: what is outstanding is sent at once, and the retries
/// start over, as often as it happens.
#[test]
fn retries_into_a_silence_are_not_counted() {
    let mut p = Pair::new(Setup { timeout: 14, retry_cnt: 2, ..setup() });
    p.nodes[0].post(0, WRITE, 0, 5_000);
    p.links[0].cut = [true; 2];
    for _ in 0..50 {
        p.run_for(MS * 600);
        p.path_heard(0, 0);
    }
    assert!(p.nodes[0].qp.counters().timeouts >= 100);
    p.run_for(MS);
    assert_eq!(p.nodes[0].host.statuses(), []);
    p.links[0].cut = [false; 2];
    let began = p.now;
    p.path_heard(0, 0);
    p.run();
    assert!(p.now - began < MS, "took {:?}", p.now - began);
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    p.assert_settled();
}

/// Invariant 1: no error while a path may come back; no retry is counted meanwhile.
#[test]
fn without_any_path_the_queue_pair_holds_still() {
    let mut p = Pair::new(Setup { timeout: 8, retry_cnt: 1, ..setup() });
    p.nodes[0].post(0, WRITE, 0, 50_000);
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0, 50_000);
    for path in 0..2 {
        p.links[path].cut = [true; 2];
        for side in 0..2 {
            p.set_path(side, path, false);
        }
    }
    p.run_for(Duration::from_secs(30));
    assert_eq!(p.nodes[0].qp.next_deadline(), None);
    assert_eq!(p.nodes[0].qp.state(), QpState::Rts);
    assert_eq!(p.nodes[0].qp.counters().timeouts, 0);
    p.links[1].cut = [false; 2];
    for side in 0..2 {
        p.set_path(side, 1, true);
    }
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    p.assert_settled();
}

/// A peer is gone while its host's paths live: the requester gives up in the end.
#[test]
fn a_silent_peer_on_living_paths_exhausts_the_retries() {
    let mut p = Pair::new(Setup { timeout: 8, retry_cnt: 1, ..setup() });
    p.nodes[1].modify(&setup().attr(1), QpState::Err).unwrap();
    let began = p.now;
    p.nodes[0].post(0, WRITE, 0, 100);
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::RetryExcErr)]);
    let took = p.now - began;
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(3), "{took:?}");
}

/// Invariant 4: after the fence nothing that was sent before can touch memory.
#[test]
fn packets_of_an_older_generation_are_dropped() {
    let mut p = Pair::new(setup());
    p.nodes[0].post(0, WRITE, 0, 100);
    p.nodes[0].write_memory(0, &[5; 100]);
    p.pump();
    p.nodes[1].host.paths[0].generation += 1;
    p.run_for(50 * US);
    assert_eq!(p.nodes[1].qp.counters().dropped_generation, 1);
    assert_eq!(p.nodes[1].memory(0x10000, 100), [0; 100]);
    p.nodes[0].host.paths[0].generation += 1;
    p.run();
    assert_eq!(p.nodes[1].memory(0x10000, 100), [5; 100]);
}

/// The PSN space is shared: both kinds of packets are accepted at any time.
#[test]
fn multipath_may_begin_in_the_middle_of_a_message() {
    let mut p = Pair::new(Setup { multipath: false, ..setup() });
    for node in &mut p.nodes {
        node.host.tagged = true;
    }
    for side in 0..2 {
        p.nodes[side].write_memory(0, &pattern(100_000, side as u64));
        p.nodes[side].post(0, SendOp::Write { va: 0x80000, rkey: ALL }, 0, 100_000);
        p.nodes[side].post(1, SendOp::Read { va: 0x80000, rkey: ALL }, 0x40000, 100_000);
    }
    p.links[0].loss = 30;
    p.run_for(60 * US);
    p.nodes[0].qp.set_multipath(true);
    p.run_for(60 * US);
    p.nodes[1].qp.set_multipath(true);
    p.run();
    for side in 0..2 {
        assert_eq!(p.nodes[side].host.statuses().len(), 2);
        assert_eq!(p.nodes[side].memory(0x40000, 100_000), pattern(100_000, side as u64));
    }
    p.assert_settled();
}

/// The peer's answers arrive although the path of the request died meanwhile.
#[test]
fn answers_do_not_go_by_a_dead_path() {
    let mut p = Pair::new(setup());
    p.nodes[0].post(0, WRITE, 0, 100);
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0, 100);
    p.pump();
    let packets = [p.take_packet(), p.take_packet()];
    for (to, bytes) in packets {
        let packet = polypath_wire::Packet::parse(&bytes).unwrap();
        let n = &mut p.nodes[to];
        n.qp.handle_packet(p.now, &packet, PathId(0), None, &mut n.host);
    }
    p.links[0].cut = [true; 2];
    p.set_path(1, 0, false); // So far only the responder knows.
    p.run_for(MS);
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
    p.assert_settled();
}

/// A path on which packets overtake each other loses none, and few packets are sent again
/// needlessly.
#[test]
fn what_is_overtaken_is_learnt_not_to_be_lost() {
    const PACKETS: u64 = 20 * 59;
    for op in [WRITE, SendOp::Read { va: 0x10000, rkey: ALL }] {
        let mut p = Pair::new(setup());
        p.links[0] = Link { delay: 54 * US, jitter: 15 * US, ..Link::default() };
        for i in 0..20 {
            p.nodes[0].post(i, op, 0, 60_000);
            p.run();
        }
        let counters = p.nodes[0].qp.counters();
        let moved = counters.sent_packets.max(counters.received_packets);
        assert!((PACKETS..PACKETS * 6 / 5).contains(&moved), "{op:?} took {moved} of {PACKETS}");
    }
}

/// The NAK that ends a queue pair is sent once. It goes by the path of the packet that it had to wait for,
/// because its own may have died meanwhile.
#[test]
fn a_request_that_came_early_is_refused_by_a_path_that_lives() {
    let write = |rkey| SendOp::Write { va: 0x10000, rkey };
    for dies in [false, true] {
        let mut p = Pair::new(Setup { multipath: true, paths: 2, ..Setup::default() });
        for node in &mut p.nodes {
            node.host.spread = Some(1);
        }
        let (first, mut lost) = (Setup::default().psn[0], false);
        p.filter = Some(Box::new(move |to, packet| {
            let passes = lost || to == 0 || packet.headers.bth.psn.get() != first;
            lost |= !passes;
            passes
        }));
        p.nodes[0].post(0, write(ALL), 0, 10);
        p.nodes[0].post(1, write(0x999), 0, 10);
        p.run_for(US * 30);
        if dies {
            p.links[0].cut = [true; 2];
            p.links[1].cut = [false; 2];
            for side in 0..2 {
                p.set_path(side, 0, false);
            }
        }
        p.run_to_rest(MS * 20_000);
        let expected = [(0, WcStatus::Success), (1, WcStatus::RemAccessErr)];
        assert_eq!(p.nodes[0].host.statuses(), expected, "{dies}");
    }
}
