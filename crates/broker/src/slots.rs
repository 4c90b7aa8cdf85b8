//! Slots: who owns which part of the QPN space, and the sockets on port 4791.
//!
//! Sockets are opened when first needed, and are never closed before the broker ends: closing one
//! would move another to its index in the group. For the same reason they outlive a broker that is
//! killed ([`keeper`](crate::keeper)). The first slot is chosen at random, so that a
//! broker that follows another does not begin with the QPNs that its predecessor's peers still send
//! to. When a slot is given back, its packets are led to the sink, and its socket refuses everything
//! and is emptied. It is given out again as late as possible, so that packets that are still under way
//! for its last owner reach no other process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use polypath_ipc::SLOT_MAX;

use crate::groups;
use crate::handover::Handover;
use crate::steering;
use crate::sys::udp::UdpSocket;

/// UDP destination port of RoCEv2.
pub(crate) const PORT: u16 = polypath_wire::ROCE_PORT;

/// Receive buffer asked for, in bytes; the kernel gives twice that, or less. Much more than the window of one
/// peer takes: UC and UD have none, and what comes while the receiver does not run has to wait somewhere.
const RECEIVE_BUFFER: i32 = 16 << 20;

/// Most packets thrown away when a socket is emptied: more than fit into its buffer at the kernel's
/// least charge of 256 bytes per packet.
const DRAIN_MAX: usize = RECEIVE_BUFFER as usize * 2 / 128;

/// Why port 4791 can't be had.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Somebody has it.
    #[error("{0}")]
    Taken(String),
    /// The kernel refuses for another reason.
    #[error("preparing UDP port {PORT}: {0}")]
    Io(#[from] io::Error),
}

/// The connection that has a slot whose process has not connected to this broker yet.
pub(crate) const NOBODY: u64 = 0;

/// A slot given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The connection that has it, or [`NOBODY`].
    pub(crate) connection: u64,
    /// The process.
    pub(crate) pid: u32,
}

/// All sockets on the port.
#[derive(Debug)]
pub(crate) struct Slots {
    own: UdpSocket,
    sink: UdpSocket,
    multicast_guard: UdpSocket,
    /// The sockets of slot `first` and of those after it, in the order in which they were bound.
    sockets: Vec<UdpSocket>,
    first: u8,
    owners: BTreeMap<u8, Owner>,
    /// Slots given back, the one that waits longest first.
    freed: VecDeque<u8>,
    receive_buffer: u32,
    /// Counts changes of owners.
    revision: u64,
}

impl Slots {
    /// Takes the port. `seed` chooses the first slot.
    pub(crate) fn new(seed: u32) -> Result<Self, PortError> {
        // A group would let in sockets of the same user, and of a broker that was killed lanes may
        // be left: their indexes would be in the way. So look, without sharing, whether all is
        // free.
        let probe = UdpSocket::new()?;
        probe.bind(PORT).map_err(taken)?;
        drop(probe);

        let own = open().map_err(taken)?;
        let receive_buffer = own.enlarge_receive_buffer(RECEIVE_BUFFER)?;
        let sink = open_refusing().map_err(taken)?;
        let multicast_guard = open_refusing().map_err(taken)?;
        multicast_guard.take_all_ipv4_groups()?;
        let slots = Self {
            own,
            sink,
            multicast_guard,
            sockets: Vec::new(),
            first: (seed % u32::from(SLOT_MAX)) as u8 + 1,
            owners: BTreeMap::new(),
            freed: VecDeque::new(),
            receive_buffer,
            revision: 0,
        };
        slots.steer()?;
        Ok(slots)
    }

    /// Takes over the sockets of a broker that was killed.
    pub(crate) fn inherit(handover: Handover) -> Result<Self, PortError> {
        let Handover { state, sockets } = handover;
        let mut sockets = sockets.into_iter().map(UdpSocket::from);
        let missing = || PortError::Io(io::ErrorKind::UnexpectedEof.into());
        let mut next = || sockets.next().ok_or_else(missing);
        let (own, sink, multicast_guard) = (next()?, next()?, next()?);
        let receive_buffer = own.enlarge_receive_buffer(RECEIVE_BUFFER)?;
        let mut slots = Self {
            own,
            sink,
            multicast_guard,
            sockets: sockets.collect(),
            first: state.first,
            owners: BTreeMap::new(),
            freed: VecDeque::new(),
            receive_buffer,
            revision: 0,
        };
        for slot in 1..=SLOT_MAX {
            match state.owners.get(&slot) {
                _ if slots.place(slot) >= slots.sockets.len() => {}
                Some(&pid) => drop(slots.owners.insert(slot, Owner { connection: NOBODY, pid })),
                None => slots.freed.push_back(slot),
            }
        }
        slots.steer()?;
        Ok(slots)
    }

    /// All sockets in the order of binding, which never changes: new ones come last.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let first = [&self.own, &self.sink, &self.multicast_guard];
        first.into_iter().chain(&self.sockets).map(AsFd::as_fd)
    }

    /// The slot of the first lane's socket.
    pub(crate) fn first(&self) -> u8 {
        self.first
    }

    /// Another number after every change of who has which slot.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Slots given out, and to whom.
    pub(crate) fn owners(&self) -> &BTreeMap<u8, Owner> {
        &self.owners
    }

    /// A process that had slots of a broker that was killed has connected. `None`: one of them is not
    /// its own, and nothing is changed.
    pub(crate) fn adopt(&mut self, owner: Owner, slots: &[u8]) -> Option<()> {
        let orphan = Owner { connection: NOBODY, ..owner };
        if slots.iter().any(|slot| self.owner(*slot) != Some(orphan)) {
            return None;
        }
        self.owners.extend(slots.iter().map(|&slot| (slot, owner)));
        self.revision += 1;
        Some(())
    }

    /// Processes that have slots and have not connected.
    pub(crate) fn orphans(&self) -> BTreeSet<u32> {
        let orphans = self.owners.values().filter(|owner| owner.connection == NOBODY);
        orphans.map(|owner| owner.pid).collect()
    }

    /// Takes back the slots of such a process.
    pub(crate) fn close_orphans_of(&mut self, pid: u32) {
        let orphan = Owner { connection: NOBODY, pid };
        let theirs = |(slot, owner): (&u8, &Owner)| (*owner == orphan).then_some(*slot);
        let slots: Vec<u8> = self.owners.iter().filter_map(theirs).collect();
        for slot in slots {
            self.close(slot);
        }
    }

    fn steer(&self) -> io::Result<()> {
        let index = |slot| steering::FIRST_SLOT_INDEX + self.place(slot) as u32;
        let slots = self.owners.keys().map(|&slot| (slot, index(slot)));
        self.own.steer_group(&mut steering::program(slots))
    }

    /// Where a slot's socket is, or will be, in `sockets`.
    fn place(&self, slot: u8) -> usize {
        debug_assert!((1..=SLOT_MAX).contains(&slot));
        let [slot, first, count] = [slot, self.first, SLOT_MAX].map(usize::from);
        (count + slot - first) % count
    }

    /// Gives out a slot; `None` if all are taken.
    pub(crate) fn open(&mut self, owner: Owner) -> io::Result<Option<u8>> {
        let Some(slot) = self.next_slot() else { return Ok(None) };
        self.give(slot, owner)?;
        Ok(Some(slot))
    }

    /// Gives out this slot, which nobody has: its new owner continues what had numbers there.
    pub(crate) fn open_on(&mut self, slot: u8, owner: Owner) -> io::Result<()> {
        debug_assert!(self.owner(slot).is_none(), "slot {slot} is given out");
        // Sockets are bound in the order of slots. Those before it wait as if they were given back.
        while self.sockets.len() < self.place(slot)
            && let Some(before) = self.next_slot()
        {
            self.sockets.push(open_refusing()?);
            self.freed.push_back(before);
        }
        self.freed.retain(|&other| other != slot);
        self.give(slot, owner)
    }

    fn give(&mut self, slot: u8, owner: Owner) -> io::Result<()> {
        if let Err(error) = self.prepare(slot) {
            if self.place(slot) < self.sockets.len() {
                self.freed.push_back(slot);
            }
            return Err(error);
        }
        self.owners.insert(slot, owner);
        self.revision += 1;
        if let Err(error) = self.steer() {
            self.close(slot);
            return Err(error);
        }
        Ok(())
    }

    fn next_slot(&mut self) -> Option<u8> {
        let opened = u8::try_from(self.sockets.len()).unwrap_or(SLOT_MAX);
        if opened == SLOT_MAX {
            return self.freed.pop_front();
        }
        let to_the_end = SLOT_MAX - self.first;
        Some(if opened <= to_the_end { self.first + opened } else { opened - to_the_end })
    }

    /// Makes a slot's socket as it shall be for a new owner.
    fn prepare(&mut self, slot: u8) -> io::Result<()> {
        let Some(socket) = self.sockets.get(self.place(slot)) else {
            let socket = open()?;
            self.receive_buffer = prepare_lane(&socket)?;
            self.sockets.push(socket);
            return Ok(());
        };
        socket.describe_packets()?;
        socket.set_nonblocking()?;
        self.receive_buffer = prepare_lane(socket)?;
        groups::leave_all(socket);
        socket.drain(DRAIN_MAX);
        socket.accept_all()
    }

    /// Takes a slot back. True if it was given out.
    pub(crate) fn close(&mut self, slot: u8) -> bool {
        if self.owners.remove(&slot).is_none() {
            return false;
        }
        self.revision += 1;
        // Neither fails for a socket and a program that were accepted before; if one did, the
        // packets would pile up to the buffer's limit and be thrown away before the slot is used
        // again.
        let _ = self.steer();
        if let Some(socket) = self.sockets.get(self.place(slot)) {
            let _ = socket.refuse_all();
            groups::leave_all(socket);
            socket.drain(DRAIN_MAX);
        }
        self.freed.push_back(slot);
        true
    }

    /// Takes back all slots of a connection.
    pub(crate) fn close_all_of(&mut self, connection: u64) {
        let mine = |(slot, owner): (&u8, &Owner)| (owner.connection == connection).then_some(*slot);
        let slots: Vec<u8> = self.owners.iter().filter_map(mine).collect();
        for slot in slots {
            self.close(slot);
        }
    }

    /// Who has a slot.
    pub(crate) fn owner(&self, slot: u8) -> Option<Owner> {
        self.owners.get(&slot).copied()
    }

    /// A slot's socket.
    pub(crate) fn socket(&self, slot: u8) -> Option<BorrowedFd<'_>> {
        let owned = self.owners.contains_key(&slot);
        owned.then(|| self.sockets.get(self.place(slot)).map(AsFd::as_fd)).flatten()
    }

    /// The broker's own socket, for QPNs below 0x10000.
    pub(crate) fn own(&self) -> &UdpSocket {
        &self.own
    }

    /// Size of a lane's receive buffer as the kernel accounts for it.
    pub(crate) fn receive_buffer(&self) -> u32 {
        self.receive_buffer
    }

    /// Slots given out, with their owners and the packets lost because their buffer was full.
    pub(crate) fn status(&self) -> impl Iterator<Item = (u8, Owner, u32)> {
        self.owners.iter().map(|(&slot, &owner)| {
            let socket = self.sockets.get(self.place(slot));
            let drops = socket.and_then(|socket| socket.drops().ok()).unwrap_or(0);
            (slot, owner, drops)
        })
    }

    /// Packets that the sink took: for slots that nobody has.
    pub(crate) fn sunk(&self) -> u32 {
        self.sink.drops().unwrap_or(0)
    }
}

/// A socket of the group, for the broker itself or a lane.
fn open() -> io::Result<UdpSocket> {
    let socket = UdpSocket::new()?;
    socket.describe_packets()?;
    socket.ignore_path_mtu()?;
    socket.share_port()?;
    socket.bind(PORT)?;
    Ok(socket)
}

/// A socket of the group whose packets the kernel drops.
fn open_refusing() -> io::Result<UdpSocket> {
    let socket = UdpSocket::new()?;
    socket.ignore_path_mtu()?;
    socket.share_port()?;
    socket.refuse_all()?;
    socket.bind(PORT)?;
    Ok(socket)
}

fn prepare_lane(socket: &UdpSocket) -> io::Result<u32> {
    socket.coalesce()?;
    socket.enlarge_receive_buffer(RECEIVE_BUFFER)
}

fn taken(error: io::Error) -> PortError {
    if error.raw_os_error() == Some(libc::EADDRINUSE) {
        PortError::Taken(match polypath_ipc::port::taken(PORT) {
            Ok(taken) => format!("{}; {}", taken.what, taken.cure),
            Err(_) => {
                format!("UDP port {PORT} was in use by a process that has just ended; try again")
            }
        })
    } else {
        PortError::Io(error)
    }
}
