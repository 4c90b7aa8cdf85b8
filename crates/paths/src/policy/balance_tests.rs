//! Tests of balancing, with two managers that have agreed on two paths.

use core::time::Duration;

use super::tests::{MS, Pair, want};
use crate::config::{Config, Mode};
use polypath_types::{Class, PathId, PeerId, Pick, Want};

const BURST: u32 = 64 << 10;
/// A receive buffer that does not limit anything.
const WIDE: u32 = 16 << 20;

/// Two balancing managers, and the paths of host 0: the main one and the other.
fn balancing(receive_window: u32) -> (Pair, PeerId, [PathId; 2]) {
    let config = Config { mode: Mode::Balance, receive_window, ..Config::default() };
    let (pair, peer) = Pair::configured(&config, None);
    let main = pair.managers[0].route(peer).unwrap().path;
    let other = pair.managers[0].path_ids().find(|path| *path != main).unwrap();
    (pair, peer, [main, other])
}

impl Pair {
    /// The path of host 0's next burst of a queue pair that has so much to send; `None`: it waits.
    fn pick_of(&mut self, peer: PeerId, bytes: u32, backlog: u64) -> Option<PathId> {
        let want = Want { bytes, backlog, ..want(Class::Request) };
        match self.managers[0].pick(peer, &want) {
            Pick::Route(route) => Some(route.path),
            Pick::Wait => None,
            Pick::NoPath => panic!("no path lives"),
        }
    }

    /// Host 0 sends bursts while it may. Returns how many bytes each of the paths took.
    fn fill(&mut self, peer: PeerId, paths: [PathId; 2], backlog: u64) -> [u32; 2] {
        let mut took = [0; 2];
        while let Some(path) = self.pick_of(peer, 4096, backlog) {
            took[usize::from(path == paths[1])] += 4096;
            self.managers[0].sent(self.now, path, 4096);
        }
        took
    }

    /// A path delivers `bytes` in each of 20 milliseconds, with a round trip of 1 ms.
    fn measure(&mut self, path: PathId, bytes: u32) {
        for _ in 0..20 {
            let manager = &mut self.managers[0];
            let window = manager.path_window(path);
            manager.sent(self.now, path, window);
            self.now += MS;
            manager.acked(self.now, path, bytes.min(window), Some(MS));
            manager.lost(self.now, path, window.saturating_sub(bytes), false);
        }
    }
}

#[test]
fn small_messages_stay_on_one_path_while_it_has_room() {
    let (mut pair, peer, [main, _]) = balancing(WIDE);
    for _ in 0..50 {
        assert_eq!(pair.pick_of(peer, 64, 64), Some(main));
        pair.managers[0].sent(pair.now, main, 64);
        pair.managers[0].acked(pair.now, main, 64, Some(MS));
    }
}

#[test]
fn a_long_message_uses_both_paths_and_then_waits() {
    let (mut pair, peer, paths) = balancing(WIDE);
    let took = pair.fill(peer, paths, 1 << 30);
    for (took, path) in took.into_iter().zip(paths) {
        let left = pair.managers[0].path_window(path) - took;
        assert!(took > 0 && left < 16 << 10, "{took} bytes, {left} left");
    }
    // An urgent packet does not wait.
    let urgent = Want { bytes: 4096, backlog: 4096, ..want(Class::Urgent) };
    assert!(matches!(pair.managers[0].pick(peer, &urgent), Pick::Route(_)));
}

#[test]
fn a_slow_path_is_used_only_for_what_would_take_the_fast_one_longer() {
    let (mut pair, peer, [main, slow]) = balancing(WIDE);
    pair.measure(main, 100_000);
    pair.measure(slow, 1_000);
    let window = pair.managers[0].path_window(main);
    pair.managers[0].sent(pair.now, main, window);
    // The slow path would take 64 ms for the burst, and the fast one 1 ms for it and what is in flight.
    assert_eq!(pair.pick_of(peer, BURST, BURST.into()), None);
    assert_eq!(pair.pick_of(peer, BURST, 2_000_000), None);
    assert_eq!(pair.pick_of(peer, BURST, 20_000_000), Some(slow));
}

#[test]
fn a_path_without_a_quarter_of_its_window_is_full_for_a_read() {
    let (mut pair, peer, [main, other]) = balancing(WIDE);
    let window = pair.managers[0].path_window(main);
    pair.managers[0].sent(pair.now, main, window - 20 * 1024);
    // The other path is slow, so the main one is preferred while it has room.
    pair.measure(other, 4_000);
    assert_eq!(pair.pick_of(peer, 4096, 1 << 30), Some(main));
    let want = Want { bytes: 256 << 10, backlog: 1 << 30, asks: true, ..want(Class::Request) };
    let Pick::Route(route) = pair.managers[0].pick(peer, &want) else { panic!("it waits") };
    assert_eq!(route.path, other);
}

#[test]
fn all_paths_together_send_no_more_than_the_peer_takes() {
    const BUFFER: u32 = 160 << 10;
    let (mut pair, peer, paths) = balancing(BUFFER);
    for path in paths {
        pair.measure(path, u32::MAX);
    }
    let windows: u32 = paths.iter().map(|path| pair.managers[0].path_window(*path)).sum();
    assert!(windows > BUFFER + (32 << 10), "{windows}");
    let took = pair.fill(peer, paths, 1 << 30);
    // One path may have taken more than its share while there was room for all.
    let sum = took[0] + took[1];
    assert!(took[0].min(took[1]) > 0, "{took:?}");
    assert!((BUFFER - 4096..=BUFFER + (16 << 10)).contains(&sum), "{took:?}");
}

/// A path that had the receive buffer for itself does not keep the others from carrying anything.
#[test]
fn a_path_that_has_filled_the_receive_buffer_gives_way_to_the_others() {
    const BUFFER: u32 = 160 << 10;
    for asks in [false, true] {
        let (mut pair, peer, [main, other]) = balancing(BUFFER);
        pair.measure(main, 60_000);
        pair.measure(other, 20_000);
        let window = pair.managers[0].path_window(main);
        assert!(window > BUFFER - (32 << 10), "{window}");
        pair.managers[0].sent(pair.now, main, window);
        let want = Want { bytes: BURST, backlog: 1 << 30, asks, ..want(Class::Request) };
        let mut taken = 0;
        while let Pick::Route(route) = pair.managers[0].pick(peer, &want) {
            assert_eq!(route.path, other, "{taken}");
            pair.managers[0].sent(pair.now, other, 4096);
            taken += 4096;
        }
        // A quarter of the window, which a request of a READ needs, may be more than the share: then there is
        // one at a time.
        let least = if asks { 4096 } else { 8192 };
        assert!((least..=BUFFER / 4).contains(&taken), "{taken} of a share of {}", BUFFER / 4);
        // The main one has to come back to its share, three quarters, before it sends again.
        pair.managers[0].acked(pair.now, main, 8192, Some(MS));
        assert!(!matches!(pair.managers[0].pick(peer, &want), Pick::Route(r) if r.path == main));
        pair.managers[0].acked(pair.now, main, window - 8192 - BUFFER / 4, Some(MS));
        assert!(matches!(pair.managers[0].pick(peer, &want), Pick::Route(r) if r.path == main));
    }
}

#[test]
fn the_path_that_is_left_carries_everything() {
    let (mut pair, peer, [main, other]) = balancing(WIDE);
    pair.lose_link_of(main);
    for _ in 0..4 {
        assert_eq!(pair.pick_of(peer, BURST, 1 << 30), Some(other));
    }
}

/// What its buffer takes is not known, and the window grows beyond what it takes for sure.
#[test]
fn a_plain_peer_gets_as_much_as_the_window_of_its_path() {
    for mode in [Mode::Balance, Mode::Efficient] {
        let config = Config { mode, ..Config::default() };
        let (mut manager, peer, path) = Pair::plain(&config);
        let mut now = MS;
        while manager.path_window(path) < 2 * config.max_window {
            let window = manager.path_window(path);
            manager.sent(now, path, window);
            now += MS;
            manager.acked(now, path, window, Some(MS));
            assert!(now < Duration::from_secs(60), "the window stays at {window}");
        }
        let want = Want { backlog: 1 << 30, ..want(Class::Request) };
        while let Pick::Route(route) = manager.pick(peer, &want) {
            assert_eq!(route.path, path);
            if route.window < want.bytes {
                break;
            }
            manager.sent(now, path, want.bytes);
        }
        let left = manager.path_window(path) - manager.in_flight(path).unwrap();
        assert!(left < 16 << 10, "{mode:?}: {left} bytes of {} left", manager.path_window(path));
    }
}

#[test]
fn a_time_without_traffic_forgets_that_a_path_was_slow() {
    let (mut pair, peer, [main, slow]) = balancing(WIDE);
    pair.measure(main, 100_000);
    pair.measure(slow, 1_000);
    pair.now += Duration::from_secs(1);
    pair.run(1);
    let window = pair.managers[0].path_window(main);
    pair.managers[0].sent(pair.now, main, window);
    assert_eq!(pair.pick_of(peer, BURST, 2_000_000), Some(slow), "it is tried again");
}
