//! Clients: accepts them, reads their messages, answers within limits, and disconnects them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use polypath_cm::ClientId;
use polypath_ipc::message::{self, Reply};
use polypath_ipc::socket;

use super::{Broker, CONNECTION, CONNECTIONS_MAX, TURN, encode_table, token};
use crate::Error;
use crate::connection::{Connection, Lost, Role};
use crate::log::log;
use crate::sys::epoll::{Event, Interest};

/// The user who may read every broker's status.
const ROOT: u32 = 0;

impl Broker {
    /// Accepts the connections that wait.
    pub(super) fn accept(&mut self) -> Result<(), Error> {
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

    /// Tells a waiting client that there are no descriptors left. If it was left waiting, the
    /// broker would be woken again and again. Returns false if even this is impossible.
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
            // The connection is closed in any case.
            let _ = socket::send(socket.as_fd(), &bytes, None);
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let (pid, user) = socket::peer(socket.as_fd()).unwrap_or((0, u32::MAX));
        let ours = socket::user_id();
        let guest = user != ours;
        let refusal = if guest && user != ROOT {
            Some((
                libc::EPERM,
                format!("process {pid} belongs to user {user}, the broker to user {ours}"),
            ))
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
        let mut connection = Connection::new(socket, pid);
        connection.guest = guest;
        self.connections.insert(id, connection);
    }

    /// The process of a connection, 0 if it is not visible from here.
    pub(super) fn pid_of(&self, id: u64) -> u32 {
        self.connections.get(&id).map_or(0, |c| c.pid)
    }

    pub(super) fn handle_connection(&mut self, id: u64, event: Event) {
        if event.writable {
            self.flush(id);
        }
        if event.readable {
            self.read(id);
        } else if event.hung_up {
            self.close(id);
        }
        self.watch_or_close(id);
    }

    fn read(&mut self, id: u64) {
        for _ in 0..TURN {
            let Some(connection) = self.connections.get_mut(&id) else { return };
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

    /// Answers an invalid message, and closes the connection.
    pub(super) fn reject_nonsense(&mut self, id: u64, what: &str) {
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
        connection.news_due = false;
        let watches = connection.role == Role::Watching;
        self.check(id, result);
        if watches {
            self.feed(id);
        }
    }

    /// Ends a connection's turn: registers the events that it now waits for, or closes it if it is
    /// leaving. Messages that were sent to it stay readable.
    pub(super) fn watch_or_close(&mut self, id: u64) {
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

    /// Sends a message to a connection, and closes it if the message cannot be sent.
    pub(super) fn send(&mut self, id: u64, bytes: Rc<[u8]>, fd: Option<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let result = connection.send(bytes, fd);
        self.check(id, result);
        self.watch_or_close(id);
    }

    pub(super) fn check(&mut self, id: u64, result: Result<(), Lost>) {
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

    /// Closes a connection, and everything that was opened through it.
    pub(super) fn close(&mut self, id: u64) {
        self.close_of(id, self.departures.has(id));
    }

    /// Closes a connection of a process, which goes on elsewhere if it `leaves`.
    pub(super) fn close_of(&mut self, id: u64, leaves: bool) {
        self.note_end(id);
        let Some(Connection { pid, .. }) = self.connections.remove(&id) else { return };
        for file in self.files.of(id) {
            self.close_file(file);
        }
        self.slots.close_all_of(id, leaves);
        self.streams.callable.set_port(id, None);
        self.gatherings.forget(id);
        self.pings.forget(id);
        if self.host.remove_client(ClientId(id)) {
            self.push_table();
        }
        self.forget_lacp(id);
        self.forget_rules_of(pid);
        self.forget_answer(pid);
        self.note_departure(id);
    }
}
