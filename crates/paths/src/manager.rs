//! The path manager of one lane: its tables, and the calls of the data path.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polypath_telemetry::ControlDrops;
use polypath_wire::opcode::Opcode;
use polypath_wire::packet::Packet;

use crate::addresses::LocalAddresses;
use crate::association::Association;
use crate::associations::Associations;
use crate::clock::Clock;
use crate::config::{Config, LaneIdentity, Mode, Usage};
use crate::congestion::Cut;
use crate::id::{PathNumber, Qpn};
use crate::key::Random;
use crate::lag::Silences;
use crate::lane_pairs::LanePairs;
use crate::message::HELLO_QKEY;
use crate::path::{Path, Role};
use crate::peers::Peers;
use crate::policy::{MakePolicy, Next, PathSet};
use crate::select::Line;
use crate::slab::Slab;
use crate::timers::{Timer, Timers};
use crate::types::{ControlOut, Handled, PathAddress, PathEvent, PathState, Refused, StreamEnds};
use crate::ud::UdPaths;
use polypath_types::{Class, PathId, PathKind, PathTag, PeerId, Pick, Route, Want};

/// The most queue pairs of a lane: their numbers within it have 16 bits.
pub const MAX_QUEUE_PAIRS: usize = 1 << 16;
/// The most peers of a lane, and the most associations.
pub const MAX_PEERS: usize = 1 << 14;
/// The most distinct paths of address handles.
pub const MAX_UD_PATHS: usize = 1 << 14;
/// The most control packets that wait to be sent; further ones are dropped and counted as `limit`.
pub const MAX_CONTROL_QUEUE: usize = 1 << 13;
/// The most events that wait to be taken; further ones become one [`PathEvent::Overflow`].
pub const MAX_EVENTS: usize = 1 << 14;

/// A path, the bytes after which the policy is asked again, and the path of copies.
type Picked = (PathId, u32, Option<PathId>);

#[derive(Clone, Debug)]
pub(crate) struct Qp {
    pub(crate) peer: PeerId,
    pub(crate) remote_qpn: u32,
    /// The peer that it may migrate to.
    pub(crate) alternate: Option<PeerId>,
    /// Its other end is known to take packets of all paths.
    pub(crate) trusted: bool,
    /// Whether a HELLO is due although the queue pair is agreed.
    pub(crate) tell: bool,
    pub(crate) tries: u32,
    /// When the peer was last notified of congestion.
    pub(crate) notified_at: Option<Duration>,
    /// The paths by which it makes no progress, the latest first, and since when.
    pub(crate) stalled: Vec<(PathId, Duration)>,
}

impl Qp {
    /// Starts its handshakes again at short intervals. The peer's own path and its main path still take
    /// turns.
    pub(crate) fn ask_anew(&mut self) {
        if self.tries > 3 {
            self.tries = 2 + self.tries % 2;
        }
    }
}

/// The path manager of one lane.
///
/// Call [`PathManager::handle_timeout`] at [`PathManager::next_deadline`], *after* handing in the
/// packets that wait in the lane's socket. Otherwise a lane that did not run for a while would take its
/// own absence for the peer's.
///
/// ```
/// use core::time::Duration;
/// use polypath_paths::{Config, LaneIdentity, LocalAddress, PathManager, PathOptions};
///
/// let lane = LaneIdentity { instance: 1, slot: 1 };
/// let mut paths = PathManager::new(Config::default(), lane, [0; 16]);
/// let ip = "10.0.1.1".parse().unwrap();
/// let local = LocalAddress {
///     ip, prefix_len: 24, ifindex: 2, link_up: true, usable: true, speed_mbps: 0,
/// };
/// let now = Duration::ZERO;
/// paths.set_local(now, &[local]);
/// let remote = "10.0.1.2".parse().unwrap();
/// let options = PathOptions { multipath: true, ..PathOptions::default() };
/// let peer = paths.attach(now, 0x01_0011, 0x02_0022, ip, remote, options).unwrap();
/// assert!(paths.route(peer).unwrap().tag.is_none(), "plain RoCEv2 until the peer answers");
/// assert!(paths.poll_transmit(now).is_some(), "the handshake");
/// ```
#[derive(Clone, Debug)]
pub struct PathManager {
    pub(crate) config: Config,
    pub(crate) lane: LaneIdentity,
    pub(crate) make_policy: Option<MakePolicy>,
    pub(crate) usage: Usage,
    /// Whether any peer is sent everything by two paths.
    pub(crate) sends_twice: bool,
    /// The paths that were removed last, which events may still name.
    pub(crate) removed: VecDeque<(PathId, PathAddress)>,
    /// The version of what the next association announces: one more than before, once that has changed in
    /// other ways than by addresses.
    pub(crate) first_version: u32,
    /// What programs asked of single queue pairs, by their numbers.
    pub(crate) kept_to: BTreeMap<u32, Mode>,
    pub(crate) random: Random,
    /// Source ports are drawn from a stream of their own.
    pub(crate) port_random: Random,
    pub(crate) clock: Clock,
    pub(crate) local: LocalAddresses,
    pub(crate) silences: Silences,
    /// The slots of the lanes to which there are channels.
    pub(crate) channels: BTreeSet<u8>,
    /// The TCP streams that there are.
    pub(crate) streams: BTreeSet<StreamEnds>,
    pub(crate) paths: Slab<PathId, Path>,
    pub(crate) peers: Peers,
    pub(crate) associations: Associations,
    pub(crate) qps: BTreeMap<Qpn, Qp>,
    pub(crate) ud: UdPaths,
    pub(crate) lane_pairs: LanePairs,
    /// Whether this lane has a queue pair that receives datagrams by several paths.
    pub(crate) takes_datagrams: bool,
    pub(crate) timers: Timers,
    out: VecDeque<ControlOut>,
    pub(crate) events: VecDeque<PathEvent>,
    pub(crate) refusals: ControlDrops,
}

impl PathManager {
    /// Makes a manager that knows no address yet. `seed` must be unpredictable for others: nonces and
    /// association numbers are made from it.
    pub fn new(config: Config, lane: LaneIdentity, seed: [u8; 16]) -> Self {
        Self {
            sends_twice: Usage::of(&config).has_redundant(),
            removed: VecDeque::new(),
            usage: Usage::of(&config),
            first_version: 1,
            kept_to: BTreeMap::new(),
            config,
            lane,
            make_policy: None,
            random: Random::new(seed),
            port_random: Random::new(seed.map(|byte| byte ^ 0x70)),
            clock: Clock::default(),
            local: LocalAddresses::default(),
            silences: Silences::new(),
            channels: BTreeSet::new(),
            streams: BTreeSet::new(),
            paths: Slab::new(MAX_PEERS * 9 + MAX_UD_PATHS),
            peers: Peers::new(MAX_PEERS),
            associations: Associations::new(MAX_PEERS),
            qps: BTreeMap::new(),
            ud: UdPaths::default(),
            lane_pairs: LanePairs::default(),
            takes_datagrams: false,
            timers: Timers::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            refusals: ControlDrops::default(),
        }
    }

    /// Gives each new peer the policy that `make` makes, instead of the one that the settings name. A later
    /// change of the settings leaves it alone, but may give single queue pairs another one.
    pub fn set_policy(&mut self, make: MakePolicy) {
        self.make_policy = Some(make);
    }

    /// This lane.
    pub fn lane(&self) -> LaneIdentity {
        self.lane
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The route by the peer's main path; `None` if no path lives.
    #[inline]
    pub fn route(&self, peer: PeerId) -> Option<Route> {
        let p = self.peers.get(peer)?;
        if p.is_held() { None } else { self.route_by(p.main, u32::MAX) }
    }

    /// The route of a queue pair that knows of one path only: by its own way, or else by its peer's
    /// main path, as in an outage that was given up; `None` if no path lives.
    #[inline]
    pub fn route_of(&self, peer: PeerId, qpn: u32) -> Option<Route> {
        let p = self.peers.get(peer)?;
        if p.is_held() {
            return None;
        }
        let own = p.outage.is_none() && p.has_ways();
        let way = if own { self.way_of(peer, Qpn(qpn)) } else { None };
        self.route_by(way.unwrap_or(p.main), u32::MAX)
    }

    /// The path by which a queue pair of `peer` sends now: its own way, or the path that the policy
    /// picks. If the queue pair has to wait for the window of the route, or for any window
    /// ([`Pick::Wait`]), it asks to be told ([`PathManager::wake_when_open`]).
    #[inline]
    pub fn pick(&mut self, peer: PeerId, want: &Want) -> Pick {
        let Some(p) = self.peers.get(peer) else { return Pick::NoPath };
        if p.is_held() {
            return Pick::NoPath;
        }
        let (path, quantum, twin) = if p.outage.is_some() {
            (p.main, u32::MAX, None)
        } else if p.has_ways()
            && let Some(way) = self.way_of(peer, Qpn(want.qpn))
        {
            (way, u32::MAX, None)
        } else {
            match self.pick_by_policy(peer, want) {
                Some(picked) => picked,
                None => return Pick::Wait,
            }
        };
        if matches!(want.class, Class::Answer { .. })
            && let Some(p) = self.paths.get_mut(path)
        {
            p.answers(self.clock.now(), want.bytes);
        }
        let Some(mut route) = self.route_by(path, quantum) else { return Pick::NoPath };
        if let Some(twin) = twin {
            route.twin = self.twin(peer, twin, want.bytes);
        }
        Pick::Route(route)
    }

    /// The path that the policy picks, for how many bytes, and that of the copies; `None` if the queue pair
    /// has to wait.
    #[inline]
    fn pick_by_policy(&mut self, peer: PeerId, want: &Want) -> Option<Picked> {
        let p = self.peers.get_mut(peer)?;
        let set = PathSet {
            association: p.association,
            own: p.own,
            main: p.main,
            outage: false,
            associations: &self.associations,
            paths: &self.paths,
            local: &self.local,
            config: &self.config,
            now: self.clock.now(),
        };
        match p.policy_for(Qpn(want.qpn)).pick(want, &set) {
            Next::By { path, bytes } if set.takes(path) => Some((path, bytes, None)),
            Next::Twice { path, copy, bytes } if set.takes(path) => {
                Some((path, bytes, Some(copy).filter(|copy| set.takes(*copy) && *copy != path)))
            }
            Next::By { bytes, .. } | Next::Twice { bytes, .. } => Some((set.main(), bytes, None)),
            Next::Wait => match want.class {
                // The acknowledgement of what is in flight opens a window, and wakes the queue pair.
                Class::Request if set.members().any(|path| set.in_flight(path) > 0) => None,
                Class::Answer { asked_by } if set.takes(asked_by) => Some((asked_by, 0, None)),
                _ => Some((set.main(), 0, None)),
            },
        }
    }

    /// The congestion window of a path, bytes.
    #[cfg(test)]
    pub(crate) fn path_window(&self, path: PathId) -> u32 {
        self.paths.get(path).map_or(0, |p| p.congestion.window())
    }

    #[inline]
    fn route_by(&self, index: PathId, quantum: u32) -> Option<Route> {
        let path = self.paths.get(index)?;
        let (window, rtt) = (path.congestion.room(), path.rtt.smoothed());
        Some(Route { path: index, tag: path.tag(), window, rtt, quantum, twin: None })
    }

    /// Registers that a queue pair of `peer` waits for more room than it found.
    /// [`PathEvent::WindowOpened`] tells, once, that one of the peer's paths has room again.
    pub fn wake_when_open(&mut self, peer: PeerId) {
        let Some(p) = self.peers.get_mut(peer) else { return };
        p.blocked = true;
        let members = p.association.and_then(|a| self.associations.get(a));
        let members = members.into_iter().flat_map(|a| a.paths().map(|(_, path)| path));
        for path in members.chain([p.own, p.main]) {
            if let Some(path) = self.paths.get_mut(path) {
                path.blocked = true;
            }
        }
    }

    /// Lets the peer's queue pairs that wait for a window try again, because another path may be used
    /// now.
    pub(crate) fn wake(&mut self, peer: PeerId) {
        if let Some(p) = self.peers.get_mut(peer)
            && core::mem::take(&mut p.blocked)
        {
            self.push_event(PathEvent::WindowOpened { peer });
        }
    }

    /// Finds the path by which a packet for a queue pair of `peer` came. IPv4 addresses are given as
    /// such, not mapped into IPv6. `kind`: what it came by. `tag`: from the multi-path header, `None` for
    /// a standard packet; `bytes`: the packet's size, for the status. After an error, which is counted,
    /// the packet must be dropped.
    #[inline]
    pub fn classify(
        &mut self,
        peer: PeerId,
        src: IpAddr,
        dst: IpAddr,
        kind: PathKind,
        tag: Option<PathTag>,
        bytes: usize,
    ) -> Result<PathId, Refused> {
        let found = self.find_path(peer, Line { kind, pair: (dst, src) }, tag);
        if let Ok(index) = found
            && let Some(path) = self.paths.get_mut(index)
        {
            path.counters.received_bytes += bytes as u64;
            path.heard_at = self.clock.now();
        }
        found.map_err(|why| {
            if tag.is_some() {
                self.doubt(peer);
            }
            why.count(&mut self.refusals)
        })
    }

    #[inline]
    pub(crate) fn find_path(
        &self,
        peer: PeerId,
        line: Line,
        tag: Option<PathTag>,
    ) -> Result<PathId, Refused> {
        let peer = self.peers.get(peer).ok_or(Refused::NoQueuePair)?;
        let fits = |index: PathId| self.paths.get(index).is_some_and(|p| p.address.line() == line);
        let association = peer.association.and_then(|a| self.associations.get(a));
        if let Some(tag) = tag {
            // The peer may use path 0 as soon as it has our HELLO_ACK. Its data may overtake the
            // HELLO_DONE by which it proves that it has the key.
            if association.is_none()
                && peer.pending.is_some()
                && tag == (PathTag { id: 0, generation: 1 })
                && fits(peer.own)
            {
                return Ok(peer.own);
            }
            let association = association.ok_or(Refused::NoAssociation)?;
            let index = association.paths.get(PathNumber(tag.id)).flatten();
            let index = index.ok_or(Refused::UnknownPath)?;
            if !fits(index) {
                return Err(Refused::UnknownSource);
            }
            let path = self.paths.get(index).ok_or(Refused::UnknownPath)?;
            if path.generation != tag.generation {
                return Err(Refused::Generation);
            }
            return Ok(index);
        }
        let main = peer.main;
        if fits(main) {
            return Ok(main);
        }
        // Of several between these addresses, one that lives, because answers go back by it.
        let lives = |index: PathId| self.paths.get(index).is_some_and(Path::usable);
        let between = || association.into_iter().flat_map(Association::paths).map(|(_, p)| p);
        if let Some(index) = between().filter(|p| fits(*p)).max_by_key(|p| lives(*p)) {
            return Ok(index);
        }
        if fits(peer.own) { Ok(peer.own) } else { Err(Refused::UnknownSource) }
    }

    /// The tag of a path, for answers by the same path.
    #[inline]
    pub fn tag(&self, path: PathId) -> Option<PathTag> {
        self.paths.get(path)?.tag()
    }

    /// How packets of a path are addressed.
    #[inline]
    pub fn path(&self, path: PathId) -> Option<&PathAddress> {
        Some(&self.paths.get(path)?.address)
    }

    /// Charges the window of `path` with `bytes` that were sent on it, or were asked for by a READ: the
    /// payload and a cost for each packet.
    #[inline]
    pub fn sent(&mut self, now: Duration, path: PathId, bytes: u32) {
        let Some(p) = self.paths.get_mut(path) else { return };
        p.counters.sent_bytes += u64::from(bytes);
        p.congestion.sent(now, bytes);
        p.pulse.sent(now);
        p.outstanding_since.get_or_insert(now);
        if let Role::Member { association, .. } = p.role
            && let Some(a) = self.associations.get_mut(association)
        {
            a.last_traffic = now;
        }
    }

    /// Takes note that something was asked for by `path` (a READ, an atomic) whose answer may have to wait
    /// for what goes by other paths.
    #[inline]
    pub fn asked(&mut self, now: Duration, path: PathId) {
        if let Some(p) = self.paths.get_mut(path) {
            p.pulse.asked(now);
        }
    }

    /// Takes note that `bytes` outstanding on `path` were acknowledged. `rtt`: the round trip, if
    /// known.
    #[inline]
    pub fn acked(&mut self, now: Duration, path: PathId, bytes: u32, rtt: Option<Duration>) {
        let Some(p) = self.paths.get_mut(path) else { return };
        p.counters.acked_bytes += u64::from(bytes);
        p.congestion.acked(now, bytes, &p.rtt);
        let compare = rtt.is_some_and(|rtt| {
            p.rtt.sample(now, rtt);
            p.delays.sample(now, rtt)
        });
        p.last_progress = Some(now);
        let regular = p.pulse.acked(now, p.rtt.smoothed().unwrap_or_default());
        p.note_idle();
        let role = p.role;
        // Sent since the try began, and not in the moment in which it did.
        let carries = p.tried_since.zip(rtt).is_some_and(|(since, rtt)| now > since + rtt);
        if p.state == PathState::Suspect || p.watched || p.blocked || carries {
            self.progress(now, path, carries);
        }
        let Role::Member { association, .. } = role else { return };
        if compare {
            self.compare_delays(now, association);
        }
        if regular {
            self.watch_pulse(association, path);
        }
    }

    /// Takes note that `bytes` outstanding on `path` are lost, or were given up (`congestion` false:
    /// the window does not shrink).
    pub fn lost(&mut self, now: Duration, path: PathId, bytes: u32, congestion: bool) {
        let Some(p) = self.paths.get_mut(path) else { return };
        p.counters.resent_bytes += u64::from(bytes);
        p.congestion.lost(now, bytes, congestion, &p.rtt);
        p.note_idle();
        if p.blocked {
            self.wake_blocked(path);
        }
        if congestion {
            self.cut_mates(now, path, Cut::Loss);
        }
    }

    /// The part of [`PathManager::acked`] that is rarely needed.
    fn progress(&mut self, now: Duration, index: PathId, carries: bool) {
        if carries {
            self.port_carries(index);
        }
        let Some(p) = self.paths.get_mut(index) else { return };
        let role = p.role;
        let suspected = p.state == PathState::Suspect;
        if let Role::Member { association, .. } = role {
            let silence = self.answered(now, association);
            if suspected {
                self.suspect_carries(association, index);
                self.end_silence(index, silence);
            }
        }
        if let Some(p) = self.paths.get_mut(index)
            && core::mem::take(&mut p.watched)
        {
            for peer in self.peers_on(index) {
                self.heard_at_last(peer);
                if let Some(peer_state) = self.peers.get_mut(peer)
                    && let Some(f) = peer_state.failover.take()
                {
                    let blackout = now.saturating_sub(f.since);
                    peer_state.last_blackout = Some((blackout, f.reason));
                    self.push_event(PathEvent::Resumed { peer, blackout, reason: f.reason });
                }
            }
        }
        self.wake_blocked(index);
    }

    fn wake_blocked(&mut self, index: PathId) {
        let Some(p) = self.paths.get_mut(index) else { return };
        if !p.blocked || !p.congestion.reopened() {
            return;
        }
        p.blocked = false;
        for peer in self.peers_on(index) {
            self.wake(peer);
        }
    }

    /// The peers whose data uses a path.
    pub(crate) fn peers_on(&self, index: PathId) -> Vec<PeerId> {
        let active = |i: &PeerId| self.peers.get(*i).is_some_and(|p| p.uses(index));
        match self.paths.get(index).map(|p| p.role) {
            Some(Role::Plain { peer }) => Some(peer).filter(active).into_iter().collect(),
            Some(Role::Member { association, .. }) => self
                .associations
                .get(association)
                .map(|a| a.peers.iter().copied().filter(active).collect())
                .unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// Whether this is a packet for [`PathManager::handle_control`]. Looks only at the opcode, and for
    /// UD at the Q_Key.
    #[inline]
    pub fn is_control(packet: &Packet<'_>) -> bool {
        let opcode = packet.opcode();
        opcode.is_mp_management()
            || (opcode == Opcode::UD_SEND_ONLY
                && packet.headers.deth.is_some_and(|d| d.qkey == HELLO_QKEY))
    }

    /// Takes a packet of the path manager's protocol, whose ICRC the caller has checked. `kind`: what it came
    /// by.
    pub fn handle_control(
        &mut self,
        now: Duration,
        src: IpAddr,
        dst: IpAddr,
        kind: PathKind,
        packet: &Packet<'_>,
    ) -> Handled {
        self.advance(now);
        let (src, dst) = (src.to_canonical(), dst.to_canonical());
        let result = if packet.opcode() == Opcode::UD_SEND_ONLY {
            match kind {
                PathKind::Udp | PathKind::Tcp { .. } => self.handle_hello(src, dst, kind, packet),
                PathKind::Local { .. } => Err(Refused::UnknownSource),
            }
        } else if packet.opcode() == Opcode::MP_RELAY {
            self.handle_relayed(packet)
        } else if packet.opcode().is_mp_management() {
            self.handle_frame(src, dst, kind, packet)
        } else {
            Err(Refused::Malformed)
        };
        match result {
            Ok(()) => Handled::Accepted,
            Err(why) => Handled::Refused(why.count(&mut self.refusals)),
        }
    }

    /// The next packet to send. Call until `None` after any other call.
    #[inline]
    pub fn poll_transmit(&mut self, now: Duration) -> Option<ControlOut> {
        self.clock.reach(now);
        self.out.pop_front()
    }

    /// The next event. Call until `None` after any other call.
    #[inline]
    pub fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// Carries out what is due. Early or superfluous calls do no harm.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.advance(now);
        while let Some(timer) = self.timers.pop(self.clock.now()) {
            match timer {
                Timer::Association(a) => self.tick(a),
                Timer::Hello(qpn) => self.hello_due(qpn),
                Timer::Hold(peer) => self.hold_over(peer),
                Timer::DownDelay(path) => self.downdelay_over(path),
                Timer::Stream(path) => self.ask_stream(path),
                Timer::Port(peer) => self.port_due(peer),
                Timer::LanePair(number) => self.lane_pair_due(number),
            }
        }
    }

    /// The time at which [`PathManager::handle_timeout`] is to be called; `None` if nothing is due.
    #[inline]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Sets the time, and notices if the lane did not run for a while.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.clock.advance(now, self.timers.next());
    }

    pub(crate) fn push_event(&mut self, event: PathEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        } else if self.events.back() != Some(&PathEvent::Overflow) {
            self.events.push_back(PathEvent::Overflow);
        }
    }

    pub(crate) fn push_out(&mut self, address: PathAddress, packet: Vec<u8>) {
        debug_assert!(packet.len().is_multiple_of(4));
        if self.out.len() < MAX_CONTROL_QUEUE {
            self.out.push_back(ControlOut { address, packet });
        } else {
            Refused::Limit.count(&mut self.refusals);
        }
    }

    /// The numbers of control packets and of events that wait to be taken.
    pub(crate) fn queued(&self) -> (usize, usize) {
        (self.out.len(), self.events.len())
    }
}
