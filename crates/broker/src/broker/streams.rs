//! TCP streams between lanes of two hosts. The broker makes the connections, and gives each to its lane's
//! process; then nothing of it passes through the broker.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use polypath_ipc::message::{self, Ends, Push, Reply};

use super::requests::{Answer, Refusal, reply};
use super::{Broker, LISTENER_TCP, STREAM, TURN, token};
use crate::log::log;
use crate::mad_streams::BROKER;
use crate::slots::NOBODY;
use crate::streams::{
    CALLS_MAX, Callable, Called, PATIENCE, PORTS_MAX, Preamble, WAITING_MAX, preamble,
};
use crate::sys::epoll::Interest;
use crate::sys::process::now;
use crate::sys::tcp;

/// All that has to do with TCP streams that are not with their processes yet.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) callable: Callable,
    /// By port.
    listeners: BTreeMap<u16, OwnedFd>,
    /// Connections that are being made, by number: later ones have larger numbers.
    young: BTreeMap<u64, Young>,
    last: u64,
}

/// A connection that is not a stream yet.
#[derive(Debug)]
struct Young {
    socket: OwnedFd,
    until: Duration,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Another host called, on this port.
    Called { port: u16, preamble: Box<Preamble> },
    /// A lane of ours calls.
    Calling { pid: u32, slot: u8, ends: Ends, preamble: Vec<u8> },
}

impl Streams {
    /// When the next connection has taken too long.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.young.values().map(|young| young.until).min()
    }

    /// The calls whose preamble has not come, the oldest first.
    fn waiting(&self) -> Vec<u64> {
        let called = |(number, young): (&u64, &Young)| {
            matches!(young.stage, Stage::Called { .. }).then_some(*number)
        };
        self.young.iter().filter_map(called).collect()
    }

    /// The number of the next connection.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn add(&mut self, number: u64, socket: OwnedFd, stage: Stage) {
        self.young.insert(number, Young { socket, until: now() + PATIENCE, stage });
    }
}

impl Broker {
    /// Lets other hosts call a lane.
    pub(super) fn accept_streams(&mut self, id: u64, slot: u8, port: u16) -> Answer {
        self.own_slot(id, slot)?;
        if port == 0 {
            return Err(Refusal::new(libc::EINVAL, "there is no TCP port 0"));
        }
        self.listen_by_tcp(port)?;
        self.streams.callable.add(slot, id, port);
        reply(Reply::Done)
    }

    /// Listens on a port, if it is not done already.
    pub(super) fn listen_by_tcp(&mut self, port: u16) -> Result<(), Refusal> {
        if self.streams.listeners.contains_key(&port) {
            return Ok(());
        }
        if self.streams.listeners.len() >= PORTS_MAX {
            let text = format!("the broker listens on {PORTS_MAX} TCP ports already");
            return Err(Refusal::new(libc::EDQUOT, text));
        }
        let failed = |error| Refusal::of(&format!("listening on TCP port {port}"), &error);
        let listener = tcp::listen(port).map_err(failed)?;
        let number = token(LISTENER_TCP, port.into());
        self.epoll.add(listener.as_fd(), number, Interest::Read).map_err(failed)?;
        self.streams.listeners.insert(port, listener);
        log!("listening on TCP port {port}");
        Ok(())
    }

    fn own_slot(&self, id: u64, slot: u8) -> Result<u32, Refusal> {
        let own = self.slots.owner(slot).filter(|owner| owner.connection == id);
        own.map(|owner| owner.pid)
            .ok_or_else(|| Refusal::new(libc::EBADF, format!("slot {slot} is not yours")))
    }

    /// Calls a lane of another host for one of the client's.
    pub(super) fn open_stream(
        &mut self,
        id: u64,
        slot: u8,
        ends: Ends,
        port: u16,
        opening: &[u8],
    ) -> Answer {
        let pid = self.own_slot(id, slot)?;
        let invalid = || Refusal::new(libc::EINVAL, "no such packet can open a stream");
        let preamble = preamble(ends.slot, slot, opening).ok_or_else(invalid)?;
        let of_process = |young: &&Young| match young.stage {
            Stage::Calling { pid: of, .. } => of == pid,
            Stage::Called { .. } => false,
        };
        if self.streams.young.values().filter(of_process).count() >= CALLS_MAX {
            let text = format!("process {pid} is making {CALLS_MAX} TCP connections already");
            return Err(Refusal::new(libc::EDQUOT, text));
        }
        let Ends { local, remote, .. } = ends;
        let failed =
            |error| Refusal::of(&format!("connecting to {remote}, TCP port {port}"), &error);
        let scope = self.host.ifindex_of(local);
        let socket = tcp::connect(local, remote, port, scope).map_err(failed)?;
        let number = self.streams.next_number();
        let watched = self.epoll.add(socket.as_fd(), token(STREAM, number), Interest::Write);
        watched.map_err(failed)?;
        self.streams.add(number, socket, Stage::Calling { pid, slot, ends, preamble });
        reply(Reply::Done)
    }

    /// Takes connections of other hosts.
    pub(super) fn take_calls(&mut self, port: u16) {
        for _ in 0..TURN {
            let Some(listener) = self.streams.listeners.get(&port) else { return };
            let socket = match tcp::accept(listener) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(error) => {
                    // Such as EMFILE. Callers that wait make room. If there are none, the port is given up,
                    // because the connection would wake the broker again and again.
                    log!("accepting a connection on TCP port {port}: {error}");
                    let waiting = self.streams.waiting();
                    if waiting.is_empty() {
                        self.streams.listeners.remove(&port);
                    }
                    waiting.into_iter().for_each(|number| self.refuse_call(number));
                    return;
                }
            };
            if let [oldest, rest @ ..] = &self.streams.waiting()[..]
                && rest.len() + 1 >= WAITING_MAX
            {
                self.refuse_call(*oldest);
            }
            let number = self.streams.next_number();
            let watched = self.epoll.add(socket.as_fd(), token(STREAM, number), Interest::Read);
            if watched.is_ok() {
                let preamble = Box::new(Preamble::new());
                self.streams.add(number, socket, Stage::Called { port, preamble });
            }
        }
    }

    fn refuse_call(&mut self, number: u64) {
        if self.streams.young.remove(&number).is_some() {
            self.counters.streams_refused += 1;
        }
    }

    /// Something happened to a connection that is not a stream yet.
    pub(super) fn stream_event(&mut self, number: u64) {
        if self.mads.has(number) {
            return self.mad_stream_event(number);
        }
        let Some(young) = self.streams.young.get_mut(&number) else { return };
        match &mut young.stage {
            Stage::Called { preamble, .. } => match read_on(&young.socket, preamble) {
                Ok(None) => {}
                Ok(Some(called)) => self.connect_through(number, called),
                Err(_) => self.refuse_call(number),
            },
            Stage::Calling { preamble, .. } => {
                let done = tcp::connected(&young.socket)
                    .and_then(|()| tcp::send_all(&young.socket, preamble));
                self.call_ended(number, &done);
            }
        }
    }

    /// Gives the called lane its end.
    fn connect_through(&mut self, number: u64, called: Called) {
        if called.slot == BROKER {
            return self.connect_to_broker(number, &called);
        }
        self.forget_callable();
        let Called { slot, by, opening } = called;
        let Some(Young { socket, stage: Stage::Called { port, .. }, .. }) =
            self.streams.young.get(&number)
        else {
            return;
        };
        let owner = self.slots.owner(slot).filter(|owner| owner.connection != NOBODY);
        let owner = owner.filter(|_| self.streams.callable.has(slot, *port));
        let (Some(owner), Ok((local, remote))) = (owner, tcp::ends(socket)) else {
            return self.refuse_call(number);
        };
        let Some(young) = self.streams.young.remove(&number) else { return };
        let ends = Ends { local, remote, slot: by };
        if self.hand_over(owner.pid, slot, ends, Some(opening), &young.socket) {
            self.counters.streams_accepted += 1;
        } else {
            self.counters.streams_refused += 1;
        }
    }

    /// Another host's broker calls this one.
    fn connect_to_broker(&mut self, number: u64, called: &Called) {
        let Some(young) = self.streams.young.remove(&number) else { return };
        let Stage::Called { port, .. } = young.stage else { return };
        if !self.take_mad_stream(number, young.socket, port, called) {
            self.counters.streams_refused += 1;
        }
    }

    /// Gives the calling lane its end, or forgets the call.
    fn call_ended(&mut self, number: u64, done: &io::Result<()>) {
        let Some(young) = self.streams.young.remove(&number) else { return };
        let Stage::Calling { pid, slot, ends, .. } = young.stage else { return };
        let made = done.is_ok() && self.hand_over(pid, slot, ends, None, &young.socket);
        if !made {
            self.counters.streams_failed += 1;
        }
    }

    /// Gives a lane's process a stream. Returns false if there is no such process.
    fn hand_over(
        &mut self,
        pid: u32,
        slot: u8,
        ends: Ends,
        opening: Option<Vec<u8>>,
        socket: &OwnedFd,
    ) -> bool {
        // Processes of other pid namespaces all have the number 0, and can't be told apart.
        if pid == 0 || self.slots.owner(slot).is_none_or(|owner| owner.pid != pid) {
            return false;
        }
        // The stream's events, of which there are many, are its process's business from now on.
        if let Err(error) = self.epoll.remove(socket.as_fd()) {
            log!("giving process {pid} a TCP stream: {error}");
            return false;
        }
        // Engines that do not have the lane close their copy.
        let streams = self.streams_of(pid);
        let Ok(bytes) = message::encode(&Push::Stream { slot, ends, opening }) else {
            return false;
        };
        let bytes: Rc<[u8]> = bytes.into();
        let mut given = false;
        for stream in streams {
            let Ok(end) = socket.try_clone() else { continue };
            self.send(stream, Rc::clone(&bytes), Some(end));
            given = true;
        }
        given
    }

    fn forget_callable(&mut self) {
        let Self { streams, slots, .. } = self;
        streams.callable.retain(|slot| slots.owner(slot).map(|owner| owner.connection));
    }

    /// Ends what has taken too long, and closes ports that nobody needs any more.
    pub(super) fn tend_streams(&mut self, now: Duration) {
        let late = |(number, young): (&u64, &Young)| (young.until <= now).then_some(*number);
        let late: Vec<u64> = self.streams.young.iter().filter_map(late).collect();
        for number in late {
            match self.streams.young.get(&number).map(|young| &young.stage) {
                Some(Stage::Calling { .. }) => {
                    self.call_ended(number, &Err(io::ErrorKind::TimedOut.into()));
                }
                _ => self.refuse_call(number),
            }
        }
        if self.streams.listeners.is_empty() {
            return;
        }
        self.forget_callable();
        let Streams { callable, listeners, .. } = &mut self.streams;
        listeners.retain(|port, _| callable.needs(*port));
    }
}

/// Reads more of a preamble. What it says; `None` if something is missing.
fn read_on(socket: &OwnedFd, preamble: &mut Preamble) -> io::Result<Option<Called>> {
    loop {
        match preamble.read() {
            Ok(None) => {}
            Ok(called) => return Ok(called),
            Err(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
        match tcp::receive(socket, preamble.room())? {
            None => return Ok(None),
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => preamble.arrived(len),
        }
    }
}
