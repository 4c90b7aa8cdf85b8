//! The migration state machine of a queue pair (IBTA 10.4 and 17.2.8), as hfi1 and rdmavt have it.

use core::net::IpAddr;

/// Two addresses, the local one first.
pub(super) type Pair = (IpAddr, IpAddr);

/// The state of migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mig {
    Migrated,
    Rearm,
    Armed,
}

/// One end.
#[derive(Clone, Debug)]
pub(super) struct QueuePair {
    pub(super) primary: Pair,
    pub(super) alternate: Option<Pair>,
    pub(super) state: Mig,
}

impl QueuePair {
    pub(super) fn new(primary: Pair) -> Self {
        Self { primary, alternate: None, state: Mig::Migrated }
    }

    /// Loads an alternate path. An armed queue pair stays so.
    pub(super) fn load(&mut self, alternate: Pair) {
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

    /// The packet that it sends now: its addresses, and MigReq.
    pub(super) fn packet(&self) -> (Pair, bool) {
        (self.primary, self.state == Mig::Migrated)
    }

    /// Receives a packet that the peer sent between these addresses. Returns whether it has migrated
    /// for it.
    pub(super) fn receive(&mut self, (remote, local): Pair, mig_req: bool) -> bool {
        let came_by = (local, remote);
        if self.state == Mig::Armed && mig_req {
            return Some(came_by) == self.alternate && self.migrate();
        }
        if came_by == self.primary && self.state == Mig::Rearm && !mig_req {
            self.state = Mig::Armed;
        }
        false
    }
}
