//! Retries: what counts as one, what does not, and which queue pair they belong to.

use std::time::Duration;

use polypath_transport::*;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{Aeth, NakCode, Syndrome};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::pair::*;

const WRITE: SendOp = SendOp::Write { va: 0x10000, rkey: ALL };

/// An acknowledgement of the packet `ahead` of the first one, as the peer would send it.
fn answer(p: &mut Pair, ahead: u32, syndrome: Syndrome) {
    let mut bth = Bth::new(Opcode::RC_ACK);
    bth.psn = Psn::new(Setup::default().psn[0] + ahead);
    let mut headers = Headers::new(bth);
    headers.aeth = Some(Aeth { syndrome, msn: 1 });
    let n = &mut p.nodes[0];
    let packet = Packet { headers, payload: &[] };
    n.qp.handle_packet(p.now, &packet, PathId(0), None, &mut n.host);
}

/// perftest's settings: timeout 14, 7 retries. A busy machine took the processor away for 0.47 s.
#[test]
fn a_peer_that_does_not_run_for_a_second_is_waited_for() {
    for silence in [470, 1000, 2000] {
        let mut p = Pair::new(Setup::default());
        p.nodes[0].post(0, WRITE, 0, 5000);
        p.links[0].cut = [true; 2];
        p.run_for(MS * silence);
        assert_eq!(p.nodes[0].qp.state(), QpState::Rts, "{silence} ms");
        p.links[0].cut = [false; 2];
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    }
}

/// A real loss is nevertheless repaired within round trips.
#[test]
fn long_patience_does_not_slow_down_the_repair_of_a_loss() {
    let mut p = Pair::new(Setup { timeout: 20, ..Setup::default() });
    p.nodes[0].post(0, WRITE, 0, 100);
    p.run();
    p.nodes[0].post(1, WRITE, 0, 100);
    p.links[0].cut = [true; 2];
    p.run_for(MS);
    p.links[0].cut = [false; 2];
    let began = p.now;
    p.run();
    assert!(p.now - began < MS * 2, "{:?}", p.now - began);
}

/// The process is stopped, and the peer's answer waits in the socket. Timers are looked at first.
#[test]
fn a_process_that_was_stopped_asks_again_before_it_gives_up() {
    for stop in [10, 1000, 3_600_000] {
        let mut p = Pair::new(Setup { timeout: 10, retry_cnt: 0, ..Setup::default() });
        p.nodes[0].post(0, WRITE, 0, 5000);
        p.pump();
        let due = p.nodes[0].qp.next_deadline().unwrap();
        p.now = due + MS * stop;
        let n = &mut p.nodes[0];
        n.qp.handle_timeout(p.now, &mut n.host);
        assert_eq!(n.host.statuses(), []);
        p.run();
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)], "{stop} ms");
    }
}

/// IBTA 9.9.2.1: a replay after a NAK is a retry as well.
#[test]
fn a_peer_that_refuses_the_sequence_for_ever_exhausts_the_retries() {
    for retry_cnt in [0, 3, 7] {
        let mut p = Pair::new(Setup { retry_cnt, ..Setup::default() });
        p.links[0].cut = [true; 2];
        p.nodes[0].post(0, WRITE, 0, 100);
        p.pump();
        let mut naks = 0;
        while p.nodes[0].qp.state() == QpState::Rts {
            p.run_for(MS); // Longer than any guard against an old complaint, shorter than a probe.
            answer(&mut p, 0, Syndrome::Nak(NakCode::PsnSequence));
            naks += 1;
            assert!(naks < 100, "asked for ever");
        }
        assert_eq!(naks, u32::from(retry_cnt) + 1);
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::RetryExcErr)]);
        p.assert_settled();
    }
}

/// The same if it acknowledges what came after a READ and never answers the READ (an implied NAK,
/// IBTA 9.7.5.1.1).
#[test]
fn a_peer_that_never_answers_a_read_exhausts_the_retries() {
    let mut p = Pair::new(Setup { retry_cnt: 3, ..Setup::default() });
    p.links[0].cut = [true; 2];
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0, 100);
    p.nodes[0].post(1, WRITE, 0, 100);
    p.pump();
    let mut acks = 0;
    while p.nodes[0].qp.state() == QpState::Rts {
        // It acknowledges packets that were sent before the READ was asked for again, so it says nothing
        // about the repetition: the timeout decides.
        p.run_for(MS * 50);
        answer(&mut p, 1, Syndrome::ACK);
        acks += 1;
        assert!(acks < 100, "asked for ever");
    }
    assert_eq!(p.nodes[0].host.statuses()[0], (0, WcStatus::RetryExcErr));
    p.assert_settled();
}

/// After a migration many duplicates are on their way at once, and each is answered.
#[test]
fn implied_naks_that_come_together_are_few_retries() {
    let mut p = Pair::new(Setup::default());
    p.links[0].cut = [true; 2];
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0, 100);
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0, 100);
    p.pump();
    for n in 0..30 {
        p.run_for(MS);
        answer(&mut p, 1, Syndrome::ACK);
        assert_eq!(p.nodes[0].qp.state(), QpState::Rts, "after {n} acknowledgements");
    }
    p.links[0].cut = [false; 2];
    p.run();
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
}

/// No ACK timeout ends this, so that the implied NAKs have to.
#[test]
fn implied_naks_without_end_exhaust_the_retries() {
    let mut p = Pair::new(Setup { timeout: 0, ..Setup::default() });
    p.links[0].cut = [true; 2];
    p.nodes[0].post(0, SendOp::Read { va: 0, rkey: ALL }, 0, 100);
    p.nodes[0].post(1, SendOp::Read { va: 0, rkey: ALL }, 0, 100);
    p.pump();
    let mut acks = 0;
    while p.nodes[0].qp.state() == QpState::Rts {
        p.run_for(MS);
        answer(&mut p, 1, Syndrome::ACK);
        acks += 1;
        assert!(acks < 10_000, "asked for ever");
    }
    assert_eq!(p.nodes[0].host.statuses()[0], (0, WcStatus::RetryExcErr));
    p.assert_settled();
}

/// What a NAK acknowledges is progress, which restores the retries.
#[test]
fn a_loss_now_and_then_exhausts_nothing() {
    let mut p = Pair::new(Setup { retry_cnt: 1, ..Setup::default() });
    let mut n = 0;
    p.filter = Some(Box::new(move |to, _| {
        n += u32::from(to == 1);
        to != 1 || n % 5 != 0
    }));
    for i in 0..20 {
        p.nodes[0].post(i, WRITE, 0, 20_000);
        p.run();
    }
    assert!(p.nodes[0].qp.counters().naks_sequence_received > 20);
    assert_eq!(p.nodes[0].host.statuses().len(), 20);
    assert_eq!(p.nodes[0].qp.state(), QpState::Rts);
}

/// Retry counters belong to a queue pair (IBTA 9.9.2.1): a path to another peer that dies again and
/// again restores nothing to a queue pair whose own peer has gone.
#[test]
fn paths_that_are_not_used_give_no_retries_back() {
    for multipath in [false, true] {
        let setup = Setup { paths: 2, multipath, timeout: 14, ..Setup::default() };
        let mut p = Pair::new(setup);
        p.nodes[0].post(0, WRITE, 0, 100);
        p.links[0].cut = [true; 2];
        let began = p.now;
        while p.nodes[0].qp.state() == QpState::Rts {
            p.run_for(MS * 100);
            let n = &mut p.nodes[0];
            n.qp.on_path_dead(p.now, PathId(1), &mut n.host);
            n.qp.on_path_heard(p.now, PathId(1), &mut n.host);
            assert!(p.now - began < Duration::from_secs(5), "the other path's deaths count");
        }
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::RetryExcErr)]);
    }
}

/// A route that changes although the old path lives (back to the primary) restores nothing either.
#[test]
fn a_route_that_moves_between_living_paths_gives_no_retries_back() {
    let mut p = Pair::new(Setup { paths: 2, multipath: true, ..Setup::default() });
    p.nodes[1].modify(&Setup::default().attr(1), QpState::Err).unwrap();
    p.nodes[0].post(0, WRITE, 0, 100);
    let began = p.now;
    for turn in 0.. {
        if p.nodes[0].qp.state() != QpState::Rts {
            break;
        }
        p.run_for(MS * 100);
        let n = &mut p.nodes[0];
        n.host.active = Some(turn % 2);
        n.qp.on_path_change(p.now, None, &mut n.host);
        assert!(p.now - began < Duration::from_secs(5), "moves count");
    }
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::RetryExcErr)]);
}

/// What is asked for again goes by another path each time, as under the policy balance. A path on which
/// nothing was waited for before says nothing about whether this process runs late.
#[test]
fn a_request_that_is_repeated_by_many_paths_runs_out_of_retries() {
    const PATHS: usize = 8;
    let mut p = Pair::new(Setup { paths: PATHS, multipath: true, timeout: 13, ..Setup::default() });
    // It is asked for more rarely by this path.
    p.links[0].delay = MS * 5;
    let read = SendOp::Read { va: 0x10000, rkey: ALL };
    for path in 0..PATHS {
        p.nodes[0].host.active = Some(path);
        p.nodes[0].post(path as u64, read, 0, 100);
        p.run();
    }
    p.nodes[1].modify(&Setup::default().attr(1), QpState::Err).unwrap();
    p.nodes[0].post(PATHS as u64, read, 0, 100);
    let began = p.now;
    for turn in 0.. {
        if p.nodes[0].qp.state() != QpState::Rts {
            break;
        }
        p.nodes[0].host.active = Some(turn % PATHS);
        p.pump();
        let next = p.next_event().unwrap();
        p.run_for(next.saturating_sub(p.now).max(Duration::from_micros(1)));
        assert!(p.now - began < Duration::from_secs(5), "it asks for ever");
    }
    let last = p.nodes[0].host.statuses()[PATHS];
    assert_eq!(last, (PATHS as u64, WcStatus::RetryExcErr));
}

/// Reports were lost: what was outstanding on a path that died goes by another, the rest stays.
#[test]
fn whatever_died_unheard_is_found_when_reports_were_lost() {
    for died in [false, true] {
        let mut p = Pair::new(Setup { paths: 2, multipath: true, ..Setup::default() });
        p.nodes[0].post(0, WRITE, 0, 5000);
        p.links[0].cut = [true; 2];
        p.pump();
        let n = &mut p.nodes[0];
        n.host.active = Some(1);
        n.qp.on_paths_unknown(p.now, |path| died && path == PathId(0), &mut n.host);
        let began = p.now;
        p.run();
        assert_eq!(p.now - began < MS, died, "{:?}", p.now - began);
        assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    }
}
