//! What lanes learn from the broker.

use polypath_paths::Usage;
use polypath_topology::{InForce, Selection, Table};

use crate::homes::Home;
use crate::lane::Lane;
use crate::path_settings;

/// What the broker has told, as far as lanes need it.
pub(crate) struct News<'a> {
    pub(crate) table: &'a Table,
    pub(crate) selection: &'a Selection,
    /// The settings of the mp device, and why.
    pub(crate) in_force: InForce,
}

impl News<'_> {
    /// The index of the interface where a lane's queue pairs are at home, while it exists.
    pub(super) fn home_of(&self, home: Option<&Home>) -> Option<u32> {
        self.table.port_by_name(&home?.name).map(|port| port.ifindex)
    }

    /// How such a lane uses its paths.
    pub(super) fn usage(&self, home: Option<u32>) -> Usage {
        path_settings::usage(&self.in_force, self.table, home)
    }
}

impl Lane {
    /// Handles a change of links or addresses, or of how paths are used.
    pub(crate) fn learn(&self, news: &News<'_>) {
        let News { table, selection, .. } = news;
        let addresses = path_settings::local_addresses(table, selection);
        let down = path_settings::down_rules(table);
        let lags = path_settings::lags(table, selection);
        let home = news.home_of(self.home());
        let usage = news.usage(home);
        if self.has_failed() {
            return;
        }
        self.enter(|state| {
            state.io.interfaces_changed();
            state.io.learn_interfaces(table, lags.clone());
            state.learn_sole_ipv4(table, selection);
            state.home = home;
            let (now, paths) = (state.core.now(), state.core.paths_mut());
            paths.set_lags(now, &lags);
            paths.set_local(now, &addresses);
            paths.set_down(now, &down);
            paths.set_usage(now, &usage);
        });
        self.sleeper.wake();
    }
}
