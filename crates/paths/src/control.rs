//! Probes and control packets: sending, checking, and what they change in the path set.
//!
//! Single packets are not acknowledged. Every packet tells the newest versions that its sender has, and
//! the generation of each path. An end that finds the other behind repeats what is missing with growing
//! intervals. So packets may be lost, doubled, and overtake each other.

use core::net::IpAddr;
use core::time::Duration;

use polypath_wire::packet::Packet;

use crate::association::newer;
use crate::config::PathOptions;
use crate::congestion::Limits;
use crate::id::{AssociationId, PathNumber};
use crate::key::Ends;
use crate::manager::PathManager;
use crate::message::{Announced, Body, EntryKind, Frame, Report, TableEntry};
use crate::path::{Path, Role};
use crate::select::{Line, Pair, Way, pairs};
use crate::timers::Timer;
use crate::types::{MAX_PATHS, PathAddress, PathEvent, PathState, Reason, Refused};
use polypath_types::{PathId, PathKind};

/// First and longest interval at which unacknowledged control packets are repeated.
const REPEAT_FIRST: Duration = Duration::from_millis(3);
const REPEAT_MAX: Duration = Duration::from_millis(200);
/// The number of live paths on which a control packet is sent. If none lives, it is sent on all paths
/// that are not down.
const CONTROL_PATHS: usize = 2;

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) ends: Ends,
    pub(crate) kind: PathKind,
}

impl Source {
    /// What identifies the path that it came by.
    fn line(self) -> Line {
        Line { kind: self.kind, pair: (self.ends.dst, self.ends.src) }
    }
}

impl PathManager {
    /// A probe, reply or control packet.
    pub(crate) fn handle_frame(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        kind: PathKind,
        packet: &Packet<'_>,
    ) -> Result<(), Refused> {
        if packet.headers.bth.dest_qpn != u32::from(self.lane.slot) << 16 {
            return Err(Refused::NoAssociation);
        }
        let number = Frame::destination(packet.payload)?;
        let index = self.associations.by_number(number).ok_or(Refused::NoAssociation)?;
        let a = self.associations.get_mut(index).ok_or(Refused::NoAssociation)?;
        let ends = Ends { src, dst };
        let from = Source { ends, kind };
        // A stream is of one pair of lanes.
        if matches!(kind, PathKind::Tcp { slot } if slot != a.remote_slot) {
            return Err(Refused::UnknownSource);
        }
        if !a.key.check(a.remote_instance, packet.opcode().0, ends, packet.payload) {
            return Err(Refused::Authentication);
        }
        let frame = Frame::decode(packet.opcode(), packet.payload)?;
        if frame.from == 0 || a.remote_number.is_some_and(|n| n != frame.from) {
            return Err(Refused::Malformed);
        }
        if !a.replay.accept(frame.sequence) {
            return Err(Refused::Replay);
        }
        a.remote_number = Some(frame.from);
        if !a.confirmed {
            let proposer = a.proposer;
            if !self.confirm(index, proposer) {
                self.doubt(proposer);
                return Ok(());
            }
        }
        self.take_reports(index, &frame);
        match frame.body {
            Body::Probe { number } => {
                let path = self.member_at(index, PathNumber(frame.path), from)?;
                self.probe_heard(index, path);
                // A path that is down here must not seem alive to the peer.
                if self.paths.get(path).is_some_and(|p| p.state == PathState::Down) {
                    return Ok(());
                }
                self.send_frame(index, PathNumber(frame.path), Body::Reply { number }, false);
            }
            Body::Reply { number } => {
                let path = self.member_at(index, PathNumber(frame.path), from)?;
                self.probe_answered(index, path, number)?;
            }
            Body::Addresses { version, ports, window, list } => {
                self.take_addresses(index, version, (ports, window), list);
            }
            Body::Table { version, entries } => self.take_table(index, version, &entries),
            Body::Notice => {}
            // The peer's lane goes away. Some of its acknowledgements may still be under way by other
            // paths. So queue pairs go on as plain ones, and their own timers find out that the peer is
            // gone.
            Body::Bye => {
                self.remove_association(index);
                return Ok(());
            }
        }
        if frame.answer {
            let came_by = Some((PathNumber(frame.path), from));
            self.send_control(index, came_by, &Body::Notice, false);
        }
        Ok(())
    }

    /// The path of a probe: its number and its addresses must fit.
    fn member_at(
        &self,
        index: AssociationId,
        id: PathNumber,
        from: Source,
    ) -> Result<PathId, Refused> {
        let a = self.associations.get(index).ok_or(Refused::NoAssociation)?;
        let path = a.paths.get(id).flatten().ok_or(Refused::UnknownPath)?;
        let p = self.paths.get(path).ok_or(Refused::UnknownPath)?;
        if p.address.line() == from.line() { Ok(path) } else { Err(Refused::UnknownSource) }
    }

    /// The peer tells what it has, and the generations of its paths. If the peer's generation is ahead
    /// of ours, the peer has given the path up, and this end does so, too.
    fn take_reports(&mut self, index: AssociationId, frame: &Frame) {
        let Some(a) = self.associations.get_mut(index) else { return };
        a.announced_seen = a.announced_seen.max(frame.addresses_seen.min(a.announced_version));
        if a.is_leader() {
            a.table_seen = a.table_seen.max(frame.table_seen.min(a.table_version));
        }
        let members = a.paths;
        let mut lost = Vec::new();
        for r in &frame.reports {
            let id = PathNumber(r.id);
            let Some(path) = members.get(id).flatten() else { continue };
            let Some(p) = self.paths.get_mut(path) else { continue };
            if newer(r.generation, p.peer_generation) {
                p.peer_generation = r.generation;
            }
            if newer(r.generation, p.generation) {
                p.generation = r.generation;
                // A path that died on both sides has to prove itself anyway.
                if !p.doomed && !matches!(p.state, PathState::Dead | PathState::Down) {
                    p.doomed = true;
                    lost.push(path);
                }
                if let Some(a) = self.associations.get_mut(index) {
                    a.generations[id] = r.generation;
                }
            }
        }
        for path in lost {
            self.path_lost(path, PathState::Dead, Reason::PeerNotice, false);
        }
        self.update_control(index);
    }

    /// The peer's addresses changed, or the number of source ports that it wants.
    fn take_addresses(
        &mut self,
        index: AssociationId,
        version: u32,
        (ports, window): (u8, u32),
        list: Vec<Announced>,
    ) {
        let Some(a) = self.associations.get_mut(index) else { return };
        if version <= a.remote_addresses_version {
            return;
        }
        a.set_remote_addresses(version, list);
        if ports > 0 {
            a.remote_ports = ports;
        }
        if window > 0 {
            self.set_remote_window(index, window);
        }
        self.lead(index);
    }

    /// The leader's table: the follower makes its paths the same.
    fn take_table(&mut self, index: AssociationId, version: u32, entries: &[TableEntry]) {
        let Some(a) = self.associations.get_mut(index) else { return };
        if a.is_leader() || version <= a.table_version {
            return;
        }
        a.table_version = version;
        let slot = a.remote_slot;
        let way = |e: &TableEntry| {
            let kind = match e.kind {
                EntryKind::Udp => PathKind::Udp,
                EntryKind::Local => PathKind::Local { slot },
                EntryKind::Tcp => PathKind::Tcp { slot },
            };
            Way { line: Line { kind, pair: (e.follower, e.leader) }, port: e.port }
        };
        let wanted: Vec<(PathNumber, u16, Way)> =
            entries.iter().map(|e| (PathNumber(e.id), e.generation, way(e))).collect();
        self.set_members(index, &wanted);
    }

    /// The leader chooses the pairs of addresses and their ports, keeps the numbers of those that stay, and
    /// gives free numbers to new ones.
    pub(crate) fn lead(&mut self, index: AssociationId) {
        let Some(a) = self.associations.get(index) else { return };
        if !a.confirmed || !a.is_leader() {
            return;
        }
        let chosen = self.chosen_ways(a);
        let way_of = |p: PathId| self.paths.get(p).map(Path::way);
        let mut wanted: Vec<(PathNumber, u16, Way)> = Vec::new();
        for (id, path) in a.paths() {
            if let Some(way) = way_of(path).filter(|way| chosen.contains(way)) {
                let generation = self.paths.get(path).map_or(1, |p| p.generation);
                wanted.push((id, generation, way));
            }
        }
        let kept = wanted.len();
        for &way in &chosen {
            if wanted[..kept].iter().any(|w| w.2 == way) {
                continue;
            }
            // The free number with the lowest generation: most likely it was never used.
            let generations = a.generations.iter();
            let free = generations.filter(|(id, _)| wanted.iter().all(|w| w.0 != *id));
            let Some((id, last)) = free.min_by_key(|(_, last)| *last) else { break };
            wanted.push((id, last.wrapping_add(1), way));
        }
        wanted.sort_unstable_by_key(|w| w.0);
        let changed = wanted
            .iter()
            .map(|w| (w.0, w.2))
            .ne(a.paths().filter_map(|(id, p)| Some((id, way_of(p)?))));
        if changed || a.table_version == 0 {
            if let Some(a) = self.associations.get_mut(index) {
                a.table_version += 1;
            }
            self.set_members(index, &wanted);
            self.control_now(index);
        }
        self.want_channel(index);
    }

    /// Makes the path set what the table says.
    fn set_members(&mut self, index: AssociationId, wanted: &[(PathNumber, u16, Way)]) {
        let Some(a) = self.associations.get(index) else { return };
        let (members, slot, past) = (a.paths, a.remote_slot, a.past.clone());
        let window = a.remote_window;
        let mut gone = Vec::new();
        for (id, member) in members.iter() {
            let want = wanted.iter().find(|w| w.0 == id);
            if let Some(path) = member
                && want.is_none_or(|w| self.paths.get(path).map(Path::way) != Some(w.2))
            {
                gone.push((id, path));
            }
        }
        for &(id, generation, way) in wanted {
            let kept = members[id].filter(|p| gone.iter().all(|g| g.1 != *p));
            if kept.is_some() {
                continue;
            }
            let salt = u32::from(slot) | u32::from(id.0) << 8;
            let mut address = self.address_of(way.line, salt);
            if way.port > 0 {
                address.source_port =
                    self.fresh_port(index, way.line.pair, address.source_port, way.port);
            }
            let address = self.with_ecn(index, address);
            let role = Role::Member { association: index, id };
            let mut path = Path::new(address, role, &self.config);
            path.port = way.port;
            path.generation = generation;
            path.peer_generation = generation;
            let window = self.window_of(way.line.kind, window);
            path.congestion.set_limits(Limits::told(window));
            path.probes.next_at = self.clock.now();
            path.state = PathState::Probing;
            if let Some(past) = past.iter().find(|past| past.way == way) {
                path.resume(past);
            }
            if let Some(reason) = self.fault_of(&path) {
                path.state = PathState::Down;
                path.reason = Some(reason);
            }
            let Some(new) = self.paths.insert(path) else {
                Refused::Limit.count(&mut self.refusals);
                continue;
            };
            if let Some(a) = self.associations.get_mut(index) {
                a.generations[id] = generation;
                a.paths[id] = Some(new);
            }
            self.steer(new);
        }
        for (id, path) in gone {
            self.member_gone(index, id, path);
        }
        let paths = &self.paths;
        let mut has_tcp = false;
        if let Some(a) = self.associations.get_mut(index) {
            let kinds = || a.paths().filter_map(|(_, path)| Some(paths.get(path)?.address.kind));
            has_tcp = kinds().any(PathKind::is_tcp);
            let has_several_kinds = kinds().any(|kind| kind != PathKind::Udp);
            (a.has_tcp, a.has_several_kinds) = (has_tcp, has_several_kinds);
        }
        self.paths_changed(index);
        if has_tcp {
            self.members(index).into_iter().for_each(|path| self.await_stream(path));
        }
        self.timers.no_later(Timer::Association(index), self.clock.now());
    }

    /// Removes a path from the set. Its number is never used with this generation again, so that late
    /// packets are refused.
    fn member_gone(&mut self, index: AssociationId, id: PathNumber, path: PathId) {
        if let Some(a) = self.associations.get_mut(index)
            && a.paths[id] == Some(path)
        {
            a.paths[id] = None;
        }
        let users = self.peers_on(path);
        self.end_detours(index, path);
        self.push_event(PathEvent::PathDead { path, reason: Reason::Removed });
        // A peer's own path leaves the set, but stays with the peer as its last resort.
        let owner = self.associations.get(index).and_then(|a| {
            a.peers.iter().copied().find(|p| self.peers.get(*p).is_some_and(|p| p.own == path))
        });
        if let Some(p) = self.paths.get_mut(path) {
            // The death of one that is dead has been counted.
            if !matches!(p.state, PathState::Down | PathState::Dead) {
                p.give_up(self.clock.now(), PathState::Down, Reason::Removed);
            }
            (p.state, p.reason) = (PathState::Down, Some(Reason::Removed));
            if let Some(a) = self.associations.get_mut(index) {
                let past = p.past();
                a.past.retain(|other| other.way != past.way);
                if a.past.len() == MAX_PATHS {
                    a.past.remove(0);
                }
                a.past.push(past);
            }
            if let Some(peer) = owner {
                p.role = Role::Plain { peer };
            }
        }
        for &peer in &users {
            self.reselect(peer, Reason::Removed);
        }
        // A peer that found no other path gets its own one, so that `main` names a path that exists:
        // once the peer is given up, its queue pairs need a route on which to run out of retries.
        for peer in users {
            if let Some(p) = self.peers.get_mut(peer)
                && p.main == path
            {
                p.main = p.own;
            }
        }
        self.release_path(path);
    }

    /// The association begins: first control packets and probes.
    pub(crate) fn begin_control(&mut self, index: AssociationId) {
        self.lead(index);
        self.control_now(index);
    }

    /// Sends control packets at once, and repeats them until the peer shows that it knows everything.
    pub(crate) fn control_now(&mut self, index: AssociationId) {
        if let Some(a) = self.associations.get_mut(index) {
            a.control_at = self.clock.now();
            a.control_interval = REPEAT_FIRST;
            self.timers.no_later(Timer::Association(index), self.clock.now());
        }
    }

    /// Whether the peer lacks something that it must know.
    fn behind(&self, index: AssociationId) -> bool {
        let Some(a) = self.associations.get(index) else { return false };
        let paths = || a.paths().filter_map(|(_, p)| self.paths.get(p));
        a.announced_seen < a.announced_version
            || (a.is_leader() && a.table_seen < a.table_version)
            || paths().any(|p| newer(p.generation, p.peer_generation))
    }

    /// Stops repeating when the peer knows everything.
    fn update_control(&mut self, index: AssociationId) {
        if !self.behind(index)
            && let Some(a) = self.associations.get_mut(index)
        {
            a.control_interval = Duration::ZERO;
        }
    }

    /// Sends what the peer lacks if it is time. Returns when to look again.
    pub(crate) fn control_tick(&mut self, index: AssociationId) -> Option<Duration> {
        let a = self.associations.get(index)?;
        if a.control_interval.is_zero() {
            return None;
        }
        if a.control_at > self.clock.now() {
            return Some(a.control_at);
        }
        let addresses = a.announced_seen < a.announced_version;
        let table = a.is_leader() && a.table_seen < a.table_version;
        let (list, version, ports) = (a.announced.clone(), a.announced_version, a.local_ports);
        let mut sent = false;
        if addresses {
            let window = self.config.receive_window;
            let body = Body::Addresses { version, ports, window, list };
            self.send_control(index, None, &body, true);
            sent = true;
        }
        if table {
            let body = self.table(index)?;
            self.send_control(index, None, &body, true);
            sent = true;
        }
        if !sent && self.behind(index) {
            self.send_control(index, None, &Body::Notice, true);
            sent = true;
        }
        let now = self.clock.now();
        let a = self.associations.get_mut(index)?;
        if !sent {
            a.control_interval = Duration::ZERO;
            return None;
        }
        a.control_at = now + a.control_interval;
        a.control_interval = (a.control_interval * 2).min(REPEAT_MAX);
        Some(a.control_at)
    }

    fn table(&self, index: AssociationId) -> Option<Body> {
        let a = self.associations.get(index)?;
        let entries = a
            .paths()
            .filter_map(|(id, p)| {
                let p = self.paths.get(p)?;
                Some(TableEntry {
                    id: id.0,
                    port: p.port,
                    kind: match p.address.kind {
                        PathKind::Udp => EntryKind::Udp,
                        PathKind::Local { .. } => EntryKind::Local,
                        PathKind::Tcp { .. } => EntryKind::Tcp,
                    },
                    generation: p.generation,
                    leader: p.address.local,
                    follower: p.address.remote,
                })
            })
            .collect();
        Some(Body::Table { version: a.table_version, entries })
    }

    /// Sends a control packet on the best paths. `to`: the path number and the addresses of the packet that
    /// is answered; the answer is sent on that path, or else on one between these addresses.
    pub(crate) fn send_control(
        &mut self,
        index: AssociationId,
        to: Option<(PathNumber, Source)>,
        body: &Body,
        answer: bool,
    ) {
        let Some(a) = self.associations.get(index) else { return };
        let rank = |state| match state {
            PathState::Up => 0,
            PathState::Recovering | PathState::Probing => 1,
            PathState::Suspect => 2,
            PathState::Dead => 3,
            PathState::Down => 4,
        };
        let mut ids: Vec<(u8, PathNumber)> = Vec::new();
        let mut exact = None;
        for (id, p) in a.paths() {
            let Some(p) = self.paths.get(p) else { continue };
            ids.push((rank(p.state), id));
            if let Some((number, from)) = to
                && p.address.line() == from.line()
                && (exact.is_none() || id == number)
            {
                exact = Some(id);
            }
        }
        ids.sort_unstable();
        if let Some(id) = exact {
            ids = vec![(0, id)];
        }
        let any_up = ids.first().is_some_and(|(rank, _)| *rank == 0);
        let most = if any_up { CONTROL_PATHS } else { MAX_PATHS };
        let usable = ids.iter().filter(|(rank, _)| *rank < 4).take(most);
        let usable: Vec<PathNumber> = usable.map(|(_, id)| *id).collect();
        for &id in &usable {
            self.send_frame(index, id, body.clone(), answer);
        }
        // If the question came by a pair of addresses that is no path here, and no path lives, the
        // answer is also sent between these addresses.
        if let Some((_, from)) = to.filter(|_| exact.is_none() && !any_up)
            && from.kind == PathKind::Udp
        {
            self.send_between(index, from.line().pair, body, answer);
        }
        let all_down = ids.iter().all(|(rank, _)| *rank == 4);
        if all_down || (!any_up && matches!(body, Body::Addresses { .. })) {
            self.send_beyond(index, body, answer);
        }
    }

    /// Sends new addresses although no path of the set lives. It sends by the pairs that the addresses
    /// would make, which only the leader can add to the set, and by the pairs that the queue pairs were
    /// connected with, where two hosts find each other that have moved at the same time. The receiver
    /// accepts an authentic packet on any addresses.
    fn send_beyond(&mut self, index: AssociationId, body: &Body, answer: bool) {
        let Some(a) = self.associations.get(index) else { return };
        let line = |p: PathId| self.paths.get(p).map(|p| p.address.line());
        let members: Vec<Line> = a.paths().filter_map(|(_, p)| line(p)).collect();
        let mut beyond = pairs(&a.anchors, &a.announced, &a.remote_addresses);
        beyond.extend(a.anchors.iter().take(MAX_PATHS).copied());
        beyond.sort_unstable();
        beyond.dedup();
        beyond.retain(|&(l, r)| {
            !members.contains(&Line::udp((l, r))) && self.local.fault(l, r).is_none()
        });
        for pair in beyond {
            self.send_between(index, pair, body, answer);
        }
        if matches!(body, Body::Addresses { .. }) {
            self.send_by_rendezvous(index, body);
        }
    }

    /// One packet between two addresses that make no path.
    fn send_between(&mut self, index: AssociationId, pair: Pair, body: &Body, answer: bool) {
        let Some(slot) = self.associations.get(index).map(|a| u32::from(a.remote_slot)) else {
            return;
        };
        let address = self.address(pair.0, pair.1, PathOptions::default(), slot);
        self.send_by(index, (PathNumber(0), 0), address, body.clone(), answer);
    }

    /// One packet on one path.
    pub(crate) fn send_frame(
        &mut self,
        index: AssociationId,
        id: PathNumber,
        body: Body,
        answer: bool,
    ) {
        let Some(a) = self.associations.get(index) else { return };
        let Some(path) = a.paths.get(id).flatten() else { return };
        let Some(p) = self.paths.get(path) else { return };
        self.send_by(index, (id, p.generation), p.address, body, answer);
    }

    /// One packet between two addresses; `tag`: number and generation of the path that they make.
    pub(crate) fn send_by(
        &mut self,
        index: AssociationId,
        tag: (PathNumber, u16),
        address: PathAddress,
        body: Body,
        answer: bool,
    ) {
        let Some(frame) = self.frame(index, tag, body, answer) else { return };
        let Some(a) = self.associations.get(index) else { return };
        let ends = Ends { src: address.local, dst: address.remote };
        let packet = frame.encode(a.remote_slot, self.lane.instance, &a.key, ends);
        self.push_out(address, packet);
    }

    /// The next packet to the peer.
    pub(crate) fn frame(
        &mut self,
        index: AssociationId,
        tag: (PathNumber, u16),
        body: Body,
        answer: bool,
    ) -> Option<Frame> {
        let a = self.associations.get_mut(index)?;
        let to = a.remote_number?;
        a.sequence += 1;
        let mut reports = Vec::with_capacity(MAX_PATHS);
        for (id, p) in a.paths() {
            if let Some(p) = self.paths.get(p) {
                reports.push(Report { id: id.0, state: p.state, generation: p.generation });
            }
        }
        Some(Frame {
            path: tag.0.0,
            generation: tag.1,
            to,
            from: a.number,
            answer,
            sequence: a.sequence,
            addresses_seen: a.remote_addresses_version,
            table_seen: a.table_version,
            reports,
            body,
        })
    }

    /// Says farewell to every peer: the lane is going away. The packets come out of
    /// [`PathManager::poll_transmit`]; then drop the manager.
    pub fn close(&mut self, now: Duration) {
        self.advance(now);
        for index in self.associations.indexes() {
            self.send_control(index, None, &Body::Bye, false);
        }
    }
}
