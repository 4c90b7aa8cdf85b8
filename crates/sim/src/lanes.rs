//! How hosts use their paths. It is drawn from streams of its own, so that the rest of what a seed means
//! stays as it was.

use polypath_paths::{AffinityRule, Mode};

use crate::case::LanePlan;
use crate::rng::Rng;

/// The lanes of the hosts: in one case of fifteen all are usual. In half of the cases each host may use all
/// its paths at once. In the others it may keep each queue pair to one, send everything twice, or use few
/// paths.
pub(crate) fn draw(seed: u64, hosts: usize) -> Vec<LanePlan> {
    let rng = &mut Rng::new(seed.rotate_left(41) ^ 0x706f_6c69_6379_2d31);
    if rng.chance(500) {
        return draw_affinity(seed, hosts);
    }
    let mut lane = || {
        let mode = if rng.chance(750) { Mode::Balance } else { Mode::ActiveBackup };
        LanePlan { mode, ..LanePlan::default() }
    };
    (0..hosts).map(|_| lane()).collect()
}

fn draw_affinity(seed: u64, hosts: usize) -> Vec<LanePlan> {
    let rng = &mut Rng::new(seed.rotate_left(29) ^ 0x706f_6c69_6379_2d32);
    if rng.chance(650) {
        return draw_redundant(seed, hosts);
    }
    let mut lane = || {
        let mode = match rng.below(6) {
            0..=1 => Mode::Affinity(AffinityRule::Hash),
            2..=3 => Mode::Affinity(AffinityRule::RoundRobin),
            4 => Mode::Balance,
            _ => Mode::ActiveBackup,
        };
        LanePlan { mode, ..LanePlan::default() }
    };
    (0..hosts).map(|_| lane()).collect()
}

fn draw_redundant(seed: u64, hosts: usize) -> Vec<LanePlan> {
    let rng = &mut Rng::new(seed.rotate_left(17) ^ 0x706f_6c69_6379_2d33);
    if rng.chance(500) {
        return draw_efficient(seed, hosts);
    }
    let mut lane = || {
        let mode = match rng.below(5) {
            0..=2 => Mode::Redundant,
            3 => Mode::Balance,
            _ => Mode::ActiveBackup,
        };
        LanePlan { mode, ..LanePlan::default() }
    };
    (0..hosts).map(|_| lane()).collect()
}

fn draw_efficient(seed: u64, hosts: usize) -> Vec<LanePlan> {
    let rng = &mut Rng::new(seed.rotate_left(11) ^ 0x706f_6c69_6379_2d34);
    if rng.chance(400) {
        return Vec::new();
    }
    let mut lane = || {
        let mode = match rng.below(5) {
            0..=2 => Mode::Efficient,
            3 => Mode::Redundant,
            _ => Mode::ActiveBackup,
        };
        let dear_link = if rng.chance(500) { Some(rng.below(2) as usize) } else { None };
        LanePlan { mode, dear_link, ..LanePlan::default() }
    };
    (0..hosts).map(|_| lane()).collect()
}
