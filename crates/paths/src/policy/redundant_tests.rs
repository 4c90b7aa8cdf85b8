//! Tests of sending everything twice, with two managers that have agreed on two paths.

use super::tests::{MS, Pair, want};
use crate::config::{Config, Mode};
use polypath_types::{Class, PathId, PeerId, Pick, Route, Want};

const WIDE: u32 = 16 << 20;

/// Two managers that send everything twice, and the paths of host 0: the main one and the other.
fn redundant(receive_window: u32) -> (Pair, PeerId, [PathId; 2]) {
    let config = Config { mode: Mode::Redundant, receive_window, ..Config::default() };
    let (pair, peer) = Pair::configured(&config, None);
    let main = pair.managers[0].route(peer).unwrap().path;
    let other = pair.managers[0].path_ids().find(|path| *path != main).unwrap();
    (pair, peer, [main, other])
}

impl Pair {
    fn route_of(&mut self, peer: PeerId, class: Class, bytes: u32) -> Option<Route> {
        let want = Want { bytes, backlog: bytes.into(), ..want(class) };
        match self.managers[0].pick(peer, &want) {
            Pick::Route(route) => Some(route),
            Pick::Wait => None,
            Pick::NoPath => panic!("no path lives"),
        }
    }

    /// The paths of the first copy and of the second one of a small request.
    fn both(&mut self, peer: PeerId) -> Option<(PathId, Option<PathId>)> {
        let route = self.route_of(peer, Class::Request, 64)?;
        Some((route.path, route.twin.map(|twin| twin.path)))
    }

    /// Sends `bytes` by a path of host 0, as a part of something that went by two.
    fn sent_now(&mut self, path: PathId, bytes: u32) {
        self.managers[0].sent_twice(self.now, path, bytes);
    }

    fn charged(&self, path: PathId) -> u32 {
        self.managers[0].in_flight(path).unwrap()
    }
}

#[test]
fn everything_goes_by_two_paths_and_answers_by_the_one_that_asked() {
    let (mut pair, peer, [main, other]) = redundant(WIDE);
    assert_eq!(pair.both(peer), Some((main, Some(other))));
    let twin = pair.route_of(peer, Class::Request, 64).unwrap().twin.unwrap();
    assert_eq!(Some(twin.tag), pair.managers[0].tag(other));
    assert_eq!(twin.window, pair.managers[0].path_window(other));
    for path in [main, other] {
        let answer = pair.route_of(peer, Class::Answer { asked_by: path }, 4096).unwrap();
        assert_eq!((answer.path, answer.twin), (path, None), "the other one answers for itself");
    }
}

#[test]
fn a_full_path_does_not_hold_up_the_other_one() {
    let (mut pair, peer, [main, other]) = redundant(WIDE);
    let full = pair.managers[0].path_window(main);
    pair.sent_now(main, full);
    pair.sent_now(other, 1000);
    assert_eq!(pair.both(peer), Some((other, Some(main))));
    let twin = pair.route_of(peer, Class::Request, 64).unwrap().twin.unwrap();
    assert_eq!(twin.window, 0, "the copy is left out");
    pair.sent_now(other, full - 1000);
    assert_eq!(pair.both(peer), None, "both are full");
    assert!(pair.route_of(peer, Class::Urgent, 64).is_some());
}

#[test]
fn a_path_whose_round_trips_show_a_queue_takes_no_copies() {
    let (mut pair, peer, [main, other]) = redundant(WIDE);
    for rtt in [MS, MS * 40, MS * 40, MS * 40] {
        pair.managers[0].acked(pair.now, other, 0, Some(rtt));
    }
    let twin = |pair: &mut Pair| {
        let route = pair.route_of(peer, Class::Request, 64).unwrap();
        (route.path, route.twin.unwrap().window)
    };
    let (path, room) = twin(&mut pair);
    assert!(path == main && room > 0, "while little is on its way, a copy makes no queue");
    pair.sent_now(other, 17 << 10);
    assert_eq!(twin(&mut pair), (main, 0));
}

#[test]
fn a_path_that_has_died_takes_nothing_and_loses_no_bytes() {
    let (mut pair, peer, [main, other]) = redundant(WIDE);
    pair.sent_now(main, 5000);
    pair.sent_now(other, 5000);
    pair.lose_link_of(other);
    pair.run(5);
    assert_eq!(pair.both(peer), Some((main, None)));
    assert_eq!((pair.charged(main), pair.charged(other)), (5000, 0));
    assert_eq!(pair.managers[0].check(), Ok(()));
    pair.restore_links();
    pair.run(1000);
    assert_eq!(pair.both(peer), Some((main, Some(other))));
}

/// No answer comes for the last packets of a path, but probes pass by it.
#[test]
fn what_was_sent_before_a_probe_that_is_answered_is_not_on_its_way() {
    let (mut pair, _, [main, other]) = redundant(WIDE);
    for path in [main, other] {
        pair.sent_now(path, 5000);
    }
    let (now, us) = (pair.now, pair.now.as_micros() as u32);
    pair.managers[0].answered_twice(now, main, us, None, Some(MS));
    assert_eq!((pair.charged(main), pair.charged(other)), (0, 5000));
    pair.run(1000);
    assert_eq!(pair.charged(other), 0);
    assert_eq!(pair.managers[0].check(), Ok(()));
}

#[test]
fn both_paths_together_send_no_more_than_the_peer_takes() {
    let (mut pair, peer, [main, other]) = redundant(100 << 10);
    pair.sent_now(main, 40 << 10);
    pair.sent_now(other, 40 << 10);
    let route = pair.route_of(peer, Class::Request, 15 << 10).unwrap();
    assert!(route.twin.unwrap().window < 15 << 10, "there is room for one copy");
    assert_eq!(pair.route_of(peer, Class::Request, 30 << 10), None);
}
