//! Adds to a case stalls, links that carry some packets and not others, and peers of which one dies and
//! one lives. They are drawn from a stream of their own, so that the rest of a seed's meaning stays as
//! it was.

use core::time::Duration;

use polypath_transport::QpType;

use crate::case::{Case, PairPlan};
use crate::faults::{Fault, When};
use crate::link_faults::Holes;
use crate::rng::Rng;

const MS: Duration = Duration::from_millis(1);
/// The time at which holes open. Queue pairs have found out about each other by then, so that they lose
/// data, not handshakes.
const AGREED: Duration = Duration::from_millis(40);
/// The time for which the paths to the living peer come and go. It is longer than the patience of the
/// queue pair whose peer has died.
const FLAPPING: Duration = Duration::from_millis(5000);

/// Adds to a case what its seed means here. `pair` draws a pair between two hosts.
pub(crate) fn add(
    seed: u64,
    case: &mut Case,
    pair: impl Fn(&mut Rng, [usize; 2], bool, &[PairPlan]) -> PairPlan,
) {
    let rng = &mut Rng::new(seed ^ 0x5354_414c_4c47_5245);
    let calm = case.faults.is_empty();
    if calm && case.hosts > 2 && case.links.len() > 1 && rng.chance(500) {
        add_unequal_fates(rng, case, pair);
    } else if calm && case.links.len() > 1 && rng.chance(600) {
        add_holes(rng, case);
    }
    while rng.chance(200) {
        add_stall(rng, case);
    }
}

/// Lets one process, or two, not run for up to a second.
fn add_stall(rng: &mut Rng, case: &mut Case) {
    let at = rng.time(MS * 500);
    let host = rng.below(case.hosts as u64) as usize;
    let time = MS * (1 + rng.below(1000) as u32);
    case.faults.push((When::At(at), Fault::Pause { host, time }));
    if rng.chance(300) {
        let other = (host + 1) % case.hosts;
        let time = MS * (1 + rng.below(1000) as u32);
        case.faults.push((When::At(at), Fault::Pause { host: other, time }));
    }
}

/// Lets one link lose large packets, or those of some queue pairs, while the others carry everything.
fn add_holes(rng: &mut Rng, case: &mut Case) {
    // Plain queue pairs have only the first link.
    let plain = case.pairs.iter().any(|p| !p.multipath);
    let first = u64::from(plain);
    let link = (first + rng.below(case.links.len() as u64 - first)) as usize;
    let holes = if rng.chance(500) {
        Holes { over: 300 + rng.below(1000) as u32, classes: 0 }
    } else {
        Holes { over: 0, classes: 1 + rng.below(255) as u8 }
    };
    let at = AGREED + rng.time(MS * 60);
    case.faults.push((When::At(at), Fault::Holes { link, holes }));
    let end = at + MS * (500 + rng.below(3000) as u32);
    case.faults.push((When::At(end), Fault::Holes { link, holes: Holes::default() }));
}

/// Lets one peer of a host die for good, while paths to another peer die and come back again and again.
/// Queue pairs to the dead peer must find out in their own time; the others must not notice.
fn add_unequal_fates(
    rng: &mut Rng,
    case: &mut Case,
    pair: impl Fn(&mut Rng, [usize; 2], bool, &[PairPlan]) -> PairPlan,
) {
    let (host, dies, lives) = (0, 1, 2);
    for (peer, multipath) in [(dies, false), (lives, true)] {
        let mut plan = pair(rng, [host, peer], multipath, &case.pairs);
        plan.timeout = 14;
        plan.retry_cnt = 7;
        debug_assert_eq!(plan.service, QpType::Rc);
        case.pairs.push(plan);
    }
    case.faults.push((When::At(AGREED), Fault::Die { host: dies, reborn: false }));
    let mut at = AGREED;
    while at < AGREED + FLAPPING {
        let back = at + MS * (30 + rng.below(60) as u32);
        for (from, to) in [(host, lives), (lives, host)] {
            let cut = |cut| Fault::Cut { link: 1, from, to, cut };
            case.faults.push((When::At(at), cut(true)));
            case.faults.push((When::At(back), cut(false)));
        }
        at = back + MS * (100 + rng.below(400) as u32);
    }
}
