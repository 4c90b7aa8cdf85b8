//! Lanes: an engine is sharded; a queue pair lives on one lane.
//!
//! A lane is a slot of the broker (a range of QPNs with a receive socket), a set of paths, and the
//! queue pairs, all under one lock. Whoever has something to do enters it: a thread that posts sends
//! at once; a thread that polls a completion queue receives, answers and sends; the lane's own
//! thread does so when nobody else does ([`sleeper`], [`busy_poll`]). Different lanes share nothing on the data path.

mod bell;
mod busy_poll;
pub(crate) mod counters;
mod datagrams;
mod failover;
mod failure;
mod host;
mod io;
mod prompt;
mod receive;
mod send_errors;
mod sleeper;
mod table;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError};
use std::time::Duration;

use polypath_ipc::{Selection, Table};
use polypath_paths::{LaneIdentity, PathManager, PeerId};
use polypath_transport::{QueuePair, TransmitState};
use polypath_verbs::{Error, QpState, Result};

use crate::clock;
use crate::context::os_error;
use crate::multicast::Groups;
use crate::notify::lock;
use crate::process::Process;
use crate::udp::{Receiver, Sender};

use failure::Alarm;
pub(crate) use host::{Attached, LaneHost};
pub(crate) use io::{LaneIo, way_of};
use prompt::Promptness;
use sleeper::{Sleeper, Watch, Woken};
use table::QpTable;

/// Batches of packets taken from the socket before queue pairs get their turn to send.
const MAX_BATCHES: usize = 4;
/// Turns of sending per entry: after that, look at the socket again.
const MAX_TURNS: usize = 64;

/// A queue pair and what the lane knows of it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) core: QueuePair,
    pub(crate) attached: Attached,
    pub(crate) peer: Option<PeerId>,
    /// The earliest deadline in the lane's heap.
    timer: Option<Duration>,
    /// In the list of those whose deadline is to be looked at.
    stale: bool,
    /// In the queue of those that have something to send.
    queued: bool,
    /// In the list of those that owe an acknowledgement.
    owes_ack: bool,
    /// Waits for a window.
    blocked: bool,
}

/// All that a lane's lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) qps: QpTable,
    pub(crate) io: LaneIo,
    /// In a box, since every round takes it out and puts it back.
    receiver: Option<Box<Receiver>>,
    ready: VecDeque<u16>,
    blocked: Vec<u16>,
    acks: Vec<u16>,
    prompt: Promptness,
    timers: BinaryHeap<Reverse<(Duration, u16)>>,
    /// Queue pairs whose deadlines may have become earlier.
    stale: Vec<u16>,
    /// Multicast groups, and the queue pairs attached to each.
    pub(crate) groups: Groups,
}

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) index: usize,
    pub(crate) slot: u8,
    socket: RawFd,
    state: Mutex<State>,
    /// Threads that wait for the lock. Who polls lets them go first: it would take the lock again
    /// and again before one that was asleep is awake.
    waiting: AtomicU32,
    sleeper: Sleeper,
    /// The end of a lane whose state a panic left half changed has been carried out.
    ended: Once,
}

impl Lane {
    /// Starts a lane on a slot that the broker gave.
    pub(crate) fn start(
        index: usize,
        opened: polypath_ipc::Lane,
        process: &Process,
    ) -> Result<Arc<Self>> {
        let receiver = Receiver::new(opened.socket).map_err(|e| os_error(&e))?;
        let sender = Sender::new();
        let mut seed = [0; 16];
        let mut instance = [0; 8];
        getrandom::fill(&mut seed).and_then(|()| getrandom::fill(&mut instance)).map_err(|e| {
            Error::new(libc::EIO, format!("the system gives no random numbers: {e}"))
        })?;
        let identity = LaneIdentity { instance: u64::from_ne_bytes(instance), slot: opened.slot };
        let table = process.table();
        let settings = crate::mp::settings(&process.config, &table, opened.receive_buffer);
        let mut paths = PathManager::new(settings, identity, seed);
        paths.set_local(clock::now(), &crate::mp::local_addresses(&table, &process.selection));
        paths.set_down(clock::now(), &crate::mp::down_rules(&table));
        let mut io = LaneIo::new(paths, sender);
        io.learn_interfaces(&table);
        let socket = receiver.fd();
        let mut state = State::new(opened.slot, io, Some(Box::new(receiver)));
        state.learn_sole_ipv4(&table, &process.selection);
        let lane = Arc::new(Self {
            index,
            slot: opened.slot,
            socket,
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            sleeper: Sleeper::new().map_err(|e| os_error(&e))?,
            ended: Once::new(),
        });
        let own = lane.clone();
        let busy_poll = process.config.busy_poll;
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| own.run(busy_poll))).is_err() {
                drop(own.wait());
            }
        };
        crate::thread::spawn("polypath-lane", body).map_err(|e| os_error(&e))?;
        Ok(lane)
    }

    /// The lane's own thread, which polls for up to `busy_poll` before it sleeps.
    fn run(&self, busy_poll: Duration) {
        crate::thread::be_prompt();
        let mut watch = Watch::new(busy_poll);
        let mut contended = false;
        let mut deadline = None;
        loop {
            let woken =
                self.sleeper.sleep(self.socket, clock::now(), deadline, &mut watch, contended);
            contended = false;
            if woken == Woken::Nothing {
                continue;
            }
            match self.state.try_lock() {
                Ok(mut state) => {
                    if woken == Woken::Neglected {
                        watch.be_vigilant(clock::now());
                    }
                    // Nobody polls for what was received: acknowledge at once.
                    state.progress(true);
                    deadline = state.next_deadline();
                }
                Err(TryLockError::WouldBlock) => contended = true,
                Err(TryLockError::Poisoned(poisoned)) => {
                    self.end(&mut poisoned.into_inner());
                    return;
                }
            }
        }
    }

    /// Drives the lane for a thread that polls. If another thread is at it already, that will do.
    #[inline]
    pub(crate) fn drive(&self) {
        self.sleeper.polled();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
            return;
        }
        match self.state.try_lock() {
            Ok(mut state) => {
                let _alarm = Alarm(&self.sleeper);
                state.progress(false);
                if state.io.holds.take_news()
                    && let Some(deadline) = state.next_deadline()
                {
                    self.sleeper.deadline(deadline);
                }
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(poisoned)) => self.end(&mut poisoned.into_inner()),
        }
    }

    /// Waits for the lock.
    fn wait(&self) -> MutexGuard<'_, State> {
        match self.state.try_lock() {
            Ok(state) => return state,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut state = poisoned.into_inner();
                self.end(&mut state);
                return state;
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.has_failed() {
            self.end(&mut state);
        }
        state
    }

    /// A thread is about to sleep until a completion: from now on it is for the lane's thread.
    pub(crate) fn expect_sleep(&self) {
        self.sleeper.needed();
    }

    /// Enters the lane. What is queued for sending leaves before the lock is given back.
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.wait();
        if self.has_failed() {
            return work(&mut state);
        }
        let _alarm = Alarm(&self.sleeper);
        self.sleeper.entered();
        let now = clock::now();
        state.io.now = now;
        state.prompt.back(now);
        let result = work(&mut state);
        state.turns();
        // Behind what was posted, in the same send if it goes the same way. Posting a receive sends
        // nothing, and the answer may be posted next.
        if state.io.sender.has_queued() || !state.prompt.trusted() {
            state.send_acks();
        }
        state.io.flush();
        state.set_timers();
        if let Some(deadline) = state.next_deadline() {
            self.sleeper.deadline(deadline);
        }
        result
    }

    /// Visits a queue pair for something that makes it send only in rare states; `None`: it is gone.
    /// Unlike [`Lane::enter`], does no more than that.
    pub(crate) fn visit<R>(&self, index: u16, work: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let mut state = self.wait();
        let entry = state.qps.get_mut(index)?;
        let result = work(entry);
        if entry.core.wants_transmit() {
            drop(state);
            self.enter(|state| state.note(index, false));
        }
        Some(result)
    }

    /// Takes in what has arrived and sends what is owed: to be called before a queue pair stops working.
    /// Hardware acknowledges a message before it hands out the completion upon which the program may
    /// disconnect, and takes an acknowledgement in although the program has its mind elsewhere.
    pub(crate) fn settle(&self) {
        let mut state = self.wait();
        if !self.has_failed() {
            state.progress(true);
        }
    }

    /// The process ends: sends what is owed, unless another thread is in the lane and will.
    pub(crate) fn leave(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.io.now = clock::now();
            state.send_acks();
            state.io.flush();
        }
    }

    /// Returns when nobody is in the lane who was in it at the call.
    pub(crate) fn barrier(&self) {
        drop(self.wait());
    }

    /// Links or addresses changed.
    pub(crate) fn set_table(&self, table: &Table, selection: &Selection) {
        let addresses = crate::mp::local_addresses(table, selection);
        let down = crate::mp::down_rules(table);
        if self.has_failed() {
            return;
        }
        self.enter(|state| {
            let now = state.io.now;
            state.io.interfaces_changed();
            state.io.learn_interfaces(table);
            state.learn_sole_ipv4(table, selection);
            state.io.paths.set_local(now, &addresses);
            state.io.paths.set_down(now, &down);
        });
        self.sleeper.wake();
    }
}

/// The index of a queue pair within its lane.
#[cfg(any(test, fuzzing))]
pub(crate) const fn index_of(qpn: u32) -> u16 {
    QpTable::index_of(qpn)
}

/// A lane in the hands of a test or the fuzzer: without a socket, a thread, and a broker.
#[cfg(any(test, fuzzing))]
impl Lane {
    /// A lane that nobody drives.
    pub(crate) fn still(slot: u8) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            index: 0,
            slot,
            socket: -1,
            state: Mutex::new(State::new(slot, LaneIo::still(slot), None)),
            waiting: AtomicU32::new(0),
            sleeper: Sleeper::new().map_err(|e| os_error(&e))?,
            ended: Once::new(),
        }))
    }

    /// Forgets all that it knows, and takes its addresses.
    ///
    /// # Panics
    /// If queue pairs are left.
    pub(crate) fn begin_anew(&self, addresses: &[polypath_paths::LocalAddress]) {
        let mut state = self.wait();
        assert!(state.qps.is_empty(), "all queue pairs were destroyed");
        // The table of queue pairs is large, and stays.
        let State { qps: _, io, receiver: _, ready, blocked, acks, prompt, timers, stale, groups } =
            &mut *state;
        *io = LaneIo::still(self.slot);
        io.paths.set_local(clock::now(), addresses);
        ready.clear();
        blocked.clear();
        acks.clear();
        timers.clear();
        stale.clear();
        groups.clear();
        *prompt = Promptness::default();
    }

    /// One round, with these datagrams coming in first.
    pub(crate) fn round(&self, datagrams: &[crate::udp::Received<'_>]) {
        let mut state = self.wait();
        state.io.now = clock::now();
        for datagram in datagrams {
            receive::datagram(&mut state, datagram);
        }
        state.run_timers();
        state.turns();
        state.send_acks();
        state.io.flush();
        state.set_timers();
    }

    /// What the path manager has sent since the last call.
    pub(crate) fn take_control(&self) -> Vec<polypath_paths::ControlOut> {
        core::mem::take(&mut self.wait().io.tapped)
    }
}

impl State {
    fn new(slot: u8, io: LaneIo, receiver: Option<Box<Receiver>>) -> Self {
        Self {
            qps: QpTable::new(slot),
            io,
            receiver,
            ready: VecDeque::new(),
            blocked: Vec::new(),
            acks: Vec::new(),
            prompt: Promptness::default(),
            timers: BinaryHeap::new(),
            stale: Vec::new(),
            groups: Groups::default(),
        }
    }

    /// One round: receive, time out, send, acknowledge.
    fn progress(&mut self, eager_acks: bool) {
        self.io.now = clock::now();
        self.prompt.back(self.io.now);
        self.io.completions = 0;
        let received = self.receive(eager_acks);
        let due = self.run_timers();
        if received == 0 && !due && self.is_idle() {
            return; // Polled in vain, as most often.
        }
        self.turns();
        if !eager_acks && self.io.completions > 0 && received > 0 {
            self.prompt.given(self.io.now);
            // The acknowledgements leave with the next round, which will not be long. Until then the
            // timers will do that are set.
            if self.prompt.trusted() && !due {
                self.io.flush();
                return;
            }
        }
        self.send_acks();
        self.io.flush();
        self.set_timers();
    }

    /// Takes in packets; to a thread that polls, `all` false, completions are handed out before more.
    fn receive(&mut self, all: bool) -> usize {
        let Some(mut receiver) = self.receiver.take() else { return 0 };
        let mut total = 0;
        for _ in 0..MAX_BATCHES {
            match receiver.receive(&mut |datagram| receive::datagram(self, datagram)) {
                Ok(0) => break,
                Ok(n) => total += n,
                Err(error) => {
                    self.io.counters.receive_failed += 1;
                    self.io.receive_failed(&error);
                    break;
                }
            }
            if !receiver.more() || (!all && self.io.completions > 0) {
                break;
            }
        }
        self.receiver = Some(receiver);
        total
    }

    /// Lets queue pairs send, carries out what the path manager decided.
    fn turns(&mut self) {
        self.path_events();
        self.fail_bereft();
        if core::mem::take(&mut self.io.window_opened) {
            self.unblock();
        }
        // Before the data: what it tells (a fence, a path's number) the peer must know when that comes.
        self.io.transmit_control();
        for _ in 0..MAX_TURNS {
            let Some(index) = self.ready.pop_front() else { break };
            self.turn(index);
        }
        self.fail_bereft();
    }

    /// A queue pair whose completion found its queue full can't go on as if nothing was lost: it goes
    /// to the error state (IBTA 11.6.3.2, `man 3 ibv_poll_cq`).
    fn fail_bereft(&mut self) {
        while let Some(qpn) = self.io.bereft.pop() {
            let Some(entry) = self.qps.by_qpn(qpn) else { continue };
            if !matches!(entry.core.state(), QpState::Reset | QpState::Err) {
                self.io.explain(format!(
                    "queue pair {qpn:#x} ends: its completion queue overran; make it larger or poll more often"
                ));
            }
            let mut host = LaneHost { attached: &entry.attached, io: &mut self.io };
            entry.core.fail(&mut host);
            self.note(QpTable::index_of(qpn), false);
        }
    }

    /// One queue pair's turn to send.
    fn turn(&mut self, index: u16) {
        let Some(entry) = self.qps.get_mut(index) else { return };
        entry.queued = false;
        let now = self.io.now;
        let mut host = LaneHost { attached: &entry.attached, io: &mut self.io };
        let state = entry.core.poll_transmit(now, &mut host);
        if state == TransmitState::Blocked && !entry.blocked {
            entry.blocked = true;
            self.blocked.push(index);
        }
        self.note(index, state == TransmitState::More);
    }

    /// After any call into a queue pair: what does it want next?
    pub(crate) fn note(&mut self, index: u16, more: bool) {
        let Some(entry) = self.qps.get_mut(index) else { return };
        if (more || (entry.core.wants_transmit() && !entry.blocked)) && !entry.queued {
            entry.queued = true;
            self.ready.push_back(index);
        }
        if entry.core.acks_due() && !entry.owes_ack {
            entry.owes_ack = true;
            self.acks.push(index);
        }
        if !entry.stale {
            entry.stale = true;
            self.stale.push(index);
        }
    }

    /// Sets the timers of queue pairs that something was done with. This is left until what there was to
    /// send has been sent: a peer waits for that.
    fn set_timers(&mut self) {
        while let Some(index) = self.stale.pop() {
            let Some(entry) = self.qps.get_mut(index) else { continue };
            entry.stale = false;
            if let Some(deadline) = entry.core.next_deadline()
                && entry.timer.is_none_or(|t| deadline < t)
            {
                entry.timer = Some(deadline);
                self.timers.push(Reverse((deadline, index)));
            }
        }
    }

    fn unblock(&mut self) {
        for index in core::mem::take(&mut self.blocked) {
            if let Some(entry) = self.qps.get_mut(index) {
                entry.blocked = false;
                if !entry.queued {
                    entry.queued = true;
                    self.ready.push_back(index);
                }
            }
        }
    }

    fn send_acks(&mut self) {
        while let Some(index) = self.acks.pop() {
            let Some(entry) = self.qps.get_mut(index) else { continue };
            entry.owes_ack = false;
            let mut host = LaneHost { attached: &entry.attached, io: &mut self.io };
            entry.core.flush_acks(&mut host);
        }
    }

    /// Whether nothing waits for being sent.
    #[inline]
    fn is_idle(&self) -> bool {
        self.ready.is_empty()
            && self.acks.is_empty()
            && !self.io.window_opened
            && !self.io.sender.has_queued()
    }

    /// Does what is due; false: nothing was.
    fn run_timers(&mut self) -> bool {
        self.set_timers();
        let now = self.io.now;
        let mut due = false;
        while let Some(Reverse((at, index))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            due = true;
            let Some(entry) = self.qps.get_mut(index) else { continue };
            if entry.timer != Some(at) {
                // An earlier deadline was set since; its own entry is in the heap.
                continue;
            }
            entry.timer = None;
            if entry.core.next_deadline().is_some_and(|d| d <= now) {
                let mut host = LaneHost { attached: &entry.attached, io: &mut self.io };
                entry.core.handle_timeout(now, &mut host);
                // What it sends now, a probe, does not wait for the window.
                entry.blocked = false;
            }
            self.note(index, false);
        }
        self.io.holds.run(now);
        if self.io.paths.next_deadline().is_some_and(|d| d <= now) {
            self.io.paths.handle_timeout(now);
            due = true;
        }
        due
    }

    /// When the lane wants to be entered again.
    fn next_deadline(&self) -> Option<Duration> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let paths = self.io.paths.next_deadline();
        let soon = (!self.ready.is_empty() || !self.acks.is_empty()).then_some(self.io.now);
        let held = self.io.holds.next_deadline();
        [timer, paths, soon, held].into_iter().flatten().min()
    }

    /// Datagrams to so many addresses are about to be posted, which may all be new.
    pub(crate) fn make_room_for_datagrams(&mut self, addresses: usize) {
        if self.io.datagrams.room() < addresses {
            let posted = self.qps.entries().flat_map(|entry| entry.core.datagrams());
            let keep = posted.map(|to| to.path).collect();
            self.io.forget_datagrams(&keep);
        }
    }

    /// A datagram queue pair comes: its GRHs have a traffic class and a hop limit.
    pub(crate) fn tell_header_fields(&mut self) -> Result<()> {
        self.receiver
            .as_mut()
            .map_or(Ok(()), |receiver| receiver.tell_header_fields(true))
            .map_err(|e| os_error(&e))
    }

    /// Tells the receiver if there is only one address that IPv4 packets can be for.
    fn learn_sole_ipv4(&mut self, table: &Table, selection: &Selection) {
        let Some(receiver) = &mut self.receiver else { return };
        // Without the option packets say what they were sent to, which is as good.
        let _ = receiver.set_sole_ipv4(crate::mp::sole_ipv4(table, selection));
    }

    pub(crate) fn receiver(&self) -> Option<RawFd> {
        self.receiver.as_ref().map(|receiver| receiver.fd())
    }
}
