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
//! The ids of the connection manager are lost, because they are in the broker's memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polypath_ipc::message::{self, MESSAGE_MAX};
use polypath_ipc::socket;
use polypath_topology::Table;
use serde::{Deserialize, Serialize};

use crate::handover::{Handover, State};
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
        Self { channel, sockets: 0, told: None }
    }

    /// Tells the keeper what has changed.
    ///
    /// # Errors
    /// The keeper is gone.
    pub(crate) fn remember(
        &mut self,
        slots: &Slots,
        table: &Table,
        manner: Manner,
    ) -> io::Result<()> {
        let revision = (slots.revision(), table.generation);
        if self.told == Some(revision) {
            return Ok(());
        }
        self.pass_on(slots.sockets())?;
        self.say(&Word::State(state_of(slots, table, manner)), None)?;
        self.told = Some(revision);
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
        log!("the broker is gone; taking its place for {} slots", handover.state.owners.len());
        succeed(handover);
    }
    std::process::exit(0)
}

/// Receives messages until the broker is gone. `None` if nothing must be done.
fn wait(channel: &OwnedFd) -> Option<Handover> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut sockets = Vec::new();
    let mut state: Option<State> = None;
    loop {
        let got = match socket::receive(channel.as_fd(), &mut buffer) {
            Ok(got) if got.len > 0 => got,
            _ => break,
        };
        match (message::decode(&buffer[..got.len]), got.fd) {
            (Ok(Word::Socket), Some(socket)) => sockets.push(socket),
            (Ok(Word::State(new)), _) => state = Some(new),
            (Ok(Word::Farewell), _) => return None,
            // The keeper is out of descriptors. A socket that is missing now can never be restored.
            _ => return None,
        }
    }
    state.filter(|state| !state.owners.is_empty()).map(|state| Handover { state, sockets })
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
}
