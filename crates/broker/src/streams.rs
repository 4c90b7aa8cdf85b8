//! The beginnings of TCP streams: who may be called, and the preamble by which a caller says whom it wants.
//!
//! All numbers of a preamble are big-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | magic "PPTS" |
//! | 4 | version, 1 |
//! | 5 | slot of the lane that is called |
//! | 6 | slot of the calling lane |
//! | 7 | zero |
//! | 8 | length of the opening (2), 12 to 512, a multiple of four |
//! | 10 | zero (2) |
//! | 12 | the opening: a packet of the path manager, by which the called lane decides |
//!
//! The broker of the called host reads the preamble and nothing after it. So a stranger can hold one of a few
//! places for a short time, and send a lane one packet that it refuses. Slot 0 is the broker itself
//! ([`mad_streams`](crate::mad_streams)).

use std::collections::BTreeMap;
use std::time::Duration;

use polypath_ipc::message::OPENING_MAX;

/// The length of a preamble without its opening.
pub(crate) const FIXED: usize = 12;

const MAGIC: [u8; 4] = *b"PPTS";
const VERSION: u8 = 1;
/// The shortest packet, in bytes: a BTH.
const OPENING_MIN: usize = 12;

/// The most connections whose preamble has not come. The oldest makes room for a further one.
pub(crate) const WAITING_MAX: usize = 64;
/// How long a preamble may take, and how long a connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// The most connections that one process may be making.
pub(crate) const CALLS_MAX: usize = 64;
/// The most ports that the broker listens on.
pub(crate) const PORTS_MAX: usize = 8;

/// The bytes of a preamble that have arrived.
#[derive(Debug)]
pub(crate) struct Preamble {
    bytes: [u8; FIXED + OPENING_MAX],
    len: usize,
}

/// What a preamble says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Called {
    /// The slot of the lane that is called.
    pub(crate) slot: u8,
    /// The slot of the lane that calls.
    pub(crate) by: u8,
    pub(crate) opening: Vec<u8>,
}

/// This is no preamble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl Preamble {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; FIXED + OPENING_MAX], len: 0 }
    }

    /// Where the bytes go that are missing, as far as is known. It is never empty while
    /// [`read`](Self::read) gives `None`.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let end = match self.opening_len() {
            Ok(Some(len)) => FIXED + len,
            _ => FIXED,
        };
        &mut self.bytes[self.len..end]
    }

    /// Notes that so many bytes were put there.
    pub(crate) fn arrived(&mut self, len: usize) {
        self.len = (self.len + len).min(self.bytes.len());
    }

    /// The length of the opening, if it has arrived.
    fn opening_len(&self) -> Result<Option<usize>, Nonsense> {
        let here = &self.bytes[..self.len];
        // What is wrong from the first byte on need not be waited for.
        let known = self.len.min(MAGIC.len());
        if here[..known] != MAGIC[..known] {
            return Err(Nonsense);
        }
        let Some(fixed) = here.first_chunk::<FIXED>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        let good = fixed[4] == VERSION
            && [fixed[7], fixed[10], fixed[11]] == [0; 3]
            && (OPENING_MIN..=OPENING_MAX).contains(&len)
            && len.is_multiple_of(4);
        if good { Ok(Some(len)) } else { Err(Nonsense) }
    }

    /// What it says; `None` if something is missing.
    pub(crate) fn read(&self) -> Result<Option<Called>, Nonsense> {
        let Some(len) = self.opening_len()? else { return Ok(None) };
        let opening = self.bytes[..self.len].get(FIXED..FIXED + len);
        let [slot, by] = [self.bytes[5], self.bytes[6]];
        Ok(opening.map(|opening| Called { slot, by, opening: opening.to_vec() }))
    }
}

/// Builds a preamble; `None` if the opening has no such length.
pub(crate) fn preamble(slot: u8, by: u8, opening: &[u8]) -> Option<Vec<u8>> {
    let len = opening.len();
    let fits = (OPENING_MIN..=OPENING_MAX).contains(&len) && len.is_multiple_of(4);
    let [high, low] = u16::try_from(len).ok().filter(|_| fits)?.to_be_bytes();
    let mut bytes = MAGIC.to_vec();
    bytes.extend([VERSION, slot, by, 0, high, low, 0, 0]);
    bytes.extend_from_slice(opening);
    Some(bytes)
}

/// What peers may call by TCP.
#[derive(Debug, Default)]
pub(crate) struct Callable {
    /// The slots whose lanes may be, each with the connection that wants it and the port.
    lanes: BTreeMap<u8, (u64, u16)>,
    /// The ports by which connections let the broker itself be called, for messages of the connection
    /// manager.
    broker: BTreeMap<u64, u16>,
}

impl Callable {
    pub(crate) fn add(&mut self, slot: u8, connection: u64, port: u16) {
        self.lanes.insert(slot, (connection, port));
    }

    /// Forgets slots that have another owner by now. `owner`: the connection that a slot belongs to.
    pub(crate) fn retain(&mut self, owner: impl Fn(u8) -> Option<u64>) {
        self.lanes.retain(|slot, (connection, _)| owner(*slot) == Some(*connection));
    }

    /// Whether a slot may be called by this port.
    pub(crate) fn has(&self, slot: u8, port: u16) -> bool {
        self.lanes.get(&slot).is_some_and(|(_, of)| *of == port)
    }

    /// Notes the port of a connection's messages of the connection manager, or that it has none.
    pub(crate) fn set_port(&mut self, connection: u64, port: Option<u16>) {
        match port {
            Some(port) => self.broker.insert(connection, port),
            None => self.broker.remove(&connection),
        };
    }

    /// That port.
    pub(crate) fn port_of(&self, connection: u64) -> Option<u16> {
        self.broker.get(&connection).copied()
    }

    /// Whether there is any connection with such a port.
    pub(crate) fn has_any_port(&self) -> bool {
        !self.broker.is_empty()
    }

    /// Whether the broker itself may be called by this port.
    pub(crate) fn has_broker(&self, port: u16) -> bool {
        self.broker.values().any(|of| *of == port)
    }

    /// Whether a port is needed.
    pub(crate) fn needs(&self, port: u16) -> bool {
        self.has_broker(port) || self.lanes.values().any(|(_, of)| *of == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(preamble: &mut Preamble, bytes: &[u8]) -> usize {
        let room = preamble.room();
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        preamble.arrived(len);
        len
    }

    #[test]
    fn a_preamble_is_read_in_any_pieces_and_nothing_after_it() {
        let bytes = preamble(7, 9, &[5; 100]).unwrap();
        let mut more = bytes.clone();
        more.extend([1; 50]);
        for piece in [1, 5, 12, 13, 4096] {
            let (mut got, mut at) = (Preamble::new(), 0);
            while got.read() == Ok(None) {
                let end = more.len().min(at + piece);
                at += put(&mut got, &more[at..end]);
            }
            assert_eq!(at, bytes.len(), "pieces of {piece}");
            let called = Called { slot: 7, by: 9, opening: vec![5; 100] };
            assert_eq!(got.read(), Ok(Some(called)));
        }
    }

    #[test]
    fn a_stranger_is_known_by_its_first_bytes() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"PPTX", b"\x16\x03\x01", b"PX"] {
            let mut got = Preamble::new();
            put(&mut got, bytes);
            assert_eq!(got.read(), Err(Nonsense), "{bytes:?}");
        }
        let good = preamble(1, 2, &[0; 12]).unwrap();
        for at in [0, 3, 4, 7, 8, 9, 10, 11] {
            let mut bad = good.clone();
            bad[at] ^= 0x81;
            let mut got = Preamble::new();
            put(&mut got, &bad[..FIXED]);
            assert_eq!(got.read(), Err(Nonsense), "byte {at}");
        }
        for len in [0, 8, 13, OPENING_MAX + 4] {
            assert_eq!(preamble(1, 2, &vec![0; len]), None, "{len}");
        }
    }

    #[test]
    fn a_slot_is_called_by_its_port_until_it_has_another_owner() {
        let mut callable = Callable::default();
        callable.add(3, 10, 4791);
        callable.add(4, 11, 5000);
        assert!(callable.has(3, 4791) && !callable.has(3, 5000) && !callable.has(5, 4791));
        callable.retain(|slot| (slot == 3).then_some(10));
        assert!(callable.needs(4791) && !callable.needs(5000) && !callable.has(4, 5000));
        callable.retain(|_| Some(99));
        assert!(!callable.needs(4791));
        callable.set_port(7, Some(4791));
        assert!(callable.needs(4791) && callable.has_broker(4791) && !callable.has_broker(5000));
        assert!(!callable.has(3, 4791) && callable.port_of(7) == Some(4791));
        callable.set_port(7, None);
        assert!(!callable.needs(4791) && callable.port_of(7).is_none());
    }
}
