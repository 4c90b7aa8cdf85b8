//! The state that an engine's handle, its devices, contexts and threads share: the connection to
//! the broker, the table of interfaces, the lanes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, Weak};
use std::time::Duration;

use polypath_ipc::{Client, HangUp, Hello, IpcError};
use polypath_topology::rules::Process;
use polypath_topology::{InForce, Selection, Table, interface_problem};
use polypath_verbs::{DeviceInfo, Error, Result};

use crate::config::Config;
use crate::context_inner::{ContextInner, KeyViolations};
use crate::error::os_error;
use crate::homes::{self, Creator, Home, Nodes};
use crate::lane::journal::Messenger;
use crate::lane::{Lane, News, numbers};
use crate::lanes::Lanes;
use crate::log;
use crate::media::Wrappers;
use crate::notify::lock;
use crate::xrc::domain::Domains;

/// What ends the events thread, besides the broker.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Whether the engine closes.
    pub(crate) closing: bool,
    /// Ends the stream that the thread reads from.
    pub(crate) stream: Option<HangUp>,
}

/// The state that an engine's handle, its devices, contexts and threads share.
#[derive(Debug)]
pub(crate) struct EngineInner {
    pub(crate) pid: u32,
    /// The program's name, as rules may name it.
    pub(crate) program: String,
    config: Config,
    /// The wrappers around the media of its lanes.
    wrappers: Wrappers,
    pub(crate) selection: Selection,
    /// `None` in an engine that was created without a broker (see `fuzz`), and in one that is
    /// closed.
    pub(crate) broker: Mutex<Option<Client>>,
    table: RwLock<Arc<Table>>,
    pub(crate) lanes: Lanes,
    /// Whose turn it is to get a home.
    homes: Mutex<()>,
    contexts: Mutex<Vec<Weak<ContextInner>>>,
    pub(crate) xrc_domains: Domains,
    /// Wakes the events thread, so that it tells the broker what happened on the lanes.
    pub(crate) messenger: Arc<Messenger>,
    pub(crate) service: Mutex<Service>,
    /// Signalled when the engine begins to close.
    pub(crate) closing: Condvar,
}

/// While it is held, no other queue pair gets a home.
pub(crate) type Turn<'a> = MutexGuard<'a, ()>;

/// Pauses between attempts to reconnect to a broker that was killed: the first one, and the
/// longest.
pub(crate) const RECONNECT_FIRST: Duration = Duration::from_millis(1);
pub(crate) const RECONNECT_LAST: Duration = Duration::from_millis(500);

pub(crate) fn no_broker() -> Error {
    Error::new(libc::ENODEV, "the engine is closed, or has no broker now")
}

pub(crate) fn ipc_error(error: &IpcError) -> Error {
    Error::new(error.errno(), error.to_string())
}

impl EngineInner {
    pub(crate) fn connect(config: Config) -> Result<Self> {
        config.check()?;
        let hello = Hello::of_this_process(&config.devices.to_string());
        let (broker, table) = Client::begin_with_table(&hello).map_err(|e| ipc_error(&e))?;
        // The selection is fixed now: a second interface that appears later does not turn roce0
        // into mp0.
        let selection = broker.selection().clone();
        let messenger = Messenger::new().map_err(|e| os_error(&e))?;
        let engine = Self::new(config, selection, Some(broker), table, messenger);
        let (table, settings) = (engine.table(), engine.in_force().settings);
        if let Some(problem) = interface_problem(&settings, &table, &engine.selection) {
            log::warn(&problem);
        }
        Ok(engine)
    }

    fn new(
        config: Config,
        selection: Selection,
        broker: Option<Client>,
        table: Table,
        messenger: Messenger,
    ) -> Self {
        let program = broker.as_ref().map(|broker| broker.hello().program.clone());
        Self {
            pid: std::process::id(),
            program: program.unwrap_or_default(),
            wrappers: Wrappers::new(&config),
            config,
            selection,
            broker: Mutex::new(broker),
            table: RwLock::new(Arc::new(table)),
            lanes: Lanes::default(),
            homes: Mutex::default(),
            contexts: Mutex::default(),
            xrc_domains: Domains::default(),
            messenger: Arc::new(messenger),
            service: Mutex::default(),
            closing: Condvar::new(),
        }
    }

    /// Creates an engine without a broker and threads. It has one lane, which only its owner
    /// drives.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn alone(table: Table, selection: Selection, lane: Arc<Lane>) -> Arc<Self> {
        let messenger = Messenger::new().expect("a descriptor is left");
        let engine = Self::new(Config::default(), selection, None, table, messenger);
        engine.lanes.set(0, lane);
        Arc::new(engine)
    }

    /// The interfaces and addresses that the broker last reported.
    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// How its mp device uses its paths now, and why.
    pub(crate) fn in_force(&self) -> InForce {
        self.in_force_by(&self.table())
    }

    fn in_force_by(&self, table: &Table) -> InForce {
        let devices = polypath_topology::devices(table, &self.selection);
        let several = devices.into_iter().filter(|device| device.kind.multipath);
        let mut names: Vec<String> = several.map(|device| device.name).collect();
        if !names.is_empty() {
            names.push(self.selection.to_string());
        }
        let process = Process {
            pid: self.pid,
            program: &self.program,
            devices: &names,
            selected: &self.selection.settings(table),
            below: &self.selection.settings_below(table),
        };
        InForce::of(&table.rules, &self.config.bonding, &process)
    }

    /// What the lanes take from a table.
    fn news<'a>(&'a self, table: &'a Table) -> News<'a> {
        let in_force = self.in_force_by(table);
        News { table, selection: &self.selection, in_force }
    }

    /// The lane for a new queue pair of a context, that uses the queues of these creators. Until the turn
    /// that comes with it is given back, no other queue pair gets a home.
    pub(crate) fn lane(
        &self,
        context: &ContextInner,
        queues: impl IntoIterator<Item = Creator>,
    ) -> Result<(Arc<Lane>, Option<Turn<'_>>)> {
        // Other devices have one path, so nothing is in force there.
        if context.spec().kind.multipath
            && let table = self.table()
            && let in_force = self.in_force_by(&table)
            && let Some(rule) = homes::rule(&in_force)
        {
            let turn = lock(&self.homes);
            let nodes = Nodes::of_this_machine();
            let creator = Creator::here().following(queues, nodes);
            let all = homes::of_device(&context.spec(), &table, &in_force);
            let lane_of = |home: &Home| self.lanes.at_home(&home.name).cloned();
            let load = |home: &Home| lane_of(home).map_or(0, |lane| lane.queue_pairs());
            if let Some(home) = homes::choose(rule, &all, creator, nodes, load)
                && let Some(lane) = self.lane_at(home)?
            {
                return Ok((lane, Some(turn)));
            }
        }
        let n = Creator::here().among(self.config.lanes);
        let find = || self.lanes.get(n).cloned();
        let open = |broker: &mut _| self.open_lane(broker, n, None, Client::open_lane);
        Ok((self.find_or_open(find, open)?, None))
    }

    /// The lane of those that are at home there; `None` if the engine has no room for it.
    fn lane_at(&self, home: &Home) -> Result<Option<Arc<Lane>>> {
        let find = || self.lanes.at_home(&home.name).cloned();
        if find().is_none() && self.lanes.last_free().is_none_or(|n| n < self.config.lanes) {
            return Ok(None);
        }
        let open = |broker: &mut _| {
            let n = self.lanes.last_free().ok_or_else(no_room)?;
            self.open_lane(broker, n, Some(home), Client::open_lane)
        };
        self.find_or_open(find, open).map(Some)
    }

    /// The lane that this number belongs to. If the engine does not have it yet, it asks the broker
    /// for the slot.
    pub(crate) fn lane_of_number(&self, number: u32) -> Result<Arc<Lane>> {
        let slot = numbers::slot_of(number)?;
        let find = || self.lanes.iter().find(|lane| lane.slot == slot).cloned();
        self.find_or_open(find, |broker| {
            let n = self.lanes.last_free().ok_or_else(no_room)?;
            let asked = self.open_lane(broker, n, None, |broker| broker.open_lane_on(slot));
            asked.map_err(|Error { errno, reason }| {
                let what = format!("no lane for the queue pair number {number:#x}: {reason}");
                Error::new(errno, what)
            })
        })
    }

    /// The lane that `find` finds. If there is none, `open` opens it with the broker locked, and nobody else
    /// opens a lane meanwhile.
    fn find_or_open(
        &self,
        find: impl Fn() -> Option<Arc<Lane>>,
        open: impl FnOnce(&mut Option<Client>) -> Result<Arc<Lane>>,
    ) -> Result<Arc<Lane>> {
        if let Some(lane) = find() {
            return Ok(lane);
        }
        let mut broker = lock(&self.broker);
        // Another thread may have opened it while this one waited for the lock.
        find().map_or_else(|| open(&mut broker), Ok)
    }

    /// Opens lane `n`, for queue pairs that are at home there, on the slot that the broker gives as it is
    /// asked.
    fn open_lane(
        &self,
        broker: &mut Option<Client>,
        n: usize,
        home: Option<&Home>,
        ask: impl Fn(&mut Client) -> core::result::Result<polypath_ipc::Lane, IpcError>,
    ) -> Result<Arc<Lane>> {
        let broker = broker.as_mut().ok_or_else(no_broker)?;
        let opened = match ask(broker) {
            Err(IpcError::Closed) => {
                // The broker was killed. Another one has taken its place, or will in a moment.
                self.renew(broker).and_then(|()| ask(broker))
            }
            other => other,
        };
        let opened = opened.map_err(|e| ipc_error(&e))?;
        let table = self.table();
        // The broker stays locked, so that a thread that tells it about all lanes includes this
        // one.
        let place = (n, home.cloned());
        let lane = Lane::start(place, opened, &self.config, &self.wrappers, &self.news(&table))?;
        lane.tell_by(self.messenger.clone());
        accept_streams(broker, &lane);
        let lane = self.lanes.set(n, lane).clone();
        let now = self.table();
        if !Arc::ptr_eq(&table, &now) {
            // A new table arrived in between, and was not told to this lane.
            lane.learn(&self.news(&now));
        }
        Ok(lane)
    }

    /// Registers a context for changes of ports and GIDs.
    pub(crate) fn register(&self, context: &Arc<ContextInner>) -> Result<()> {
        let mut contexts = lock(&self.contexts);
        contexts.retain(|c| c.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
        drop(contexts);
        // The order matters: either this thread sees that the engine closes, or the closing thread
        // sees the context.
        if lock(&self.service).closing {
            return Err(Error::new(libc::ENODEV, "the engine of this device is closed"));
        }
        Ok(())
    }

    /// The Q_Key and P_Key violations of a device's port. They are summed over all contexts of this
    /// engine that have it open, and are 16-bit counters that stay at their maximum
    /// (IBTA 14.2.5.6).
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

    /// Closes the lanes, gives their slots back, and tells all contexts.
    pub(crate) fn close(&self) {
        // No lane is opened after this.
        let broker = lock(&self.broker).take();
        self.lanes.iter().for_each(|lane| lane.close());
        self.wrappers.close();
        if let Some(broker) = broker {
            self.give_slots_back(broker);
        }
        for context in self.contexts() {
            context.engine_closed(&self.table());
        }
    }

    /// Sends acknowledgements that wait, because the process ends, except on lanes that another
    /// thread is in, and ends the capture.
    pub(crate) fn leave(&self) {
        self.lanes.iter().for_each(|lane| lane.leave());
        self.wrappers.close();
    }

    /// Gives the slots back. The end of the connection does that too, but if the process has
    /// forked, not until the child has ended, because the child has the connection as well.
    fn give_slots_back(&self, mut broker: Client) {
        for lane in self.lanes.iter() {
            match broker.close_lane(lane.slot) {
                Err(IpcError::Closed) => {
                    // The broker was killed. Its successor has the slots until the process ends or
                    // names them.
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

    /// Does the same as [`Self::renew`], but waits for the process that takes the broker's place.
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

    /// Replaces the connection to a broker that was killed with one to its successor.
    pub(crate) fn renew(&self, broker: &mut Client) -> core::result::Result<(), IpcError> {
        let hello = broker.hello().clone();
        let slots: Vec<u8> = self.lanes.iter().map(|lane| lane.slot).collect();
        // If lanes are open, only a process that takes over can have the port.
        let mut new = if slots.is_empty() {
            Client::connect_or_start(&hello)?
        } else {
            Client::connect(&hello)?
        };
        new.resume(&slots)?;
        self.lanes.iter().for_each(|lane| accept_streams(&mut new, lane));
        *broker = new;
        Ok(())
    }

    pub(crate) fn set_table(&self, table: Table) {
        let new = Arc::new(table);
        let old = {
            let mut current = self.table.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            core::mem::replace(&mut *current, new.clone())
        };
        let news = self.news(&new);
        self.lanes.iter().for_each(|lane| lane.learn(&news));
        for context in self.contexts() {
            context.table_changed(&old, &new, &self.selection);
        }
        self.lanes.iter().for_each(|lane| lane.follow_groups());
    }
}

fn no_room() -> Error {
    Error::no_memory("the engine has no room for another lane")
}

/// Lets the broker take TCP streams for a lane, if it has any.
pub(crate) fn accept_streams(broker: &mut Client, lane: &Lane) {
    let Some(port) = lane.tcp_port() else { return };
    if let Err(error) = broker.accept_streams(lane.slot, port) {
        // Other hosts' lanes may still be called.
        log::warn(&format!(
            "nobody can open TCP streams to this process, because port {port} can't be used: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};

    use polypath_paths::PathAddress;
    use polypath_topology::ROCE;

    use super::*;
    use crate::config::CaptureTo;

    /// The sizes of a capture of one packet: before `end`, and after it.
    fn capture_that_ends(name: &str, end: impl FnOnce(&EngineInner)) -> (u64, u64) {
        let name = format!("polypath-{name}-{}.pcapng", std::process::id());
        let path = std::env::temp_dir().join(name);
        let capture = Some(CaptureTo { path: path.clone(), snap_len: 65_535 });
        let config = Config { capture, ..Config::default() };
        let (table, messenger) = (crate::fuzz::table(), Messenger::new().unwrap());
        let engine = EngineInner::new(config, Selection::of(ROCE), None, table, messenger);
        let ip = Ipv4Addr::LOCALHOST;
        let (slot, now) = (UdpSocket::bind((ip, 0)).unwrap(), crate::clock::now());
        let media =
            crate::media::start(slot.into(), &engine.wrappers, 0, now, &engine.table(), None);
        let (mut senders, _receivers) = media.unwrap();
        let address = PathAddress {
            kind: polypath_paths::PathKind::Udp,
            local: ip.into(),
            remote: ip.into(),
            ifindex: 0,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let flow = senders.open(&address, 1).unwrap();
        // It is recorded, but not written, because it is not flushed.
        senders.send_packet(now, flow, &[0; 4000]);
        let size = || std::fs::metadata(&path).unwrap().len();
        let before = size();
        end(&engine);
        let sizes = (before, size());
        std::fs::remove_file(&path).unwrap();
        sizes
    }

    #[test]
    fn the_end_of_the_process_or_the_engine_writes_the_rest_of_the_capture() {
        for (name, end) in
            [("leave", EngineInner::leave as fn(&EngineInner)), ("close", EngineInner::close)]
        {
            let (before, after) = capture_that_ends(name, end);
            assert!(before < 1000 && after > 4000, "{name}: {before}, then {after}");
        }
    }
}
