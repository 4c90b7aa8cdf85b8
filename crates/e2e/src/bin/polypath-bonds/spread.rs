//! How the queue pairs of a plain RoCE device spread over the slaves of a bond.

use crate::cases;
use crate::stage::{ADDRESSES, LIMIT, Mode, Stage};
use polypath_e2e::guest::Problem;
use std::time::Instant;

/// The bond.
const MODE: Mode = Mode::Lacp;
/// As many slaves as queue pairs, so that each has one of its own.
const SLAVES: usize = 4;
/// The program. Without rdma_cm, which gives each connection a flow label, and with it a source port.
const PROGRAM: &str = "polypath run --device roce:bond0 -- stdbuf -oL \
                       ib_write_bw -s 65536 -q 4 -D 3600 -f 1";
/// The TCP port on which it listens.
const PORT: u16 = 18515;
/// So many slaves must carry, and so many bytes each. A queue pair whose peer is silent for long takes
/// another slave, which happens on busy machines. Without spreading there is one.
const WANTED: usize = 3;
const EACH: u64 = 4 << 20;
/// Queue pairs need not be equally fast: so many bytes in all are waited for.
const ALL: u64 = 32 * EACH;

/// The name of the case.
pub(crate) fn name() -> String {
    format!("{MODE}, {SLAVES} slaves, plain queue pairs spread")
}

/// Runs the case. Returns the received bytes by slave.
pub(crate) fn run(stage: &mut Stage) -> Result<Vec<u64>, Problem> {
    stage.bond(MODE, SLAVES)?;
    stage.both("rm -f /tmp/program")?;
    stage.guest(0).server.start(&format!("program {PROGRAM}"))?;
    stage.wait_tcp(0, PORT)?;
    stage.guest(1).server.start(&format!("program {PROGRAM} {}", ADDRESSES[0]))?;
    let went = watch(stage).map_err(|problem| cases::with_output(stage, &problem));
    cases::stop(stage)?;
    went
}

fn watch(stage: &mut Stage) -> Result<Vec<u64>, Problem> {
    cases::progress(stage, "at the start", LIMIT)?;
    let (start, before) = (Instant::now(), stage.received()?);
    loop {
        cases::progress(stage, "while its slaves were watched", LIMIT)?;
        let now = stage.received()?;
        let grown: Vec<u64> =
            now.iter().zip(&before).map(|(now, before)| now - before).take(SLAVES).collect();
        if grown.iter().filter(|bytes| **bytes >= EACH).count() >= WANTED {
            return Ok(grown);
        }
        if start.elapsed() > LIMIT || grown.iter().sum::<u64>() > ALL {
            let paths = stage.run(1, "polypath status")?;
            return Err(Problem::Failed(format!("the slaves carried {grown:?} bytes\n{paths}")));
        }
    }
}
