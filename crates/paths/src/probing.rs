//! Regular probes, trials of suspected paths, death and return: takes the samples that
//! [`liveness`] judges, and carries out what follows from its verdicts.

use core::time::Duration;

use crate::association::{Association, Trial};
use crate::id::AssociationId;
use crate::liveness::{self, TRIAL_ROUNDS_FAST};
use crate::manager::PathManager;
use crate::message::Body;
use crate::path::{Path, Role};
use crate::timers::Timer;
use crate::turns::HOME_MARK;
use crate::types::{PathEvent, PathState, Reason, Refused};
use polypath_types::{PathId, PeerId};

/// Between the probes of a path that proves itself.
const RECOVERY_INTERVAL: Duration = Duration::from_millis(20);
/// First probe intervals of dead and of never proven paths; doubled each time.
const DEAD_FIRST: Duration = Duration::from_millis(10);
const PROBING_FIRST: Duration = Duration::from_millis(5);
/// Longest interval for pairs of addresses that never answered.
const PROBING_MAX: Duration = Duration::from_secs(2);
/// Between two looks at a path whose silence might be unusual, at least.
const LOOK_AGAIN: Duration = Duration::from_micros(500);
/// Traffic within this time makes an association busy.
const BUSY: Duration = Duration::from_secs(2);
/// Peers of a silent association that say HELLO at a time.
const DOUBTS: usize = 4;

impl PathManager {
    /// Data has been outstanding on `path` for suspiciously long (say, three round trips and at least
    /// 1.5 ms), or could not be sent. Has no effect on plain peers.
    pub fn suspect(&mut self, now: Duration, path: PathId) {
        self.advance(now);
        let Some(p) = self.paths.get_mut(path) else { return };
        let Role::Member { association, .. } = p.role else { return };
        if !p.usable() {
            return;
        }
        self.begin_trial(association, path);
    }

    /// This host could not send on `path` just now (`EHOSTUNREACH`, `ENETUNREACH`, `EPERM`, `ENOBUFS`, or no
    /// socket): a hint, which probes confirm or refute at once. By itself it gives nothing up, since
    /// many such errors pass. Has no effect on plain peers, on address handles' paths and on paths
    /// that are not in use; may be called for every packet.
    pub fn send_failed(&mut self, now: Duration, path: PathId) {
        self.advance(now);
        let Some(Role::Member { association, .. }) = self.paths.get(path).map(|p| p.role) else {
            return;
        };
        self.begin_trial(association, path);
    }

    fn begin_trial(&mut self, index: AssociationId, path: PathId) {
        let now = self.clock.now();
        let Some(p) = self.paths.get_mut(path) else { return };
        if p.state != PathState::Up {
            return;
        }
        p.state = PathState::Suspect;
        p.probes.suspect(now);
        let awake = self.clock.awake();
        let Some(a) = self.associations.get_mut(index) else { return };
        let started = a.trial.map_or(awake, |t| t.started);
        a.trial = Some(Trial { started, rounds: 0, next_round: now });
        self.timers.no_later(Timer::Association(index), now);
    }

    /// Probes begin again, after a time in which no queue pair used the association and nothing was
    /// probed. A trial that was under way starts over, because nobody has asked meanwhile.
    pub(crate) fn begin_anew(&mut self, index: AssociationId) {
        let (now, awake) = (self.clock.now(), self.clock.awake());
        let Some(a) = self.associations.get_mut(index) else { return };
        a.asked = None;
        if let Some(trial) = &mut a.trial {
            *trial = Trial { started: awake, rounds: 0, next_round: now };
        }
        for path in self.members(index) {
            if let Some(p) = self.paths.get_mut(path) {
                p.probes.forget_all();
                p.probes.next_at = now;
                if p.state == PathState::Suspect {
                    p.probes.suspect(now);
                }
            }
        }
        self.timers.no_later(Timer::Association(index), now);
    }

    fn end_trial_if_cleared(&mut self, index: AssociationId) {
        if !self.has_state(index, PathState::Suspect)
            && let Some(a) = self.associations.get_mut(index)
        {
            a.trial = None;
            self.timers.no_later(Timer::Association(index), self.clock.now());
        }
    }

    fn has_state(&self, index: AssociationId, state: PathState) -> bool {
        self.associations.get(index).is_some_and(|a| self.has_path_in(a, state))
    }

    /// Whether a path of the association is in this state.
    pub(crate) fn has_path_in(&self, a: &Association, state: PathState) -> bool {
        a.paths().any(|(_, path)| self.paths.get(path).is_some_and(|p| p.state == state))
    }

    pub(crate) fn members(&self, index: AssociationId) -> Vec<PathId> {
        self.associations
            .get(index)
            .map(|a| a.paths().map(|(_, p)| p).collect())
            .unwrap_or_default()
    }

    /// A probe of the peer came by the path, so the path carries one way again. A path that has been
    /// silent for long is asked seldom by this end, and must not wait for that: the peer uses it as soon as
    /// its probe is answered.
    pub(crate) fn probe_heard(&mut self, index: AssociationId, path: PathId) {
        let now = self.clock.now();
        let Some(p) = self.paths.get_mut(path).filter(|p| p.state != PathState::Up) else { return };
        p.turns.hear(now);
        let first = match p.state {
            PathState::Probing => PROBING_FIRST,
            PathState::Dead => DEAD_FIRST,
            _ => return,
        };
        if p.probes.next_at > now + first {
            p.probes.interval = first;
            p.probes.next_at = now;
            self.timers.no_later(Timer::Association(index), now);
        }
    }

    /// An answer to a probe: the path carries both ways.
    pub(crate) fn probe_answered(
        &mut self,
        index: AssociationId,
        path: PathId,
        number: u32,
    ) -> Result<(), Refused> {
        if number & HOME_MARK != 0 {
            return self.home_answered(path, number);
        }
        let now = self.clock.now();
        let settled = self.clock.is_settled();
        let p = self.paths.get_mut(path).ok_or(Refused::UnknownPath)?;
        let sent = p.probes.answer(now, number).ok_or(Refused::Unsolicited)?;
        let silence = self.answered(now, index);
        self.probe_passed(now, path, sent);
        let p = self.paths.get_mut(path).ok_or(Refused::UnknownPath)?;
        p.counters.probes_answered += 1;
        if settled {
            p.rtt.sample(now, now.saturating_sub(sent));
        }
        match p.state {
            PathState::Up | PathState::Down => {}
            // The probe was sent before the path was suspected: the answer says nothing about now.
            PathState::Suspect if sent < p.probes.suspected_at => {}
            PathState::Suspect => {
                p.pulse.probe_answered(now);
                self.port_answered(path, sent);
                self.suspect_answered(index, path);
                self.end_silence(path, silence);
            }
            PathState::Probing => {
                self.port_answered(path, sent);
                self.path_back(path, Reason::FirstAlive);
            }
            PathState::Dead => {
                self.port_answered(path, sent);
                let p = self.paths.get_mut(path).ok_or(Refused::UnknownPath)?;
                p.state = PathState::Recovering;
                p.note_hasty(now);
                p.recovering_since = now;
                p.probes.next_at = now;
            }
            PathState::Recovering => {}
        }
        self.recover(index, Reason::FirstAlive);
        self.timers.no_later(Timer::Association(index), now);
        Ok(())
    }

    /// Takes note that the peer has answered something. Returns how long it had not answered although
    /// it was asked; a time without questions is no silence.
    pub(crate) fn answered(&mut self, now: Duration, index: AssociationId) -> Duration {
        let awake = self.clock.awake_at(now);
        let Some(a) = self.associations.get_mut(index) else { return Duration::ZERO };
        a.last_answer = awake;
        a.asked.take().map_or(Duration::ZERO, |asked| awake.saturating_sub(asked))
    }

    /// Reports [`PathEvent::PathHeard`] if a suspected path was the first to answer after a silence on
    /// all paths.
    pub(crate) fn end_silence(&mut self, path: PathId, silence: Duration) {
        let usual = self.paths.get(path).map(Path::usual_wait).unwrap_or_default();
        if liveness::was_silent(silence, usual) {
            self.push_event(PathEvent::PathHeard { path });
        }
    }

    /// A suspected path answered a probe or data. One answer is enough to make it up again; queue pairs
    /// whose data never arrives leave it by themselves (`detour`).
    pub(crate) fn suspect_answered(&mut self, index: AssociationId, path: PathId) {
        let Some(p) = self.paths.get_mut(path) else { return };
        p.state = PathState::Up;
        self.settle_port(path);
        self.end_trial_if_cleared(index);
        self.reselect_others(index, path);
        for peer in self.peers_on(path) {
            self.wake(peer);
        }
    }

    /// Data of a suspected path was acknowledged. A probe that is late would make it suspected again at once,
    /// so the next one tells.
    pub(crate) fn suspect_carries(&mut self, index: AssociationId, path: PathId) {
        if let Some(p) = self.paths.get_mut(path) {
            p.probes.forget_all();
        }
        self.suspect_answered(index, path);
    }

    fn trial_probes(&self) -> u32 {
        u32::from(self.config.trial_probes.clamp(2, 8))
    }

    /// Carries out everything of an association that is due.
    pub(crate) fn tick(&mut self, index: AssociationId) {
        let Some(a) = self.associations.get(index) else { return };
        if !a.confirmed {
            return;
        }
        if let Some(since) = a.unused_since {
            let end = since + self.config.linger;
            if end <= self.clock.now() {
                self.send_control(index, None, &Body::Bye, false);
                self.remove_association(index);
                return;
            }
            self.timers.set(Timer::Association(index), Some(end));
            return;
        }
        if let Some(at) = self.last_datagram(index)
            && let Some(a) = self.associations.get_mut(index)
        {
            a.last_traffic = a.last_traffic.max(at);
        }
        self.notice_late(index);
        let silent_at = self.notice_silent(index);
        self.judge(index);
        self.recover(index, Reason::FirstAlive);
        let mut next = self.control_tick(index);
        let mut earliest = |at: Option<Duration>| {
            if let Some(at) = at {
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        };
        earliest(silent_at);
        earliest(self.trial_round(index));
        earliest(self.regular_probes(index));
        earliest(self.clock.settles_at());
        let floor = self.clock.now() + Duration::from_micros(100);
        self.timers.set(Timer::Association(index), next.map(|n| n.max(floor)));
    }

    /// Suspects paths whose regular probes went unanswered.
    fn notice_late(&mut self, index: AssociationId) {
        for path in self.members(index) {
            let Some(p) = self.paths.get_mut(path) else { continue };
            if !liveness::is_late(&self.clock, &p.sample(self.clock.now())) {
                continue;
            }
            if p.state == PathState::Recovering {
                p.state = PathState::Dead;
                p.probes.forget_all();
                p.probes.interval = DEAD_FIRST;
            } else {
                self.begin_trial(index, path);
            }
        }
    }

    /// Suspects paths by which acknowledgements have come regularly, and come no more. Returns when to look
    /// again.
    fn notice_silent(&mut self, index: AssociationId) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        let mut members = self.members(index);
        members.retain(|path| self.paths.get(*path).is_some_and(|p| p.state == PathState::Up));
        if members.len() < 2 {
            return None; // There is nothing to compare.
        }
        for path in members {
            let Some(p) = self.paths.get(path) else { continue };
            let Some((since, unusual)) = p.pulse.silence() else { continue };
            if self.clock.is_settled() && self.clock.waited(since) >= unusual {
                self.begin_trial(index, path);
            } else {
                let at = (since + unusual).max(self.clock.now() + LOOK_AGAIN);
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        }
        next
    }

    /// Acknowledgements come regularly by the path: looks when they come no more.
    pub(crate) fn watch_pulse(&mut self, index: AssociationId, path: PathId) {
        let silence = self.paths.get(path).and_then(|p| p.pulse.silence());
        if let Some((since, unusual)) = silence {
            self.timers.no_later(Timer::Association(index), since + unusual);
        }
    }

    /// One probe on every path that matters for the comparison.
    fn trial_round(&mut self, index: AssociationId) -> Option<Duration> {
        let now = self.clock.now();
        let trial = self.associations.get(index)?.trial?;
        if trial.next_round > now {
            return Some(trial.next_round);
        }
        let members = self.members(index);
        // Suspected paths come first: the other paths must not have a head start.
        let mut order: Vec<(u8, PathId)> = Vec::new();
        let any_up = self.has_state(index, PathState::Up);
        for &path in &members {
            let Some(p) = self.paths.get(path) else { continue };
            match p.state {
                PathState::Suspect => order.push((0, path)),
                PathState::Up => order.push((1, path)),
                PathState::Down => {}
                _ if !any_up || trial.rounds >= TRIAL_ROUNDS_FAST => order.push((2, path)),
                _ => {}
            }
        }
        order.sort_unstable();
        let wanted = self.trial_probes();
        // Nothing can be compared while the peer is silent on all paths. Perhaps other ways carry.
        let silent = self.associations.get(index).is_some_and(|a| self.is_silent(a, &trial));
        for (_, path) in order {
            if silent {
                self.turn_port(index, path);
            }
            self.send_probe(index, path);
            if let Some(p) = self.paths.get_mut(path) {
                p.probes.sent_since += 1;
                if p.probes.sent_since >= wanted {
                    p.probes.enough_at.get_or_insert(now);
                }
            }
        }
        let rtts = members.iter().filter_map(|p| self.paths.get(*p)?.rtt.shortest());
        let rtt = rtts.min().unwrap_or_default();
        let interval = liveness::trial_interval(trial.rounds, rtt, self.config.trial_interval);
        let next_round = now + interval;
        if let Some(a) = self.associations.get_mut(index) {
            a.trial = Some(Trial { rounds: trial.rounds + 1, next_round, ..trial });
        }
        Some(next_round)
    }

    /// The verdict on suspected paths.
    fn judge(&mut self, index: AssociationId) {
        let on_trial = self.associations.get(index).is_some_and(|a| a.trial.is_some());
        if !on_trial || !self.clock.is_settled() {
            return;
        }
        let members = self.members(index);
        // One less: the other path may have lost one of its own probes.
        let wanted = self.trial_probes() as usize - 1;
        for &path in &members {
            let samples = members.iter().filter_map(|o| self.paths.get(*o));
            let samples = samples.map(|p| p.sample(self.clock.now()));
            let Some(p) = self.paths.get(path) else { continue };
            if liveness::is_dead(self.clock.now(), wanted, &p.sample(self.clock.now()), samples) {
                self.path_lost(path, PathState::Dead, Reason::ProbesLost, true);
            }
        }
        self.end_trial_if_cleared(index);
        // The peer has answered nothing for long, though packets of its own may still come. A path that is
        // not even suspected yet has a long round trip.
        let Some(a) = self.associations.get(index) else { return };
        let is_up = |path: &PathId| self.paths.get(*path).is_some_and(|p| p.state == PathState::Up);
        let Some(trial) = a.trial.filter(|_| !members.iter().any(is_up)) else { return };
        if self.is_silent(a, &trial) {
            let peers = a.peers.clone();
            peers.iter().for_each(|peer| self.begin_outage(*peer));
            // It is also possible that the peer is in another association, and only this end knows this
            // one. A few say HELLO each time, those first that have said none for the longest time: there
            // may be thousands, one for each connection.
            let used = |peer: &PeerId| self.peers.get(*peer).filter(|p| !p.qpns.is_empty());
            let told_at = |peer: &PeerId| used(peer).map(|p| (p.told_at, *peer));
            let mut asks: Vec<_> = peers.iter().filter_map(told_at).collect();
            asks.sort_unstable();
            asks.truncate(DOUBTS);
            asks.into_iter().for_each(|(_, peer)| self.doubt(peer));
        }
    }

    /// Whether the peer has answered nothing for so long that it can't be reached.
    fn is_silent(&self, a: &Association, trial: &Trial) -> bool {
        self.clock.awake() >= a.last_answer.max(trial.started) + self.config.silent_after
    }

    /// Lets paths that proved themselves carry traffic again. `reason`: why traffic that has no other
    /// path moves there.
    fn recover(&mut self, index: AssociationId, reason: Reason) {
        let now = self.clock.now();
        let members = self.members(index);
        let alone = !members.iter().any(|p| self.paths.get(*p).is_some_and(Path::usable));
        for path in members {
            let Some(p) = self.paths.get(path) else { continue };
            let updelay = p.updelay(now, &self.config);
            if liveness::is_proven(
                now,
                p.recovering_since,
                updelay,
                alone,
                &p.sample(self.clock.now()),
            ) {
                self.path_back(path, reason);
            }
        }
    }

    fn send_probe(&mut self, index: AssociationId, path: PathId) {
        let Some(p) = self.paths.get_mut(path) else { return };
        let Role::Member { id, .. } = p.role else { return };
        let number = p.probes.send(self.clock.now());
        p.counters.probes_sent += 1;
        let awake = self.clock.awake();
        if let Some(a) = self.associations.get_mut(index) {
            a.asked.get_or_insert(awake);
        }
        self.send_frame(index, id, Body::Probe { number }, false);
    }

    /// Probes outside of trials. Returns when the next thing is due.
    fn regular_probes(&mut self, index: AssociationId) -> Option<Duration> {
        let now = self.clock.now();
        let a = self.associations.get(index)?;
        let trial = a.trial.is_some();
        let busy = now.saturating_sub(a.last_traffic) < BUSY && !a.last_traffic.is_zero();
        let steady = if busy { self.config.probe_busy } else { self.config.probe_idle };
        let dead_max = self.config.probe_dead.max(DEAD_FIRST);
        let mut next: Option<Duration> = None;
        for path in self.members(index) {
            let Some(p) = self.paths.get_mut(path) else { continue };
            if p.state == PathState::Down || (trial && p.usable()) {
                continue;
            }
            let due = p.probes.next_at <= now;
            if due {
                if matches!(p.state, PathState::Dead | PathState::Probing) {
                    self.turn_port(index, path);
                }
                let Some(p) = self.paths.get_mut(path) else { continue };
                let interval = match p.state {
                    PathState::Recovering => RECOVERY_INTERVAL,
                    PathState::Dead => double(&mut p.probes.interval, DEAD_FIRST, dead_max),
                    PathState::Probing => {
                        double(&mut p.probes.interval, PROBING_FIRST, PROBING_MAX)
                    }
                    _ => steady,
                };
                p.probes.next_at = now + interval;
                self.send_probe(index, path);
            }
            let home = self.homing(index, path);
            let Some(p) = self.paths.get(path) else { continue };
            let late = liveness::late_at(&p.sample(self.clock.now()));
            for at in [Some(p.probes.next_at), late, home].into_iter().flatten() {
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        }
        next
    }

    /// A path is given up. `fence`: raise its generation, so that nothing sent on it so far is
    /// accepted from now on, and tell the peer.
    pub(crate) fn path_lost(
        &mut self,
        path: PathId,
        state: PathState,
        reason: Reason,
        fence: bool,
    ) {
        let now = self.clock.now();
        let Some(p) = self.paths.get_mut(path) else { return };
        p.give_up(now, state, reason);
        p.probes.interval = Duration::ZERO;
        p.probes.next_at = now + DEAD_FIRST;
        let (role, mut generation) = (p.role, p.generation);
        if fence && matches!(role, Role::Member { .. }) {
            generation = generation.wrapping_add(1);
            p.generation = generation;
        }
        let users = self.peers_on(path);
        self.push_event(PathEvent::PathDead { path, reason });
        if let Role::Member { association, id } = role {
            self.end_detours(association, path);
            if let Some(a) = self.associations.get_mut(association) {
                a.generations[id] = generation;
            }
            // If this was the last usable path, a path that still has to prove itself takes over.
            self.recover(association, reason);
        }
        for peer in users {
            self.reselect(peer, reason);
        }
        if let Role::Member { association, .. } = role {
            self.end_trial_if_cleared(association);
            if fence {
                self.control_now(association);
            }
            self.paths_changed(association);
        }
    }

    /// A path may carry traffic (again). `reason`: why traffic that has no other path moves there.
    pub(crate) fn path_back(&mut self, path: PathId, reason: Reason) {
        let Some(p) = self.paths.get_mut(path) else { return };
        let role = p.role;
        p.revive(&self.config);
        p.probes.next_at = self.clock.now();
        self.settle_port(path);
        self.push_event(PathEvent::PathAlive { path });
        let peers = match role {
            Role::Member { association, .. } => {
                self.associations.get(association).map(|a| a.peers.clone()).unwrap_or_default()
            }
            Role::Plain { peer } => vec![peer],
            Role::Datagram => Vec::new(),
        };
        for peer in peers {
            self.reselect(peer, reason);
            self.wake(peer);
        }
        if let Role::Member { association, .. } = role {
            self.paths_changed(association);
        }
    }
}

/// Returns the interval and doubles it for the next time.
fn double(interval: &mut Duration, first: Duration, max: Duration) -> Duration {
    let current = (*interval).max(first).min(max);
    *interval = (current * 2).min(max);
    current
}
