//! `polypath doctor`: checks everything that commonly goes wrong. Each finding has its cure.
//!
//! A check is a function that looks at one thing and returns findings. Reading system files and
//! judging their contents are separate functions, so that the judging can be tested.

mod config;
mod library;
mod mtu;
mod network;
mod settings;
mod system;

use crate::args::Doctor;
use crate::error::CliError;
use crate::text::count;
use polypath_ipc::port::{self, ROCE_PORT};
use polypath_ipc::{Client, Hello, IpcError};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitCode;

/// How bad a finding is.
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
    findings.extend(settings::check());
    findings.extend(config::check());
    findings.extend(system::check());
    findings.extend(broker(arguments.device.as_deref().unwrap_or_default()));
    let worst = findings.iter().map(|finding| finding.level).max();
    let text = if arguments.json { as_json(&findings) } else { as_text(&findings) };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if worst == Some(Level::Error) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Checks that need a broker, and reasons why no broker can run.
fn broker(device: &str) -> Vec<Finding> {
    let (mut client, table) = match Client::begin_with_table(&Hello::of_this_process(device)) {
        Ok(both) => both,
        Err(error) => {
            let refused = Finding::error(error.to_string(), cure_of(&error));
            // The error says why: the port's state, or a process that does not run. Asking the latter
            // once more would only take as long again.
            if matches!(error, IpcError::Start(_) | IpcError::Silent { .. }) {
                return vec![refused];
            }
            // Perhaps the broker rejects only this one request.
            return match Client::connect(&Hello::of_this_process("")) {
                Ok(client) => vec![running(&client), port(Some(client.broker_pid())), refused],
                Err(_) => vec![port(None), refused],
            };
        }
    };
    let mut findings = vec![running(&client), port(Some(client.broker_pid()))];
    findings.extend(settings::interfaces(&table, client.selection()));
    findings.extend(network::check(&table, client.selection()));
    if let Ok(status) = client.status() {
        findings.extend(mtu::queue_pairs(&table, &status.processes));
        findings.extend(config::followed(&status.broker));
    }
    findings.push(beyond());
    findings
}

/// Says what the doctor does not check, so that nobody relies on it.
fn beyond() -> Finding {
    let what = "other hosts and the network between are not looked at".to_owned();
    Finding { level: Level::Note, what, cure: "polypath ping HOST".to_owned() }
}

fn running(client: &Client) -> Finding {
    Finding::ok(format!("broker: running (pid {})", client.broker_pid()))
}

/// The owner of the port: the broker, whose lanes share it, or another process.
fn port(broker: Option<u32>) -> Finding {
    let own = broker.map(port::sockets_of).unwrap_or_default();
    judge_port(&port::holders(ROCE_PORT), &own)
}

fn judge_port(holders: &BTreeSet<port::Holder>, own: &BTreeSet<u64>) -> Finding {
    let foreign: BTreeSet<port::Holder> =
        holders.iter().copied().filter(|holder| !own.contains(&holder.inode)).collect();
    if !foreign.is_empty() {
        let taken = port::judge(ROCE_PORT, &foreign);
        return Finding::error(taken.what, taken.cure);
    }
    match holders.is_empty() {
        true => Finding::ok(format!("UDP port {ROCE_PORT}: free")),
        false => Finding::ok(format!("UDP port {ROCE_PORT}: owned by Polypath's broker")),
    }
}

fn cure_of(error: &IpcError) -> &'static str {
    match error {
        IpcError::Version { .. } => "polypath broker --shutdown --force",
        IpcError::Start(_) | IpcError::NoBroker => {
            "do what the message says, or run `polypath broker` by hand to see more"
        }
        IpcError::Selection(_) => "write the device as the message says",
        IpcError::Refused { .. } => {
            "choose other interfaces with --device; `ip link` shows those there are"
        }
        IpcError::Silent { .. } => "do what the message says",
        IpcError::ForeignUser { .. } => "end the other user's process that holds the name",
        _ => "look into ~/.local/state/polypath/broker.log",
    }
}

fn as_json(findings: &[Finding]) -> String {
    let document = serde_json::json!({ "format": crate::json::FORMAT, "findings": findings });
    format!("{document:#}\n")
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
    let number = |level| findings.iter().filter(|finding| finding.level == level).count();
    text += &match (number(Level::Error), number(Level::Warning)) {
        (0, 0) => "No problems found.\n".to_owned(),
        (errors, warnings) => {
            format!("{}, {}.\n", count(errors as u64, "error"), count(warnings as u64, "warning"))
        }
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
        assert!(text.ends_with("1 error, 0 warnings.\n"));
    }

    #[test]
    fn the_brokers_own_sockets_are_no_reason_to_complain() {
        let holder = |inode| port::Holder { user: 4_000_000_000, inode };
        let holders = BTreeSet::from([holder(1), holder(2)]);
        let level = |holders: &BTreeSet<_>, own: &[u64]| {
            judge_port(holders, &own.iter().copied().collect()).level
        };
        assert_eq!(level(&holders, &[1, 2, 3]), Level::Ok);
        assert_eq!(level(&BTreeSet::new(), &[]), Level::Ok);
        assert_eq!(level(&holders, &[1]), Level::Error);
    }
}
