//! One ring: packets from one lane to another.
//!
//! One end writes, the other reads. *Tail* counts the bytes that were ever written, *head* those that
//! were ever read; each end keeps its own count, and only tells it to the other one through the memory. A
//! record is a header, the packet, and padding to 8 bytes. None wraps: where it would, a mark fills the
//! rest of the ring.
//!
//! | at | size | in the ring's first page |
//! |---|---|---|
//! | 0 | 8 | tail |
//! | 128 | 8 | head |
//! | 256 | 4 | not 0: the reader sleeps, and wants the bell |
//!
//! | at | size | in a record |
//! |---|---|---|
//! | 0 | 4 | length of the packet, or [`MARK`] |
//! | 4 | 4 | zero |
//! | 8 | 16 | source address of the path, IPv4 as ::ffff:a.b.c.d |
//! | 24 | 16 | destination address |
//! | 40 | | the packet, from the BTH to its padding |

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use polypath_topology::gids::gid_of;

use super::memory::SharedMemory;
use super::{PACKET_BYTES, asleep};
use crate::address::ip_of;

/// The bytes of a ring that hold records.
pub(super) const BYTES: usize = 1 << 20;
/// The bytes before them.
const PAGE: usize = 4096;
/// All bytes of a ring.
const WHOLE: usize = PAGE + BYTES;
/// All bytes of a channel: a ring for each direction.
pub(super) const CHANNEL_BYTES: usize = 2 * WHOLE;

const TAIL: usize = 0;
const HEAD: usize = 128;
const SLEEPS: usize = 256;
/// The bytes of a record before the packet.
const HEADER: usize = 40;
/// In place of a length: the next record is at the beginning of the ring.
const MARK: u32 = u32::MAX;

/// The other process has broken the rules of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The bytes that the record of a packet takes.
const fn record(len: usize) -> usize {
    (HEADER + len).next_multiple_of(8)
}

/// Where a ring is in the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    from: usize,
}

impl Ring {
    /// The ring into which the first or the second lane of a channel writes.
    pub(super) fn of(second: bool) -> Self {
        Self { from: if second { WHOLE } else { 0 } }
    }

    /// The reader, which has read everything up to `head`, says that it sleeps. Returns whether it may.
    pub(super) fn may_sleep(self, memory: &SharedMemory, head: u64) -> bool {
        let (sleeps, tail) = (memory.half(self.from + SLEEPS), memory.word(self.from + TAIL));
        asleep::may_sleep(sleeps, tail, head)
    }

    /// The reader says that it is awake.
    pub(super) fn wake_up(self, memory: &SharedMemory) {
        memory.half(self.from + SLEEPS).store(0, Ordering::Relaxed);
    }

    /// Whether the writer, which has just written, has to ring.
    #[inline]
    pub(super) fn must_ring(self, memory: &SharedMemory) -> bool {
        asleep::must_ring(memory.half(self.from + SLEEPS))
    }

    /// How many bytes were ever written.
    pub(super) fn tail(self, memory: &SharedMemory) -> u64 {
        memory.word(self.from + TAIL).load(Ordering::Acquire)
    }

    /// Where in the memory the byte with this count is, and how many more follow before the ring's end.
    fn place(self, count: u64) -> (usize, usize) {
        let at = (count % BYTES as u64) as usize;
        (self.from + PAGE + at, BYTES - at)
    }
}

/// Room for a packet in the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Where in the memory the packet begins.
    pub(super) at: usize,
    /// The tail after it.
    end: u64,
}

/// The end that writes.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Ring,
    tail: u64,
    /// As last read.
    head: u64,
}

impl Producer {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, tail: 0, head: 0 }
    }

    /// Makes room for a packet of `len` bytes. What is written there is seen by the reader when it is
    /// [told](Self::tell), and is lost if another room is made before. Returns `None` if there is no room.
    ///
    /// # Errors
    /// The reader pretends to have read more than was written.
    pub(super) fn room(
        &mut self,
        memory: &SharedMemory,
        src: IpAddr,
        dst: IpAddr,
        len: usize,
    ) -> Result<Option<Room>, Broken> {
        if len > PACKET_BYTES {
            return Ok(None);
        }
        let need = record(len);
        let (mut at, to_end) = self.ring.place(self.tail);
        let skipped = if to_end < need { to_end } else { 0 };
        if !self.has_room(memory, skipped + need)? {
            return Ok(None);
        }
        if skipped > 0 {
            memory.write(at, &MARK.to_ne_bytes());
            at = self.ring.place(0).0;
        }
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        header[8..24].copy_from_slice(&gid_of(src));
        header[24..].copy_from_slice(&gid_of(dst));
        memory.write(at, &header);
        Ok(Some(Room { at: at + HEADER, end: self.tail + (skipped + need) as u64 }))
    }

    /// Tells the reader that a packet was written.
    pub(super) fn tell(&mut self, memory: &SharedMemory, room: Room) {
        debug_assert!(room.end > self.tail, "room that was made since the last packet");
        self.tail = room.end;
        memory.word(self.ring.from + TAIL).store(self.tail, Ordering::Release);
    }

    /// Writes a packet, which the reader sees at once. Returns false if there is no room.
    ///
    /// # Errors
    /// Those of [`room`](Self::room).
    pub(super) fn push(
        &mut self,
        memory: &SharedMemory,
        src: IpAddr,
        dst: IpAddr,
        packet: &[u8],
    ) -> Result<bool, Broken> {
        let Some(room) = self.room(memory, src, dst, packet.len())? else { return Ok(false) };
        memory.write(room.at, packet);
        self.tell(memory, room);
        Ok(true)
    }

    fn has_room(&mut self, memory: &SharedMemory, need: usize) -> Result<bool, Broken> {
        let fits = |used: u64| used <= (BYTES - need) as u64;
        if fits(self.tail - self.head) {
            return Ok(true);
        }
        let head = memory.word(self.ring.from + HEAD).load(Ordering::Acquire);
        // It only grows, and not beyond the tail.
        if !(self.head..=self.tail).contains(&head) {
            return Err(Broken);
        }
        self.head = head;
        Ok(fits(self.tail - head))
    }
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Ring,
    head: u64,
    /// As last read.
    tail: u64,
}

impl Consumer {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, head: 0, tail: 0 }
    }

    /// How many bytes were ever read.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Copies the next packet into `out`. Returns its source, destination and length; `None` if there is
    /// none. The room of what was read is given back by [`tell`](Self::tell).
    ///
    /// # Errors
    /// The numbers in the memory are impossible.
    pub(super) fn pop(
        &mut self,
        memory: &SharedMemory,
        out: &mut [u8; PACKET_BYTES],
    ) -> Result<Option<(IpAddr, IpAddr, usize)>, Broken> {
        if self.head == self.tail && !self.look(memory)? {
            return Ok(None);
        }
        let mut header = [0; HEADER];
        let (mut at, mut to_end) = self.ring.place(self.head);
        memory.read(at, &mut header[..4]);
        if number(&header) == MARK {
            // At least one record follows a mark.
            if self.left() <= to_end {
                return Err(Broken);
            }
            self.head += to_end as u64;
            (at, to_end) = self.ring.place(self.head);
        }
        if self.left().min(to_end) < HEADER {
            return Err(Broken);
        }
        // From here on only the copy counts.
        memory.read(at, &mut header);
        let len = number(&header) as usize;
        if len > PACKET_BYTES || record(len) > self.left().min(to_end) {
            return Err(Broken);
        }
        memory.read(at + HEADER, &mut out[..len]);
        self.head += record(len) as u64;
        Ok(Some((address(&header[8..24]), address(&header[24..]), len)))
    }

    /// Whether more was written.
    fn look(&mut self, memory: &SharedMemory) -> Result<bool, Broken> {
        let tail = self.ring.tail(memory);
        if tail == self.head {
            return Ok(false);
        }
        let more = tail.wrapping_sub(self.head);
        if more > BYTES as u64 || !more.is_multiple_of(8) {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(true)
    }

    /// The bytes that were written and not yet read, as far as was looked.
    fn left(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// Gives the room of what was read back to the writer.
    pub(super) fn tell(&self, memory: &SharedMemory) {
        memory.word(self.ring.from + HEAD).store(self.head, Ordering::Release);
    }
}

fn number(header: &[u8; HEADER]) -> u32 {
    u32::from_ne_bytes([header[0], header[1], header[2], header[3]])
}

fn address(octets: &[u8]) -> IpAddr {
    ip_of(octets.try_into().unwrap_or_default())
}
