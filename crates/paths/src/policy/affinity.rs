//! Each queue pair keeps to one path, so several queue pairs of a peer use several paths while the packets of
//! each stay in order.
//!
//! A rule says which path. By *hash*, it is the one with the highest weight of those that can carry data, and
//! a weight comes from the queue pair's number and the path's (rendezvous hashing, also known as highest
//! random weight). So the loss of a path moves only the queue pairs that were on it, and its return brings
//! just those back. By *round robin*, queue pairs get the paths of the set in turn, in the order in which
//! they first send. While the path of one cannot carry data, another is found by hash. A path whose queue
//! pairs have gone is served first, so that the shares stay equal. By *interface*, a queue pair keeps to the
//! paths that leave by it (it may be a port of a bond of the kernel's), and to others only while none of
//! those can carry data.
//!
//! A path that is only suspected of having died keeps its queue pairs, because most suspicions are unfounded
//! and end within milliseconds. A queue pair never uses a second path because its own is full.

use std::collections::BTreeMap;

use super::{Next, PathSet, Policy};
use crate::config::AffinityRule;
use crate::types::PathState;
use polypath_types::{Class, PathId, Want};

/// The largest number of queue pairs whose turn is kept. The path of any more is found by hash.
const TURNS_MAX: usize = 1 << 16;

/// Keeps each queue pair to one path.
#[derive(Clone, Debug)]
pub(crate) struct Affinity {
    rule: AffinityRule,
    /// The turn of each queue pair that has sent, under round robin. Its place in the set is the remainder of
    /// the turn by the number of places.
    turns: BTreeMap<u32, usize>,
    /// The number of queue pairs at each place, when the last turn was given.
    loads: Vec<usize>,
    /// The turn that is given next, if all places have as many.
    next_turn: usize,
}

impl Affinity {
    pub(crate) fn new(rule: AffinityRule) -> Self {
        Self { rule, turns: BTreeMap::new(), loads: Vec::new(), next_turn: 0 }
    }

    /// How the path that a queue pair keeps to is found.
    pub(super) fn rule(&self) -> AffinityRule {
        self.rule
    }

    /// The first turn that is given, while none was: those before it are of other peers with the same paths.
    pub(super) fn begin_at(&mut self, turn: usize) {
        if self.turns.is_empty() {
            self.next_turn = turn;
        }
    }

    /// The path that a queue pair keeps to; `None` if no member of the set can carry data.
    fn path_of(&mut self, qpn: u32, set: &PathSet<'_>) -> Option<PathId> {
        let in_turn = match self.rule {
            AffinityRule::Hash => None,
            AffinityRule::RoundRobin => self.in_turn(qpn, set).filter(|path| carries(set, *path)),
            AffinityRule::Interface(ifindex) => {
                let by = |path: &PathId| set.leaves_by(*path, ifindex);
                by_hash(qpn, set, by)
            }
        };
        in_turn.or_else(|| by_hash(qpn, set, |_| true))
    }

    /// The member of the set, whatever its state, whose turn it was when the queue pair first sent. Members
    /// that have died count, so that nothing moves but what was on them.
    fn in_turn(&mut self, qpn: u32, set: &PathSet<'_>) -> Option<PathId> {
        let places = set.members().count().max(1);
        let turn = match self.turns.get(&qpn) {
            Some(turn) => *turn,
            None if self.turns.len() >= TURNS_MAX => return None,
            None => self.take_turn(qpn, places),
        };
        set.members().nth(turn % places)
    }

    /// Gives a queue pair a turn at one of the places that have the fewest queue pairs. No two have the same
    /// turn, so those that had to share a place find places of their own when the set grows.
    fn take_turn(&mut self, qpn: u32, places: usize) -> usize {
        if self.loads.len() != places {
            self.loads = vec![0; places];
            self.turns.values().for_each(|turn| self.loads[turn % places] += 1);
        }
        let from_next = self.next_turn..self.next_turn + places;
        let turn = from_next.min_by_key(|turn| self.loads[turn % places]).unwrap_or(0);
        self.next_turn = turn + 1;
        self.loads[turn % places] += 1;
        self.turns.insert(qpn, turn);
        turn
    }

    /// The number of queue pairs that something is kept of.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.turns.len()
    }
}

impl Policy for Affinity {
    fn pick(&mut self, want: &Want, set: &PathSet<'_>) -> Next {
        // READs are answered by the path by which the requester expects them.
        if let Class::Answer { asked_by } = want.class {
            return Next::By { path: asked_by, bytes: 0 };
        }
        let Some(path) = self.path_of(want.qpn, set) else {
            return Next::By { path: set.main(), bytes: 0 };
        };
        // All paths end in one receive buffer. What one path alone may have in flight fits into it.
        let total: u64 = set.members().map(|path| u64::from(set.in_flight(path))).sum();
        if total == u64::from(set.in_flight(path)) {
            return Next::By { path, bytes: u32::MAX };
        }
        let left = u64::from(set.receive_window()).saturating_sub(total);
        if left < u64::from(want.bytes) && want.class == Class::Request {
            return Next::Wait;
        }
        Next::By { path, bytes: u32::try_from(left).unwrap_or(u32::MAX) }
    }

    fn spreads(&self) -> bool {
        true
    }

    fn forget(&mut self, qpn: u32) {
        if let Some(turn) = self.turns.remove(&qpn) {
            let places = self.loads.len();
            self.loads[turn % places] -= 1;
        }
    }
}

/// Whether a path can carry data, as far as is known.
fn carries(set: &PathSet<'_>, path: PathId) -> bool {
    matches!(set.state(path), Some(PathState::Up | PathState::Suspect))
}

/// The path with the highest weight for a queue pair, among those that are wanted.
fn by_hash(qpn: u32, set: &PathSet<'_>, wanted: impl Fn(&PathId) -> bool) -> Option<PathId> {
    let carrying = set.members().filter(|path| carries(set, *path) && wanted(path));
    carrying.max_by_key(|path| weight(qpn, set.number(*path)))
}

/// The weight of a path for a queue pair. This is the mixer of SplitMix64, in which each bit of the input
/// changes each bit of the result half of the time. Different inputs have different results.
fn weight(qpn: u32, number: u8) -> u64 {
    let mut x = (u64::from(qpn) << 8 | u64::from(number)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shared_the_only_place_spread_when_the_set_grows() {
        let mut affinity = Affinity::new(AffinityRule::RoundRobin);
        let turns: Vec<usize> = (0..4).map(|qpn| affinity.take_turn(qpn, 1)).collect();
        for places in 1..=4 {
            let at = |place: usize| turns.iter().filter(|turn| *turn % places == place).count();
            let counts: Vec<usize> = (0..places).map(at).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{counts:?}");
        }
        // Queue pairs of another peer have had the first turn.
        let mut other = Affinity::new(AffinityRule::RoundRobin);
        other.begin_at(1);
        assert_eq!([0, 1].map(|qpn| other.take_turn(qpn, 2) % 2), [1, 0]);
        // Two of one place have gone. Those that come next, in a larger set, take that place.
        affinity.forget(0);
        affinity.forget(2);
        let next: Vec<usize> = (4..6).map(|qpn| affinity.take_turn(qpn, 2) % 2).collect();
        assert_eq!(next, [0, 0]);
    }
}
