//! Automatic path migration (IBTA 17.2.8): two queue pairs with a primary path, 0, and an alternate, 1.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use polypath_transport::*;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{Aeth, Syndrome};
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::{Headers, Packet};
use polypath_wire::psn::Psn;

use crate::host::APM;
use crate::pair::*;
use MigrationCause as Cause;
use QpAttrMask as M;

const WRITE: SendOp = SendOp::Write { va: 0x10000, rkey: ALL };
const ADD: SendOp = SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 1 };

pub fn setup() -> Setup {
    Setup { paths: 2, timeout: 8, retry_cnt: 2, ..Setup::default() }
}

fn address(path: usize) -> AhAttr {
    AhAttr { is_global: true, port_num: 1, sgid_index: path as u8, ..AhAttr::default() }
}

pub fn modify(p: &mut Pair, side: usize, attr: &QpAttr, mask: M) -> Result<(), ModifyError> {
    let node = &mut p.nodes[side];
    node.qp.modify(attr, mask, &mut node.host)
}

/// What a program does to make a queue pair ready to migrate to `path`.
pub fn load(p: &mut Pair, side: usize, path: usize) {
    load_with(p, side, path, 9);
}

/// The same, with this ACK timeout.
pub fn load_with(p: &mut Pair, side: usize, path: usize, timeout: u8) {
    let mut attr = QpAttr::new(QpState::Rts);
    attr.alt_ah = address(path);
    (attr.alt_port_num, attr.alt_timeout) = (1, timeout);
    attr.path_mig_state = MigState::Rearm;
    modify(p, side, &attr, M::ALT_PATH | M::PATH_MIG_STATE).unwrap();
    let node = &mut p.nodes[side];
    let [primary, _] = node.host.apm.unwrap();
    node.host.apm = Some([primary, path]);
    node.qp.set_alternate(Some(PeerId(APM + path as u32)), &mut node.host);
}

/// Two queue pairs that are connected by path 0 and have none in reserve.
pub fn plain(setup: Setup) -> Pair {
    let mut p = Pair::new(setup);
    for node in &mut p.nodes {
        node.host.apm = Some([0, 0]);
        node.qp.set_peer(PeerId(APM));
    }
    p
}

/// The same, ready to migrate.
pub fn armed(setup: Setup) -> Pair {
    let mut p = plain(setup);
    for side in 0..2 {
        load(&mut p, side, 1);
    }
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    p
}

pub fn states(p: &Pair) -> [MigState; 2] {
    [0, 1].map(|side| p.nodes[side].qp.query().path_mig_state)
}

pub fn migrate(p: &mut Pair, side: usize) -> Result<(), ModifyError> {
    modify(p, side, &QpAttr::new(QpState::Rts), M::PATH_MIG_STATE)
}

pub fn causes(p: &Pair, side: usize) -> Vec<Cause> {
    let news = p.nodes[side].host.migrations.iter().copied();
    news.filter_map(|news| if let MigrationNews::Migrated(c) = news { Some(c) } else { None })
        .collect()
}

fn count(p: &Pair, side: usize, event: QpEvent) -> usize {
    p.nodes[side].host.events.iter().filter(|e| **e == event).count()
}

#[test]
fn an_idle_connection_is_armed_when_both_ends_have_an_alternate_path() {
    let mut p = plain(setup());
    load(&mut p, 0, 1);
    p.run_for(MS * 100);
    assert_eq!(states(&p), [MigState::Rearm, MigState::Migrated]);
    // However late the second one comes.
    p.run_for(Duration::from_secs(100));
    let sent = p.nodes[0].qp.counters().sent_packets;
    assert!((50..200).contains(&sent), "{sent}: it is asked rarely, and for ever");
    load(&mut p, 1, 1);
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    assert_eq!(p.nodes[0].host.migrations, [MigrationNews::Unproven, MigrationNews::Armed]);
    assert_eq!(p.nodes[1].host.migrations, [MigrationNews::Armed]);
}

/// Neither end says that it can migrate before a packet has gone both ways by the alternate path.
#[test]
fn nobody_is_armed_by_a_path_that_does_not_work() {
    for cut in [[true, true], [true, false], [false, true]] {
        let mut p = plain(setup());
        p.links[1].cut = cut;
        for side in 0..2 {
            load(&mut p, side, 1);
            p.nodes[side].post(1, WRITE, 0, 0x4000);
        }
        p.run_for(Duration::from_secs(20));
        assert_eq!(states(&p), [MigState::Rearm; 2], "{cut:?}");
        assert!(p.nodes.iter().all(|n| n.host.migrations == [MigrationNews::Unproven]));
        p.links[1].cut = [false; 2];
        p.run_for(Duration::from_secs(2));
        assert_eq!(states(&p), [MigState::Armed; 2], "{cut:?}");
        assert_eq!(p.nodes.each_ref().map(|n| n.host.statuses().len()), [1; 2]);
    }
}

/// A program whose device has one port loads the primary path as the alternate one.
#[test]
fn the_alternate_path_may_be_the_primary_one() {
    let mut p = plain(setup());
    for side in 0..2 {
        load(&mut p, side, 0);
    }
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    p.run_for(Duration::from_secs(10));
    assert_eq!(states(&p), [MigState::Armed; 2]);
    migrate(&mut p, 0).unwrap();
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Migrated; 2]);
    assert_eq!((causes(&p, 0), causes(&p, 1)), (vec![Cause::Software], vec![Cause::Peer]));
}

/// A path that dies while it is in reserve is noticed before it is needed, whether there is traffic or not.
#[test]
fn an_alternate_path_that_falls_silent_is_not_ready_any_more() {
    for busy in [false, true] {
        let mut p = armed(setup());
        p.run_for(Duration::from_secs(100));
        assert_eq!(states(&p), [MigState::Armed; 2]);
        p.links[1].cut = [true, false];
        for i in 0..if busy { 500 } else { 1 } {
            p.nodes[0].post(i, WRITE, 0, 0x1000);
            p.run_for(MS * 10);
        }
        p.run_for(Duration::from_secs(5));
        assert_eq!(states(&p), [MigState::Rearm; 2], "busy: {busy}");
        for node in &p.nodes {
            let news = &node.host.migrations;
            assert_eq!(news[..2], [MigrationNews::Armed, MigrationNews::AlternateLost]);
        }
        p.links[1].cut = [false; 2];
        p.run_for(Duration::from_secs(2));
        assert_eq!(states(&p), [MigState::Armed; 2]);
        assert!(causes(&p, 0).is_empty() && causes(&p, 1).is_empty());
    }
}

/// A peer that is stopped answers by no path, which says nothing of either.
#[test]
fn a_peer_that_is_silent_on_both_paths_stays_ready() {
    let mut p = armed(setup());
    p.links.iter_mut().for_each(|link| link.cut = [true; 2]);
    p.run_for(Duration::from_secs(60));
    p.links.iter_mut().for_each(|link| link.cut = [false; 2]);
    p.run_for(Duration::from_secs(2));
    assert_eq!(states(&p), [MigState::Armed; 2]);
    assert!(p.nodes.iter().all(|n| n.host.migrations == [MigrationNews::Armed]));
}

/// Another alternate path in place of the one that was shown to work has to show it, too.
#[test]
fn a_new_alternate_path_has_to_be_shown_to_work() {
    let mut p = Pair::new(Setup { paths: 3, ..setup() });
    for node in &mut p.nodes {
        node.host.apm = Some([0, 0]);
        node.qp.set_peer(PeerId(APM));
    }
    for side in 0..2 {
        load(&mut p, side, 1);
    }
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    p.links[2].cut = [true; 2];
    for node in &mut p.nodes {
        node.host.apm = Some([0, 2]);
        node.qp.set_alternate(Some(PeerId(APM + 2)), &mut node.host);
    }
    p.run_for(Duration::from_secs(1));
    assert_eq!(states(&p), [MigState::Rearm; 2]);
    p.links[2].cut = [false; 2];
    p.run_for(Duration::from_secs(2));
    assert_eq!(states(&p), [MigState::Armed; 2]);
}

#[test]
fn arming_survives_the_loss_of_packets() {
    for lost in 0..6 {
        let mut p = plain(setup());
        let mut n = 0;
        p.filter = Some(Box::new(move |_, _| {
            n += 1;
            n != lost + 1 && n != lost + 2
        }));
        for side in 0..2 {
            load(&mut p, side, 1);
        }
        p.run_for(MS * 200);
        assert_eq!(states(&p), [MigState::Armed; 2], "{lost}");
    }
}

#[test]
fn a_program_migrates_an_idle_connection_and_the_peer_follows() {
    let mut p = armed(setup());
    migrate(&mut p, 0).unwrap();
    let attr = p.nodes[0].qp.query();
    assert_eq!((attr.ah, attr.port_num, attr.timeout), (address(1), 1, 9));
    assert_eq!((attr.alt_ah, attr.path_mig_state), (address(1), MigState::Migrated));
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Migrated; 2]);
    assert_eq!((causes(&p, 0), causes(&p, 1)), (vec![Cause::Software], vec![Cause::Peer]));
    for side in 0..2 {
        assert_eq!(count(&p, side, QpEvent::PathMig), 1);
        assert_eq!(p.nodes[side].qp.migration().count, 1);
        assert_eq!(p.nodes[side].qp.counters().migrations, 1);
        assert!(p.nodes[side].qp.migration().last.is_some_and(|(_, at)| at <= p.now));
    }
    assert_eq!(p.next_event(), None, "nobody asks any more, as nothing is in reserve");
}

/// Where the source port tells the two paths apart, what comes by a third port may be an answer by the path
/// that was left. An end that took it for consent would be on one path for good, and its peer on the other.
#[test]
fn what_comes_by_a_port_of_neither_path_does_not_show_that_the_peer_has_followed() {
    for other_port in [false, true] {
        let mut p = armed(setup());
        let calm = Rc::new(Cell::new(false));
        let seen = calm.clone();
        p.filter = Some(Box::new(move |to, packet| {
            seen.set(seen.get() || to == 1 && !packet.headers.bth.mig_req);
            false
        }));
        migrate(&mut p, 0).unwrap();
        p.run_for(MS);
        load(&mut p, 0, 0);
        for _ in 0..2 {
            p.run_for(MS * 50);
            let psn = Psn::new(Setup::default().psn[0]);
            let bth = Bth { dest_qpn: QPN[0], psn, ..Bth::new(Opcode::RC_ACK) };
            let aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 0 });
            let packet = Packet { headers: Headers { aeth, ..Headers::new(bth) }, payload: &[] };
            let came = (PathId(1), CameBy { other_port, ..CameBy::PRIMARY });
            let node = &mut p.nodes[0];
            node.qp.handle_packet_by(p.now, &packet, came, None, &mut node.host);
        }
        p.run_for(Duration::from_secs(2));
        assert_eq!(calm.get(), !other_port);
    }
}

/// Exactly once, whatever is in flight and whichever end begins; and again and again.
#[test]
fn everything_outstanding_is_executed_once_through_many_migrations() {
    let mut p = armed(setup());
    p.nodes[0].write_memory(0, &pattern(0x4000, 3));
    p.nodes[1].write_memory(0x20000, &pattern(0x4000, 4));
    for round in 0..200u64 {
        for i in 0..8 {
            p.nodes[0].post(round * 100 + i, ADD, 0x8000 + 8 * i, 8);
        }
        p.nodes[0].post(round * 100 + 50, WRITE, 0, 0x4000);
        let read = SendOp::Read { va: 0x20000, rkey: ALL };
        p.nodes[0].post(round * 100 + 60, read, 0x30000, 0x4000);
        p.run_for(US * (round as u32 * 7 % 90));
        let by = (round % 3) as usize;
        for side in (0..2).filter(|side| by == 2 || by == *side) {
            migrate(&mut p, side).unwrap();
        }
        p.run_for(MS * 50);
        assert_eq!(states(&p), [MigState::Migrated; 2], "round {round}");
        assert_eq!(p.nodes[0].host.send_completions.len(), 10, "round {round}");
        assert!(p.nodes[0].host.send_completions.drain(..).all(|c| c.status == WcStatus::Success));
        assert_eq!(p.nodes[1].u64_at(0x100), (round + 1) * 8);
        let got: Vec<u64> = (0..8).map(|i| p.nodes[0].u64_at(0x8000 + 8 * i)).collect();
        assert_eq!(got, (round * 8..round * 8 + 8).collect::<Vec<_>>());
        assert_eq!(p.nodes[1].memory(0x10000, 0x4000), pattern(0x4000, 3));
        assert_eq!(p.nodes[0].memory(0x30000, 0x4000), pattern(0x4000, 4));
        for side in 0..2 {
            load(&mut p, side, (round % 2) as usize);
        }
        p.run_for(MS * 20);
        assert_eq!(states(&p), [MigState::Armed; 2], "round {round}");
        p.assert_settled();
    }
    assert_eq!(p.nodes[1].host.atomics, 1600);
}

#[test]
fn when_the_retries_are_used_up_an_armed_queue_pair_migrates() {
    let mut p = armed(setup());
    // The peer is another adapter: it does not answer an empty WRITE by a path that is not in use.
    p.filter = Some(Box::new(|_, packet| {
        let bth = &packet.headers.bth;
        bth.opcode != Opcode::RC_WRITE_ONLY || bth.mig_req
    }));
    for i in 0..4 {
        p.nodes[0].post(i, ADD, 8 * i, 8);
    }
    p.links[0].cut = [true, false]; // Requests arrive, answers do not.
    p.run_for(Duration::from_secs(2));
    assert_eq!((causes(&p, 0), causes(&p, 1)), (vec![Cause::Retries], vec![Cause::Peer]));
    assert_eq!(p.nodes[0].host.statuses(), [0, 1, 2, 3].map(|i| (i, WcStatus::Success)));
    assert_eq!((p.nodes[1].u64_at(0x100), p.nodes[1].host.atomics), (4, 4));
    // Retries have begun anew, and there is no second alternate path.
    p.links[1].cut = [true; 2];
    p.nodes[0].post(9, ADD, 0, 8);
    p.run_for(Duration::from_secs(2));
    assert_eq!(p.nodes[0].host.statuses()[4], (9, WcStatus::RetryExcErr));
    assert_eq!(count(&p, 0, QpEvent::PathMigError), 0, "it had migrated for good");
}

#[test]
fn if_the_alternate_path_is_dead_too_the_program_is_told_and_the_queue_pair_fails() {
    for known in [false, true] {
        let mut p = armed(setup());
        for link in &mut p.links {
            link.cut = [true; 2];
        }
        p.nodes[0].host.paths[1].alive = !known;
        p.nodes[0].post(1, ADD, 0, 8);
        p.run_for(Duration::from_secs(5));
        assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(count(&p, 0, QpEvent::PathMigError), 1);
        assert_eq!(causes(&p, 0).len(), usize::from(!known));
    }
}

#[test]
fn a_path_that_is_lost_here_is_left_at_once() {
    let mut p = armed(setup());
    p.nodes[0].post(1, WRITE, 0, 0x4000);
    p.links[0].cut = [true; 2];
    p.run_for(US * 100);
    p.nodes[0].host.paths[0].alive = false;
    let (now, node) = (p.now, &mut p.nodes[0]);
    node.qp.on_path_change(now, None, &mut node.host);
    p.run_for(MS);
    assert_eq!((causes(&p, 0), causes(&p, 1)), (vec![Cause::PathLost], vec![Cause::Peer]));
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_queue_pair_without_any_path_takes_the_first_that_is_back() {
    let mut p = armed(Setup { retry_cnt: 7, ..setup() });
    p.nodes[0].post(1, WRITE, 0, 0x4000);
    p.nodes[0].host.paths.iter_mut().for_each(|end| end.alive = false);
    let (now, node) = (p.now, &mut p.nodes[0]);
    node.qp.on_alternate_change(now, &mut node.host);
    assert_eq!(node.host.migrations.last(), Some(&MigrationNews::AlternateLost));
    node.qp.on_path_change(now, None, &mut node.host);
    p.run_for(Duration::from_secs(10));
    assert!(causes(&p, 0).is_empty() && p.nodes[0].host.statuses().is_empty());
    p.nodes[0].host.paths[1].alive = true;
    let (now, node) = (p.now, &mut p.nodes[0]);
    node.qp.on_alternate_change(now, &mut node.host);
    p.run_for(MS * 50);
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(causes(&p, 0), [Cause::PathLost]);
}

/// The connection manager may hear of the peer's migration before this end is ready for one.
#[test]
fn who_is_told_of_the_peers_migration_follows_even_from_rearm() {
    let mut p = plain(setup());
    let follow = |p: &mut Pair| {
        let node = &mut p.nodes[0];
        node.qp.follow_peer(&mut node.host)
    };
    assert!(!follow(&mut p), "nothing is loaded");
    load(&mut p, 0, 1);
    assert_eq!(states(&p), [MigState::Rearm, MigState::Migrated]);
    assert!(follow(&mut p));
    assert_eq!((states(&p)[0], causes(&p, 0)), (MigState::Migrated, vec![Cause::Peer]));
    assert!(!follow(&mut p), "it is there already");
}

/// The link is lost between the moments at which the two ends become ARMED.
#[test]
fn who_is_not_armed_yet_follows_a_peer_that_was() {
    let mut p = plain(Setup { retry_cnt: 7, ..setup() });
    // What the second end asks by the alternate path is lost.
    p.filter = Some(Box::new(|to, packet| to == 1 || !packet.headers.bth.opcode.is_request()));
    load(&mut p, 1, 1);
    load(&mut p, 0, 1);
    p.run_for(MS * 15);
    assert_eq!(states(&p), [MigState::Armed, MigState::Rearm]);
    p.filter = None;
    p.links[0].cut = [true; 2];
    p.nodes[0].post(1, WRITE, 0, 0x4000);
    p.nodes[0].host.paths[0].alive = false;
    let (now, node) = (p.now, &mut p.nodes[0]);
    node.qp.on_path_change(now, None, &mut node.host);
    p.run_for(MS * 100);
    assert_eq!((causes(&p, 0), causes(&p, 1)), (vec![Cause::PathLost], vec![Cause::Peer]));
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
}

/// One end has migrated, and its program has loaded the next path, before the other end is ARMED. What that
/// end asks by its alternate path is no sign that it has followed.
#[test]
fn who_asks_by_the_alternate_path_has_not_followed() {
    for lost in 0..12 {
        let mut p = plain(Setup { retry_cnt: 7, ..setup() });
        let mut n = 0;
        // What the second end asks is answered too late.
        p.filter = Some(Box::new(move |to, packet| {
            n += u32::from(to == 1);
            to == 0 || n > lost || packet.headers.bth.opcode.is_request()
        }));
        load(&mut p, 1, 1);
        load(&mut p, 0, 1);
        p.run_for(MS * 5);
        if states(&p)[0] == MigState::Armed {
            p.links[0].cut = [true; 2];
            migrate(&mut p, 0).unwrap();
            load(&mut p, 0, 0);
        }
        p.nodes[0].post(1, WRITE, 0, 0x4000);
        p.run_for(MS * 200);
        assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)], "{lost}");
        assert_eq!(p.nodes[1].qp.query().path_mig_state, MigState::Migrated, "{lost}");
    }
}

/// Even if a program asks for REARM before the peer has heard of the migration.
#[test]
fn a_peer_that_missed_the_migration_still_learns_of_it() {
    let mut p = armed(setup());
    p.links[1].cut = [false, true];
    migrate(&mut p, 0).unwrap();
    p.run_for(MS * 5);
    load(&mut p, 0, 0);
    p.run_for(MS * 5);
    assert_eq!(states(&p), [MigState::Rearm, MigState::Armed]);
    p.links[1].cut = [false; 2];
    p.run_for(MS * 100);
    assert_eq!(states(&p), [MigState::Rearm, MigState::Migrated]);
    load(&mut p, 1, 0);
    p.run_for(MS * 100);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    p.nodes[1].post(1, WRITE, 0, 0x4000);
    p.run_for(MS * 10);
    assert_eq!(p.nodes[1].host.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.nodes.each_ref().map(|n| n.host.apm), [Some([1, 0]); 2]);
}

/// A queue pair with a multi-path peer has a path set, which decides about paths.
#[test]
fn a_queue_pair_with_a_path_set_does_not_leave_it() {
    let mut p = Pair::new(Setup { multipath: true, ..setup() });
    for side in 0..2 {
        let mut attr = QpAttr::new(QpState::Rts);
        attr.alt_ah = address(1);
        (attr.alt_port_num, attr.path_mig_state) = (1, MigState::Rearm);
        modify(&mut p, side, &attr, M::ALT_PATH | M::PATH_MIG_STATE).unwrap();
        let node = &mut p.nodes[side];
        node.qp.set_alternate(Some(PeerId(APM + 1)), &mut node.host);
    }
    for side in 0..2 {
        p.nodes[side].post(1, WRITE, 0, 0x4000);
    }
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    let before = p.nodes[0].qp.query().ah;
    migrate(&mut p, 0).unwrap();
    p.nodes[0].post(2, WRITE, 0, 0x4000);
    p.run_for(MS);
    assert_eq!((p.nodes[0].qp.query().ah, count(&p, 0, QpEvent::PathMig)), (before, 1));
    assert!(causes(&p, 0).is_empty() && causes(&p, 1).is_empty());
    let (from, to, cause) = (PathId(0), PathId(1), Cause::Software);
    assert!(p.nodes[0].host.migrations.contains(&MigrationNews::Moved { from, to, cause }));
    assert_eq!(p.nodes[0].host.active, Some(1));
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
}

/// The fence: nothing that is late on the path that was left touches memory.
#[test]
fn what_comes_by_a_path_that_is_not_in_use_is_dropped() {
    let mut p = armed(setup());
    let delay = std::mem::replace(&mut p.links[0].delay, MS * 30);
    p.nodes[0].write_memory(0, &[1; 8]);
    p.nodes[0].post(1, WRITE, 0, 8);
    p.run_for(MS);
    migrate(&mut p, 0).unwrap();
    p.run_for(MS);
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    p.links[0].delay = delay;
    for side in 0..2 {
        load(&mut p, side, 0);
    }
    p.run_for(MS);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    p.nodes[1].write_memory(0x10000, &[2; 8]);
    p.run_for(MS * 100);
    assert_eq!(p.nodes[1].memory(0x10000, 8), [2; 8]);
    assert!(p.nodes[1].qp.counters().dropped_inactive_path > 0);
    assert_eq!(states(&p), [MigState::Armed; 2]);
}

/// The requester waits after an RNR NAK, and has migrated when it goes on.
#[test]
fn migrating_does_not_end_the_wait_for_a_receive() {
    let mut p = armed(Setup { min_rnr_timer: 20, rnr_retry: 3, ..setup() });
    p.nodes[0].post(1, SendOp::Send, 0, 100);
    p.run_for(MS);
    migrate(&mut p, 0).unwrap();
    p.nodes[1].recv(7, 0x500, 100);
    p.run_for(MS * 3);
    assert!(p.nodes[0].host.statuses().is_empty());
    assert_eq!(states(&p), [MigState::Migrated; 2]);
    p.run_for(MS * 50);
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(p.nodes[1].host.recv_completions.len(), 1);
}

#[test]
fn a_queue_pair_that_is_drained_migrates_and_stays_so() {
    let mut p = armed(setup());
    p.nodes[0].post(1, WRITE, 0, 0x4000);
    p.run_for(US * 30);
    modify(&mut p, 0, &QpAttr::new(QpState::Sqd), M::STATE).unwrap();
    modify(&mut p, 0, &QpAttr::new(QpState::Sqd), M::PATH_MIG_STATE).unwrap();
    p.nodes[0].post(2, WRITE, 0, 0x4000);
    p.run_for(MS * 10);
    assert_eq!(states(&p), [MigState::Migrated; 2]);
    assert_eq!(p.nodes[0].host.statuses(), [(1, WcStatus::Success)]);
    modify(&mut p, 0, &QpAttr::new(QpState::Rts), M::STATE).unwrap();
    p.run_for(MS);
    assert_eq!(p.nodes[0].host.statuses().len(), 2);
}

#[test]
fn both_sides_of_xrc_migrate() {
    for side in 0..2 {
        let mut p = armed(Setup { qp_type: QpType::XrcSend, ..setup() });
        migrate(&mut p, side).unwrap();
        p.run_for(MS * 50);
        assert_eq!(states(&p), [MigState::Migrated; 2]);
        assert_eq!(causes(&p, 1 - side), [Cause::Peer]);
    }
}

/// Nothing of UC may be repeated, so its states follow its messages.
#[test]
fn uc_is_armed_and_migrates_by_its_messages() {
    let mut p = plain(Setup { qp_type: QpType::Uc, ..setup() });
    let talk = |p: &mut Pair| {
        for side in 0..2 {
            p.nodes[side].recv(1, 0x500, 100);
        }
        for side in 0..2 {
            p.nodes[side].post(2, SendOp::Send, 0, 100);
        }
        p.run_for(MS);
    };
    for side in 0..2 {
        load(&mut p, side, 1);
    }
    p.run_for(MS * 100);
    assert_eq!(states(&p), [MigState::Rearm; 2]);
    talk(&mut p);
    assert_eq!(states(&p), [MigState::Armed; 2]);
    migrate(&mut p, 0).unwrap();
    talk(&mut p);
    assert_eq!(states(&p), [MigState::Migrated; 2]);
    // What the peer had sent by the path that was left is lost, as UC may.
    talk(&mut p);
    assert_eq!(p.nodes.each_ref().map(|n| n.host.recv_completions.len()), [2, 3]);
}

#[test]
fn what_is_known_of_migration_is_frozen_too() {
    let mut p = armed(setup());
    p.links[1].cut = [true; 2];
    migrate(&mut p, 0).unwrap();
    p.run_for(MS);
    let node = &mut p.nodes[0];
    let fresh = QueuePair::new(*node.qp.config());
    let bytes = std::mem::replace(&mut node.qp, fresh).freeze(p.now, &mut node.host);
    node.qp = QueuePair::thaw(&bytes, crate::host::PD, p.now, &mut node.host).unwrap();
    node.qp.set_peer(PeerId(APM + 1));
    let status = node.qp.migration();
    assert_eq!((status.count, status.last.map(|(cause, _)| cause)), (1, Some(Cause::Software)));
    node.qp.on_paths_unknown(p.now, |_| true, &mut node.host);
    p.links[1].cut = [false; 2];
    p.run_for(MS * 50);
    assert_eq!(states(&p), [MigState::Migrated; 2]);
    assert_eq!(causes(&p, 1), [Cause::Peer]);
}
