//! What the engine gives a queue pair: memory, queues, paths.

use std::cell::{Cell, RefCell};
use std::fmt::Arguments;
use std::sync::Arc;
use std::time::Duration;

use polypath_transport::{
    Access, AtomicOp, Burst, Completion, CqSide, Fault, FlushScope, Host, PathId, PathTag, PeerId,
    QpEvent, RecvWr, Route, Segment, Sge, Unread,
};
use polypath_verbs::{AsyncEvent, AsyncKind, Element};

use crate::context::Shared;
use crate::cq::Cq;
use crate::events::Raise;
use crate::lane::io::LaneIo;
use crate::memory::{self, KeyCache};
use crate::srq::Srq;
use crate::target::TargetState;

/// What a queue pair is connected with in this process.
#[derive(Debug)]
pub(crate) struct Attached {
    /// Its number; the table of queue pairs fills it in.
    pub(crate) qpn: u32,
    pub(crate) context: Arc<Shared>,
    /// All but XRC targets have one.
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// All but XRC queue pairs have one.
    pub(crate) recv_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    /// XRC targets only.
    pub(crate) target: Option<TargetState>,
    pub(crate) token: u64,
    /// What was last said of it, for `polypath status`.
    pub(crate) last_error: RefCell<String>,
    /// The path that it sent by last.
    pub(crate) last_path: Cell<PathId>,
    /// Memory keys that it has used lately.
    pub(crate) keys: KeyCache,
}

/// The surroundings of one queue pair for the time of one call.
pub(crate) struct LaneHost<'a> {
    pub(crate) attached: &'a Attached,
    pub(crate) io: &'a mut LaneIo,
}

impl Host for LaneHost<'_> {
    fn resolve(&self, pd: u32, sge: Sge, access: Access) -> Result<Segment, Fault> {
        let attached = self.attached;
        match &attached.target {
            None => attached.keys.resolve(&attached.context.memory, pd, sge, access),
            Some(target) => target.context(pd)?.memory.resolve(pd, sge, access),
        }
    }

    fn resolve_remote(
        &self,
        pd: u32,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<Segment, Fault> {
        let attached = self.attached;
        match &attached.target {
            None => {
                let memory = &attached.context.memory;
                attached.keys.resolve_remote(memory, pd, qpn, rkey, va, len, access)
            }
            Some(target) => {
                target.context(pd)?.memory.resolve_remote(pd, qpn, rkey, va, len, access)
            }
        }
    }

    fn store(&mut self, segment: Segment, data: &[u8]) -> Result<(), Fault> {
        memory::store(segment, data)
    }

    fn load(&self, segment: Segment, out: &mut [u8]) -> Result<(), Fault> {
        memory::copy_out(segment, out).map(drop)
    }

    fn atomic(&mut self, segment: Segment, op: AtomicOp) -> Result<u64, Fault> {
        memory::atomic(segment, op)
    }

    fn atomic_write(&mut self, segment: Segment, value: u64) -> Result<(), Fault> {
        memory::atomic_write(segment, value)
    }

    fn flush(
        &mut self,
        pd: u32,
        qpn: u32,
        rkey: u32,
        scope: FlushScope,
        access: Access,
    ) -> Result<(), Fault> {
        match &self.attached.target {
            None => self.attached.context.memory.check_flush(pd, qpn, rkey, scope, access)?,
            Some(target) => {
                target.context(pd)?.memory.check_flush(pd, qpn, rkey, scope, access)?;
            }
        }
        memory::make_visible();
        Ok(())
    }

    fn invalidate(&mut self, pd: u32, qpn: u32, rkey: u32) -> Result<(), Fault> {
        match &self.attached.target {
            None => self.attached.context.memory.invalidate(pd, qpn, rkey),
            Some(target) => target.context(pd)?.memory.invalidate(pd, qpn, rkey),
        }
    }

    fn bind_mw(&mut self, pd: u32, qpn: u32, mw: u32, rkey: u32) -> Result<(), Fault> {
        self.attached.context.memory.bind(pd, qpn, mw, rkey)
    }

    fn cancel_bind(&mut self, mw: u32, rkey: u32) {
        self.attached.context.memory.cancel_bind(mw, rkey);
    }

    fn reserve(&mut self, bytes: u32) -> bool {
        let left = self.io.early_room.checked_sub(bytes);
        self.io.early_room = left.unwrap_or(self.io.early_room);
        left.is_some()
    }

    fn release(&mut self, bytes: u32) {
        self.io.early_room += bytes;
    }

    fn take_srq(&mut self) -> Option<RecvWr> {
        self.attached.srq.as_ref()?.take()
    }

    fn complete(&mut self, side: CqSide, completion: Completion) {
        let cq = match side {
            CqSide::Send => &self.attached.send_cq,
            CqSide::Recv => &self.attached.recv_cq,
        };
        if let Some(cq) = cq {
            self.io.complete(cq, completion);
        }
    }

    fn xrc_pd(&self, srqn: u32) -> Option<u32> {
        self.attached.target.as_ref()?.enter(srqn)
    }

    fn take_xrc(&mut self, srqn: u32) -> Option<RecvWr> {
        self.attached.target.as_ref()?.domain.take(srqn)
    }

    fn complete_xrc(&mut self, srqn: u32, completion: Completion) {
        let Some(target) = &self.attached.target else { return };
        target.domain.complete(srqn, |cq| self.io.complete(cq, completion));
    }

    fn event(&mut self, event: QpEvent) {
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
        match &self.attached.target {
            None => {
                let element = Element::Qp(self.attached.token);
                self.attached.context.raise(AsyncEvent { kind, element });
            }
            Some(target) => target.raise(kind),
        }
    }

    fn explain(&mut self, text: Arguments<'_>) {
        let mut text = text.to_string();
        if let Some(obstacle) = self.io.obstacle(self.attached.last_path.get()) {
            text = format!("{text}; {obstacle}");
        }
        self.attached.last_error.replace(text.clone());
        self.io.explain(text);
    }

    fn route(&mut self, peer: PeerId) -> Option<Route> {
        self.io.paths.route_of(peer, self.attached.qpn)
    }

    fn tag(&self, path: PathId) -> Option<PathTag> {
        self.io.paths.tag(path)
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Result<(), Unread> {
        self.attached.last_path.set(burst.path);
        self.io.transmit(burst)
    }

    fn sent(&mut self, path: PathId, bytes: u32) {
        let now = self.io.now;
        self.io.paths.sent(now, path, bytes);
    }

    fn acked(&mut self, path: PathId, bytes: u32, rtt: Option<Duration>) {
        let now = self.io.now;
        self.io.paths.acked(now, path, bytes, rtt);
        self.io.window_opened = true;
    }

    fn lost(&mut self, path: PathId, bytes: u32, congestion: bool) {
        let now = self.io.now;
        self.io.paths.lost(now, path, bytes, congestion);
        self.io.window_opened = true;
    }

    fn suspect(&mut self, path: PathId, since: Duration) {
        let (now, qpn) = (self.io.now, self.attached.qpn);
        self.io.paths.stalled(now, path, qpn, since);
    }
}
