//! The state that a killed broker leaves to the one that takes its place.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use polypath_cm::FileId;
use polypath_topology::Table;
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::options::Manner;

/// The state that a broker needs to take another one's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The seed of the order in which slots are given out.
    pub(crate) order: u32,
    /// The slots in use, and the processes that have them.
    pub(crate) owners: BTreeMap<u8, u32>,
    /// The interfaces and addresses with their numbers, and the paths taken down by hand.
    pub(crate) table: Table,
    /// What kind of broker it was.
    pub(crate) manner: Manner,
}

/// Everything that the keeper has when the broker is gone.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) state: State,
    /// All sockets of the group, in the order in which they were bound.
    pub(crate) sockets: Vec<OwnedFd>,
    /// The CM files: the processes that opened them, and the broker's ends of their event sockets.
    pub(crate) files: BTreeMap<FileId, (u32, OwnedFd)>,
    /// What is written down of their ids.
    pub(crate) ledger: Option<Ledger>,
}
