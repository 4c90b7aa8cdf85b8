//! The judge notices broken promises, and cases that break them are cut down.

use polypath_sim::{Case, Failure, Kind, Mischief, run, shrink};

/// Seeds that are tried for each mischief.
const SEEDS: u64 = 40;

/// The first seed at which a mischief is noticed, with its case and what the judge says.
fn noticed(mischief: Mischief) -> (Case, Failure) {
    let found = (0..SEEDS).find_map(|seed| {
        let case = Case::draw(seed);
        let failure = run(&case, Some((1, mischief)), None).0.err()?;
        Some((case, failure))
    });
    found.unwrap_or_else(|| panic!("{mischief:?} is not noticed in {SEEDS} seeds"))
}

#[test]
fn every_broken_promise_is_noticed() {
    for mischief in [
        Mischief::Spoil(30),
        Mischief::Spoil(1),
        Mischief::Forget(20),
        Mischief::Repeat(20),
        Mischief::Double(2),
        Mischief::Skip(1),
        Mischief::Skip(5),
    ] {
        noticed(mischief);
    }
}

#[test]
fn a_failing_case_is_cut_down_to_what_it_takes() {
    let mischief = Mischief::Double(1);
    let (case, failure) = noticed(mischief);
    let small = shrink(&case, failure.clone(), Some((1, mischief)));
    assert_eq!(small.failure.rule, failure.rule);
    // One atomic, or a word written once more, is enough.
    assert_eq!(small.case.pairs.len(), 1, "{}", small.case);
    assert_eq!(small.case.ops(), 1, "{}", small.case);
    let mut ops = small.case.pairs[0].ends.iter().flat_map(|e| &e.ops);
    assert!(ops.all(|op| op.kind.is_word()));
    assert!(small.case.faults.is_empty());
    assert_eq!((small.case.links.len(), small.case.hosts), (1, 2));
    assert!(!small.case.v6 && small.case.links[0].rate_mbps == 0);
    // It still fails, in the same way, each time.
    let (again, _) = run(&small.case, Some((1, mischief)), None);
    assert_eq!(again, Err(small.failure));
    assert!(run(&small.case, None, None).0.is_ok());
}

#[test]
fn lengths_are_cut_down_too() {
    let mischief = Mischief::Spoil(5);
    let (case, failure) = noticed(mischief);
    let small = shrink(&case, failure, Some((1, mischief)));
    assert!(small.case.ops() <= 5, "{}", small.case);
    let stored = |kind: Kind| kind.is_send() || kind.is_write() || kind == Kind::Read;
    let ops = small.case.pairs.iter().flat_map(|p| &p.ends).flat_map(|e| &e.ops);
    assert!(ops.filter(|op| stored(op.kind)).all(|op| op.len <= 5 * 4096), "{}", small.case);
}
