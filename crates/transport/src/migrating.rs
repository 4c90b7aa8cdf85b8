//! A queue pair changes to its alternate path ([`crate::migration`] has the rules).
//!
//! Migrating changes addresses and nothing else: PSNs, credits and what the responder remembers stay as
//! they are, so that everything outstanding is sent again by the new path and still executed once.
//! Timers and retries begin anew.
//!
//! An idle peer has to learn of it as well, and an idle connection has to become ARMED. So a queue pair
//! that waits for its peer sends a request that was executed long ago: a WRITE of no bytes with the
//! latest acknowledged PSN. Any responder acknowledges such a duplicate and does nothing else
//! (IBTA 9.7.4.1.3), and request and answer carry `MigReq`. An XRC target has no requests; it repeats
//! its latest acknowledgement instead. UC has neither: its peer learns by the next message.
//!
//! RC queue pairs ask by the alternate path instead, before they are ARMED: what is answered there proves
//! that the path works both ways, and that the peer has loaded it, too ([`crate::proof`]).
//!
//! The same request finds out whether a silent primary path is dead (decision 4 for path sets). With each
//! early probe of the primary path, one goes by the alternate path. What goes there always has `MigReq` 0,
//! and only our own responder answers it, by the alternate path as well; other adapters drop it (IBTA
//! 9.6.1.5), and remain in REARM for us. If some were answered while the primary path brought nothing, the
//! queue pair migrates.

use core::time::Duration;

use polypath_wire::opcode::{Opcode, Service};
use polypath_wire::packet::Packet;

use crate::common::Core;
use crate::host::Host;
use crate::migration::{
    CameBy, Compared, MigrationNews, MigrationStatus, Step, check_wish, is_question, receive,
};
use crate::proof::Look;
use crate::qp::{Halves, QueuePair};
use crate::state::ModifyError;
use polypath_telemetry::MigrationCause;
use polypath_types::{MigState, PeerId, QpAttr, QpAttrMask, QpEvent, QpState, QpType};

impl Core {
    /// Whether it may change to the alternate path by itself, and that path can be used.
    pub(crate) fn can_migrate<H: Host>(&self, host: &H) -> bool {
        self.attr.path_mig_state == MigState::Armed
            && matches!(self.attr.state, QpState::Rts | QpState::Sqd)
            && !self.multipath
            && self.migration.alternate.is_some_and(|peer| host.is_reachable(peer))
    }

    /// Whether it has, or had, more than one path.
    pub(crate) fn may_migrate(&self) -> bool {
        self.migration.alternate.is_some() || self.migration.count > 0
    }

    /// Whether it is ARMED only after the alternate path was shown to work. UC and XRC have no question that
    /// can be repeated harmlessly in both directions, and a path set looks after its paths itself.
    pub(crate) fn proves(&self) -> bool {
        self.config.qp_type == QpType::Rc && !self.multipath
    }

    /// Whether what it waits for is an answer by the alternate path.
    pub(crate) fn asks_by_alternate(&self) -> bool {
        let rearms = self.attr.path_mig_state == MigState::Rearm && !self.migration.unconfirmed;
        rearms && self.proves()
    }

    /// The alternate path does not work any more: it has to prove again that it does.
    fn disarm<H: Host>(&mut self, host: &mut H) {
        self.attr.path_mig_state = MigState::Rearm;
        self.migration.begin();
        host.migration(MigrationNews::AlternateLost);
    }

    /// The retries are used up. Returns whether the queue pair fails; it migrates otherwise (IBTA 17.2.8).
    pub(crate) fn gives_up<H: Host>(&mut self, host: &mut H) -> bool {
        if self.can_migrate(host) {
            self.migration.due = Some(MigrationCause::Retries);
            return false;
        }
        if self.multipath {
            self.fail_with_set(host);
        } else if self.attr.path_mig_state == MigState::Armed || self.migration.unconfirmed {
            host.event(QpEvent::PathMigError);
            host.migration(MigrationNews::Failed);
        }
        true
    }
}

impl QueuePair {
    /// RC, UC and XRC: sets the peer as it is reached by the alternate path, for which the host has a
    /// path set. To be called when alternate attributes are set; `None` if they lead nowhere (any
    /// more), which also ends the readiness to migrate.
    pub fn set_alternate<H: Host>(&mut self, alternate: Option<PeerId>, host: &mut H) {
        let before = core::mem::replace(&mut self.core.migration.alternate, alternate);
        if alternate.is_some()
            && alternate != before
            && self.core.attr.path_mig_state == MigState::Armed
            && self.core.proves()
        {
            // It was another path that was shown to work.
            self.core.attr.path_mig_state = MigState::Rearm;
            self.core.migration.begin();
        }
        if alternate.is_none() && self.core.attr.path_mig_state != MigState::Migrated {
            self.core.attr.path_mig_state = MigState::Migrated;
            self.core.migration.settle();
            host.migration(MigrationNews::AlternateLost);
        }
    }

    /// The peer as it is reached by the alternate path. A multi-path peer has none besides its path set.
    #[inline]
    pub fn alternate(&self) -> Option<PeerId> {
        self.core.migration.alternate.filter(|_| !self.core.multipath)
    }

    /// What is known of its migrations.
    pub fn migration(&self) -> MigrationStatus {
        let Core { attr, migration, .. } = &self.core;
        MigrationStatus {
            state: attr.path_mig_state,
            loaded: attr.alt_port_num != 0,
            count: migration.count,
            last: migration.last,
        }
    }

    /// The attributes that are meant. Some programs name REARM when they go to RTS although they have loaded
    /// no alternate path, which means nothing, as for Linux' `ib_modify_qp` and rxe.
    pub(crate) fn meant(&self, attr: &QpAttr, mask: QpAttrMask) -> QpAttrMask {
        let now = &self.core.attr;
        let begins = now.state == QpState::Rtr
            && mask.contains(QpAttrMask::STATE)
            && attr.state == QpState::Rts;
        let idle = now.alt_port_num == 0
            && !mask.contains(QpAttrMask::ALT_PATH)
            && attr.path_mig_state == MigState::Rearm;
        if begins && idle { mask.difference(QpAttrMask::PATH_MIG_STATE) } else { mask }
    }

    /// Checks what the attributes say about migration. Returns whether the queue pair is to migrate.
    pub(crate) fn check_wish(
        &self,
        attr: &QpAttr,
        mask: QpAttrMask,
        to: QpState,
    ) -> Result<bool, ModifyError> {
        if !mask.contains(QpAttrMask::PATH_MIG_STATE) {
            return Ok(false);
        }
        let now = &self.core.attr;
        let loaded = now.alt_port_num != 0 || mask.contains(QpAttrMask::ALT_PATH);
        check_wish(now.path_mig_state, attr.path_mig_state, to, loaded)
    }

    /// Carries out what the attributes say about migration; `migrates` is what the check returned.
    pub(crate) fn grant_wish<H: Host>(
        &mut self,
        attr: &QpAttr,
        mask: QpAttrMask,
        migrates: bool,
        host: &mut H,
    ) {
        if migrates {
            self.migrate(MigrationCause::Software, host);
        } else if mask.contains(QpAttrMask::PATH_MIG_STATE)
            && attr.path_mig_state == MigState::Rearm
        {
            if self.core.multipath {
                self.core.arm_with_set(host);
            } else {
                self.core.migration.begin();
            }
        }
    }

    /// Decides whether a packet by this path is handled, and carries out what it says about migration.
    #[cold]
    pub(crate) fn admit<H: Host>(
        &mut self,
        now: Duration,
        packet: &Packet<'_>,
        by: CameBy,
        host: &mut H,
    ) -> bool {
        let core = &mut self.core;
        let ours = match packet.headers.bth.opcode.service() {
            Service::Rc | Service::Mp => core.config.qp_type == QpType::Rc,
            Service::Xrc => core.config.qp_type.is_xrc(),
            Service::Uc => core.config.qp_type == QpType::Uc,
            _ => false,
        };
        if !ours {
            core.counters.dropped_service += 1;
            return false;
        }
        // Who is not connected yet, or not any more, only takes packets.
        let sends = matches!(core.attr.state, QpState::Rts | QpState::Sqd);
        let (state, mig_req) = (core.attr.path_mig_state, packet.headers.bth.mig_req);
        if by.primary {
            core.migration.heard_by_primary();
        }
        match receive(state, mig_req, by) {
            Step::Drop
                if state == MigState::Rearm
                    && (mig_req && by.alternate && sends)
                    && core.migration.is_overtaken(now) =>
            {
                self.migrate(MigrationCause::Peer, host);
            }
            Step::Drop => {
                let is_old_request = by.by_port && self.is_old_request(packet);
                let is_news = by.alternate && sends && self.compare(now, packet, host);
                if by.by_port {
                    // A new request of no bytes looks like a question.
                    return !is_news || is_question(packet) && !is_old_request;
                }
                self.core.counters.dropped_inactive_path += u64::from(!is_news);
                return false;
            }
            // What came by the alternate path as well proves that it works: it is the primary one.
            Step::Arm if sends && (by.alternate || !core.proves()) => {
                core.attr.path_mig_state = MigState::Armed;
                // The peer may still wait for such a packet of ours.
                core.migration.begin();
                host.migration(MigrationNews::Armed);
            }
            Step::Disarm if sends => {
                core.attr.path_mig_state = MigState::Rearm;
                core.migration.begin();
            }
            Step::Migrate => self.migrate(MigrationCause::Peer, host),
            Step::Accept | Step::Arm | Step::Disarm => {}
        }
        let core = &mut self.core;
        let proves = core.proves();
        let migration = &mut core.migration;
        // An answer by another port may be one by the path that was left.
        if migration.unconfirmed
            && (!proves
                || !by.other_port && migration.is_followed(now, mig_req, is_question(packet)))
        {
            migration.unconfirmed = false;
            if core.attr.path_mig_state == MigState::Rearm {
                core.migration.begin(); // It can say so now.
            } else if !core.migration.fresh {
                core.migration.settle();
            }
        }
        true
    }

    /// Whether a packet is a request that was executed before, as questions are.
    fn is_old_request(&self, packet: &Packet<'_>) -> bool {
        let Halves::Rc(rc) = &self.halves else { return false };
        is_question(packet) && rc.1.epsn().diff(packet.headers.bth.psn) > 0
    }

    /// Handles a packet by the alternate path of an end in REARM, or that is ARMED: a question of the peer,
    /// or the answer to one of ours. Returns false if it is neither. It changes nothing but what is known of
    /// the paths, and what follows from that.
    fn compare<H: Host>(&mut self, now: Duration, packet: &Packet<'_>, host: &mut H) -> bool {
        let core = &mut self.core;
        let Halves::Rc(rc) = &mut self.halves else { return false };
        let state = core.attr.path_mig_state;
        // What has `MigReq` 1 is no question, and an answer with `MigReq` 1 would make the peer migrate.
        if core.migration.mig_req(state) || packet.headers.bth.mig_req || !core.proves() {
            return false;
        }
        let Some(way) = core.migration.alternate.and_then(|peer| host.route(peer)) else {
            return false;
        };
        match packet.headers.bth.opcode {
            _ if is_question(packet) => {
                rc.1.acknowledge_by(core, way.path, host);
                if state == MigState::Rearm {
                    core.migration.was_asked(now);
                }
                true
            }
            Opcode::RC_ACK if state == MigState::Rearm => {
                if core.migration.is_proof() {
                    core.attr.path_mig_state = MigState::Armed;
                    core.migration.settle();
                    core.migration.watch.begin(now);
                    // If the primary path is silent, it is compared with this one from now on.
                    rc.0.hurry(now);
                    host.migration(MigrationNews::Armed);
                    if self.must_migrate(host) {
                        self.migrate(MigrationCause::PathLost, host);
                    }
                }
                true
            }
            Opcode::RC_ACK => {
                core.migration.watch.answered();
                // Both may have been silent for long.
                rc.0.hurry(now);
                let compared = core.migration.compared(rc.0.progress_at());
                if !rc.0.is_waiting() || !core.can_migrate(host) {
                    return true;
                }
                match compared {
                    Compared::Nothing => {}
                    Compared::Silent => rc.0.compare(now),
                    Compared::Dead => self.migrate(MigrationCause::Silence, host),
                }
                true
            }
            _ => false,
        }
    }

    /// Changes to the alternate path.
    pub(crate) fn migrate<H: Host>(&mut self, cause: MigrationCause, host: &mut H) {
        let core = &mut self.core;
        if core.multipath {
            return core.leave_active_path(cause, host);
        }
        let attr = &mut core.attr;
        attr.path_mig_state = MigState::Migrated;
        (attr.ah, attr.port_num) = (attr.alt_ah, attr.alt_port_num);
        (attr.pkey_index, attr.timeout) = (attr.alt_pkey_index, attr.alt_timeout);
        let migration = &mut core.migration;
        migration.due = None;
        migration.count += 1;
        migration.moved = Some(cause);
        migration.unconfirmed = true;
        migration.forget_paths();
        migration.begin();
        if let Some(alternate) = migration.alternate {
            core.peer = Some(alternate);
        }
        core.counters.migrations += 1;
        match &mut self.halves {
            Halves::Rc(rc) => {
                rc.0.leave_paths(core, host);
                rc.1.on_path_change(core, |_| true, host);
            }
            Halves::Uc(sender, _) | Halves::Ud(sender, _) => sender.wake(),
        }
        // Everything that was charged to the old path is given back.
        host.migration(MigrationNews::Migrated(cause));
        host.event(QpEvent::PathMig);
    }

    /// The peer has changed to its alternate path, as the connection manager has heard from it: follows it,
    /// also if this end was not ready to migrate yet. Returns whether it has an alternate path to do so.
    pub fn follow_peer<H: Host>(&mut self, host: &mut H) -> bool {
        let core = &self.core;
        let can = core.attr.path_mig_state != MigState::Migrated
            && core.migration.alternate.is_some()
            && matches!(core.attr.state, QpState::Rts | QpState::Sqd)
            && !core.multipath;
        if can {
            self.migrate(MigrationCause::Peer, host);
        }
        can
    }

    /// The alternate path came into reach, or went out of it.
    pub fn on_alternate_change<H: Host>(&mut self, now: Duration, host: &mut H) {
        let core = &self.core;
        let Some(alternate) = self.alternate() else { return };
        let state = core.attr.path_mig_state;
        if !host.is_reachable(alternate) {
            if state == MigState::Armed && core.proves() {
                self.core.disarm(host);
            } else if state == MigState::Armed {
                host.migration(MigrationNews::AlternateLost);
            }
        } else if self.must_migrate(host) {
            self.on_path_change(now, None, host);
        } else if state == MigState::Rearm && core.proves() {
            self.core.migration.begin();
        }
    }

    /// Whether the primary path can't be used, and the alternate one can.
    pub(crate) fn must_migrate<H: Host>(&self, host: &H) -> bool {
        self.core.attr.path_mig_state == MigState::Armed
            && self.core.peer.is_some_and(|peer| !host.is_reachable(peer))
            && self.core.can_migrate(host)
    }

    /// Whether something follows a change of the migration state that has not been done yet.
    #[inline]
    pub(crate) fn has_migration_work(&self) -> bool {
        // Who has failed has nobody to tell any more.
        let works = !matches!(self.core.attr.state, QpState::Reset | QpState::Err);
        works && (self.core.migration.fresh || self.core.migration.moved.is_some())
    }

    /// Does what follows a change of the migration state and needs the time.
    #[inline]
    pub(crate) fn see_to_migration<H: Host>(&mut self, now: Duration, host: &mut H) {
        if self.has_migration_work() {
            self.follow_migration(now, host);
        }
    }

    #[cold]
    fn follow_migration<H: Host>(&mut self, now: Duration, host: &mut H) {
        if let Some(cause) = self.core.migration.moved.take() {
            self.core.migration.last = Some((cause, now));
            // A path set begins anew with what it says of its paths.
            if let Halves::Rc(rc) = &mut self.halves
                && !self.core.multipath
            {
                rc.0.begin_anew(&mut self.core, now, host);
            }
        }
        if core::mem::take(&mut self.core.migration.fresh) {
            self.ask_peer(now, host);
        }
    }

    /// Asks a peer that has not confirmed again, if it is time to.
    pub(crate) fn ask_again<H: Host>(&mut self, now: Duration, host: &mut H) {
        let Core { migration, attr, .. } = &mut self.core;
        if attr.path_mig_state == MigState::Armed
            && let Some(look) = migration.watch.look(now)
        {
            return self.watch(look, host);
        }
        if !migration.is_due(now) {
            return;
        }
        if migration.waits(attr.path_mig_state) {
            self.ask_peer(now, host);
        } else {
            migration.settle();
        }
    }

    /// Looks after the alternate path of an end that is ARMED.
    fn watch<H: Host>(&mut self, look: Look, host: &mut H) {
        let core = &mut self.core;
        let Halves::Rc(rc) = &mut self.halves else { return };
        let sends = matches!(core.attr.state, QpState::Rts | QpState::Sqd);
        match look {
            _ if !sends || !core.proves() => core.migration.settle(),
            Look::Ask { both } => {
                rc.0.repeat_acknowledged_to(core.migration.alternate, core, host);
                if both {
                    rc.0.repeat_acknowledged(core, host);
                }
            }
            Look::Lost => core.disarm(host),
        }
    }

    /// Sends what carries our `MigReq` to the peer and, if possible, its own back.
    fn ask_peer<H: Host>(&mut self, now: Duration, host: &mut H) {
        let core = &mut self.core;
        let Halves::Rc(rc) = &mut self.halves else { return };
        if !matches!(core.attr.state, QpState::Rts | QpState::Sqd) || core.multipath {
            core.migration.settle();
            return;
        }
        if core.asks_by_alternate() {
            rc.0.repeat_acknowledged_to(core.migration.alternate, core, host);
            if core.migration.asked_by_alternate(now) {
                host.migration(MigrationNews::Unproven);
            }
            return;
        }
        if core.config.qp_type == QpType::XrcRecv {
            rc.1.repeat_acknowledgement(core, host);
        } else {
            rc.0.repeat_acknowledged(core, host);
        }
        if core.migration.waits(core.attr.path_mig_state) {
            core.migration.asked(now);
        } else {
            core.migration.settle();
        }
    }
}
