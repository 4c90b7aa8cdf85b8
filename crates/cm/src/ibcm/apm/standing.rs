//! How a message of the peer relates to what this end knows: where the peer is, and whether the
//! message is new.

use core::net::IpAddr;

use super::super::connection::Connection;
use super::super::endpoints::Endpoints;
use super::told::{self, Told};
use crate::abi::address::ip_of;

/// How the two ends stand to each other, by what a message told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Both use the same path.
    Even,
    /// The peer has migrated, and this end must follow.
    Behind(Told),
    /// This end has migrated, and the peer must follow.
    Ahead,
}

/// Whether a transaction of the peer is new.
#[derive(Debug)]
pub(super) enum Novelty {
    New,
    /// It was answered like this.
    Again(Box<[u8; 256]>),
    /// It came before, and has no answer yet.
    Waiting,
    /// A later one was answered.
    Old,
}

impl Connection {
    /// The addresses of the path that the queue pair uses, the local one first.
    pub(crate) fn pair(&self) -> (IpAddr, IpAddr) {
        (ip_of(&self.path.sgid), ip_of(&self.path.dgid))
    }

    /// Whether the queue pair uses this path, as far as is known. Paths between the same addresses differ by
    /// flow labels that both ends agreed on; another label is that of an application, and tells nothing.
    pub(crate) fn is_at(&self, pair: (IpAddr, IpAddr), flow_label: Option<u32>) -> bool {
        let differs = |label| label != self.path.flow_label;
        let known = |label: &u32| self.migration.labels.contains(label);
        pair == self.pair() && flow_label.filter(|label| differs(*label)).is_none_or(|l| !known(&l))
    }

    /// What this end tells about its path.
    pub(super) fn telling(&self) -> [u8; told::LEN] {
        let (local, remote) = self.pair();
        let at = Endpoints { local, remote, ..self.endpoints };
        Told::bytes(self.migration.epoch, &at, self.path.flow_label)
    }

    /// Compares the peer's path with this end's.
    pub(super) fn standing(&mut self, told: Option<Told>) -> Standing {
        let Some(told) = told else { return Standing::Even };
        if self.is_at((told.local, told.remote), told.flow_label) {
            self.migration.epoch = self.migration.epoch.max(told.epoch);
            return Standing::Even;
        }
        // If both have migrated to different paths, the active end decides.
        let is_behind = match told.epoch.cmp(&self.migration.epoch) {
            core::cmp::Ordering::Greater => true,
            core::cmp::Ordering::Equal => !self.is_active,
            core::cmp::Ordering::Less => false,
        };
        if is_behind { Standing::Behind(told) } else { Standing::Ahead }
    }

    /// Compares a transaction of the peer with the latest one. An end counts its transactions in the
    /// high half of their ids.
    pub(super) fn novelty(&self, tid: u64) -> Novelty {
        let is_after = |last: u64| {
            let ahead = ((tid >> 32) as u32).wrapping_sub((last >> 32) as u32);
            ahead.cast_signed() > 0
        };
        match (&self.migration.asked, &self.migration.answered) {
            (Some((lap, _)), _) if lap.tid == tid => Novelty::Waiting,
            (Some((lap, _)), _) if !is_after(lap.tid) => Novelty::Old,
            (_, Some((last, answer))) if *last == tid => Novelty::Again(Box::new(*answer)),
            (_, Some((last, _))) if !is_after(*last) => Novelty::Old,
            _ => Novelty::New,
        }
    }
}
