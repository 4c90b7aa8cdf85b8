//! One path: its state, its probes and what is in flight on it.

use core::time::Duration;
use std::collections::VecDeque;

use crate::config::Config;
use crate::congestion::Congestion;
use crate::coupling::Delays;
use crate::id::{AssociationId, PathNumber};
use crate::lane_pairs::Met;
use crate::pulse::{HASTY, Pulse};
use crate::rtt::Rtt;
use crate::select::{Pair, Way};
use crate::turns::{HOME_MARK, PortTurns};
use crate::twice::Twice;
use crate::types::{PathAddress, PathState, PathStatus, Reason};
use polypath_telemetry::PathCounters;
use polypath_types::{PathId, PathKind, PathTag, PeerId};
use polypath_wire::flow_label;

/// What a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The single path of a peer.
    Plain { peer: PeerId },
    /// A numbered path of an association.
    Member { association: AssociationId, id: PathNumber },
    /// Address handles.
    Datagram,
}

/// Probes on one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes {
    next_number: u32,
    outstanding: VecDeque<(u32, Duration)>,
    /// When the next one goes out, outside of trials.
    pub(crate) next_at: Duration,
    /// Interval to the one after, for paths that do not answer.
    pub(crate) interval: Duration,
    /// When the path was last suspected; probes sent since, and when there were enough of them.
    pub(crate) suspected_at: Duration,
    pub(crate) sent_since: u32,
    pub(crate) enough_at: Option<Duration>,
    /// Latest answered probes: when they were sent and answered.
    answers: VecDeque<(Duration, Duration)>,
}

/// The most probes remembered as unanswered.
const MAX_OUTSTANDING: usize = 64;
/// The most answers remembered.
const MAX_ANSWERS: usize = 16;

impl Probes {
    /// Registers a probe; returns its number.
    pub(crate) fn send(&mut self, now: Duration) -> u32 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1) & !HOME_MARK;
        if self.outstanding.len() == MAX_OUTSTANDING {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back((number, now));
        number
    }

    /// Takes an answer and returns when its probe was sent. Probes sent before that one are not waited
    /// for any more.
    pub(crate) fn answer(&mut self, now: Duration, number: u32) -> Option<Duration> {
        let at = self.outstanding.iter().position(|(n, _)| *n == number)?;
        let (_, sent) = self.outstanding.remove(at)?;
        self.outstanding.drain(..at);
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((sent, now));
        Some(sent)
    }

    /// The time at which `count` probes that were sent at `since` or later had been answered; `None` if
    /// fewer were.
    pub(crate) fn answered(&self, since: Duration, count: usize) -> Option<Duration> {
        let at = |(sent, at): &(Duration, Duration)| (*sent >= since).then_some(*at);
        self.answers.iter().filter_map(at).nth(count.saturating_sub(1))
    }

    pub(crate) fn forget_all(&mut self) {
        self.outstanding.clear();
    }

    /// When the oldest unanswered one was sent.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.outstanding.front().map(|(_, sent)| *sent)
    }

    /// The path is suspected from now on.
    pub(crate) fn suspect(&mut self, now: Duration) {
        self.suspected_at = now;
        self.sent_since = 0;
        self.enough_at = None;
    }
}

/// The rate at which answers are taken to leave, bytes per second: a slow link's.
const ANSWERS_RATE: u64 = 1_250_000;
/// The longest time that packets are taken to wait behind requests, and behind answers.
const QUEUE_MAX: Duration = Duration::from_millis(250);
const ANSWERS_MAX: Duration = Duration::from_millis(100);

/// A path that is not in the set any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    pub(crate) way: Way,
    recent_deaths: u32,
    died_at: Duration,
}

/// One way between two addresses. `PathManager::check` ensures, by its role:
///
/// | role | states | users | redirect |
/// |---|---|---|---|
/// | plain | up, down: nothing probes it | 1, the peer whose own it is | none |
/// | member | all | its association, and the peer whose own it is, if there is one | none |
/// | datagram | up, down | as many address handles as go by it, at least one | where another way is known |
///
/// A path that is up or suspect has no `reason`; one that is dead, recovering or down has one.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) address: PathAddress,
    pub(crate) role: Role,
    /// Which of the paths between its addresses it is.
    pub(crate) port: u8,
    /// The port of the bond that it leaves by while its own one is lost.
    pub(crate) substitute: Option<u32>,
    /// The source ports that it has tried since it answered last.
    pub(crate) turns: PortTurns,
    /// Peers, associations and address handles that hold it.
    pub(crate) users: u32,
    pub(crate) generation: u16,
    /// The newest generation that the peer has told.
    pub(crate) peer_generation: u16,
    pub(crate) state: PathState,
    /// Whether it is about to be given up, with others: traffic must not move to it meanwhile.
    pub(crate) doomed: bool,
    pub(crate) reason: Option<Reason>,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    /// How regularly acknowledgements come by it.
    pub(crate) pulse: Pulse,
    /// Its round trips, for the comparison with the other paths of its association.
    pub(crate) delays: Delays,
    /// What the window counts for packets that were sent by another path as well.
    pub(crate) twice: Twice,
    /// When data or an acknowledgement last came by it.
    pub(crate) heard_at: Duration,
    /// Until when packets may have to wait behind answers that this end sent.
    answers_until: Duration,
    /// Whether a queue pair waits for room in the window.
    pub(crate) blocked: bool,
    /// Whether the first progress after a fail-over is to be reported.
    pub(crate) watched: bool,
    /// Since when it tries a port of a bond by which its peer was silent ([`silence`](crate::silence)).
    pub(crate) tried_since: Option<Duration>,
    /// Whether the next answer by it says that packets came with a mark of congestion.
    pub(crate) echo_mark: bool,
    pub(crate) probes: Probes,
    pub(crate) recovering_since: Duration,
    pub(crate) last_progress: Option<Duration>,
    pub(crate) outstanding_since: Option<Duration>,
    /// For datagram paths: another way to the same host, while this one is dead.
    pub(crate) redirect: Option<PathId>,
    /// Of address handles: when a datagram was last sent by it, and the lanes that were looked at.
    pub(crate) datagram_at: Duration,
    pub(crate) met: Met,
    recent_deaths: u32,
    died_at: Duration,
    pub(crate) counters: PathCounters,
}

/// The time after which deaths count half as much.
const DEATH_HALF_LIFE: Duration = Duration::from_secs(10);

impl Path {
    pub(crate) fn new(address: PathAddress, role: Role, config: &Config) -> Self {
        Self {
            address,
            role,
            port: 0,
            substitute: None,
            turns: PortTurns::new(address.source_port),
            users: 1,
            generation: 1,
            peer_generation: 1,
            state: PathState::Up,
            doomed: false,
            reason: None,
            rtt: Rtt::default(),
            congestion: Congestion::new(config, address.kind),
            pulse: Pulse::default(),
            delays: Delays::default(),
            twice: Twice::default(),
            heard_at: Duration::ZERO,
            answers_until: Duration::ZERO,
            blocked: false,
            watched: false,
            tried_since: None,
            echo_mark: false,
            probes: Probes::default(),
            recovering_since: Duration::ZERO,
            last_progress: None,
            outstanding_since: None,
            redirect: None,
            datagram_at: Duration::ZERO,
            met: Met::default(),
            recent_deaths: 0,
            died_at: Duration::ZERO,
            counters: PathCounters::default(),
        }
    }

    #[inline]
    pub(crate) fn tag(&self) -> Option<PathTag> {
        match self.role {
            Role::Member { id, .. } => Some(PathTag { id: id.0, generation: self.generation }),
            _ => None,
        }
    }

    /// Its addresses, and which of the paths between them it is, if the port of a bond by which it leaves is
    /// ours to choose. A path outside of associations goes by any. A flow label holds only there: RDMA CM
    /// gives all queue pairs one.
    pub(crate) fn turn(&self) -> Option<(Pair, u8)> {
        let chosen = self.address.kind == PathKind::Udp && matches!(self.role, Role::Member { .. });
        chosen.then(|| (self.address.line().pair, self.port))
    }

    /// What makes it a path of its association.
    pub(crate) fn way(&self) -> Way {
        Way { line: self.address.line(), port: self.port }
    }

    /// Its state; dead if it is about to be given up.
    #[inline]
    pub(crate) fn state_soon(&self) -> PathState {
        if self.doomed { PathState::Dead } else { self.state }
    }

    /// Whether it may carry traffic.
    #[inline]
    pub(crate) fn usable(&self) -> bool {
        matches!(self.state_soon(), PathState::Up | PathState::Suspect)
    }

    /// Whether both ends refuse packets that were sent before the last death.
    pub(crate) fn fenced(&self) -> bool {
        self.generation == self.peer_generation
    }

    /// Gives the path up. `state`: dead or down.
    pub(crate) fn give_up(&mut self, now: Duration, state: PathState, reason: Reason) {
        self.recent_deaths = self.recent_deaths(now) + 1;
        self.died_at = now;
        self.counters.given_up += 1;
        self.doomed = false;
        self.state = state;
        self.reason = Some(reason);
        self.probes.forget_all();
        self.forget_twice(now);
    }

    /// Nothing will tell what becomes of packets that were sent by another path as well.
    pub(crate) fn forget_twice(&mut self, now: Duration) {
        let bytes = self.twice.take_all();
        self.congestion.lost(now, bytes, false, &self.rtt);
        self.note_idle();
    }

    /// Notes if nothing is on its way by it any more.
    #[inline]
    pub(crate) fn note_idle(&mut self) {
        if self.congestion.in_flight() == 0 {
            self.outstanding_since = None;
            self.pulse.stop();
        }
    }

    /// It was dead, and answers. Notes whether that is so soon, and by the same source port, that it may
    /// never have been silent.
    pub(crate) fn note_hasty(&mut self, now: Duration) {
        let same_way = self.address.source_port == self.turns.settled();
        if self.reason == Some(Reason::ProbesLost) && same_way && now < self.died_at + HASTY {
            self.pulse.was_hasty(now);
        }
    }

    /// How long it must answer before it is used again.
    pub(crate) fn updelay(&self, now: Duration, config: &Config) -> Duration {
        let doublings = self.recent_deaths(now).saturating_sub(1).min(16);
        config.updelay.saturating_mul(1 << doublings).min(config.updelay_max.max(config.updelay))
    }

    pub(crate) fn recent_deaths(&self, now: Duration) -> u32 {
        let halvings = now.saturating_sub(self.died_at).as_millis() / DEATH_HALF_LIFE.as_millis();
        self.recent_deaths.checked_shr(halvings.min(32) as u32).unwrap_or(0)
    }

    /// What to remember of it when it leaves the set.
    pub(crate) fn past(&self) -> Past {
        Past { way: self.way(), recent_deaths: self.recent_deaths, died_at: self.died_at }
    }

    /// Takes over what is remembered of a path that left the set and comes back: it has to prove itself
    /// like a dead one.
    pub(crate) fn resume(&mut self, past: &Past) {
        self.recent_deaths = past.recent_deaths;
        self.died_at = past.died_at;
        self.state = PathState::Dead;
        self.reason = Some(Reason::Removed);
    }

    /// Makes the path usable from now on.
    pub(crate) fn revive(&mut self, config: &Config) {
        self.state = PathState::Up;
        self.reason = None;
        self.congestion.restart(config.initial_window);
        self.last_progress = None;
        self.probes.interval = Duration::ZERO;
    }

    /// The longest that the answer to a probe usually takes, kept within reason: round trips measured
    /// on a busy machine vary wildly.
    pub(crate) fn usual_wait(&self) -> Duration {
        let bound = self.rtt.bound();
        self.rtt.smoothed().map_or(bound, |s| bound.min(s * 2 + Duration::from_millis(8)))
    }

    /// The longest that the answer to a probe should take now.
    pub(crate) fn patience(&self, now: Duration) -> Duration {
        let queued = self.queue_time(now) + self.rtt.shortest().unwrap_or_default();
        self.usual_wait().max(queued)
    }

    /// The longest that the answer to a probe may take now that the path is suspected. If acknowledgements
    /// have come regularly, it is not given the time of the queue before it, since they come while that is
    /// emptied.
    pub(crate) fn patience_suspected(&self, now: Duration) -> Duration {
        let usual = self.patience(now);
        let shortest = self.rtt.shortest().unwrap_or_default();
        let silent = self.pulse.patience(now, shortest).map_or(usual, |wait| wait.min(usual));
        silent.max(self.answers_until.saturating_sub(now))
    }

    /// How long a packet may have to wait behind what was sent by this path before. Round trips show a
    /// queue only when it is there already.
    fn queue_time(&self, now: Duration) -> Duration {
        // Half as long again, because rates vary.
        let requests = self.congestion.queue_time() * 3 / 2;
        requests.min(QUEUE_MAX).max(self.answers_until.saturating_sub(now))
    }

    /// Notes that answers of so many `bytes` go out. Nothing tells when they have arrived.
    #[inline]
    pub(crate) fn answers(&mut self, now: Duration, bytes: u32) {
        let time = Duration::from_micros(u64::from(bytes) * 1_000_000 / ANSWERS_RATE);
        self.answers_until = (self.answers_until.max(now) + time).min(now + ANSWERS_MAX);
    }

    /// What it knows of itself.
    pub(crate) fn status(&self, path: PathId) -> PathStatus {
        PathStatus {
            path,
            tag: self.tag(),
            address: self.address,
            leaves_by: None,
            coupled: 0,
            state: self.state,
            reason: self.reason,
            rtt: self.rtt.smoothed(),
            window: self.congestion.window(),
            in_flight: self.congestion.in_flight(),
            counters: self.counters,
        }
    }
}

/// The UDP source port of a flow label, as `ibv_flow_label_to_udp_sport` of rdma-core folds it; if the
/// label is 0, a hash of the addresses, so that paths spread over an ECMP fabric.
pub(crate) fn source_port(flow_label: u32, spread: u32) -> u16 {
    flow_label::source_port(flow_label).unwrap_or(0xc000 | (spread & 0x3fff) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Path {
        let ip = |n: u8| core::net::IpAddr::from([10, 0, 0, n]);
        let address = PathAddress {
            kind: PathKind::Udp,
            local: ip(1),
            remote: ip(2),
            ifindex: 1,
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        Path::new(address, Role::Datagram, &Config::default())
    }

    #[test]
    fn a_path_is_given_time_for_what_was_sent_by_it() {
        const MS: Duration = Duration::from_millis(1);
        let mut path = path();
        path.rtt.sample(MS, MS);
        let usual = path.patience(MS);
        assert!(usual < MS * 5, "{usual:?}");
        // A megabyte at 100 Mbit/s takes 80 ms, and the rate is not known.
        path.congestion.sent(MS, 1_000_000);
        assert!((MS * 80..MS * 150).contains(&path.patience(MS)), "{:?}", path.patience(MS));
        path.congestion.lost(MS, 1_000_000, false, &path.rtt);
        assert_eq!(path.patience(MS), usual);
        path.answers(MS, 64 << 10);
        assert!((MS * 50..MS * 60).contains(&path.patience(MS)), "{:?}", path.patience(MS));
        assert_eq!(path.patience(MS * 60), usual, "they have left by now");
        (0..100).for_each(|_| path.answers(MS, 64 << 10));
        assert!(path.patience(MS) <= MS * 105, "but not for ever");
    }

    #[test]
    fn flow_labels_fold_into_source_ports_as_rdma_core_does() {
        assert_eq!(source_port(0x1234, 0), 0xc000 | 0x1234);
        assert_eq!(source_port(0xfffff, 0), 0xc000 | (0x3fff ^ 0x3f));
        assert_eq!(source_port(0, 0x12345), 0xc000 | 0x2345);
    }

    #[test]
    fn flapping_doubles_the_delay_and_quiet_halves_it() {
        let config = Config::default();
        let mut p = path();
        let s = Duration::from_secs;
        p.give_up(s(1), PathState::Dead, Reason::ProbesLost);
        assert_eq!(p.updelay(s(1), &config), config.updelay);
        p.give_up(s(2), PathState::Dead, Reason::ProbesLost);
        assert_eq!(p.updelay(s(2), &config), config.updelay * 2);
        p.give_up(s(3), PathState::Dead, Reason::ProbesLost);
        assert_eq!(p.updelay(s(3), &config), config.updelay * 4);
        assert_eq!(p.updelay(s(60), &config), config.updelay);
        for i in 0..40 {
            p.give_up(s(61 + i), PathState::Dead, Reason::ProbesLost);
            assert!(p.updelay(s(61 + i), &config) <= config.updelay_max);
        }
    }

    #[test]
    fn unanswered_probes_are_bounded_and_answers_count_once() {
        let mut probes = Probes::default();
        for i in 0..1000 {
            assert_eq!(probes.send(Duration::from_millis(i)), i as u32);
        }
        assert_eq!(probes.outstanding.len(), MAX_OUTSTANDING);
        let now = Duration::from_secs(1);
        assert_eq!(probes.answer(now, 998), Some(Duration::from_millis(998)));
        assert_eq!(probes.answer(now, 998), None);
        assert_eq!(probes.answer(now, 0), None);
        assert_eq!(probes.answer(now, 997), None, "older ones are not waited for");
        assert_eq!(probes.oldest(), Some(Duration::from_millis(999)));
        assert_eq!(probes.answered(Duration::from_millis(998), 1), Some(now));
        assert_eq!(probes.answered(Duration::from_millis(999), 1), None);
        assert_eq!(probes.answered(Duration::ZERO, 2), None);
    }
}
