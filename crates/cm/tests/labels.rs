//! Alternate paths between the addresses in use, by another source port: hosts with one interface each.

mod common;

use core::time::Duration;

use common::migrating::*;
use polypath_cm::{AlternatePath, PathOrder, PathTaken};
use polypath_wire::cm::{CmMad, CmMessage};
use polypath_wire::flow_label::source_port;

/// The latest path that each host was told to load.
fn loaded(two: &mut Two) -> [AlternatePath; 2] {
    [0, 1].map(|host| *loads(&two.w.orders(host)).last().unwrap())
}

/// The flow label in use, by the REQ.
fn label_in_use(two: &Two) -> u32 {
    let req = two.w.sent.iter().find_map(|m| match CmMad::parse(&m.mad).unwrap().message {
        CmMessage::Req(req) => Some(req.primary.flow_label),
        _ => None,
    });
    req.unwrap()
}

fn taken(path: &AlternatePath) -> Option<PathTaken> {
    let (local, remote) = path.pair();
    Some(PathTaken { local, remote, flow_label: Some(path.flow_label) })
}

fn migrations(two: &Two) -> [u32; 2] {
    [0, 1].map(|host| {
        two.w.hosts[host].cm.describe().iter().find_map(|id| id.migration).unwrap().migrations
    })
}

#[test]
fn hosts_with_one_interface_agree_on_another_source_port() {
    let mut two = Two::connected(&[0]);
    two.settle();
    let in_use = label_in_use(&two);
    let [a, b] = loaded(&mut two);
    assert_eq!((a.pair(), b.pair()), ((on(0, 0), on(0, 1)), (on(0, 1), on(0, 0))));
    assert_eq!(a.flow_label, b.flow_label);
    let ports = [in_use, a.flow_label].map(|label| source_port(label).unwrap());
    assert_ne!(ports[0], ports[1]);
    assert_eq!(two.w.sent_names(), ["REQ", "REP", "RTU", "LAP", "APR"]);
}

#[test]
fn each_migration_is_followed_by_another_label() {
    let mut two = Two::connected(&[0]);
    two.settle();
    let (qps, mut labels) = (two.qps(), vec![label_in_use(&two)]);
    for turn in 1..=20 {
        let [a, b] = loaded(&mut two);
        assert_ne!(source_port(a.flow_label), labels.last().copied().and_then(source_port));
        labels.push(a.flow_label);
        two.w.migrated_to(two.a, qps[0], taken(&a));
        two.w.migrated_to(two.b, qps[1], taken(&b));
        // To say it again changes nothing.
        two.w.migrated_to(two.b, qps[1], taken(&b));
        two.settle();
        assert_eq!(migrations(&two), [turn; 2]);
    }
}

/// The peer's host is told by the next message, if no packet did it.
#[test]
fn an_end_follows_to_the_other_port() {
    for first in [0, 1] {
        let mut two = Two::connected(&[0]);
        two.settle();
        let paths = loaded(&mut two);
        let (clients, qps) = ([two.a, two.b], two.qps());
        two.w.migrated_to(clients[first], qps[first], taken(&paths[first]));
        two.settle();
        let other = 1 - first;
        let orders = two.w.orders(other);
        let Some(PathOrder::Migrate { to, flow_label, .. }) = orders.first() else {
            panic!("{orders:?}");
        };
        assert_eq!((*to, *flow_label), (paths[other].pair(), paths[other].flow_label));
        two.w.migrated_to(clients[other], qps[other], taken(&paths[other]));
        two.settle();
        assert_eq!(migrations(&two), [1, 1]);
        let [a, b] = loaded(&mut two);
        assert_eq!(a.flow_label, b.flow_label);
        assert_ne!(source_port(a.flow_label), source_port(paths[0].flow_label));
    }
}

#[test]
fn another_interface_is_preferred_as_soon_as_there_is_one() {
    let mut two = Two::connected(&[0]);
    two.settle();
    for host in [0, 1] {
        two.w.change_addresses(host, &addresses(host, &[0, 1]));
    }
    two.settle();
    assert_eq!(two.alternate(), Some((on(1, 0), on(1, 1))));
    // Without it, the port is what is left.
    for host in [0, 1] {
        two.w.change_addresses(host, &addresses(host, &[0]));
    }
    two.settle();
    assert_eq!(two.alternate(), Some((on(0, 0), on(0, 1))));
}

#[test]
fn a_label_that_leads_nowhere_is_followed_by_others_at_growing_pauses() {
    let mut two = Two::connected(&[0]);
    let mut tried = Vec::new();
    for _ in 0..300 {
        two.w.run_for(Duration::from_secs(1));
        for order in two.w.orders(0) {
            let PathOrder::LoadAlternate { client, qp_num, alternate } = order else { continue };
            tried.push(source_port(alternate.flow_label));
            two.w.hosts[0].cm.alternate_failed(two.w.now, client, qp_num);
        }
    }
    assert!((8..=15).contains(&tried.len()), "{}", tried.len());
    tried.dedup();
    assert!(tried.len() >= 8, "always another one");
}

#[test]
fn a_peer_that_refuses_is_asked_once() {
    let mut two = Two::connected(&[0]);
    // It knows of no addresses that a path may use.
    two.w.hosts[1].env.multi_path = false;
    two.w.run_for(Duration::from_secs(600));
    let laps = two.w.sent_names().iter().filter(|name| **name == "LAP").count();
    assert_eq!(laps, 1);
    assert!(two.w.orders(0).is_empty());
}

/// It stays loaded and is asked on. If a port took its place, it would stay for good.
#[test]
fn another_interface_that_does_not_answer_is_not_given_up_for_a_port() {
    let mut two = Two::connected(&[0, 1]);
    let mut tried = 0;
    for _ in 0..100 {
        two.w.run_for(Duration::from_secs(1));
        for order in two.w.orders(0) {
            let PathOrder::LoadAlternate { client, qp_num, alternate } = order else { continue };
            assert_ne!(alternate.pair(), (on(0, 0), on(0, 1)));
            two.w.hosts[0].cm.alternate_failed(two.w.now, client, qp_num);
            tried += 1;
        }
    }
    assert!(tried > 0);
}
