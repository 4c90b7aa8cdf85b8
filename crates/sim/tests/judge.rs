//! The judge notices broken promises, and cases that break them are reduced.

use polypath_sim::{Case, Failure, OpKind, PlantedFault, run, shrink};

/// The number of seeds that are tried for each planted fault.
const SEEDS: u64 = 40;

/// Finds the first seed at which a planted fault is noticed, with its case and what the judge says.
fn noticed(planted: PlantedFault) -> (Case, Failure) {
    let found = (0..SEEDS).find_map(|seed| {
        let case = Case::draw(seed);
        let failure = run(&case, Some((1, planted)), None).0.err()?;
        Some((case, failure))
    });
    found.unwrap_or_else(|| panic!("{planted:?} is not noticed in {SEEDS} seeds"))
}

#[test]
fn every_broken_promise_is_noticed() {
    for planted in [
        PlantedFault::Spoil(30),
        PlantedFault::Spoil(1),
        PlantedFault::Forget(20),
        PlantedFault::Repeat(20),
        PlantedFault::Double(2),
        PlantedFault::Skip(1),
        PlantedFault::Skip(5),
    ] {
        noticed(planted);
    }
}

#[test]
fn a_failing_case_is_cut_down_to_what_it_takes() {
    let planted = PlantedFault::Double(1);
    let (case, failure) = noticed(planted);
    let small = shrink(&case, failure.clone(), Some((1, planted)));
    assert_eq!(small.failure.rule, failure.rule);
    // One atomic, or a word that is written twice, is enough.
    assert_eq!(small.case.pairs.len(), 1, "{}", small.case);
    assert_eq!(small.case.ops(), 1, "{}", small.case);
    let mut ops = small.case.pairs[0].ends.iter().flat_map(|e| &e.ops);
    assert!(ops.all(|op| op.kind.is_word()));
    assert!(small.case.faults.is_empty());
    assert_eq!((small.case.links.len(), small.case.hosts), (1, 2));
    assert!(!small.case.v6 && small.case.links[0].rate_mbps == 0);
    // The reduced case fails in the same way each time.
    let (again, _) = run(&small.case, Some((1, planted)), None);
    assert_eq!(again, Err(small.failure));
    assert!(run(&small.case, None, None).0.is_ok());
}

#[test]
fn lengths_are_cut_down_too() {
    let planted = PlantedFault::Spoil(5);
    let (case, failure) = noticed(planted);
    let small = shrink(&case, failure, Some((1, planted)));
    assert!(small.case.ops() <= 5, "{}", small.case);
    let stored = |kind: OpKind| kind.is_send() || kind.is_write() || kind == OpKind::Read;
    let ops = small.case.pairs.iter().flat_map(|p| &p.ends).flat_map(|e| &e.ops);
    assert!(ops.filter(|op| stored(op.kind)).all(|op| op.len <= 5 * 4096), "{}", small.case);
}
