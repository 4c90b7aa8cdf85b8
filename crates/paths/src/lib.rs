//! Path manager: knows which paths lead to a peer, which of them live and which carries traffic. It
//! does no I/O.
//!
//! One [`PathManager`] serves one lane. Queue pairs are attached to *peers*: a local address, a remote
//! address and the remote lane. All queue pairs to one remote lane share liveness, round trip times and
//! congestion windows. A peer that knows nothing of Polypath keeps one path, plain RoCEv2. A peer that
//! answers the handshake gets an *association*: a key, and up to [`MAX_PATHS`] numbered paths. The
//! manager probes them, fails over and fails back; queue pairs only ask where to send
//! ([`PathManager::pick`]).
//!
//! Nothing in this crate does I/O, reads a clock, starts a thread or takes a lock. `now` is the time
//! since any fixed origin. Packets, events and the next deadline come out of
//! [`PathManager::poll_transmit`], [`PathManager::poll_event`] and [`PathManager::next_deadline`].
#![forbid(unsafe_code)]

mod addresses;
mod alternate;
mod association;
mod associations;
mod attach;
mod bytes;
mod channels;
mod check;
mod clock;
mod config;
mod congestion;
mod control;
mod copies;
mod coupling;
mod datagram_copies;
mod datagrams;
mod dealing;
mod detour;
mod ended;
mod groups;
mod handshake;
mod id;
mod key;
mod lag;
mod lane_pairs;
mod liveness;
mod loads;
mod local;
mod manager;
mod marks;
mod membership;
pub mod message;
mod path;
mod peers;
mod policy;
mod ports;
mod probing;
mod pulse;
mod rendezvous;
mod report;
mod rtt;
mod seen;
mod select;
mod sharing;
mod silence;
mod slab;
mod steering;
mod streams;
mod timers;
mod turns;
mod twice;
mod two_paths;
mod types;
mod ud;
mod usage;

pub use alternate::Found;
pub use config::{
    AffinityRule, Config, CongestionControl, DownRule, LaneIdentity, LocalAddress, Mode,
    PathOptions, PeerMode, Primary, PrimaryReselect, Usage,
};
pub use lag::{Hashed, Lag, LagMember};
pub use manager::{
    MAX_CONTROL_QUEUE, MAX_EVENTS, MAX_PEERS, MAX_QUEUE_PAIRS, MAX_UD_PATHS, PathManager,
};
pub use marks::is_marked;
pub use policy::{Choice, ClonePolicy, MakePolicy, Next, PathSet, Policy};
pub use polypath_types::{Class, PathId, PathKind, PathTag, PeerId, Pick, Route, TwoPaths, Want};
pub use types::{
    AttachError, ControlOut, Handled, MAX_PATHS, MAX_PORTS, PathAddress, PathEvent, PathState,
    PathStatus, PeerBrief, PeerStatus, Reason, Refused, Status, StreamEnds,
};
