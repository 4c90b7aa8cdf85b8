//! The transactions of migration: started, repeated, matched, given up; and what a migration does to a
//! connection.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::flow_label::is_another_port;

use super::super::connection::{IbEvent, State};
use super::super::endpoints::Endpoints;
use super::super::table::Connections;
use super::messages;
use super::state::{About, PAUSE, Transaction};
use crate::abi::address::gid_of;
use crate::apm::{AlternatePath, PathTaken};
use crate::env::ClientId;

/// The time until a LAP or SAP is repeated for the first time. It doubles each time, up to the
/// response time-out. As for a DREQ, the IBTA's response time-out would be too long: no application
/// has to answer.
const FIRST_TIMEOUT: Duration = Duration::from_millis(250);

/// The active end gives the addresses that the peer lists this time to arrive before it chooses.
const LIST_TIME: Duration = Duration::from_millis(50);

/// The passive end gives the active end this time to load a path before it suggests one.
const TURN_TIME: Duration = Duration::from_millis(200);

/// After a migration the active end gives the passive end this time to follow by itself. If that is
/// too short, the passive end learns it from the LAP.
const FOLLOW_TIME: Duration = Duration::from_millis(20);

impl Connections {
    /// Sets the time of this layer's next action on a connection. An earlier one stays.
    pub(crate) fn look_at_paths(&mut self, local_id: u32, at: Duration) {
        let Some(c) = self.get(local_id) else { return };
        let m = &c.migration;
        let starts = c.state == State::Established && m.is_on() && !m.is_pending();
        if starts && m.timer.is_none_or(|timer| at < timer) {
            self.set_path_timer(local_id, Some(at));
        }
    }

    /// Begins with migration, because the connection is established.
    pub(in super::super) fn begin_paths(&mut self, now: Duration, local_id: u32) {
        let Some(c) = self.get(local_id) else { return };
        if !c.migration.is_on() {
            return;
        }
        let (key, is_active) = ((c.client, c.qp.local_qpn), c.is_active);
        if let (Some(client), qp_num) = key {
            self.apm_qps.insert((client, qp_num), local_id);
        }
        self.look_at_paths(local_id, now + if is_active { LIST_TIME } else { TURN_TIME });
        self.report(local_id, IbEvent::PathsBegin);
    }

    /// Turns migration on or off at this end.
    pub(crate) fn set_paths(&mut self, now: Duration, local_id: u32, enabled: bool) {
        let Some(c) = self.get_mut(local_id) else { return };
        let was_on = c.migration.is_on();
        c.migration.enabled = enabled;
        match (c.state, was_on, c.migration.is_on()) {
            (State::Established, false, true) => self.begin_paths(now, local_id),
            (_, true, false) => self.end_paths(local_id),
            _ => {}
        }
    }

    /// Ends migration, because the connection ends.
    pub(in super::super) fn end_paths(&mut self, local_id: u32) {
        self.set_path_timer(local_id, None);
        let Some(c) = self.get_mut(local_id) else { return };
        (c.migration.pending, c.migration.asked) = (None, None);
        if let Some(client) = c.client {
            let key = (client, c.qp.local_qpn);
            if self.apm_qps.get(&key) == Some(&local_id) {
                self.apm_qps.remove(&key);
            }
        }
    }

    /// The connection of a queue pair that may migrate.
    pub(crate) fn of_qp(&self, client: ClientId, qp_num: u32) -> Option<u32> {
        self.apm_qps.get(&(client, qp_num)).copied()
    }

    /// The connections that may migrate.
    pub(crate) fn with_paths(&self) -> Vec<u32> {
        self.apm_qps.values().copied().collect()
    }

    pub(super) fn set_path_timer(&mut self, local_id: u32, at: Option<Duration>) {
        let Some(c) = self.get_mut(local_id) else { return };
        let old = core::mem::replace(&mut c.migration.timer, at);
        if let Some(old) = old {
            self.apm_timers.remove(&(old, local_id));
        }
        if let Some(at) = at {
            self.apm_timers.insert((at, local_id));
        }
    }

    /// Asks the passive end to load an alternate path.
    pub(crate) fn send_lap(&mut self, now: Duration, local_id: u32, path: AlternatePath) {
        self.begin(now, local_id, About::Lap(path));
    }

    /// Suggests an address of this end to the active end.
    pub(crate) fn send_sap(&mut self, now: Duration, local_id: u32, address: IpAddr) {
        self.begin(now, local_id, About::Sap(address));
    }

    fn begin(&mut self, now: Duration, local_id: u32, about: About) {
        let random = self.random();
        let Some(c) = self.get_mut(local_id) else { return };
        if c.state != State::Established || !c.migration.is_on() || c.migration.is_pending() {
            return;
        }
        let number = c.migration.number.map_or(random, |number| number.wrapping_add(1));
        c.migration.number = Some(number);
        let tid = u64::from(number) << 32 | u64::from(local_id);
        let mad = match about {
            About::Lap(path) => messages::lap(c, tid, &path),
            About::Sap(address) => messages::sap(c, tid, address),
        };
        let timeout = FIRST_TIMEOUT.min(c.timeout);
        let (attempt, is_postponed) = (0, false);
        c.migration.pending = Some(Transaction { tid, mad, about, attempt, timeout, is_postponed });
        c.migration.not_before = now + PAUSE;
        let to = c.endpoints_for(0);
        self.set_path_timer(local_id, Some(now + timeout));
        self.send(to, mad, Some(local_id), 0);
    }

    /// Takes the transaction that an answer is for.
    pub(super) fn finish(&mut self, local_id: u32, tid: u64) -> Option<About> {
        let c = self.get_mut(local_id).filter(|c| c.state == State::Established)?;
        c.migration.pending.as_ref().filter(|pending| pending.tid == tid)?;
        let about = c.migration.pending.take().map(|pending| pending.about);
        self.set_path_timer(local_id, None);
        about
    }

    /// The peer needs longer for its answer to the LAP with this transaction id. As with a REQ, the
    /// first MRA counts.
    pub(in super::super) fn postpone_lap(
        &mut self,
        now: Duration,
        local_id: u32,
        tid: u64,
        timeout: Duration,
    ) {
        let pending = self.get_mut(local_id).and_then(|c| c.migration.pending.as_mut());
        let lap = pending.filter(|p| p.tid == tid && matches!(p.about, About::Lap(_)));
        match lap {
            None => self.counters.mads_unmatched += 1,
            Some(lap) if lap.is_postponed => self.counters.mads_duplicate += 1,
            Some(lap) => {
                (lap.is_postponed, lap.timeout) = (true, lap.timeout.max(timeout));
                let at = now + lap.timeout;
                self.set_path_timer(local_id, Some(at));
            }
        }
    }

    /// Runs the timers that are due: repeats messages, gives up, and looks for better paths.
    pub(in super::super) fn handle_path_timers(&mut self, now: Duration) {
        while let Some(&(at, local_id)) = self.apm_timers.first() {
            if at > now {
                break;
            }
            self.set_path_timer(local_id, None);
            self.path_timer(now, local_id);
        }
    }

    fn path_timer(&mut self, now: Duration, local_id: u32) {
        let Some(c) = self.get_mut(local_id).filter(|c| c.state == State::Established) else {
            return;
        };
        let (longest, max_retries) = (c.timeout, c.max_retries);
        let Some(pending) = &mut c.migration.pending else {
            self.report(local_id, IbEvent::PathsDue);
            return;
        };
        if pending.attempt >= max_retries {
            let about = pending.about;
            c.migration.pending = None;
            c.migration.is_unsure |= matches!(about, About::Lap(_));
            self.report(local_id, IbEvent::PathsUnanswered);
            return;
        }
        pending.attempt += 1;
        if !pending.is_postponed {
            pending.timeout = (pending.timeout * 2).min(longest.max(FIRST_TIMEOUT));
        }
        let (mad, timeout, attempt) = (pending.mad, pending.timeout, pending.attempt);
        let to = c.endpoints_for(attempt);
        self.set_path_timer(local_id, Some(now + timeout));
        self.counters.mads_retried += 1;
        self.send(to, mad, Some(local_id), attempt);
    }

    /// A flow label whose source port is another one than that of this label.
    pub(crate) fn fresh_label(&mut self, than: u32) -> u32 {
        // One of 16,384 does not fit.
        let draws = core::iter::repeat_with(|| self.random() & 0xf_ffff);
        let fits = |label: &u32| is_another_port(*label, than);
        draws.take(8).find(fits).unwrap_or_else(|| (than ^ 1).max(2))
    }

    /// Moves a connection to the path that its queue pair has migrated to. Its own messages go that
    /// way from now on.
    pub(crate) fn moved(&mut self, now: Duration, local_id: u32, to: &AlternatePath) {
        let Some(c) = self.get_mut(local_id) else { return };
        // The path that is left may be the next alternate one, even if the peer's list got lost.
        let (_, remote) = c.pair();
        c.alternates.add_peer(remote);
        c.endpoints = Endpoints {
            local: to.local,
            remote: to.remote,
            ifindex: to.ifindex,
            traffic_class: to.traffic_class,
        };
        let before = c.path.flow_label;
        c.path.sgid = gid_of(to.local);
        c.path.dgid = to.remote_gid;
        c.path.flow_label = to.flow_label;
        c.path.traffic_class = to.traffic_class;
        c.path.hop_limit = to.hop_limit;
        let m = &mut c.migration;
        m.knows_label(before);
        m.knows_label(to.flow_label);
        m.alternate = None;
        m.is_chosen = false;
        m.epoch = m.epoch.saturating_add(1).max(m.follows.take().unwrap_or(0));
        m.preferred = None;
        m.refresh();
        if let Some(Transaction { about: About::Lap(_), .. }) = m.pending.take() {
            m.is_unsure = true;
        }
        let wait = if c.is_active { FOLLOW_TIME } else { TURN_TIME };
        self.set_path_timer(local_id, None);
        self.look_at_paths(local_id, now + wait);
        self.counters.paths_migrated += 1;
        self.take_waiting_lap(local_id);
    }

    /// The same for the passive end, which leaves the first turn to the active end.
    pub(crate) fn look_after_turn(&mut self, local_id: u32, at: Duration) {
        self.look_at_paths(local_id, at + TURN_TIME);
    }

    /// Counts what the host or the application (`by_host` false) says about a migration. Returns
    /// whether it is news; each tells a migration once, at most. Who names the path that the
    /// connection uses already tells no news.
    pub(crate) fn is_news(&mut self, local_id: u32, to: Option<PathTaken>, by_host: bool) -> bool {
        let Some(c) = self.get_mut(local_id) else { return false };
        let differs = to.map(|to| !c.is_at(to.pair(), to.flow_label));
        let m = &mut c.migration;
        let (teller, other) = match by_host {
            true => (&mut m.by_host, m.by_application),
            false => (&mut m.by_application, m.by_host),
        };
        if *teller >= other && m.alternate.is_none() && differs != Some(true) {
            return false;
        }
        *teller = teller.saturating_add(1);
        differs.unwrap_or(*teller > other)
    }
}
