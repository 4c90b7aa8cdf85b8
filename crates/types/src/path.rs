//! Paths, as queue pairs and the path manager refer to them.

use core::time::Duration;

/// The number of a path in a lane's table. It stays the same while a queue pair or address handle uses
/// the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

impl PathId {
    /// The number that no path has.
    pub const NONE: Self = Self(u32::MAX);
}

/// The number of a peer in a lane's table. A peer is a remote lane as reached by one pair of addresses,
/// and has a set of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// The kind of a path: what carries its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathKind {
    /// RoCEv2 over UDP.
    #[default]
    Udp,
    /// Memory that two lanes of one host share. It is of one pair of lanes, whatever addresses the path has.
    Local {
        /// The slot of the other lane.
        slot: u8,
    },
    /// A TCP stream between two lanes.
    Tcp {
        /// The slot of the other lane.
        slot: u8,
    },
}

impl PathKind {
    /// The rank among the kinds of a peer's paths: data goes by those of the lowest rank that work.
    #[must_use]
    pub fn rank(self) -> u8 {
        match self {
            Self::Local { .. } => 0,
            Self::Udp => 1,
            Self::Tcp { .. } => 2,
        }
    }

    /// Whether it is a TCP stream.
    #[must_use]
    pub fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp { .. })
    }
}

/// The path information in multi-path packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathTag {
    /// The number by which both ends know the path: less than the largest number of paths of an
    /// association, which is 8.
    pub id: u8,
    /// Raised whenever the path is given up. Packets of an earlier generation are refused.
    pub generation: u16,
}

/// What a peer can do besides what every multi-path peer does, as it tells in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerAbilities {
    /// It keeps packets that arrive early within this many bytes, a power of two, and reads the blocks of an
    /// acknowledgement; 0: it has not said so.
    pub reach: u32,
    /// It takes requests for parts of a READ, each of which begins where the one before ends, for one
    /// request: `max_rd_atomic` counts them once.
    pub joins_reads: bool,
    /// It says in its answers when packets came with a mark of congestion (RFC 3168).
    pub echoes_marks: bool,
    /// It takes one copy only of a datagram that is sent by two paths.
    pub drops_copies: bool,
    /// It can have paths through shared memory.
    pub local: bool,
    /// It can have paths over TCP.
    pub tcp: bool,
}

/// The path to send on next, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path.
    pub path: PathId,
    /// The tag for multi-path headers, if there is an association with the peer's lane. Packets may
    /// then carry the header, if the association covers the queue pair.
    pub tag: Option<PathTag>,
    /// The bytes that the path's window has room for. Payload counts, and a fixed cost for each packet.
    /// If the window is too small, a queue pair waits until it has grown. Acknowledgements ignore it.
    pub window: u32,
    /// The smoothed round-trip time, if it has been measured.
    pub rtt: Option<Duration>,
    /// The number of bytes after which the queue pair has to ask again. Until then it sends everything
    /// on this path, unless that does not fit the window.
    pub quantum: u32,
    /// The path that takes a copy of everything that is sent by this route, if there is one.
    pub twin: Option<Twin>,
}

/// The path of the copies of what is sent by a [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    /// The path, another one than the route's.
    pub path: PathId,
    /// Its tag. Packets without a multi-path header are never sent twice.
    pub tag: PathTag,
    /// The bytes of copies that the path takes, counted like those of a window. If a copy does not fit, it
    /// is left out.
    pub window: u32,
}

/// What tells the copies of a datagram, which is sent by two paths, from other datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramCopies {
    /// The tags of the two paths.
    pub tags: [PathTag; 2],
    /// The receiver's number for the association of the two lanes.
    pub association: u32,
    /// The number of datagrams that were sent by two paths of the association before, wrapping.
    pub number: u32,
}

/// The path set of a multi-path peer, as it looks to who thinks of two paths (automatic path migration).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoPaths {
    /// The main path, or the one that the queue pair has for itself. Data may use others besides.
    pub active: PathId,
    /// The best of the others that can carry data, if there is one.
    pub other: Option<PathId>,
}

/// The request of a queue pair for a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The queue pair.
    pub qpn: u32,
    /// The bytes that it has to send next, as they count against a window: at most one burst.
    pub bytes: u32,
    /// The bytes that it has to send in all, the next ones included: about as many as the work requests that
    /// were posted have left.
    pub backlog: u64,
    /// Whether it asks for a part of a READ. `bytes` are then those of the answer, and it asks only if the
    /// window of the path has room for all of them, or for a quarter of itself.
    pub asks: bool,
    /// The class of what it has to send.
    pub class: Class,
}

/// The class of what a queue pair has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Requests, sent for the first time or again.
    Request,
    /// A packet that is sent again to find out whether it arrived, or the first one on another path
    /// after a path has died. It waits for no window.
    Urgent,
    /// The answer to a READ or an atomic. It waits for no window.
    Answer {
        /// The path on which the request came.
        asked_by: PathId,
    },
}

/// The answer to a queue pair that wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// A route.
    Route(Route),
    /// All living paths are full; the queue pair waits until a window opens.
    Wait,
    /// No path is alive.
    NoPath,
}
