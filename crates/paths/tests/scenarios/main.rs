//! Scenarios of two lanes over simulated links, in virtual time, over seeds.

mod agreement;
mod changes;
mod datagrams;
mod detours;
mod hostile;
mod lag;
mod liveness;
mod local;
mod net;
mod ports;
mod shares;
mod tcp;

use net::{MS, Net};
use polypath_paths::{PathEvent, Reason};

const SEEDS: u64 = 40;

fn connected(seed: u64) -> Net {
    let mut net = Net::new(seed, 2);
    net.connect();
    net.run(100 * MS);
    assert!(net.agreed(), "seed {seed}");
    net
}

fn failed_over(e: &PathEvent) -> bool {
    matches!(e, PathEvent::ActiveChanged { reason, .. }
        if !matches!(reason, Reason::Primary | Reason::Association))
}
