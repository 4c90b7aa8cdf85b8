//! Queue pairs that are frozen and thawed in the middle of their work, as when a machine moves. They
//! are drawn from a stream of their own, so that the rest of a seed's meaning stays as it was.

use core::time::Duration;

use crate::case::Case;
use crate::faults::{Fault, When};
use crate::judge::{Verdict, demand};
use crate::rng::Rng;
use crate::run::Simulation;

/// Queue pairs are frozen within this time after they were connected.
const WORK: Duration = Duration::from_millis(700);
/// The number of cases in a thousand that have frozen queue pairs.
const SHARE: u64 = 200;

/// Draws a time, or a number of packets, because packets come in bursts.
pub(crate) fn any_step(rng: &mut Rng) -> When {
    match rng.chance(500) {
        true => When::At(rng.time(WORK)),
        false => When::Packet(rng.below(3000)),
    }
}

/// Adds to a case the queue pairs that its seed freezes.
pub(crate) fn add(seed: u64, case: &mut Case) {
    let rng = &mut Rng::new(seed.rotate_left(31) ^ 0x6672_6565_7a65_7468);
    if !rng.chance(SHARE) {
        return;
    }
    for _ in 0..=rng.below(12) {
        let pair = rng.below(case.pairs.len() as u64) as usize;
        let end = rng.below(2) as usize;
        let when = any_step(rng);
        case.faults.push((when, Fault::Freeze { pair, end }));
    }
}

impl Simulation {
    /// Freezes a queue pair into bytes, and thaws it from them at once.
    pub(crate) fn freeze(&mut self, pair: usize, e: usize) -> Verdict {
        let end = &self.oracle.pairs[pair].ends[e];
        let (number, qpn) = (end.host, end.qpn);
        let host = &mut self.hosts[number];
        host.begin(self.now);
        let thawed = host.with(qpn, |visit| {
            let bytes = visit.freeze();
            visit.thaw(&bytes)
        });
        let thawed = thawed.unwrap_or(Ok(()));
        demand(thawed.is_ok(), "a frozen queue pair can be thawed", || {
            format!("{qpn:#x}: {thawed:?}")
        })?;
        self.check(number)
    }
}
