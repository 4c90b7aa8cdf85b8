//! Automatic path migration, checked exhaustively within bounds: every order of arrival, every loss and every
//! duplicate that the bounds allow, with the real queue pairs.
//!
//! A world is two queue pairs with two paths, a request or none, and programs that load the alternate path,
//! migrate, and load the path that was left, each at any time. The network delivers packets in any
//! order among paths, loses, doubles and holds back some. In every state that can be reached:
//!
//! - an end becomes ARMED only by an acknowledgement that came by its alternate path;
//! - each request is executed once and completes without an error.
//!
//! Where no more can go wrong, time goes on, and programs go on loading the path that was left: both ends
//! become ARMED on the same path, and everything completes. The worlds together pass all nine pairs of
//! states.
mod node;
mod world;

use std::time::Instant;

use stateright::{Checker, Model};
use world::World;

/// More steps from state to state than any world below has: a world that grows beyond has to be made
/// smaller, not to be looked at in part.
const STEPS_MAX: usize = 600_000;

const QUIET: World = World {
    name: "",
    requests: [0, 0],
    migrates: [false; 2],
    ticks: 0,
    misdeeds: 0,
    broken: false,
};

const ARM: World = World { name: "both arm, on a bad network", misdeeds: 2, ticks: 1, ..QUIET };

const ONE: World =
    World { name: "one end migrates", migrates: [true, false], misdeeds: 1, ..QUIET };

const BOTH: World = World { name: "both ends migrate", migrates: [true; 2], ..QUIET };

const LATE: World = World {
    name: "timers fire while one end migrates",
    migrates: [false, true],
    ticks: 1,
    ..QUIET
};

const BUSY: World = World {
    name: "the peer migrates with an atomic in flight",
    requests: [1, 0],
    migrates: [false, true],
    ..QUIET
};

const WORLDS: [World; 5] = [ARM, ONE, BOTH, LATE, BUSY];

/// Looks at all states of a world. Returns their number, the pairs of states that were passed, and the first
/// broken promise, with what led to it.
fn check(world: &World) -> (usize, Vec<&'static str>, Option<String>) {
    let start = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = world.clone().checker().threads(threads).target_state_count(STEPS_MAX);
    let checker = checker.spawn_bfs().join();
    let (steps, states) = (checker.state_count(), checker.unique_state_count());
    println!("{}: {states} states by {steps} steps, in {:.1?}", world.name, start.elapsed());
    assert!(steps < STEPS_MAX, "{}: too large to be seen whole", world.name);
    let (mut passed, mut broken) = (Vec::new(), None);
    for (rule, path) in checker.discoveries() {
        if rule.contains(" and ") && rule.len() < 20 {
            passed.push(rule);
        } else {
            let last = path.last_state().clone();
            let why = world.converges(&last).err().unwrap_or_default();
            let led = path.into_actions();
            broken = Some(format!("{}: not so: {rule}; after {led:?}: {last:?} {why}", world.name));
        }
    }
    (states, passed, broken)
}

#[test]
fn no_order_of_events_leaves_the_ends_apart() {
    let mut passed = std::collections::BTreeSet::new();
    let mut states = 0;
    for world in &WORLDS {
        let (count, pairs, broken) = check(world);
        assert_eq!(broken, None);
        states += count;
        passed.extend(pairs);
    }
    assert_eq!(passed.len(), 9, "all pairs of states: {passed:?}");
    println!("{states} states of {} worlds, all nine pairs: all promises kept", WORLDS.len());
}

/// The checker finds a fault where there is one: ends that don't say that they have migrated.
#[test]
fn an_end_that_does_not_say_that_it_has_migrated_is_found() {
    let (.., broken) = check(&World { broken: true, ..ONE });
    let broken = broken.expect("a sabotaged protocol breaks its promises");
    assert!(broken.contains("both ends are ARMED on one path and"), "{broken}");
}
