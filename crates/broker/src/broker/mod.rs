//! The loop: one thread and one epoll set, driven by events and deadlines.

mod channels;
mod clients;
mod cm;
mod departures;
mod endings;
mod lacp;
mod left_files;
mod mad_streams;
mod migration;
mod orphans;
mod pings;
mod requests;
mod rules;
mod streams;
mod watchers;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use polypath_cm::{ClientId, Cm, CmConfig};
use polypath_config::Location;
use polypath_ipc::message::{self, MESSAGE_MAX, Push};
use polypath_ipc::status::ConfigStatus;
use polypath_telemetry::BrokerCounters;
use polypath_topology::Table;

use crate::changes;
use crate::chronicle::Chronicle;
use crate::connection::{Connection, Role};
use crate::files::Files;
use crate::gathering::Gatherings;
use crate::handover::Handover;
use crate::host::Host;
use crate::keeper::{Estate, Keeper};
use crate::ledger::{KeptAnswer, Ledger};
use crate::log::log;
use crate::options::Manner;
use crate::pings::Pings;
use crate::qp1::Qp1;
use crate::rendezvous::Rendezvous;
use crate::slots::Slots;
use crate::sys::epoll::{Epoll, Event, Interest};
use crate::sys::process::{Signals, now};
use crate::{Error, random};

/// The largest number of connections.
const CONNECTIONS_MAX: usize = 1024;

/// The number of messages or packets that are taken from one descriptor before the others get their
/// turn.
const TURN: usize = 32;

/// The parts of a token in the epoll set: its kind is in the top byte.
const FIXED: u64 = 0;
const CONNECTION: u64 = 1;
const FILE: u64 = 2;
const ORPHAN: u64 = 3;
const PING: u64 = 4;
/// A TCP connection that is being made.
const STREAM: u64 = 5;
/// A TCP port that the broker listens on.
const LISTENER_TCP: u64 = 6;
const KIND_SHIFT: u32 = 56;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const NETLINK: u64 = 2;
const QP1: u64 = 3;

/// The broker's state.
pub(crate) struct Broker {
    epoll: Epoll,
    listener: OwnedFd,
    signals: Signals,
    slots: Slots,
    host: Host,
    cm: Cm,
    qp1: Qp1,
    connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    files: Files,
    gatherings: Gatherings,
    pings: Pings<pings::PingSocket>,
    streams: streams::Streams,
    mads: mad_streams::MadStreams,
    counters: BrokerCounters,
    chronicle: Chronicle,
    departures: departures::Departures,
    /// What the processes tell that speak LACP on this host.
    lacp: lacp::LacpNews,
    /// The configuration file as it was last read.
    config: ConfigStatus,
    started: Duration,
    manner: Manner,
    rendezvous: Rendezvous,
    /// `None` if it can't be started. Then nothing takes the broker's place if it is killed.
    keeper: Option<Keeper>,
    /// What is written down of ids, for the broker that takes this one's place.
    ledger: Option<Ledger>,
    /// What a killed broker has answered last to each process, which may not have got it.
    left_answers: BTreeMap<u32, KeptAnswer>,
    /// Processes that have not connected yet, each with a descriptor that reports its end.
    orphans: BTreeMap<u32, OwnedFd>,
    /// The time since which there is nothing to do.
    idle_since: Option<Duration>,
    /// Whether a request ended the broker.
    ending: bool,
    /// The last log message about MADs that could not be sent, so that it is not repeated.
    last_send_error: String,
    /// A spare descriptor. It is closed when there are no others, so that a connecting client can
    /// be told.
    spare: Option<OwnedFd>,
    buffer: Box<[u8]>,
}

impl Broker {
    /// Creates a broker. `handover` is what a killed broker has left.
    pub(crate) fn new(
        listener: OwnedFd,
        manner: Manner,
        keeper: Option<Keeper>,
        mut handover: Option<Handover>,
    ) -> Result<Self, Error> {
        let setup = |source| Error::Io { doing: "setting up", source };
        let mut table = Table::default();
        let takes_over = handover.is_some();
        let slots = match &mut handover {
            None => Slots::new(random())?,
            Some(handover) => {
                table = std::mem::take(&mut handover.state.table);
                Slots::inherit(handover)?
            }
        };
        let spare = Some(listener.try_clone().map_err(setup)?);
        let mut broker = Self {
            epoll: Epoll::new().map_err(setup)?,
            listener,
            signals: Signals::new().map_err(setup)?,
            slots,
            host: Host::new(table).map_err(setup)?,
            cm: Cm::new(
                CmConfig { first_id: random(), keeps: true, ..CmConfig::default() },
                random,
            ),
            qp1: Qp1::new(random).map_err(setup)?,
            connections: BTreeMap::new(),
            last_connection: 0,
            files: Files::new(random()),
            gatherings: Gatherings::default(),
            pings: Pings::default(),
            streams: streams::Streams::default(),
            mads: mad_streams::MadStreams::default(),
            counters: BrokerCounters::default(),
            chronicle: Chronicle::default(),
            departures: departures::Departures::default(),
            lacp: lacp::LacpNews::new(),
            config: ConfigStatus::default(),
            started: now(),
            manner,
            rendezvous: Rendezvous::default(),
            keeper,
            ledger: left_files::new_ledger(),
            left_answers: BTreeMap::new(),
            orphans: BTreeMap::new(),
            idle_since: Some(now()),
            ending: false,
            last_send_error: String::new(),
            spare,
            buffer: vec![0; MESSAGE_MAX + 1].into_boxed_slice(),
        };
        let watched = [
            (broker.listener.as_fd(), LISTENER),
            (broker.signals.fd().as_fd(), SIGNALS),
            (broker.host.netlink().changes(), NETLINK),
            (broker.slots.own().as_fd(), QP1),
        ];
        for (fd, token) in watched {
            broker.epoll.add(fd, token, Interest::Read).map_err(setup)?;
        }
        if let Some(handover) = &mut handover {
            broker.keep_left_files(handover);
        }
        broker.watch_orphans();
        // One that takes over has the rules of the table. A file that was changed since then waits for a
        // command.
        if takes_over {
            broker.config.path = Location::find().path.display().to_string();
        } else if let Err(error) = broker.read_config() {
            log!("no rules of the configuration file are in force: {error}");
        }
        broker.inform_keeper();
        Ok(broker)
    }

    /// Runs until there is nothing more to do, or something ends it.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        loop {
            let timeout = self.next_deadline().map(|deadline| deadline.saturating_sub(now()));
            let events = self
                .epoll
                .wait(timeout)
                .map_err(|source| Error::Io { doing: "waiting for events", source })?;
            for event in events {
                if self.handle(event)?.is_break() {
                    self.say_goodbye();
                    return Ok(());
                }
            }
            let now = now();
            if self.cm.next_deadline().is_some_and(|deadline| deadline <= now) {
                self.cm.handle_timeout(now, &mut self.host);
            }
            self.finish_gatherings(now);
            self.finish_pings(now);
            self.tend_streams(now);
            self.tend_mad_streams(now);
            self.inform_keeper();
            self.pump();
            self.write_down();
            self.feed_watchers();
            self.watch_idleness(now);
            if self.ending || self.is_idle_for_good(now)? {
                self.say_goodbye();
                return Ok(());
            }
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let idle =
            self.idle_since.zip(self.manner.idle_timeout).map(|(since, timeout)| since + timeout);
        let others = [
            self.gatherings.next_deadline(),
            self.pings.next_deadline(),
            self.streams.next_deadline(),
            self.mads.next_deadline(),
        ];
        [idle, self.cm.next_deadline()].into_iter().chain(others).flatten().min()
    }

    fn handle(&mut self, event: Event) -> Result<ControlFlow<()>, Error> {
        let number = event.token & ((1 << KIND_SHIFT) - 1);
        match (event.token >> KIND_SHIFT, number) {
            (FIXED, LISTENER) => self.accept()?,
            (FIXED, SIGNALS) => {
                let taken = self.signals.take();
                if let Some(signal) =
                    taken.map_err(|source| Error::Io { doing: "reading signals", source })?
                {
                    log!("{signal}: ending");
                    return Ok(ControlFlow::Break(()));
                }
            }
            (FIXED, NETLINK) => self.refresh(),
            (FIXED, QP1) => self.receive_mads(),
            (CONNECTION, id) => self.handle_connection(id, event),
            (FILE, id) => self.handle_file(id, event),
            (ORPHAN, pid) => self.orphan_ended(pid),
            (PING, number) => self.ping_error(number),
            (STREAM, number) => self.stream_event(number),
            (LISTENER_TCP, port) => self.take_calls(port as u16),
            (kind, _) => debug_assert!(false, "token of kind {kind}"),
        }
        Ok(ControlFlow::Continue(()))
    }

    // Changes in the kernel

    fn refresh(&mut self) {
        let before = self.host.table().ports.clone();
        self.take_in_changes();
        for event in changes::between(&before, &self.host.table().ports) {
            self.happened(event);
        }
    }

    fn take_in_changes(&mut self) {
        match self.host.hear() {
            Ok(false) => {}
            Ok(true) => self.push_table(),
            Err(error) => log!("reading what the kernel tells of interfaces: {error}"),
        }
        let before = self.devices_by_client();
        match self.host.refresh() {
            Ok(false) => {}
            Ok(true) => {
                self.push_table();
                self.tell_cm(&before);
            }
            Err(error) => log!("asking the kernel for interfaces and addresses: {error}"),
        }
    }

    /// The devices of every process that has CM files, without those of several paths: such a device stays
    /// when its last interface goes, because its queue pairs wait for another one.
    fn devices_by_client(&self) -> BTreeMap<u64, Vec<u64>> {
        let with_files = self.connections.keys().filter(|id| !self.files.of(**id).is_empty());
        let guids = |id: u64| {
            let devices = self.host.devices_of(ClientId(id));
            let single = devices.into_iter().filter(|device| !device.kind.multipath);
            single.map(|device| device.node_guid).collect()
        };
        with_files.map(|&id| (id, guids(id))).collect()
    }

    fn tell_cm(&mut self, before: &BTreeMap<u64, Vec<u64>>) {
        let now = now();
        for (id, now_there) in self.devices_by_client() {
            let gone = before.get(&id).into_iter().flatten();
            for guid in gone.filter(|guid| !now_there.contains(guid)) {
                let client = ClientId(id);
                self.cm.handle_device_removal(now, client, guid.to_be_bytes(), &mut self.host);
            }
        }
        self.cm.handle_address_change(now, &mut self.host);
    }

    /// Sends the table to all event streams.
    pub(super) fn push_table(&mut self) {
        let push = encode_table(&self.host);
        for id in self.event_streams() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            self.counters.tables_pushed += 1;
            let result = connection.send_table(&push);
            self.check(id, result);
            self.watch_or_close(id);
        }
    }

    pub(super) fn event_streams(&self) -> Vec<u64> {
        let streams = self.connections.iter().filter(|(_, c)| c.role == Role::Events);
        streams.map(|(id, _)| *id).collect()
    }

    /// The event streams of a process: each of its engines has one.
    pub(super) fn streams_of(&self, pid: u32) -> Vec<u64> {
        let theirs = |(_, c): &(&u64, &Connection)| c.role == Role::Events && c.pid == pid;
        self.connections.iter().filter(theirs).map(|(id, _)| *id).collect()
    }

    /// Sends an event to all event streams.
    pub(super) fn push(&mut self, push: &Push) {
        let Ok(bytes) = message::encode(push) else { return };
        let bytes: Rc<[u8]> = bytes.into();
        for id in self.event_streams() {
            self.send(id, Rc::clone(&bytes), None);
        }
    }

    // The end of the broker

    fn watch_idleness(&mut self, now: Duration) {
        let used = self.is_used() || !self.orphans.is_empty();
        let idle = !used && self.cm.connection_count() == 0;
        self.idle_since = if idle { self.idle_since.or(Some(now)) } else { None };
    }

    fn is_used(&self) -> bool {
        self.connections.values().any(Connection::is_user)
    }

    /// Whether the broker has been idle for so long that it must end. A process that has just
    /// connected is accepted first. A process that connects later finds the connection closed
    /// before its first answer, and starts another broker.
    fn is_idle_for_good(&mut self, now: Duration) -> Result<bool, Error> {
        let Some((since, timeout)) = self.idle_since.zip(self.manner.idle_timeout) else {
            return Ok(false);
        };
        if now < since + timeout {
            return Ok(false);
        }
        self.accept()?;
        if self.is_used() {
            self.idle_since = None;
            return Ok(false);
        }
        log!("idle for {} s: ending", timeout.as_secs_f32());
        Ok(true)
    }

    /// Tells the keeper what it needs to take this broker's place. A keeper that is gone is
    /// replaced.
    pub(super) fn inform_keeper(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        let estate = Estate {
            slots: &self.slots,
            table: self.host.table(),
            manner: self.manner,
            files: &self.files,
            ledger: self.ledger.as_ref(),
        };
        if keeper.remember(estate).is_ok() {
            return;
        }
        log!("the keeper is gone; starting another");
        self.keeper = crate::start_keeper();
        if let Some(keeper) = &mut self.keeper
            && let Err(error) = keeper.remember(estate)
        {
            log!("telling the keeper: {error}");
            self.keeper = None;
        }
    }

    /// Tells all event streams, ends all connections of the CM, and releases the port before the
    /// name: a process that finds the name free must also find the port free.
    fn say_goodbye(mut self) {
        self.feed_watchers();
        self.push(&Push::Goodbye);
        let connections: Vec<u64> = self.connections.keys().copied().collect();
        connections.into_iter().for_each(|id| self.close(id));
        self.send_mads();
        let Self { slots, listener, spare, keeper, .. } = self;
        drop(slots);
        if let Some(keeper) = keeper {
            keeper.farewell();
        }
        drop(spare);
        drop(listener);
    }
}

fn token(kind: u64, number: u64) -> u64 {
    kind << KIND_SHIFT | number
}

/// The message with the current table.
fn encode_table(host: &Host) -> Rc<[u8]> {
    let push = Push::Table(Box::new(host.table().clone()));
    // The table's limits ensure that it always fits.
    message::encode(&push).unwrap_or_default().into()
}
