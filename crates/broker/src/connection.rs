//! One client's connection, with the messages that wait to be sent, within limits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use polypath_ipc::socket;
use polypath_topology::Selection;

use crate::sys::epoll::Interest;
use crate::sys::would_block;

/// The largest number of messages that wait for one client.
const QUEUE_MAX: usize = 4096;

/// The largest number of bytes that wait for one client. The status of a host full of queue pairs
/// fits.
const QUEUE_BYTES_MAX: usize = 8 << 20;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It has not sent its hello yet.
    New,
    /// Requests and answers.
    Control,
    /// It receives changed tables, and is asked for its status.
    Events,
    /// It receives the events of all processes.
    Watching,
    /// It has received its last answer.
    Leaving,
}

/// A connection, and what is known about its process.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// The descriptor that came with the latest message.
    pub(crate) brought: Option<OwnedFd>,
    /// The parts that it has not got yet of a CM file that it takes away.
    pub(crate) taking: VecDeque<Vec<u8>>,
    /// What came of a CM file before its last part.
    pub(crate) putting: Vec<u8>,
    /// The process id, as the kernel reports it.
    pub(crate) pid: u32,
    /// The name of the program, as the process reports it.
    pub(crate) program: String,
    /// The selection of devices that the process made, as text.
    pub(crate) requested: String,
    /// The parsed selection.
    pub(crate) selection: Selection,
    pub(crate) role: Role,
    /// Whether it belongs to root, who may read another user's broker but change nothing.
    pub(crate) guest: bool,
    /// Whether it has asked for more than to read something, and was counted.
    pub(crate) counted: bool,
    /// Whether it has asked for the status.
    pub(crate) watches: bool,
    queue: VecDeque<Outgoing>,
    queued_bytes: usize,
    table_due: bool,
    /// The number of the event that a watcher is told next.
    pub(crate) told_next: u64,
    /// Whether events wait because a watcher had no room.
    pub(crate) news_due: bool,
    interest: Interest,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Rc<[u8]>,
    fd: Option<OwnedFd>,
}

/// The reason why a client is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It hung up.
    Gone,
    /// It does not take its messages, and more wait than are allowed.
    Slow,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, pid: u32) -> Self {
        Self {
            socket,
            brought: None,
            taking: VecDeque::new(),
            putting: Vec::new(),
            pid,
            program: String::new(),
            requested: String::new(),
            selection: Selection::default(),
            role: Role::New,
            guest: false,
            counted: false,
            watches: false,
            queue: VecDeque::new(),
            queued_bytes: 0,
            table_due: false,
            told_next: 0,
            news_due: false,
            interest: Interest::Read,
        }
    }

    /// Whether a program depends on the broker through this connection. One that only reads does
    /// not.
    pub(crate) fn is_user(&self) -> bool {
        self.counted || !(self.guest || self.watches)
    }

    /// Sends a message, or queues it.
    pub(crate) fn send(&mut self, bytes: Rc<[u8]>, fd: Option<OwnedFd>) -> Result<(), Lost> {
        if self.queue.is_empty() && self.try_send(&bytes, fd.as_ref())? {
            return Ok(());
        }
        self.queued_bytes += bytes.len();
        self.queue.push_back(Outgoing { bytes, fd });
        let full = self.queue.len() > QUEUE_MAX || self.queued_bytes > QUEUE_BYTES_MAX;
        if full { Err(Lost::Slow) } else { Ok(()) }
    }

    /// Sends the table, or notes that it is due. If several tables wait, only the last one matters.
    pub(crate) fn send_table(&mut self, push: &Rc<[u8]>) -> Result<(), Lost> {
        self.table_due = !self.queue.is_empty() || !self.try_send(push, None)?;
        Ok(())
    }

    /// Sends a watcher its events, unless something waits. Returns false if there is no room.
    /// Nothing is queued.
    pub(crate) fn send_news(&mut self, bytes: &[u8]) -> Result<bool, Lost> {
        let sent = self.queue.is_empty() && self.try_send(bytes, None)?;
        self.news_due = !sent;
        Ok(sent)
    }

    /// Sends what waits, as far as there is room. `table` returns the message with the newest
    /// table.
    pub(crate) fn flush(&mut self, table: impl FnOnce() -> Rc<[u8]>) -> Result<(), Lost> {
        while let Some(next) = self.queue.front() {
            if !self.try_send(&next.bytes, next.fd.as_ref())? {
                return Ok(());
            }
            self.queued_bytes -= next.bytes.len();
            self.queue.pop_front();
        }
        if self.table_due {
            self.table_due = !self.try_send(&table(), None)?;
        }
        Ok(())
    }

    /// Tries to send. Returns false if there is no room at the moment.
    fn try_send(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<bool, Lost> {
        match socket::send(self.socket.as_fd(), bytes, fd.map(AsFd::as_fd)) {
            Ok(()) => Ok(true),
            // ENOBUFS means that too many descriptors are under way.
            Err(error)
                if would_block(&error)
                    || error.raw_os_error() == Some(libc::ETOOMANYREFS)
                    || error.raw_os_error() == Some(libc::ENOBUFS) =>
            {
                Ok(false)
            }
            Err(_) => Err(Lost::Gone),
        }
    }

    /// Receives a message; `None` if there is none. A descriptor that came with it is kept until the next
    /// one, for the request that needs it.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match socket::receive(self.socket.as_fd(), buffer) {
            Ok(got) => {
                self.brought = got.fd;
                Ok(Some(got.len))
            }
            Err(error) if would_block(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether something waits to be sent.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.queue.is_empty() || self.table_due || self.news_due
    }

    /// The events to wait for now, if they have changed. No more requests are read from a control
    /// connection that does not take its answers, but an event stream must be able to report.
    pub(crate) fn new_interest(&mut self) -> Option<Interest> {
        let interest = match (self.is_waiting(), self.role) {
            (false, _) => Interest::Read,
            (true, Role::Events) => Interest::Both,
            (true, _) => Interest::Write,
        };
        let changed = interest != self.interest;
        self.interest = interest;
        changed.then_some(interest)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> (Connection, OwnedFd) {
        let (ours, theirs) = socket::pair().unwrap();
        crate::sys::set_nonblocking(ours.as_fd()).unwrap();
        (Connection::new(ours, 1), theirs)
    }

    fn message(len: usize) -> Rc<[u8]> {
        vec![7; len].into()
    }

    #[test]
    fn a_slow_client_is_told_from_one_that_is_gone() {
        let (mut slow, theirs) = connection();
        let result = (0..10_000).find_map(|_| slow.send(message(1000), None).err());
        assert_eq!(result, Some(Lost::Slow));
        drop(theirs);
        let (mut gone, theirs) = connection();
        drop(theirs);
        assert_eq!(gone.send(message(1), None), Err(Lost::Gone));
    }

    #[test]
    fn a_message_is_sent_after_those_that_wait_though_there_is_room_again() {
        let (mut connection, theirs) = connection();
        crate::sys::set_nonblocking(theirs.as_fd()).unwrap();
        let mut buffer = vec![0; 100_000];
        let mut take_all = || -> Vec<usize> {
            let next = || socket::receive(theirs.as_fd(), &mut buffer).ok().map(|got| got.len);
            std::iter::from_fn(next).collect()
        };
        // Each message is one byte longer than the one before it.
        let mut sent = 10_000..;
        while !connection.is_waiting() {
            connection.send(message(sent.next().unwrap()), None).unwrap();
        }
        let mut received = take_all();
        connection.send(message(sent.next().unwrap()), None).unwrap();
        while connection.is_waiting() {
            connection.flush(|| unreachable!("no table is due")).unwrap();
            received.extend(take_all());
        }
        assert_eq!(received, (10_000..sent.start).collect::<Vec<_>>());
    }

    #[test]
    fn of_many_tables_only_the_last_waits() {
        let (mut connection, theirs) = connection();
        while !connection.is_waiting() {
            connection.send(message(10_000), None).unwrap();
        }
        for _ in 0..100_000 {
            connection.send_table(&message(1)).unwrap();
        }
        connection.role = Role::Events;
        assert_eq!(connection.new_interest(), Some(Interest::Both));
        let mut buffer = vec![0; 20_000];
        let mut received = 0;
        while connection.is_waiting() {
            socket::receive(theirs.as_fd(), &mut buffer).unwrap();
            received += 1;
            connection.flush(|| message(99)).unwrap();
        }
        assert!(received > 1);
        assert_eq!(connection.new_interest(), Some(Interest::Read));
        let last =
            std::iter::repeat_with(|| socket::receive(theirs.as_fd(), &mut buffer).unwrap().len);
        assert_eq!(last.take_while(|len| *len != 99).filter(|len| *len == 1).count(), 0);
    }
}
