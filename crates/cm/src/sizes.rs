//! The sizes of the tables.

use core::fmt;

/// The number of entries in each table. All are bounded by [`CmConfig`](crate::CmConfig), and all
/// are 0 once every id was destroyed and every connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSizes {
    /// Ids of applications.
    pub ids: usize,
    /// Ports held.
    pub ports: usize,
    /// Multicast memberships.
    pub memberships: usize,
    /// Events that wait for their application to take them.
    pub events: usize,
    /// Connections, and resolutions of services.
    pub connections: usize,
    /// The same, by their peers' numbers: communication ids, queue pairs, SIDR requests.
    pub by_peer: usize,
    /// Timers that are set.
    pub timers: usize,
    /// MADs that wait to be sent.
    pub outgoing: usize,
    /// Requests that wait for their listener.
    pub early: usize,
}

impl TableSizes {
    /// Whether every table is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for TableSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ids, {} ports, {} memberships, {} events, {} connections ({} by their peers), {} \
             timers, {} MADs to send, {} early requests",
            self.ids,
            self.ports,
            self.memberships,
            self.events,
            self.connections,
            self.by_peer,
            self.timers,
            self.outgoing,
            self.early
        )
    }
}
