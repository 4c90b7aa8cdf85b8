//! What a broker that was killed leaves to the one that takes its place.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use polypath_topology::Table;
use serde::{Deserialize, Serialize};

/// What a broker would need to go on in another's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The slot of the first lane's socket.
    pub(crate) first: u8,
    /// Slots given out, and the processes that have them.
    pub(crate) owners: BTreeMap<u8, u32>,
    /// Interfaces, addresses, their numbers, and paths taken down by hand.
    pub(crate) table: Table,
    /// After so long without a program the broker ends, as `Options` has it.
    pub(crate) idle_timeout: Option<Duration>,
}

/// What the keeper has when the broker is gone.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) state: State,
    /// All sockets of the group in the order of binding.
    pub(crate) sockets: Vec<OwnedFd>,
}
