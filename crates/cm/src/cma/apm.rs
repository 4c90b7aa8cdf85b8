//! Automatic path migration: keeps an alternate path loaded as long as there is one, and follows
//! the queue pair when it migrates. It acts on events, and never more often than once in 100 ms for
//! a connection, with longer pauses after failures.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::cm::{ApStatus, CmPath, SprStatus};
use polypath_wire::flow_label::is_another_port;

use super::alternate::{Primary, best, is_global};
use crate::abi::address::ip_of;
use crate::abi::event::{Event, Kind};
use crate::apm::{AlternatePath, PathOrder, PathTaken};
use crate::env::{ClientId, Environment};
use crate::ibcm::{Connection, IbEvent, LapPath, Suggestion, Told};
use crate::ids::{Attachment, CmId, IdState, QpType};
use crate::path::{Path, ack_timeout};
use crate::{Cm, errno};

/// Whether an id's connection may migrate.
pub(super) fn wants(id: &CmId, env: &mut dyn Environment) -> bool {
    let connected = matches!(id.qp_type, QpType::Rc | QpType::Uc);
    connected && id.options.apm.unwrap_or_else(|| env.apm_by_default(id.client))
}

/// Whether this alternate path of a connection is the one that its host names.
fn is_taken(c: &Connection, path: &AlternatePath, taken: &PathTaken) -> bool {
    let told_apart = path.pair() == c.pair() && taken.flow_label.is_some();
    path.pair() == taken.pair() && (!told_apart || taken.flow_label == Some(path.flow_label))
}

/// The alternate path that an application named for a connection that it is about to request;
/// `None` if the local address has no device.
pub(super) fn named_alternate(
    id: &CmId,
    path: &Path,
    env: &mut dyn Environment,
) -> Option<AlternatePath> {
    let (device, ifindex) = env.device_for(id.client, ip_of(&path.sgid), None)?;
    Some(AlternatePath {
        device,
        local: ip_of(&path.sgid),
        ifindex,
        remote: ip_of(&path.dgid),
        remote_gid: path.dgid,
        flow_label: path.flow_label,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit.max(1),
        ack_timeout: ack_timeout(device.ack_delay, path.packet_life_time),
        pkey_index: 0,
    })
}

impl Cm {
    /// Handles an event about the paths of a connection.
    pub(super) fn path_event(
        &mut self,
        now: Duration,
        local_id: u32,
        event: &IbEvent,
        env: &mut dyn Environment,
    ) {
        match *event {
            IbEvent::PathsBegin => {
                let agreed = self.ib.get(local_id).and_then(|c| c.migration.alternate);
                if let Some(path) = agreed {
                    self.load(local_id, path);
                }
            }
            IbEvent::PathsDue => self.evaluate(now, local_id, env),
            IbEvent::PathsUnanswered => {
                self.tell_paths(local_id, Kind::AltRouteError, -errno::ETIMEDOUT);
                self.try_later(now, local_id);
            }
            IbEvent::PeerMigrated(told) => self.follow(local_id, told, env),
            IbEvent::LapReceived(ref lap) => self.lap(local_id, lap, env),
            IbEvent::AprReceived { status, better, path, is_even } => {
                self.lap_answered(now, local_id, (status, is_even), better, path);
            }
            IbEvent::SapReceived(ref s) => self.suggested(now, local_id, s, env),
            IbEvent::SprReceived(status) => self.sap_answered(now, local_id, status),
            _ => {}
        }
    }

    /// Turns migration on or off for an id, and for its connection as far as the peer agreed.
    pub(super) fn set_apm(
        &mut self,
        now: Duration,
        id: u32,
        migrates: bool,
        env: &mut dyn Environment,
    ) {
        let Some(id) = self.ids.get_mut(id) else { return };
        id.options.apm = Some(migrates);
        if let Some(connection) = id.connection {
            self.ib.set_paths(now, connection, migrates);
            self.deliver_events(now, env);
        }
    }

    /// The client of a connection whose paths may change now.
    pub(super) fn client_of(&self, local_id: u32) -> Option<ClientId> {
        let c = self.ib.get(local_id)?;
        let id = self.ids.get(c.owner?)?;
        (id.state == IdState::Connect && c.migration.is_on()).then_some(id.client)
    }

    /// Looks for a better alternate path, and loads or suggests it.
    fn evaluate(&mut self, now: Duration, local_id: u32, env: &mut dyn Environment) {
        let (Some(client), Some(c)) = (self.client_of(local_id), self.ib.get(local_id)) else {
            return;
        };
        if c.migration.is_pending() {
            return;
        }
        if now < c.migration.not_before {
            let at = c.migration.not_before;
            return self.ib.look_at_paths(local_id, at);
        }
        let primary = Primary::of(c, client, env);
        // A peer on this host is not lost with a port.
        if env.is_local(primary.remote, None) {
            return;
        }
        let own = env.addresses(client);
        let lives = |path: &AlternatePath| own.contains(&(path.local, path.ifindex));
        let m = &c.migration;
        let loaded = m.alternate.filter(lives);
        let class = loaded.map(|path| primary.class(path.ifindex, path.remote));
        if !c.is_active {
            let others = primary.other_addresses(&own);
            let better = others.first().filter(|_| class.is_none_or(|class| class & 2 == 0));
            // Without another address here, there may be another source port. To name the address in use asks
            // for it, and tells an active end that has not followed a migration.
            let own_address = (primary.local, primary.ifindex);
            let same = Some(&primary.local).filter(|ip| primary.suits(**ip));
            let same = same.filter(|_| loaded.is_none() && own.contains(&own_address));
            let news = better.or(same).filter(|ip| m.suggested != Some(**ip) && !m.is_deaf);
            if let Some(&address) = news {
                self.ib.send_sap(now, local_id, address);
                if let Some(c) = self.ib.get_mut(local_id) {
                    c.migration.suggested = Some(address);
                }
            }
            return;
        }
        self.await_balance(now, client, env);
        let uses = self.ports_in_reach(client, env);
        let Some(c) = self.ib.get(local_id) else { return };
        let m = &c.migration;
        let found = best(c, &primary, (&own, &uses), env);
        let path = match (loaded, found) {
            (Some(path), _) if m.is_chosen => m.is_unsure.then_some(path),
            (Some(path), Some((found_class, found))) => {
                let preferred = m.preferred == Some(found.remote) && path.remote != found.remote;
                let is_better = class
                    .is_none_or(|class| found_class > class || found_class == class && preferred);
                if is_better { Some(found) } else { m.is_unsure.then_some(path) }
            }
            (Some(path), None) => {
                m.is_unsure.then_some(path).filter(|p| !m.refused.contains(&p.pair()))
            }
            (None, found) => found.map(|(_, path)| path),
        };
        if let Some(mut path) = path {
            if path.pair() == (primary.local, primary.remote) && path.flow_label == 0 {
                let current = self.ib.get(local_id).map_or(0, |c| c.path.flow_label);
                path.flow_label = self.ib.fresh_label(current);
            }
            self.ib.send_lap(now, local_id, path);
            self.tell_paths(local_id, Kind::AltRouteResolved, 0);
        }
    }

    /// Tries again after a failure, unless there were too many.
    fn try_later(&mut self, now: Duration, local_id: u32) {
        let Some(c) = self.ib.get_mut(local_id) else { return };
        c.migration.suggested = None;
        if let Some(at) = c.migration.fail(now) {
            self.ib.look_at_paths(local_id, at);
        }
    }

    /// Queues an order. The host takes them after each call; one that does not gets no more.
    pub(super) fn order(&mut self, order: PathOrder) {
        if self.orders.len() < self.config.max_queued_mads && self.orders.back() != Some(&order) {
            self.orders.push_back(order);
        }
    }

    /// Agrees on an alternate path, and has it loaded.
    fn load(&mut self, local_id: u32, path: AlternatePath) {
        let Some(c) = self.ib.get_mut(local_id) else { return };
        let (Some(client), qp_num) = (c.client, c.qp.local_qpn) else { return };
        c.migration.alternate = Some(path);
        c.migration.knows_label(path.flow_label);
        self.ib.counters.alternates_loaded += 1;
        self.order(PathOrder::LoadAlternate { client, qp_num, alternate: path });
        self.tell_paths(local_id, Kind::AltPathLoaded, 0);
    }

    /// The passive end judges a LAP.
    fn lap(&mut self, local_id: u32, lap: &LapPath, env: &mut dyn Environment) {
        let (status, better) = match self.judge(local_id, lap, env) {
            Ok(path) => {
                if let Some(c) = self.ib.get_mut(local_id) {
                    c.migration.is_chosen = false;
                    c.alternates.add_peer(path.remote);
                }
                self.load(local_id, path);
                (ApStatus::Ok, None)
            }
            Err(refusal) => refusal,
        };
        self.ib.answer_lap(local_id, lap.tid, lap.answer_to, status, better);
    }

    fn judge(
        &mut self,
        local_id: u32,
        lap: &LapPath,
        env: &mut dyn Environment,
    ) -> Result<AlternatePath, (ApStatus, Option<IpAddr>)> {
        let off = (ApStatus::Reject, None);
        let client = self.client_of(local_id).ok_or(off)?;
        let c = self.ib.get(local_id).ok_or(off)?;
        let primary = Primary::of(c, client, env);
        let same_ends = (lap.local, lap.remote) == (primary.local, primary.remote);
        if same_ends && !is_another_port(lap.flow_label, c.path.flow_label) {
            return Err((ApStatus::IsCurrent, None));
        }
        if lap.hop_limit == 0 {
            return Err((ApStatus::InvalidHopLimit, None));
        }
        let own = env.addresses(client);
        if !primary.suits(lap.remote) || own.iter().any(|(ip, _)| *ip == lap.remote) {
            return Err(off);
        }
        let path = own
            .iter()
            .find(|(ip, _)| *ip == lap.local && primary.suits(*ip))
            .and_then(|(ip, ifindex)| primary.path(c, (*ip, Some(*ifindex)), lap.remote, env));
        let better = || primary.other_addresses(&own).first().copied();
        let path = path.ok_or_else(|| (ApStatus::InvalidGid, better()))?;
        Ok(AlternatePath {
            flow_label: lap.flow_label,
            traffic_class: lap.traffic_class,
            hop_limit: lap.hop_limit,
            ack_timeout: if lap.ack_timeout == 0 { path.ack_timeout } else { lap.ack_timeout },
            ..path
        })
    }

    /// Judges the alternate path that a REQ offers to an id that wants migration.
    fn judge_offer(
        &mut self,
        local_id: u32,
        offer: &CmPath,
        env: &mut dyn Environment,
    ) -> Option<AlternatePath> {
        let answer_to = self.ib.get(local_id)?.endpoints;
        let lap = LapPath {
            tid: 0,
            answer_to,
            local: offer.remote_gid.to_ip(),
            remote: offer.local_gid.to_ip(),
            flow_label: offer.flow_label,
            traffic_class: offer.traffic_class,
            hop_limit: offer.hop_limit,
            ack_timeout: offer.ack_timeout,
        };
        self.judge(local_id, &lap, env).ok()
    }

    /// Says whether the connection of a request may migrate, and judges the path that the request
    /// offers.
    pub(super) fn enable_paths(
        &mut self,
        local_id: u32,
        migrates: bool,
        offer: Option<&CmPath>,
        env: &mut dyn Environment,
    ) {
        let Some(c) = self.ib.get_mut(local_id) else { return };
        c.migration.enabled = migrates;
        let accepted = offer.and_then(|offer| self.judge_offer(local_id, offer, env));
        if let Some(c) = self.ib.get_mut(local_id) {
            c.migration.alternate = accepted;
            c.migration.is_chosen = accepted.is_some();
            c.migration.refused_offer = offer.is_some() && accepted.is_none();
        }
    }

    /// The active end gets the answer to its LAP.
    fn lap_answered(
        &mut self,
        now: Duration,
        local_id: u32,
        (status, is_even): (ApStatus, bool),
        better: Option<IpAddr>,
        path: AlternatePath,
    ) {
        let Some(c) = self.ib.get_mut(local_id) else { return };
        let m = &mut c.migration;
        match status {
            ApStatus::Ok if is_even => {
                m.failures = 0;
                m.is_unsure = false;
                m.is_chosen &= m.alternate == Some(path);
                let at = m.not_before;
                self.load(local_id, path);
                return self.ib.look_at_paths(local_id, at);
            }
            // The peer has loaded it, but one of the two has migrated meanwhile.
            ApStatus::Ok => m.is_unsure = true,
            // The peer does not know the connection, or does not want this.
            ApStatus::InvalidCommId | ApStatus::InvalidQpn | ApStatus::Unsupported => {
                m.peer = false;
            }
            ApStatus::InvalidGid => {
                m.refuse(path.pair());
                if let Some(address) = better.filter(|ip| is_global(*ip)) {
                    m.preferred = Some(address);
                    c.alternates.add_peer(address);
                }
            }
            _ if is_even => m.refuse(path.pair()),
            _ => {}
        }
        self.tell_paths(local_id, Kind::AltRouteError, status.code().into());
        self.try_later(now, local_id);
    }

    /// The active end judges a suggestion of the passive end.
    fn suggested(
        &mut self,
        now: Duration,
        local_id: u32,
        suggestion: &Suggestion,
        env: &mut dyn Environment,
    ) {
        let (tid, to, address) = (suggestion.tid, suggestion.answer_to, suggestion.address);
        let client = self.client_of(local_id);
        let (Some(client), Some(c)) = (client, self.ib.get_mut(local_id)) else {
            return self.ib.answer_sap(local_id, tid, to, SprStatus::Reject);
        };
        if !Primary::of(c, client, env).suits(address) {
            return self.ib.answer_sap(local_id, tid, to, SprStatus::Reject);
        }
        c.alternates.add_peer(address);
        let m = &mut c.migration;
        m.refresh();
        m.preferred = Some(address);
        // The peer would not ask if it had the path that this end thinks it has.
        m.is_unsure = true;
        let at = m.not_before.max(now);
        self.ib.answer_sap(local_id, tid, to, SprStatus::Success);
        self.ib.look_at_paths(local_id, at);
    }

    /// The passive end gets the answer to its suggestion.
    fn sap_answered(&mut self, now: Duration, local_id: u32, status: SprStatus) {
        let Some(c) = self.ib.get_mut(local_id) else { return };
        match status {
            SprStatus::Success => {
                let at = c.migration.not_before;
                self.ib.look_at_paths(local_id, at);
            }
            SprStatus::Busy => self.try_later(now, local_id),
            SprStatus::Reject | SprStatus::Unknown(_) => c.migration.is_deaf = true,
        }
    }

    /// Has the queue pair follow the peer's, which uses another path already.
    fn follow(&mut self, local_id: u32, told: Told, env: &mut dyn Environment) {
        let (Some(client), Some(c)) = (self.client_of(local_id), self.ib.get(local_id)) else {
            return self.ib.refuse_waiting_lap(local_id);
        };
        let (local, remote) = (told.local, told.remote);
        let flow_label = told.flow_label.unwrap_or(c.path.flow_label);
        let leads = |path: &AlternatePath| {
            let same_ends = path.pair() == c.pair();
            path.pair() == (local, remote) && (!same_ends || path.flow_label == flow_label)
        };
        let loaded = c.migration.alternate.filter(leads).map(|path| path.flow_label);
        if loaded.is_none() {
            let primary = Primary::of(c, client, env);
            let is_possible = primary.suits(local) && primary.suits(remote);
            let path = is_possible.then(|| primary.path(c, (local, None), remote, env)).flatten();
            let Some(path) = path else { return self.ib.refuse_waiting_lap(local_id) };
            self.load(local_id, AlternatePath { flow_label, ..path });
        }
        let flow_label = loaded.unwrap_or(flow_label);
        let Some(c) = self.ib.get_mut(local_id) else { return };
        c.migration.follow(told.epoch);
        let qp_num = c.qp.local_qpn;
        self.order(PathOrder::Migrate { client, qp_num, to: (local, remote), flow_label });
    }

    /// Handles a queue pair that has migrated. `to` is its path now, if that is known; else it is the
    /// alternate path.
    pub(crate) fn migrated(
        &mut self,
        now: Duration,
        local_id: u32,
        to: Option<PathTaken>,
        by_host: bool,
        env: &mut dyn Environment,
    ) {
        if !self.ib.is_news(local_id, to, by_host) {
            // A host that has not moved the queue pair could not follow the peer.
            if by_host {
                self.ib.refuse_waiting_lap(local_id);
            }
            return;
        }
        let (Some(client), Some(c)) = (self.client_of(local_id), self.ib.get(local_id)) else {
            return;
        };
        let alternate = c.migration.alternate;
        let path = match to {
            Some(to) if !alternate.is_some_and(|path| is_taken(c, &path, &to)) => {
                // It has migrated before it loaded the path that was agreed last. The address may be
                // gone again by now.
                let device = c.owner.and_then(|owner| self.ids.get(owner)?.attachment);
                let primary = Primary::of(c, client, env);
                let path = primary.path(c, (to.local, None), to.remote, env).or_else(|| {
                    let Attachment { device, ifindex, .. } = device?;
                    Some(Primary::path_of(c, (device, to.local, ifindex), to.remote))
                });
                let flow_label = to.flow_label.filter(|_| to.pair() == c.pair());
                path.map(|path| AlternatePath {
                    flow_label: flow_label.unwrap_or(path.flow_label),
                    ..path
                })
            }
            _ => alternate,
        };
        let Some(path) = path else { return };
        self.ib.moved(now, local_id, &path);
        let Some(c) = self.ib.get(local_id) else { return };
        let Some(id) = c.owner.and_then(|owner| self.ids.get_mut(owner)) else { return };
        id.path = Some(c.path);
        id.remote = Some(path.remote);
        if let Some(attachment) = &mut id.attachment {
            (attachment.local, attachment.ifindex) = (path.local, path.ifindex);
            // The queue pair stays with its device.
            if attachment.device.node_guid == path.device.node_guid {
                attachment.device = path.device;
            }
        }
        // A LAP may have waited for this.
        self.deliver_events(now, env);
    }

    /// Handles a path that the host could not load.
    pub(crate) fn not_loaded(&mut self, now: Duration, local_id: u32) {
        let Some(c) = self.ib.get_mut(local_id) else { return };
        let Some(path) = c.migration.alternate.take() else { return };
        let by_label = path.pair() == c.pair();
        if !by_label {
            c.migration.refuse(path.pair());
        }
        self.tell_paths(local_id, Kind::AltRouteError, -errno::EINVAL);
        if by_label && let Some(c) = self.ib.get_mut(local_id) {
            let at = c.migration.fail_by_label(now);
            return self.ib.look_at_paths(local_id, at);
        }
        self.try_later(now, local_id);
    }

    /// Looks at all paths again, because addresses or interfaces have changed.
    pub(crate) fn paths_changed(&mut self, now: Duration, env: &mut dyn Environment) {
        for local_id in self.ib.with_paths() {
            let Some(c) = self.ib.get_mut(local_id) else { continue };
            c.migration.refresh();
            let Some(client) = c.client else { continue };
            let own = env.addresses(client);
            let lost = |path: &AlternatePath| !own.contains(&(path.local, path.ifindex));
            let is_lost = c.migration.alternate.as_ref().is_some_and(lost);
            let at = c.migration.not_before.max(now);
            if c.is_active || is_lost {
                self.ib.look_at_paths(local_id, at);
            } else {
                self.ib.look_after_turn(local_id, at);
            }
        }
    }

    /// Tells an application that asked for migration itself. Others don't know these events.
    fn tell_paths(&mut self, local_id: u32, kind: Kind, status: i32) {
        let owner = self.ib.get(local_id).and_then(|c| c.owner);
        let Some(id) = owner.and_then(|owner| self.ids.get(owner)) else { return };
        if id.options.apm == Some(true) {
            let id = id.id;
            self.emit(id, &Event::new(kind).with_status(status));
        }
    }
}
