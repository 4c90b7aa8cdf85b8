//! Path manager: which paths lead to a peer, which live, which carries traffic; without I/O.
//!
//! One [`PathManager`] serves one lane. Queue pairs are attached to *peers*: a local address, a
//! remote address and the remote lane. All queue pairs to one remote lane share liveness, round
//! trip times and congestion windows. A peer that knows nothing of Polypath keeps one path, plain
//! RoCEv2. With one that answers the handshake there is an *association*: a key, and up to
//! [`MAX_PATHS`] numbered paths, probed, failed over and failed back without the queue pairs
//! doing more than asking where to send ([`PathManager::pick`]).
//!
//! Nothing here does I/O, reads a clock, spawns or locks: `now` is the time since any fixed
//! origin; packets, events and the next deadline come out of [`PathManager::poll_transmit`],
//! [`PathManager::poll_event`] and [`PathManager::next_deadline`].
#![forbid(unsafe_code)]

mod addresses;
mod association;
mod associations;
mod attach;
mod bytes;
mod check;
mod clock;
mod config;
mod congestion;
mod control;
mod detour;
mod handshake;
mod id;
mod key;
mod liveness;
mod local;
mod manager;
mod membership;
pub mod message;
mod path;
mod peers;
mod policy;
mod probing;
mod report;
mod rtt;
mod select;
mod slab;
mod timers;
mod types;
mod ud;

pub use config::{
    Config, CongestionControl, DownRule, LaneIdentity, LocalAddress, Mode, PathOptions, Primary,
    PrimaryReselect,
};
pub use manager::{
    MAX_CONTROL_QUEUE, MAX_EVENTS, MAX_PEERS, MAX_QUEUE_PAIRS, MAX_UD_PATHS, PathManager,
};
pub use policy::{Choice, ClonePolicy, MakePolicy, Next, PathSet, Policy};
pub use polypath_types::{Class, PathId, PathTag, PeerId, Pick, Route, Want};
pub use types::{
    AttachError, ControlOut, Handled, MAX_PATHS, PathAddress, PathEvent, PathState, PathStatus,
    PeerBrief, PeerStatus, Reason, Refused, Status,
};
