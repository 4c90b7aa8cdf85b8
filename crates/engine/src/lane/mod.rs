//! Lanes. An engine is divided into lanes, and a queue pair lives on one of them.
//!
//! A lane is a slot of the broker (a range of QPNs with a receive socket) and its queue pairs with
//! the paths that they share ([`polypath_lane`]), all under one lock. Threads enter a lane to work
//! in it: a thread that posts also sends; a thread that polls a completion queue receives, answers
//! and sends; the lane's own thread does this when no other thread does ([`sleeper`],
//! [`busy_poll`]). Different lanes share nothing on the data path.

mod attend;
mod busy_poll;
mod close;
mod collect;
mod datagrams;
mod deeds;
mod departure;
mod failure;
mod group_copies;
mod held;
mod host;
mod io;
pub(crate) mod journal;
mod learn;
mod look;
mod memberships;
mod multicast;
pub(crate) mod noted;
pub(crate) mod numbers;
pub(crate) mod path_book;
mod path_news;
mod prompt;
mod receive;
mod round;
pub(crate) mod send_errors;
mod sleeper;
mod socket_turns;
mod stand_in;
pub(crate) mod streams;
mod trust;
mod vain;
mod waker;
mod watch;

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use polypath_lane::{LaneConfig, Visit};
use polypath_paths::{LaneIdentity, PathManager};
use polypath_verbs::{Error, Result};

use crate::clock;
use crate::config::Config;
use crate::error::os_error;
use crate::homes::{Home, Nodes};
use crate::media::local::{Channel, Exchange};
use crate::media::tcp::Streams;
use crate::media::{Receivers, Senders, Wrappers};
use crate::notify::lock;

use busy_poll::BusyPoll;
use collect::Collector;
use failure::Alarm;
use held::Held;
pub(crate) use host::QpResources;
pub(crate) use io::{LaneIo, way_of};
pub(crate) use learn::News;
use multicast::Groups;
use prompt::{Answering, Promptness};
use round::Driver;
use sleeper::{Sleeper, Woken};
use socket_turns::SocketTurns;
use vain::Vain;
#[cfg(test)]
pub(crate) use waker::Waker;
use watch::Watch;

/// The lane's queue pairs with their scheduling.
pub(crate) type Core = polypath_lane::Lane<QpResources>;
/// A queue pair and what the lane knows of it.
pub(crate) type Entry = polypath_lane::Entry<QpResources>;
/// A queue pair and its surroundings.
pub(crate) type QpVisit<'a> = Visit<'a, QpResources, LaneIo>;

/// The state that the lane's lock protects.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) io: LaneIo,
    /// It is in a box, because every round takes it out and puts it back.
    receivers: Option<Box<Receivers>>,
    prompt: Promptness,
    answering: Answering,
    collector: Collector,
    vain: Vain,
    socket_turns: SocketTurns,
    /// When a thread last looked for packets.
    received_at: Duration,
    /// The number of packets handled since queue pairs last had their turn to send.
    handled: u32,
    /// The index of the interface where its queue pairs are at home, while it exists.
    pub(crate) home: Option<u32>,
    /// Multicast groups, and the queue pairs attached to each.
    pub(crate) groups: Groups,
}

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) index: usize,
    pub(crate) slot: u8,
    /// The interface where its queue pairs are at home, if they have a home.
    home: Option<Home>,
    /// What becomes readable when packets arrive: the slot's socket, or a set with it.
    socket: AtomicI32,
    state: Mutex<State>,
    /// The number of threads that wait for the lock. A thread that polls lets them go first,
    /// because otherwise it could take the lock again and again before a sleeping thread is awake.
    waiting: AtomicU32,
    sleeper: Sleeper,
    /// How long a thread that stands in for the lane's thread polls before it sleeps.
    busy_poll: Mutex<BusyPoll>,
    /// Shared memory with other lanes, if it is used.
    exchange: Option<Arc<Exchange>>,
    /// TCP streams to other lanes, and the port for them, if they are used.
    streams: Option<Arc<Streams>>,
    tcp_port: Option<u16>,
    /// Ends the lane once, after a panic left its state inconsistent.
    ended: Once,
    /// Whether the engine has closed the lane.
    closed: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Lane {
    /// Starts a lane on a slot from the broker. Its `place` is its index, and the home of its queue pairs.
    pub(crate) fn start(
        (index, home): (usize, Option<Home>),
        opened: polypath_ipc::Lane,
        config: &Config,
        wrappers: &Wrappers,
        news: &News<'_>,
    ) -> Result<Arc<Self>> {
        let News { table, selection, in_force } = news;
        // Only an mp device has several paths.
        let devices = polypath_topology::devices(table, selection);
        let multipath = devices.iter().any(|device| device.kind.multipath);
        let local = crate::path_settings::is_local_wanted(in_force) && multipath;
        let (local, exchange) = local.then(crate::media::local::halves).unzip();
        let tcp_port = crate::path_settings::tcp_port(in_force).filter(|_| multipath);
        let (tcp, streams) = tcp_port.map(|_| crate::media::tcp::halves()).unzip();
        let more = local.into_iter().chain(tcp);
        let media = crate::media::start(opened.socket, wrappers, index, clock::now(), table, more);
        let (senders, receivers) = media.map_err(|e| os_error(&e))?;
        let mut seed = [0; 16];
        let mut instance = [0; 8];
        getrandom::fill(&mut seed).and_then(|()| getrandom::fill(&mut instance)).map_err(|e| {
            Error::new(libc::EIO, format!("the system gives no random numbers: {e}"))
        })?;
        let identity = LaneIdentity { instance: u64::from_ne_bytes(instance), slot: opened.slot };
        let kinds = (exchange.is_some(), streams.is_some());
        let settings = crate::path_settings::settings(opened.receive_buffer, kinds);
        let mut paths = PathManager::new(settings, identity, seed);
        let lags = crate::path_settings::lags(table, selection);
        paths.set_lags(clock::now(), &lags);
        paths.set_local(clock::now(), &crate::path_settings::local_addresses(table, selection));
        paths.set_down(clock::now(), &crate::path_settings::down_rules(table));
        let at_home = news.home_of(home.as_ref());
        paths.set_usage(clock::now(), &news.usage(at_home));
        let mut io = LaneIo::new(senders);
        io.exchange.clone_from(&exchange);
        io.streams.clone_from(&streams);
        io.learn_interfaces(table, lags);
        let socket = AtomicI32::new(receivers.wait_on());
        let mut state = State::new(paths, io, Some(Box::new(receivers)));
        state.learn_sole_ipv4(table, selection);
        state.home = at_home;
        let lane = Arc::new(Self {
            index,
            slot: opened.slot,
            home,
            socket,
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            sleeper: Sleeper::new(exchange.clone()).map_err(|e| os_error(&e))?,
            busy_poll: Mutex::new(BusyPoll::new(config.busy_poll)),
            ended: Once::new(),
            closed: AtomicBool::new(false),
            exchange,
            streams,
            tcp_port,
            thread: Mutex::default(),
        });
        let own = lane.clone();
        let busy_poll = config.busy_poll;
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| own.run(busy_poll))).is_err() {
                drop(own.wait());
            }
        };
        let thread = crate::thread::start("polypath-lane", body).map_err(|e| os_error(&e))?;
        *lock(&lane.thread) = Some(thread);
        Ok(lane)
    }

    /// The body of the lane's own thread, which polls for up to `busy_poll` before it sleeps.
    fn run(&self, busy_poll: Duration) {
        crate::thread::request_prompt_wakeups();
        if let Some(home) = &self.home {
            home.keep_near(Nodes::of_this_machine());
        }
        let mut watch = Watch::new(busy_poll);
        let mut contended = false;
        let mut deadline = None;
        loop {
            let socket = self.socket();
            let woken = self.sleeper.sleep(socket, clock::now(), deadline, &mut watch, contended);
            if self.is_closed() {
                return;
            }
            contended = false;
            if woken == Woken::Nothing {
                continue;
            }
            match Held::try_take(&self.state) {
                Ok(mut state) => {
                    self.sleeper.is_awake(&mut watch);
                    if woken == Woken::Unpolled {
                        watch.watch_socket(clock::now());
                    }
                    state.collector.left(clock::now());
                    watch.received = self.progress(&mut state, Driver::Lane);
                    deadline = state.next_deadline();
                    watch.owes = state.answering.ack_by().is_some();
                }
                Err(TryLockError::WouldBlock) => contended = true,
                Err(TryLockError::Poisoned(mut poisoned)) => {
                    self.end(poisoned.get_mut());
                    return;
                }
            }
        }
    }

    /// The interface where its queue pairs are at home, if they have a home.
    pub(crate) fn home(&self) -> Option<&Home> {
        self.home.as_ref()
    }

    /// The descriptor that becomes readable when packets arrive.
    fn socket(&self) -> RawFd {
        self.socket.load(Ordering::Relaxed)
    }

    /// Waits from now on for what media have got that had nothing to wait for, too.
    fn renew_wait(&self, state: &mut State) -> std::io::Result<()> {
        let Some(receivers) = &mut state.receivers else { return Ok(()) };
        receivers.renew()?;
        self.socket.store(receivers.wait_on(), Ordering::Relaxed);
        self.sleeper.more_to_wait_for();
        Ok(())
    }

    /// Drives the lane for a thread that polls. If another thread already drives it, nothing is
    /// left to do.
    #[inline]
    pub(crate) fn drive(&self) {
        self.sleeper.polled();
        if self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
            return;
        }
        match Held::try_take(&self.state) {
            Ok(mut state) => {
                let _alarm = Alarm(&self.sleeper);
                let got = self.progress(&mut state, Driver::Program) > 0;
                if got {
                    self.sleeper.got();
                }
                let now = state.io.now;
                let found = got || state.io.completions > 0;
                let yields = state.vain.polled(now, found);
                state.collector.polled(now, self.sleeper.taken());
                // Other media may hold packets back, so their deadline counts every time.
                if (state.io.deferrals.take_news() || state.io.sender.may_hold_back())
                    && let Some(deadline) = state.next_deadline()
                {
                    self.sleeper.deadline(deadline);
                }
                drop(state);
                if yields {
                    crate::thread::let_others_run();
                }
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(mut poisoned)) => self.end(poisoned.get_mut()),
        }
    }

    /// Notes that a thread polled and found completions, so the lane need not be driven for it.
    #[inline]
    pub(crate) fn took(&self) {
        self.sleeper.took();
    }

    /// Waits for the lock.
    fn wait(&self) -> Held<'_> {
        match Held::try_take(&self.state) {
            Ok(state) => return state,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut state = poisoned.into_inner();
                self.end(&mut state);
                return state;
            }
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut state = Held::take(&self.state);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.has_failed() {
            self.end(&mut state);
        }
        state
    }

    /// Notes that a thread is about to sleep until a completion. From now on the lane's thread has
    /// to work.
    pub(crate) fn expect_sleep(&self) {
        self.expect_wait();
        self.sleeper.needed();
    }

    /// Enters the lane. Queued packets are sent before the lock is released.
    pub(crate) fn enter<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.wait();
        if self.has_failed() {
            return work(&mut state);
        }
        let _alarm = Alarm(&self.sleeper);
        self.sleeper.entered();
        let now = state.begin();
        state.prompt.back(now);
        let result = work(&mut state);
        self.send_out(&mut state);
        result
    }

    /// Enters the lane to post requests with this many `bytes` of payload. They may wait for the
    /// next post, unless `bytes` is `None`.
    pub(crate) fn post<R>(&self, bytes: Option<usize>, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.wait();
        if self.has_failed() {
            return work(&mut state);
        }
        let _alarm = Alarm(&self.sleeper);
        self.sleeper.entered();
        let now = state.begin();
        state.prompt.back(now);
        state.answering.posted(now);
        let result = work(&mut state);
        if let Some(bytes) = bytes
            && state.collector.keeps(now, bytes, self.sleeper.taken())
        {
            if state.collector.begins() {
                self.sleeper.collected(now);
            }
            return result;
        }
        if state.posts_without_polls(now) {
            self.progress(&mut state, Driver::Post);
        }
        self.send_out(&mut state);
        result
    }

    /// Sends everything that is ready, before the lock is released.
    #[inline]
    fn send_out(&self, state: &mut State) {
        self.take_collected(state);
        state.transmit();
        // Acknowledgements follow the posted requests, in the same send if they take the same way.
        // Posting a receive sends nothing, and the program may post the answer next.
        if state.io.sender.has_queued() || !state.prompt.trusted() {
            state.acknowledge();
        }
        state.flush();
        state.core.set_timers();
        if let Some(deadline) = state.next_deadline() {
            self.sleeper.deadline(deadline);
        }
    }

    /// Runs one round. Returns the number of packets received.
    #[inline]
    fn progress(&self, state: &mut State, driver: Driver) -> usize {
        self.take_collected(state);
        state.progress(driver)
    }

    /// Sends the posts that waited.
    #[inline]
    fn take_collected(&self, state: &mut State) {
        if state.collector.waits() {
            state.collector.leaves();
            self.sleeper.sent();
        }
    }

    /// Does something with a queue pair that rarely makes it send. Returns `None` if the queue pair
    /// is gone. It does no more than that, unlike [`Lane::enter`].
    pub(crate) fn visit<R>(&self, index: u16, work: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let mut state = self.wait();
        let entry = state.core.entry_mut(index)?;
        // Requests that are posted and not yet sent may keep waiting.
        let wanted = entry.qp.wants_transmit();
        let result = work(entry);
        if !wanted && entry.qp.wants_transmit() {
            drop(state);
            self.enter(|state| state.core.with(index, &mut state.io, |_| ()));
        }
        Some(result)
    }

    /// Receives what has arrived and sends what is owed. Call this before a queue pair stops
    /// working. Hardware acknowledges a message before it delivers the completion that may make the
    /// program disconnect, and it processes acknowledgements even if the program is busy.
    pub(crate) fn drain(&self) {
        let mut state = self.wait();
        if !self.has_failed() {
            self.progress(&mut state, Driver::Drain);
        }
    }

    /// Sends what is owed when the process ends, unless another thread is in the lane, which will
    /// then do it. Only what is delayed on purpose is lost in this case.
    pub(crate) fn leave(&self) {
        if let Ok(mut state) = Held::try_take(&self.state) {
            state.begin();
            state.transmit();
            state.acknowledge();
            state.flush();
            let now = state.io.now;
            state.io.sender.finish(now);
        }
    }

    /// Returns when every thread that was in the lane at the call has left it.
    pub(crate) fn barrier(&self) {
        drop(self.wait());
    }

    /// The slots of lanes to which channels are wanted since the last call.
    pub(crate) fn take_wanted_channels(&self) -> Vec<u8> {
        self.exchange.as_ref().map_or_else(Vec::new, |exchange| exchange.take_wanted())
    }

    /// Uses a channel to another lane from now on.
    ///
    /// # Errors
    /// The lane uses none, or no more.
    pub(crate) fn add_channel(&self, slot: u8, channel: Channel) -> std::io::Result<()> {
        let none = || std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let exchange = self.exchange.as_ref().ok_or_else(none)?;
        exchange.add(channel)?;
        let mut added = Ok(());
        if !self.has_failed() && !self.is_closed() {
            added = self.enter(|state| {
                // What nobody could wait for is not used.
                self.renew_wait(state).inspect_err(|_| exchange.give_up(slot))?;
                let now = state.core.now();
                state.core.paths_mut().set_channel(now, slot, true);
                Ok(())
            });
        }
        self.sleeper.wake();
        added
    }
}

/// The index of a queue pair number within its lane.
pub(crate) const fn index_of(qpn: u32) -> u16 {
    polypath_lane::QpTable::<QpResources>::index_of(qpn)
}

/// The paths of a lane without a socket. Its identity and random choices are the same every time.
pub(crate) fn still_paths(slot: u8) -> PathManager {
    let lane = LaneIdentity { instance: 7, slot };
    PathManager::new(polypath_paths::Config::default(), lane, [7; 16])
}

/// The sending state of such a lane. It has UDP only.
fn still_io() -> LaneIo {
    LaneIo::new(Senders::new(crate::media::udp::Sender::new()))
}

/// A lane without a socket, thread and broker, which a test or the fuzzer drives.
#[cfg(any(test, fuzzing))]
impl Lane {
    /// Creates a lane that nobody drives.
    pub(crate) fn still(slot: u8) -> Result<Arc<Self>> {
        Self::around(slot, State::new(still_paths(slot), still_io(), None))
    }

    /// Creates a lane with these media, which only its owner drives.
    #[cfg(test)]
    pub(crate) fn by(slot: u8, senders: Senders, receivers: Receivers) -> Result<Arc<Self>> {
        let io = LaneIo::new(senders);
        Self::around(slot, State::new(still_paths(slot), io, Some(Box::new(receivers))))
    }

    fn around(slot: u8, state: State) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            home: None,
            index: 0,
            slot,
            socket: AtomicI32::new(-1),
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            sleeper: Sleeper::new(None).map_err(|e| os_error(&e))?,
            busy_poll: Mutex::new(BusyPoll::new(Duration::ZERO)),
            ended: Once::new(),
            closed: AtomicBool::new(false),
            exchange: None,
            streams: None,
            tcp_port: None,
            thread: Mutex::default(),
        }))
    }

    /// Whether the lane's lock is free.
    #[cfg(test)]
    fn is_free(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    /// Forgets all that it knows, and takes its addresses.
    ///
    /// # Panics
    /// If queue pairs are left.
    pub(crate) fn begin_anew(&self, addresses: &[polypath_paths::LocalAddress]) {
        let mut state = self.wait();
        assert!(state.core.qps().is_empty(), "all queue pairs were destroyed");
        *state = State::new(still_paths(self.slot), still_io(), None);
        state.begin();
        state.core.set_local(addresses);
    }

    /// Runs one round, which begins with these datagrams.
    pub(crate) fn round(&self, datagrams: &[crate::media::Received<'_>]) {
        let mut state = self.wait();
        state.begin();
        for datagram in datagrams {
            receive::datagram(&mut state, datagram);
        }
        let State { core, io, .. } = &mut *state;
        core.run(io);
        state.flush();
    }

    /// The packets that the path manager has sent since the last call.
    pub(crate) fn take_control(&self) -> Vec<polypath_paths::ControlOut> {
        core::mem::take(&mut self.wait().io.tapped)
    }
}

impl State {
    fn new(paths: PathManager, io: LaneIo, receivers: Option<Box<Receivers>>) -> Self {
        Self {
            core: Core::new(paths, LaneConfig::default()),
            io,
            receivers,
            prompt: Promptness::default(),
            answering: Answering::default(),
            collector: Collector::default(),
            vain: Vain::default(),
            socket_turns: SocketTurns::default(),
            received_at: Duration::ZERO,
            handled: 0,
            home: None,
            groups: Groups::default(),
        }
    }

    /// Makes room for datagrams to this many addresses, all of which may be new.
    pub(crate) fn make_room_for_datagrams(&mut self, addresses: usize) {
        if self.io.datagrams.room() < addresses {
            let posted = self.core.qps().iter().flat_map(|(_, entry)| entry.qp.datagrams());
            let keep = posted.map(|to| to.path).collect();
            self.io.forget_datagrams(self.core.paths_mut(), &keep);
        }
    }

    /// Reports header fields from now on, because a datagram queue pair needs the traffic class and
    /// hop limit for its GRHs.
    pub(crate) fn tell_header_fields(&mut self) -> Result<()> {
        let told = self.udp_receiver().map_or(Ok(()), |udp| udp.tell_header_fields(true));
        told.map_err(|e| os_error(&e))
    }

    /// Reports from now on whether packets were marked on their way, because connected queue pairs answer
    /// to that.
    pub(crate) fn tell_marks(&mut self) -> Result<()> {
        let told = self.udp_receiver().map_or(Ok(()), crate::media::udp::Receiver::tell_marks);
        told.map_err(|e| os_error(&e))
    }
}
