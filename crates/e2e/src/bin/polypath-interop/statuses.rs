//! Requests that must fail: the same program runs over rxe and over Polypath, in all four combinations
//! of requester and responder, and the results must be the same.

use crate::Problem;
use crate::matrix::Sides;
use crate::peer;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The port of the program.
const PORT: u16 = 18600;
/// The index of the IPv4 address in both sides' tables of GIDs.
const GID_INDEX: &str = "1";
/// The time limit for the whole list of cases on an emulated processor.
const LIMIT: Duration = Duration::from_secs(240);
const READY: Duration = Duration::from_secs(30);

/// An implementation of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Rxe,
    Ours,
}

/// A requester and a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Couple {
    pub(crate) requester: Side,
    pub(crate) responder: Side,
}

/// All couples. The others are compared with the first.
pub(crate) const COUPLES: [Couple; 4] = [
    Couple { requester: Side::Rxe, responder: Side::Rxe },
    Couple { requester: Side::Rxe, responder: Side::Ours },
    Couple { requester: Side::Ours, responder: Side::Rxe },
    Couple { requester: Side::Ours, responder: Side::Ours },
];

impl fmt::Display for Couple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |side| if side == Side::Rxe { "rxe" } else { "Polypath" };
        write!(f, "{} to {}", name(self.requester), name(self.responder))
    }
}

/// What both ends saw in a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) case: String,
    pub(crate) requester: String,
    pub(crate) responder: String,
}

/// Parses the lines that the requester writes.
fn parse(text: &str) -> Result<Vec<Seen>, Problem> {
    let mut seen = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('\t').map(str::to_owned);
        if let (Some(case), Some(requester), Some(responder)) =
            (fields.next(), fields.next(), fields.next())
        {
            seen.push(Seen { case, requester, responder });
        } else if line == "end" {
            return Ok(seen);
        }
    }
    Err(Problem::Failed(format!("the list of cases was not run to its end:\n{text}")))
}

/// Runs all cases between a couple.
fn run(sides: &mut Sides<'_>, program: &Path, couple: Couple) -> Result<Vec<Seen>, Problem> {
    let port = PORT.to_string();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let ours = |arguments: &[&str]| {
        let mut line = vec![program.display().to_string()];
        line.extend(arguments.iter().map(|&a| a.to_owned()));
        line
    };
    let host = sides.host();
    let limit = LIMIT.as_secs();
    let server = match couple.responder {
        Side::Ours => {
            let line = ours(&["-s", &port, GID_INDEX]);
            let server = host.verbs(line).device(Some("roce")).spawn()?;
            server.wait_tcp_listen(PORT, READY)?;
            Some(server)
        }
        Side::Rxe => {
            let line = format!("timeout -s KILL {limit} {name} -s {port} {GID_INDEX}");
            sides.guest.server.start(&line)?;
            sides.guest.run(&format!("wait_tcp {port}"))?;
            None
        }
    };
    let address = if couple.responder == Side::Ours { "10.0.0.1" } else { peer::IPV4 };
    let text = match couple.requester {
        Side::Ours => {
            let line = ours(&["-c", address, &port, GID_INDEX]);
            let finished = host.verbs(line).device(Some("roce")).run(LIMIT)?;
            finished.text()
        }
        Side::Rxe => {
            let line = format!("timeout -s KILL {limit} {name} -c {address} {port} {GID_INDEX}");
            sides.guest.client.run(&line, LIMIT + READY)?.text
        }
    };
    let seen = parse(&text);
    let server = match server {
        Some(server) => server.finish(READY)?.text(),
        None => sides.guest.server.finish(READY)?.text,
    };
    seen.map_err(|e| Problem::Failed(format!("{couple}: {e}\nthe responder wrote:\n{server}")))
}

/// Runs all cases between all couples.
pub(crate) fn all(sides: &mut Sides<'_>, program: &Path) -> Result<Vec<Vec<Seen>>, Problem> {
    let mut results = Vec::new();
    for couple in COUPLES {
        let start = Instant::now();
        let seen = run(sides, program, couple)?;
        let seconds = start.elapsed().as_secs();
        polypath_e2e::say!("statuses, {couple}: {} cases in {seconds} s", seen.len());
        results.push(seen);
    }
    let left_out = keep_common(&mut results);
    if !left_out.is_empty() {
        polypath_e2e::say!("statuses, not known to this Linux' rxe: {}", left_out.join("; "));
    }
    let [first, others @ ..] = results.as_slice() else { return Ok(results) };
    let cases = |seen: &[Seen]| seen.iter().map(|s| s.case.clone()).collect::<Vec<_>>();
    if others.iter().any(|other| cases(other) != cases(first)) {
        return Err(Problem::Failed("the couples did not run the same cases".to_owned()));
    }
    Ok(results)
}

/// Keeps the cases that rxe has run with itself, and returns the names of the others.
fn keep_common(results: &mut [Vec<Seen>]) -> Vec<String> {
    let Some(reference) = results.first() else { return Vec::new() };
    let known: Vec<String> = reference.iter().map(|seen| seen.case.clone()).collect();
    let mut left_out = Vec::new();
    for seen in results {
        seen.retain(|seen| {
            let keep = known.contains(&seen.case);
            if !keep && !left_out.contains(&seen.case) {
                left_out.push(seen.case.clone());
            }
            keep
        });
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_two_tabs_are_cases_and_the_end_must_come() {
        let seen = parse("a\tSUCCESS; QP RTS\tnothing; QP RTS\nend\n").unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].responder, "nothing; QP RTS");
        assert!(parse("a\tx\ty\n").is_err());
    }

    #[test]
    fn cases_that_rxe_does_not_know_are_left_out_and_named() {
        let of = |cases: &str| {
            let text: String = cases.chars().map(|c| format!("{c}\tx\ty\n")).collect();
            parse(&(text + "end\n")).unwrap()
        };
        let mut results = [of("ab"), of("ab"), of("abc")];
        assert_eq!(keep_common(&mut results), ["c"]);
        assert_eq!(results[2], of("ab"));
    }
}
