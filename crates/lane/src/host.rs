//! The lane, as a queue pair sees it.

use core::net::IpAddr;
use core::time::Duration;

use polypath_paths::{AttachError, PathManager, PathOptions};
use polypath_transport::{
    Access, AtomicOp, Burst, EarlyRoom, Explanation, Fault, Host, Memory, MigrationNews, Observer,
    Paths, QueuePair, Queues, RemoteAccess, RemoteKey, ThawError, Unread,
};
use polypath_types::{
    Completion, CqSide, DatagramCopies, FlushScope, PathId, PathTag, PeerId, Pick, QpEvent, RecvWr,
    Route, Sge, TwoPaths, Want,
};

use crate::outside::{NotSent, Outside, Overrun};
use crate::table::Entry;

/// The parts of a lane that its queue pairs share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) now: Duration,
    pub(crate) paths: PathManager,
    /// Whether an acknowledgement or an event may have opened a window.
    pub(crate) window_opened: bool,
    /// The number of bytes that early packets (those that arrive before their turn) may still take.
    pub(crate) early_room: u32,
    /// Queue pairs that lost a completion.
    pub(crate) overrun: Vec<u32>,
    /// The path that a queue pair was last given to send on.
    pub(crate) asked: Option<PathId>,
    /// The total number of bytes that were charged to windows.
    pub(crate) charged: u64,
}

/// The largest number of queue pairs noted as having lost a completion. Further ones are noted when
/// they lose the next one.
const MAX_OVERRUN: usize = 4096;

impl Shared {
    #[cold]
    fn completion_lost(&mut self, qpn: u32) {
        // A queue pair that is flushed loses many completions in a row.
        if self.overrun.last() != Some(&qpn) && self.overrun.len() < MAX_OVERRUN {
            self.overrun.push(qpn);
        }
    }
}

/// The surroundings of one queue pair during one call.
#[derive(Debug)]
pub struct QpHost<'a, Q, O> {
    pub(crate) qpn: u32,
    pub(crate) shared: &'a mut Shared,
    /// The data that the lane's owner keeps with the queue pair.
    pub own: &'a Q,
    /// The receiver of the queue pair's effects.
    pub out: &'a mut O,
    peer: &'a mut Option<PeerId>,
}

impl<Q, O> QpHost<'_, Q, O> {
    /// The time at which the round began.
    pub fn now(&self) -> Duration {
        self.shared.now
    }

    /// The paths of the lane.
    pub fn paths(&mut self) -> &mut PathManager {
        &mut self.shared.paths
    }

    /// The paths of the lane, and the receiver of effects.
    pub fn paths_and_out(&mut self) -> (&mut PathManager, &mut O) {
        (&mut self.shared.paths, self.out)
    }
}

/// A queue pair and its surroundings, for [`crate::Lane::with`].
#[derive(Debug)]
pub struct Visit<'a, Q, O> {
    /// The queue pair.
    pub qp: &'a mut QueuePair,
    /// The argument for the queue pair's methods.
    pub host: QpHost<'a, Q, O>,
}

impl<Q, O> Visit<'_, Q, O> {
    /// Connects the queue pair with a peer: it then takes that peer's packets, and sends its
    /// requests there.
    ///
    /// # Errors
    /// Those of [`PathManager::reattach`]; the queue pair then stays connected as it was.
    pub fn attach(
        &mut self,
        remote_qpn: u32,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<(), AttachError> {
        let Shared { now, paths, .. } = &mut *self.host.shared;
        let peer = paths.reattach(*now, self.host.qpn, remote_qpn, local, remote, options)?;
        if self.qp.is_multipath() {
            paths.trust(self.host.qpn);
        }
        *self.host.peer = Some(peer);
        self.qp.set_peer(peer);
        Ok(())
    }

    /// Disconnects it from its peer.
    pub fn detach(&mut self) {
        let Shared { now, paths, .. } = &mut *self.host.shared;
        paths.detach(*now, self.host.qpn);
        *self.host.peer = None;
    }
}

impl<Q, O: Outside<Q>> Visit<'_, Q, O> {
    /// Loads an alternate path between these addresses, to which the queue pair may migrate. It must be
    /// attached.
    ///
    /// # Errors
    /// Those of [`PathManager::set_alternate`]; nothing has changed then.
    pub fn set_alternate(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        options: PathOptions,
    ) -> Result<(), AttachError> {
        let Shared { now, paths, .. } = &mut *self.host.shared;
        let alternate = paths.set_alternate(*now, self.host.qpn, local, remote, options)?;
        self.qp.set_alternate(Some(alternate), &mut self.host);
        Ok(())
    }

    /// Takes the alternate path from the queue pair. It is not ready to migrate any more.
    pub fn clear_alternate(&mut self) {
        self.qp.set_alternate(None, &mut self.host);
        let Shared { now, paths, .. } = &mut *self.host.shared;
        paths.clear_alternate(*now, self.host.qpn);
    }

    /// Ends the queue pair and returns it as bytes ([`QueuePair::freeze`]). It is replaced by a new
    /// queue pair in RESET with the same peer.
    pub fn freeze(&mut self) -> Vec<u8> {
        let fresh = QueuePair::new(*self.qp.config());
        let qp = core::mem::replace(self.qp, fresh);
        qp.freeze(self.host.shared.now, &mut self.host)
    }

    /// Replaces the queue pair, which should be in RESET, with a frozen one. The thawed queue pair
    /// uses the peer and the protection domain that the replaced one had. If it comes from another
    /// lane, or was frozen for a while, call [`Visit::resume`] next.
    ///
    /// # Errors
    /// Those of [`QueuePair::thaw`], and a contradiction if the bytes are of a queue pair with
    /// another number. Nothing has changed then.
    pub fn thaw(&mut self, bytes: &[u8]) -> Result<(), ThawError> {
        let mut qp =
            QueuePair::thaw(bytes, self.qp.config().pd, self.host.shared.now, &mut self.host)?;
        let qpn = qp.config().qpn;
        if qpn != self.host.qpn {
            // It is not ours, so it must leave no trace.
            drop(qp.freeze(self.host.shared.now, &mut self.host));
            let (there, here) = (qpn, self.host.qpn);
            let text =
                format!("the bytes are of queue pair {there:#x}, but this is queue pair {here:#x}");
            return Err(ThawError::Contradiction(text));
        }
        if let Some(peer) = *self.host.peer {
            qp.set_peer(peer);
        }
        *self.qp = qp;
        Ok(())
    }

    /// Makes a queue pair that was thawed and then attached use the paths of this lane, because it
    /// still refers to those that it had when it was frozen.
    pub fn resume(&mut self) {
        self.qp.on_paths_unknown(self.host.shared.now, |_| true, &mut self.host);
    }
}

impl<Q> Entry<Q> {
    /// The queue pair and its surroundings.
    #[inline]
    pub(crate) fn visit<'a, O>(
        &'a mut self,
        shared: &'a mut Shared,
        out: &'a mut O,
    ) -> Visit<'a, Q, O> {
        let qpn = self.qp.config().qpn;
        let host = QpHost { qpn, shared, own: &self.own, out, peer: &mut self.peer };
        Visit { qp: &mut self.qp, host }
    }
}

impl<Q, O: Outside<Q>> Memory for QpHost<'_, Q, O> {
    type Segment = O::Segment;

    #[inline]
    fn resolve(&mut self, pd: u32, sge: Sge, rights: Access) -> Result<O::Segment, Fault> {
        self.out.memory(self.own).resolve(pd, sge, rights)
    }

    #[inline]
    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<O::Segment, Fault> {
        self.out.memory(self.own).resolve_remote(access)
    }

    #[inline]
    fn store(&mut self, segment: O::Segment, data: &[u8]) -> Result<(), Fault> {
        self.out.memory(self.own).store(segment, data)
    }

    #[inline]
    fn load(&mut self, segment: O::Segment, out: &mut [u8]) -> Result<(), Fault> {
        self.out.memory(self.own).load(segment, out)
    }

    #[inline]
    fn atomic(&mut self, segment: O::Segment, op: AtomicOp) -> Result<u64, Fault> {
        self.out.memory(self.own).atomic(segment, op)
    }

    #[inline]
    fn atomic_write(&mut self, segment: O::Segment, value: u64) -> Result<(), Fault> {
        self.out.memory(self.own).atomic_write(segment, value)
    }

    fn flush(&mut self, key: RemoteKey, scope: FlushScope, rights: Access) -> Result<(), Fault> {
        self.out.memory(self.own).flush(key, scope, rights)
    }

    fn invalidate(&mut self, key: RemoteKey) -> Result<(), Fault> {
        self.out.memory(self.own).invalidate(key)
    }

    fn bind_mw(&mut self, mw: u32, key: RemoteKey) -> Result<(), Fault> {
        self.out.memory(self.own).bind_mw(mw, key)
    }

    fn cancel_bind(&mut self, mw: u32, key: RemoteKey) {
        self.out.memory(self.own).cancel_bind(mw, key);
    }
}

impl<Q, O> EarlyRoom for QpHost<'_, Q, O> {
    fn reserve(&mut self, bytes: u32) -> bool {
        let left = self.shared.early_room.checked_sub(bytes);
        self.shared.early_room = left.unwrap_or(self.shared.early_room);
        left.is_some()
    }

    fn release(&mut self, bytes: u32) {
        self.shared.early_room += bytes;
    }
}

impl<Q, O: Outside<Q>> Queues for QpHost<'_, Q, O> {
    #[inline]
    fn take_srq(&mut self) -> Option<RecvWr> {
        self.out.take_srq(self.own)
    }

    #[inline]
    fn srq_pd(&self) -> Option<u32> {
        self.out.srq_pd(self.own)
    }

    #[inline]
    fn complete(&mut self, side: CqSide, completion: Completion) {
        let qpn = completion.qpn;
        if self.out.complete(self.own, side, completion) == Err(Overrun) {
            self.shared.completion_lost(qpn);
        }
    }

    fn xrc_pd(&self, srqn: u32) -> Option<u32> {
        self.out.xrc_pd(self.own, srqn)
    }

    fn take_xrc(&mut self, srqn: u32) -> Option<RecvWr> {
        self.out.take_xrc(self.own, srqn)
    }

    fn complete_xrc(&mut self, srqn: u32, completion: Completion) {
        let qpn = completion.qpn;
        if self.out.complete_xrc(self.own, srqn, completion) == Err(Overrun) {
            self.shared.completion_lost(qpn);
        }
    }
}

impl<Q, O: Outside<Q>> Observer for QpHost<'_, Q, O> {
    fn event(&mut self, event: QpEvent) {
        self.out.event(self.own, event);
    }

    fn explain(&mut self, explanation: Explanation) {
        self.out.explain(self.own, &self.shared.paths, explanation);
    }

    fn migration(&mut self, news: MigrationNews) {
        let Shared { now, paths, .. } = &mut *self.shared;
        // Both paths are known only until the queue pair has left the first one.
        self.out.migration(self.own, paths, self.qpn, news);
        if let MigrationNews::Migrated(_) = news
            && let Some(peer) = paths.migrate(*now, self.qpn)
        {
            *self.peer = Some(peer);
        }
    }
}

impl<Q, O: Outside<Q>> Paths for QpHost<'_, Q, O> {
    #[inline]
    fn route(&self, peer: PeerId) -> Option<Route> {
        self.shared.paths.route_of(peer, self.qpn)
    }

    #[inline]
    fn route_without_window(&self, peer: PeerId) -> Option<PathId> {
        let route = self.route(peer)?;
        Some(self.shared.paths.with_buffer(peer, route.path))
    }

    fn number_datagram(&mut self, paths: [PathId; 2]) -> Option<DatagramCopies> {
        self.shared.paths.number_datagram(paths)
    }

    fn is_reachable(&self, peer: PeerId) -> bool {
        self.shared.paths.is_reachable(peer)
    }

    fn two_paths(&self, _peer: PeerId) -> Option<TwoPaths> {
        self.shared.paths.two_paths(self.qpn)
    }

    fn take_other_path(&mut self, _peer: PeerId) -> Option<TwoPaths> {
        self.shared.paths.take_other_path(self.shared.now, self.qpn)
    }

    #[inline]
    fn pick(&mut self, peer: PeerId, want: &Want) -> Pick {
        let pick = self.shared.paths.pick(peer, want);
        self.shared.asked = match &pick {
            Pick::Route(route) => Some(route.path),
            Pick::Wait | Pick::NoPath => None,
        };
        pick
    }

    #[inline]
    fn tag(&self, path: PathId) -> Option<PathTag> {
        self.shared.paths.tag(path)
    }

    #[inline]
    fn take_mark(&mut self, path: PathId) -> bool {
        self.shared.paths.take_mark(path)
    }

    #[inline]
    fn sent(&mut self, path: PathId, bytes: u32) {
        self.out.charged(self.own, i64::from(bytes));
        self.shared.charged += u64::from(bytes);
        self.shared.paths.sent(self.shared.now, path, bytes);
    }

    fn asked(&mut self, path: PathId) {
        self.shared.paths.asked(self.shared.now, path);
    }

    #[inline]
    fn acked(&mut self, path: PathId, bytes: u32, rtt: Option<Duration>) {
        self.out.charged(self.own, -i64::from(bytes));
        self.shared.paths.acked(self.shared.now, path, bytes, rtt);
        self.shared.window_opened = true;
    }

    fn lost(&mut self, path: PathId, bytes: u32, congestion: bool) {
        self.out.charged(self.own, -i64::from(bytes));
        self.shared.paths.lost(self.shared.now, path, bytes, congestion);
        self.shared.window_opened = true;
    }

    fn sent_twice(&mut self, path: PathId, bytes: u32) {
        self.shared.charged += u64::from(bytes);
        self.shared.paths.sent_twice(self.shared.now, path, bytes);
    }

    fn answered(&mut self, path: PathId, echo_us: u32, bytes: Option<u32>, rtt: Option<Duration>) {
        self.shared.paths.answered_twice(self.shared.now, path, echo_us, bytes, rtt);
        self.shared.window_opened = true;
    }

    fn suspect(&mut self, path: PathId, since: Duration) {
        self.shared.paths.stalled(self.shared.now, path, self.qpn, since);
    }

    fn unheard(&mut self, path: PathId) {
        self.shared.paths.unheard(self.shared.now, path);
    }
}

impl<Q, O: Outside<Q>> Host for QpHost<'_, Q, O> {
    #[inline]
    fn transmit(&mut self, burst: &Burst<'_, O::Segment>) -> Result<(), Unread> {
        let Shared { now, paths, .. } = &mut *self.shared;
        match self.out.transmit(self.own, paths.path(burst.path), burst) {
            Ok(()) => Ok(()),
            Err(NotSent::Unread(unread)) => Err(unread),
            Err(NotSent::NoWay) => {
                paths.send_failed(*now, burst.path);
                Ok(())
            }
        }
    }
}
