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
            over(path),
            source_port(path),
            state(path),
            path.rtt_us.map_or_else(|| "-".to_owned(), duration),
            bytes(path.counters.sent_bytes),
            bytes(path.counters.received_bytes),
            bytes(path.counters.resent_bytes),
            path.counters.given_up.to_string(),
        ]);
    }
    if table.is_empty() { String::new() } else { table.render("  ") }
}

/// The state of a path, and how many others it shares a bottleneck with, as far as that is known.
fn state(path: &PathStatus) -> String {
    match path.coupled {
        0 => path.state.clone(),
        others => format!("{}, coupled with {others}", path.state),
    }
}

/// The interface of a path, and the port by which it leaves if that is a bond that tells.
pub(crate) fn over(path: &PathStatus) -> String {
    match path.bond_port.as_str() {
        "" => path.interface.clone(),
        port => format!("{} by {port}", path.interface),
    }
}

/// The source port of a path, and how often it was changed, if it was. Shared memory has none.
pub(crate) fn source_port(path: &PathStatus) -> String {
    match path.counters.port_changes {
        _ if path.kind != "roce" => "-".to_owned(),
        0 => path.source_port.to_string(),
        changes => format!("{} ({})", path.source_port, count(changes, "change")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_port_of_a_bond_and_how_many_share_its_bottleneck() {
        let path = |bond_port: &str| PathStatus {
            local: [10, 0, 0, 1].into(),
            remote: [10, 0, 0, 2].into(),
            kind: "roce".into(),
            interface: "bond0".into(),
            bond_port: bond_port.into(),
            source_port: 49152,
            state: "active".into(),
            window: 65536,
            in_flight: 0,
            rtt_us: None,
            coupled: 0,
            counters: Default::default(),
            send_errors: Vec::new(),
            last_blackout_us: None,
        };
        assert_eq!(over(&path("")), "bond0");
        let text = paths(&[path("eth1")]);
        assert!(text.contains(" bond0 by eth1 "), "{text}");
        let text = paths(&[path("eth1"), PathStatus { coupled: 1, ..path("eth2") }]);
        assert!(text.contains(" active, coupled with 1 "), "{text}");
    }
}
