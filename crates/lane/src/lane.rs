//! The lane: what it holds, and rounds.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use polypath_paths::{LocalAddress, PathManager};
use polypath_transport::QueuePair;

use crate::blocked::Blocked;
use crate::host::{Shared, Visit};
use crate::outside::Outside;
use crate::table::{Entry, QpTable};

/// What a lane is told when it begins.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// Bytes that all of its queue pairs together may keep of packets that arrived before their turn.
    pub early_bytes: u32,
}

impl Default for LaneConfig {
    /// 64 MiB.
    fn default() -> Self {
        Self { early_bytes: 64 << 20 }
    }
}

/// Queue pairs, the paths that they share, and whose turn it is.
///
/// `Q` is what the owner keeps beside each queue pair. The page of this crate says how a round goes.
#[derive(Clone, Debug)]
pub struct Lane<Q> {
    pub(crate) qps: QpTable<Q>,
    pub(crate) shared: Shared,
    /// Those that have something to send, in the order of their turns.
    pub(crate) ready: VecDeque<u16>,
    /// Those that wait for a window; some may have been told to go on since.
    pub(crate) blocked: Blocked,
    /// Those that owe an acknowledgement.
    pub(crate) acks: Vec<u16>,
    /// Deadlines of queue pairs, and earlier ones that no longer count.
    pub(crate) timers: BinaryHeap<Reverse<(Duration, u16)>>,
    /// Those whose deadlines may have become earlier.
    pub(crate) stale: Vec<u16>,
}

impl<Q> Lane<Q> {
    /// A lane without queue pairs. Its slot is the path manager's.
    pub fn new(paths: PathManager, config: LaneConfig) -> Self {
        let slot = paths.lane().slot;
        let shared = Shared {
            now: Duration::ZERO,
            paths,
            window_opened: false,
            early_room: config.early_bytes,
            overrun: Vec::new(),
            asked: None,
            charged: 0,
        };
        Self {
            qps: QpTable::new(slot),
            shared,
            ready: VecDeque::new(),
            blocked: Blocked::default(),
            acks: Vec::new(),
            timers: BinaryHeap::new(),
            stale: Vec::new(),
        }
    }

    /// A round begins at this time, which never goes back.
    #[inline]
    pub fn begin(&mut self, now: Duration) {
        self.shared.now = now;
    }

    /// The time that the round began with.
    #[inline]
    pub fn now(&self) -> Duration {
        self.shared.now
    }

    /// The paths.
    #[inline]
    pub fn paths(&self) -> &PathManager {
        &self.shared.paths
    }

    /// The paths, to be changed. What the path manager decides upon it is carried out by
    /// [`Self::transmit`].
    #[inline]
    pub fn paths_mut(&mut self) -> &mut PathManager {
        &mut self.shared.paths
    }

    /// The queue pairs.
    #[inline]
    pub fn qps(&self) -> &QpTable<Q> {
        &self.qps
    }

    /// The queue pair with that index. What makes it send, or changes its deadlines, belongs into
    /// [`Self::with`].
    #[inline]
    pub fn entry_mut(&mut self, index: u16) -> Option<&mut Entry<Q>> {
        self.qps.get_mut(index)
    }

    /// Adds a queue pair, whose number is that of a free index.
    ///
    /// # Panics
    /// The number is of another lane, or not free.
    pub fn insert(&mut self, qp: QueuePair, own: Q) {
        let qpn = qp.config().qpn;
        let index = QpTable::<Q>::index_of(qpn);
        assert!(self.qps.number(index) == qpn && self.qps.is_free(index), "{qpn:#x} is not free");
        self.qps.insert(index, Entry::new(qp, own));
    }

    /// Destroys a queue pair; gives what its owner kept.
    pub fn remove<O: Outside<Q>>(&mut self, index: u16, out: &mut O) -> Option<Q> {
        let mut entry = self.qps.remove(index)?;
        let mut visit = entry.visit(&mut self.shared, out);
        visit.qp.destroy(&mut visit.host);
        visit.host.out.removed(visit.host.own, visit.qp.counters());
        visit.detach();
        // The next queue pair with that index is in no list yet.
        if entry.queued {
            self.ready.retain(|&other| other != index);
        }
        if entry.owes_ack {
            self.acks.retain(|&other| other != index);
        }
        if entry.waits {
            self.blocked.remove(index);
        }
        if entry.stale {
            self.stale.retain(|&other| other != index);
        }
        Some(entry.own)
    }

    /// Takes out a queue pair that is to be continued elsewhere: gives it as bytes
    /// ([`QueuePair::freeze`]), and what its owner kept.
    pub fn take<O: Outside<Q>>(&mut self, index: u16, out: &mut O) -> Option<(Vec<u8>, Q)> {
        let mut visit = self.qps.get_mut(index)?.visit(&mut self.shared, out);
        // What takes its place has counted nothing.
        visit.host.out.removed(visit.host.own, visit.qp.counters());
        let bytes = visit.freeze();
        Some((bytes, self.remove(index, out)?))
    }

    /// Does something with a queue pair, which then gets its turn if it wants one. `None`: there is no
    /// queue pair with that index.
    #[inline]
    pub fn with<O, R>(
        &mut self,
        index: u16,
        out: &mut O,
        work: impl FnOnce(&mut Visit<'_, Q, O>) -> R,
    ) -> Option<R> {
        let entry = self.qps.get_mut(index)?;
        let result = work(&mut entry.visit(&mut self.shared, out));
        self.schedule(index, false);
        Some(result)
    }

    /// Puts a queue pair into the error state.
    pub fn fail<O: Outside<Q>>(&mut self, index: u16, out: &mut O) {
        let Some(entry) = self.qps.get_mut(index) else { return };
        let mut visit = entry.visit(&mut self.shared, out);
        visit.qp.fail(&mut visit.host);
    }

    /// The addresses and links of this host are these.
    pub fn set_local(&mut self, addresses: &[LocalAddress]) {
        self.shared.paths.set_local(self.shared.now, addresses);
    }

    /// The rest of a round, behind what has arrived.
    pub fn run<O: Outside<Q>>(&mut self, out: &mut O) {
        self.handle_timeouts(out);
        self.transmit(out);
        self.acknowledge(out);
        self.set_timers();
    }
}
