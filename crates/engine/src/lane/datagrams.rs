//! Paths of datagrams. Each address that address handles lead to has a path, which is created when
//! it is first sent to. If there is no room for another path, those that were not used for the
//! longest time are forgotten. An address handle keeps the [`Datagrams::name`] of its path, which
//! becomes invalid when the path is forgotten.

use std::collections::{HashMap, HashSet};

use polypath_transport::PathId;

use crate::address::Resolved;

/// The largest number of datagram paths that a lane knows.
const MAX_PATHS: usize = polypath_paths::MAX_UD_PATHS;
/// The number of paths that are forgotten at once, because finding the oldest requires looking at
/// all.
const FORGOTTEN: usize = MAX_PATHS / 4;

/// The numbers of bits in a name for the path and for the stamp. The lane is in the bits above.
const PATH_BITS: u32 = 24;
const STAMP_BITS: u32 = 32;

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Tells a path from a later one with the same number.
    stamp: u32,
    /// The value of a counter of all uses, at the last use.
    used: u64,
}

/// The paths of a lane.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    by_address: HashMap<Resolved, PathId>,
    /// The entries by path number.
    known: Vec<Option<Known>>,
    stamp: u32,
    uses: u64,
}

impl Datagrams {
    /// The number of addresses that can still be added.
    pub(crate) fn room(&self) -> usize {
        MAX_PATHS.saturating_sub(self.by_address.len())
    }

    /// The path to an address.
    pub(crate) fn find(&self, to: &Resolved) -> Option<PathId> {
        self.by_address.get(to).copied()
    }

    /// Adds the path that was created for an address. Another address may have the same path.
    pub(crate) fn add(&mut self, to: Resolved, path: PathId) {
        let at = path.0 as usize;
        if self.known.len() <= at {
            self.known.resize(at + 1, None);
        }
        if self.known[at].is_none() {
            self.stamp = self.stamp.wrapping_add(1);
            self.known[at] = Some(Known { stamp: self.stamp, used: self.uses });
        }
        self.by_address.insert(to, path);
    }

    /// The name of a path that is in use, for an address handle. `lane` counts from 0. A name is
    /// never 0.
    pub(crate) fn name(&self, lane: usize, path: PathId) -> u64 {
        let known = self.known.get(path.0 as usize).copied().flatten();
        match known {
            Some(Known { stamp, .. }) if path.0 >> PATH_BITS == 0 => {
                let lane = (lane as u64 + 1) << (PATH_BITS + STAMP_BITS);
                lane | u64::from(stamp) << PATH_BITS | u64::from(path.0)
            }
            _ => 0,
        }
    }

    /// The path with this name, which counts as a use; `None` if it is another lane's, or was
    /// forgotten.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn recall(&mut self, lane: usize, name: u64) -> Option<PathId> {
        if name >> (PATH_BITS + STAMP_BITS) != lane as u64 + 1 {
            return None;
        }
        let path = name as u32 & ((1 << PATH_BITS) - 1);
        let known = self.known.get_mut(path as usize)?.as_mut()?;
        if known.stamp != (name >> PATH_BITS) as u32 {
            return None;
        }
        self.uses += 1;
        known.used = self.uses;
        Some(PathId(path))
    }

    /// Forgets the paths that were not used for the longest time, except those in `keep`. Returns
    /// each path once per address that had it.
    pub(crate) fn forget(&mut self, keep: &HashSet<PathId>) -> Vec<PathId> {
        let used = |path: &PathId| {
            self.known.get(path.0 as usize).copied().flatten().map_or(0, |known| known.used)
        };
        let mut old: Vec<(u64, PathId)> = self
            .by_address
            .values()
            .filter(|path| !keep.contains(path))
            .map(|path| (used(path), *path))
            .collect();
        if old.len() > FORGOTTEN {
            old.select_nth_unstable(FORGOTTEN);
            old.truncate(FORGOTTEN);
        }
        let old: HashSet<PathId> = old.into_iter().map(|(_, path)| path).collect();
        for path in &old {
            self.known[path.0 as usize] = None;
        }
        let mut forgotten = Vec::with_capacity(old.len());
        self.by_address.retain(|_, path| {
            let stays = !old.contains(path);
            if !stays {
                forgotten.push(*path);
            }
            stays
        });
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(number: u32, ifindex: u32) -> Resolved {
        Resolved {
            local: [10, 0, 0, 1].into(),
            ifindex,
            remote: (0x0a00_0000 | number).to_be_bytes().into(),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            multipath: false,
        }
    }

    fn full() -> Datagrams {
        let mut datagrams = Datagrams::default();
        for number in 0..MAX_PATHS as u32 {
            datagrams.add(to(number, 0), PathId(number));
            let name = datagrams.name(0, PathId(number));
            assert_eq!(datagrams.recall(0, name), Some(PathId(number)));
        }
        assert_eq!(datagrams.room(), 0);
        datagrams
    }

    #[test]
    fn the_paths_not_used_for_longest_are_forgotten_but_none_that_is_kept() {
        let mut datagrams = full();
        let names = [0, 1, 2].map(|n| datagrams.name(0, PathId(n)));
        datagrams.recall(0, names[1]);
        let gone = datagrams.forget(&HashSet::from([PathId(2)]));
        assert_eq!((gone.len(), datagrams.room()), (FORGOTTEN, FORGOTTEN));
        assert!(gone.contains(&PathId(0)));
        assert!(gone.iter().all(|path| path.0 < FORGOTTEN as u32 + 2), "the oldest");
        let recalled = names.map(|name| datagrams.recall(0, name));
        assert_eq!(recalled, [None, Some(PathId(1)), Some(PathId(2))]);
        assert_eq!(datagrams.find(&to(0, 0)), None);
    }

    #[test]
    fn a_name_is_not_that_of_a_later_path_of_the_same_number() {
        let mut datagrams = full();
        let name = datagrams.name(0, PathId(0));
        datagrams.forget(&HashSet::new());
        datagrams.add(to(77_777, 0), PathId(0));
        assert_eq!(datagrams.recall(0, name), None);
        assert_ne!(datagrams.name(0, PathId(0)), name);
    }

    #[test]
    fn names_are_of_one_lane_and_0_is_none() {
        let mut datagrams = Datagrams::default();
        datagrams.add(to(1, 0), PathId(0));
        let name = datagrams.name(3, PathId(0));
        assert_eq!((datagrams.recall(3, name), datagrams.recall(2, name)), (Some(PathId(0)), None));
        assert_eq!((datagrams.recall(3, 0), datagrams.name(3, PathId(9))), (None, 0));
    }

    #[test]
    fn a_path_of_two_addresses_is_given_back_twice() {
        let mut datagrams = Datagrams::default();
        datagrams.add(to(1, 0), PathId(5));
        let name = datagrams.name(0, PathId(5));
        datagrams.add(to(1, 7), PathId(5));
        assert_eq!(datagrams.recall(0, name), Some(PathId(5)));
        assert_eq!(datagrams.forget(&HashSet::new()), [PathId(5), PathId(5)]);
    }
}
