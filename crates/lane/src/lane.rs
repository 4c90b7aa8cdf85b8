//! The lane, and its rounds.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use polypath_paths::{LocalAddress, PathManager};
use polypath_transport::QueuePair;

use crate::blocked::Blocked;
use crate::host::{Shared, Visit};
use crate::outside::Outside;
use crate::table::{Entry, QpTable};

/// The settings of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneConfig {
    /// The number of bytes that all of its queue pairs together may keep of early packets (those
    /// that arrive before their turn).
    pub early_bytes: u32,
}

impl Default for LaneConfig {
    /// 64 MiB.
    fn default() -> Self {
        Self { early_bytes: 64 << 20 }
    }
}

/// Queue pairs, the paths that they share, and the order in which they send.
///
/// `Q` is the data that the owner keeps with each queue pair. The front page of this crate
/// describes a round.
#[derive(Clone, Debug)]
pub struct Lane<Q> {
    pub(crate) qps: QpTable<Q>,
    pub(crate) shared: Shared,
    /// Queue pairs that have something to send, in the order of their turns.
    pub(crate) ready: VecDeque<u16>,
    /// Queue pairs that wait for a window. Some of them may have been told to go on meanwhile.
    pub(crate) blocked: Blocked,
    /// Queue pairs that owe an acknowledgement.
    pub(crate) acks: Vec<u16>,
    /// Deadlines of queue pairs, including former ones that no longer count.
    pub(crate) timers: BinaryHeap<Reverse<(Duration, u16)>>,
    /// Queue pairs whose deadlines may have become earlier.
    pub(crate) stale: Vec<u16>,
}

impl<Q> Lane<Q> {
    /// Creates a lane without queue pairs. Its slot is that of the path manager.
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

    /// Begins a round at this time, which must never go back.
    #[inline]
    pub fn begin(&mut self, now: Duration) {
        self.shared.now = now;
    }

    /// The time at which the round began.
    #[inline]
    pub fn now(&self) -> Duration {
        self.shared.now
    }

    /// The paths.
    #[inline]
    pub fn paths(&self) -> &PathManager {
        &self.shared.paths
    }

    /// The paths, for changes. [`Self::transmit`] carries out what the path manager decides because
    /// of them.
    #[inline]
    pub fn paths_mut(&mut self) -> &mut PathManager {
        &mut self.shared.paths
    }

    /// The queue pairs.
    #[inline]
    pub fn qps(&self) -> &QpTable<Q> {
        &self.qps
    }

    /// The queue pair with that index. Use [`Self::with`] for anything that makes it send or
    /// changes its deadlines.
    #[inline]
    pub fn entry_mut(&mut self, index: u16) -> Option<&mut Entry<Q>> {
        self.qps.get_mut(index)
    }

    /// Adds a queue pair. Its number must be that of a free index.
    ///
    /// # Panics
    /// If the number is of another lane, or not free.
    pub fn insert(&mut self, qp: QueuePair, own: Q) {
        let qpn = qp.config().qpn;
        let index = QpTable::<Q>::index_of(qpn);
        assert!(self.qps.number(index) == qpn && self.qps.is_free(index), "{qpn:#x} is not free");
        self.qps.insert(index, Entry::new(qp, own));
    }

    /// Lets other lanes begin associations for datagrams, because a queue pair receives them by a device
    /// that may use several paths.
    pub fn take_datagrams(&mut self) {
        self.shared.paths.take_datagrams();
    }

    /// Destroys a queue pair, and returns its owner's data.
    pub fn remove<O: Outside<Q>>(&mut self, index: u16, out: &mut O) -> Option<Q> {
        let mut entry = self.qps.remove(index)?;
        let mut visit = entry.visit(&mut self.shared, out);
        visit.qp.destroy(&mut visit.host);
        visit.host.out.removed(visit.host.own, visit.qp.counters());
        visit.detach();
        // Remove the index from all lists, because the next queue pair with that index starts in
        // none.
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

    /// Removes a queue pair that will continue elsewhere. Returns it as bytes
    /// ([`QueuePair::freeze`]), and its owner's data.
    pub fn take<O: Outside<Q>>(&mut self, index: u16, out: &mut O) -> Option<(Vec<u8>, Q)> {
        let mut visit = self.qps.get_mut(index)?.visit(&mut self.shared, out);
        // The counters are read before freezing, because the replacement has counted nothing.
        visit.host.out.removed(visit.host.own, visit.qp.counters());
        let bytes = visit.freeze();
        Some((bytes, self.remove(index, out)?))
    }

    /// Does something with a queue pair, which then gets a turn if it has something to send.
    /// Returns `None` if no queue pair has that index.
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

    /// Sets the addresses and links of this host.
    pub fn set_local(&mut self, addresses: &[LocalAddress]) {
        self.shared.paths.set_local(self.shared.now, addresses);
    }

    /// Does the rest of a round, after all arrived packets have been handed in.
    pub fn run<O: Outside<Q>>(&mut self, out: &mut O) {
        self.handle_timeouts(out);
        self.transmit(out);
        self.acknowledge(out);
        self.set_timers();
    }
}
