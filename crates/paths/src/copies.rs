//! The calls of the data path for what is sent by two paths at once.

use core::time::Duration;

use crate::manager::PathManager;
use polypath_types::{PathId, PeerId, Twin};

/// The bytes that may be on their way by a path while copies are still sent into its queue. Round trips are
/// long after a process did not run for a moment, too, and the copies of small messages make no queue.
const COPIES_IN_QUEUE: u32 = 16 << 10;

impl PathManager {
    /// Charges the window of `path` with `bytes` that were sent on it and on another path. It takes them back
    /// when it learns that they are not on their way any more.
    pub fn sent_twice(&mut self, now: Duration, path: PathId, bytes: u32) {
        let Some(p) = self.paths.get_mut(path) else { return };
        // If sending failed, the path may be dead by now. Then nothing would take the bytes back.
        if p.tag().is_some() && p.usable() {
            p.twice.push(now, bytes);
            self.sent(now, path, bytes);
        }
    }

    /// An answer came by `path` to a packet that was sent by it at `echo_us` (microseconds, wrapping): see
    /// `polypath_transport::Paths::answered`.
    pub fn answered_twice(
        &mut self,
        now: Duration,
        path: PathId,
        echo_us: u32,
        bytes: Option<u32>,
        rtt: Option<Duration>,
    ) {
        let Some(p) = self.paths.get_mut(path) else { return };
        let arrived = p.twice.take_answered(echo_us, bytes);
        self.acked(now, path, arrived, rtt);
    }

    /// A probe that was sent by `path` at `sent` is answered: what was sent before has arrived, or is lost.
    pub(crate) fn probe_passed(&mut self, now: Duration, path: PathId, sent: Duration) {
        let Some(p) = self.paths.get_mut(path) else { return };
        let bytes = p.twice.take_until(sent);
        if bytes > 0 {
            self.acked(now, path, bytes, None);
        }
    }

    /// The path of the copies of packets that cost `bytes` and go to `peer` by another path. It takes none
    /// while round trips show a queue and more than a little is on its way there: a copy must not hold up
    /// what others send.
    pub(crate) fn twin(&self, peer: PeerId, path: PathId, bytes: u32) -> Option<Twin> {
        let p = self.paths.get(path)?;
        let tag = p.tag()?;
        let association = self.associations.get(self.peers.get(peer)?.association?)?;
        let in_flight: u64 =
            association.paths().filter_map(|(_, path)| self.in_flight(path)).map(u64::from).sum();
        // All paths end in one receive buffer, in which the first packets go before their copies.
        let left =
            u64::from(association.remote_window).saturating_sub(in_flight + u64::from(bytes));
        let queues = p.rtt.queues() && p.congestion.in_flight() > COPIES_IN_QUEUE;
        let room = if queues { 0 } else { p.congestion.room() };
        Some(Twin { path, tag, window: u32::try_from(left).unwrap_or(u32::MAX).min(room) })
    }

    /// Bytes on their way by a path that were sent by another one as well.
    pub fn sent_twice_on(&self, path: PathId) -> u32 {
        self.paths.get(path).map_or(0, |p| p.twice.bytes())
    }
}
