//! Writes the result as Markdown: long for the build's directory, short for the documentation.

use crate::cases::PAIRS;
use crate::known::Difference;
use crate::matrix::{Cause, Direction, Ip, Outcome};
use crate::statuses::Seen;
use std::fmt::Write as _;

/// A table with one line per run: case, direction, IP, MTU, outcome.
pub(crate) fn long(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| case | direction | IP | MTU | device | losses | outcome | s |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let setting = outcome.setting;
        let losses = if setting.faults { "yes" } else { "no" };
        let seconds = outcome.took.as_secs_f64();
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {losses} | {} | {seconds:.1} |",
            outcome.pair.name,
            setting.direction,
            setting.ip,
            setting.mtu,
            setting.device,
            verdict(outcome),
        )
        .ok();
    }
    text
}

/// The outcome of a run in a few words.
pub(crate) fn verdict(outcome: &Outcome) -> String {
    let mut text = if outcome.failure.is_some() { "FAILED" } else { "ok" }.to_owned();
    if !outcome.earlier.is_empty() {
        let causes: Vec<_> = outcome.earlier.iter().map(|(cause, _)| cause.to_string()).collect();
        let _ = write!(text, " at attempt {}: {}", causes.len() + 1, causes.join("; "));
    }
    text
}

/// The number of runs that needed another attempt, by cause; empty if there was none.
pub(crate) fn again(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for cause in [Cause::Forsaken, Cause::Unreliable] {
        let of = |o: &&Outcome| o.failure.is_none() && o.earlier.iter().any(|(c, _)| *c == cause);
        match outcomes.iter().filter(of).count() {
            0 => {}
            count => {
                let _ = write!(text, ", {count} at a later attempt ({cause})");
            }
        }
    }
    text
}

/// A table of the MTUs that worked, per pair and direction. Pairs that were not run keep their line of
/// `old`.
pub(crate) fn short(outcomes: &[Outcome], old: &str) -> String {
    let mut text = String::from(
        "| programs | IPv4, rxe to Polypath | IPv4, Polypath to rxe | IPv6, rxe to Polypath | \
         IPv6, Polypath to rxe | losses | `mp` |\n|---|---|---|---|---|---|---|\n",
    );
    for pair in PAIRS {
        let of_pair = || outcomes.iter().filter(|o| o.pair.name == pair.name);
        let begin = format!("| `{}` |", pair.name);
        if of_pair().next().is_none() {
            let kept = old.lines().find(|line| line.starts_with(&begin));
            text += &kept.map(|line| format!("{line}\n")).unwrap_or_default();
            continue;
        }
        text += &begin;
        for ip in [Ip::V4, Ip::V6] {
            for direction in [Direction::RxeToOurs, Direction::OursToRxe] {
                let cell = mtus(of_pair().filter(|o| {
                    let s = o.setting;
                    s.ip == ip && s.direction == direction && !s.faults && s.device == "roce"
                }));
                write!(text, " {cell} |").ok();
            }
        }
        let all =
            |chosen: Vec<&Outcome>| match chosen.iter().filter(|o| o.failure.is_some()).count() {
                _ if chosen.is_empty() => String::new(),
                0 => "ok".to_owned(),
                failed => format!("{failed} of {} FAILED", chosen.len()),
            };
        let losses = all(of_pair().filter(|o| o.setting.faults).collect());
        let multi = all(of_pair().filter(|o| o.setting.device != "roce").collect());
        writeln!(text, " {losses} | {multi} |").ok();
    }
    text
}

/// The MTUs of runs, smallest first. Those that failed are marked.
fn mtus<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> String {
    let mut runs: Vec<_> = outcomes
        .map(|o| (o.setting.mtu, if o.failure.is_some() { " FAILED" } else { "" }))
        .collect();
    runs.sort_unstable();
    let words: Vec<_> = runs.iter().map(|(mtu, word)| format!("{mtu}{word}")).collect();
    words.join(", ")
}

/// A table of the status of each case with rxe at both ends, and whether all couples agree.
pub(crate) fn statuses(reference: &[Seen], differences: &[Difference]) -> String {
    let mut text =
        String::from("| case | requester | responder | all couples |\n|---|---|---|---|\n");
    for Seen { case, requester, responder } in reference {
        let differs = differences.iter().any(|d| &d.case == case);
        let agree = if differs { "no, see above" } else { "the same" };
        writeln!(text, "| {case} | {requester} | {responder} | {agree} |").ok();
    }
    text
}

/// Differences as rows of the table of known differences, with an empty reason.
pub(crate) fn rows(differences: &[Difference]) -> String {
    let mut text = String::new();
    for d in differences {
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | |",
            d.case, d.end, d.couple, d.reference, d.seen
        )
        .ok();
    }
    text
}

/// The page with a new result between the comments of this name; `None` if there are none.
pub(crate) fn page(old: &str, place: &str, result: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {place}: begin -->"), format!("<!-- {place}: end -->"));
    let (before, rest) = old.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n\n{}\n\n{end}{after}", result.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn a_result_takes_the_place_of_the_last_one() {
        let old = "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n";
        let new = page(old, "x", "new\n").unwrap();
        assert_eq!(new, "a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n");
        assert_eq!(page(&new, "x", "new").as_deref(), Some(new.as_str()));
        assert_eq!(page("nothing", "x", "new"), None);
    }
}
