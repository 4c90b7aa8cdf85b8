//! A bond of our own in one guest, whose members share an address, and one of the kernel's in the other.

use crate::cases::{self, Fault, Kind, OURS};
use crate::stage::{LIMIT, Mode, Stage};
use polypath_e2e::guest::Problem;
use std::fmt;
use std::time::Instant;

/// The interfaces.
const SLAVES: usize = 2;

/// What runs over the kernel's bond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Polypath, which adopts the bond.
    Polypath,
    /// The kernel's rxe, whose queue pairs know one path.
    Rxe,
}

/// A program over both bonds.
#[derive(Clone, Copy, Debug)]
struct Case {
    mode: Mode,
    peer: Peer,
    kind: Kind,
    /// What happens to one interface after the other. Only Polypath's own queue pairs outlast a silence that
    /// swallows the answers of the peer, too, until LACP finds it. Without LACP, it lasts.
    faults: &'static [Fault],
}

const CASES: [Case; 5] = [
    Case {
        mode: Mode::Lacp,
        peer: Peer::Polypath,
        kind: Kind::Rping,
        faults: &[Fault::Carrier, Fault::Carrier, Fault::Silence, Fault::Silence],
    },
    Case {
        mode: Mode::Lacp,
        peer: Peer::Polypath,
        kind: Kind::Perftest("ib_write_bw -s 65536 -q 4"),
        faults: &[Fault::Carrier, Fault::Carrier, Fault::Silence, Fault::Silence],
    },
    Case {
        mode: Mode::Lacp,
        peer: Peer::Rxe,
        kind: Kind::Perftest("ib_write_bw -s 65536 -q 4"),
        faults: &[Fault::Carrier, Fault::Carrier],
    },
    Case {
        mode: Mode::BalanceXor,
        peer: Peer::Polypath,
        kind: Kind::Perftest("ib_send_bw -s 65536 -q 4"),
        faults: &[Fault::Carrier, Fault::Carrier],
    },
    Case {
        mode: Mode::BalanceXor,
        peer: Peer::Rxe,
        kind: Kind::Perftest("ib_write_bw -s 65536 -q 4"),
        faults: &[Fault::Carrier, Fault::Carrier],
    },
];

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = if self.peer == Peer::Rxe { "rxe" } else { "Polypath" };
        write!(f, "own members to {peer} over {}, {SLAVES} slaves, {}", self.mode, self.kind)
    }
}

/// Runs the cases whose names contain `only`.
pub(crate) fn run_all(stage: &mut Stage, only: &str) -> Result<(), Problem> {
    for mode in [Mode::Lacp, Mode::BalanceXor] {
        let wanted = |case: &&Case| case.mode == mode && case.to_string().contains(only);
        let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
        if cases.is_empty() {
            continue;
        }
        stage.own_up(mode, SLAVES)?;
        for case in cases {
            let began = Instant::now();
            case.run(stage).map_err(|problem| Problem::Failed(format!("{case}: {problem}")))?;
            polypath_e2e::say!("{case}: ok, {} s", began.elapsed().as_secs());
        }
        stage.own_down(SLAVES)?;
    }
    Ok(())
}

impl Case {
    fn run(&self, stage: &mut Stage) -> Result<(), Problem> {
        // The same hold time as at the other end.
        let device = format!("--device bond:eth0+eth1,mode={},affinity=round-robin --", self.mode);
        let own = OURS.replace("--", &device);
        if self.peer == Peer::Rxe {
            stage.run(0, "polypath broker --shutdown --force; rxe_on")?;
        }
        let peer = if self.peer == Peer::Rxe { "env" } else { OURS };
        cases::start(stage, self.kind, [peer, &own])?;
        self.play(stage).map_err(|problem| cases::with_output(stage, &problem))?;
        cases::end(stage, self.kind)?;
        if self.peer == Peer::Rxe {
            stage.run(0, "rxe_off")?;
        }
        Ok(())
    }

    fn play(&self, stage: &mut Stage) -> Result<(), Problem> {
        if self.kind != Kind::Rping {
            for cable in 0..SLAVES {
                cases::progress_by(stage, cable, "at the start", LIMIT)?;
            }
        }
        for (number, fault) in self.faults.iter().enumerate() {
            let cable = number % SLAVES;
            let what = format!("{fault:?} of eth{cable}");
            fault.set(stage, cable, true)?;
            cases::progress(stage, &format!("during {what}"), LIMIT)?;
            fault.set(stage, cable, false)?;
            stage.own_whole(self.mode, SLAVES)?;
            cases::progress(stage, &format!("after {what}"), LIMIT)?;
        }
        Ok(())
    }
}
