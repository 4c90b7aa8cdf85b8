//! Fail-overs, as `polypath status` reports them.

use crate::{Error, Host, Running, until};
use serde_json::Value;
use std::time::Duration;

/// A fail-over of a process of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// The process id.
    pub pid: u64,
    /// The time in milliseconds since 1970 UTC.
    pub at_unix_ms: u64,
    /// The path that failed.
    pub from: String,
    /// The path that took over.
    pub to: String,
    /// The reason.
    pub reason: String,
    /// The time for which traffic stood still, in microseconds.
    pub blackout_us: u64,
}

/// Waits until a process of a host reports a fail-over.
///
/// # Errors
/// If none does within `limit`, or one of the programs ends before.
pub fn wait_failover(host: &Host, programs: &[&Running], limit: Duration) -> Result<(), Error> {
    until("a fail-over in `polypath status`", limit, || {
        programs.iter().try_for_each(|program| program.expect_alive())?;
        Ok((!failovers(host)?.is_empty()).then_some(()))
    })
}

/// All fail-overs that the processes of a host report, oldest first for each process.
///
/// # Errors
/// The errors of [`Host::status`].
pub fn failovers(host: &Host) -> Result<Vec<Failover>, Error> {
    let status = host.status()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for process in list(&status["processes"]) {
        for failover in list(&process["failovers"]) {
            found.push(Failover {
                pid: process["pid"].as_u64().unwrap_or(0),
                at_unix_ms: failover["at_unix_ms"].as_u64().unwrap_or(0),
                from: text(&failover["from"]),
                to: text(&failover["to"]),
                reason: text(&failover["reason"]),
                blackout_us: failover["blackout_us"].as_u64().unwrap_or(0),
            });
        }
    }
    Ok(found)
}
