//! An engine: its connection to the broker, the table of interfaces, its lanes, and what is open of its
//! devices. Engines of one process share nothing of that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use polypath_ipc::message::{Request, TOLD_MAX};
use polypath_ipc::{Client, EventStream, HangUp, Hello, IpcError, Push};
use polypath_topology::{Selection, Table};
use polypath_verbs::{Device, DeviceInfo, Error, Result};

use crate::config::Config;
use crate::context::{ContextInner, KeyViolations, os_error};
use crate::lane::Lane;
use crate::lane::journal::Messenger;
use crate::lanes::Lanes;
use crate::media::Wrappers;
use crate::notify::lock;
use crate::xrc::Domains;
use crate::{device, log, status};

/// An engine. A process may have several; each has its own connection to the broker, slots, lanes,
/// threads and devices, and objects of one are refused by the others.
///
/// ```no_run
/// use polypath_engine::{Config, Engine, Selection};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let devices = Selection::parse("mp:eth0+eth1")?;
/// let engine = Engine::open(Config { devices, ..Config::default() })?;
/// for device in engine.devices() {
///     let context = device.open()?;
///     println!("{}: {:?}", device.info().name, context.gid_table());
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropping it is taking an adapter out of the machine. What is posted is flushed with an error, the
/// memory of its contexts is deregistered, and they raise `IBV_EVENT_DEVICE_FATAL`. When the drop is done,
/// the engine's threads have ended, its sockets are closed and its slots are the broker's again. What the
/// program still holds of it answers `ENODEV`, and can be destroyed.
///
/// A child after `fork()` has the handle and nothing behind it: dropping it there does nothing.
#[derive(Debug)]
pub struct Engine {
    inner: Arc<Inner>,
    events: Option<JoinHandle<()>>,
}

impl Engine {
    /// Makes an engine. The broker is started if none runs.
    ///
    /// # Errors
    /// `EINVAL`: the configuration makes no sense. `ENODEV`: the broker can't be reached or started, or
    /// there is no interface for such a device. Else what the system gave.
    pub fn open(config: Config) -> Result<Self> {
        let inner = Arc::new(Inner::connect(config)?);
        let stream = inner.subscribe()?;
        let events = inner.start_service(stream)?;
        Ok(Self { inner, events: Some(events) })
    }

    /// Its devices as of now.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        device::all(&self.inner)
    }

    /// False in a child of the process that made it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.inner.pid == std::process::id()
    }

    /// The process ends: acknowledgements that wait are sent, as far as no other thread is at it.
    pub(crate) fn leave(&self) {
        self.inner.lanes.iter().for_each(|lane| lane.leave());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let events = self.events.take();
        if !self.is_of_this_process() {
            // Locks may be held by threads that are not here, and what is behind them half done.
            core::mem::forget((events, self.inner.clone()));
            return;
        }
        self.inner.end_service();
        // What it has panicked of, if it has, was said.
        let _ = events.map(JoinHandle::join);
        self.inner.close();
    }
}

/// What the events thread waits for beside the broker.
#[derive(Debug, Default)]
struct Service {
    closing: bool,
    stream: Option<HangUp>,
}

/// What an engine's handle, its devices, its contexts and its threads share.
#[derive(Debug)]
pub(crate) struct Inner {
    pid: u32,
    config: Config,
    /// What its lanes wrap their media in.
    wrappers: Wrappers,
    pub(crate) selection: Selection,
    /// Absent in an engine that was made without one, see `fuzz`, and in one that is closed.
    broker: Mutex<Option<Client>>,
    table: RwLock<Arc<Table>>,
    pub(crate) lanes: Lanes,
    contexts: Mutex<Vec<Weak<ContextInner>>>,
    pub(crate) xrc_domains: Domains,
    /// Calls the thread that hears the broker, to tell it what happened on the lanes.
    messenger: Arc<Messenger>,
    service: Mutex<Service>,
    /// Signalled when `service` says that the engine closes.
    closing: Condvar,
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
    Error::new(libc::ENODEV, "the engine is closed, or was made without a broker")
}

pub(crate) fn ipc_error(error: &IpcError) -> Error {
    Error::new(error.errno(), error.to_string())
}

/// What is wrong with the primary of the multi-path device, if there is one.
fn primary_problem(config: &Config, table: &Table, selection: &Selection) -> Option<String> {
    let devices = polypath_topology::devices(table, selection);
    let mp = devices.iter().find(|device| device.kind.multipath)?;
    let ports = mp.ports(table);
    let names: Vec<&str> = ports.map(|port| port.name.as_str()).collect();
    config.bonding.primary_problem(&names)
}

impl Inner {
    fn connect(config: Config) -> Result<Self> {
        config.check()?;
        let hello = Hello::of_this_process(&config.devices.to_string());
        let mut broker = Client::connect_or_start(&hello).map_err(|e| ipc_error(&e))?;
        let table = broker.table().map_err(|e| ipc_error(&e))?;
        // Decided once: a second interface that appears later does not turn roce0 into mp0.
        let selection = broker.selection().clone();
        if let Some(problem) = primary_problem(&config, &table, &selection) {
            log::warn(&problem);
        }
        let messenger = Messenger::new().map_err(|e| os_error(&e))?;
        Ok(Self::new(config, selection, Some(broker), table, messenger))
    }

    fn new(
        config: Config,
        selection: Selection,
        broker: Option<Client>,
        table: Table,
        messenger: Messenger,
    ) -> Self {
        Self {
            pid: std::process::id(),
            wrappers: Wrappers::new(&config),
            config,
            selection,
            broker: Mutex::new(broker),
            table: RwLock::new(Arc::new(table)),
            lanes: Lanes::default(),
            contexts: Mutex::default(),
            xrc_domains: Domains::default(),
            messenger: Arc::new(messenger),
            service: Mutex::default(),
            closing: Condvar::new(),
        }
    }

    /// An engine without a broker and without threads, with one lane that only its owner drives.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn alone(table: Table, selection: Selection, lane: Arc<Lane>) -> Arc<Self> {
        let messenger = Messenger::new().expect("a descriptor is left");
        let engine = Self::new(Config::default(), selection, None, table, messenger);
        engine.lanes.set(0, lane);
        Arc::new(engine)
    }

    /// The interfaces and addresses as last heard.
    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The lane for a new queue pair.
    pub(crate) fn lane(&self) -> Result<Arc<Lane>> {
        let n = self.config.lane_for_this_thread();
        if let Some(lane) = self.lanes.get(n) {
            return Ok(lane.clone());
        }
        let mut guard = lock(&self.broker);
        if let Some(lane) = self.lanes.get(n) {
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
        let opened = opened.map_err(|e| ipc_error(&e))?;
        let table = self.table();
        // The broker stays locked: no lane is forgotten when it has to be told of all.
        let lane = Lane::start(n, opened, &self.config, &self.wrappers, &table, &self.selection)?;
        lane.tell_by(self.messenger.clone());
        let lane = self.lanes.set(n, lane).clone();
        let now = self.table();
        if !Arc::ptr_eq(&table, &now) {
            // A new table came in between, and this lane was not among those that were told.
            lane.set_table(&now, &self.selection);
        }
        Ok(lane)
    }

    /// A context that wants to hear of ports and GIDs.
    pub(crate) fn register(&self, context: &Arc<ContextInner>) -> Result<()> {
        let mut contexts = lock(&self.contexts);
        contexts.retain(|c| c.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
        drop(contexts);
        // In this order: who closes the engine either is seen here or sees the context.
        if lock(&self.service).closing {
            return Err(Error::new(libc::ENODEV, "the engine of this device is closed"));
        }
        Ok(())
    }

    /// Q_Key and P_Key violations of a device's port: those of all contexts that have it open in this
    /// engine, as 16-bit counters that stay at their end (IBTA 14.2.5.6).
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

    pub(crate) fn contexts(&self) -> Vec<Arc<ContextInner>> {
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
    fn start_service(self: &Arc<Self>, mut stream: EventStream) -> Result<JoinHandle<()>> {
        let hello = lock(&self.broker).as_ref().ok_or_else(no_broker)?.hello().clone();
        self.can_end(&stream).map_err(|e| ipc_error(&e))?;
        let engine = self.clone();
        crate::thread::start("polypath-events", move || {
            // Where it is not granted, a fail-over takes a little longer.
            let _ = polypath_ipc::sched::request_short_slices();
            while engine.serve(&mut stream) == Lost::Unexpectedly {
                let Some(again) = engine.reconnect(&hello) else { break };
                stream = again;
            }
        })
        .map_err(|e| Error::new(e.raw_os_error().unwrap_or(libc::EAGAIN), "cannot start a thread"))
    }

    /// From now on this is the stream that ends when the engine closes.
    fn can_end(&self, stream: &EventStream) -> core::result::Result<(), IpcError> {
        let hang_up = stream.hang_up()?;
        let mut service = lock(&self.service);
        if service.closing {
            return Err(IpcError::Closed);
        }
        service.stream = Some(hang_up);
        Ok(())
    }

    /// Ends the thread that hears the broker, or is about to.
    fn end_service(&self) {
        let mut service = lock(&self.service);
        service.closing = true;
        if let Some(stream) = service.stream.take() {
            stream.hang_up();
        }
        self.closing.notify_all();
    }

    /// Waits, but not if the engine closes: then true.
    fn pause(&self, time: Duration) -> bool {
        let service = lock(&self.service);
        let waited = self.closing.wait_timeout_while(service, time, |service| !service.closing);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0.closing
    }

    /// Closes the lanes, gives their slots back, and tells who has a device open.
    fn close(&self) {
        // Nobody opens a lane after this.
        let broker = lock(&self.broker).take();
        self.lanes.iter().for_each(|lane| lane.close());
        if let Some(broker) = broker {
            self.give_slots_back(broker);
        }
        for context in self.contexts() {
            context.engine_closed();
        }
    }

    /// The connection that ends does that as well, but not before a child that was forked has ended, which
    /// has it, too.
    fn give_slots_back(&self, mut broker: Client) {
        for lane in self.lanes.iter() {
            match broker.close_lane(lane.slot) {
                Err(IpcError::Closed) => {
                    // Killed. Its successor has the slots, until the process ends or names them.
                    if self.renew_soon(&mut broker).is_err()
                        || broker.close_lane(lane.slot).is_err()
                    {
                        log::line("the broker is gone, and has not heard of the engine's end");
                        return;
                    }
                }
                Err(error) => log::line(&format!("giving a slot back: {error}")),
                Ok(()) => {}
            }
        }
    }

    /// As [`Self::renew`], with patience for the one that takes the broker's place.
    fn renew_soon(&self, broker: &mut Client) -> core::result::Result<(), IpcError> {
        let mut pause = RECONNECT_FIRST;
        loop {
            match self.renew(broker) {
                Err(_) if pause < RECONNECT_LAST => std::thread::sleep(pause),
                done => return done,
            }
            pause *= 2;
        }
    }

    /// Does what the broker says until it is gone.
    fn serve(&self, stream: &mut EventStream) -> Lost {
        // What happened before may not have been told.
        let mut to_tell = true;
        loop {
            match stream.wait_event_or(self.messenger.waker().as_fd(), to_tell) {
                Ok(None) => match self.tell(stream) {
                    Ok(all) => to_tell = !all,
                    Err(_) => return Lost::Unexpectedly,
                },
                Ok(Some(Push::Table(table))) => self.set_table(*table),
                Ok(Some(Push::StatusRequest { id })) => {
                    if stream.report(id, status::report(self)).is_err() {
                        return Lost::Unexpectedly;
                    }
                }
                // It is asked for by those who watch alone.
                Ok(Some(Push::Events { .. })) => {}
                Ok(Some(Push::Goodbye)) => return Lost::AfterGoodbye,
                Err(IpcError::Forked) => return Lost::AfterGoodbye,
                Err(_) => return Lost::Unexpectedly,
            }
        }
    }

    /// Tells the broker what happened on the lanes; false if it has no room for all.
    fn tell(&self, stream: &mut EventStream) -> core::result::Result<bool, IpcError> {
        self.messenger.begin();
        for lane in self.lanes.iter() {
            loop {
                let (events, lost) = lane.take_untold(TOLD_MAX);
                if events.is_empty() && lost == 0 {
                    break;
                }
                if !stream.tell(lost, &events)? {
                    lane.put_back_untold(events, lost);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The broker was killed. Its place is taken within milliseconds: connects to the new one, which
    /// gives the lanes' slots to who has them. Packets arrive all the while.
    fn reconnect(&self, hello: &Hello) -> Option<EventStream> {
        let mut pause = RECONNECT_FIRST;
        if self.pause(Duration::ZERO) {
            return None;
        }
        for _ in 0..RECONNECTS {
            let again = self.connect_again(hello).and_then(|(stream, table)| {
                self.can_end(&stream)?;
                Ok((stream, table))
            });
            match again {
                Ok((stream, table)) => {
                    log::line("the broker was gone and is back");
                    self.set_table(table);
                    return Some(stream);
                }
                Err(error) => log::line(&format!("connecting to the broker again: {error}")),
            }
            if self.pause(pause) {
                return None;
            }
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
