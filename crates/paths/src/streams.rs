//! Paths over TCP: when they are possible, and when they are down.
//!
//! A *stream* is a TCP connection between this lane and another one, between one pair of addresses. Whoever
//! drives the lane makes it, and tells of it here. The leader of an association proposes paths over streams
//! beside those over UDP. They are probed like any other, and carry data only while none of the others does
//! ([`PathSet::members`](crate::PathSet::members)).
//!
//! A stream begins with a packet of this protocol, by which the lane that was called decides whether to take
//! it: a NOTICE, which shows that the caller has the association's key, or a HELLO if there is no association
//! because UDP does not pass at all. A HELLO shows only that the caller knows the numbers of two queue pairs
//! that are connected to each other between these addresses. So it never takes the place of a stream that
//! there is.

use core::time::Duration;

use polypath_wire::packet::Packet;

use crate::association::Association;
use crate::id::{AssociationId, PathNumber, Qpn};
use crate::key::Ends;
use crate::manager::PathManager;
use crate::message::Body;
use crate::path::Role;
use crate::select::{Line, Pair, Way};
use crate::timers::Timer;
use crate::types::{Handled, MAX_PATHS, PathAddress, PathEvent, Reason, StreamEnds};
use polypath_types::{PathId, PathKind};

/// How long a stream that was asked for has time, before it is asked for again.
const RETRY: Duration = Duration::from_secs(1);
/// How much later the end with the larger address connects, so that usually only one does.
const YIELD: Duration = Duration::from_millis(1500);
/// HELLOs that stay unanswered before a stream is tried, 15 ms after the first, and the same for the end that
/// lets the other one go first (127 ms).
const TRIES_FIRST: u32 = 5;
const TRIES_SECOND: u32 = 8;

impl PathManager {
    /// Tells whether there is a stream between these ends. Paths over it come up again, or are given up.
    pub fn set_stream(&mut self, now: Duration, ends: StreamEnds, there: bool) {
        self.advance(now);
        let changed = if there { self.streams.insert(ends) } else { self.streams.remove(&ends) };
        if !changed {
            return;
        }
        self.stream_paths_changed(Some(ends));
        if there {
            // Queue pairs whose HELLOs were not answered ask by the stream.
            let peers = self.peers.iter().filter(|(_, p)| p.key.stream_ends() == ends);
            let waiting = peers.flat_map(|(_, p)| p.connected().filter(|q| p.unagreed.contains(q)));
            let waiting: Vec<Qpn> = waiting.copied().collect();
            waiting.into_iter().for_each(|qpn| self.hello_soon(qpn));
        }
    }

    /// Whether to take a stream that another lane has opened, by its first packet.
    pub fn accept_stream(&mut self, now: Duration, ends: StreamEnds, opening: &[u8]) -> bool {
        if self.config.tcp_window == 0 {
            return false;
        }
        let there = self.streams.contains(&ends);
        let handled = Packet::parse_body_with(opening, |packet| {
            let proves = packet.opcode().is_mp_management();
            if !Self::is_control(packet) || (there && !proves) {
                return false;
            }
            let (src, dst) = (ends.remote, ends.local);
            self.handle_control(now, src, dst, ends.kind(), packet) == Handled::Accepted
        });
        handled.unwrap_or(false)
    }

    /// The first packet of a stream that this lane opens; `None` if it is not wanted any more.
    pub fn stream_opening(&mut self, now: Duration, ends: StreamEnds) -> Option<Vec<u8>> {
        self.advance(now);
        if !self.usage.tcp || self.streams.contains(&ends) {
            return None;
        }
        let line = Line { kind: ends.kind(), pair: (ends.local, ends.remote) };
        let of =
            |path: PathId| match self.paths.get(path).map(|p| (p.address.line() == line, p.role)) {
                Some((true, Role::Member { association, id })) => Some((association, id)),
                _ => None,
            };
        match self.paths.indexes().into_iter().find_map(of) {
            Some((association, id)) => self.notice_for(association, id, ends),
            None => self.hello_for(ends),
        }
    }

    fn notice_for(
        &mut self,
        index: AssociationId,
        id: PathNumber,
        ends: StreamEnds,
    ) -> Option<Vec<u8>> {
        let path = self.associations.get(index)?.paths.get(id).flatten()?;
        let generation = self.paths.get(path)?.generation;
        let frame = self.frame(index, (id, generation), Body::Notice, false)?;
        let a = self.associations.get(index)?;
        let between = Ends { src: ends.local, dst: ends.remote };
        Some(frame.encode(a.remote_slot, self.lane.instance, &a.key, between))
    }

    /// Takes note that paths over streams, over this one or over all, may have come up or gone down.
    pub(crate) fn stream_paths_changed(&mut self, ends: Option<StreamEnds>) {
        let affected = |path: &PathId| {
            let of = self.paths.get(*path).and_then(|p| StreamEnds::of(&p.address));
            of.is_some_and(|of| ends.is_none_or(|ends| ends == of))
        };
        let affected: Vec<PathId> = self.paths.indexes().into_iter().filter(affected).collect();
        for path in affected {
            self.local_changed(path);
            self.await_stream(path);
        }
    }

    /// Sets the time at which a stream for a path is asked for, if it has none.
    pub(crate) fn await_stream(&mut self, path: PathId) {
        let Some(ends) = self.paths.get(path).and_then(|p| StreamEnds::of(&p.address)) else {
            return;
        };
        if self.streams.contains(&ends) || !self.usage.tcp {
            self.timers.set(Timer::Stream(path), None);
        } else {
            let pause = if self.goes_first(ends) { Duration::ZERO } else { YIELD };
            self.timers.no_later(Timer::Stream(path), self.clock.now() + pause);
        }
    }

    /// A path is without its stream.
    pub(crate) fn ask_stream(&mut self, path: PathId) {
        let Some(p) = self.paths.get(path) else { return };
        let Some(ends) = StreamEnds::of(&p.address) else { return };
        let in_use = match p.role {
            Role::Member { association, .. } => {
                // Datagrams use none.
                let uses = |a: &Association| a.unused_since.is_none() && self.is_connected(a);
                self.associations.get(association).is_some_and(uses)
            }
            _ => false,
        };
        let possible = self.local.fault(ends.local, ends.remote).is_none();
        if self.streams.contains(&ends) || !self.usage.tcp {
            return;
        }
        if in_use && possible {
            self.want_stream(ends);
        }
        self.timers.set(Timer::Stream(path), Some(self.clock.now() + RETRY));
    }

    pub(crate) fn want_stream(&mut self, ends: StreamEnds) {
        if self.usage.tcp && self.config.tcp_window > 0 {
            self.push_event(PathEvent::StreamWanted { ends });
        }
    }

    /// Whether this end connects before the other one.
    fn goes_first(&self, ends: StreamEnds) -> bool {
        (ends.local, self.lane.slot) < (ends.remote, ends.slot)
    }

    /// The HELLOs that stay unanswered before a stream is tried.
    pub(crate) fn tries_before_stream(&self, ends: StreamEnds) -> u32 {
        if self.goes_first(ends) { TRIES_FIRST } else { TRIES_SECOND }
    }

    /// What is wrong with a path over a stream, as far as this host knows.
    pub(crate) fn stream_fault(&self, address: &PathAddress) -> Option<Reason> {
        if !self.usage.tcp {
            return Some(Reason::AdminDown);
        }
        let connected = StreamEnds::of(address).is_some_and(|ends| self.streams.contains(&ends));
        let fault = self.local.fault(address.local, address.remote);
        fault.or_else(|| (!connected).then_some(Reason::LinkDown))
    }

    /// Adds the ways over TCP that make paths of an association: one for each pair of addresses, as far as
    /// there is room, and at least one.
    pub(crate) fn add_tcp(&self, a: &Association, pairs: &[Pair], ways: &mut Vec<Way>) {
        if self.config.tcp_window == 0 || !a.remote_abilities.tcp || pairs.is_empty() {
            return;
        }
        if ways.len() == MAX_PATHS {
            // A further pair, or a further port, makes room. What is last may be shared memory.
            let last = ways.iter().rposition(|way| way.line.kind == PathKind::Udp);
            last.map(|last| ways.remove(last));
        }
        let kind = PathKind::Tcp { slot: a.remote_slot };
        let tcp = pairs.iter().map(|&pair| Way { line: Line { kind, pair }, port: 0 });
        ways.extend(tcp.take(MAX_PATHS.saturating_sub(ways.len())));
    }
}
