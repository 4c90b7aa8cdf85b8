//! `polypath doctor`: looks at everything that commonly goes wrong, each finding with its cure.
//!
//! A check is a function that looks at one thing and gives findings; the reading of system files and
//! the judging of what they say are apart, so that the judging is tested.

mod library;
mod network;
mod port;
mod system;

use crate::args::Doctor;
use crate::error::CliError;
use polypath_ipc::{Client, Hello, IpcError};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Works, but worse than it could.
    Warning,
    /// Something will not work.
    Error,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    /// What was found.
    what: String,
    /// What to do about it; empty if nothing need be done.
    cure: String,
}

impl Finding {
    fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), cure: String::new() }
    }

    fn note(what: impl Into<String>) -> Self {
        Self { level: Level::Note, what: what.into(), cure: String::new() }
    }

    fn warning(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { level: Level::Warning, what: what.into(), cure: cure.into() }
    }

    fn error(what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { level: Level::Error, what: what.into(), cure: cure.into() }
    }
}

/// Runs every check.
pub(crate) fn run(arguments: &Doctor) -> Result<ExitCode, CliError> {
    let mut findings = library::check();
    findings.extend(system::check());
    findings.extend(broker(arguments.device.as_deref().unwrap_or_default()));
    let worst = findings.iter().map(|finding| finding.level).max();
    let text = if arguments.json { as_json(&findings) } else { as_text(&findings) };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if worst == Some(Level::Error) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What needs a broker to be looked at, and what stops one from running.
fn broker(device: &str) -> Vec<Finding> {
    let hello = Hello::of_this_process(device);
    let mut client = match Client::connect_or_start(&hello) {
        Ok(client) => client,
        Err(error) => {
            let mut findings = port::check(None);
            findings.push(Finding::error(error.to_string(), cure_of(&error)));
            return findings;
        }
    };
    let pid = client.broker_pid();
    let mut findings = vec![Finding::ok(format!("the broker runs (process {pid})"))];
    findings.extend(port::check(Some(pid)));
    match client.table() {
        Ok(table) => findings.extend(network::check(&table, client.selection())),
        Err(error) => findings.push(Finding::error(error.to_string(), cure_of(&error))),
    }
    findings
}

fn cure_of(error: &IpcError) -> &'static str {
    match error {
        IpcError::Version { .. } => "polypath broker --shutdown --force",
        IpcError::Start(_) | IpcError::NoBroker => {
            "run `polypath broker` by hand and read what it says"
        }
        IpcError::Selection(_) => "see `polypath devices` and `ip link` for what is there",
        IpcError::ForeignUser { .. } => "end the other user's process that holds the name",
        _ => "look into ~/.local/state/polypath/broker.log",
    }
}

fn as_json(findings: &[Finding]) -> String {
    // Only maps with keys other than text could fail, and there are none.
    serde_json::to_string_pretty(findings).unwrap_or_default() + "\n"
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => "ok     ",
            Level::Note => "note   ",
            Level::Warning => "warning",
            Level::Error => "ERROR  ",
        };
        text += &format!("{mark}  {}\n", finding.what);
        if !finding.cure.is_empty() {
            text += &format!("         -> {}\n", finding.cure);
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    text += &match (count(Level::Error), count(Level::Warning)) {
        (0, 0) => "everything looks right\n".to_owned(),
        (errors, warnings) => format!("{errors} errors, {warnings} warnings\n"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_printed_with_its_cure() {
        let findings = [Finding::ok("fine"), Finding::error("broken", "mend it")];
        let text = as_text(&findings);
        assert!(text.contains("ERROR    broken\n         -> mend it\n"), "{text}");
        assert!(text.ends_with("1 errors, 0 warnings\n"));
    }
}
