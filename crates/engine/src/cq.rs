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
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != WcStatus::Success,
        };
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

    fn arm(&self, solicited_only: bool) -> Result<()> {
        {
            let mut ring = lock(&self.ring);
            ring.armed = match (solicited_only, ring.armed) {
                (true, Armed::No | Armed::Solicited) => Armed::Solicited,
                _ => Armed::Any,
            };
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
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use polypath_verbs::{CompletionChannel, WcOpcode};

    use super::*;
    use crate::deferrals::Deferrals;
    use crate::events::tests::Recorder;
    use crate::lanes::Lanes;

    fn cq(cqe: u32, channel: Option<&Arc<Channel>>, owner: &Arc<Recorder>) -> Arc<Cq> {
        let request = CqRequest {
            cqe,
            channel: channel.map(|c| c.clone() as Arc<dyn CompletionChannel>),
            token: 77,
            ignore_overrun: false,
        };
        Cq::new(&request, owner.owner(), Lanes::default().driver(), None).unwrap()
    }

    fn completion(wr_id: u64, qpn: u32, solicited: bool) -> Completion {
        Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: 0,
            byte_len: 0,
            imm: None,
            invalidated_rkey: None,
            qpn,
            src_qpn: 0,
            grh: None,
            solicited,
        }
    }

    fn push(cq: &Cq, completion: Completion, now: Duration) -> Option<Duration> {
        cq.push(completion, now).unwrap_or(None)
    }

    fn ids(cq: &Cq) -> Vec<u64> {
        let mut ids = Vec::new();
        cq.poll(100, &mut |wc| ids.push(wc.completion.wr_id)).unwrap();
        ids
    }

    #[test]
    fn completions_come_out_in_order_and_a_reset_queue_pair_s_do_not() {
        let cq = cq(8, None, &Arc::default());
        for (wr_id, qpn) in [(1, 5), (2, 6), (3, 5)] {
            push(&cq, completion(wr_id, qpn, false), Duration::ZERO);
        }
        cq.purge(6);
        assert_eq!(ids(&cq), [1, 3]);
    }

    #[test]
    fn what_succeeded_before_its_queue_pair_was_destroyed_stays_and_what_was_flushed_does_not() {
        let cq = cq(8, None, &Arc::default());
        let flushed =
            |wr_id| Completion { status: WcStatus::WrFlushErr, ..completion(wr_id, 6, false) };
        for done in [completion(1, 6, false), flushed(2), completion(3, 5, false)] {
            push(&cq, done, Duration::ZERO);
        }
        cq.attach(0);
        cq.detach(6);
        assert_eq!(ids(&cq), [1, 3]);
    }

    #[test]
    fn an_overrun_is_told_once_and_then_ends_polling() {
        let owner = Arc::default();
        let cq = cq(2, None, &owner);
        for wr_id in 0..4 {
            push(&cq, completion(wr_id, 1, false), Duration::ZERO);
        }
        let event = AsyncEvent { kind: AsyncKind::CqErr, element: Element::Cq(77) };
        assert_eq!(*owner.0.lock().unwrap(), [event]);
        assert_eq!(ids(&cq), [0, 1]);
        assert_eq!(cq.poll(1, &mut |_| ()).unwrap_err().errno, libc::EIO);
    }

    /// IBTA 11.6.3.2: the lane makes the queue pair fail whose completion is lost.
    #[test]
    fn each_completion_that_finds_no_room_is_an_overrun_to_the_lane() {
        let cq = cq(1, None, &Arc::default());
        assert!(cq.push(completion(1, 1, false), Duration::ZERO).is_ok());
        for wr_id in 2..4 {
            assert!(cq.push(completion(wr_id, 1, false), Duration::ZERO).is_err(), "{wr_id}");
        }
        assert_eq!(ids(&cq), [1]);
    }

    #[test]
    fn one_event_per_arming_and_solicited_ones_only_if_asked() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = cq(8, Some(&channel), &Arc::default());
        push(&cq, completion(1, 1, true), Duration::ZERO);
        assert_eq!(channel.take(), None, "not armed");
        assert!(!cq.is_awaited());
        cq.arm(true).unwrap();
        assert!(cq.is_awaited());
        push(&cq, completion(2, 1, false), Duration::ZERO);
        assert_eq!(channel.take(), None, "not solicited");
        push(&cq, completion(3, 1, true), Duration::ZERO);
        push(&cq, completion(4, 1, true), Duration::ZERO);
        assert_eq!(channel.take(), Some(77));
        assert_eq!(channel.take(), None, "armed once");
        assert!(!cq.is_awaited());
        cq.arm(false).unwrap();
        cq.arm(true).unwrap();
        push(&cq, completion(5, 1, false), Duration::ZERO);
        assert_eq!(channel.take(), Some(77), "the wider arming stays (man 3 ibv_req_notify_cq)");
    }

    #[test]
    fn an_error_raises_the_event_of_an_arming_for_solicited_completions() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = cq(8, Some(&channel), &Arc::default());
        cq.arm(true).unwrap();
        push(&cq, completion(1, 1, false), Duration::ZERO);
        assert_eq!(channel.take(), None, "neither solicited nor an error");
        let failed = Completion { status: WcStatus::WrFlushErr, ..completion(2, 1, false) };
        push(&cq, failed, Duration::ZERO);
        assert_eq!(channel.take(), Some(77), "an error (man 3 ibv_req_notify_cq)");
    }

    /// A queue of 16 with events of 3 completions or 100 µs, armed.
    fn moderated(channel: &Arc<Channel>) -> Arc<Cq> {
        let cq = cq(16, Some(channel), &Arc::default());
        cq.moderate(3, 100).unwrap();
        cq.arm(false).unwrap();
        cq
    }

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn a_moderated_queue_raises_one_event_for_the_count() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = moderated(&channel);
        assert_eq!(push(&cq, completion(1, 1, false), us(0)), Some(us(100)));
        // Arming again keeps what is deferred, and does not restart the count.
        cq.arm(false).unwrap();
        assert_eq!(push(&cq, completion(2, 1, false), us(1)), None);
        assert_eq!(channel.take(), None, "deferred");
        push(&cq, completion(3, 1, false), us(2));
        assert_eq!(channel.take(), Some(77));
        push(&cq, completion(4, 1, false), us(3));
        assert_eq!(channel.take(), None, "not armed");
    }

    #[test]
    fn a_lane_raises_what_is_deferred_when_the_period_is_over() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = moderated(&channel);
        let mut deferrals = Deferrals::default();
        deferrals.add(push(&cq, completion(1, 1, false), us(5)).unwrap(), &cq);
        assert!(deferrals.take_news() && !deferrals.take_news());
        assert_eq!(deferrals.next_deadline(), Some(us(105)));
        deferrals.run(us(104));
        assert_eq!(channel.take(), None);
        deferrals.run(us(105));
        assert_eq!(channel.take(), Some(77));
        assert_eq!((channel.take(), deferrals.next_deadline()), (None, None));
    }

    #[test]
    fn a_lane_comes_back_again_for_completions_of_the_next_arming() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = moderated(&channel);
        let mut deferrals = Deferrals::default();
        deferrals.add(push(&cq, completion(1, 1, false), us(0)).unwrap(), &cq);
        (2..4).for_each(|wr_id| assert_eq!(push(&cq, completion(wr_id, 1, false), us(1)), None));
        assert_eq!(channel.take(), Some(77));
        assert_eq!(ids(&cq), [1, 2, 3]);
        cq.arm(false).unwrap();
        assert_eq!(push(&cq, completion(4, 1, false), us(50)), None, "one timer at a time");
        deferrals.run(us(100));
        assert_eq!((channel.take(), deferrals.next_deadline()), (None, Some(us(150))));
        deferrals.run(us(150));
        assert_eq!(channel.take(), Some(77));
    }

    #[test]
    fn failures_a_queue_half_full_and_new_settings_defer_nothing() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = moderated(&channel);
        push(&cq, completion(1, 1, false), us(0));
        let failed = Completion { status: WcStatus::WrFlushErr, ..completion(2, 1, false) };
        assert_eq!(push(&cq, failed, us(1)), None);
        assert_eq!(channel.take(), Some(77), "a failure");

        cq.arm(false).unwrap();
        push(&cq, completion(3, 1, false), us(2));
        cq.moderate(0, 0).unwrap();
        assert_eq!(channel.take(), Some(77), "moderation ends");
        cq.arm(false).unwrap();
        push(&cq, completion(4, 1, false), us(3));
        assert_eq!(channel.take(), Some(77), "off");

        cq.moderate(u16::MAX, u16::MAX).unwrap();
        cq.arm(false).unwrap();
        for wr_id in 5..8 {
            push(&cq, completion(wr_id, 1, false), us(4));
        }
        assert_eq!(channel.take(), None);
        push(&cq, completion(8, 1, false), us(4));
        assert_eq!(channel.take(), Some(77), "8 of 16 entries are taken");
    }

    #[test]
    fn an_arming_for_solicited_completions_counts_these_alone() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = cq(16, Some(&channel), &Arc::default());
        cq.moderate(2, 100).unwrap();
        cq.arm(true).unwrap();
        assert_eq!(push(&cq, completion(1, 1, false), us(0)), None);
        assert_eq!(push(&cq, completion(2, 1, true), us(10)), Some(us(110)));
        assert_eq!(push(&cq, completion(3, 1, false), us(11)), None);
        assert_eq!(channel.take(), None);
        push(&cq, completion(4, 1, true), us(12));
        assert_eq!(channel.take(), Some(77));
    }

    #[test]
    fn a_destroyed_queue_raises_nothing_more() {
        let channel = Arc::new(Channel::new().unwrap());
        let cq = moderated(&channel);
        let mut deferrals = Deferrals::default();
        deferrals.add(push(&cq, completion(1, 1, false), us(0)).unwrap(), &cq);
        cq.destroy().unwrap();
        deferrals.run(us(100));
        assert_eq!(channel.take(), None);
        deferrals.add(us(200), &cq);
        drop(cq);
        deferrals.run(us(200));
        assert_eq!(deferrals.next_deadline(), None);
    }

    #[test]
    fn a_queue_does_not_shrink_below_what_it_holds() {
        let cq = cq(8, None, &Arc::default());
        for wr_id in 0..4 {
            push(&cq, completion(wr_id, 1, false), Duration::ZERO);
        }
        assert_eq!(cq.resize(3).unwrap_err().errno, libc::EINVAL);
        assert_eq!(cq.resize(4), Ok(4));
        assert_eq!(cq.capacity(), 4);
    }
}
