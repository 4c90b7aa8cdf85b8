//! The process's end of a connection to the broker.

mod cm;
mod end;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polypath_telemetry::Occurrence;
use polypath_topology::{Bonding, PathSelector, RuleScope, Selection, Table};
use rustix::event::PollFlags;

use crate::error::IpcError;
use crate::lacp::LacpPort;
use crate::message::{
    self, Ends, Hello, MESSAGE_MAX, Ping, PingAnswer, Push, Reply, Request, Scope,
};
use crate::migration::PathNews;
use crate::socket;
use crate::start;
use crate::status::{BrokerStatus, ProcessStatus, Status};

pub use cm::CmFile;
pub use end::HangUp;

/// The number of attempts if a broker is just ending, or two are started at once. Each attempt
/// starts a process, so attempts are milliseconds apart.
const ROUNDS: u32 = 16;

/// How long a broker may take to answer a hello. It does nothing but answer, so a longer time shows one that
/// does not run.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// A control connection to the broker: each request has one answer.
///
/// The broker closes everything that was opened through the connection (lanes, CM files) when this
/// is dropped. A child after `fork()` must not use it: every call then returns
/// [`IpcError::Forked`]. Further connections of the same process should introduce themselves with
/// [`Client::hello`], so that they refer to the same devices.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    owner: u32,
    hello: Hello,
    selection: Selection,
    broker_pid: u32,
    buffer: Box<[u8]>,
}

/// The last slot. 255 is the top byte of the multicast QPN.
pub const SLOT_MAX: u8 = 254;

/// A slot, and the socket that receives packets for its QPNs.
#[derive(Debug)]
pub struct Lane {
    /// The slot, 1..=254: the top byte of all QPNs of the lane.
    pub slot: u8,
    /// UDP socket on `[::]:4791`, dual-stack, for receiving only.
    pub socket: OwnedFd,
    /// The size of its receive buffer in bytes, as the kernel counts it.
    pub receive_buffer: u32,
}

impl Client {
    /// Connects to the running broker.
    ///
    /// # Errors
    /// [`IpcError::NoBroker`] if none runs; otherwise the reason, including the broker's.
    pub fn connect(hello: &Hello) -> Result<Self, IpcError> {
        Self::connect_to(socket::user_id(), hello)
    }

    /// Connects to the running broker of a user. Root may query every user's broker
    /// ([`status`](Self::status), [`table`](Self::table)), other users only their own.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub fn connect_to(user: u32, hello: &Hello) -> Result<Self, IpcError> {
        Self::connect_within(HELLO_PATIENCE, user, hello)
    }

    /// Connects to the running broker of a user if it answers within this time.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect); [`IpcError::Silent`] if it does not.
    pub fn connect_within(patience: Duration, user: u32, hello: &Hello) -> Result<Self, IpcError> {
        let socket = socket::connect(user)?;
        let mut client = Self {
            socket,
            owner: std::process::id(),
            hello: hello.clone(),
            selection: Selection::parse(&hello.selection)?,
            broker_pid: 0,
            buffer: vec![0; MESSAGE_MAX].into_boxed_slice(),
        };
        client.send(&Request::Hello(hello.clone()))?;
        client.await_answer(patience)?;
        match client.receive()?.0 {
            Reply::Hello { version, pid, .. } if version != hello.version => {
                Err(IpcError::Version { ours: hello.version, theirs: version, pid })
            }
            Reply::Hello { pid, selection, .. } => {
                client.selection = Selection::parse(&selection)?;
                client.hello.selection = selection;
                client.broker_pid = pid;
                Ok(client)
            }
            _ => Err(UNEXPECTED),
        }
    }

    /// Connects to the broker, and starts one if none runs (the crate's `start` module says where
    /// its program is searched).
    ///
    /// # Errors
    /// [`IpcError::Start`] if it could not be started; otherwise those of
    /// [`connect`](Self::connect).
    pub fn connect_or_start(hello: &Hello) -> Result<Self, IpcError> {
        Self::begin(hello, Ok)
    }

    /// Does the same as [`connect_or_start`](Self::connect_or_start), and makes the first calls of
    /// the new connection. If the broker ends before it has answered them, they are made again to
    /// the next broker: a program that starts at that moment does not notice.
    ///
    /// # Errors
    /// Those of [`connect_or_start`](Self::connect_or_start) and of the calls.
    pub fn begin<T>(
        hello: &Hello,
        mut first: impl FnMut(Self) -> Result<T, IpcError>,
    ) -> Result<T, IpcError> {
        let mut last = IpcError::NoBroker;
        for _ in 0..ROUNDS {
            match Self::connect(hello).and_then(&mut first) {
                Err(IpcError::NoBroker) => start::broker()?,
                Err(IpcError::Closed) => last = IpcError::Closed,
                other => return other,
            }
        }
        Err(last)
    }

    /// Does the same as [`connect_or_start`](Self::connect_or_start), and gets the
    /// [`table`](Self::table).
    ///
    /// # Errors
    /// Those of both.
    pub fn begin_with_table(hello: &Hello) -> Result<(Self, Table), IpcError> {
        Self::begin(hello, |mut client| client.table().map(|table| (client, table)))
    }

    /// The hello of this connection, with the resolved selection.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The resolved device selection: it names a kind of device.
    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The broker's process id.
    #[must_use]
    pub fn broker_pid(&self) -> u32 {
        self.broker_pid
    }

    /// Sends a request and waits for its answer. [`Reply::Error`] is returned as
    /// [`IpcError::Refused`].
    ///
    /// # Errors
    /// [`IpcError`]. After any error but [`IpcError::Refused`] the connection is unusable.
    pub fn call(&mut self, request: &Request) -> Result<Reply, IpcError> {
        self.call_with_fd(request).map(|(reply, _)| reply)
    }

    /// Does the same as [`call`](Self::call), and returns the descriptor that came with the answer.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    fn call_with_fd(&mut self, request: &Request) -> Result<(Reply, Option<OwnedFd>), IpcError> {
        self.send(request)?;
        self.receive()
    }

    fn send(&self, request: &Request) -> Result<(), IpcError> {
        self.send_with_fd(request, None)
    }

    fn send_with_fd(&self, request: &Request, fd: Option<BorrowedFd<'_>>) -> Result<(), IpcError> {
        if std::process::id() != self.owner {
            return Err(IpcError::Forked);
        }
        let bytes = message::encode(request)?;
        socket::send(self.socket.as_fd(), &bytes, fd).map_err(|e| io_error("sending", e))
    }

    fn receive(&mut self) -> Result<(Reply, Option<OwnedFd>), IpcError> {
        let got = socket::receive(self.socket.as_fd(), &mut self.buffer)
            .map_err(|e| io_error("waiting for the broker's answer", e))?;
        if got.len == 0 {
            return Err(IpcError::Closed);
        }
        if got.fd_lost {
            let source = io::Error::from_raw_os_error(libc::EMFILE);
            return Err(IpcError::Io { doing: "taking a descriptor from the broker", source });
        }
        match message::decode(&self.buffer[..got.len])? {
            Reply::Error { errno, text } => Err(IpcError::Refused { errno, text }),
            reply => Ok((reply, got.fd)),
        }
    }

    /// Waits until there is an answer.
    fn await_answer(&self, patience: Duration) -> Result<(), IpcError> {
        let ready = socket::wait_for(self.socket.as_fd(), PollFlags::IN, Some(patience));
        match ready {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let pid = socket::peer(self.socket.as_fd()).map_or(0, |(pid, _)| pid);
                Err(IpcError::Silent { pid })
            }
            other => other.map_err(|e| io_error("waiting for the broker's answer", e)),
        }
    }

    fn done(&mut self, request: &Request) -> Result<(), IpcError> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    /// The current interfaces and addresses.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn table(&mut self) -> Result<Table, IpcError> {
        match self.call(&Request::GetTable)? {
            Reply::Table(table) => Ok(*table),
            _ => Err(UNEXPECTED),
        }
    }

    /// Opens a lane.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `ENOSPC` if all 254 slots are taken.
    pub fn open_lane(&mut self) -> Result<Lane, IpcError> {
        self.lane(None)
    }

    /// Opens a lane on this slot.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EADDRINUSE` if the slot is taken, `EINVAL` if there is no
    /// such slot.
    pub fn open_lane_on(&mut self, slot: u8) -> Result<Lane, IpcError> {
        self.lane(Some(slot))
    }

    fn lane(&mut self, slot: Option<u8>) -> Result<Lane, IpcError> {
        match self.call_with_fd(&Request::OpenLane { slot })? {
            (Reply::Lane { slot, receive_buffer }, Some(socket)) => {
                Ok(Lane { slot, socket, receive_buffer })
            }
            _ => Err(UNEXPECTED),
        }
    }

    /// Tells a broker that has taken a killed one's place which slots this process has. From now on
    /// they belong to this connection.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EBADF` if one of them is not this process's.
    pub fn resume(&mut self, slots: &[u8]) -> Result<(), IpcError> {
        self.done(&Request::Resume { slots: slots.to_vec() })
    }

    /// Gives a lane's slot back. Close the socket first.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn close_lane(&mut self, slot: u8) -> Result<(), IpcError> {
        self.done(&Request::CloseLane { slot })
    }

    /// Opens a channel between a lane of this process and another one of this host. Returns this end of it: a
    /// socket, in which a message with the memory waits.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); see [`Request::OpenChannel`].
    pub fn open_channel(&mut self, slot: u8, to: u8) -> Result<OwnedFd, IpcError> {
        match self.call_with_fd(&Request::OpenChannel { slot, to })? {
            (Reply::Channel, Some(end)) => Ok(end),
            _ => Err(UNEXPECTED),
        }
    }

    /// Lets other hosts' lanes open TCP streams to a lane of this process.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); see [`Request::AcceptStreams`].
    pub fn accept_streams(&mut self, slot: u8, port: u16) -> Result<(), IpcError> {
        self.done(&Request::AcceptStreams { slot, port })
    }

    /// Asks for a TCP stream from a lane of this process to a lane of another host, which comes as a
    /// [`Push::Stream`].
    ///
    /// # Errors
    /// Those of [`call`](Self::call); see [`Request::OpenStream`].
    pub fn open_stream(
        &mut self,
        slot: u8,
        ends: Ends,
        port: u16,
        opening: Vec<u8>,
    ) -> Result<(), IpcError> {
        self.done(&Request::OpenStream { slot, ends, port, opening })
    }

    /// Takes paths down or up by hand.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn set_path(&mut self, selector: PathSelector, up: bool) -> Result<(), IpcError> {
        self.done(&Request::Path { selector, up })
    }

    /// Sets how mp devices use their paths, or takes that back.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `ESRCH` if there is no such process or queue pair.
    pub fn set_rule(
        &mut self,
        scope: RuleScope,
        settings: Option<Bonding>,
    ) -> Result<(), IpcError> {
        self.done(&Request::SetRule { scope, settings })
    }

    /// Says how interfaces speak LACP, and whether that lets them carry traffic, until the connection ends.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn set_lacp(&mut self, ports: Vec<LacpPort>) -> Result<(), IpcError> {
        self.done(&Request::Lacp { ports })
    }

    /// Lets the broker read the configuration file again.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EINVAL` if the file has a mistake. The text names its line.
    pub fn reload_config(&mut self) -> Result<(), IpcError> {
        self.done(&Request::ReloadConfig)
    }

    /// Sends a ping to another host, and waits for the result.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EBUSY` if there are too many pings at once.
    pub fn ping(&mut self, ping: Ping) -> Result<PingAnswer, IpcError> {
        match self.call(&Request::PingHost(ping))? {
            Reply::Ping(answer) => Ok(answer),
            _ => Err(UNEXPECTED),
        }
    }

    /// Takes a process off this host: see [`Request::Move`]. Returns when that is done.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `ESRCH` if there is no such process, `EBUSY` if it has ids of the
    /// connection manager and `force` is not set.
    pub fn take_off(&mut self, pid: u32, within: Duration, force: bool) -> Result<(), IpcError> {
        let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
        self.done(&Request::Move { pid, within_ms, force })
    }

    /// Ends the broker.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); `EBUSY` if it is in use and `force` is not set.
    pub fn shutdown(&mut self, force: bool) -> Result<(), IpcError> {
        self.done(&Request::Shutdown { force })
    }

    /// Asks the broker and all its processes for their status.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn status(&mut self) -> Result<Status, IpcError> {
        self.gather(Scope::All)
    }

    /// Asks the broker and all its processes for their traffic only: a status with
    /// [`Scope::Traffic`].
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn traffic(&mut self) -> Result<Status, IpcError> {
        self.gather(Scope::Traffic)
    }

    fn gather(&mut self, scope: Scope) -> Result<Status, IpcError> {
        self.send(&Request::Status { scope })?;
        let mut broker = BrokerStatus::default();
        let mut processes: Vec<ProcessStatus> = Vec::new();
        loop {
            match self.receive()?.0 {
                Reply::Status(part) => broker.append(*part),
                Reply::ProcessStatus(part) => {
                    match processes.iter_mut().find(|known| known.pid == part.pid) {
                        Some(known) => known.append(*part),
                        None => processes.push(*part),
                    }
                }
                Reply::StatusEnd { silent } => {
                    return Ok(Status { broker, processes, silent });
                }
                _ => return Err(UNEXPECTED),
            }
        }
    }

    /// Turns this connection into an event stream. Also returns the current table.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn subscribe(mut self) -> Result<(EventStream, Table), IpcError> {
        let Reply::Table(table) = self.call(&Request::Subscribe)? else {
            return Err(UNEXPECTED);
        };
        Ok((self.into_stream()?, *table))
    }

    /// Turns this connection into one that receives the events of all processes, as
    /// [`Push::Events`]. If `past` is set, recent events come first.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn watch(mut self, past: bool) -> Result<EventStream, IpcError> {
        self.done(&Request::Watch { past })?;
        self.into_stream()
    }

    fn into_stream(self) -> Result<EventStream, IpcError> {
        let Self { socket, owner, buffer, .. } = self;
        socket::set_nonblocking(socket.as_fd())
            .map_err(|e| io_error("preparing the event stream", e))?;
        Ok(EventStream { socket, owner, buffer, fd: None })
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const UNEXPECTED: IpcError = IpcError::Protocol("it answers another question");

fn io_error(doing: &'static str, source: io::Error) -> IpcError {
    match source.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET) => IpcError::Closed,
        _ => IpcError::Io { doing, source },
    }
}

/// The broker's notifications: use [`wait_event`](Self::wait_event) in a thread that does nothing
/// else, or [`next_event`](Self::next_event) whenever [`as_fd`](AsFd::as_fd) is readable.
#[derive(Debug)]
pub struct EventStream {
    socket: OwnedFd,
    owner: u32,
    buffer: Box<[u8]>,
    /// What came with the last event.
    fd: Option<OwnedFd>,
}

impl EventStream {
    /// The next event; `None` if there is none now.
    ///
    /// # Errors
    /// [`IpcError::Closed`] if the broker is gone; otherwise those of [`Client::call`].
    pub fn next_event(&mut self) -> Result<Option<Push>, IpcError> {
        if std::process::id() != self.owner {
            return Err(IpcError::Forked);
        }
        let got = match socket::receive(self.socket.as_fd(), &mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            other => other.map_err(|e| io_error("reading the broker's events", e))?,
        };
        if got.len == 0 {
            return Err(IpcError::Closed);
        }
        self.fd = got.fd;
        message::decode(&self.buffer[..got.len]).map(Some)
    }

    /// The descriptor that came with the last event.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// Those of [`next_event`](Self::next_event).
    pub fn wait_event(&mut self) -> Result<Push, IpcError> {
        loop {
            if let Some(push) = self.next_event()? {
                return Ok(push);
            }
            socket::wait_for(self.socket.as_fd(), PollFlags::IN, None)
                .map_err(|e| io_error("waiting for the broker's events", e))?;
        }
    }

    /// A handle that ends the stream from another thread. A thread that waits for the stream then
    /// gets [`IpcError::Closed`].
    ///
    /// # Errors
    /// [`IpcError::Io`] if the process has no descriptors left.
    pub fn hang_up(&self) -> Result<HangUp, IpcError> {
        HangUp::of(self.socket.as_fd())
    }

    /// Waits for the next event. Returns `None` when `other` is readable or, if `to_tell` is set,
    /// when [`tell`](Self::tell) has room again.
    ///
    /// # Errors
    /// Those of [`next_event`](Self::next_event).
    pub fn wait_event_or(
        &mut self,
        other: BorrowedFd<'_>,
        to_tell: bool,
    ) -> Result<Option<Push>, IpcError> {
        loop {
            if let Some(push) = self.next_event()? {
                return Ok(Some(push));
            }
            let called = socket::wait_for_call(self.socket.as_fd(), to_tell, other)
                .map_err(|e| io_error("waiting for the broker's events", e))?;
            if called {
                return self.next_event();
            }
        }
    }

    /// Tells the broker what happened in this process: at most [`TOLD_MAX`](message::TOLD_MAX)
    /// events, and how many were lost before them. It never waits, and returns false if there is no
    /// room now.
    ///
    /// # Errors
    /// [`IpcError`].
    pub fn tell(&mut self, lost: u64, events: &[Occurrence]) -> Result<bool, IpcError> {
        self.tell_now(&Request::Events { lost, events: events.to_vec() })
    }

    /// Tells the broker what happened to the paths of queue pairs. Returns false if it has no room now.
    ///
    /// # Errors
    /// [`IpcError`].
    pub fn tell_paths(&mut self, news: &[PathNews]) -> Result<bool, IpcError> {
        self.tell_now(&Request::Paths { news: news.to_vec() })
    }

    fn tell_now(&mut self, request: &Request) -> Result<bool, IpcError> {
        if std::process::id() != self.owner {
            return Err(IpcError::Forked);
        }
        let bytes = message::encode(request)?;
        match socket::send(self.socket.as_fd(), &bytes, None) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(io_error("telling the broker what happened", error)),
        }
    }

    /// Answers [`Push::StatusRequest`] in as many parts as necessary.
    ///
    /// # Errors
    /// [`IpcError`]; `EAGAIN` if the broker does not take the parts fast enough.
    pub fn report(&mut self, id: u64, status: ProcessStatus) -> Result<(), IpcError> {
        let mut parts = status.into_parts().into_iter().peekable();
        while let Some(status) = parts.next() {
            let more = parts.peek().is_some();
            let report = Request::StatusReport { id, more, status: Box::new(status) };
            let bytes = message::encode(&report)?;
            self.send_patiently(&bytes)?;
        }
        Ok(())
    }

    fn send_patiently(&self, bytes: &[u8]) -> Result<(), IpcError> {
        loop {
            match socket::send(self.socket.as_fd(), bytes, None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    socket::wait_for(self.socket.as_fd(), PollFlags::OUT, Some(REPORT_PATIENCE))
                        .map_err(|e| io_error("reporting to the broker", e))?;
                }
                other => return other.map_err(|e| io_error("reporting to the broker", e)),
            }
        }
    }
}

/// How long a report waits until the broker takes its next part.
const REPORT_PATIENCE: Duration = Duration::from_millis(200);

impl AsFd for EventStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
