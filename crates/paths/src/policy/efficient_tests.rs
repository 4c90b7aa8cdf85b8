//! Tests of using few paths, with two managers that have agreed on two paths.

use core::time::Duration;

use super::tests::{MS, Pair, want};
use crate::config::{Config, Mode, Primary};
use polypath_types::{Class, PathId, PeerId, Pick, Want};

/// What each path delivers in a millisecond, bytes.
const CAPACITY: u32 = 20_000;
const BURST: u32 = 4096;

/// Host 0 of two managers, which sends by the cheapest paths, and its paths by interface.
struct Sender {
    pair: Pair,
    peer: PeerId,
    paths: [PathId; 2],
    /// What waits to be sent, and what each path has been given.
    backlog: u64,
    sent: [u64; 2],
}

/// The interfaces of the two paths.
const INTERFACES: [u32; 2] = [2, 3];

fn sender(costs: &[(u32, u16)], primary: Option<u32>) -> Sender {
    let config = Config {
        mode: Mode::Efficient,
        costs: costs.to_vec(),
        primary: primary.map(Primary::Interface),
        receive_window: 4 << 20,
        ..Config::default()
    };
    let (mut pair, peer) = Pair::configured(&config, None);
    pair.run(1000);
    let manager = &pair.managers[0];
    let by = |interface| {
        let mut paths = manager.path_ids();
        paths.find(|path| manager.path(*path).unwrap().ifindex == interface).unwrap()
    };
    let paths = INTERFACES.map(by);
    Sender { pair, peer, paths, backlog: 0, sent: [0; 2] }
}

impl Sender {
    /// Sends so many bytes in each of `ms` milliseconds, as far as they fit. Returns what each path was
    /// given.
    fn send(&mut self, ms: u32, demand: u32) -> [u64; 2] {
        let before = self.sent;
        for _ in 0..ms {
            self.backlog = (self.backlog + u64::from(demand)).min(1 << 20);
            self.send_all();
            self.pair.run(1);
            for path in self.paths {
                let manager = &mut self.pair.managers[0];
                let in_flight = manager.in_flight(path).unwrap();
                if in_flight > 0 {
                    let rtt = MS.max(MS * in_flight / CAPACITY);
                    manager.acked(self.pair.now, path, in_flight.min(CAPACITY), Some(rtt));
                }
            }
        }
        [0, 1].map(|n| self.sent[n] - before[n])
    }

    fn send_all(&mut self) {
        while self.backlog >= u64::from(BURST) {
            let want = Want { bytes: BURST, backlog: self.backlog, ..want(Class::Request) };
            let manager = &mut self.pair.managers[0];
            let Pick::Route(route) = manager.pick(self.peer, &want) else { return };
            manager.sent(self.pair.now, route.path, BURST);
            let path = self.paths.iter().position(|path| *path == route.path).unwrap();
            self.sent[path] += u64::from(BURST);
            self.backlog -= u64::from(BURST);
        }
    }

    fn main(&self) -> PathId {
        self.pair.managers[0].route(self.peer).unwrap().path
    }
}

#[test]
fn what_one_path_carries_goes_by_the_cheapest() {
    for cheap in [0, 1] {
        let dear = 1 - cheap;
        let mut sender = sender(&[(INTERFACES[dear], 10)], None);
        assert_eq!(sender.main(), sender.paths[cheap], "it is the main path, too");
        let sent = sender.send(2000, CAPACITY / 2);
        assert!(sent[cheap] > 19_000_000 && sent[dear] == 0, "{sent:?}");
    }
}

#[test]
fn of_paths_that_cost_the_same_the_primary_is_used() {
    for first in [0, 1] {
        let mut sender = sender(&[], Some(INTERFACES[first]));
        let sent = sender.send(500, CAPACITY / 2);
        assert!(sent[first] > 0 && sent[1 - first] == 0, "{sent:?}");
    }
}

#[test]
fn a_second_path_is_used_while_the_first_is_full_and_given_up_when_it_is_not_needed() {
    let mut sender = sender(&[(INTERFACES[1], 10)], None);
    // A demand that lasts for a short time only.
    assert_eq!(sender.send(40, CAPACITY * 2)[1], 0);
    assert_eq!(sender.send(100, CAPACITY / 2)[1], 0);
    let sent = sender.send(1000, CAPACITY * 2);
    assert!(sent[1] > sent[0] / 2, "{sent:?}");
    // The two carry this easily, and one does not.
    for part in 0..200 {
        let sent = sender.send(25, CAPACITY * 5 / 4);
        assert!(sent[1] > 0, "it stays, and does not come and go: {part} {sent:?}");
    }
    sender.send(1500, CAPACITY / 4);
    let sent = sender.send(1000, CAPACITY / 4);
    assert!(sent[0] > 4_000_000 && sent[1] == 0, "{sent:?}");
}

#[test]
fn after_a_rest_one_path_is_enough() {
    let mut sender = sender(&[(INTERFACES[1], 10)], None);
    assert!(sender.send(1000, CAPACITY * 2)[1] > 0);
    sender.backlog = 0;
    sender.pair.run(Duration::from_millis(1100).as_millis() as u32);
    assert_eq!(sender.send(10, CAPACITY / 4)[1], 0);
}

#[test]
fn the_next_path_takes_over_when_the_cheapest_dies_and_gives_back_when_it_lives() {
    let mut sender = sender(&[(INTERFACES[1], 10)], None);
    sender.send(100, CAPACITY / 4);
    let [cheap, dear] = sender.paths;
    sender.pair.lose_link_of(cheap);
    assert_eq!(sender.main(), dear);
    let sent = sender.send(100, CAPACITY / 4);
    assert!(sent[0] == 0 && sent[1] > 0, "{sent:?}");
    sender.pair.restore_links();
    assert_eq!(sender.main(), cheap);
    let sent = sender.send(100, CAPACITY / 4);
    assert!(sent[0] > 0 && sent[1] == 0, "{sent:?}");
}

#[test]
fn an_answer_goes_by_the_path_that_asked() {
    let mut sender = sender(&[(INTERFACES[1], 10)], None);
    for asked_by in sender.paths {
        let want = want(Class::Answer { asked_by });
        let Pick::Route(route) = sender.pair.managers[0].pick(sender.peer, &want) else { panic!() };
        assert_eq!(route.path, asked_by);
    }
}
