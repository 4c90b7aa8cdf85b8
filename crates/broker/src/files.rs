//! CM files, from which processes read their events.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use polypath_cm::FileId;
use polypath_ipc::socket;

use crate::sys::{set_nonblocking, would_block};

/// The largest number of files of one connection.
pub(crate) const FILES_MAX: usize = 1024;

/// A CM file.
#[derive(Debug)]
pub(crate) struct File {
    /// The broker's end of the event socket.
    socket: OwnedFd,
    /// The connection that opened it.
    pub(crate) connection: u64,
    /// An event that did not fit into the socket. While there is one, no more are taken from the
    /// CM.
    stuck: Option<Vec<u8>>,
}

impl File {
    /// Whether an event waits for room in the socket.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// All files.
#[derive(Debug)]
pub(crate) struct Files {
    files: BTreeMap<FileId, File>,
    last: u32,
}

/// The result of delivering an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It was sent.
    Sent,
    /// It waits until there is room.
    Stuck,
    /// The file is gone.
    Gone,
}

impl Files {
    /// `last`: the number before that of the first file. Files keep their numbers when they move between
    /// hosts, so it is random.
    pub(crate) fn new(last: u32) -> Self {
        Self { files: BTreeMap::new(), last }
    }

    /// Opens a file. Returns its number and the application's end of the event socket.
    ///
    /// # Errors
    /// `EMFILE` if the connection has too many files; otherwise those of `socketpair(2)`.
    pub(crate) fn open(&mut self, connection: u64) -> io::Result<(FileId, OwnedFd)> {
        self.check_room(connection)?;
        let (ours, theirs) = socket::pair()?;
        set_nonblocking(ours.as_fd())?;
        let id = self.free_number();
        self.files.insert(id, File { socket: ours, connection, stuck: None });
        Ok((id, theirs))
    }

    fn check_room(&self, connection: u64) -> io::Result<()> {
        let mine = self.files.values().filter(|file| file.connection == connection);
        if mine.count() < FILES_MAX {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// Adds a file that has come from another broker, with this broker's end of its event socket.
    ///
    /// # Errors
    /// `EADDRINUSE` if another one has the number, `EMFILE` if the connection has too many files.
    pub(crate) fn put(&mut self, id: FileId, connection: u64, socket: OwnedFd) -> io::Result<()> {
        self.check_room(connection)?;
        if self.files.contains_key(&id) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        set_nonblocking(socket.as_fd())?;
        self.files.insert(id, File { socket, connection, stuck: None });
        Ok(())
    }

    /// The next number. After 2^32 opened files, the numbers of files that are still open are
    /// skipped.
    fn free_number(&mut self) -> FileId {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = FileId(self.last);
            if self.last != 0 && !self.files.contains_key(&id) {
                return id;
            }
        }
    }

    pub(crate) fn get(&self, id: FileId) -> Option<&File> {
        self.files.get(&id)
    }

    /// Removes a file.
    pub(crate) fn remove(&mut self, id: FileId) -> Option<File> {
        self.files.remove(&id)
    }

    /// The files of a connection.
    pub(crate) fn of(&self, connection: u64) -> Vec<FileId> {
        let mine = self.files.iter().filter(|(_, file)| file.connection == connection);
        mine.map(|(id, _)| *id).collect()
    }

    /// Whether any file has an event that waits.
    pub(crate) fn any_stuck(&self) -> bool {
        self.files.values().any(|file| file.stuck.is_some())
    }

    /// The files that can take events.
    pub(crate) fn free(&self) -> Vec<FileId> {
        self.files.iter().filter(|(_, file)| file.stuck.is_none()).map(|(id, _)| *id).collect()
    }

    /// Sends an event to a file in which no event waits.
    pub(crate) fn deliver(&mut self, id: FileId, event: Vec<u8>) -> Delivery {
        let Some(file) = self.files.get_mut(&id) else { return Delivery::Gone };
        debug_assert!(file.stuck.is_none(), "events must stay in order");
        match socket::send(file.socket.as_fd(), &event, None) {
            Ok(()) => Delivery::Sent,
            Err(error) if would_block(&error) => {
                file.stuck = Some(event);
                Delivery::Stuck
            }
            Err(_) => Delivery::Gone,
        }
    }

    /// Tries again to send the event that waits.
    pub(crate) fn retry(&mut self, id: FileId) -> Delivery {
        match self.files.get_mut(&id).and_then(|file| file.stuck.take()) {
            Some(event) => self.deliver(id, event),
            None => Delivery::Sent,
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_arrive_in_order_even_if_one_gets_stuck() {
        let mut files = Files::new(0);
        let (id, theirs) = files.open(1).unwrap();
        let mut sent = 0_u32;
        while files.deliver(id, sent.to_ne_bytes().to_vec()) == Delivery::Sent {
            sent += 1;
        }
        assert!(files.any_stuck() && files.free().is_empty());
        let mut buffer = [0; 4];
        for expect in 0..=sent {
            if files.any_stuck() {
                files.retry(id);
            }
            let got = socket::receive(theirs.as_fd(), &mut buffer).unwrap();
            assert_eq!((got.len, u32::from_ne_bytes(buffer)), (4, expect));
        }
        drop(theirs);
        assert_eq!(files.deliver(id, vec![1]), Delivery::Gone);
    }

    #[test]
    fn a_connection_has_a_limit_of_files() {
        let mut files = Files::new(0);
        let open: Vec<_> = (0..FILES_MAX).map_while(|_| files.open(1).ok()).collect();
        if open.len() == FILES_MAX {
            assert_eq!(files.open(1).unwrap_err().raw_os_error(), Some(libc::EMFILE));
            files.remove(FileId(1));
            assert!(files.open(1).is_ok());
        }
    }
}
