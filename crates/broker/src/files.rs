//! CM files, from which processes read their events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use polypath_cm::{FileId, KeptId};
use polypath_ipc::socket;
use rustix::process::{Resource, getrlimit};

use crate::sys::{set_nonblocking, would_block};

/// The largest number of files of one connection: as many as ids, since a program may have an event channel
/// for each of them.
pub(crate) const FILES_MAX: usize = 32_768;

/// How many changes are remembered one by one.
const CHANGES_KNOWN: usize = 1024;

/// The descriptors of the broker that files leave for everything else, at most; at most half of all.
const RESERVED: u64 = 1024;

/// A CM file.
#[derive(Debug)]
pub(crate) struct File {
    /// The broker's end of the event socket.
    socket: OwnedFd,
    /// The connection that opened it, and its process.
    pub(crate) connection: u64,
    pid: u32,
    /// Whether the socket had no room for an event, and has not had any since.
    full: bool,
}

impl File {
    /// Whether the socket may have room for an event.
    pub(crate) fn has_room(&self) -> bool {
        !self.full
    }

    /// Notes that the socket has room again.
    pub(crate) fn is_writable(&mut self) {
        self.full = false;
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// A file that a killed broker has left, until its process has connected to this one.
#[derive(Debug)]
pub(crate) struct LeftFile {
    /// Its process.
    pub(crate) pid: u32,
    /// The broker's end of the event socket.
    pub(crate) socket: OwnedFd,
    /// What was written down of its ids.
    pub(crate) ids: Vec<KeptId>,
}

/// All files.
#[derive(Debug)]
pub(crate) struct Files {
    files: BTreeMap<FileId, File>,
    left: BTreeMap<FileId, LeftFile>,
    last: u32,
    /// The number of changes of which files there are.
    revision: u64,
    /// The files of the last changes.
    changes: VecDeque<FileId>,
}

/// The result of delivering an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It was sent.
    Sent,
    /// There is no room for it now.
    Full,
    /// The file is gone.
    Gone,
}

impl Files {
    /// `last`: the number before that of the first file. Files keep their numbers when they move between
    /// hosts, so it is random.
    pub(crate) fn new(last: u32) -> Self {
        let (files, left) = (BTreeMap::new(), BTreeMap::new());
        Self { files, left, last, revision: 0, changes: VecDeque::new() }
    }

    fn changed(&mut self, id: FileId) {
        self.revision += 1;
        if self.changes.len() == CHANGES_KNOWN {
            self.changes.pop_front();
        }
        self.changes.push_back(id);
    }

    /// The files that have come or gone since there was this [`revision`](Self::revision), some more than
    /// once; `None` if that was too long ago.
    pub(crate) fn changes_since(&self, revision: u64) -> Option<impl Iterator<Item = FileId> + '_> {
        let number = usize::try_from(self.revision.checked_sub(revision)?).ok()?;
        let known = self.changes.len().checked_sub(number)?;
        Some(self.changes.range(known..).copied())
    }

    /// The process of a file, open or left, and this end of its event socket.
    pub(crate) fn find(&self, id: FileId) -> Option<(u32, BorrowedFd<'_>)> {
        let open = self.files.get(&id).map(|file| (file.pid, file.socket.as_fd()));
        open.or_else(|| self.left.get(&id).map(|file| (file.pid, file.socket.as_fd())))
    }

    fn insert(&mut self, id: FileId, socket: OwnedFd, (connection, pid): (u64, u32)) {
        self.files.insert(id, File { socket, connection, pid, full: false });
        self.changed(id);
    }

    /// A number that changes whenever files come or go.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// All files with their processes and this end of their event sockets, also those that were left.
    pub(crate) fn all(&self) -> impl Iterator<Item = (FileId, u32, BorrowedFd<'_>)> {
        let open = self.files.iter().map(|(id, file)| (*id, file.pid, file.socket.as_fd()));
        let left = self.left.iter().map(|(id, file)| (*id, file.pid, file.socket.as_fd()));
        open.chain(left)
    }

    /// Adds a file that a killed broker has left.
    pub(crate) fn leave(&mut self, id: FileId, left: LeftFile) {
        self.left.insert(id, left);
        self.changed(id);
    }

    /// Takes a file that was left, for its process, which has connected, or because its process has closed it
    /// (`pid` is `None`).
    pub(crate) fn take_left(&mut self, id: FileId, pid: Option<u32>) -> Option<LeftFile> {
        let left = self.left.get(&id)?;
        if pid.is_some_and(|pid| pid != left.pid) {
            return None;
        }
        self.changed(id);
        self.left.remove(&id)
    }

    /// The files that a process has left and not taken back.
    pub(crate) fn left_of(&self, pid: u32) -> Vec<FileId> {
        self.left.iter().filter(|(_, left)| left.pid == pid).map(|(id, _)| *id).collect()
    }

    /// The processes that have left files and not taken them back.
    pub(crate) fn left_by(&self) -> BTreeSet<u32> {
        self.left.values().map(|left| left.pid).collect()
    }

    /// Opens a file. Returns its number and the application's end of the event socket.
    ///
    /// # Errors
    /// `EMFILE` if the connection has too many files; otherwise those of `socketpair(2)`.
    pub(crate) fn open(&mut self, connection: u64, pid: u32) -> io::Result<(FileId, OwnedFd)> {
        self.check_room(connection)?;
        let (ours, theirs) = socket::pair()?;
        set_nonblocking(ours.as_fd())?;
        let id = self.free_number();
        self.insert(id, ours, (connection, pid));
        Ok((id, theirs))
    }

    fn check_room(&self, connection: u64) -> io::Result<()> {
        let mine = self.files.values().filter(|file| file.connection == connection);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let room = limit - RESERVED.min(limit / 2);
        if (self.files.len() as u64) < room && mine.count() < FILES_MAX {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// Adds a file that has come from another broker, with this broker's end of its event socket, for a
    /// connection and its process.
    ///
    /// # Errors
    /// `EADDRINUSE` if another one has the number, `EMFILE` if the connection has too many files.
    pub(crate) fn put(
        &mut self,
        id: FileId,
        (connection, pid): (u64, u32),
        socket: OwnedFd,
    ) -> io::Result<()> {
        self.check_room(connection)?;
        if !self.is_free(id) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        set_nonblocking(socket.as_fd())?;
        self.insert(id, socket, (connection, pid));
        Ok(())
    }

    /// The next number. After 2^32 opened files, the numbers of files that are still open are
    /// skipped.
    fn free_number(&mut self) -> FileId {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = FileId(self.last);
            if self.last != 0 && self.is_free(id) {
                return id;
            }
        }
    }

    fn is_free(&self, id: FileId) -> bool {
        !self.files.contains_key(&id) && !self.left.contains_key(&id)
    }

    pub(crate) fn get(&self, id: FileId) -> Option<&File> {
        self.files.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: FileId) -> Option<&mut File> {
        self.files.get_mut(&id)
    }

    /// Removes a file.
    pub(crate) fn remove(&mut self, id: FileId) -> Option<File> {
        let removed = self.files.remove(&id);
        if removed.is_some() {
            self.changed(id);
        }
        removed
    }

    /// The files of a connection.
    pub(crate) fn of(&self, connection: u64) -> Vec<FileId> {
        let mine = self.files.iter().filter(|(_, file)| file.connection == connection);
        mine.map(|(id, _)| *id).collect()
    }

    /// Sends an event to a file.
    pub(crate) fn deliver(&mut self, id: FileId, event: &[u8]) -> Delivery {
        let Some(file) = self.files.get_mut(&id) else { return Delivery::Gone };
        match socket::send(file.socket.as_fd(), event, None) {
            Ok(()) => Delivery::Sent,
            Err(error) if would_block(&error) => {
                file.full = true;
                Delivery::Full
            }
            Err(_) => Delivery::Gone,
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
    fn a_file_is_full_until_its_program_has_read() {
        let mut files = Files::new(0);
        let (id, theirs) = files.open(1, 100).unwrap();
        let mut sent = 0_u32;
        while files.deliver(id, &sent.to_ne_bytes()) == Delivery::Sent {
            sent += 1;
        }
        assert!(!files.get(id).unwrap().has_room());
        let mut buffer = [0; 4];
        for expect in 0..sent {
            let got = socket::receive(theirs.as_fd(), &mut buffer).unwrap();
            assert_eq!((got.len, u32::from_ne_bytes(buffer)), (4, expect));
        }
        files.get_mut(id).unwrap().is_writable();
        assert!(files.get(id).unwrap().has_room());
        assert_eq!(files.deliver(id, &[1]), Delivery::Sent);
        drop(theirs);
        assert_eq!(files.deliver(id, &[1]), Delivery::Gone);
    }

    #[test]
    fn a_connection_has_a_limit_of_files_and_leaves_descriptors_for_others() {
        let mut files = Files::new(0);
        let open: Vec<_> = std::iter::from_fn(|| files.open(1, 100).ok()).collect();
        assert!(open.len() <= FILES_MAX);
        assert_eq!(files.open(1, 100).unwrap_err().raw_os_error(), Some(libc::EMFILE));
        assert!(std::fs::File::open("/dev/null").is_ok());
        files.remove(FileId(1));
        assert!(files.open(1, 100).is_ok());
    }

    #[test]
    fn changes_are_known_one_by_one_unless_they_are_too_many() {
        let mut files = Files::new(0);
        let mut open = || files.open(1, 100).unwrap().0;
        let (first, second) = (open(), open());
        let before = files.revision();
        files.remove(first);
        let third = files.open(1, 100).unwrap().0;
        let since = |files: &Files, revision| Some(files.changes_since(revision)?.collect());
        assert_eq!(since(&files, before), Some(vec![first, third]));
        assert_eq!(since(&files, 0), Some(vec![first, second, first, third]));
        assert_eq!(since(&files, files.revision()), Some(vec![]));
        assert!(files.find(first).is_none() && files.find(third).is_some());
        for _ in 0..CHANGES_KNOWN / 2 {
            let file = files.open(1, 100).unwrap().0;
            files.remove(file);
        }
        assert_eq!(since(&files, before), None);
    }

    #[test]
    fn a_file_that_was_left_goes_to_its_process_only_and_keeps_its_number() {
        let mut files = Files::new(6);
        let (socket, _theirs) = socket::pair().unwrap();
        files.leave(FileId(7), LeftFile { pid: 100, socket, ids: Vec::new() });
        assert_eq!((files.left_by(), files.left_of(100)), ([100].into(), vec![FileId(7)]));
        let (new, _other) = files.open(1, 200).unwrap();
        assert_eq!(new, FileId(8), "7 is taken");
        let all: Vec<_> = files.all().map(|(id, pid, _)| (id.0, pid)).collect();
        assert_eq!(all, [(8, 200), (7, 100)]);
        assert!(files.take_left(FileId(7), Some(200)).is_none());
        let left = files.take_left(FileId(7), Some(100)).unwrap();
        assert!(files.take_left(FileId(7), Some(100)).is_none());
        let revision = files.revision();
        files.put(FileId(7), (2, 100), left.socket).unwrap();
        assert!(files.get(FileId(7)).is_some() && files.revision() != revision);
    }
}
