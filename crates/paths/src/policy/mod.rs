//! Which of its paths a peer's data goes by.
//!
//! Each peer has a [`Policy`]. It answers two questions, that come at very different rates: by which path
//! the next burst goes ([`Policy::pick`], for each burst, so it must be cheap), and what to do now that the set
//! of paths or the state of one has changed ([`Policy::reselect`], rarely; there it may look at everything). What
//! follows from an answer (outages, events, timers) is the manager's.
//!
//! A policy knows nothing of queue pairs: one whose data does not arrive by a path takes a detour, whatever the
//! policy ([`detour`](crate::detour)).
//!
//! A new policy is a file beside [`active_backup`], a variant of [`AnyPolicy`] and one of
//! [`Mode`], by which settings name it. It is a variant, not a `Box<dyn Policy>`, for the reasons that
//! [`congestion`](crate::congestion) gives.

mod active_backup;

use core::fmt::Debug;

use crate::addresses::LocalAddresses;
use crate::config::{Config, Mode, Primary};
use crate::path::Path;
use crate::slab::Slab;
use crate::types::PathState;
use active_backup::ActiveBackup;
use polypath_types::PathId;

/// The paths that a peer's data may take, and what a policy may want to know of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathSet<'a> {
    /// In the order of their numbers.
    pub(crate) members: &'a [PathId],
    /// The path with the peer's own addresses; it need not be a member.
    pub(crate) own: PathId,
    /// The peer is without a path: only one that has answered will do.
    pub(crate) outage: bool,
    pub(crate) paths: &'a Slab<PathId, Path>,
    pub(crate) local: &'a LocalAddresses,
    pub(crate) config: &'a Config,
}

impl PathSet<'_> {
    /// The state of a path.
    pub(crate) fn state(&self, path: PathId) -> Option<PathState> {
        self.paths.get(path).map(|p| p.state)
    }

    /// Whether the settings prefer a path.
    pub(crate) fn is_primary(&self, path: PathId) -> bool {
        let Some(p) = self.paths.get(path) else { return false };
        match self.config.primary {
            Some(Primary::Interface(ifindex)) => p.address.ifindex == ifindex,
            Some(Primary::Address(ip)) => p.address.local == ip.to_canonical(),
            None => false,
        }
    }

    /// The speed of the interface that a path leaves by, Mbit/s; 0 if unknown.
    pub(crate) fn speed_mbps(&self, path: PathId) -> u32 {
        self.paths.get(path).map_or(0, |p| self.local.speed_mbps(p.address.local))
    }
}

/// What a policy decides when paths have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The main path stays.
    Stay,
    /// Another becomes the main path, since the one before cannot be.
    Move(PathId),
    /// The main path could stay, but this one is preferred.
    Prefer(PathId),
    /// No path can carry data.
    NoPath,
}

/// Which path a peer's data goes by.
///
/// One of the paths is the *main* one: reports name it, and moving it is what
/// [`ActiveChanged`](crate::PathEvent::ActiveChanged) tells. A policy that uses one path at a time uses
/// that.
pub(crate) trait Policy: Clone + Debug {
    /// The main path; while there is none that can carry data, the last one.
    fn main(&self) -> PathId;

    /// The path of the next burst. Not asked during an outage. May be asked without anything being
    /// sent then. `paths`: the lane's table, for windows and round trips.
    fn pick(&mut self, paths: &Slab<PathId, Path>) -> PathId;

    /// Whether data goes by a path: who uses it is told of its window and of its end.
    fn uses(&self, path: PathId) -> bool;

    /// The set of paths, or the state of one, has changed. If the main path should be another, the manager
    /// calls [`Policy::set_main`].
    fn reselect(&mut self, set: &PathSet<'_>) -> Choice;

    /// The main path is this one now, alone: until [`Policy::reselect`], data goes by no other.
    fn set_main(&mut self, path: PathId);
}

/// The policies that there are.
#[derive(Clone, Debug)]
pub(crate) enum AnyPolicy {
    ActiveBackup(ActiveBackup),
    #[cfg(test)]
    Alternate(tests::Alternate),
}

impl AnyPolicy {
    /// The one that the settings name, for a peer with this path only.
    pub(crate) fn new(config: &Config, path: PathId) -> Self {
        match config.mode {
            Mode::ActiveBackup => Self::ActiveBackup(ActiveBackup::new(path)),
        }
    }
}

/// The same call, whichever policy it is.
macro_rules! each {
    ($any:expr, $policy:ident => $call:expr) => {
        match $any {
            Self::ActiveBackup($policy) => $call,
            #[cfg(test)]
            Self::Alternate($policy) => $call,
        }
    };
}

impl Policy for AnyPolicy {
    #[inline]
    fn main(&self) -> PathId {
        each!(self, policy => policy.main())
    }

    #[inline]
    fn pick(&mut self, paths: &Slab<PathId, Path>) -> PathId {
        each!(self, policy => policy.pick(paths))
    }

    #[inline]
    fn uses(&self, path: PathId) -> bool {
        each!(self, policy => policy.uses(path))
    }

    fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        each!(self, policy => policy.reselect(set))
    }

    fn set_main(&mut self, path: PathId) {
        each!(self, policy => policy.set_main(path));
    }
}

#[cfg(test)]
pub(crate) mod tests;
