//! Queue pairs that migrate between two plain paths (`polypath sim migration`).

use polypath_sim::{Case, run};

/// All promises hold, and there is something to see.
#[test]
fn queue_pairs_that_migrate_keep_their_promises() {
    let mut migrations = 0;
    for seed in 0..100 {
        let (result, _) = run(&Case::draw_migrating(seed), None, None);
        let report = result.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        migrations += report.migrations;
    }
    assert!(migrations > 300, "{migrations}");
}

/// Seeds that failed once. 1972: many duplicates were answered at once, which used up all retries.
#[test]
fn seeds_that_failed_once_pass() {
    for seed in [1972] {
        let (result, _) = run(&Case::draw_migrating(seed), None, None);
        assert!(result.is_ok(), "seed {seed}: {result:?}");
    }
}
