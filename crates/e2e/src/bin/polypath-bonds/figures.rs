//! The same traffic over a bond by Polypath, by Linux rxe and by TCP: for how long it stands still when a
//! slave fails, and how it spreads over slaves.

use crate::cases::{self, Kind, OURS};
use crate::stage::{ADDRESSES, Mode, Stage};
use polypath_e2e::guest::Problem;
use polypath_e2e::pass;
use std::fmt;
use std::time::Duration;

/// The numbers of queue pairs, or of TCP connections, whose shares of slaves are measured.
pub(crate) const FLOWS: [u32; 3] = [1, 4, 16];
/// The slaves of the bonds.
const SLAVES: usize = 2;
/// The time of calm before and after a fault, and for which shares are measured.
const CALM: Duration = Duration::from_secs(2);
/// The longest time for which traffic may stand still.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);
/// The port of iperf3.
const IPERF: u16 = 5201;

/// What carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Polypath,
    Rxe,
    Tcp,
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Polypath => "Polypath",
            Self::Rxe => "Linux rxe",
            Self::Tcp => "TCP (iperf3)",
        })
    }
}

/// A time between two marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Begin and end, in microseconds since the measurement began.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The longest time without traffic that began in it, in microseconds.
    pub(crate) gap: u64,
    /// The received bytes by slave.
    pub(crate) bytes: Vec<u64>,
}

/// What was seen of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) phases: Vec<Phase>,
    /// The received bytes of each 50 ms.
    pub(crate) bins: Vec<u64>,
    /// Why there are fewer phases than were wanted.
    pub(crate) failure: Option<String>,
}

/// The figures of one carrier under one mode. What could not be measured says why.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) mode: Mode,
    pub(crate) carrier: Carrier,
    /// Phases: calm, a carrier lost, that slave back, calm again, silence, and back.
    pub(crate) faults: Result<Seen, String>,
    /// For each of [`FLOWS`] the received bytes by slave, unless the mode uses one slave alone.
    pub(crate) shares: Vec<Result<Vec<u64>, String>>,
}

impl Figures {
    /// Why it was not all measured, if so.
    pub(crate) fn failure(&self) -> Option<&str> {
        let faults = match &self.faults {
            Ok(seen) => seen.failure.as_ref(),
            Err(reason) => Some(reason),
        };
        let shares = self.shares.iter().filter_map(|share| share.as_ref().err());
        faults.into_iter().chain(shares).next().map(String::as_str)
    }

    /// The gaps in milliseconds and the bytes by slave, as they were measured.
    fn short(&self) -> String {
        let gaps = match &self.faults {
            Ok(seen) => {
                format!("{:?}", seen.phases.iter().map(|p| p.gap / 1000).collect::<Vec<_>>())
            }
            Err(reason) => reason.clone(),
        };
        let failure = self.failure().unwrap_or("none");
        format!("  gaps, ms: {gaps}; bytes by slave: {:?}; failure: {failure}", self.shares)
    }
}

/// Measures everything.
pub(crate) fn all(stage: &mut Stage) -> Result<Vec<Figures>, Problem> {
    let mut figures = Vec::new();
    for mode in Mode::ALL {
        stage.bond(mode, SLAVES)?;
        for carrier in [Carrier::Polypath, Carrier::Tcp, Carrier::Rxe] {
            polypath_e2e::say!("measuring {carrier} over {mode}");
            if carrier == Carrier::Rxe {
                stage.both("polypath broker --shutdown --force; rxe_on")?;
            }
            let measured = one(stage, mode, carrier);
            if carrier == Carrier::Rxe {
                stage.both("rxe_off")?;
            }
            let measured = measured?;
            polypath_e2e::say!("{}", measured.short());
            figures.push(measured);
        }
    }
    Ok(figures)
}

fn one(stage: &mut Stage, mode: Mode, carrier: Carrier) -> Result<Figures, Problem> {
    let mut transfer = |flows, faults: bool| -> Result<Result<Seen, String>, Problem> {
        stage.wait_whole()?;
        let seen = match start(stage, carrier, flows) {
            Ok(()) => watch(stage, mode, faults),
            Err(problem) => Err(problem),
        };
        cases::stop(stage)?;
        // A fault that was not taken back would spoil what follows.
        if seen.as_ref().map_or(true, |seen| seen.failure.is_some()) {
            restore(stage)?;
        }
        Ok(seen.map_err(|problem| problem.to_string()))
    };
    let faults = transfer(1, true)?;
    let mut shares = Vec::new();
    if mode != Mode::ActiveBackup {
        for flows in FLOWS {
            let last = |seen: Seen| seen.phases.last().map(|phase| phase.bytes.clone());
            shares.push(transfer(flows, false)?.map(|seen| last(seen).unwrap_or_default()));
        }
    }
    Ok(Figures { mode, carrier, faults, shares })
}

fn start(stage: &mut Stage, carrier: Carrier, flows: u32) -> Result<(), Problem> {
    if carrier == Carrier::Tcp {
        stage.both("rm -f /tmp/program")?;
        stage.guest(0).server.start(&format!("program iperf3 -s -1 -p {IPERF}"))?;
        stage.wait_tcp(0, IPERF)?;
        let client = format!("program iperf3 -c {} -p {IPERF} -t 3600 -P {flows}", ADDRESSES[0]);
        stage.guest(1).server.start(&client)?;
        return cases::progress(stage, "at the start", PATIENCE);
    }
    let over = if carrier == Carrier::Polypath { OURS } else { "env" };
    cases::start(stage, kind(flows), [over; 2])
}

/// The program of perftest with so many queue pairs.
fn kind(flows: u32) -> Kind {
    Kind::Perftest(match flows {
        1 => "ib_write_bw -s 65536 -q 1",
        4 => "ib_write_bw -s 65536 -q 4",
        _ => "ib_write_bw -s 65536 -q 16",
    })
}

/// Measures a transfer that has been started.
fn watch(stage: &mut Stage, mode: Mode, faults: bool) -> Result<Seen, Problem> {
    stage.run(0, &format!("flows_on {SLAVES}"))?;
    let went = phases(stage, mode, faults);
    let text = stage.run(0, "flows_off")?;
    let mut seen = parse(&text).ok_or_else(|| Problem::Failed(format!("flows wrote:\n{text}")))?;
    seen.failure = went.err().map(|problem| problem.to_string());
    Ok(seen)
}

/// Marks the end of a phase.
fn mark(stage: &mut Stage) -> Result<(), Problem> {
    stage.run(0, "phase").map(drop)
}

fn phases(stage: &mut Stage, mode: Mode, faults: bool) -> Result<(), Problem> {
    // What the programs do at first is left out.
    pass(CALM);
    mark(stage)?;
    pass(CALM);
    if !faults {
        return Ok(());
    }
    let cable = carrying(stage)?;
    mark(stage)?;
    stage.cable(cable, false)?;
    cases::progress(stage, "after a carrier was lost", PATIENCE)?;
    pass(CALM);
    mark(stage)?;
    stage.cable(cable, true)?;
    stage.wait_whole()?;
    cases::progress(stage, "after the carrier came back", PATIENCE)?;
    pass(CALM);
    let cable = carrying(stage)?;
    mark(stage)?;
    stage.both(&format!("silence eth{cable}"))?;
    // Without LACP, the kernel never leaves a slave that is only silent.
    match mode {
        Mode::Lacp => cases::progress(stage, "while a slave is silent", PATIENCE)?,
        _ => pass(CALM),
    }
    mark(stage)?;
    stage.both(&format!("speak eth{cable}"))?;
    stage.wait_whole()?;
    cases::progress(stage, "after the silence", PATIENCE)?;
    pass(CALM);
    Ok(())
}

/// The slave that carries most of the traffic now.
fn carrying(stage: &mut Stage) -> Result<usize, Problem> {
    let before = stage.received()?;
    cases::progress(stage, "in calm", PATIENCE)?;
    let after = stage.received()?;
    let grown = after.iter().zip(&before).map(|(after, before)| after - before);
    Ok(grown.enumerate().max_by_key(|(_, bytes)| *bytes).map_or(0, |(link, _)| link))
}

/// Takes every fault back.
fn restore(stage: &mut Stage) -> Result<(), Problem> {
    for cable in 0..SLAVES {
        stage.cable(cable, true)?;
        stage.both(&format!("speak eth{cable} 2> /dev/null; true"))?;
    }
    stage.wait_whole()
}

/// Reads what `flows` wrote.
fn parse(text: &str) -> Option<Seen> {
    let mut seen = Seen { phases: Vec::new(), bins: Vec::new(), failure: None };
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let numbers = |words: &[&str]| -> Option<Vec<u64>> {
            words.iter().map(|word| word.parse().ok()).collect()
        };
        match words.as_slice() {
            ["phase", from, to, "gap", gap, "bytes", bytes @ ..] => {
                let times = numbers(&[from, to, gap])?;
                let &[from, to, gap] = times.as_slice() else { return None };
                seen.phases.push(Phase { from, to, gap, bytes: numbers(bytes)? });
            }
            ["bins", bins @ ..] => seen.bins = numbers(bins)?,
            _ => return None,
        }
    }
    (!seen.phases.is_empty() && !seen.bins.is_empty()).then_some(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_flows_writes_is_read() {
        let seen = parse("phase 0 50 gap 7 bytes 1 2\nphase 50 90 gap 8 bytes 3 4\nbins 4 6\n");
        let phase = |from, to, gap, bytes: &[u64]| Phase { from, to, gap, bytes: bytes.to_vec() };
        let phases = vec![phase(0, 50, 7, &[1, 2]), phase(50, 90, 8, &[3, 4])];
        assert_eq!(seen, Some(Seen { phases, bins: vec![4, 6], failure: None }));
        assert_eq!(parse("reading a counter: no such file\n"), None);
        assert_eq!(parse(""), None);
    }
}
