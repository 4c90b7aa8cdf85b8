//! What goes in and out of the path manager.

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

pub use polypath_telemetry::Reason;
use polypath_telemetry::{ControlDrops, PathCounters};
use polypath_types::{PathId, PathKind, PathTag, PeerAbilities, PeerId};

use crate::config::Mode;

/// Most paths of an association.
pub const MAX_PATHS: usize = 8;
/// Most source ports of a pair of addresses, each of which makes a path.
pub const MAX_PORTS: u8 = 8;

/// How packets of a path are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathAddress {
    /// What carries them.
    pub kind: PathKind,
    /// Source address.
    pub local: IpAddr,
    /// Destination address.
    pub remote: IpAddr,
    /// Interface that has the source address; 0 if none has it now.
    pub ifindex: u32,
    /// UDP source port, 0xC000..=0xFFFF.
    pub source_port: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit (IPv6) or time to live (IPv4) of its packets.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// The ends of a TCP stream between two lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamEnds {
    /// This end's address.
    pub local: IpAddr,
    /// The other end's address.
    pub remote: IpAddr,
    /// The slot of the other lane.
    pub slot: u8,
}

impl StreamEnds {
    /// The ends of the stream that a path with this address needs; `None` if it needs none.
    pub fn of(address: &PathAddress) -> Option<Self> {
        let PathAddress { kind, local, remote, .. } = *address;
        match kind {
            PathKind::Tcp { slot } => Some(Self { local, remote, slot }),
            _ => None,
        }
    }

    /// The kind of a path over the stream.
    pub fn kind(&self) -> PathKind {
        PathKind::Tcp { slot: self.slot }
    }
}

/// A packet of the path manager's own to send: BTH and all that follows, without the ICRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOut {
    /// How to address it.
    pub address: PathAddress,
    /// UDP payload without the ICRC. Its length is a multiple of four.
    pub packet: Vec<u8>,
}

/// What became of a packet given to [`crate::PathManager::handle_control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Understood and acted upon.
    Accepted,
    /// Dropped and counted.
    Refused(Refused),
}

/// Why a packet was refused. Each is counted in [`ControlDrops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// Too short, too long or with impossible fields.
    #[error("malformed")]
    Malformed,
    /// Its version is not one that we speak.
    #[error("unknown version")]
    Version,
    /// A handshake for queue pairs that are not connected to each other here.
    #[error("no such pair of queue pairs")]
    NoQueuePair,
    /// The addresses are not those of a path of the peer.
    #[error("addresses are not of the peer's path set")]
    UnknownSource,
    /// No such association (any more).
    #[error("no such association")]
    NoAssociation,
    /// The authentication code is wrong.
    #[error("authentication failed")]
    Authentication,
    /// The sequence number was seen before, or is too old.
    #[error("replayed or too old")]
    Replay,
    /// The path number is not in use.
    #[error("unknown path number")]
    UnknownPath,
    /// The packet was sent before its path was given up.
    #[error("generation of the path is not the current one")]
    Generation,
    /// An answer to nothing that we asked.
    #[error("unsolicited answer")]
    Unsolicited,
    /// Multi-path is off here.
    #[error("multi-path is not enabled")]
    Disabled,
    /// A table is full.
    #[error("limit reached")]
    Limit,
}

impl Refused {
    /// Counts it among the others of its reason.
    pub(crate) fn count(self, drops: &mut ControlDrops) -> Self {
        *match self {
            Self::Malformed => &mut drops.malformed,
            Self::Version => &mut drops.version,
            Self::NoQueuePair => &mut drops.no_queue_pair,
            Self::UnknownSource => &mut drops.unknown_source,
            Self::NoAssociation => &mut drops.no_association,
            Self::Authentication => &mut drops.authentication,
            Self::Replay => &mut drops.replay,
            Self::UnknownPath => &mut drops.unknown_path,
            Self::Generation => &mut drops.generation,
            Self::Unsolicited => &mut drops.unsolicited,
            Self::Disabled => &mut drops.disabled,
            Self::Limit => &mut drops.limit,
        } += 1;
        self
    }
}

/// Why a queue pair could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The queue pair number is attached already.
    #[error("queue pair {0:#x} is attached already")]
    Attached(u32),
    /// It has no peer yet.
    #[error("queue pair {0:#x} is not attached: its alternate path is set after its primary one")]
    NotAttached(u32),
    /// The addresses are of different families.
    #[error("local and remote address are not of the same family")]
    Family,
    /// Too many queue pairs, peers or paths.
    #[error("too many {0} on this lane (at most {1})")]
    Limit(&'static str, usize),
}

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Never answered so far; not used.
    Probing,
    /// It carries traffic, or may.
    Up,
    /// Usable so far, but data or probes are late: being compared with the other paths.
    Suspect,
    /// Given up; probed from time to time.
    Dead,
    /// Was dead, answers again, waits for `updelay`.
    Recovering,
    /// Its link or address is gone here, or an administrator took it down.
    Down,
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Probing => "probing",
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Dead => "dead",
            Self::Recovering => "recovering",
            Self::Down => "down",
        })
    }
}

/// What the engine must pass on to queue pairs, or tell the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// Both ends know that this queue pair may use multi-path packets from now on.
    MultipathAgreed {
        /// The local queue pair.
        qpn: u32,
        /// What the peer can do.
        abilities: PeerAbilities,
    },
    /// [`crate::PathManager::route`] leads elsewhere: resend what is outstanding on `from`, unless
    /// the reason is [`Reason::Primary`] or [`Reason::Association`] (`from` still lives then, if it
    /// has not been given up by an event of its own).
    ActiveChanged {
        /// The peer whose route it is.
        peer: PeerId,
        /// The path left; `None` after [`PathEvent::NoPath`].
        from: Option<PathId>,
        /// The path taken.
        to: PathId,
        /// The reason for leaving `from`, or for preferring `to`.
        reason: Reason,
    },
    /// A path was given up.
    PathDead {
        /// The path given up.
        path: PathId,
        /// The reason for giving it up.
        reason: Reason,
    },
    /// A path may be used (again).
    PathAlive {
        /// The path that may carry traffic.
        path: PathId,
    },
    /// Packets of the path have another source port from now on: what was opened for the old one may be
    /// closed.
    PortChanged {
        /// The path.
        path: PathId,
        /// Its address with the port that it had.
        from: PathAddress,
    },
    /// A path that was silent answers by another source port than the one by which it fell silent.
    Repathed {
        /// The path.
        path: PathId,
        /// The source port by which it fell silent.
        from: u16,
        /// The source port by which it answers.
        to: u16,
    },
    /// The peer had been silent on all paths and answers again on this one, which was never given up:
    /// ask at once for what is outstanding there, and do not count retries that went into the silence.
    PathHeard {
        /// The path by which the answer came.
        path: PathId,
    },
    /// One queue pair goes by another path than its peer's others: its data made no progress on `from`, which
    /// carries other packets. What it has outstanding there is to be sent again.
    Detour {
        /// The local queue pair.
        qpn: u32,
        /// The path left.
        from: PathId,
        /// The path taken.
        to: PathId,
    },
    /// One queue pair goes by another path than before, because its program wants so
    /// ([`crate::PathManager::take_other_path`]). What it has outstanding on `from` may still arrive.
    Moved {
        /// The local queue pair.
        qpn: u32,
        /// The path left.
        from: PathId,
        /// The path taken.
        to: PathId,
    },
    /// No path lives: [`crate::PathManager::route`] gives `None`; hold the retry counters.
    NoPath {
        /// The peer that cannot be reached.
        peer: PeerId,
    },
    /// No path came back within the hold time: the route is there again, let the retry counters
    /// run or end the queue pairs.
    PeerLost {
        /// The peer that stayed out of reach.
        peer: PeerId,
    },
    /// A window was small, and has grown: queue pairs that wait for it should try again
    /// ([`crate::PathManager::wake_when_open`]).
    WindowOpened {
        /// The peer whose active path has room.
        peer: PeerId,
    },
    /// A path through shared memory is possible to the lane with this slot: ask for a channel, and tell the
    /// outcome by [`crate::PathManager::set_channel`].
    ChannelWanted {
        /// The slot.
        slot: u8,
    },
    /// A TCP stream between these ends is wanted: ask [`crate::PathManager::stream_opening`] for its first
    /// packet, connect, and tell of it by [`crate::PathManager::set_stream`].
    StreamWanted {
        /// The ends.
        ends: StreamEnds,
    },
    /// Traffic flows again after a fail-over: first acknowledgement on the new path, or on any other
    /// one that carries its traffic.
    Resumed {
        /// The peer that acknowledged.
        peer: PeerId,
        /// From the last progress on the old path to that acknowledgement.
        blackout: Duration,
        /// Why the old one was left.
        reason: Reason,
    },
    /// More events than fit: treat every queue pair as if its path had changed.
    Overflow,
}

/// Report on one path, for `polypath status`.
#[derive(Clone, Debug, PartialEq)]
pub struct PathStatus {
    /// In this lane's table.
    pub path: PathId,
    /// Number and generation agreed with the peer, within an association.
    pub tag: Option<PathTag>,
    /// How its packets are addressed.
    pub address: PathAddress,
    /// The index of the port of a kernel's bond by which it leaves; `None` if it is over none, or if the bond
    /// does not tell.
    pub leaves_by: Option<u32>,
    /// The number of other paths of the peer that share a bottleneck with it, as their delays tell.
    pub coupled: u8,
    /// State.
    pub state: PathState,
    /// Why it is in this state, if not up.
    pub reason: Option<Reason>,
    /// Smoothed round-trip time.
    pub rtt: Option<Duration>,
    /// Congestion window, bytes.
    pub window: u32,
    /// Bytes outstanding.
    pub in_flight: u32,
    /// What it has carried. `sent_bytes` are those that the window was charged with; who has the sockets
    /// knows what else was sent by it.
    pub counters: PathCounters,
}

/// Report on one peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerStatus {
    /// In this lane's table.
    pub peer: PeerId,
    /// Address that its queue pairs were connected with here.
    pub local: IpAddr,
    /// Address that its queue pairs were connected to.
    pub remote: IpAddr,
    /// Top byte of its queue pair numbers.
    pub remote_slot: u8,
    /// The remote lane's instance, if there is an association.
    pub remote_instance: Option<u64>,
    /// Queue pairs attached.
    pub qpns: Vec<u32>,
    /// Queue pairs of them with multi-path agreed.
    pub agreed: usize,
    /// The path that carries traffic; `None`: no path lives.
    pub active: Option<PathId>,
    /// Paths, by their agreed number.
    pub paths: Vec<PathStatus>,
    /// Number of fail-overs so far.
    pub failovers: u64,
    /// Blackout of the last fail-over and why it happened.
    pub last_blackout: Option<(Duration, Reason)>,
    /// The same in words, for people.
    pub note: String,
}

/// What is quickly copied of a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerBrief {
    /// In this lane's table.
    pub peer: PeerId,
    /// Address that its queue pairs were connected to.
    pub remote: IpAddr,
    /// The main path; `None`: no path lives.
    pub active: Option<PathId>,
    /// Whether data uses the other paths that live, too.
    pub spreads: bool,
    /// How its paths are used; `None` if it has one path only, or a policy that settings do not name.
    pub mode: Option<Mode>,
    /// Blackout of the last fail-over.
    pub last_blackout: Option<Duration>,
}

/// Report of the whole lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Peers, in the order of their numbers.
    pub peers: Vec<PeerStatus>,
    /// Packets refused.
    pub refusals: ControlDrops,
}
