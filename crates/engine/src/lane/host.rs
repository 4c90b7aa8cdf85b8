//! The engine's side of a lane's queue pairs: memory, queues, sockets.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polypath_ipc::migration::AlternatePath;
use polypath_lane::{NotSent, Outside, Overrun};
use polypath_paths::{ControlOut, PathAddress, PathEvent, PathManager};
use polypath_telemetry::{Counters as _, Event, QpCounters, Qpn};
use polypath_transport::{
    Access, AtomicOp, Burst, Completion, CqSide, Explanation, Fault, FlushScope, Memory,
    MigrationNews, PathId, QpEvent, RecvWr, RemoteAccess, RemoteKey, Sge,
};
use polypath_verbs::{AsyncEvent, AsyncKind, Element};

use crate::context_inner::ContextInner;
use crate::cq::Cq;
use crate::events::Raise;
use crate::lane::io::LaneIo;
use crate::lane::noted::Failure;
use crate::memory::{self, KeyCache, MemoryTable, Segment};
use crate::srq::Srq;
use crate::xrc::target_state::TargetState;

/// The objects of this process that a queue pair uses: its context, completion queues and keys.
#[derive(Debug)]
pub(crate) struct QpResources {
    pub(crate) context: Arc<ContextInner>,
    /// `None` only in XRC targets.
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// `None` only in XRC queue pairs.
    pub(crate) recv_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    /// XRC targets only.
    pub(crate) target: Option<TargetState>,
    pub(crate) token: u64,
    /// An alternate path that is to be loaded when it is in RTS.
    pub(crate) pending_alternate: Cell<Option<AlternatePath>>,
    /// Its last failure, for `polypath status`.
    pub(crate) last_error: Cell<Option<Failure>>,
    /// The path that it last sent on.
    pub(crate) last_path: Cell<PathId>,
    /// The memory keys that it has used recently.
    pub(crate) keys: KeyCache,
}

/// The process' memory, as one of its queue pairs may use it.
struct QpMemory<'a>(&'a QpResources);

impl QpMemory<'_> {
    /// Passes `work` the table for keys of a protection domain. For an XRC target, it is that of
    /// the context that has the shared receive queue.
    fn with_table<R>(
        &self,
        pd: u32,
        work: impl FnOnce(&MemoryTable) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        match &self.0.target {
            None => work(&self.0.context.memory),
            Some(target) => work(&target.context(pd)?.memory),
        }
    }
}

impl Memory for QpMemory<'_> {
    type Segment = Segment;

    #[inline]
    fn resolve(&mut self, pd: u32, sge: Sge, rights: Access) -> Result<Segment, Fault> {
        match &self.0.target {
            None => self.0.keys.resolve(&self.0.context.memory, pd, sge, rights),
            Some(_) => self.with_table(pd, |table| table.resolve(pd, sge, rights)),
        }
    }

    #[inline]
    fn resolve_remote(&mut self, access: &RemoteAccess) -> Result<Segment, Fault> {
        match &self.0.target {
            None => self.0.keys.resolve_remote(&self.0.context.memory, access),
            Some(_) => self.with_table(access.key.pd, |table| table.resolve_remote(access)),
        }
    }

    #[inline]
    fn store(&mut self, segment: Segment, data: &[u8]) -> Result<(), Fault> {
        memory::store(segment, data)
    }

    #[inline]
    fn load(&mut self, segment: Segment, out: &mut [u8]) -> Result<(), Fault> {
        memory::copy_out(segment, out).map(drop)
    }

    fn atomic(&mut self, segment: Segment, op: AtomicOp) -> Result<u64, Fault> {
        memory::atomic(segment, op)
    }

    fn atomic_write(&mut self, segment: Segment, value: u64) -> Result<(), Fault> {
        memory::atomic_write(segment, value)
    }

    fn flush(&mut self, key: RemoteKey, scope: FlushScope, rights: Access) -> Result<(), Fault> {
        self.with_table(key.pd, |table| table.check_flush(key, scope, rights))?;
        memory::make_visible();
        Ok(())
    }

    fn invalidate(&mut self, key: RemoteKey) -> Result<(), Fault> {
        self.with_table(key.pd, |table| table.invalidate(key))
    }

    fn bind_mw(&mut self, mw: u32, key: RemoteKey) -> Result<(), Fault> {
        self.0.context.memory.bind(mw, key)
    }

    fn cancel_bind(&mut self, mw: u32, key: RemoteKey) {
        self.0.context.memory.cancel_bind(mw, key.qpn, key.rkey);
    }
}

impl Outside<QpResources> for LaneIo {
    type Segment = Segment;

    #[inline]
    fn memory<'a>(&'a mut self, own: &'a QpResources) -> impl Memory<Segment = Segment> + 'a {
        QpMemory(own)
    }

    #[inline]
    fn take_srq(&mut self, own: &QpResources) -> Option<RecvWr> {
        own.srq.as_ref()?.take()
    }

    #[inline]
    fn srq_pd(&self, own: &QpResources) -> Option<u32> {
        Some(own.srq.as_ref()?.pd)
    }

    #[inline]
    fn complete(
        &mut self,
        own: &QpResources,
        side: CqSide,
        completion: Completion,
    ) -> Result<(), Overrun> {
        let cq = match side {
            CqSide::Send => &own.send_cq,
            CqSide::Recv => &own.recv_cq,
        };
        cq.as_ref().map_or(Ok(()), |cq| self.hand_out(cq, completion))
    }

    fn xrc_pd(&self, own: &QpResources, srqn: u32) -> Option<u32> {
        own.target.as_ref()?.enter(srqn)
    }

    fn take_xrc(&mut self, own: &QpResources, srqn: u32) -> Option<RecvWr> {
        own.target.as_ref()?.domain.take(srqn)
    }

    fn complete_xrc(
        &mut self,
        own: &QpResources,
        srqn: u32,
        completion: Completion,
    ) -> Result<(), Overrun> {
        let mut done = Ok(());
        if let Some(target) = &own.target {
            target.domain.complete(srqn, |cq| done = self.hand_out(cq, completion));
        }
        done
    }

    fn event(&mut self, own: &QpResources, event: QpEvent) {
        let kind = match event {
            QpEvent::Fatal => AsyncKind::QpFatal,
            QpEvent::RequestError => AsyncKind::QpReqErr,
            QpEvent::AccessError => AsyncKind::QpAccessErr,
            QpEvent::CommEstablished => AsyncKind::CommEst,
            QpEvent::SqDrained => AsyncKind::SqDrained,
            QpEvent::PathMig => AsyncKind::PathMig,
            QpEvent::PathMigError => AsyncKind::PathMigErr,
            QpEvent::LastWqeReached => AsyncKind::QpLastWqeReached,
        };
        match &own.target {
            None => {
                let element = Element::Qp(own.token);
                own.context.raise(AsyncEvent { kind, element });
            }
            Some(target) => target.raise(kind),
        }
    }

    #[cold]
    fn explain(&mut self, own: &QpResources, paths: &PathManager, explanation: Explanation) {
        let obstacle = self.obstacle(paths, own.last_path.get());
        let failure = Failure { explanation, obstacle };
        own.last_error.set(Some(failure));
        self.journal.note_failure(self.now, failure);
    }

    #[cold]
    fn migration(
        &mut self,
        _own: &QpResources,
        paths: &PathManager,
        qpn: u32,
        news: MigrationNews,
    ) {
        self.note_migration(paths, qpn, news);
    }

    fn overran(&mut self, _own: &QpResources, qpn: u32) {
        self.note(Event::CompletionQueueOverrun { qpn: Qpn(qpn) });
    }

    fn removed(&mut self, _own: &QpResources, counters: &QpCounters) {
        self.ended.add(counters);
    }

    fn qkey_violation(&mut self, own: &QpResources) {
        own.context.violations.qkey.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn transmit(
        &mut self,
        own: &QpResources,
        address: Option<&PathAddress>,
        burst: &Burst<'_, Segment>,
    ) -> Result<(), NotSent> {
        own.last_path.set(burst.path);
        self.send(address, burst)
    }

    fn control(&mut self, out: ControlOut) {
        self.send_control(&out);
    }

    fn path_event(&mut self, _now: Duration, paths: &PathManager, event: &PathEvent) {
        self.note_path_event(paths, event);
    }
}
