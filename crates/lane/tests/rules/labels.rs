//! Automatic path migration between paths of the same addresses, which differ by the source port.

use core::time::Duration;

use polypath_paths::PathOptions;
use polypath_transport::{
    MigState, MigrationCause, QpAttr, QpAttrMask as M, QpEvent, QpState, QpType, WcStatus,
};

use crate::host::{Host, ip, rearmed, settle};

const QP: u16 = 5;
const MS: Duration = Duration::from_millis(1);
/// Flow labels, with the source ports that they choose.
const A: (u32, u16) = (5, 0xc005);
const B: (u32, u16) = (9, 0xc009);

/// Two hosts with one link and a queue pair each, of which the paths in use and in reserve have these labels.
fn pair(labels: [[u32; 2]; 2]) -> [Host; 2] {
    let mut hosts = [1, 2].map(|number| {
        let mut host = Host::new(number);
        host.add(QP, QpType::Rc, false);
        host
    });
    for (host, [primary, alternate]) in hosts.iter_mut().zip(labels) {
        let (local, peer) = (ip(host.number), ip(host.peer()));
        let qpn = u32::from(host.peer()) << 16 | u32::from(QP);
        let label = |flow_label| PathOptions { flow_label, ..PathOptions::default() };
        host.with(QP, |visit| {
            visit.attach(qpn, local, peer, label(primary)).unwrap();
            visit.set_alternate(local, peer, label(alternate)).unwrap();
            visit.qp.modify(&rearmed(), M::ALT_PATH | M::PATH_MIG_STATE, &mut visit.host).unwrap();
        });
    }
    hosts
}

fn pass(hosts: &mut [Host; 2], time: Duration) {
    let until = hosts[0].now + time;
    while hosts[0].now < until {
        hosts.iter_mut().for_each(|host| host.pass(MS));
        settle(hosts);
    }
}

fn states(hosts: &[Host; 2]) -> [(MigState, u64, Option<MigrationCause>); 2] {
    [0, 1].map(|host| {
        let status = hosts[host].lane.qps().get(QP).unwrap().qp.migration();
        (status.state, status.count, status.last.map(|(cause, _)| cause))
    })
}

/// The source port of the path in use.
fn port(host: &Host) -> u16 {
    let paths = host.lane.paths();
    let [primary, _] = paths.both_paths(host.qpn(QP));
    paths.path(primary.unwrap()).unwrap().source_port
}

fn completed(host: &Host, count: usize) {
    assert_eq!(host.io.completions.len(), count);
    assert!(host.io.completions.iter().all(|(_, done)| done.status == WcStatus::Success));
}

#[test]
fn a_silent_port_is_left_for_the_one_in_reserve_by_both_ends() {
    let mut hosts = pair([[A.0, B.0]; 2]);
    pass(&mut hosts, MS * 500);
    assert_eq!(states(&hosts), [(MigState::Armed, 0, None); 2]);
    assert_eq!([port(&hosts[0]), port(&hosts[1])], [A.1; 2]);
    for host in 0..2 {
        hosts[host].post_write(QP, 3000);
        pass(&mut hosts, MS);
    }
    completed(&hosts[0], 1);
    // What both ends send from the port in use is lost.
    hosts.iter_mut().for_each(|host| host.io.dead.push(A.1));
    hosts[0].post_write(QP, 3000);
    pass(&mut hosts, MS * 150);
    completed(&hosts[0], 2);
    let [first, second] = states(&hosts);
    assert_eq!(first, (MigState::Migrated, 1, Some(MigrationCause::Silence)));
    assert_eq!(second, (MigState::Migrated, 1, Some(MigrationCause::Peer)));
    for host in &hosts {
        assert_eq!((port(host), &host.io.raised[..]), (B.1, &[QpEvent::PathMig][..]));
    }
}

#[test]
fn a_port_that_leads_nowhere_is_not_shown_to_work_and_harms_nothing() {
    let mut hosts = pair([[A.0, B.0]; 2]);
    hosts[0].io.dead.push(B.1);
    for n in 1..=50 {
        hosts[0].post_write(QP, 3000);
        pass(&mut hosts, MS * 20);
        completed(&hosts[0], n);
    }
    assert_eq!(states(&hosts), [(MigState::Rearm, 0, None); 2]);
}

/// The ends have other labels than they expect of each other: what comes by the alternate path is no less
/// data for that. Requests of no bytes look like questions.
#[test]
fn ends_that_take_each_others_paths_for_the_other_one_go_on() {
    for len in [0, 1, 3000] {
        let mut hosts = pair([[A.0, B.0], [B.0, A.0]]);
        for n in 1..=20 {
            hosts[0].post_write(QP, len);
            hosts[1].post_write(QP, len);
            pass(&mut hosts, MS * 300);
            (0..2).for_each(|host| completed(&hosts[host], n));
        }
    }
}

/// A program of each end asks for migration, from one port to the other and back.
#[test]
fn programs_migrate_from_port_to_port() {
    let mut hosts = pair([[A.0, B.0]; 2]);
    pass(&mut hosts, MS * 500);
    let attr = QpAttr { path_mig_state: MigState::Migrated, ..QpAttr::new(QpState::Rts) };
    hosts[1].with(QP, |visit| {
        visit.qp.modify(&attr, M::PATH_MIG_STATE, &mut visit.host).unwrap();
    });
    pass(&mut hosts, MS * 100);
    let [first, second] = states(&hosts);
    assert_eq!(second, (MigState::Migrated, 1, Some(MigrationCause::Software)));
    assert_eq!(first, (MigState::Migrated, 1, Some(MigrationCause::Peer)));
    assert_eq!([port(&hosts[0]), port(&hosts[1])], [B.1; 2]);
}
