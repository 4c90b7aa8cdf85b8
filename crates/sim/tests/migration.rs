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

/// A seed that failed once: many duplicates were answered at once, which used up all retries.
#[test]
fn many_answers_to_duplicates_use_up_no_retries() {
    let (result, _) = run(&Case::draw_migrating(1972), None, None);
    assert!(result.is_ok(), "{result:?}");
}

/// A seed that failed once: the peer refused a request and was in error, and its NAK, the only one, was still
/// on its way by the path that the requester left.
#[test]
fn a_refusal_by_a_path_that_was_left_may_end_in_used_up_retries() {
    let (result, _) = run(&Case::draw_migrating(5050), None, None);
    assert!(result.is_ok(), "{result:?}");
}
