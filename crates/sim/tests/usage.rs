//! How paths are used changes again and again, while the network has its faults.

use std::time::Duration;

use polypath_sim::{Case, Rng, When, any_change, run};

/// The case that a seed means, in which something changes every few hundred microseconds.
fn changing_all_the_time(seed: u64) -> Case {
    let mut case = Case::draw(seed);
    let mut rng = Rng::new(!seed);
    let mut at = Duration::from_millis(1);
    while at < Duration::from_millis(700) {
        at += Duration::from_micros(50 + rng.below(1500));
        let change = any_change(&mut rng, &case);
        case.faults.push((When::At(at), change));
    }
    case
}

/// `POLYPATH_SEEDS` is the number of seeds, 60 if it is not set; `POLYPATH_FIRST` is the first.
#[test]
fn promises_are_kept_whatever_policies_change() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("POLYPATH_FIRST").unwrap_or(0);
    let mut spread = 0;
    for seed in first..first + number("POLYPATH_SEEDS").unwrap_or(60) {
        let report = run(&changing_all_the_time(seed), None, None).0;
        let report = report.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        spread += u64::from(report.carriers > 1);
    }
    assert!(spread > 20, "{spread} seeds over several paths");
}
