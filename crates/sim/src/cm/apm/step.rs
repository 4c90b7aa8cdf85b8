//! What can happen in a run, and what comes of it.

use polypath_cm::PathOrder;

use super::queue_pair::Way;
use crate::link_faults::LinkFaults;

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApmReport {
    /// Connections that were established.
    pub established: u64,
    /// Connections that both ends were armed for in the end.
    pub armed: u64,
    /// Migrations of queue pairs.
    pub migrations: u64,
    /// Migrations among these that spread connections over the links.
    pub balanced: u64,
    /// LAPs and SAPs, without repetitions.
    pub asked: u64,
    /// LAPs whose answer took longer, as an MRA told.
    pub postponed: u64,
    /// MADs sent.
    pub sent: u64,
    /// A digest of every MAD, and when it was sent.
    pub digest: u64,
}

/// Something that happens at its time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Connect(usize),
    /// A packet from a host's queue pair of a connection.
    Traffic {
        conn: usize,
        from: usize,
    },
    Arrive {
        conn: usize,
        at: usize,
        way: Way,
        mig_req: bool,
    },
    /// A queue pair migrates by itself, if it is armed.
    Migrate {
        conn: usize,
        host: usize,
    },
    /// The host executes an order.
    Execute {
        host: usize,
        order: PathOrder,
    },
    /// The host tells its connection manager.
    Tell {
        conn: usize,
        host: usize,
        to: Option<Way>,
    },
    Address {
        host: usize,
        link: usize,
        there: bool,
    },
    Faults {
        link: usize,
        link_faults: LinkFaults,
    },
    Disconnect {
        conn: usize,
        host: usize,
    },
}
