//! The table of paths in the status.

use crate::text::{Columns, bytes, count, duration};
use polypath_ipc::status::PathStatus;

/// The paths of a process as lines; empty if there are none.
pub(crate) fn paths(paths: &[PathStatus]) -> String {
    // The last column does not say "fail-overs", because it also counts standby paths that were
    // given up.
    let heading =
        ["PATH", "OVER", "PORT", "STATE", "RTT", "SENT", "RECEIVED", "RESENT", "GIVEN UP"];
    let mut table = Columns::new(heading);
    for path in paths {
        table.row([
            format!("{} > {}", path.local, path.remote),
            path.interface.clone(),
            source_port(path),
            path.state.clone(),
            path.rtt_us.map_or_else(|| "-".to_owned(), duration),
            bytes(path.counters.sent_bytes),
            bytes(path.counters.received_bytes),
            bytes(path.counters.resent_bytes),
            path.counters.given_up.to_string(),
        ]);
    }
    if table.is_empty() { String::new() } else { table.render("  ") }
}

/// The source port of a path, and how often it was changed, if it was. Shared memory has none.
pub(crate) fn source_port(path: &PathStatus) -> String {
    match path.counters.port_changes {
        _ if path.kind != "roce" => "-".to_owned(),
        0 => path.source_port.to_string(),
        changes => format!("{} ({})", path.source_port, count(changes, "change")),
    }
}
