//! What a lane remembers of queue pairs' paths, for the connection manager.

use std::collections::BTreeMap;

use polypath_transport::MigrationNews;

/// What the broker is to be told of a queue pair. Later ones say more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Untold {
    /// The alternate path failed.
    Failed,
    /// Which path it uses.
    Moved,
    /// It has a path set, and needs nothing.
    PathSet,
}

/// Queue pairs of which the broker is to be told something.
#[derive(Debug, Default)]
pub(crate) struct PathBook {
    /// By number.
    untold: BTreeMap<u32, Untold>,
}

impl PathBook {
    /// Notes what happened to the paths of a queue pair.
    pub(crate) fn note(&mut self, qpn: u32, news: MigrationNews) {
        match news {
            MigrationNews::Migrated(_) => self.tell(qpn, Untold::Moved),
            MigrationNews::AlternateLost | MigrationNews::Failed | MigrationNews::Unproven => {
                self.tell(qpn, Untold::Failed);
            }
            MigrationNews::PathSet => self.tell(qpn, Untold::PathSet),
            MigrationNews::Armed | MigrationNews::Moved { .. } => {}
        }
    }

    /// The broker is to be told this, unless there is more to tell.
    pub(crate) fn tell(&mut self, qpn: u32, what: Untold) {
        let untold = self.untold.entry(qpn).or_insert(what);
        *untold = what.max(*untold);
    }

    /// Whether nothing is to be told.
    pub(crate) fn is_empty(&self) -> bool {
        self.untold.is_empty()
    }

    /// Takes a queue pair of which something is to be told, and what.
    pub(crate) fn pop(&mut self) -> Option<(u32, Untold)> {
        self.untold.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_telling_news_of_a_queue_pair_is_told_once() {
        let mut book = PathBook::default();
        book.note(7, MigrationNews::PathSet);
        book.note(7, MigrationNews::Failed);
        book.note(5, MigrationNews::Unproven);
        book.note(5, MigrationNews::Armed);
        assert_eq!(book.pop(), Some((5, Untold::Failed)));
        assert_eq!(book.pop(), Some((7, Untold::PathSet)));
        assert!(book.is_empty() && book.pop().is_none());
    }
}
