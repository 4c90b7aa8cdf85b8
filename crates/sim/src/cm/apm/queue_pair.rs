//! The migration state machine of a queue pair (IBTA 10.4 and 17.2.8), as hfi1 and rdmavt have it.

use core::net::IpAddr;

use polypath_cm::PathTaken;

/// Two addresses, the local one first.
pub(super) type Pair = (IpAddr, IpAddr);

/// The state of migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mig {
    Migrated,
    Rearm,
    Armed,
}

/// A path: its addresses, and its flow label, which chooses the source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) pair: Pair,
    pub(super) label: u32,
}

impl Way {
    /// The same, as a host tells its connection manager of it.
    pub(super) fn taken(self) -> PathTaken {
        let Self { pair: (local, remote), label } = self;
        PathTaken { local, remote, flow_label: Some(label) }
    }

    /// The same, as the other end sees it.
    pub(super) fn mirrored(self) -> Self {
        let (local, remote) = self.pair;
        Self { pair: (remote, local), ..self }
    }

    /// Whether the other end uses the same path. Whoever is told by a LAP that the peer has migrated learns
    /// its addresses, and not its flow label: each end's label is for its own packets, and has to agree only
    /// if `labels` tell paths apart.
    pub(super) fn is_opposite(self, other: Self, labels: bool) -> bool {
        let mirrored = other.mirrored();
        self.pair == mirrored.pair && (!labels || self.label == mirrored.label)
    }

    /// Whether it has nothing in common with another path of the same end: no address, or the flow label if
    /// `labels` tell paths apart.
    pub(super) fn is_apart_from(self, other: Self, labels: bool) -> bool {
        let (ours, theirs) = (self.pair, other.pair);
        if labels {
            ours == theirs && self.label != other.label
        } else {
            ours.0 != theirs.0 && ours.1 != theirs.1
        }
    }
}

/// One end.
#[derive(Clone, Debug)]
pub(super) struct QueuePair {
    pub(super) primary: Way,
    pub(super) alternate: Option<Way>,
    pub(super) state: Mig,
}

impl QueuePair {
    /// The queue pair of a connection between these addresses, with the flow label of its address vector.
    pub(super) fn new(pair: Pair, label: u32) -> Self {
        let primary = Way { pair, label };
        Self { primary, alternate: None, state: Mig::Migrated }
    }

    /// Loads an alternate path. An armed queue pair stays so.
    pub(super) fn load(&mut self, alternate: Way) {
        self.alternate = Some(alternate);
        if self.state == Mig::Migrated {
            self.state = Mig::Rearm;
        }
    }

    /// Migrates to the alternate path. Returns whether there is one.
    pub(super) fn migrate(&mut self) -> bool {
        let Some(alternate) = self.alternate.take() else { return false };
        self.primary = alternate;
        self.state = Mig::Migrated;
        true
    }

    /// The packet that it sends now: its path, and MigReq.
    pub(super) fn packet(&self) -> (Way, bool) {
        (self.primary, self.state == Mig::Migrated)
    }

    /// Receives a packet that the peer sent by this path. Returns whether it has migrated for it. The label
    /// tells the alternate path from the primary one if both have the same addresses.
    pub(super) fn receive(
        &mut self,
        Way { pair: (remote, local), label }: Way,
        mig_req: bool,
    ) -> bool {
        let came_by = Way { pair: (local, remote), label };
        if self.state == Mig::Armed && mig_req {
            return Some(came_by) == self.alternate && self.migrate();
        }
        let by_primary = came_by.pair == self.primary.pair && Some(came_by) != self.alternate;
        if by_primary && self.state == Mig::Rearm && !mig_req {
            self.state = Mig::Armed;
        }
        false
    }
}
