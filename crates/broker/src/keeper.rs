//! The keeper, which takes the broker's place if the broker is killed.
//!
//! The kernel steers packets by the order of the group's sockets ([`slots`](crate::slots)), and
//! closing one moves others. So a second process, which the broker forks, holds them all and does
//! nothing else. The broker tells it about every socket and about the owners of slots. A broker
//! that ends normally says farewell, and the keeper ends too. If the broker is gone without a
//! farewell and slots are in use, the keeper takes its place: it becomes the broker, with a new
//! keeper. Packets for the programs arrive meanwhile, and the programs connect again
//! ([`orphans`](crate::broker)).
//!
//! It also has what the broker has written down of ids of the connection manager
//! ([`ledger`](crate::ledger)), and the sockets by which programs get their events.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polypath_cm::FileId;
use polypath_ipc::message::{self, MESSAGE_MAX};
use polypath_ipc::socket;
use polypath_topology::Table;
use serde::{Deserialize, Serialize};

use crate::files::Files;
use crate::handover::{Handover, State};
use crate::ledger::Ledger;
use crate::log::log;
use crate::options::Manner;
use crate::slots::Slots;
use crate::sys::process;

/// The keeper's name in `ps`.
const NAME: &std::ffi::CStr = c"polypath-keeper";

/// The name in `ps` of a keeper that has become the broker.
const BROKER_NAME: &std::ffi::CStr = c"polypath";

/// How long a broker that ends waits for its keeper to end.
const FAREWELL: Duration = Duration::from_secs(1);

/// A message from the broker to its keeper.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    /// The next socket of the group comes with this message.
    Socket,
    /// This replaces the previous state.
    State(State),
    /// The ledger comes with this message.
    Ledger,
    /// The broker's end of a CM file's event socket comes with this message.
    File { file: FileId, pid: u32 },
    /// A CM file was closed.
    FileClosed { file: FileId },
    /// The broker ends normally.
    Farewell,
}

/// The broker's end of the channel.
#[derive(Debug)]
pub(crate) struct Keeper {
    channel: OwnedFd,
    /// The number of sockets that the keeper was told about.
    sockets: usize,
    /// The slots' revision and the table's generation that the keeper was told last.
    told: Option<(u64, u64)>,
    /// Whether the keeper has the ledger.
    has_ledger: bool,
    /// The CM files that the keeper knows, and their revision.
    files: BTreeSet<FileId>,
    files_told: u64,
}

/// What a keeper must know.
#[derive(Clone, Copy)]
pub(crate) struct Estate<'a> {
    pub(crate) slots: &'a Slots,
    pub(crate) table: &'a Table,
    pub(crate) manner: Manner,
    pub(crate) files: &'a Files,
    pub(crate) ledger: Option<&'a Ledger>,
}

impl Keeper {
    /// Forks a keeper. The process must have only one thread. The keeper calls `succeed` when it
    /// has to take the broker's place.
    pub(crate) fn start(succeed: fn(Handover)) -> io::Result<Self> {
        let (ours, theirs) = socket::pair()?;
        if process::fork()? {
            drop(ours);
            keep(theirs, succeed);
        }
        Ok(Self::on(ours))
    }

    fn on(channel: OwnedFd) -> Self {
        let (told, files) = (None, BTreeSet::new());
        Self { channel, sockets: 0, told, has_ledger: false, files, files_told: 0 }
    }

    /// Tells the keeper what has changed.
    ///
    /// # Errors
    /// The keeper is gone.
    pub(crate) fn remember(&mut self, estate: Estate<'_>) -> io::Result<()> {
        let Estate { slots, table, manner, files, ledger } = estate;
        if let Some(ledger) = ledger.filter(|_| !self.has_ledger) {
            self.say(&Word::Ledger, Some(ledger.as_fd()))?;
            self.has_ledger = true;
        }
        if self.files_told != files.revision() {
            self.tell_files(files)?;
        }
        let revision = (slots.revision(), table.generation);
        if self.told == Some(revision) {
            return Ok(());
        }
        self.pass_on(slots.sockets())?;
        self.say(&Word::State(state_of(slots, table, manner)), None)?;
        self.told = Some(revision);
        Ok(())
    }

    fn tell_files(&mut self, files: &Files) -> io::Result<()> {
        let changed: BTreeSet<FileId> = match files.changes_since(self.files_told) {
            Some(changed) => changed.collect(),
            None => {
                let all = files.all().map(|(file, _, _)| file);
                self.files.iter().copied().chain(all).collect()
            }
        };
        for file in changed {
            match files.find(file) {
                Some((pid, socket)) if self.files.insert(file) => {
                    self.say(&Word::File { file, pid }, Some(socket))?;
                }
                None if self.files.remove(&file) => self.say(&Word::FileClosed { file }, None)?,
                _ => {}
            }
        }
        self.files_told = files.revision();
        Ok(())
    }

    fn pass_on<'a>(&mut self, all: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<()> {
        for socket in all.skip(self.sockets) {
            self.say(&Word::Socket, Some(socket))?;
            self.sockets += 1;
        }
        Ok(())
    }

    fn say(&self, word: &Word, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let bytes = message::encode(word).map_err(io::Error::other)?;
        socket::send(self.channel.as_fd(), &bytes, fd)
    }

    /// Ends the keeper. When this returns, it has closed the sockets.
    pub(crate) fn farewell(self) {
        if self.say(&Word::Farewell, None).is_ok() {
            process::wait_for_hang_up(self.channel.as_fd(), FAREWELL);
        }
    }
}

/// The state for the keeper.
fn state_of(slots: &Slots, table: &Table, manner: Manner) -> State {
    let owners = slots.owners().iter().map(|(&slot, owner)| (slot, owner.pid)).collect();
    State { order: slots.order(), owners, table: table.clone(), manner }
}

/// The keeper's body.
fn keep(channel: OwnedFd, succeed: fn(Handover)) -> ! {
    process::become_keeper(NAME, channel.as_raw_fd());
    if let Some(handover) = wait(&channel) {
        drop(channel);
        process::set_name(BROKER_NAME);
        let (slots, files) = (handover.state.owners.len(), handover.files.len());
        log!("the broker is gone; taking its place for {slots} slots and {files} CM files");
        succeed(handover);
    }
    std::process::exit(0)
}

/// Receives messages until the broker is gone. `None` if nothing must be done.
fn wait(channel: &OwnedFd) -> Option<Handover> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let (mut sockets, mut files) = (Vec::new(), BTreeMap::new());
    let (mut state, mut ledger): (Option<State>, _) = (None, None);
    loop {
        let got = match socket::receive(channel.as_fd(), &mut buffer) {
            Ok(got) if got.len > 0 => got,
            _ => break,
        };
        match (message::decode(&buffer[..got.len]), got.fd) {
            (Ok(Word::Socket), Some(socket)) => sockets.push(socket),
            (Ok(Word::State(new)), _) => state = Some(new),
            (Ok(Word::Ledger), Some(memory)) => ledger = Some(Ledger::left(memory)),
            (Ok(Word::File { file, pid }), Some(socket)) => {
                files.insert(file, (pid, socket));
            }
            // Out of descriptors: what it is about is lost if the broker is killed.
            (Ok(Word::Ledger | Word::File { .. }), None) => {}
            (Ok(Word::FileClosed { file }), _) => drop(files.remove(&file)),
            (Ok(Word::Farewell), _) => return None,
            // The keeper is out of descriptors. A socket that is missing now can never be restored.
            _ => return None,
        }
    }
    let state = state.filter(|state| !(state.owners.is_empty() && files.is_empty()))?;
    Some(Handover { state, sockets, files, ledger })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(owners: &[(u8, u32)]) -> Word {
        Word::State(State {
            order: 7,
            owners: owners.iter().copied().collect(),
            table: Table::default(),
            manner: Manner { idle_timeout: Some(Duration::from_secs(10)), rendezvous: false },
        })
    }

    fn broker() -> (Keeper, OwnedFd) {
        let (ours, theirs) = socket::pair().unwrap();
        (Keeper::on(ours), theirs)
    }

    #[test]
    fn a_broker_that_is_killed_leaves_sockets_in_order_and_the_last_state() {
        let (mut keeper, channel) = broker();
        let files: Vec<OwnedFd> = (0..3).map(|_| socket::pair().unwrap().0).collect();
        let fds = |n: usize| files[..n].iter().map(AsFd::as_fd);
        keeper.pass_on(fds(2)).unwrap();
        keeper.say(&state(&[(7, 1)]), None).unwrap();
        keeper.pass_on(fds(3)).unwrap();
        keeper.say(&state(&[(7, 1), (8, 2)]), None).unwrap();
        drop(keeper);
        let handover = wait(&channel).unwrap();
        assert_eq!(handover.state.owners, [(7, 1), (8, 2)].into());
        let inode =
            |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let kept: Vec<_> = handover.sockets.iter().map(inode).collect();
        assert_eq!(kept, files.iter().map(inode).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_left_to_do_after_a_farewell_or_without_programs() {
        let (keeper, channel) = broker();
        keeper.say(&state(&[(7, 1)]), None).unwrap();
        keeper.say(&Word::Farewell, None).unwrap();
        assert!(wait(&channel).is_none());

        let (keeper, channel) = broker();
        keeper.say(&state(&[]), None).unwrap();
        drop(keeper);
        assert!(wait(&channel).is_none());
    }

    #[test]
    fn cm_files_are_left_with_what_is_written_down_of_them() {
        let (mut keeper, channel) = broker();
        let (mut files, ledger) = (Files::new(0), Ledger::new().unwrap());
        let mut theirs = Vec::new();
        let mut open = |files: &mut Files, pid| {
            let (id, socket) = files.open(1, pid).unwrap();
            theirs.push(socket);
            id
        };
        let (first, second) = (open(&mut files, 100), open(&mut files, 200));
        keeper.say(&Word::Ledger, Some(ledger.as_fd())).unwrap();
        keeper.tell_files(&files).unwrap();
        files.remove(first);
        let third = open(&mut files, 300);
        keeper.tell_files(&files).unwrap();
        keeper.say(&state(&[]), None).unwrap();
        drop((keeper, files));
        let handover = wait(&channel).unwrap();
        let pids: Vec<_> = handover.files.iter().map(|(id, (pid, _))| (*id, *pid)).collect();
        assert_eq!(pids, [(second, 200), (third, 300)]);
        assert!(handover.ledger.is_some_and(|ledger| ledger.read().is_empty()));
        // The keeper's copies keep the sockets alive, except for the one of the file that was closed.
        let mut buffer = [0; 1];
        assert_eq!(socket::receive(theirs[0].as_fd(), &mut buffer).unwrap().len, 0, "closed");
        drop(handover.files);
        assert_eq!(socket::receive(theirs[2].as_fd(), &mut buffer).unwrap().len, 0);
    }
}
