//! XRC targets as the verbs know them: one queue pair, and a handle for everybody who opened it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use polypath_transport::Fault;
use polypath_verbs::{
    AsyncEvent, AsyncKind, Element, Error, PostFailure, QpAttr, QpAttrMask, QpRequest, QueuePair,
    RecvWr, Result, SendRequest,
};

use crate::context::ContextInner;
use crate::events::Raise;
use crate::notify::lock;
use crate::qp::Qp;
use crate::xrc::{Domain, Xrcd};

/// Most handles of one target.
const MAX_HANDLES: usize = 1 << 16;

/// A handle's token, and the context that it was opened with.
type Listener = (u64, Arc<ContextInner>);

/// Who is told of a target's events; `None` once the last handle is gone.
#[derive(Debug)]
pub(crate) struct Handles(Mutex<Option<Vec<Listener>>>);

impl Handles {
    fn new(token: u64, context: &Arc<ContextInner>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(vec![(token, context.clone())]))))
    }

    fn add(&self, token: u64, context: &Arc<ContextInner>) -> Result<()> {
        match lock(&self.0).as_mut() {
            None => Err(no_target()),
            Some(handles) if handles.len() >= MAX_HANDLES => {
                Err(Error::no_memory("too many handles to one XRC target"))
            }
            Some(handles) => {
                handles.push((token, context.clone()));
                Ok(())
            }
        }
    }

    /// True if it was the last.
    fn remove(&self, token: u64) -> bool {
        let mut all = lock(&self.0);
        let Some(handles) = all.as_mut() else { return false };
        handles.retain(|(t, _)| *t != token);
        let last = handles.is_empty();
        if last {
            *all = None;
        }
        last
    }
}

fn no_target() -> Error {
    Error::invalid("the XRC domain has no target of that number in this process")
}

/// What a lane knows of a target.
#[derive(Debug)]
pub(crate) struct TargetState {
    pub(crate) domain: Arc<Domain>,
    handles: Arc<Handles>,
    /// The protection domain of the latest request, and the context that it belongs to.
    latest: RefCell<Option<(u32, Arc<ContextInner>)>>,
}

impl TargetState {
    /// A request names this shared receive queue: gives its protection domain.
    pub(crate) fn enter(&self, srqn: u32) -> Option<u32> {
        let found = self.domain.pd_of(srqn)?;
        let pd = found.0;
        self.latest.replace(Some(found));
        Some(pd)
    }

    /// Whose memory a protection domain is about.
    pub(crate) fn context(&self, pd: u32) -> core::result::Result<Arc<ContextInner>, Fault> {
        match &*self.latest.borrow() {
            Some((latest, context)) if *latest == pd => Ok(context.clone()),
            _ => self.domain.context_of(pd).ok_or(Fault::Key),
        }
    }

    /// Tells everybody who opened the target.
    pub(crate) fn raise(&self, kind: AsyncKind) {
        for (token, context) in lock(&self.handles.0).iter().flatten() {
            context.raise(AsyncEvent { kind, element: Element::Qp(*token) });
        }
    }
}

/// A handle to a target.
#[derive(Debug)]
pub(crate) struct XrcTarget {
    qp: Arc<Qp>,
    handles: Arc<Handles>,
    xrcd: Arc<Xrcd>,
    context: Arc<ContextInner>,
    token: u64,
    destroyed: AtomicBool,
}

impl XrcTarget {
    /// Makes a target (`ibv_create_qp_ex`).
    pub(crate) fn create(context: &Arc<ContextInner>, request: &QpRequest) -> Result<Arc<Self>> {
        let xrcd = request
            .xrcd
            .as_ref()
            .ok_or_else(|| Error::invalid("an XRC target needs an XRC domain"))?;
        let xrcd = Xrcd::find(xrcd.as_ref(), &context.engine.lanes)?;
        let handles = Handles::new(request.token, context);
        let state = TargetState {
            domain: xrcd.domain.clone(),
            handles: handles.clone(),
            latest: RefCell::default(),
        };
        let qp = Arc::new(Qp::create(context, request, Some(state))?);
        xrcd.domain.add_target(&qp, &handles, qp.lane_index());
        Ok(Self::new(context, qp, handles, xrcd, request.token))
    }

    /// Another handle (`ibv_open_qp`).
    pub(crate) fn open(
        context: &Arc<ContextInner>,
        xrcd: &Arc<Xrcd>,
        qpn: u32,
        token: u64,
    ) -> Result<Arc<Self>> {
        let (qp, handles) = xrcd.domain.target(qpn).ok_or_else(no_target)?;
        handles.add(token, context)?;
        Ok(Self::new(context, qp, handles, xrcd.clone(), token))
    }

    fn new(
        context: &Arc<ContextInner>,
        qp: Arc<Qp>,
        handles: Arc<Handles>,
        xrcd: Arc<Xrcd>,
        token: u64,
    ) -> Arc<Self> {
        xrcd.add_user();
        let destroyed = AtomicBool::new(false);
        Arc::new(Self { qp, handles, xrcd, context: context.clone(), token, destroyed })
    }
}

impl QueuePair for XrcTarget {
    fn number(&self) -> u32 {
        self.qp.number()
    }

    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.qp.modify(attr, mask)
    }

    fn query(&self) -> Result<QpAttr> {
        self.qp.query()
    }

    fn post_send(
        &self,
        list: &[SendRequest<'_>],
        all_or_nothing: bool,
    ) -> core::result::Result<(), PostFailure> {
        self.qp.post_send(list, all_or_nothing)
    }

    fn post_recv(&self, list: &[RecvWr]) -> core::result::Result<(), PostFailure> {
        self.qp.post_recv(list)
    }

    fn attach_multicast(&self, gid: [u8; 16]) -> Result<()> {
        self.qp.attach_multicast(gid)
    }

    fn detach_multicast(&self, gid: [u8; 16]) -> Result<()> {
        self.qp.detach_multicast(gid)
    }

    /// The queue pair goes with its last handle.
    fn destroy(&self) -> Result<()> {
        if self.destroyed.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid("the handle to the XRC target has been destroyed"));
        }
        let last = self.handles.remove(self.token);
        self.context.forget_events(Element::Qp(self.token));
        if last {
            self.xrcd.domain.remove_target(self.qp.number());
            self.qp.destroy()?;
        }
        self.xrcd.remove_user();
        Ok(())
    }
}
