//! Where the memory of a pair of queue pairs lies; the same on both hosts.

use polypath_transport::QpType;

use crate::case::OpKind;

/// Counters at the start of each host's memory that all queue pairs share.
pub(crate) const SHARED: u64 = 4;
/// Bytes before the memory of the first pair.
pub(crate) const COMMON: u64 = SHARED * 8;
/// Bytes that the peer's WRITEs go to and READs come from.
pub(crate) const AREA: u64 = 48 << 10;
/// Buffers of a shared receive queue.
pub(crate) const SRQ_DEPTH: u64 = 48;
/// Bytes of a buffer of a reliable queue pair, and of a shared receive queue.
pub(crate) const BUFFER: u64 = 12 << 10;
/// Bytes of a buffer of an unreliable queue pair: room for a GRH and 4096 bytes.
const SMALL_BUFFER: u64 = (4 << 10) + 64;

/// Keys that are made invalid by the peer are above all others.
const PASSING_KEYS: u32 = 1 << 31;
/// And those that are by their own end, or are of its windows.
const OWN_KEYS: u32 = 3 << 30;

/// Whether a key is of the end itself, and not for its peer.
pub(crate) fn is_own_key(key: u32) -> bool {
    key & OWN_KEYS == OWN_KEYS
}

/// The memory of one pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Where it begins.
    pub(crate) base: u64,
    /// Work requests outstanding at most; each has its own buffer.
    pub(crate) depth: u64,
    /// Bytes of a buffer.
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

    /// Where it ends.
    pub(crate) fn end(&self) -> u64 {
        self.counter() + 8
    }

    /// What goes out lies here.
    pub(crate) fn source(&self, number: u64) -> u64 {
        self.base + AREA + number % self.depth * self.buffer
    }

    /// What READs and atomics bring goes here.
    pub(crate) fn landing(&self, number: u64) -> u64 {
        self.base + AREA + (self.depth + number % self.depth) * self.buffer
    }

    /// What is received goes here.
    pub(crate) fn receive(&self, number: u64) -> u64 {
        self.base + AREA + (self.depth * 2 + number % self.depth) * self.buffer
    }

    /// Bytes of all receive buffers.
    pub(crate) fn inbox_len(&self) -> usize {
        (self.depth * self.buffer) as usize
    }

    /// The counter that only this pair's requester uses.
    pub(crate) fn counter(&self) -> u64 {
        self.base + AREA + self.depth * 3 * self.buffer
    }

    /// The key that work request `number`, of this kind, makes invalid, or valid.
    pub(crate) fn key(&self, kind: OpKind, number: u64) -> u32 {
        let of = if kind.is_local() { OWN_KEYS } else { PASSING_KEYS };
        of | (self.base + number) as u32
    }

    /// Whether an address is of a landing buffer.
    pub(crate) fn is_landing(&self, addr: u64) -> bool {
        (self.landing(0)..self.receive(0)).contains(&addr)
    }

    /// Whether an address is of the area.
    pub(crate) fn is_area(&self, addr: u64) -> bool {
        (self.base..self.base + AREA).contains(&addr)
    }
}
