//! The state of an XRC target on the lane of its queue pair.

use std::cell::RefCell;
use std::sync::Arc;

use polypath_transport::Fault;
use polypath_verbs::AsyncKind;

use crate::context_inner::ContextInner;
use crate::xrc::domain::Domain;
use crate::xrc::handles::Handles;

/// The state that a lane keeps for a target.
#[derive(Debug)]
pub(crate) struct TargetState {
    pub(crate) domain: Arc<Domain>,
    handles: Arc<Handles>,
    /// The protection domain of the latest request, and the context that it belongs to.
    latest: RefCell<Option<(u32, Arc<ContextInner>)>>,
}

impl TargetState {
    /// Creates the state of a target that has received no request yet.
    pub(crate) fn new(domain: Arc<Domain>, handles: Arc<Handles>) -> Self {
        Self { domain, handles, latest: RefCell::default() }
    }

    /// Handles a request that names this shared receive queue. Returns its protection domain.
    pub(crate) fn enter(&self, srqn: u32) -> Option<u32> {
        let found = self.domain.pd_of(srqn)?;
        let pd = found.0;
        self.latest.replace(Some(found));
        Some(pd)
    }

    /// The context whose memory a protection domain refers to.
    pub(crate) fn context(&self, pd: u32) -> Result<Arc<ContextInner>, Fault> {
        match &*self.latest.borrow() {
            Some((latest, context)) if *latest == pd => Ok(context.clone()),
            _ => self.domain.context_of(pd).ok_or(Fault::Key),
        }
    }

    /// Raises an event for everybody who opened the target.
    pub(crate) fn raise(&self, kind: AsyncKind) {
        self.handles.raise(kind);
    }
}
