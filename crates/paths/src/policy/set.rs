//! What a policy can see of a peer's paths.

use core::cmp::Ordering;
use core::time::Duration;

use crate::addresses::LocalAddresses;
use crate::associations::Associations;
use crate::config::{Config, Primary};
use crate::id::AssociationId;
use crate::lag::Hashed;
use crate::path::Path;
use crate::slab::Slab;
use crate::types::{PathAddress, PathState};
use polypath_types::{PathId, PathKind};

/// The paths that a peer's data may take, and what is known of them. Each method looks up the current
/// value.
#[derive(Clone, Copy, Debug)]
pub struct PathSet<'a> {
    pub(crate) association: Option<AssociationId>,
    pub(crate) own: PathId,
    pub(crate) main: PathId,
    pub(crate) outage: bool,
    pub(crate) associations: &'a Associations,
    pub(crate) paths: &'a Slab<PathId, Path>,
    pub(crate) local: &'a LocalAddresses,
    pub(crate) config: &'a Config,
    pub(crate) now: Duration,
}

impl<'a> PathSet<'a> {
    /// The paths, in the order of their numbers, whatever their states. All but those through shared memory
    /// are left out while such a one is up: data that goes both ways arrives out of order, and costs the
    /// processor more. Those over TCP are left out while any other one is up: they are for networks in which
    /// nothing else passes.
    pub fn members(&self) -> impl Iterator<Item = PathId> + Clone + use<'a> {
        let (paths, least) = (self.paths, self.least_rank());
        self.all_members().filter(move |p| least.is_none_or(|least| rank(paths, *p) <= Some(least)))
    }

    /// The rank that paths must have so that they do not stand back for a better kind; `None` if all may
    /// carry data.
    #[inline]
    fn least_rank(&self) -> Option<u8> {
        let a = self.association.and_then(|a| self.associations.get(a))?;
        let up = |p: &PathId| self.state(*p) == Some(PathState::Up);
        let of_up = || self.all_members().filter(up).filter_map(|p| rank(self.paths, p)).min();
        if a.has_several_kinds { of_up() } else { None }
    }

    /// The paths with those that stand back for others.
    pub(crate) fn all_members(&self) -> impl Iterator<Item = PathId> + Clone + use<'a> {
        let of_association = self.association.and_then(|a| self.associations.get(a));
        let alone = self.association.is_none().then_some(self.own);
        of_association.into_iter().flat_map(|a| a.paths().map(|(_, path)| path)).chain(alone)
    }

    /// The paths that live and are not suspected of having died.
    pub fn up(&self) -> impl Iterator<Item = PathId> + Clone + use<'a> {
        let paths = self.paths;
        self.members().filter(|p| paths.get(*p).is_some_and(|p| p.state_soon() == PathState::Up))
    }

    /// The only path of [`up`](Self::up), found in one look; `None` if there are more, or none.
    #[inline]
    pub(crate) fn only_up(&self) -> Option<PathId> {
        let up = |path: PathId| self.paths.get(path).filter(|p| p.state_soon() == PathState::Up);
        let Some(a) = self.association.and_then(|a| self.associations.get(a)) else {
            return up(self.own).map(|_| self.own);
        };
        let (mut least, mut only) = (u8::MAX, None);
        for (_, path) in a.paths() {
            let Some(p) = up(path) else { continue };
            let rank = if a.has_several_kinds { p.address.kind.rank() } else { 0 };
            match rank.cmp(&least) {
                Ordering::Less => (least, only) = (rank, Some(path)),
                Ordering::Equal => only = None,
                Ordering::Greater => {}
            }
        }
        only
    }

    /// The main path; while no path can carry data, the one that was main last. It need not be a member
    /// any more.
    #[inline]
    pub fn main(&self) -> PathId {
        self.main
    }

    /// The path with the addresses that queue pairs were connected with. It need not be a member.
    pub fn own(&self) -> PathId {
        self.own
    }

    /// Whether the peer has no path. If so, only a path that has answered may become the main one.
    pub fn is_outage(&self) -> bool {
        self.outage
    }

    /// The state of a path. One that is about to be given up, together with others, is dead already.
    pub fn state(&self, path: PathId) -> Option<PathState> {
        self.paths.get(path).map(Path::state_soon)
    }

    /// The number by which both ends know a path: 0 to 7, and 0 for a peer's only path.
    pub fn number(&self, path: PathId) -> u8 {
        self.paths.get(path).and_then(Path::tag).map_or(0, |tag| tag.id)
    }

    /// How packets of a path are addressed.
    pub fn address(&self, path: PathId) -> Option<PathAddress> {
        self.paths.get(path).map(|p| p.address)
    }

    /// Bytes that the window of a path still takes: payload, and a cost for each packet.
    pub fn room(&self, path: PathId) -> u32 {
        self.paths.get(path).map_or(0, |p| p.congestion.room())
    }

    /// Bytes in flight on a path, of all peers that use it.
    pub fn in_flight(&self, path: PathId) -> u32 {
        self.paths.get(path).map_or(0, |p| p.congestion.in_flight())
    }

    /// The congestion window of a path, bytes.
    pub fn window(&self, path: PathId) -> u32 {
        self.paths.get(path).map_or(0, |p| p.congestion.window())
    }

    /// The smoothed round-trip time of a path, if one was measured.
    pub fn rtt(&self, path: PathId) -> Option<Duration> {
        self.paths.get(path)?.rtt.smoothed()
    }

    /// The shortest round-trip time of a path in the last 10 to 20 seconds: what is left of it without
    /// queues.
    pub fn shortest_rtt(&self, path: PathId) -> Option<Duration> {
        self.paths.get(path)?.rtt.shortest()
    }

    /// The rate at which a path delivers, bytes per second, if it was measured lately.
    pub fn rate(&self, path: PathId) -> Option<u64> {
        self.paths.get(path)?.congestion.rate(self.now)
    }

    /// Bytes that the peer's receive buffer takes, whichever paths they come by.
    pub fn receive_window(&self) -> u32 {
        let told = self.association.and_then(|a| self.associations.get(a)).map(|a| a.remote_window);
        match told {
            None | Some(0) => self.config.max_window,
            Some(window) => window,
        }
    }

    /// Whether the settings prefer a path.
    pub fn is_primary(&self, path: PathId) -> bool {
        let Some(p) = self.paths.get(path) else { return false };
        match self.config.primary {
            _ if self.is_local(path) || self.is_tcp(path) => false,
            Some(Primary::Interface(ifindex)) => self.leaves_by(path, ifindex),
            Some(Primary::Address(ip)) => p.address.local == ip.to_canonical(),
            None => false,
        }
    }

    /// Whether a path leaves by the interface of this index, which may be a bond or a port of it.
    pub fn leaves_by(&self, path: PathId, ifindex: u32) -> bool {
        let Some(p) = self.paths.get(path) else { return false };
        match p.turn().and_then(|turn| self.local.wanted_member(turn)) {
            Some((lag, member)) if lag.hashed == Hashed::Bound => member.ifindex == ifindex,
            Some((_, member)) if member.ifindex == ifindex => true,
            _ => p.address.ifindex == ifindex,
        }
    }

    /// Whether a path leads through shared memory. It is preferred to all others.
    pub fn is_local(&self, path: PathId) -> bool {
        let kind = self.paths.get(path).map(|p| p.address.kind);
        matches!(kind, Some(PathKind::Local { .. }))
    }

    /// Whether a path is a TCP stream. All others are preferred to it.
    pub fn is_tcp(&self, path: PathId) -> bool {
        is_tcp(self.paths, path)
    }

    /// The cost of the interface that a path leaves by; 0 for shared memory.
    pub fn cost(&self, path: PathId) -> u16 {
        if self.is_local(path) {
            return 0;
        }
        let of = self.config.costs.iter().find(|(ifindex, _)| self.leaves_by(path, *ifindex));
        of.map_or(Config::COST, |(_, cost)| *cost)
    }

    /// All bytes that a path has sent, as they count against its window.
    pub fn sent_bytes(&self, path: PathId) -> u64 {
        self.paths.get(path).map_or(0, |p| p.counters.sent_bytes)
    }

    /// The present time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The speed of the interface that a path leaves by, Mbit/s; 0 if unknown, and `u32::MAX` for shared
    /// memory.
    pub fn speed_mbps(&self, path: PathId) -> u32 {
        if self.is_local(path) {
            return u32::MAX;
        }
        self.paths.get(path).map_or(0, |p| self.local.speed_mbps(p.address.local))
    }

    /// The settings.
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// Whether data may use a path: it is the main one, or a member that lives.
    #[inline]
    pub(crate) fn takes(&self, path: PathId) -> bool {
        path == self.main
            || (self.paths.get(path).is_some_and(Path::usable)
                && self.members().any(|member| member == path))
    }
}

/// The rank of a path's kind. Lower ones are preferred.
fn rank(paths: &Slab<PathId, Path>, path: PathId) -> Option<u8> {
    paths.get(path).map(|p| p.address.kind.rank())
}

fn is_tcp(paths: &Slab<PathId, Path>, path: PathId) -> bool {
    paths.get(path).is_some_and(|p| p.address.kind.is_tcp())
}
