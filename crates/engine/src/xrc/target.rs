//! XRC targets of verbs: one queue pair, with a handle for everybody who opened it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polypath_verbs::{
    Element, Error, PostFailure, QpAttr, QpAttrMask, QpRequest, QueuePair, RecvWr, Result,
    SendRequest,
};

use crate::context_inner::ContextInner;
use crate::engine_inner::EngineInner;
use crate::qp::Qp;
use crate::xrc::Xrcd;
use crate::xrc::handles::{Handles, no_target};
use crate::xrc::target_state::TargetState;

/// A handle to a target.
#[derive(Debug)]
pub(crate) struct XrcTarget {
    qp: Arc<dyn QueuePair>,
    handles: Arc<Handles>,
    xrcd: Arc<Xrcd>,
    context: Arc<ContextInner>,
    token: u64,
    destroyed: AtomicBool,
}

impl XrcTarget {
    /// Makes a target (`ibv_create_qp_ex`).
    pub(crate) fn create(
        engine: &EngineInner,
        context: &Arc<ContextInner>,
        request: &QpRequest,
        number: Option<u32>,
    ) -> Result<Arc<Self>> {
        let xrcd = request
            .xrcd
            .as_ref()
            .ok_or_else(|| Error::invalid("an XRC target needs an XRC domain"))?;
        let xrcd = Xrcd::find(xrcd.as_ref(), &context.lanes)?;
        let handles = Handles::new(request.token, context);
        let state = TargetState::new(xrcd.domain.clone(), handles.clone());
        let qp = Qp::create(engine, context, request, number, Some(state))?;
        let lane = qp.lane_index();
        let qp: Arc<dyn QueuePair> = Arc::new(qp);
        xrcd.domain.add_target(&qp, &handles, lane);
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
        qp: Arc<dyn QueuePair>,
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

    /// Destroys the handle. The queue pair is destroyed with its last handle.
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
