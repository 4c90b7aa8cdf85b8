//! Several source ports for each pair of addresses, and links that consist of several ways, some of which
//! fail or lose packets. They are drawn from a stream of their own, so that the rest of what a seed means
//! stays as it was.

use core::time::Duration;

use crate::case::{Case, LanePlan};
use crate::faults::{Fault, When};
use crate::rng::Rng;

const MS: Duration = Duration::from_millis(1);
/// The number of cases in a thousand in which hosts want several ports, and in which ways are bad.
const PORTS: u64 = 300;
const WAYS: u64 = 300;
/// The same for hosts that want another number of ports after a while, and the most changes.
const CHANGES: u64 = 200;
const CHANGES_MAX: u64 = 8;
/// The time from which on ways are bad. Queue pairs have found out about each other by then.
const AGREED: Duration = Duration::from_millis(40);

/// Adds to a case what its seed means here.
pub(crate) fn add(seed: u64, case: &mut Case) {
    let rng = &mut Rng::new(seed.rotate_left(37) ^ 0x706f_7274_7320_2d31);
    if rng.chance(PORTS) {
        case.lanes.resize(case.hosts, LanePlan::default());
        for lane in &mut case.lanes {
            lane.ports = [0, 1, 2, 3, 4, 4, 8, 8][rng.below(8) as usize];
        }
    }
    change(&mut Rng::new(seed.rotate_left(23) ^ 0x706f_7274_7320_2d32), case);
    // What a link with holes loses has to find its way by the other links.
    let holes = case.faults.iter().any(|(_, fault)| matches!(fault, Fault::Holes { .. }));
    if !rng.chance(WAYS) || holes {
        return;
    }
    // A plain queue pair has one way, and may lose no more than its retries make up for.
    let plain = case.pairs.iter().any(|pair| pair.is_reliable() && !pair.multipath);
    for _ in 0..=rng.below(6) {
        let link = rng.below(case.links.len() as u64) as usize;
        // Half of the ways on average: each end needs a good one.
        let ways = rng.below(255) as u8;
        let loss = if rng.chance(700) || plain { 1000 } else { 100 + rng.below(900) };
        let at = AGREED + rng.time(MS * 500);
        let back = at + rng.time(MS * 1500);
        case.faults.push((When::At(at), Fault::Ways { link, ways, loss }));
        case.faults.push((When::At(back), Fault::Ways { link, ways: 0, loss: 0 }));
    }
}

/// Has hosts want other numbers of ports while queue pairs send. An older version never says so.
fn change(rng: &mut Rng, case: &mut Case) {
    if !rng.chance(CHANGES) {
        return;
    }
    for _ in 0..=rng.below(CHANGES_MAX) {
        let host = rng.below(case.hosts as u64) as usize;
        let (at, ports) = (rng.time(MS * 1500), 1 + rng.below(8) as u8);
        if case.lanes.get(host).is_none_or(|lane| lane.ports > 0) {
            case.faults.push((When::At(at), Fault::Ports { host, ports }));
        }
    }
}
