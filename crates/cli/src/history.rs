//! What has happened to a process, as `polypath status` shows it.

use crate::text::{at, duration};
use polypath_ipc::status::{FailoverStatus, ProcessStatus};
use polypath_telemetry::Occurrence;

/// The largest number of fail-overs, events and errors shown per process; `--json` shows all that
/// are kept.
pub(crate) const RECENT: usize = 8;

/// The history in order of time: fail-overs, events, errors.
pub(crate) fn history(process: &ProcessStatus, now_ms: u64) -> String {
    let mut lines: Vec<(u64, String)> = Vec::new();
    lines.extend(last(&process.failovers).iter().map(|f| (f.at_unix_us, failover(f))));
    lines.extend(last(&process.events).iter().map(|e| (e.at_unix_us, event("", e))));
    lines.extend(last(&process.errors).iter().map(|e| (e.at_unix_us, event("error: ", e))));
    lines.sort_by_key(|(at, _)| *at);
    lines.iter().map(|(us, line)| format!("  {}  {line}\n", at(us / 1000, now_ms))).collect()
}

fn event(kind: &str, event: &Occurrence) -> String {
    format!("{kind}{}", event.event)
}

fn failover(failover: &FailoverStatus) -> String {
    let FailoverStatus { from, to, reason, blackout_us, .. } = failover;
    let from = from.map_or_else(|| "no path".to_owned(), |path| path.to_string());
    let after = match blackout_us {
        0 => String::new(),
        us => format!("; traffic stood still for {}", duration(*us)),
    };
    format!("fail-over from {from} to {to}: {reason}{after}")
}

fn last<T>(list: &[T]) -> &[T] {
    &list[list.len().saturating_sub(RECENT)..]
}
