//! Two queue pairs that migrate as they like, with programs that always load the path that was left, never
//! end up on different paths, whatever is lost: every loss of the first packets of short worlds, and long
//! random ones.

use std::collections::HashSet;
use std::time::Duration;

use polypath_transport::*;

use crate::host::APM;
use crate::migration::{load_with, migrate, plain, states};
use crate::pair::*;

const ADD: SendOp = SendOp::FetchAdd { va: 0x100, rkey: ALL, add: 1 };

/// The ACK timeout, of 0.27 s, so that the retries last longer than anything that happens here.
const TIMEOUT: u8 = 16;

/// Two programs, each of which loads the path that was left after each migration.
struct World {
    p: Pair,
    /// How many migrations each has seen to.
    seen: [usize; 2],
    /// The pairs of states that were passed.
    passed: HashSet<(u8, u8)>,
}

impl World {
    /// Nothing is loaded yet.
    fn plain() -> Self {
        let p = plain(Setup { paths: 2, timeout: TIMEOUT, ..Setup::default() });
        Self { p, seen: [0; 2], passed: HashSet::new() }
    }

    /// Both ends are ARMED.
    fn new() -> Self {
        let mut w = Self::plain();
        for side in 0..2 {
            load_with(&mut w.p, side, 1, TIMEOUT);
        }
        w.p.run_for(MS);
        assert_eq!(states(&w.p), [MigState::Armed; 2]);
        w
    }

    fn run(&mut self, time: Duration, step: Duration) {
        let end = self.p.now + time;
        while self.p.now < end {
            self.p.run_for(step);
            self.note();
            for side in 0..2 {
                let events = &self.p.nodes[side].host.events;
                let count = events.iter().filter(|e| **e == QpEvent::PathMig).count();
                if count > self.seen[side] && states(&self.p)[side] == MigState::Migrated {
                    self.seen[side] = count;
                    let [primary, _] = self.p.nodes[side].host.apm.unwrap();
                    load_with(&mut self.p, side, 1 - primary, TIMEOUT);
                    self.note();
                }
            }
        }
    }

    fn note(&mut self) {
        let [a, b] = states(&self.p).map(|state| state as u8);
        self.passed.insert((a, b));
    }

    /// Has an end migrate if it can.
    fn migrate(&mut self, side: usize) {
        if states(&self.p)[side] == MigState::Armed {
            migrate(&mut self.p, side).unwrap();
            self.note();
        }
    }

    /// After some time without faults both are ARMED on the same path, and each operation was executed once.
    fn expect_together(&mut self, posted: [u64; 2], what: &str) {
        self.run(Duration::from_secs(4), MS * 5);
        let at = self.p.nodes.each_ref().map(|node| node.host.apm.unwrap()[0]);
        let seen = self.p.nodes.each_ref().map(|node| {
            let host = &node.host;
            (host.apm, node.qp.state(), &host.explanations, host.migrations.iter().rev().take(6))
        });
        assert_eq!(at[0], at[1], "{what}: {:?} {seen:?}", states(&self.p));
        assert_eq!(states(&self.p), [MigState::Armed; 2], "{what}: {seen:?}");
        for (side, posted) in posted.into_iter().enumerate() {
            let done = self.p.nodes[side].host.statuses();
            let expected: Vec<_> = (0..posted).map(|n| (n, WcStatus::Success)).collect();
            assert_eq!(done, expected, "{what}");
            assert_eq!(self.p.nodes[1 - side].u64_at(0x100), posted, "{what}");
        }
    }
}

/// Each of the first packets is lost or not; each end migrates at one of some moments, or not at all.
#[test]
fn no_loss_of_a_few_packets_leaves_the_ends_on_different_paths() {
    const PACKETS: u32 = 6;
    let mut passed = HashSet::new();
    for moments in 0..16 {
        let at = [moments % 4, moments / 4];
        for lost in 0..1_u32 << PACKETS {
            let mut w = World::new();
            for side in 0..2 {
                w.p.nodes[side].post(0, ADD, 0, 8);
            }
            let mut n = 0;
            w.p.filter = Some(Box::new(move |_, _| {
                n += 1;
                n > PACKETS || lost >> (n - 1) & 1 == 0
            }));
            for moment in 1..4 {
                for (side, at) in at.into_iter().enumerate() {
                    if at == moment {
                        w.migrate(side);
                    }
                }
                w.run(US * 15, US * 15);
            }
            w.run(MS, US * 20);
            w.expect_together([1; 2], &format!("at {at:?}, lost {lost:#b}"));
            passed.extend(w.passed);
        }
    }
    assert_eq!(passed.len(), 9, "all pairs of states: {passed:?}");
}

/// Each of the first packets is lost or not; one end, or each, migrates as soon as it is ARMED, when the
/// other may not be so yet, and its old path is gone from then on.
#[test]
fn no_loss_of_a_few_packets_matters_to_who_migrates_as_soon_as_it_can() {
    const PACKETS: u32 = 7;
    for begins in 0..2 {
        for who in 1..4 {
            for lost in 0..1_u32 << PACKETS {
                let mut w = World::plain();
                let mut n = 0;
                w.p.filter = Some(Box::new(move |_, _| {
                    n += 1;
                    n > PACKETS || lost >> (n - 1) & 1 == 0
                }));
                for side in [begins, 1 - begins] {
                    w.p.nodes[side].post(0, ADD, 0, 8);
                    load_with(&mut w.p, side, 1, TIMEOUT);
                }
                let mut migrated = 0;
                for _ in 0..1000 {
                    for side in 0..2 {
                        let is_armed = states(&w.p)[side] == MigState::Armed;
                        if who & !migrated & 1 << side != 0 && is_armed {
                            w.migrate(side);
                            migrated |= 1 << side;
                            w.p.links[0].cut = [true; 2];
                        }
                    }
                    w.run(US * 50, US * 10);
                }
                w.p.links[0].cut = [false; 2];
                w.expect_together(
                    [1; 2],
                    &format!("{begins} begins, {who} migrates, lost {lost:#b}"),
                );
            }
        }
    }
}

/// Links that lose, delay and overtake, and fall silent for a while, and programs that migrate now and then.
#[test]
fn links_that_fail_in_turn_leave_the_ends_together_and_each_operation_executed_once() {
    for seed in 0..60 {
        let mut w = World::new();
        w.p.rng = Rng(seed);
        let mut posted = [0; 2];
        for round in 0..40 {
            for (side, posted) in posted.iter_mut().enumerate() {
                for _ in 0..w.p.rng.below(4) {
                    w.p.nodes[side].post(*posted, ADD, 0x1000 + 8 * (*posted % 64), 8);
                    *posted += 1;
                }
                if w.p.rng.chance(200) {
                    w.migrate(side);
                }
            }
            for link in 0..2 {
                let (loss, jitter) = (w.p.rng.below(80) as u32, US * w.p.rng.below(300) as u32);
                w.p.links[link] = Link { loss, jitter, ..Link::default() };
            }
            let hit = w.p.rng.below(6) as usize;
            if let Some(link) = w.p.links.get_mut(hit) {
                link.cut = [true; 2];
            }
            let time = MS * (1 + w.p.rng.below(if round % 8 == 0 { 1500 } else { 100 })) as u32;
            w.run(time, MS);
        }
        w.p.links.fill(Link::default());
        w.expect_together(posted, &format!("seed {seed}"));
        let known = w.p.nodes.each_ref().map(|n| n.qp.alternate());
        assert!(known.iter().all(|peer| peer.is_some_and(|peer| peer.0 >= APM)));
    }
}
