//! How hosts use their paths. It is drawn from a stream of its own, so that the rest of what a seed means
//! stays as it was.

use polypath_paths::Mode;

use crate::case::LanePlan;
use crate::rng::Rng;

/// The lanes of the hosts: in half of the cases all are usual, in the others each host may use all its paths
/// at once.
pub(crate) fn draw(seed: u64, hosts: usize) -> Vec<LanePlan> {
    let rng = &mut Rng::new(seed.rotate_left(41) ^ 0x706f_6c69_6379_2d31);
    if rng.chance(500) {
        return Vec::new();
    }
    let mut lane = || {
        let mode = if rng.chance(750) { Mode::Balance } else { Mode::ActiveBackup };
        LanePlan { mode, ..LanePlan::default() }
    };
    (0..hosts).map(|_| lane()).collect()
}
