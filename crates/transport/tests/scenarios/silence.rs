//! When a silent path is left for the alternate one, and when it is not.

use std::time::Duration;

use polypath_transport::*;

use crate::migration::{armed, causes, modify, setup, states};
use crate::pair::*;
use MigrationCause as Cause;
use QpAttrMask as M;

const WRITE: SendOp = SendOp::Write { va: 0x10000, rkey: ALL };
const ADD: SendOp = SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 1 };

/// The alternate path answers while the primary one is silent.
#[test]
fn a_silent_path_is_left_long_before_the_retries_are_used_up() {
    for (cut, timeout) in [([true, true], 20), ([true, false], 20), ([false, true], 0)] {
        let mut p = armed(Setup { timeout, ..setup() });
        p.nodes[0].post(0, ADD, 0, 8);
        p.run_for(MS);
        p.links[0].cut = cut;
        for i in 1..4 {
            p.nodes[0].post(i, ADD, 8 * i, 8);
        }
        p.run_for(MS * 50);
        assert_eq!((causes(&p, 0), causes(&p, 1)), (vec![Cause::Silence], vec![Cause::Peer]));
        assert_eq!(p.nodes[0].host.statuses(), [0, 1, 2, 3].map(|i| (i, WcStatus::Success)));
        assert_eq!((p.nodes[1].u64_at(0x100), p.nodes[1].host.atomics), (4, 4));
    }
}

/// A pair by links of this delay, whose round trip its initiator has measured by 50 requests.
fn armed_and_measured(delay: Duration) -> Pair {
    let mut p = armed(Setup { timeout: 20, ..setup() });
    p.links.iter_mut().for_each(|link| link.delay = delay);
    for i in 0..50 {
        p.nodes[0].post(i, ADD, 0, 8);
        p.run_for(delay * 2 + MS * 5);
    }
    p
}

/// Three round trips before the first question, and one for each answer of the three.
#[test]
fn a_silent_long_path_is_left_within_seven_round_trips() {
    let mut p = armed_and_measured(MS * 10);
    assert!(causes(&p, 0).is_empty());
    p.links[0].cut = [true; 2];
    p.nodes[0].post(50, ADD, 0, 8);
    p.run_for(MS * 20 * 7);
    assert_eq!(causes(&p, 0), [Cause::Silence]);
}

/// A path that is three times slower than before is not a dead one.
#[test]
fn a_path_that_becomes_slow_is_not_left() {
    let mut p = armed_and_measured(MS * 10);
    p.links[0].delay = MS * 30;
    for i in 50..70 {
        p.nodes[0].post(i, ADD, 0, 8);
        p.run_for(MS * 100);
    }
    assert!(causes(&p, 0).is_empty());
    assert_eq!(p.nodes[0].host.statuses().len(), 70);
}

/// A peer that does not run for a moment answers all questions by the alternate path at once when it
/// does, before it acknowledges what came by the primary one.
#[test]
fn a_peer_that_did_not_run_for_a_moment_has_lost_no_path() {
    for stop in [5, 12, 40, 300] {
        let mut p = armed(Setup { timeout: 20, ..setup() });
        for i in 0..20 {
            p.nodes[0].post(i, ADD, 8 * i, 8);
            p.run_for(MS);
            p.nodes[0].post(100 + i, WRITE, 0, 3000);
            p.asleep_until[1] = p.now + MS * stop;
            p.run_for(MS * stop + MS * 2);
            assert!(causes(&p, 0).is_empty() && causes(&p, 1).is_empty(), "{stop} ms, time {i}");
        }
        assert_eq!(p.nodes[0].host.statuses().len(), 40);
    }
}

/// The alternate path comes to life when the primary one falls silent, after a time in which neither it nor
/// the primary one was asked often.
#[test]
fn a_silent_path_is_left_soon_after_the_alternate_one_answers() {
    for (sent, both) in [(0, false), (0, true), (1, true)] {
        let mut p = armed(Setup { timeout: 20, ..setup() });
        p.links[1].cut = [true; 2];
        p.nodes[0].post(0, ADD, 0, 8);
        // It is in REARM after this.
        for i in 1..=100 {
            p.run_for(MS * 100);
            p.nodes[0].post(i, ADD, 0, 8);
        }
        if sent == 1 {
            p.links[1].cut = [false; 2];
            p.run_for(Duration::from_secs(2));
            assert_eq!(states(&p)[0], MigState::Armed);
        } else {
            assert_eq!(states(&p)[0], MigState::Rearm);
        }
        if both {
            p.links.iter_mut().for_each(|link| link.cut = [true; 2]);
            p.nodes[0].post(101, ADD, 0, 8);
            p.run_for(Duration::from_secs(1));
        }
        p.links[0].cut = [true; 2];
        p.links[1].cut = [false; 2];
        p.nodes[0].post(102, ADD, 0, 8);
        // Probes never are more than 200 ms apart.
        p.run_for(MS * if both { 230 } else { 50 });
        assert_eq!(causes(&p, 0), [Cause::Silence], "{sent} {both}");
    }
}

/// It would keep a processor busy.
#[test]
fn who_has_failed_wants_to_tell_nobody_when_its_alternate_path_goes() {
    let mut p = armed(setup());
    modify(&mut p, 0, &QpAttr::new(QpState::Err), M::STATE).unwrap();
    let now = p.now;
    let node = &mut p.nodes[0];
    node.host.paths[1].alive = false;
    node.qp.on_alternate_change(now, &mut node.host);
    assert!(!node.qp.wants_transmit());
    p.pump();
}

/// A peer that is silent on both paths, as one that does not run, is waited for.
#[test]
fn silence_of_both_paths_is_no_reason_to_migrate() {
    let mut p = armed(Setup { timeout: 20, ..setup() });
    p.links.iter_mut().for_each(|link| link.cut = [true; 2]);
    p.nodes[0].post(0, ADD, 0, 8);
    p.run_for(MS * 500);
    p.links.iter_mut().for_each(|link| link.cut = [false; 2]);
    p.run_for(Duration::from_secs(1));
    assert_eq!(p.nodes[0].host.statuses(), [(0, WcStatus::Success)]);
    assert!(causes(&p, 0).is_empty() && causes(&p, 1).is_empty());
}
