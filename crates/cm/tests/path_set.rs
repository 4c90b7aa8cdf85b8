//! Queue pairs with a multi-path peer move between paths by themselves.

mod common;

use common::migrating::*;
use polypath_cm::ClientId;

/// The path set of a multi-path peer moves the queue pair: there must not be two who do.
#[test]
fn nothing_is_agreed_on_for_a_queue_pair_that_has_a_path_set() {
    let mut two = Two::connected(&[0, 1]);
    two.settle();
    two.take_orders();
    two.w.sent_names();
    let qps = two.qps();
    let clients = [two.a, two.b];
    for (host, client) in clients.into_iter().enumerate() {
        let now = two.w.now;
        two.w.hosts[host].cm.has_path_set(now, ClientId(1), qps[host]);
        two.w.migrated(client, qps[host], Some((on(1, host), on(1, 1 - host))));
    }
    two.w.change_addresses(0, &addresses(0, &[0, 1, 2]));
    two.w.change_addresses(1, &addresses(1, &[0, 1, 2]));
    two.settle();
    assert!(two.w.sent_names().is_empty());
    assert!(two.w.orders(0).is_empty() && two.w.orders(1).is_empty());
}
