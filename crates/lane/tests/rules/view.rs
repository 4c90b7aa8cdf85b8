//! Automatic path migration with a multi-path peer: a view of the path set.

use core::net::IpAddr;
use core::time::Duration;

use polypath_paths::PathOptions;
use polypath_transport::{
    MigState, MigrationCause, QpAttr, QpAttrMask as M, QpEvent, QpState, QpType, WcStatus,
};

use crate::host::{Host, on, rearmed, settle};

const QP: u16 = 5;
const MS: Duration = Duration::from_millis(1);

/// Two hosts with two links and a queue pair each, which know of each other and of both paths.
fn pair() -> [Host; 2] {
    let mut hosts = [1, 2].map(|number| {
        let mut host = Host::new(number);
        host.set_links(&[true; 2]);
        host.add(QP, QpType::Rc, true);
        host
    });
    pass(&mut hosts, MS * 500);
    assert!(hosts.iter().all(|host| host.lane.qps().get(QP).unwrap().qp.is_multipath()));
    hosts
}

/// Lets time pass.
fn pass(hosts: &mut [Host; 2], time: Duration) {
    let until = hosts[0].now + time;
    while hosts[0].now < until {
        hosts.iter_mut().for_each(|host| host.pass(MS * 5));
        settle(hosts);
    }
}

fn links(hosts: &mut [Host; 2], host: usize, up: [bool; 2]) {
    hosts[host].set_links(&up);
    settle(hosts);
}

/// A program loads the path by network 1, and asks for REARM.
fn load(host: &mut Host) {
    let (local, remote) = (on(1, host.number), on(1, host.peer()));
    host.with(QP, |visit| {
        visit.set_alternate(local, remote, PathOptions::default()).unwrap();
        visit.qp.modify(&rearmed(), M::ALT_PATH | M::PATH_MIG_STATE, &mut visit.host).unwrap();
    });
    host.run();
}

fn ask(host: &mut Host, state: MigState) -> bool {
    let attr = QpAttr { path_mig_state: state, ..QpAttr::new(QpState::Rts) };
    host.with(QP, |visit| visit.qp.modify(&attr, M::PATH_MIG_STATE, &mut visit.host).is_ok())
}

/// The state, how often it has migrated, and why it did so last.
fn seen(host: &Host) -> (MigState, u64, Option<MigrationCause>) {
    let status = host.lane.qps().get(QP).unwrap().qp.migration();
    (status.state, status.count, status.last.map(|(cause, _)| cause))
}

/// The local addresses of the active path and of the other one.
fn two(host: &Host) -> (Option<IpAddr>, Option<IpAddr>) {
    let paths = host.lane.paths();
    let two = paths.two_paths(host.qpn(QP));
    let local = |path| paths.path(path).map(|address| address.local);
    (two.and_then(|two| local(two.active)), two.and_then(|two| local(two.other?)))
}

#[test]
fn the_states_follow_the_path_set_at_both_ends() {
    let mut hosts = pair();
    hosts.iter_mut().for_each(load);
    for host in &hosts {
        assert_eq!(seen(host), (MigState::Armed, 0, None));
        assert_eq!(two(host), (Some(on(0, host.number)), Some(on(1, host.number))));
    }
    assert!(!ask(&mut hosts[0], MigState::Rearm), "as with a plain peer");
    links(&mut hosts, 0, [false, true]);
    pass(&mut hosts, MS * 20);
    for (host, cause) in hosts.iter_mut().zip([MigrationCause::PathLost, MigrationCause::Peer]) {
        assert_eq!(seen(host), (MigState::Migrated, 1, Some(cause)));
        assert_eq!(two(host), (Some(on(1, host.number)), None));
        assert_eq!(host.io.raised, [QpEvent::PathMig]);
        assert!(ask(host, MigState::Rearm));
        assert_eq!(seen(host).0, MigState::Rearm, "there is no other path");
        assert!(!ask(host, MigState::Migrated), "as with a plain peer");
    }
    links(&mut hosts, 0, [true; 2]);
    pass(&mut hosts, MS * 1000);
    for host in &mut hosts {
        assert_eq!(seen(host).0, MigState::Armed);
        assert_eq!(two(host), (Some(on(1, host.number)), Some(on(0, host.number))));
        assert_eq!(host.io.raised, [QpEvent::PathMig], "a path that is back migrates nothing");
    }
}

#[test]
fn a_reserve_that_is_lost_leaves_the_queue_pair_in_rearm_until_it_is_back() {
    let mut hosts = pair();
    hosts.iter_mut().for_each(load);
    links(&mut hosts, 1, [true, false]);
    pass(&mut hosts, MS * 20);
    for host in &hosts {
        assert_eq!(seen(host), (MigState::Rearm, 0, None));
        assert!(host.io.raised.is_empty());
    }
    links(&mut hosts, 1, [true; 2]);
    pass(&mut hosts, MS * 1000);
    assert!(hosts.iter().all(|host| seen(host) == (MigState::Armed, 0, None)));
}

#[test]
fn a_program_moves_the_traffic_of_its_queue_pair_alone() {
    let mut hosts = pair();
    hosts.iter_mut().for_each(load);
    hosts[0].add(QP + 1, QpType::Rc, true);
    hosts[1].add(QP + 1, QpType::Rc, true);
    pass(&mut hosts, MS * 100);
    for round in 1..=3 {
        let net = round as u8 % 2;
        assert!(ask(&mut hosts[0], MigState::Migrated));
        settle(&mut hosts);
        assert_eq!(seen(&hosts[0]), (MigState::Migrated, round, Some(MigrationCause::Software)));
        assert_eq!(two(&hosts[0]), (Some(on(net, 1)), Some(on(1 - net, 1))));
        assert_eq!(seen(&hosts[1]), (MigState::Armed, 0, None), "the peer stays where it is");
        for (qp, net) in [(QP, net), (QP + 1, 0)] {
            hosts[0].post_write(qp, 100);
            hosts[0].run();
            let data = hosts[0].io.out.iter().filter(|sent| !sent.control);
            assert!(data.clone().count() > 0 && data.clone().all(|s| s.ends.0 == on(net, 1)));
            settle(&mut hosts);
        }
        assert!(ask(&mut hosts[0], MigState::Rearm));
        assert_eq!(seen(&hosts[0]).0, MigState::Armed, "both paths live");
    }
    assert_eq!(hosts[0].io.raised, [QpEvent::PathMig; 3]);
    // It is on network 1, and that path dies: it goes back to its peer's main path.
    links(&mut hosts, 0, [true, false]);
    assert_eq!(seen(&hosts[0]), (MigState::Migrated, 4, Some(MigrationCause::PathLost)));
    assert_eq!(two(&hosts[0]), (Some(on(0, 1)), None));
    assert!(hosts[0].io.completions.iter().all(|(_, done)| done.status == WcStatus::Success));
}

#[test]
fn who_is_kept_armed_asks_for_nothing() {
    let mut hosts = pair();
    for host in &mut hosts {
        load(host);
        host.with(QP, |visit| visit.qp.keep_armed(&mut visit.host));
    }
    for (round, up) in [[false, true], [true, false], [false, true]].into_iter().enumerate() {
        links(&mut hosts, 1, up);
        pass(&mut hosts, MS * 20);
        let count = round as u64 + 1;
        assert!(hosts.iter().all(|host| (seen(host).0, seen(host).1) == (MigState::Rearm, count)));
        links(&mut hosts, 1, [true; 2]);
        pass(&mut hosts, MS * 1000);
        assert!(hosts.iter().all(|host| (seen(host).0, seen(host).1) == (MigState::Armed, count)));
    }
}

#[test]
fn a_queue_pair_that_asked_before_the_peer_agreed_follows_the_set_afterwards() {
    let mut hosts = [1, 2].map(Host::new);
    for host in &mut hosts {
        host.set_links(&[true; 2]);
        host.add(QP, QpType::Rc, true);
        load(host);
        assert_eq!(seen(host).0, MigState::Rearm);
    }
    pass(&mut hosts, MS * 500);
    assert!(hosts.iter().all(|host| seen(host) == (MigState::Armed, 0, None)));
    links(&mut hosts, 0, [false, true]);
    pass(&mut hosts, MS * 20);
    assert!(hosts.iter().all(|host| host.io.raised == [QpEvent::PathMig]));
}

#[test]
fn a_queue_pair_that_fails_without_any_path_says_that_migration_has_failed() {
    for armed in [true, false] {
        let mut hosts = pair();
        if armed {
            hosts.iter_mut().for_each(load);
        }
        hosts[0].set_links(&[false; 2]);
        hosts[0].post_write(QP, 100);
        settle(&mut hosts);
        assert!(!hosts[0].io.raised.contains(&QpEvent::PathMigError), "it may come back");
        pass(&mut hosts, Duration::from_secs(40));
        assert_eq!(hosts[0].state(QP), QpState::Err);
        assert_eq!(hosts[0].io.raised.contains(&QpEvent::PathMigError), armed);
    }
}
