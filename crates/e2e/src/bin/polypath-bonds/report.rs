//! Tables and plots of the figures.

use crate::figures::{Carrier, FLOWS, Figures, PATIENCE, Phase, Seen};
use crate::stage::Mode;
use polypath_e2e::{Curve, svg};
use std::fmt::Write as _;
use std::time::Duration;

/// The numbers of the phases in which something happens, of those in [`Figures::faults`].
const CALM: usize = 1;
const LOST: usize = 2;
const BACK: usize = 3;
const SILENT: usize = 4;
const SPEAKS: usize = 5;
/// The time of a bin in microseconds, as in c/flows.c.
const BIN: f64 = 50_000.0;

/// How long traffic stood still, and how fast it was compared to TCP.
pub(crate) fn blackouts(figures: &[Figures]) -> String {
    let mut text = "| bond | carrier | speed, of TCP's | longest gap in calm, ms | carrier lost \
                    | it comes back | silence | silence ends |\n|---|---|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for row in figures {
        let tcp = figures.iter().find(|f| f.mode == row.mode && f.carrier == Carrier::Tcp);
        let tcp = tcp.and_then(|tcp| speed(tcp.faults.as_ref().ok()?));
        match &row.faults {
            Err(reason) => {
                let reason = reason.lines().next().unwrap_or_default();
                writeln!(text, "| {} | {} | failed: {reason} | | | | | |", row.mode, row.carrier)
            }
            Ok(seen) => {
                let ratio = match (speed(seen), tcp) {
                    (Some(own), Some(tcp)) => format!("{:.2}", own / tcp),
                    _ => String::new(),
                };
                let gap = |phase: usize| match seen.phases.get(phase) {
                    None => "not run".to_owned(),
                    Some(phase) if Duration::from_micros(phase.gap) >= PATIENCE => {
                        "no end".to_owned()
                    }
                    // What nobody notices lasts as long as it is.
                    Some(phase) if phase.gap >= length(phase) => "all of it".to_owned(),
                    Some(phase) => format!("{:.0}", phase.gap as f64 / 1000.0),
                };
                let phases = [CALM, LOST, BACK, SILENT, SPEAKS].map(gap).join(" | ");
                writeln!(text, "| {} | {} | {ratio} | {phases} |", row.mode, row.carrier)
            }
        }
        .ok();
    }
    for row in figures {
        if let Some(failure) = row.failure() {
            let failure = failure.lines().next().unwrap_or_default();
            writeln!(text, "\n{}, {}: {failure}.", row.mode, row.carrier).ok();
        }
    }
    text
}

fn length(phase: &Phase) -> u64 {
    phase.to - phase.from
}

/// Bytes in a microsecond of calm.
fn speed(seen: &Seen) -> Option<f64> {
    let calm = seen.phases.get(CALM)?;
    let bytes: u64 = calm.bytes.iter().sum();
    Some(bytes as f64 / length(calm).max(1) as f64)
}

/// Which share of the bytes each slave carried.
pub(crate) fn shares(figures: &[Figures]) -> String {
    let mut text = "| bond | carrier |".to_owned();
    let flows: String = FLOWS.iter().map(|flows| format!(" {flows} |")).collect();
    writeln!(text, "{flows}\n|---|---|{}", "--:|".repeat(FLOWS.len())).ok();
    for row in figures.iter().filter(|row| row.mode != Mode::ActiveBackup) {
        write!(text, "| {} | {} |", row.mode, row.carrier).ok();
        for share in &row.shares {
            match share {
                Ok(bytes) => write!(text, " {} |", percent(bytes)).ok(),
                Err(reason) => {
                    let reason = reason.lines().next().unwrap_or_default();
                    write!(text, " failed: {reason} |").ok()
                }
            };
        }
        text.push('\n');
    }
    text
}

/// Bytes as shares: "50 : 50".
fn percent(bytes: &[u64]) -> String {
    let sum = bytes.iter().sum::<u64>().max(1) as f64;
    let parts: Vec<String> =
        bytes.iter().map(|bytes| format!("{:.0}", 100.0 * *bytes as f64 / sum)).collect();
    parts.join(" : ")
}

/// The plot of a mode: one curve for each carrier.
pub(crate) fn plot(figures: &[Figures], mode: Mode) -> String {
    let curves: Vec<Curve> = figures
        .iter()
        .filter(|row| row.mode == mode)
        .filter_map(|row| Some((row.carrier, row.faults.as_ref().ok()?)))
        .map(|(carrier, seen)| {
            let at = |phase: usize, word: &str| {
                let from = seen.phases.get(phase)?.from;
                Some((from as f64 / BIN, word.to_owned()))
            };
            let events = [
                at(LOST, "carrier lost"),
                at(BACK, "back"),
                at(SILENT, "silent"),
                at(SPEAKS, "speaks again"),
            ];
            let name = format!("{carrier}, {mode}");
            Curve {
                name,
                values: seen.bins.clone(),
                parts: Vec::new(),
                whole: None,
                events: events.into_iter().flatten().collect(),
            }
        })
        .collect();
    svg(&format!("received bytes over a bond, {mode}"), BIN / 1e6, &curves)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_sum() {
        assert_eq!(percent(&[30, 10]), "75 : 25");
        assert_eq!(percent(&[0, 0]), "0 : 0");
    }
}
