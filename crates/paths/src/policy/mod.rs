//! Policies: each decides which of its paths a peer's data uses.
//!
//! Each peer has a [`Policy`]. It answers two questions that come at very different rates: which path
//! the next bytes use ([`Policy::pick`], for each burst or more rarely, so it must be cheap), and what
//! to do when the set of paths or the state of one has changed ([`Policy::reselect`], rarely). The
//! manager carries out what follows from an answer (outages, events, timers).
//!
//! A queue pair whose data does not arrive by a path takes a detour under every policy
//! ([`detour`](crate::detour)).
//!
//! The policies that settings name are variants of [`AnyPolicy`], each with a file beside
//! [`active_backup`]. A policy from outside of this crate is boxed
//! ([`PathManager::set_policy`](crate::PathManager::set_policy)); `docs/extend/policy.md` shows an
//! example.

mod active_backup;
mod affinity;
mod balance;
mod efficient;
mod estimate;
mod own;
mod redundant;
mod set;

use core::fmt::Debug;

use crate::config::Mode;
use active_backup::ActiveBackup;
use affinity::Affinity;
use balance::Balance;
use efficient::Efficient;
pub(crate) use own::OwnPolicies;
use polypath_types::{PathId, Want};
use redundant::Redundant;
pub use set::PathSet;

/// What a policy decides when paths have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The main path stays.
    Stay,
    /// Another path becomes the main path, because the current one cannot carry data any more.
    Move(PathId),
    /// The main path could stay, but this one is preferred.
    Prefer(PathId),
    /// No path can carry data.
    NoPath,
}

/// What a policy decides for the next burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The burst uses a path, and so do the following ones until `bytes` have been sent. Then the
    /// policy is asked again.
    By {
        /// The path, one of the set.
        path: PathId,
        /// Bytes, as they count against a window. The last burst may exceed this number.
        bytes: u32,
    },
    /// As [`Next::By`], and each packet is also sent by another path, so that the first one to arrive
    /// counts. Copies that the other path has no room for are left out.
    Twice {
        /// The path, one of the set.
        path: PathId,
        /// The path of the copies, another one of the set.
        copy: PathId,
        /// Bytes, as those of [`Next::By`].
        bytes: u32,
    },
    /// All paths are full. The sender is told when one of them has room again, and then asks again.
    /// Only requests wait, and only while something is in flight on one of the paths, because nothing
    /// else would end the wait. Otherwise the burst uses the main path.
    Wait,
}

/// Decides which path a peer's data uses.
///
/// One of the paths is the *main* path: reports name it,
/// [`ActiveChanged`](crate::PathEvent::ActiveChanged) tells when it changes, and traffic that knows
/// only one path uses it. A policy that uses one path at a time uses the main path, and need not
/// implement more than [`Policy::reselect`].
pub trait Policy: ClonePolicy + Debug + Send + Sync {
    /// The path of the next burst. This is not called while the peer has no path. It may be called
    /// although nothing is sent afterwards. By default, everything uses the main path.
    ///
    /// If the path is not in the set or has died, the main path is used instead.
    #[inline]
    fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        let _ = want;
        Next::By { path: set.main(), bytes: u32::MAX }
    }

    /// Whether data uses other paths than the main one, too. If so, its senders are also told when the
    /// window of such a path opens and when such a path dies.
    #[inline]
    fn spreads(&self) -> bool {
        false
    }

    /// Decides which path is the main one after the set of paths has changed, or after one has died or
    /// come back. By default, the main path moves as that of active-backup does.
    fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        active_backup::choose(set)
    }

    /// A queue pair is gone, or is not of this peer any more. A policy that keeps something of each queue
    /// pair drops it. By default, nothing is kept.
    fn forget(&mut self, qpn: u32) {
        let _ = qpn;
    }
}

/// Clones a boxed policy, because path managers are cloned as a whole. Each policy that is `Clone` has
/// it.
pub trait ClonePolicy {
    /// A copy of the policy.
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

/// A function that makes the policy of a new peer.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// All policies.
#[derive(Clone, Debug)]
pub(crate) enum AnyPolicy {
    ActiveBackup(ActiveBackup),
    Balance(Balance),
    Affinity(Affinity),
    Redundant(Redundant),
    /// Boxed, because it is much larger than the others.
    Efficient(Box<Efficient>),
    /// A policy from outside of this crate.
    Other(Box<dyn Policy>),
}

impl AnyPolicy {
    /// The policy that the settings name.
    pub(crate) fn of(mode: Mode) -> Self {
        match mode {
            Mode::ActiveBackup => Self::ActiveBackup(ActiveBackup),
            Mode::Balance => Self::Balance(Balance),
            Mode::Affinity(rule) => Self::Affinity(Affinity::new(rule)),
            Mode::Redundant => Self::Redundant(Redundant),
            Mode::Efficient => Self::Efficient(Box::new(Efficient::new())),
        }
    }

    /// How settings name the policy; `None` if it is from outside of this crate.
    pub(crate) fn mode(&self) -> Option<Mode> {
        match self {
            Self::ActiveBackup(_) => Some(Mode::ActiveBackup),
            Self::Balance(_) => Some(Mode::Balance),
            Self::Affinity(policy) => Some(Mode::Affinity(policy.rule())),
            Self::Redundant(_) => Some(Mode::Redundant),
            Self::Efficient(_) => Some(Mode::Efficient),
            Self::Other(_) => None,
        }
    }

    #[inline]
    pub(crate) fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        match self {
            Self::ActiveBackup(policy) => policy.pick(want, set),
            Self::Balance(policy) => policy.pick(want, set),
            Self::Affinity(policy) => policy.pick(want, set),
            Self::Redundant(policy) => policy.pick(want, set),
            Self::Efficient(policy) => policy.pick(want, set),
            Self::Other(policy) => policy.pick(want, set),
        }
    }

    #[inline]
    pub(crate) fn spreads(&self) -> bool {
        match self {
            Self::ActiveBackup(policy) => policy.spreads(),
            Self::Balance(policy) => policy.spreads(),
            Self::Affinity(policy) => policy.spreads(),
            Self::Redundant(policy) => policy.spreads(),
            Self::Efficient(policy) => policy.spreads(),
            Self::Other(policy) => policy.spreads(),
        }
    }

    pub(crate) fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        match self {
            Self::ActiveBackup(policy) => policy.reselect(set),
            Self::Balance(policy) => policy.reselect(set),
            Self::Affinity(policy) => policy.reselect(set),
            Self::Redundant(policy) => policy.reselect(set),
            Self::Efficient(policy) => policy.reselect(set),
            Self::Other(policy) => policy.reselect(set),
        }
    }

    /// Queue pairs of other peers have had so many turns by the same paths.
    pub(crate) fn begin_at(&mut self, turn: usize) {
        if let Self::Affinity(policy) = self {
            policy.begin_at(turn);
        }
    }

    pub(crate) fn forget(&mut self, qpn: u32) {
        match self {
            Self::ActiveBackup(policy) => policy.forget(qpn),
            Self::Balance(policy) => policy.forget(qpn),
            Self::Affinity(policy) => policy.forget(qpn),
            Self::Redundant(policy) => policy.forget(qpn),
            Self::Efficient(policy) => policy.forget(qpn),
            Self::Other(policy) => policy.forget(qpn),
        }
    }
}

#[cfg(test)]
mod affinity_tests;
#[cfg(test)]
mod balance_tests;
#[cfg(test)]
mod efficient_tests;
#[cfg(test)]
mod redundant_tests;
#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod usage_tests;
