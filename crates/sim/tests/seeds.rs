//! A few hundred seeds with every `cargo test`; `polypath-sim` runs as many as one likes.

use polypath_sim::simulate;

#[test]
fn verbs_keep_their_promises_whatever_the_network_does() {
    let failures: Vec<_> = (0..300).filter_map(|seed| simulate(seed).err()).collect();
    assert!(failures.is_empty(), "{}", failures[0]);
}

/// What went wrong once, and must not again.
#[test]
fn seeds_that_failed_once_pass() {
    let once = [
        9578,  // control went only to pairs of addresses that no network joins
        18019, // the same, with all paths gone in between
        58852, // retries spent on one silence after another, with answers to probes in between
    ];
    let failures: Vec<_> = once.into_iter().filter_map(|seed| simulate(seed).err()).collect();
    assert!(failures.is_empty(), "{}", failures[0]);
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 14, 159] {
        assert_eq!(simulate(seed), simulate(seed));
    }
}
