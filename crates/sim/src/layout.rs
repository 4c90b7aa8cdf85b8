//! The layout of the memory of a pair of queue pairs. It is the same on both hosts.

use polypath_transport::QpType;

use crate::case::OpKind;

/// The number of counters at the start of each host's memory that all queue pairs share.
pub(crate) const SHARED: u64 = 4;
/// The number of bytes before the memory of the first pair.
pub(crate) const COMMON: u64 = SHARED * 8;
/// The number of bytes of the area, which the peer's WRITEs write and its READs read.
pub(crate) const AREA: u64 = 48 << 10;
/// The number of buffers of a shared receive queue.
pub(crate) const SRQ_DEPTH: u64 = 48;
/// The number of bytes of a buffer of a reliable queue pair, and of a shared receive queue.
pub(crate) const BUFFER: u64 = 12 << 10;
/// The number of bytes of a buffer of an unreliable queue pair: room for a GRH and 4096 bytes.
const SMALL_BUFFER: u64 = (4 << 10) + 64;

/// The bit of keys that the peer makes invalid. No other keys have it, except those of `OWN_KEYS`.
const PASSING_KEYS: u32 = 1 << 31;
/// The bits of keys that their own end makes invalid, and of the keys of its windows.
const OWN_KEYS: u32 = 3 << 30;

/// Whether a key is one that the end itself makes valid or invalid, not its peer.
pub(crate) fn is_own_key(key: u32) -> bool {
    key & OWN_KEYS == OWN_KEYS
}

/// The memory of one pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The address at which it begins.
    pub(crate) base: u64,
    /// The largest number of outstanding work requests. Each has its own buffer.
    pub(crate) depth: u64,
    /// The number of bytes of a buffer.
    pub(crate) buffer: u64,
}

impl Layout {
    pub(crate) fn new(service: QpType, base: u64) -> Self {
        match service {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                Self { base, depth: 12, buffer: BUFFER }
            }
            QpType::Uc | QpType::Ud => Self { base, depth: 40, buffer: SMALL_BUFFER },
        }
    }

    /// The address after its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.counter() + 8
    }

    /// The address of the buffer from which work request `number` sends.
    pub(crate) fn source(&self, number: u64) -> u64 {
        self.base + AREA + number % self.depth * self.buffer
    }

    /// The address of the landing buffer, which takes what READ or atomic `number` brings.
    pub(crate) fn landing(&self, number: u64) -> u64 {
        self.base + AREA + (self.depth + number % self.depth) * self.buffer
    }

    /// The address of the buffer of the receive for work request `number`.
    pub(crate) fn receive(&self, number: u64) -> u64 {
        self.base + AREA + (self.depth * 2 + number % self.depth) * self.buffer
    }

    /// The number of bytes of all receive buffers.
    pub(crate) fn inbox_len(&self) -> usize {
        (self.depth * self.buffer) as usize
    }

    /// The address of the counter that only this pair's requester uses.
    pub(crate) fn counter(&self) -> u64 {
        self.base + AREA + self.depth * 3 * self.buffer
    }

    /// The key that work request `number` of this kind makes invalid or valid.
    pub(crate) fn key(&self, kind: OpKind, number: u64) -> u32 {
        let of = if kind.is_local() { OWN_KEYS } else { PASSING_KEYS };
        of | (self.base + number) as u32
    }

    /// Whether an address lies in a landing buffer.
    pub(crate) fn is_landing(&self, addr: u64) -> bool {
        (self.landing(0)..self.receive(0)).contains(&addr)
    }

    /// Whether an address lies in the area.
    pub(crate) fn is_area(&self, addr: u64) -> bool {
        (self.base..self.base + AREA).contains(&addr)
    }
}
