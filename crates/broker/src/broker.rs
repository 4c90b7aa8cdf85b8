//! The loop: one thread, one epoll set, everything by event or deadline.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use polypath_cm::{Cm, CmConfig, FileId};
use polypath_ipc::message::{self, MESSAGE_MAX, Push, Reply};
use polypath_ipc::socket;

use crate::connection::{Connection, Lost, Role};
use crate::drops::Counters;
use crate::files::{Delivery, Files};
use crate::gathering::Gatherings;
use crate::host::Host;
use crate::log::log;
use crate::qp1::{self, Qp1};
use crate::slots::Slots;
use crate::sys::epoll::{Epoll, Event, Interest};
use crate::sys::process::{Signals, now};
use crate::{Error, random};

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 1024;

/// Messages or packets taken from one descriptor before the others have their turn.
const TURN: usize = 32;

/// What a token of the epoll set means: its kind in the top byte.
const FIXED: u64 = 0;
const CONNECTION: u64 = 1;
const FILE: u64 = 2;
const KIND_SHIFT: u32 = 56;

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const NETLINK: u64 = 2;
const QP1: u64 = 3;

/// The broker's whole state.
pub(crate) struct Broker {
    epoll: Epoll,
    listener: OwnedFd,
    signals: Signals,
    pub(crate) slots: Slots,
    pub(crate) host: Host,
    pub(crate) cm: Cm,
    qp1: Qp1,
    pub(crate) connections: BTreeMap<u64, Connection>,
    last_connection: u64,
    pub(crate) files: Files,
    pub(crate) gatherings: Gatherings,
    pub(crate) counters: Counters,
    pub(crate) started: Duration,
    idle_timeout: Option<Duration>,
    /// Since when there is nothing to do.
    idle_since: Option<Duration>,
    /// Set by a request to end.
    pub(crate) ending: bool,
    /// What the log said last about MADs that could not be sent; the same is not said again.
    last_send_error: String,
    /// A descriptor to let go of when there are no others, so that who connects can be told.
    spare: Option<OwnedFd>,
    buffer: Box<[u8]>,
}

impl Broker {
    pub(crate) fn new(listener: OwnedFd, idle_timeout: Option<Duration>) -> Result<Self, Error> {
        let setup = |source| Error::Io { doing: "setting up", source };
        let slots = Slots::new(random())?;
        let spare = Some(listener.try_clone().map_err(setup)?);
        let broker = Self {
            epoll: Epoll::new().map_err(setup)?,
            listener,
            signals: Signals::new().map_err(setup)?,
            slots,
            host: Host::new().map_err(setup)?,
            cm: Cm::new(CmConfig::default(), random),
            qp1: Qp1::new(random).map_err(setup)?,
            connections: BTreeMap::new(),
            last_connection: 0,
            files: Files::default(),
            gatherings: Gatherings::default(),
            counters: Counters::default(),
            started: now(),
            idle_timeout,
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
        Ok(broker)
    }

    /// Runs until there is nothing more to do, or somebody ends it.
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
            self.pump();
            self.watch_idleness(now);
            if self.ending || self.is_idle_for_good(now)? {
                self.say_goodbye();
                return Ok(());
            }
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let idle = self.idle_since.zip(self.idle_timeout).map(|(since, timeout)| since + timeout);
        [idle, self.cm.next_deadline(), self.gatherings.next_deadline()].into_iter().flatten().min()
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
            (kind, _) => debug_assert!(false, "token of kind {kind}"),
        }
        Ok(ControlFlow::Continue(()))
    }

    // Connections

    /// Accepts whoever waits. Gives how many came.
    fn accept(&mut self) -> Result<(), Error> {
        for _ in 0..TURN {
            match socket::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => self.welcome(socket),
                Ok(None) => break,
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    if !self.refuse_for_want_of_descriptors(&error) {
                        break;
                    }
                }
                Err(source) => return Err(Error::Io { doing: "accepting a connection", source }),
            }
        }
        Ok(())
    }

    /// Tells one who waits that there are no descriptors left; to let it wait would mean to be
    /// woken for ever. False if not even that is possible.
    fn refuse_for_want_of_descriptors(&mut self, error: &io::Error) -> bool {
        self.spare = None;
        if let Ok(Some(socket)) = socket::accept(self.listener.as_fd()) {
            self.turn_away(&socket, libc::EMFILE, format!("the broker: {error}"));
        }
        self.spare = self.listener.try_clone().ok();
        self.spare.is_some()
    }

    fn turn_away(&mut self, socket: &OwnedFd, errno: i32, text: String) {
        log!("refusing a connection: {text}");
        self.counters.clients_refused += 1;
        if let Ok(bytes) = message::encode(&Reply::Error { errno, text }) {
            // It is closed anyway.
            let _ = socket::send(socket.as_fd(), &bytes, None);
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let (pid, user) = socket::peer(socket.as_fd()).unwrap_or((0, u32::MAX));
        let ours = socket::user_id();
        let refusal = if user != ours {
            Some((libc::EPERM, format!("process {pid} is user {user}'s, the broker user {ours}'s")))
        } else if self.connections.len() >= CONNECTIONS_MAX {
            Some((libc::EMFILE, format!("the broker has {CONNECTIONS_MAX} connections already")))
        } else {
            None
        };
        if let Some((errno, text)) = refusal {
            self.turn_away(&socket, errno, text);
            return;
        }
        self.last_connection += 1;
        let id = self.last_connection;
        if let Err(error) = self.epoll.add(socket.as_fd(), token(CONNECTION, id), Interest::Read) {
            log!("watching process {pid}: {error}");
            return;
        }
        self.counters.clients_accepted += 1;
        self.connections.insert(id, Connection::new(socket, pid));
    }

    fn handle_connection(&mut self, id: u64, event: Event) {
        if event.writable {
            self.flush(id);
        }
        if event.readable {
            self.read(id);
        } else if event.hung_up {
            self.close(id);
        }
        self.settle(id);
    }

    fn read(&mut self, id: u64) {
        for _ in 0..TURN {
            let Some(connection) = self.connections.get(&id) else { return };
            if connection.is_waiting() && connection.role != Role::Events {
                return;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let got = connection.receive(&mut buffer);
            match got {
                Ok(None) => {
                    self.buffer = buffer;
                    return;
                }
                Ok(Some(0)) => self.close(id),
                Ok(Some(len)) => self.take_message(id, &buffer[..len]),
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.reject_nonsense(id, "a message that is too long");
                }
                Err(_) => self.close(id),
            }
            self.buffer = buffer;
        }
    }

    fn take_message(&mut self, id: u64, bytes: &[u8]) {
        match message::decode(bytes) {
            Ok(request) => self.request(id, request),
            Err(_) => self.reject_nonsense(id, "a message that does not decode"),
        }
    }

    /// Answers nonsense, and closes the connection.
    pub(crate) fn reject_nonsense(&mut self, id: u64, what: &str) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        log!("process {} ({}) sent {what}", connection.pid, connection.program);
        self.counters.clients_nonsense += 1;
        self.refuse(id, libc::EPROTO, format!("the broker got {what}"));
        self.close(id);
    }

    fn flush(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let table = || encode_table(&self.host);
        let result = connection.flush(table);
        self.check(id, result);
    }

    /// After its turn: waits for the right thing, or closes it if it was to leave. What was sent to
    /// it stays readable.
    fn settle(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.role == Role::Leaving {
            self.close(id);
            return;
        }
        if let Some(interest) = connection.new_interest()
            && let Err(error) =
                self.epoll.change(connection.as_fd(), token(CONNECTION, id), interest)
        {
            log!("watching process {}: {error}", connection.pid);
            self.close(id);
        }
    }

    /// Sends a message to a connection; closes it if it can't take it.
    pub(crate) fn send(&mut self, id: u64, bytes: Rc<[u8]>, fd: Option<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let result = connection.send(bytes, fd);
        self.check(id, result);
        self.settle(id);
    }

    fn check(&mut self, id: u64, result: Result<(), Lost>) {
        match result {
            Ok(()) => {}
            Err(Lost::Gone) => self.close(id),
            Err(Lost::Slow) => {
                if let Some(connection) = self.connections.get(&id) {
                    let Connection { pid, program, .. } = connection;
                    log!("process {pid} ({program}) does not take its messages: disconnected");
                }
                self.counters.clients_slow += 1;
                self.close(id);
            }
        }
    }

    /// Ends a connection, and all that was opened through it.
    pub(crate) fn close(&mut self, id: u64) {
        if self.connections.remove(&id).is_none() {
            return;
        }
        for file in self.files.of(id) {
            self.close_file(file);
        }
        self.slots.close_all_of(id);
        self.gatherings.forget(id);
        if self.host.remove_client(polypath_cm::ClientId(id)) {
            self.push_table();
        }
    }

    // What the kernel says

    fn refresh(&mut self) {
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

    /// The devices of every process that has CM files.
    fn devices_by_client(&self) -> BTreeMap<u64, Vec<u64>> {
        let with_files = self.connections.keys().filter(|id| !self.files.of(**id).is_empty());
        let guids = |id: u64| {
            let devices = self.host.devices_of(polypath_cm::ClientId(id));
            devices.into_iter().map(|device| device.node_guid).collect()
        };
        with_files.map(|&id| (id, guids(id))).collect()
    }

    fn tell_cm(&mut self, before: &BTreeMap<u64, Vec<u64>>) {
        let now = now();
        for (id, now_there) in self.devices_by_client() {
            let gone = before.get(&id).into_iter().flatten();
            for guid in gone.filter(|guid| !now_there.contains(guid)) {
                let client = polypath_cm::ClientId(id);
                self.cm.handle_device_removal(now, client, guid.to_be_bytes(), &mut self.host);
            }
        }
        self.cm.handle_address_change(&mut self.host);
    }

    /// Pushes the table to all event streams.
    pub(crate) fn push_table(&mut self) {
        let push = encode_table(&self.host);
        for id in self.event_streams() {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            self.counters.tables_pushed += 1;
            let result = connection.send_table(&push);
            self.check(id, result);
            self.settle(id);
        }
    }

    pub(crate) fn event_streams(&self) -> Vec<u64> {
        let streams = self.connections.iter().filter(|(_, c)| c.role == Role::Events);
        streams.map(|(id, _)| *id).collect()
    }

    /// Sends an event to all event streams.
    pub(crate) fn push(&mut self, push: &Push) {
        let Ok(bytes) = message::encode(push) else { return };
        let bytes: Rc<[u8]> = bytes.into();
        for id in self.event_streams() {
            self.send(id, Rc::clone(&bytes), None);
        }
    }

    // The connection manager

    fn receive_mads(&mut self) {
        let mut buffer = [0; qp1::RECEIVE_LEN];
        for _ in 0..TURN {
            let datagram = match self.slots.own().receive(&mut buffer) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return,
                Err(error) => {
                    log!("receiving from QP1: {error}");
                    return;
                }
            };
            match qp1::parse(&datagram, &buffer) {
                Ok((from, mad)) => {
                    self.counters.mads_received += 1;
                    self.cm.handle_mad(now(), from, mad, &mut self.host);
                }
                Err(reason) => self.counters.count(reason),
            }
        }
    }

    /// Carries what the CM has to say to peers and applications, until it has no more: an event
    /// that finds its file closed makes new MADs.
    fn pump(&mut self) {
        loop {
            let mads = self.send_mads();
            let events = self.deliver_events();
            if !mads && !events {
                return;
            }
        }
    }

    /// True if there were any.
    fn send_mads(&mut self) -> bool {
        let mut any = false;
        while let Some(mad) = self.cm.poll_mad() {
            any = true;
            let through = qp1::through(&mad, self.host.has_address(mad.remote));
            match self.qp1.send(&mad, through) {
                Ok(()) => self.counters.mads_sent += 1,
                // The CM repeats what is not answered.
                Err(error) => {
                    self.counters.mads_send_failed += 1;
                    let (from, to) = (mad.local, mad.remote);
                    let text = format!("sending a CM message from {from} to {to}: {error}");
                    if text != self.last_send_error {
                        log!("{text}");
                        self.last_send_error = text;
                    }
                }
            }
        }
        any
    }

    /// True if there were any.
    fn deliver_events(&mut self) -> bool {
        let mut any = false;
        while !self.files.any_stuck() {
            let Some((file, event)) = self.cm.poll_event() else { return any };
            any = true;
            self.deliver(file, event);
        }
        for file in self.files.free() {
            while let Some(event) = self.cm.poll_event_of(file) {
                any = true;
                if self.deliver(file, event) != Delivery::Sent {
                    break;
                }
            }
        }
        any
    }

    fn deliver(&mut self, file: FileId, event: Vec<u8>) -> Delivery {
        let delivery = self.files.deliver(file, event);
        self.settle_file(file, delivery);
        delivery
    }

    fn handle_file(&mut self, id: u64, event: Event) {
        let Ok(number) = u32::try_from(id) else { return };
        let file = FileId(number);
        if event.hung_up {
            self.close_file(file);
        } else if event.writable {
            let delivery = self.files.retry(file);
            if delivery != Delivery::Stuck {
                self.watch_file(file, Interest::HangUp);
            }
            self.settle_file(file, delivery);
        }
    }

    fn settle_file(&mut self, file: FileId, delivery: Delivery) {
        match delivery {
            Delivery::Sent => {}
            Delivery::Stuck => self.watch_file(file, Interest::Write),
            Delivery::Gone => self.close_file(file),
        }
    }

    fn watch_file(&mut self, id: FileId, interest: Interest) {
        let Some(file) = self.files.get(id) else { return };
        if let Err(error) = self.epoll.change(file.as_fd(), token(FILE, id.0.into()), interest) {
            log!("watching a CM file: {error}");
            self.close_file(id);
        }
    }

    /// Opens a CM file for a connection.
    pub(crate) fn open_file(&mut self, connection: u64) -> io::Result<(FileId, OwnedFd)> {
        let (id, theirs) = self.files.open(connection)?;
        if let Some(file) = self.files.get(id)
            && let Err(error) =
                self.epoll.add(file.as_fd(), token(FILE, id.0.into()), Interest::HangUp)
        {
            self.files.remove(id);
            return Err(error);
        }
        self.cm.open_file(id, polypath_cm::ClientId(connection));
        Ok((id, theirs))
    }

    /// Closes a CM file; its connections are taken down.
    pub(crate) fn close_file(&mut self, id: FileId) {
        if self.files.remove(id).is_some() {
            self.cm.close_file(now(), id, &mut self.host);
        }
    }

    // The end

    fn watch_idleness(&mut self, now: Duration) {
        let idle = self.connections.is_empty() && self.cm.connection_count() == 0;
        self.idle_since = if idle { self.idle_since.or(Some(now)) } else { None };
    }

    /// Whether it is time to go. Who connected just now is accepted first; who connects later than
    /// that finds the connection closed before its first answer, and starts another broker.
    fn is_idle_for_good(&mut self, now: Duration) -> Result<bool, Error> {
        let Some((since, timeout)) = self.idle_since.zip(self.idle_timeout) else {
            return Ok(false);
        };
        if now < since + timeout {
            return Ok(false);
        }
        self.accept()?;
        if !self.connections.is_empty() {
            self.idle_since = None;
            return Ok(false);
        }
        log!("idle for {} s: ending", timeout.as_secs_f32());
        Ok(true)
    }

    /// Tells all event streams, takes all connections of the CM down, and lets go of the port
    /// before the name: who finds the name free must find the port free.
    fn say_goodbye(mut self) {
        self.push(&Push::Goodbye);
        let connections: Vec<u64> = self.connections.keys().copied().collect();
        connections.into_iter().for_each(|id| self.close(id));
        self.send_mads();
        let Self { slots, listener, spare, .. } = self;
        drop(slots);
        drop(spare);
        drop(listener);
    }
}

fn token(kind: u64, number: u64) -> u64 {
    kind << KIND_SHIFT | number
}

/// The message with the table as it is now.
fn encode_table(host: &Host) -> Rc<[u8]> {
    let push = Push::Table(Box::new(host.table().clone()));
    // The limits of the table are such that it always fits.
    message::encode(&push).unwrap_or_default().into()
}
