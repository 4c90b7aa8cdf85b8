//! The outcome of an act of the demonstration.

use std::time::Duration;

use polypath_e2e::Failover;

/// The outcome of an act.
pub(crate) struct Outcome {
    pub(crate) title: String,
    pub(crate) moved_bytes: u64,
    /// The number of operations whose result was checked.
    pub(crate) verified: u64,
    pub(crate) result: String,
    pub(crate) blackouts: Vec<Blackout>,
    pub(crate) failovers: Vec<Failover>,
}

/// The time for which no traffic arrived after a fault, measured at the interfaces.
pub(crate) struct Blackout {
    pub(crate) fault: &'static str,
    pub(crate) duration: Duration,
}
