//! Paths, as queue pairs and the path manager name them to each other.

use core::time::Duration;

/// Names a path in a lane's table. Stable while a queue pair or address handle uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

impl PathId {
    /// No path: no lane has so many.
    pub const NONE: Self = Self(u32::MAX);
}

/// Names a peer (a remote lane as reached by one pair of addresses), and with it its set of paths, in a
/// lane's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// What multi-path packets say of their path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathTag {
    /// The number both ends know the path by, below the most paths of an association (8).
    pub id: u8,
    /// Raised whenever the path is given up; packets of an older generation are refused.
    pub generation: u16,
}

/// Where to send now, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path.
    pub path: PathId,
    /// Present when there is an association with the peer's lane: then packets may carry the
    /// multi-path header, if the queue pair itself was agreed upon.
    pub tag: Option<PathTag>,
    /// Bytes that the path's window still takes: of payload, with a cost for each packet. When it is too
    /// small, a queue pair waits until it has grown. Acknowledgements ignore it.
    pub window: u32,
    /// Smoothed round-trip time, if measured.
    pub rtt: Option<Duration>,
    /// Bytes after which to ask again: until then all goes by this path, unless it does not fit its window.
    pub quantum: u32,
}

/// What a queue pair wants a route for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The queue pair.
    pub qpn: u32,
    /// What it has to send next, as it counts against a window: at most one burst.
    pub bytes: u32,
    /// What that is.
    pub class: Class,
}

/// What a queue pair has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Requests, for the first time or again.
    Request,
    /// A packet that is sent again to learn what became of it, or the first by another path after one has
    /// died. It does not wait for any window.
    Urgent,
    /// The answer to a READ or atomic. It does not wait for any window either.
    Answer {
        /// The path that the request came by.
        asked_by: PathId,
    },
}

/// What a queue pair gets that wants to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// A route.
    Route(Route),
    /// There are paths, but all are full: wait until a window opens.
    Wait,
    /// No path lives.
    NoPath,
}
