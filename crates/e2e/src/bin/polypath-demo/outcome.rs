//! How an act of the demonstration ended.

use std::time::Duration;

use polypath_e2e::Failover;

/// How an act ended.
pub(crate) struct Outcome {
    pub(crate) title: String,
    pub(crate) moved_bytes: u64,
    /// Operations whose result was checked.
    pub(crate) verified: u64,
    pub(crate) result: String,
    pub(crate) blackouts: Vec<Blackout>,
    pub(crate) failovers: Vec<Failover>,
}

/// How long no traffic arrived after a fault, seen at the interfaces.
pub(crate) struct Blackout {
    pub(crate) fault: &'static str,
    pub(crate) duration: Duration,
}
