//! What a process has once: its connection to the broker, the table of interfaces, its lanes.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::Duration;

use polypath_ipc::message::Request;
use polypath_ipc::{Client, EventStream, Hello, IpcError, Push, Selection, Table};
use polypath_verbs::{DeviceInfo, Error, Result};

use crate::config::Config;
use crate::context::{KeyViolations, Shared};
use crate::lane::Lane;
use crate::log;
use crate::notify::lock;
use crate::status;
use crate::xrc::Domains;

/// Most lanes of a process.
pub(crate) const MAX_LANES: usize = polypath_ipc::settings::LANES_MAX;

/// The lanes of a process, made when first used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes(Arc<[OnceLock<Arc<Lane>>; MAX_LANES]>);

impl Lanes {
    /// Drives the lanes of the mask for a thread that polls.
    #[inline]
    pub(crate) fn drive(&self, mut mask: u64) {
        while mask != 0 {
            let n = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            if let Some(lane) = self.0.get(n).and_then(OnceLock::get) {
                lane.drive();
            }
        }
    }

    /// A thread is about to sleep for an event from one of these lanes.
    pub(crate) fn expect_sleep(&self, mut mask: u64) {
        while mask != 0 {
            let n = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            if let Some(lane) = self.0.get(n).and_then(OnceLock::get) {
                lane.expect_sleep();
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.0.iter().filter_map(OnceLock::get)
    }

    /// Returns when no lane is at work with what it saw before: memory that was deregistered
    /// before the call is not touched after it.
    pub(crate) fn barrier(&self) {
        self.iter().for_each(|lane| lane.barrier());
    }
}

/// The process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    pub(crate) config: Config,
    pub(crate) selection: Selection,
    /// Absent in a process that was made without one, see `fuzz`.
    broker: Mutex<Option<Client>>,
    table: RwLock<Arc<Table>>,
    pub(crate) lanes: Lanes,
    contexts: Mutex<Vec<Weak<Shared>>>,
    pub(crate) xrc_domains: Domains,
}

/// The one of this process; replaced after a fork, for good reasons never freed.
static CURRENT: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());
static MAKING: Mutex<()> = Mutex::new(());

/// The process, connected to the broker. A child after fork() gets its own.
#[allow(unsafe_code)]
pub(crate) fn current() -> Result<&'static Process> {
    let known = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from Box::leak and is never freed.
    if let Some(process) = unsafe { known.as_ref() }
        && process.pid == std::process::id()
    {
        return Ok(process);
    }
    let _making = lock(&MAKING);
    let known = CURRENT.load(Ordering::Acquire);
    // SAFETY: as above.
    if let Some(process) = unsafe { known.as_ref() }
        && process.pid == std::process::id()
    {
        return Ok(process);
    }
    let process: Box<Process> = Box::new(Process::connect()?);
    // All that can fail comes before the process is known to others: the next call tries it again.
    let stream = process.subscribe()?;
    let process = Box::into_raw(process);
    // SAFETY: the pointer came from a box just now; only the failure below gives it back.
    let shared: &'static Process = unsafe { &*process };
    if let Err(error) = shared.start_service(stream) {
        // SAFETY: no thread was started, and nobody else has been given the reference.
        drop(unsafe { Box::from_raw(process) });
        return Err(error);
    }
    CURRENT.store(process, Ordering::Release);
    Ok(shared)
}

/// The process ends: acknowledgements that wait are sent, as far as no other thread is at it.
#[allow(unsafe_code)]
pub fn leave() {
    // SAFETY: the pointer is null or came from Box::leak and is never freed.
    let known = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    if let Some(process) = known.filter(|process| process.pid == std::process::id()) {
        process.lanes.iter().for_each(|lane| lane.leave());
    }
}

/// Attempts to reach a broker again that was killed, and the pauses between them: half a minute.
const RECONNECTS: u32 = 66;
const RECONNECT_FIRST: Duration = Duration::from_millis(1);
const RECONNECT_LAST: Duration = Duration::from_millis(500);

/// How the broker went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// It ended, or this process is a child that must not use its parent's connection.
    AfterGoodbye,
    /// It was killed.
    Unexpectedly,
}

fn no_broker() -> Error {
    Error::new(libc::ENODEV, "this process has no broker")
}

pub(crate) fn ipc_error(error: &IpcError) -> Error {
    Error::new(error.errno(), error.to_string())
}

/// What is wrong with the primary of the mp device, if there is one.
fn primary_problem(config: &Config, table: &Table, selection: &Selection) -> Option<String> {
    let devices = polypath_ipc::devices(table, selection);
    let mp = devices.iter().find(|device| device.kind == polypath_ipc::DeviceKind::Mp)?;
    let ports = mp.members.iter().filter_map(|&member| table.port(member));
    let names: Vec<&str> = ports.map(|port| port.name.as_str()).collect();
    config.bonding.primary_problem(&names)
}

impl Process {
    fn connect() -> Result<Self> {
        let config = Config::from_env()?;
        let hello = Hello::of_this_process(&config.device);
        let mut broker = Client::connect_or_start(&hello).map_err(|e| ipc_error(&e))?;
        let table = broker.table().map_err(|e| ipc_error(&e))?;
        // Decided once: a second interface that appears later does not turn roce0 into mp0.
        let selection = Selection::parse(&config.device)
            .map_err(|e| Error::invalid(e.to_string()))?
            .resolve(&table);
        if let Some(problem) = primary_problem(&config, &table, &selection) {
            log::warn(&problem);
        }
        Ok(Self {
            pid: std::process::id(),
            config,
            selection,
            broker: Mutex::new(Some(broker)),
            table: RwLock::new(Arc::new(table)),
            lanes: Lanes::default(),
            contexts: Mutex::default(),
            xrc_domains: Domains::default(),
        })
    }

    /// A process without a broker and without threads, with one lane that only its owner drives.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn alone(table: Table, selection: Selection, lane: Arc<Lane>) -> Result<Self> {
        let lanes = Lanes::default();
        let _ = lanes.0[0].set(lane);
        Ok(Self {
            pid: std::process::id(),
            config: Config::from_env()?,
            selection,
            broker: Mutex::new(None),
            table: RwLock::new(Arc::new(table)),
            lanes,
            xrc_domains: Domains::default(),
            contexts: Mutex::default(),
        })
    }

    /// The interfaces and addresses as last heard.
    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The lane for a new queue pair.
    pub(crate) fn lane(&'static self) -> Result<Arc<Lane>> {
        let n = self.config.lane_for_this_thread();
        let cell = &self.lanes.0[n];
        if let Some(lane) = cell.get() {
            return Ok(lane.clone());
        }
        let mut guard = lock(&self.broker);
        if let Some(lane) = cell.get() {
            return Ok(lane.clone());
        }
        let broker = guard.as_mut().ok_or_else(no_broker)?;
        let opened = match broker.open_lane() {
            Err(IpcError::Closed) => {
                // Killed, and its place taken already or a moment later.
                self.renew(broker).and_then(|()| broker.open_lane())
            }
            other => other,
        };
        // The broker stays locked: no lane is forgotten when it has to be told of all.
        let lane = Lane::start(n, opened.map_err(|e| ipc_error(&e))?, self)?;
        Ok(cell.get_or_init(|| lane).clone())
    }

    /// A context that wants to hear of ports and GIDs.
    pub(crate) fn register(&self, context: &Arc<Shared>) {
        let mut contexts = lock(&self.contexts);
        contexts.retain(|c| c.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    /// Q_Key and P_Key violations of a device's port: those of all contexts that have it open in this
    /// process, as 16-bit counters that stay at their end (IBTA 14.2.5.6).
    pub(crate) fn key_violations(&self, device: &DeviceInfo) -> (u32, u32) {
        let contexts = self.contexts();
        let of_device = || contexts.iter().filter(|context| context.info.name == device.name);
        let sum = |counter: fn(&KeyViolations) -> &AtomicU64| {
            let count: u64 =
                of_device().map(|c| counter(&c.violations).load(Ordering::Relaxed)).sum();
            u32::from(u16::try_from(count).unwrap_or(u16::MAX))
        };
        (sum(|v| &v.qkey), sum(|v| &v.pkey))
    }

    pub(crate) fn contexts(&self) -> Vec<Arc<Shared>> {
        lock(&self.contexts).iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks the broker for news.
    fn subscribe(&self) -> Result<EventStream> {
        let hello = lock(&self.broker).as_ref().ok_or_else(no_broker)?.hello().clone();
        let (stream, table) = Client::connect_or_start(&hello)
            .and_then(Client::subscribe)
            .map_err(|e| ipc_error(&e))?;
        self.set_table(table);
        Ok(stream)
    }

    /// Starts the thread that hears them.
    fn start_service(&'static self, mut stream: EventStream) -> Result<()> {
        let hello = lock(&self.broker).as_ref().ok_or_else(no_broker)?.hello().clone();
        crate::thread::spawn("polypath-events", move || {
            // Where it is not granted, a fail-over takes a little longer.
            let _ = polypath_ipc::sched::request_short_slices();
            while self.serve(&mut stream) == Lost::Unexpectedly {
                let Some(again) = self.reconnect(&hello) else { break };
                stream = again;
            }
        })
        .map_err(|e| Error::new(e.raw_os_error().unwrap_or(libc::EAGAIN), "cannot start a thread"))
    }

    /// Does what the broker says until it is gone.
    fn serve(&self, stream: &mut EventStream) -> Lost {
        loop {
            match stream.wait_event() {
                Ok(Push::Table(table)) => self.set_table(*table),
                Ok(Push::StatusRequest { id }) => {
                    if stream.report(id, status::report(self)).is_err() {
                        return Lost::Unexpectedly;
                    }
                }
                Ok(Push::Goodbye) => return Lost::AfterGoodbye,
                Err(IpcError::Forked) => return Lost::AfterGoodbye,
                Err(_) => return Lost::Unexpectedly,
            }
        }
    }

    /// The broker was killed. Its place is taken within milliseconds: connects to the new one, which
    /// gives the lanes' slots to who has them. Packets arrive all the while.
    fn reconnect(&self, hello: &Hello) -> Option<EventStream> {
        let mut pause = RECONNECT_FIRST;
        for _ in 0..RECONNECTS {
            match self.connect_again(hello) {
                Ok((stream, table)) => {
                    log::line("the broker was gone and is back");
                    self.set_table(table);
                    return Some(stream);
                }
                Err(error) => log::line(&format!("connecting to the broker again: {error}")),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(RECONNECT_LAST);
        }
        log::line("the broker is gone for good, and with it news of links, new lanes and rdma_cm");
        None
    }

    fn connect_again(&self, hello: &Hello) -> core::result::Result<(EventStream, Table), IpcError> {
        if let Some(broker) = lock(&self.broker).as_mut()
            // A thread that wanted something may have been here before.
            && broker.call(&Request::Ping).is_err()
        {
            self.renew(broker)?;
        }
        Client::connect(hello)?.subscribe()
    }

    /// Replaces the connection to a broker that was killed by one to its successor.
    fn renew(&self, broker: &mut Client) -> core::result::Result<(), IpcError> {
        let hello = broker.hello().clone();
        let slots: Vec<u8> = self.lanes.iter().map(|lane| lane.slot).collect();
        // With lanes open only the one that takes over can have the port.
        let mut new = if slots.is_empty() {
            Client::connect_or_start(&hello)?
        } else {
            Client::connect(&hello)?
        };
        new.resume(&slots)?;
        *broker = new;
        Ok(())
    }

    fn set_table(&self, table: Table) {
        let new = Arc::new(table);
        let old = {
            let mut current = self.table.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            core::mem::replace(&mut *current, new.clone())
        };
        for lane in self.lanes.iter() {
            lane.set_table(&new, &self.selection);
        }
        for context in self.contexts() {
            context.table_changed(&old, &new);
        }
    }
}
