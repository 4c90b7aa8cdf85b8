//! Connections that migrate are spread over the ports of the host that began them, if it wants that.

mod common;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use common::migrating::*;
use common::pairs::{PORT, any, establish, server};
use common::{PS_TCP, v4};
use polypath_cm::PathOrder;

const INTERVAL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(50);

/// Two hosts, and the addresses that the first one's queue pairs use.
struct Ports {
    two: Two,
    at: BTreeMap<u32, IpAddr>,
}

impl Ports {
    /// Two hosts on these links; each may balance what it begins.
    fn new(links: &[u8], balances: [bool; 2]) -> Self {
        let mut two = Two::new(links, [true; 2]);
        for (host, balances) in two.w.hosts.iter_mut().zip(balances) {
            host.env.balances = balances.then_some(INTERVAL);
        }
        Self { two, at: BTreeMap::new() }
    }

    /// Connects so many times, always by link 0.
    fn connect(&mut self, count: usize) {
        let two = &mut self.two;
        for _ in 0..count {
            establish(&mut two.w, two.a, two.b, server());
        }
        for id in two.w.hosts[0].cm.describe() {
            self.at.entry(id.qp_num).or_insert_with(|| on(0, 0));
        }
    }

    /// A queue pair of the first host migrates.
    fn migrate(&mut self, qp_num: u32, to: (IpAddr, IpAddr)) {
        self.at.insert(qp_num, to.0);
        self.two.w.migrated(self.two.a, qp_num, Some(to));
    }

    /// Lets time pass, in which hosts whose queue pairs are all armed do what the connection managers
    /// want. Returns how many queue pairs of the first host were told to leave their path.
    fn pass(&mut self, time: Duration) -> usize {
        let mut left = 0;
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.two.w.run_for(STEP);
            for order in self.two.w.orders(0) {
                let PathOrder::Leave { qp_num, to, .. } = order else { continue };
                left += 1;
                self.migrate(qp_num, to);
            }
            for order in self.two.w.orders(1) {
                let PathOrder::Migrate { qp_num, to, .. } = order else { continue };
                self.two.w.migrated(self.two.b, qp_num, Some(to));
            }
        }
        left
    }

    /// How many connections the first host has on each link that it uses, the most first.
    fn spread(&self) -> Vec<usize> {
        let mut uses = BTreeMap::new();
        for local in self.at.values() {
            *uses.entry(local).or_insert(0) += 1;
        }
        let mut uses: Vec<usize> = uses.into_values().collect();
        uses.sort_unstable_by_key(|count| core::cmp::Reverse(*count));
        uses
    }
}

#[test]
fn connections_that_begin_by_one_port_end_up_on_all() {
    for (links, count, even) in [
        (&[0, 1][..], 6, vec![3, 3]),
        (&[0, 1], 7, vec![4, 3]),
        (&[0, 1, 2], 6, vec![2, 2, 2]),
        (&[0, 1, 2, 3], 8, vec![2, 2, 2, 2]),
    ] {
        let mut ports = Ports::new(links, [true, false]);
        ports.connect(count);
        assert_eq!(ports.spread(), [count]);
        let left = ports.pass(SECOND * 3);
        assert_eq!(ports.spread(), even, "{links:?}");
        assert_eq!(ports.two.w.hosts[0].cm.counters().paths_balanced, left as u64);
        assert_eq!(ports.pass(INTERVAL * 5), 0, "what is even stays as it is");
    }
}

#[test]
fn without_the_wish_they_stay() {
    let mut ports = Ports::new(&[0, 1], [false; 2]);
    ports.connect(4);
    assert_eq!(ports.pass(INTERVAL * 3), 0);
    assert_eq!(ports.spread(), [4]);
}

/// A connection that is alone, or whose like is on the other port, gains nothing by a change.
#[test]
fn one_and_two_do_not_change_places() {
    let mut ports = Ports::new(&[0, 1], [true, false]);
    ports.connect(1);
    assert_eq!(ports.pass(INTERVAL * 3), 0);
    ports.connect(1);
    assert_eq!(ports.pass(INTERVAL * 3), 1);
    assert_eq!(ports.pass(INTERVAL * 10), 0);
    assert_eq!(ports.spread(), [1, 1]);
}

#[test]
fn a_port_that_came_back_is_used_again_after_an_interval_at_most() {
    let mut ports = Ports::new(&[0, 1], [true, false]);
    ports.connect(4);
    ports.pass(SECOND * 3);
    // Link 1 is lost: its queue pairs migrate by themselves.
    let lost: Vec<u32> =
        ports.at.iter().filter(|(_, local)| **local == on(1, 0)).map(|(qp, _)| *qp).collect();
    assert_eq!(lost.len(), 2);
    ports.two.w.change_addresses(0, &addresses(0, &[0]));
    for qp in lost {
        ports.migrate(qp, (on(0, 0), on(0, 1)));
    }
    assert_eq!(ports.pass(INTERVAL * 2), 0);
    assert_eq!(ports.spread(), [4]);
    ports.two.w.change_addresses(0, &addresses(0, &[0, 1]));
    assert_eq!(ports.pass(INTERVAL + SECOND), 2);
    assert_eq!(ports.spread(), [2, 2]);
}

/// Connections are moved once in an interval, however they come and go.
#[test]
fn nothing_is_moved_twice_in_an_interval() {
    let mut ports = Ports::new(&[0, 1], [true, false]);
    ports.connect(4);
    assert_eq!(ports.pass(SECOND * 2), 2);
    ports.connect(4);
    assert_eq!(ports.pass(INTERVAL - SECOND * 2), 0);
    assert_eq!(ports.pass(SECOND * 2), 2);
    assert_eq!(ports.spread(), [4, 4]);
}

/// The end that did not begin a connection leaves it where it is: else two ends with different
/// connections besides would move it to and fro.
#[test]
fn who_did_not_begin_a_connection_does_not_move_it() {
    let mut ports = Ports::new(&[0, 1], [false, true]);
    ports.connect(4);
    // One that it began itself, so that it has a turn.
    let Two { w, a, b } = &mut ports.two;
    w.listener(*a, 0x101, PS_TCP, any());
    establish(w, *b, *a, SocketAddr::new(v4(0), PORT));
    ports.pass(INTERVAL * 3);
    assert_eq!(ports.spread(), [4]);
    assert_eq!(ports.two.w.hosts[1].cm.counters().paths_balanced, 0);
}
