//! Completion queues.
//!
//! Several lanes may feed a completion queue, and several threads may read it. Its lock is held for
//! a few instructions only. While it is held, only the channel's lock may be taken, and that is
//! rare: a thread that raises an event first releases the queue's lock. The one exception is a lane
//! that raises a deferred event.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use polypath_lane::Overrun;
use polypath_verbs::{
    AsyncEvent, AsyncKind, Completion, CompletionQueue, CqRequest, Element, Error, Result, Wc,
    WcStatus,
};

use crate::channel::Channel;
use crate::clock;
use crate::drive::{Drive, are_same};
use crate::events::Raise;
use crate::homes::Creator;
use crate::limits::MAX_CQE;
use crate::moderation::{Moderated, Moderation};
use crate::notify::lock;
use crate::quota::Permit;

/// The completion that makes the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

impl Armed {
    /// Whether this completion makes the event (IBTA 11.4.2.2).
    fn wants(self, completion: &Completion) -> bool {
        match self {
            Self::No => false,
            Self::Any => true,
            Self::Solicited => completion.solicited || completion.status != WcStatus::Success,
        }
    }
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Wc>,
    capacity: u32,
    armed: Armed,
    moderation: Moderation,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: Mutex<Ring>,
    token: u64,
    ignore_overrun: bool,
    channel: Option<Arc<dyn polypath_verbs::CompletionChannel>>,
    /// The number of entries, which can be read without the lock.
    count: AtomicUsize,
    /// Whether the reader asked for an event, which means that it is about to sleep.
    awaited: AtomicBool,
    /// Whether the program has looked for completions since the last event was raised.
    polled: AtomicBool,
    /// Whether a completion was lost. The queue is then in error for good.
    overrun: AtomicBool,
    /// Bit n is set if lane n feeds this queue.
    lanes: AtomicU64,
    /// The number of queue pairs that use it, counted once per side, and of XRC shared receive
    /// queues.
    users: AtomicU32,
    /// The lanes of its engine.
    engine_lanes: Arc<dyn Drive>,
    pub(crate) creator: Creator,
    owner: Weak<dyn Raise>,
    _permit: Option<Permit>,
    me: Weak<Self>,
}

impl Cq {
    pub(crate) fn new(
        request: &CqRequest,
        owner: Weak<dyn Raise>,
        engine_lanes: Arc<dyn Drive>,
        permit: Option<Permit>,
    ) -> Result<Arc<Self>> {
        if request.cqe == 0 || request.cqe > MAX_CQE {
            return Err(Error::invalid(format!("a completion queue has 1 to {MAX_CQE} entries")));
        }
        if let Some(channel) = &request.channel
            && channel.as_any().downcast_ref::<Channel>().is_none()
        {
            return Err(Error::invalid("the completion channel belongs to another device"));
        }
        Ok(Arc::new_cyclic(|me| Self {
            ring: Mutex::new(Ring {
                entries: VecDeque::with_capacity(request.cqe.min(4096) as usize),
                capacity: request.cqe,
                armed: Armed::No,
                moderation: Moderation::default(),
            }),
            token: request.token,
            ignore_overrun: request.ignore_overrun,
            channel: request.channel.clone(),
            count: AtomicUsize::new(0),
            awaited: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            lanes: AtomicU64::new(0),
            users: AtomicU32::new(0),
            engine_lanes,
            creator: Creator::here(),
            owner,
            _permit: permit,
            me: me.clone(),
        }))
    }

    /// Lets a queue pair on `lane` use this queue.
    pub(crate) fn attach(&self, lane: usize) {
        self.feed(1 << lane);
        self.add_user();
    }

    /// Lets the lanes of the mask feed this queue from now on.
    pub(crate) fn feed(&self, lanes: u64) {
        self.lanes.fetch_or(lanes, Ordering::Relaxed);
        if let Some(channel) = self.channel() {
            channel.feed(&self.engine_lanes, lanes);
        }
    }

    /// Adds a user of this queue.
    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a user. Its completions stay.
    pub(crate) fn remove_user(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// The completion queue behind the trait, if it belongs to the engine with these lanes, because
    /// a thread that polls drives only these lanes.
    pub(crate) fn find(cq: &dyn CompletionQueue, lanes: &Arc<dyn Drive>) -> Result<Arc<Self>> {
        cq.as_any()
            .downcast_ref::<Self>()
            .filter(|cq| are_same(&cq.engine_lanes, lanes))
            .and_then(|cq| cq.me.upgrade())
            .ok_or_else(|| Error::invalid("the completion queue belongs to another device"))
    }

    /// Stops a queue pair's use of this queue, and forgets its unsuccessful completions.
    ///
    /// Successful completions stay, as on Linux rxe: libfabric polls the queue after it has
    /// destroyed a queue pair, and treats completions that it does not find as lost.
    pub(crate) fn detach(&self, qpn: u32) {
        self.retain(|done| done.qpn != qpn || done.status == WcStatus::Success);
        self.remove_user();
    }

    /// Forgets the completions of a queue pair that was reset.
    pub(crate) fn purge(&self, qpn: u32) {
        self.retain(|done| done.qpn != qpn);
    }

    fn retain(&self, stays: impl Fn(&Completion) -> bool) {
        let mut ring = lock(&self.ring);
        ring.entries.retain(|wc| stays(&wc.completion));
        self.count.store(ring.entries.len(), Ordering::Release);
    }

    /// Adds a completion and raises an event if one was asked for. `Some` means that the event is
    /// deferred, and that the lane must call [`Self::raise_deferred`] at that time.
    ///
    /// # Errors
    /// [`Overrun`] if there is no room, and the completion is lost.
    pub(crate) fn push(
        &self,
        completion: Completion,
        now: Duration,
    ) -> core::result::Result<Option<Duration>, Overrun> {
        let mut ring = lock(&self.ring);
        if ring.entries.len() >= ring.capacity as usize {
            if self.ignore_overrun {
                ring.entries.pop_front();
            } else {
                // IBTA 11.6.3.2: the completion is lost, and the queue is in error. The owner is
                // told once.
                let first = !self.overrun.swap(true, Ordering::Relaxed);
                drop(ring);
                if first && let Some(owner) = self.owner.upgrade() {
                    owner.raise(AsyncEvent {
                        kind: AsyncKind::CqErr,
                        element: Element::Cq(self.token),
                    });
                }
                return Err(Overrun);
            }
        }
        let wanted = ring.armed.wants(&completion);
        let failed = completion.status != WcStatus::Success;
        ring.entries.push_back(Wc { completion, timestamp: clock::realtime_ns(now) });
        self.count.store(ring.entries.len(), Ordering::Release);
        if !wanted {
            return Ok(None);
        }
        // An event is not deferred for a failure, nor for a queue that may overrun before the
        // program looks.
        if ring.moderation.is_on()
            && !failed
            && ring.entries.len() < ring.capacity as usize / 2
            && let Moderated::Defer(look_at) = ring.moderation.completed(now)
        {
            return Ok(look_at);
        }
        self.disarm(&mut ring);
        drop(ring);
        self.notify();
        Ok(None)
    }

    /// Raises the deferred event if it is due. The lane calls this at the time `at` that it was
    /// given. `Some` is the next time at which the lane must call.
    pub(crate) fn raise_deferred(&self, at: Duration, now: Duration) -> Option<Duration> {
        let mut ring = lock(&self.ring);
        match ring.moderation.look(at, now) {
            Moderated::Defer(again) => again,
            Moderated::Raise => {
                self.disarm(&mut ring);
                // The lock is held, so that `destroy` cannot forget the queue's events in between.
                self.notify();
                None
            }
        }
    }

    /// Notes that the event that was asked for is raised.
    #[inline]
    fn disarm(&self, ring: &mut Ring) {
        ring.armed = Armed::No;
        ring.moderation.raised();
        self.awaited.store(false, Ordering::Relaxed);
        self.polled.store(false, Ordering::Relaxed);
    }

    /// Whether an event was asked for and has not been raised.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref().and_then(|channel| channel.as_any().downcast_ref())
    }

    fn notify(&self) {
        if let Some(channel) = self.channel() {
            channel.notify(self.token);
        }
    }

    #[inline]
    fn take(&self, limit: usize, sink: &mut dyn FnMut(&Wc)) -> usize {
        // It is read first because others read its cache line all the time.
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
        // A thread that polls an empty queue must not delay the lanes that add completions.
        if self.count.load(Ordering::Acquire) == 0 { 0 } else { self.take_some(limit, sink) }
    }

    fn take_some(&self, limit: usize, sink: &mut dyn FnMut(&Wc)) -> usize {
        let mut ring = lock(&self.ring);
        let n = limit.min(ring.entries.len());
        for _ in 0..n {
            if let Some(wc) = ring.entries.pop_front() {
                sink(&wc);
            }
        }
        self.count.store(ring.entries.len(), Ordering::Release);
        n
    }

    fn overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }
}

impl CompletionQueue for Cq {
    fn poll(&self, limit: usize, sink: &mut dyn FnMut(&Wc)) -> Result<usize> {
        let n = self.take(limit, sink);
        if n > 0 {
            self.engine_lanes.took(self.lanes.load(Ordering::Relaxed));
            return Ok(n);
        }
        if limit == 0 {
            return Ok(0);
        }
        self.engine_lanes.drive(self.lanes.load(Ordering::Relaxed));
        let n = self.take(limit, sink);
        if n == 0 && self.overrun() {
            return Err(Error::new(
                libc::EIO,
                "the completion queue overran and lost completions: make it larger or poll more often",
            ));
        }
        Ok(n)
    }

    /// A completion that came after the program had looked, and before this call, makes the event at once.
    /// IBTA 11.4.2.2 does not ask for it, but adapters that know how far the program has read do it, and
    /// programs that sleep then without looking again, as UCX does, would sleep for ever. One that was there
    /// when the last event was raised does not: it is usual to arm first and to look then.
    fn arm(&self, solicited_only: bool) -> Result<()> {
        {
            let mut ring = lock(&self.ring);
            ring.armed = match (solicited_only, ring.armed) {
                (true, Armed::No | Armed::Solicited) => Armed::Solicited,
                _ => Armed::Any,
            };
            let armed = ring.armed;
            let mut waiting = ring.entries.iter();
            if self.polled.load(Ordering::Relaxed) && waiting.any(|wc| armed.wants(&wc.completion))
            {
                self.disarm(&mut ring);
                // The lock is held, so that `destroy` cannot forget the queue's events in between.
                self.notify();
                return Ok(());
            }
            self.awaited.store(true, Ordering::Relaxed);
        }
        let lanes = self.lanes.load(Ordering::Relaxed);
        match self.channel() {
            Some(channel) if channel.arms() => self.engine_lanes.expect_wait(lanes),
            _ => self.engine_lanes.expect_sleep(lanes),
        }
        Ok(())
    }

    fn resize(&self, cqe: u32) -> Result<u32> {
        if cqe == 0 || cqe > MAX_CQE {
            return Err(Error::invalid(format!("a completion queue has 1 to {MAX_CQE} entries")));
        }
        let mut ring = lock(&self.ring);
        if ring.entries.len() > cqe as usize {
            return Err(Error::invalid("the completion queue holds more completions than that"));
        }
        ring.capacity = cqe;
        Ok(cqe)
    }

    fn capacity(&self) -> u32 {
        lock(&self.ring).capacity
    }

    fn moderate(&self, count: u16, period_us: u16) -> Result<()> {
        let mut ring = lock(&self.ring);
        if ring.moderation.set(count, period_us) {
            self.disarm(&mut ring);
            drop(ring);
            self.notify();
        }
        Ok(())
    }

    fn destroy(&self) -> Result<()> {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Err(Error::busy("queue pairs or XRC queues still use this completion queue"));
        }
        self.disarm(&mut lock(&self.ring));
        if let Some(channel) = self.channel() {
            channel.forget(self.token);
        }
        if let Some(owner) = self.owner.upgrade() {
            owner.forget(Element::Cq(self.token));
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests;
