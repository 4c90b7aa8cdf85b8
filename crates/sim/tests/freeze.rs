//! Queue pairs that are frozen and thawed again and again, while the network has its faults.

use std::time::Duration;

use polypath_sim::{Case, Fault, PairPlan, When, run};
use polypath_transport::QpType;

/// The case that a seed means, in which each end of each plain RC pair is also taken out again and
/// again.
fn away_all_the_time(seed: u64) -> Case {
    let mut case = Case::draw(seed);
    let patient = |pair: &PairPlan| pair.service == QpType::Rc && !pair.multipath;
    let pairs = case.pairs.iter().enumerate().filter(|(_, pair)| patient(pair));
    let ends = pairs.flat_map(|(pair, _)| [(pair, 0), (pair, 1)]);
    for (number, (pair, end)) in (0u32..).zip(ends) {
        for round in 0..30 {
            let at = Duration::from_micros(1000 + 7 * u64::from(seed as u32 % 97))
                + Duration::from_micros(733) * number
                + Duration::from_millis(17) * round;
            let time = Duration::from_micros(100 << (round % 6));
            case.faults.push((When::At(at), Fault::Away { pair, end, time }));
        }
    }
    case
}

/// `POLYPATH_SEEDS` is the number of seeds, 60 if it is not set.
#[test]
fn queue_pairs_that_are_away_again_and_again_keep_their_promises() {
    let count = std::env::var("POLYPATH_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..count.unwrap_or(60) {
        if let Err(failure) = run(&away_all_the_time(seed), None, None).0 {
            panic!("seed {seed}: {failure}");
        }
    }
}

/// The case that a seed means, in which each queue pair is also frozen every few milliseconds.
fn frozen_all_the_time(seed: u64) -> Case {
    let mut case = Case::draw(seed);
    let ends = (0..case.pairs.len()).flat_map(|pair| [(pair, 0), (pair, 1)]);
    for (number, (pair, end)) in (0u32..).zip(ends) {
        for round in 0..60 {
            let at = Duration::from_micros(1000 + 7 * u64::from(seed as u32 % 97))
                + Duration::from_micros(733) * number
                + Duration::from_millis(9) * round;
            case.faults.push((When::At(at), Fault::Freeze { pair, end }));
        }
    }
    case
}

/// `POLYPATH_SEEDS` is the number of seeds, 60 if it is not set.
#[test]
fn queue_pairs_that_are_frozen_again_and_again_keep_their_promises() {
    let count = std::env::var("POLYPATH_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..count.unwrap_or(60) {
        if let Err(failure) = run(&frozen_all_the_time(seed), None, None).0 {
            panic!("seed {seed}: {failure}");
        }
    }
}
