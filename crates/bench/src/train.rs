//! The training run of a profile: programs that do a little of everything, mostly small messages.
//!
//! A small message runs through all layers once, and most of its time is spent on fetching
//! instructions. A compiler that knows which instructions are used puts these next to each other
//! (`tools/optimise`).

use crate::speed::run_pair;
use polypath_e2e::{Error, Lab, Options, Wiring, twice};

/// The programs of perftest that run on each device. They send little bulk data, because its loops
/// would outweigh the rest, and the compiler takes code that counts too little for unused.
const PROGRAMS: [&str; 14] = [
    "ib_send_lat -s 64 -n 100000",
    "ib_send_lat -s 64 -n 20000 -e",
    "ib_send_lat -s 64 -n 20000 -I 64",
    "ib_send_lat -s 4000 -n 20000",
    "ib_send_lat -c UC -s 64 -n 20000",
    "ib_send_lat -c UD -s 64 -n 20000",
    "ib_write_lat -s 64 -n 1000",
    "ib_read_lat -s 64 -n 20000",
    "ib_atomic_lat -n 20000",
    "ib_send_bw -s 64 -n 20000",
    "ib_send_bw -s 65536 -n 500",
    "ib_write_bw -s 65536 -n 500 -q 4",
    "ib_write_bw -s 1048576 -n 100",
    "ib_read_bw -s 65536 -n 500",
];

/// Runs the programs on every kind of device.
pub(crate) fn train() -> Result<(), Error> {
    for (device, links) in [("roce", 1), ("mp", 2)] {
        let lab = Lab::with(Options { links, wiring: Wiring::Direct, ..Options::default() })?;
        for program in PROGRAMS {
            let words: Vec<&str> = program.split_whitespace().collect();
            twice(|| run_pair(&lab, device, &words))?;
            polypath_e2e::say!("{device}: {program}");
        }
    }
    Ok(())
}
