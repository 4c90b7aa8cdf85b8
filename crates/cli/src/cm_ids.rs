//! The identifiers of the connection manager, as `polypath status` shows them.

use polypath_ipc::status::{CmIdStatus, CmMigrationStatus};

use crate::text::{Columns, hex};

/// A table of them; empty if there are none.
pub(crate) fn render(all: &[CmIdStatus]) -> String {
    let mut ids = Columns::new(["CM ID", "PID", "STATE", "LOCAL", "REMOTE", "QP", "ALTERNATE"]);
    for id in all {
        let qp = if id.qpn == 0 { "-".to_owned() } else { hex(id.qpn) };
        let alternate = id.migration.as_ref().map_or_else(|| "-".to_owned(), alternate_of);
        let [number, process, state] = [id.id.to_string(), id.pid.to_string(), id.state.clone()];
        ids.row([number, process, state, id.local.clone(), id.remote.clone(), qp, alternate]);
    }
    if ids.is_empty() { String::new() } else { ids.render("  ") }
}

/// The alternate path of a connection, and how often it has migrated.
fn alternate_of(migration: &CmMigrationStatus) -> String {
    let CmMigrationStatus { alternate, count, .. } = migration;
    let path = if alternate.is_empty() { "none" } else { alternate };
    match count {
        0 => path.to_owned(),
        1 => format!("{path}, migrated once"),
        _ => format!("{path}, migrated {count} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_migrates_shows_its_alternate_path_and_how_often() {
        assert_eq!(render(&[]), "");
        let of = |count, alternate: &str| {
            let alternate = alternate.to_owned();
            let migration = Some(CmMigrationStatus { alternate, count, ..Default::default() });
            render(&[CmIdStatus { migration, ..CmIdStatus::default() }])
        };
        assert!(of(0, "10.1.0.1>10.1.0.2").trim_end().ends_with("10.1.0.1>10.1.0.2"));
        assert!(of(1, "").trim_end().ends_with("none, migrated once"));
        assert!(of(2, "").trim_end().ends_with("none, migrated 2 times"));
        assert!(render(&[CmIdStatus::default()]).trim_end().ends_with('-'));
    }
}
