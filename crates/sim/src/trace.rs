//! The packets that were sent on the links of a run, and the fate of each.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use polypath_wire::Packet;
use polypath_wire::cm::CmMad;

use crate::datagram::Datagram;

/// The largest number of entries that a trace keeps. If there are more, it keeps the last ones.
const ITEMS_MAX: usize = 1 << 20;

/// The queue pair number that management datagrams are sent to.
const QP1: u32 = 1;

/// The reason why a datagram did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// The sender has no such address (any more), or no carrier.
    NoSource,
    /// Nobody on the link has the destination address.
    NoDestination,
    /// The link was silently cut in this direction.
    Cut,
    /// The link loses such packets for certain.
    Hole,
    /// It took a way within the link that loses packets.
    Way,
    /// It was lost by chance.
    Chance,
    /// It was lost in a burst of losses.
    Burst,
    /// The queue of the sender's or the receiver's port was full.
    Queue,
}

impl fmt::Display for Drop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSource => "dropped: the sender has no such address, or no carrier",
            Self::NoDestination => "dropped: nobody on the link has the destination address",
            Self::Cut => "dropped: the link is cut in this direction",
            Self::Hole => "dropped: in a hole of the link",
            Self::Way => "dropped: by a bad way of the link",
            Self::Chance => "dropped: by chance",
            Self::Burst => "dropped: in a burst of losses",
            Self::Queue => "dropped: the queue is full",
        })
    }
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time.
    Arrives(Duration),
    /// It arrives at this time with flipped bits.
    Corrupted(Duration),
    /// It, or a copy of it, arrives a second time at this time.
    Again(Duration),
    /// It does not arrive.
    Dropped(Drop),
    /// An attacker sent it to the host that is noted as its sender.
    Injected,
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrives(at) => write!(f, "arrives at {at:?}"),
            Self::Corrupted(at) => write!(f, "arrives corrupted at {at:?}"),
            Self::Again(at) => write!(f, "arrives once more at {at:?}"),
            Self::Dropped(why) => why.fmt(f),
            Self::Injected => f.write_str("an attacker's"),
        }
    }
}

/// One datagram on one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The virtual time when it was sent.
    pub at: Duration,
    /// Number of the sending host.
    pub from: usize,
    /// The link; `None` if there is none with the sender's address.
    pub link: Option<usize>,
    /// The datagram as it was sent, or as it arrived if it was corrupted.
    pub datagram: Datagram,
    /// Its fate.
    pub fate: Fate,
}

impl fmt::Display for Record {
    /// One line, like tcpdump's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = &self.datagram.flow;
        write!(f, "{:?} ", self.at)?;
        match self.link {
            Some(link) => write!(f, "link {link}: ")?,
            None => f.write_str("no link: ")?,
        }
        write!(f, "{} > {}: ", flow.src, flow.dst)?;
        match Packet::parse(&self.datagram.bytes) {
            Ok(p) => match CmMad::parse(p.payload).ok().filter(|_| p.headers.bth.dest_qpn == QP1) {
                Some(mad) => write!(f, "{mad}")?,
                None => write!(f, "{} +{}", p.headers, p.payload.len())?,
            },
            Err(error) => write!(f, "{} bytes: {error}", self.datagram.bytes.len())?,
        }
        write!(f, "; {}", self.fate)
    }
}

/// An entry of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Packet(Record),
    /// A fault, or what a path manager reported.
    Note(Duration, String),
}

/// The packets of a run in the order of sending, and notes of what else happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    items: VecDeque<Item>,
    /// The number of entries before the first one kept.
    pub forgotten: u64,
    /// The largest number of entries to keep.
    limit: usize,
}

impl Trace {
    /// Creates a trace that keeps the last 2^20 entries.
    pub fn whole() -> Self {
        Self::last(ITEMS_MAX)
    }

    /// Creates a trace that keeps the last `limit` entries, at least 1 and at most 2^20.
    pub fn last(limit: usize) -> Self {
        Self { items: VecDeque::new(), forgotten: 0, limit: limit.clamp(1, ITEMS_MAX) }
    }

    /// Adds a packet.
    pub(crate) fn push(&mut self, record: Record) {
        self.add(Item::Packet(record));
    }

    /// Adds a note.
    pub(crate) fn note(&mut self, at: Duration, text: String) {
        self.add(Item::Note(at, text));
    }

    fn add(&mut self, item: Item) {
        if self.items.len() >= self.limit {
            self.items.pop_front();
            self.forgotten += 1;
        }
        self.items.push_back(item);
    }

    /// The packets that it keeps, oldest first.
    pub fn packets(&self) -> impl Iterator<Item = &Record> {
        self.items.iter().filter_map(|item| match item {
            Item::Packet(record) => Some(record),
            Item::Note(..) => None,
        })
    }

    /// Whether nothing was sent and nothing happened.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl fmt::Display for Trace {
    /// Writes one line for each packet and for each note.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(f, "({} lines before these)", self.forgotten)?;
        }
        self.items.iter().try_for_each(|item| match item {
            Item::Packet(record) => writeln!(f, "{record}"),
            Item::Note(at, text) => writeln!(f, "{at:?} {text}"),
        })
    }
}
