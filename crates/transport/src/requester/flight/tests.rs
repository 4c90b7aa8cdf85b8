//! A long flight is searched in steps; the result must be the same as that of a look at every slot.

use super::*;

const START: u64 = 1 << 24;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// The sequence numbers of slots that have a flag of `any` and none of `none`.
fn with(f: &Flight, any: u8, none: u8) -> Vec<u64> {
    let slots = f.slots.iter().enumerate();
    slots
        .filter(|(_, s)| (any == 0 || s.is(any)) && !s.is(none))
        .map(|(at, _)| f.una + at as u64)
        .collect()
}

/// Checks that counters and ranges match the slots.
fn check(f: &Flight) {
    assert_eq!(f.lost as usize, with(f, LOST, 0).len());
    assert_eq!(f.sacked as usize, with(f, SACKED, 0).len());
    assert_eq!(f.charged as usize, with(f, 0, DONE | LOST | SACKED).len());
    assert!(with(f, SACKED, 0).iter().all(|s| f.beyond.containing(*s).is_some()));
    let arrived = |seq: u64| seq >= f.una && f.slot(seq).is_some_and(|s| s.is(DONE | SACKED));
    assert!(f.beyond.iter().all(|r| r.clone().all(arrived)), "{:?}", f.beyond);
    assert_eq!(f.check_paths(), Ok(()));
    let runs = f.paths.iter().map(|on| on.sent.len()).max().unwrap_or(0);
    assert!(runs <= 3 * (2 * f.slots.len() + 16), "{runs} runs of {}", f.slots.len());
}

/// Finds the overtaken packets by looking at every slot.
fn overtaken(f: &Flight, in_order: bool) -> Vec<u64> {
    let overtaken = |slot: &Slot| {
        let on = f.paths.get(slot.path).unwrap();
        on.has_overtaken(slot.order, if in_order { 1 } else { on.reordering })
    };
    with(f, 0, DONE | LOST | SACKED)
        .into_iter()
        .filter(|seq| *seq < f.done_to && overtaken(f.slot(*seq).unwrap()))
        .collect()
}

#[test]
fn what_was_overtaken_is_found_as_if_every_slot_had_been_looked_at() {
    let mut found = 0;
    for seed in 0..100 {
        let mut rng = Rng(seed);
        let mut f = Flight::new(START);
        let switch_at = rng.below(400);
        let (paths, alternates) = (1 + rng.below(3), rng.below(2) == 0);
        for step in 0..400 {
            let path = if alternates { rng.below(paths) } else { u64::from(step > switch_at) };
            let path = PathId(path as u32);
            let mut tally = Tally::default();
            let any = f.una + rng.below(f.slots.len() as u64);
            match rng.below(16) {
                0..4 => {
                    let n = 1 + rng.below(20);
                    let read = rng.below(8) == 0;
                    for i in 0..n {
                        let end = if i + 1 == n { END } else { 0 };
                        f.push(path, 1024, if read { ANSWERED | end } else { 0 }, 0);
                    }
                }
                4..8 => f.sack(any..any + 1 + rng.below(12), &mut tally),
                8 => f.acknowledge_selected(any, 1 + rng.below(1 << 30), &mut tally),
                9 => f.acknowledge(f.una + rng.below(6), &mut tally),
                10 => f.answer(any, &mut tally),
                11..14 => {
                    if let Some((seq, n)) = f.lost_run(1 + rng.below(8) as u32) {
                        assert_eq!(Some(&seq), with(&f, LOST, 0).first());
                        f.resend(seq, n, path, 0, 0);
                    }
                }
                14 if rng.below(10) == 0 => f.lose_all(&mut tally),
                14 => f.lose_even_sacked(f.una, &mut tally),
                _ => f.lose_range(any, any + 3, &mut tally),
            }
            f.advance();
            check(&f);
            let in_order = rng.below(4) == 0;
            let expected = overtaken(&f, in_order);
            let before = with(&f, LOST, 0);
            f.lose_overtaken(in_order, &mut tally);
            let mut now = with(&f, LOST, 0);
            now.retain(|seq| !before.contains(seq));
            assert_eq!(now, expected, "seed {seed}, step {step}");
            found += now.len();
            check(&f);
        }
    }
    assert!(found > 500, "{found}");
}

/// An acknowledgement that reports 16,000 packets again does not look at each of them: with so many
/// repetitions that would take minutes.
#[test]
fn what_is_told_again_and_again_is_not_looked_at_again() {
    const N: u64 = 1 << 14;
    let mut f = Flight::new(START);
    for _ in 0..N {
        f.push(PathId(0), 1024, 0, 0);
    }
    let mut tally = Tally::default();
    // Every hundredth is lost, and then lost again.
    for round in 0..1_000 {
        for gap in (0..N).step_by(100) {
            let block = START + gap + 1..START + (gap + 100).min(N);
            f.sack(block, &mut tally);
            f.lose_overtaken(false, &mut tally);
        }
        assert_eq!(f.sacked, (N - N.div_ceil(100)) as u32);
        assert_eq!(f.lost, if round == 0 { N.div_ceil(100) as u32 } else { 0 });
        while let Some((seq, n)) = f.lost_run(64) {
            f.resend(seq, n, PathId(0), 0, 0);
        }
    }
    f.acknowledge(START + N, &mut tally);
    assert!(f.advance() && f.is_empty() && !f.waits());
}

#[test]
fn memory_of_a_long_flight_is_given_back_when_nothing_is_in_flight() {
    let mut f = Flight::new(START);
    assert_eq!(f.slots.capacity(), 0, "nothing before the first packet");
    for i in 0..1 << 14 {
        f.push(PathId(0), 1024, 0, i);
    }
    let mut tally = Tally::default();
    f.lose_all(&mut tally);
    f.resend(START, 1 << 14, PathId(0), 0, 0);
    f.acknowledge(START + (1 << 14), &mut tally);
    assert!(f.advance());
    let runs: usize = f.paths.iter().map(|on| on.sent.capacity()).sum();
    let kept = f.slots.capacity() * size_of::<Slot>() + runs;
    assert!(kept <= 2 * SLOTS_KEPT * size_of::<Slot>(), "{kept}");
}

/// A packet that is asked for in vain for hours is sent again and again.
#[test]
fn packets_sent_again_in_vain_take_no_more_memory() {
    let mut f = Flight::new(START);
    for _ in 0..3 {
        f.push(PathId(0), 1024, 0, 0);
    }
    for _ in 0..10_000 {
        let mut tally = Tally::default();
        f.lose_even_sacked(START, &mut tally);
        f.resend(START, 1, PathId(0), 0, 0);
    }
    check(&f);
}

#[test]
fn an_answer_asked_for_again_is_not_missed_because_of_what_was_sent_before() {
    let mut f = Flight::new(START);
    f.push(PathId(0), 1024, ANSWERED | END, 0);
    for _ in 0..3 {
        f.push(PathId(0), 1024, END, 0);
    }
    let (mut tally, long) = (Tally::default(), 1_000_000);
    f.lose_answers(START + 2, PathId(0), 10, true, &mut tally);
    assert!(f.any_lost(), "the second packet was acknowledged, the READ before it not answered");
    f.resend(START, 1, PathId(0), 0, 20);
    f.lose_answers(START + 4, PathId(0), long, true, &mut tally);
    assert!(!f.any_lost(), "the others went before it was asked for again");
    f.push(PathId(0), 1024, END, 30);
    f.lose_answers(START + 5, PathId(0), long, true, &mut tally);
    assert!(f.any_lost(), "this one went later");
}

/// Acknowledgements come by a short path while the rest of a long answer is still on a long one.
#[test]
fn an_acknowledgement_by_another_path_does_not_miss_a_late_answer() {
    let (short, long) = (PathId(0), PathId(1));
    for (from, at_ms, lost) in
        [(short, 15, false), (short, 29, false), (short, 31, true), (long, 15, true)]
    {
        let mut f = Flight::new(START);
        f.push(long, 1024, ANSWERED | END, 0);
        f.push(short, 1024, ANSWERED | END, 0);
        f.paths.suggest_rtt(long, Some(Duration::from_millis(10)));
        let mut tally = Tally::default();
        f.answer(START + 1, &mut tally);
        f.lose_answers(START + 2, from, at_ms * 1000, false, &mut tally);
        assert_eq!(f.any_lost(), lost, "by {from:?} after {at_ms} ms");
    }
}
