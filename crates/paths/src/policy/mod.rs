//! Which of its paths a peer's data goes by.
//!
//! Each peer has a [`Policy`]. It answers two questions, that come at very different rates: by
//! which path the next bytes go ([`Policy::pick`], for each burst or more rarely, so it must be
//! cheap), and what to do now that the set of paths or the state of one has changed
//! ([`Policy::reselect`], rarely). What follows from an answer (outages, events, timers) is the
//! manager's.
//!
//! A queue pair whose data does not arrive by a path takes a detour, whatever the policy
//! ([`detour`](crate::detour)).
//!
//! The policies that settings name are variants of [`AnyPolicy`], a file each beside
//! [`active_backup`]. One from outside of this crate is boxed
//! ([`PathManager::set_policy`](crate::PathManager::set_policy));
//! `docs/extend/policy.md` shows one.

mod active_backup;
mod set;

use core::fmt::Debug;

use crate::config::{Config, Mode};
use active_backup::ActiveBackup;
use polypath_types::{PathId, Want};
pub use set::PathSet;

/// What a policy decides when paths have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The main path stays.
    Stay,
    /// Another becomes the main path, since the one before cannot be.
    Move(PathId),
    /// The main path could stay, but this one is preferred.
    Prefer(PathId),
    /// No path can carry data.
    NoPath,
}

/// What a policy decides for the next burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes by a path, and what follows too, until so many bytes have: then the policy is asked again.
    By {
        /// The path, one of the set.
        path: PathId,
        /// Bytes, as they count against a window. The last burst may exceed them.
        bytes: u32,
    },
    /// All paths are full. Whoever wants to send is told when there is room again on one of them,
    /// and then asks again. Only requests wait, and only while something is in flight on one of the
    /// paths: otherwise, what waits would wait for ever, and goes by the main path.
    Wait,
}

/// Which path a peer's data goes by.
///
/// One of the paths is the *main* one: reports name it, moving it is what
/// [`ActiveChanged`](crate::PathEvent::ActiveChanged) tells, and what knows of one path only goes
/// by it. A policy that uses one path at a time uses that, and need not implement more than
/// [`Policy::reselect`].
pub trait Policy: ClonePolicy + Debug + Send + Sync {
    /// The path of the next burst. Not asked while the peer has no path. May be asked without anything
    /// being sent then. Unless it is changed, all goes by the main path.
    ///
    /// A path that is not of the set, or has died, is not taken: then it is the main path.
    #[inline]
    fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        let _ = want;
        Next::By { path: set.main(), bytes: u32::MAX }
    }

    /// Data goes by other paths than the main one, too: who uses them is told of their windows and of
    /// their ends.
    #[inline]
    fn spreads(&self) -> bool {
        false
    }

    /// The set of paths has changed, or one has died or come back. What becomes of the main path?
    /// Unless it is changed, it moves as that of active-backup does.
    fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        active_backup::choose(set)
    }
}

/// What each policy that is `Clone` has: path managers are cloned as a whole.
pub trait ClonePolicy {
    /// The same again.
    fn clone_policy(&self) -> Box<dyn Policy>;
}

impl<P: Policy + Clone + 'static> ClonePolicy for P {
    fn clone_policy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        (**self).clone_policy()
    }
}

/// Makes the policy of a new peer.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// The policies that there are.
#[derive(Clone, Debug)]
pub(crate) enum AnyPolicy {
    ActiveBackup(ActiveBackup),
    /// One from outside of this crate.
    Other(Box<dyn Policy>),
}

impl AnyPolicy {
    /// For a new peer: what `make` makes, or else the one that the settings name.
    pub(crate) fn new(config: &Config, make: Option<MakePolicy>) -> Self {
        match (make, config.mode) {
            (Some(make), _) => Self::Other(make()),
            (None, Mode::ActiveBackup) => Self::ActiveBackup(ActiveBackup),
        }
    }

    #[inline]
    pub(crate) fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        match self {
            Self::ActiveBackup(policy) => policy.pick(want, set),
            Self::Other(policy) => policy.pick(want, set),
        }
    }

    #[inline]
    pub(crate) fn spreads(&self) -> bool {
        match self {
            Self::ActiveBackup(policy) => policy.spreads(),
            Self::Other(policy) => policy.spreads(),
        }
    }

    pub(crate) fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        match self {
            Self::ActiveBackup(policy) => policy.reselect(set),
            Self::Other(policy) => policy.reselect(set),
        }
    }
}

#[cfg(test)]
mod tests;
