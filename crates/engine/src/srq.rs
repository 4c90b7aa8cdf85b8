//! Shared receive queues.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use polypath_verbs::{
    AsyncEvent, AsyncKind, Element, Error, PostFailure, RecvWr, Result, SharedReceiveQueue,
    SrqAttr, SrqRequest,
};

use crate::events::Raise;
use crate::homes::Creator;
use crate::limits::{MAX_SGE, MAX_SRQ_WR};
use crate::notify::lock;
use crate::quota::Permit;

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<RecvWr>,
    max_wr: u32,
    limit: u32,
}

/// The object that an XRC shared receive queue belongs to.
pub(crate) trait MemberOf: Debug + Send + Sync {
    /// Handles the end of the queue with this number. Nobody takes receives from it after this.
    fn end(&self, number: u32);
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    queue: Mutex<Queue>,
    pub(crate) pd: u32,
    max_sge: u32,
    number: u32,
    token: u64,
    users: AtomicU32,
    pub(crate) creator: Creator,
    owner: Weak<dyn Raise>,
    _permit: Option<Permit>,
    me: Weak<Self>,
    membership: Option<Box<dyn MemberOf>>,
}

impl Srq {
    pub(crate) fn new(
        request: &SrqRequest,
        number: u32,
        owner: Weak<dyn Raise>,
        permit: Option<Permit>,
        membership: Option<Box<dyn MemberOf>>,
    ) -> Result<Arc<Self>> {
        let SrqAttr { max_wr, max_sge, limit } = request.attr;
        if max_wr == 0 || max_wr > MAX_SRQ_WR || max_sge > MAX_SGE || limit > max_wr {
            return Err(Error::invalid(format!(
                "a shared receive queue has 1 to {MAX_SRQ_WR} entries of at most {MAX_SGE} elements"
            )));
        }
        Ok(Arc::new_cyclic(|me| Self {
            queue: Mutex::new(Queue { waiting: VecDeque::new(), max_wr, limit: 0 }),
            pd: request.pd,
            max_sge: max_sge.max(1),
            number,
            token: request.token,
            users: AtomicU32::new(0),
            creator: Creator::here(),
            owner,
            _permit: permit,
            me: me.clone(),
            membership,
        }))
    }

    /// Whether it belongs to an XRC domain. No queue pair can be created with such a queue.
    pub(crate) fn is_xrc(&self) -> bool {
        self.membership.is_some()
    }

    /// The shared receive queue behind the trait, if this crate created it.
    pub(crate) fn find(srq: &dyn SharedReceiveQueue) -> Option<Arc<Self>> {
        srq.as_any().downcast_ref::<Self>()?.me.upgrade()
    }

    pub(crate) fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the next receive. Raises the limit event if fewer than the limit are left (`man 3
    /// ibv_modify_srq`: once, until it is armed again).
    pub(crate) fn take(&self) -> Option<RecvWr> {
        let mut queue = lock(&self.queue);
        let wr = queue.waiting.pop_front()?;
        if queue.limit > 0 && queue.waiting.len() < queue.limit as usize {
            queue.limit = 0;
            drop(queue);
            if let Some(owner) = self.owner.upgrade() {
                owner.raise(AsyncEvent {
                    kind: AsyncKind::SrqLimitReached,
                    element: Element::Srq(self.token),
                });
            }
        }
        Some(wr)
    }
}

impl SharedReceiveQueue for Srq {
    fn post_recv(&self, list: &[RecvWr]) -> core::result::Result<(), PostFailure> {
        let mut queue = lock(&self.queue);
        for (index, wr) in list.iter().enumerate() {
            let error = if wr.sges.len() > self.max_sge as usize {
                Error::invalid("more scatter elements than the shared receive queue was made for")
            } else if queue.waiting.len() >= queue.max_wr as usize {
                Error::no_memory("the shared receive queue is full")
            } else {
                queue.waiting.push_back(wr.clone());
                continue;
            };
            return Err(PostFailure { index, error });
        }
        Ok(())
    }

    fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        let mut queue = lock(&self.queue);
        let size = max_wr.unwrap_or(queue.max_wr);
        if size == 0 || size > MAX_SRQ_WR || (queue.waiting.len() > size as usize) {
            return Err(Error::invalid("the new size is too small for what waits, or too large"));
        }
        if limit.is_some_and(|l| l > size) {
            return Err(Error::invalid("the limit is larger than the queue"));
        }
        queue.max_wr = size;
        if let Some(limit) = limit {
            queue.limit = limit;
        }
        Ok(())
    }

    fn query(&self) -> SrqAttr {
        let queue = lock(&self.queue);
        SrqAttr { max_wr: queue.max_wr, max_sge: self.max_sge, limit: queue.limit }
    }

    fn number(&self) -> u32 {
        self.number
    }

    fn destroy(&self) -> Result<()> {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Err(Error::busy("queue pairs still use this shared receive queue"));
        }
        if let Some(membership) = &self.membership {
            membership.end(self.number);
        }
        if let Some(owner) = self.owner.upgrade() {
            owner.forget(Element::Srq(self.token));
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.release_pd(self.pd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::Recorder;

    fn srq(max_wr: u32, owner: &Arc<Recorder>) -> Arc<Srq> {
        let attr = SrqAttr { max_wr, max_sge: 1, limit: 0 };
        let request = SrqRequest { pd: 1, attr, xrc: None, token: 9 };
        Srq::new(&request, 3, owner.owner(), None, None).unwrap()
    }

    fn wr(wr_id: u64) -> RecvWr {
        RecvWr { wr_id, ..RecvWr::default() }
    }

    #[test]
    fn a_full_queue_says_which_request_it_did_not_take() {
        let srq = srq(2, &Arc::default());
        let failure = srq.post_recv(&[wr(1), wr(2), wr(3)]).unwrap_err();
        assert_eq!((failure.index, failure.error.errno), (2, libc::ENOMEM));
        assert_eq!(srq.take().map(|w| w.wr_id), Some(1));
    }

    #[test]
    fn the_limit_event_comes_once_per_arming() {
        let owner: Arc<Recorder> = Arc::default();
        let srq = srq(8, &owner);
        (0..4).for_each(|id| srq.post_recv(&[wr(id)]).unwrap());
        srq.modify(None, Some(3)).unwrap();
        srq.take();
        assert!(owner.0.lock().unwrap().is_empty(), "three are left");
        srq.take();
        srq.take();
        let event = AsyncEvent { kind: AsyncKind::SrqLimitReached, element: Element::Srq(9) };
        assert_eq!(*owner.0.lock().unwrap(), [event]);
        assert_eq!(srq.query().limit, 0);
        srq.destroy().unwrap();
        assert!(owner.0.lock().unwrap().is_empty(), "nobody could acknowledge it any more");
    }
}
