//! The path-set protocol, checked exhaustively within bounds: every order of arrival, every loss and every
//! duplicate that the bounds allow, with the real queue pairs and the real path manager.
//!
//! A world is two hosts with two links and one queue pair each, a few requests, and a few events that
//! happen at any time: links and addresses go and come, a link falls silent, paths prove themselves. The
//! network delivers packets in any order, loses and doubles some. In every state that can be reached:
//!
//! - nothing that was sent on a path before it was given up is accepted after the fence;
//! - each request is executed once, completes once, in order, and never with an error.
//!
//! Where no more can go wrong, three futures are tried: a whole network, and each link silently cut. In
//! all of them every request completes, everything charged to a path comes back, and both ends know the
//! paths of the links that work by the same numbers and generations, and as up.
//!
//! What bounds it: one queue pair, two links, at most four requests, the losses, duplicates and timers
//! of the world. Probes and their answers take no time (they tell generations as control packets do,
//! which travel as slowly as they like). Silence and proof are one step each.
mod heal;
mod host;
mod node;
mod packet;
mod sabotage;
mod world;

use std::time::Instant;

use node::Request::{FetchAdd, Send, WriteImm};
use sabotage::Sabotage;
use stateright::{Checker, Model};
use world::{Event, World};

/// More steps from state to state than any world below has: a world that grows beyond has to be made
/// smaller, not to be looked at in part.
const STEPS_MAX: usize = 200_000;

const QUIET: World = World {
    name: "",
    connected: true,
    requests: [&[], &[]],
    events: &[],
    ticks: 0,
    misdeeds: 0,
    sabotage: Sabotage::None,
};

const fn down(host: usize, link: usize) -> (Event, Option<usize>) {
    (Event::LinkDown { host, link }, None)
}

const fn up(host: usize, link: usize, after: usize) -> (Event, Option<usize>) {
    (Event::LinkUp { host, link }, Some(after))
}

const fn prove(host: usize, after: usize) -> (Event, Option<usize>) {
    (Event::Prove { host }, Some(after))
}

const fn silence(host: usize, link: usize) -> (Event, Option<usize>) {
    (Event::Silence { host, link }, None)
}

const fn gone(host: usize, link: usize) -> (Event, Option<usize>) {
    (Event::AddressGone { host, link }, None)
}

const fn back(host: usize, link: usize, after: usize) -> (Event, Option<usize>) {
    (Event::AddressBack { host, link }, Some(after))
}

const HANDSHAKE: World = World {
    name: "handshake from both sides, at work already",
    connected: false,
    requests: [&[FetchAdd], &[]],
    misdeeds: 1,
    ..QUIET
};

const FAIL_OVER: World = World {
    name: "a host's link goes and comes back",
    requests: [&[FetchAdd], &[]],
    events: &[down(0, 0), up(0, 0, 0), prove(0, 1)],
    misdeeds: 1,
    ..QUIET
};

const SILENT: World = World {
    name: "a link falls silent and speaks again",
    requests: [&[FetchAdd], &[]],
    events: &[silence(0, 0), prove(0, 0)],
    misdeeds: 1,
    ..QUIET
};

const BUSY: World = World {
    name: "a link falls silent under several requests from both sides",
    requests: [&[FetchAdd, Send], &[WriteImm]],
    events: &[silence(0, 0)],
    ..QUIET
};

const LATE: World = World {
    name: "timers fire while packets are held back or lost",
    requests: [&[FetchAdd], &[]],
    ticks: 3,
    misdeeds: 2,
    ..QUIET
};

const BOTH: World = World {
    name: "both hosts give up the same path at once, and get it back",
    requests: [&[FetchAdd], &[]],
    events: &[down(0, 0), down(1, 0), up(0, 0, 0), up(1, 0, 1)],
    ..QUIET
};

const CROSSED: World = World {
    name: "each host gives up another path at once",
    requests: [&[FetchAdd], &[]],
    events: &[down(0, 0), down(1, 1)],
    misdeeds: 1,
    ..QUIET
};

const ONE_REMOVES: World = World {
    name: "one end removes the path in use and adds it again",
    requests: [&[FetchAdd], &[]],
    events: &[gone(0, 0), back(0, 0, 0)],
    ..QUIET
};

const OTHER_REMOVES: World = World {
    name: "the other end removes the path in use and adds it again",
    requests: [&[FetchAdd], &[]],
    events: &[gone(1, 0), back(1, 0, 0)],
    ..QUIET
};

const ONE_REMOVES_LOSSY: World = World {
    name: "one end removes a path and adds it again, on a bad network",
    events: &[gone(0, 1), back(0, 1, 0)],
    misdeeds: 1,
    ..QUIET
};

const OTHER_REMOVES_LOSSY: World = World {
    name: "the other end removes a path and adds it again, on a bad network",
    events: &[gone(1, 1), back(1, 1, 0)],
    misdeeds: 1,
    ..QUIET
};

const REMOVE_AND_FAIL: World = World {
    name: "a path is removed by one end while the other gives it up",
    requests: [&[FetchAdd], &[]],
    events: &[gone(0, 0), down(1, 0)],
    misdeeds: 1,
    ..QUIET
};

const WORLDS: [World; 12] = [
    HANDSHAKE,
    FAIL_OVER,
    SILENT,
    BUSY,
    LATE,
    BOTH,
    CROSSED,
    ONE_REMOVES,
    OTHER_REMOVES,
    ONE_REMOVES_LOSSY,
    OTHER_REMOVES_LOSSY,
    REMOVE_AND_FAIL,
];

/// What a look at all states of a world came to.
struct Outcome {
    steps: usize,
    states: usize,
    /// The first broken promise, with what led to it.
    broken: Option<String>,
}

fn check(world: &World) -> Outcome {
    let start = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = world.clone().checker().threads(threads).target_state_count(STEPS_MAX);
    let checker = checker.spawn_bfs().join();
    let (steps, states) = (checker.state_count(), checker.unique_state_count());
    println!(
        "{}{}: {states} states by {steps} steps, at most {} from the start, in {:.1?}",
        world.name,
        match world.sabotage {
            Sabotage::None => String::new(),
            sabotage => format!(" ({sabotage:?})"),
        },
        checker.max_depth(),
        start.elapsed()
    );
    let mut found: Vec<_> = checker.discoveries().into_iter().collect();
    found.sort_by_key(|(_, path)| path.clone().into_actions().len());
    let broken = found.into_iter().next().map(|(rule, path)| {
        let last = path.last_state().clone();
        let why = world.converges(&last).err().unwrap_or_default();
        format!("{}: not so: {rule}; after {:?}: {last:?} {why}", world.name, path.into_actions())
    });
    Outcome { steps, states, broken }
}

#[test]
fn no_order_of_events_breaks_a_promise() {
    let (mut states, mut steps) = (0, 0);
    for world in &WORLDS {
        let outcome = check(world);
        assert_eq!(outcome.broken, None);
        assert!(outcome.steps < STEPS_MAX, "{}: too large to be seen whole", world.name);
        states += outcome.states;
        steps += outcome.steps;
    }
    println!("{states} states of {} worlds, {steps} steps: all promises kept", WORLDS.len());
}

/// The checker finds a fault where there is one.
fn finds(world: &World, sabotage: Sabotage, rule: &str) {
    let outcome = check(&World { sabotage, ..world.clone() });
    let broken = outcome.broken.expect("a sabotaged protocol breaks its promises");
    println!("{broken}");
    assert!(broken.contains(rule), "{broken}");
}

#[test]
fn receivers_that_ignore_generations_are_found() {
    finds(&FAIL_OVER, Sabotage::GenerationIgnored, "nothing sent before a fence");
}

#[test]
fn duplicates_that_are_executed_are_found() {
    finds(&LATE, Sabotage::DuplicatesExecuted, "executed and completes once");
}

#[test]
fn a_fail_over_without_replay_is_found() {
    finds(&FAIL_OVER, Sabotage::NoReplay, "all completes and both ends agree");
}

#[test]
fn ends_that_do_not_tell_each_other_of_changes_are_found() {
    finds(&ONE_REMOVES, Sabotage::NothingTold, "all completes and both ends agree");
}
