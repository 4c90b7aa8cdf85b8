//! The handles of an XRC target. Each of them receives its events.

use std::sync::{Arc, Mutex};

use polypath_verbs::{AsyncEvent, AsyncKind, Element, Error, Result};

use crate::context_inner::ContextInner;
use crate::events::Raise;
use crate::notify::lock;

/// The largest number of handles of one target.
const MAX_HANDLES: usize = 1 << 16;

/// A handle's token, and the context that it was opened with.
type Listener = (u64, Arc<ContextInner>);

/// The receivers of a target's events; `None` once the last handle is gone.
#[derive(Debug)]
pub(crate) struct Handles(Mutex<Option<Vec<Listener>>>);

impl Handles {
    pub(crate) fn new(token: u64, context: &Arc<ContextInner>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(vec![(token, context.clone())]))))
    }

    pub(crate) fn add(&self, token: u64, context: &Arc<ContextInner>) -> Result<()> {
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

    /// Raises an event for everybody who opened the target.
    pub(crate) fn raise(&self, kind: AsyncKind) {
        for (token, context) in lock(&self.0).iter().flatten() {
            context.raise(AsyncEvent { kind, element: Element::Qp(*token) });
        }
    }

    /// Removes a handle. Returns true if it was the last.
    pub(crate) fn remove(&self, token: u64) -> bool {
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

pub(crate) fn no_target() -> Error {
    Error::invalid("the XRC domain has no target of that number in this process")
}
