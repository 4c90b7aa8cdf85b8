//! Slots: the owners of the parts of the QPN space, and the sockets on port 4791.
//!
//! Sockets are opened at their first use and never closed before the broker ends, because closing
//! one would move another to its index in the group. For the same reason they outlive a broker that
//! is killed ([`keeper`](crate::keeper)). When a slot is freed, its packets are steered to the sink,
//! and its socket rejects everything and is emptied. A freed slot is used again as late as possible,
//! so that packets that are still under way to its last owner reach no other process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use polypath_ipc::SLOT_MAX;

use crate::channels::Channels;
use crate::groups;
use crate::handover::Handover;
use crate::slot_order::SlotOrder;
use crate::steering;
use crate::sys::udp::UdpSocket;

/// UDP destination port of RoCEv2.
pub(crate) const PORT: u16 = polypath_wire::ROCE_PORT;

/// The requested receive buffer in bytes; the kernel gives twice that, or less. It is much larger
/// than the window of one peer, because UC and UD have no window, and packets must wait somewhere
/// while the receiver does not run.
const RECEIVE_BUFFER: i32 = 16 << 20;

/// The largest number of packets that are discarded when a socket is emptied. More do not fit into
/// its buffer, because the kernel counts at least 256 bytes per packet.
const DRAIN_MAX: usize = RECEIVE_BUFFER as usize * 2 / 128;

/// The reason why port 4791 is not available.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Another process has it.
    #[error("{0}")]
    Taken(String),
    /// The kernel refuses for another reason.
    #[error("preparing UDP port {PORT}: {0}")]
    Io(#[from] io::Error),
}

/// The connection of a slot whose process has not connected to this broker yet.
pub(crate) const NOBODY: u64 = 0;

/// The owner of a slot in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The owning connection, or [`NOBODY`].
    pub(crate) connection: u64,
    /// The process id.
    pub(crate) pid: u32,
}

/// All sockets on the port.
#[derive(Debug)]
pub(crate) struct Slots {
    own: UdpSocket,
    sink: UdpSocket,
    multicast_guard: UdpSocket,
    /// The sockets of slots, in the order in which they were bound.
    sockets: Vec<UdpSocket>,
    order: SlotOrder,
    owners: BTreeMap<u8, Owner>,
    /// Freed slots, the one that was freed first at the front.
    freed: VecDeque<u8>,
    /// Freed slots whose process was cut off, most likely because it has ended, with its number.
    cut_off: BTreeMap<u8, u32>,
    receive_buffer: u32,
    /// The number of changes of owners.
    revision: u64,
    /// The pairs of slots whose lanes share memory.
    pub(crate) channels: Channels,
}

impl Slots {
    /// Takes the port. `seed` determines the order of slots.
    pub(crate) fn new(seed: u32) -> Result<Self, PortError> {
        // A shared port would accept sockets of the same user, and lanes of a killed broker may
        // still have some, whose indexes would interfere. So first check without sharing that the
        // port is completely free.
        probe_port()?.map_err(taken)?;

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
            order: SlotOrder::new(seed),
            owners: BTreeMap::new(),
            freed: VecDeque::new(),
            cut_off: BTreeMap::new(),
            receive_buffer,
            revision: 0,
            channels: Channels::default(),
        };
        slots.steer()?;
        Ok(slots)
    }

    /// Takes over the sockets of a broker that was killed.
    pub(crate) fn inherit(handover: &mut Handover) -> Result<Self, PortError> {
        let Handover { state, sockets, .. } = handover;
        let mut sockets = std::mem::take(sockets).into_iter().map(UdpSocket::from);
        let missing = || PortError::Io(io::ErrorKind::UnexpectedEof.into());
        let mut next = || sockets.next().ok_or_else(missing);
        let (own, sink, multicast_guard) = (next()?, next()?, next()?);
        let receive_buffer = own.enlarge_receive_buffer(RECEIVE_BUFFER)?;
        let mut slots = Self {
            own,
            sink,
            multicast_guard,
            sockets: sockets.collect(),
            order: SlotOrder::new(state.order),
            owners: BTreeMap::new(),
            freed: VecDeque::new(),
            cut_off: BTreeMap::new(),
            receive_buffer,
            revision: 0,
            channels: Channels::default(),
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

    /// All sockets in the order of binding, which never changes, because new ones are added at the
    /// end.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let first = [&self.own, &self.sink, &self.multicast_guard];
        first.into_iter().chain(&self.sockets).map(AsFd::as_fd)
    }

    /// The seed of the order in which slots are given out.
    pub(crate) fn order(&self) -> u32 {
        self.order.seed()
    }

    /// A number that changes whenever the owners of slots change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The slots in use, with their owners.
    pub(crate) fn owners(&self) -> &BTreeMap<u8, Owner> {
        &self.owners
    }

    /// Gives a process that has connected the slots that it had from a killed broker. `None` if one
    /// of them is not its own; then nothing is changed.
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

    /// Frees the slots of such a process.
    pub(crate) fn close_orphans_of(&mut self, pid: u32) {
        let orphan = Owner { connection: NOBODY, pid };
        let theirs = |(slot, owner): (&u8, &Owner)| (*owner == orphan).then_some(*slot);
        let slots: Vec<u8> = self.owners.iter().filter_map(theirs).collect();
        for slot in slots {
            self.close(slot);
            self.cut_off.insert(slot, pid);
        }
    }

    /// The process that had a slot until it was cut off. The slot is free, or of nobody.
    pub(crate) fn cut_off(&self, slot: u8) -> Option<u32> {
        self.cut_off.get(&slot).copied()
    }

    fn steer(&self) -> io::Result<()> {
        let index = |slot| steering::FIRST_SLOT_INDEX + self.place(slot) as u32;
        let slots = self.owners.keys().map(|&slot| (slot, index(slot)));
        self.own.steer_group(&mut steering::program(slots))
    }

    /// The index of a slot's socket in `sockets`, even if it is not open yet.
    fn place(&self, slot: u8) -> usize {
        self.order.place(slot)
    }

    /// Assigns a free slot; `None` if all are in use.
    pub(crate) fn open(&mut self, owner: Owner) -> io::Result<Option<u8>> {
        let Some(slot) = self.next_slot() else { return Ok(None) };
        self.give(slot, owner)?;
        Ok(Some(slot))
    }

    /// Assigns this slot, which is free. Its new owner continues queue pairs that had numbers in
    /// it.
    pub(crate) fn open_on(&mut self, slot: u8, owner: Owner) -> io::Result<()> {
        debug_assert!(self.owner(slot).is_none(), "slot {slot} is given out");
        // Sockets are bound in the order of slots, which their indexes follow. Those before this one are
        // opened too, and wait like freed ones.
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
        self.cut_off.remove(&slot);
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
        self.order.slot(self.sockets.len()).or_else(|| self.freed.pop_front())
    }

    /// Prepares a slot's socket for a new owner.
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

    /// Frees a slot. Returns true if it was in use.
    pub(crate) fn close(&mut self, slot: u8) -> bool {
        if self.owners.remove(&slot).is_none() {
            return false;
        }
        self.revision += 1;
        self.channels.forget(slot);
        // Neither fails for a socket and a program that were accepted before. If one did, packets
        // would fill the buffer, and be discarded before the slot is used again.
        let _ = self.steer();
        if let Some(socket) = self.sockets.get(self.place(slot)) {
            let _ = socket.refuse_all();
            groups::leave_all(socket);
            socket.drain(DRAIN_MAX);
        }
        self.freed.push_back(slot);
        true
    }

    /// Frees all slots of a connection. `leaves`: its process goes on elsewhere.
    pub(crate) fn close_all_of(&mut self, connection: u64, leaves: bool) {
        let mine = |(slot, owner): (&u8, &Owner)| {
            (owner.connection == connection).then_some((*slot, owner.pid))
        };
        let slots: Vec<(u8, u32)> = self.owners.iter().filter_map(mine).collect();
        for (slot, pid) in slots {
            self.close(slot);
            if !leaves {
                self.cut_off.insert(slot, pid);
            }
        }
    }

    /// The owner of a slot.
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

    /// The size of a lane's receive buffer, as the kernel counts it.
    pub(crate) fn receive_buffer(&self) -> u32 {
        self.receive_buffer
    }

    /// The slots in use, with their owners and the number of packets lost to a full buffer.
    pub(crate) fn status(&self) -> impl Iterator<Item = (u8, Owner, u32)> {
        self.owners.iter().map(|(&slot, &owner)| {
            let socket = self.sockets.get(self.place(slot));
            let drops = socket.and_then(|socket| socket.drops().ok()).unwrap_or(0);
            (slot, owner, drops)
        })
    }

    /// The number of packets in the sink, which were for free slots.
    pub(crate) fn sunk(&self) -> u32 {
        self.sink.drops().unwrap_or(0)
    }
}

/// Opens a socket of the group, for the broker itself or a lane.
fn open() -> io::Result<UdpSocket> {
    let socket = UdpSocket::new()?;
    socket.describe_packets()?;
    socket.ignore_path_mtu()?;
    socket.share_port()?;
    socket.bind(PORT)?;
    Ok(socket)
}

/// Opens a socket of the group whose packets the kernel drops.
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

/// Whether no socket has the port.
pub(crate) fn port_is_free() -> bool {
    matches!(probe_port(), Ok(Ok(())))
}

/// Binds a socket to the port that does not share it, and closes it again. The inner error is the
/// answer of bind(2).
fn probe_port() -> io::Result<io::Result<()>> {
    Ok(UdpSocket::new()?.bind(PORT))
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
