//! The rules of comparison, by round trips that are made up.

use super::*;

const MS: f64 = 1e6;
const FIRST: PathNumber = PathNumber(0);
const SECOND: PathNumber = PathNumber(1);

/// Two paths whose round trips move, in many intervals.
struct Moving {
    coupling: Coupling,
    paths: [PathId; 2],
    dice: u64,
    cuts: u32,
}

impl Moving {
    fn new() -> Self {
        let paths = [PathId(1), PathId(2)];
        Self { coupling: Coupling::default(), paths, dice: 7, cuts: 0 }
    }

    /// Moves both by up to so many nanoseconds, the second one as `second` says.
    fn intervals(&mut self, count: u32, most: f64, second: impl Fn(f64) -> f64) {
        for _ in 0..count {
            self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let part = (self.dice >> 40) as f64 / (1 << 24) as f64;
            let mut seen = ByNumber::<Option<Seen>>::default();
            for (number, path, part) in [(FIRST, 0, part), (SECOND, 1, second(part))] {
                let mean = MS + most * part;
                seen[number] = Some(Seen { path: self.paths[path], mean, shortest: MS });
            }
            let cuts = self.coupling.compare(&seen);
            assert!(!cuts[FIRST], "one of the two is cut alone");
            self.cuts += u32::from(cuts[SECOND]);
        }
    }

    fn shares(&self) -> bool {
        let mates: Vec<_> = self.coupling.mates(FIRST).collect();
        assert!(mates.is_empty() || mates == [SECOND]);
        !mates.is_empty()
    }
}

#[test]
fn queues_that_move_together_share_after_a_trial_of_two_cuts() {
    let mut moving = Moving::new();
    moving.intervals(u32::from(SEEN_MIN), 4.0 * MS, |part| part);
    assert!(!moving.shares(), "they are tried first");
    moving.intervals(u32::from(SEEN_MIN) + 1, 4.0 * MS, |part| part);
    assert!(moving.shares());
    assert_eq!(moving.cuts, 2);
}

#[test]
fn queues_that_move_against_each_other_do_not_share() {
    let mut moving = Moving::new();
    moving.intervals(4 * u32::from(SEEN_MIN), 4.0 * MS, |part| 1.0 - part);
    assert!(!moving.shares() && moving.cuts == 0);
}

#[test]
fn what_hardly_moves_is_no_queue() {
    let mut moving = Moving::new();
    moving.intervals(4 * u32::from(SEEN_MIN), MS / 20.0, |part| part);
    assert!(!moving.shares() && moving.cuts == 0);
}

#[test]
fn another_path_with_the_same_number_is_compared_anew() {
    for replaced in [0, 1] {
        let mut moving = Moving::new();
        moving.intervals(3 * u32::from(SEEN_MIN), 4.0 * MS, |part| part);
        assert!(moving.shares());
        moving.paths[replaced] = PathId(3);
        moving.intervals(1, 4.0 * MS, |part| part);
        assert!(!moving.shares(), "{replaced}");
    }
}
