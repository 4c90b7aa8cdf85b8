//! What a lane remembers of queue pairs' paths, for the connection manager.

use std::collections::BTreeMap;

use polypath_transport::MigrationNews;

/// Queue pairs of which the broker is to be told something.
#[derive(Debug, Default)]
pub(crate) struct PathBook {
    /// By number; whether the alternate path failed.
    untold: BTreeMap<u32, bool>,
}

impl PathBook {
    /// Notes what happened to the paths of a queue pair.
    pub(crate) fn note(&mut self, qpn: u32, news: MigrationNews) {
        match news {
            MigrationNews::Migrated(_) => self.has_moved(qpn),
            MigrationNews::AlternateLost | MigrationNews::Failed | MigrationNews::Unproven => {
                self.has_failed(qpn);
            }
            MigrationNews::Armed => {}
        }
    }

    /// The broker is to be told which path the queue pair uses.
    pub(crate) fn has_moved(&mut self, qpn: u32) {
        self.untold.insert(qpn, false);
    }

    /// The broker is to be told that the alternate path failed, unless there is more to tell.
    pub(crate) fn has_failed(&mut self, qpn: u32) {
        self.untold.entry(qpn).or_insert(true);
    }

    /// Whether nothing is to be told.
    pub(crate) fn is_empty(&self) -> bool {
        self.untold.is_empty()
    }

    /// Takes a queue pair of which something is to be told, and whether its alternate path failed.
    pub(crate) fn pop(&mut self) -> Option<(u32, bool)> {
        self.untold.pop_first()
    }
}
