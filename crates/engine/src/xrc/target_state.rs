//! An XRC target, as the lane knows it on which its queue pair lives.

use std::cell::RefCell;
use std::sync::Arc;

use polypath_transport::Fault;
use polypath_verbs::AsyncKind;

use crate::context_inner::ContextInner;
use crate::xrc::domain::Domain;
use crate::xrc::handles::Handles;

/// What a lane knows of a target.
#[derive(Debug)]
pub(crate) struct TargetState {
    pub(crate) domain: Arc<Domain>,
    handles: Arc<Handles>,
    /// The protection domain of the latest request, and the context that it belongs to.
    latest: RefCell<Option<(u32, Arc<ContextInner>)>>,
}

impl TargetState {
    /// A target of a domain that has taken no request yet.
    pub(crate) fn new(domain: Arc<Domain>, handles: Arc<Handles>) -> Self {
        Self { domain, handles, latest: RefCell::default() }
    }

    /// A request names this shared receive queue: gives its protection domain.
    pub(crate) fn enter(&self, srqn: u32) -> Option<u32> {
        let found = self.domain.pd_of(srqn)?;
        let pd = found.0;
        self.latest.replace(Some(found));
        Some(pd)
    }

    /// Whose memory a protection domain is about.
    pub(crate) fn context(&self, pd: u32) -> Result<Arc<ContextInner>, Fault> {
        match &*self.latest.borrow() {
            Some((latest, context)) if *latest == pd => Ok(context.clone()),
            _ => self.domain.context_of(pd).ok_or(Fault::Key),
        }
    }

    /// Tells everybody who opened the target.
    pub(crate) fn raise(&self, kind: AsyncKind) {
        self.handles.raise(kind);
    }
}
