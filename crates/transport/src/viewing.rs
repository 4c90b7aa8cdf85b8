//! Automatic path migration with a multi-path peer: a view of the peer's path set.
//!
//! The path set moves traffic by itself, also that of queue pairs that have no alternate path. So there is
//! nothing to prove, to ask, or to agree on: the states only say what the set would do. A queue pair is ARMED
//! while its peer has another usable path than the active one, and in REARM while it has none. When the
//! active path has died and another took its place, it has migrated. Nothing of this is looked at when
//! packets come or go, but only when the set changes ([`QueuePair::follow_set`]).

use crate::common::Core;
use crate::host::Host;
use crate::migration::MigrationNews;
use crate::qp::QueuePair;
use polypath_telemetry::MigrationCause;
use polypath_types::{MigState, PathId, QpEvent, QpState, QpType, TwoPaths};

/// What changed in the path set of a queue pair's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetChange {
    /// A path died or left the set, or lives again after all were dead. If another one is active now, the
    /// queue pair has migrated, for this cause.
    Lost(MigrationCause),
    /// Another path is preferred now; nothing has failed, and nothing has migrated.
    Preferred,
    /// A path may be used that could not be before. Which one is active stays as it was.
    Gained,
}

impl Core {
    /// The path set as two paths.
    fn two_paths<H: Host>(&self, host: &H) -> Option<TwoPaths> {
        host.two_paths(self.peer?)
    }

    /// REARM was asked for.
    pub(crate) fn arm_with_set<H: Host>(&mut self, host: &mut H) {
        self.migration.settle();
        let two = self.two_paths(host);
        self.migration.active = two.map(|two| two.active);
        self.arm_if_possible(two, host);
    }

    /// ARMED or REARM, whichever it has to be.
    fn arm_if_possible<H: Host>(&mut self, two: Option<TwoPaths>, host: &mut H) {
        let ready = two.is_some_and(|two| two.other.is_some());
        let state = if ready { MigState::Armed } else { MigState::Rearm };
        let before = core::mem::replace(&mut self.attr.path_mig_state, state);
        match (before, state) {
            (MigState::Rearm, MigState::Armed) => host.migration(MigrationNews::Armed),
            (MigState::Armed, MigState::Rearm) => host.migration(MigrationNews::AlternateLost),
            _ => {}
        }
    }

    /// Handles a change of the set.
    pub(crate) fn follow_set<H: Host>(&mut self, change: SetChange, host: &mut H) {
        let sends = matches!(self.attr.state, QpState::Rts | QpState::Sqd);
        if !self.watches_set() || !sends {
            return;
        }
        let two = self.two_paths(host);
        let active = two.map(|two| two.active);
        match (self.migration.active, active, change) {
            (Some(from), Some(to), SetChange::Lost(cause)) if from != to => {
                return self.has_moved(from, to, cause, host);
            }
            // What changed the active path is still to be told.
            (Some(_), _, SetChange::Gained) | (_, None, _) => {}
            _ => self.migration.active = active,
        }
        self.arm_if_possible(two, host);
    }

    /// Whether changes of the set have to be followed.
    #[inline]
    pub(crate) fn watches_set(&self) -> bool {
        self.multipath && self.attr.path_mig_state != MigState::Migrated
    }

    /// MIGRATED was asked for: its traffic leaves the active path.
    pub(crate) fn leave_active_path<H: Host>(&mut self, cause: MigrationCause, host: &mut H) {
        let before = self.two_paths(host);
        let after = self.peer.and_then(|peer| host.take_other_path(peer));
        match (before, after) {
            (Some(TwoPaths { active: from, .. }), Some(TwoPaths { active: to, .. })) => {
                self.has_moved(from, to, cause, host);
            }
            // The other path has died just now.
            (two, _) => self.arm_if_possible(two, host),
        }
    }

    /// It has migrated.
    fn has_moved<H: Host>(
        &mut self,
        from: PathId,
        to: PathId,
        cause: MigrationCause,
        host: &mut H,
    ) {
        let attr = &mut self.attr;
        attr.path_mig_state = MigState::Migrated;
        (attr.pkey_index, attr.timeout) = (attr.alt_pkey_index, attr.alt_timeout);
        let migration = &mut self.migration;
        migration.active = Some(to);
        migration.count += 1;
        migration.moved = Some(cause);
        self.counters.migrations += 1;
        host.migration(MigrationNews::Moved { from, to, cause });
        host.event(QpEvent::PathMig);
        if self.migration.rearms {
            self.attr.path_mig_state = MigState::Rearm;
            let two = self.two_paths(host);
            self.arm_if_possible(two, host);
        }
    }

    /// The retries are used up. A program that wanted to migrate is told if there is no path left; if there
    /// is one, it is not the path that has failed.
    pub(crate) fn fail_with_set<H: Host>(&mut self, host: &mut H) {
        if self.watches_set() && self.two_paths(host).is_none() {
            host.event(QpEvent::PathMigError);
            host.migration(MigrationNews::Failed);
        }
    }
}

impl QueuePair {
    /// RC: both ends know each other's queue pair, so multi-path packets may be sent from now on
    /// (by every route that has a tag). Packets of both kinds are accepted at any time. Other
    /// services have no multi-path packets. The path set decides about paths from now on; call
    /// [`QueuePair::begin_set`] next.
    pub fn set_multipath(&mut self, agreed: bool) {
        let core = &mut self.core;
        core.multipath = agreed && core.config.qp_type == QpType::Rc;
        if core.multipath {
            core.migration.settle();
            core.migration.forget_paths();
            core.migration.unconfirmed = false;
        }
    }

    /// After [`QueuePair::set_multipath`]: its migration state, if it has an alternate path, is that of the
    /// path set from now on.
    pub fn begin_set<H: Host>(&mut self, host: &mut H) {
        if self.core.multipath && self.core.migration.rearms {
            host.migration(MigrationNews::PathSet);
        }
        self.follow_set(SetChange::Preferred, host);
    }

    /// The path set of its peer has changed. Does nothing for queue pairs without an alternate path, or whose
    /// peer is no multi-path one.
    #[inline]
    pub fn follow_set<H: Host>(&mut self, change: SetChange, host: &mut H) {
        if self.core.watches_set() {
            self.core.follow_set(change, host);
        }
    }

    /// Whether [`QueuePair::follow_set`] would do something.
    #[inline]
    pub fn watches_set(&self) -> bool {
        self.core.watches_set()
    }

    /// With a multi-path peer, now or later, it is armed again after each migration: for who has loaded the
    /// alternate path in place of the program.
    pub fn keep_armed<H: Host>(&mut self, host: &mut H) {
        self.core.migration.rearms = true;
        if self.core.multipath {
            host.migration(MigrationNews::PathSet);
        }
    }

    /// With a multi-path peer: the path that was active when the program was last told of it.
    pub fn active_path(&self) -> Option<PathId> {
        self.core.migration.active
    }
}
