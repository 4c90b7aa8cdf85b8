//! The paths of address handles: which ends and options have which path.

use core::net::IpAddr;
use std::collections::BTreeMap;

use crate::config::PathOptions;
use crate::select::Pair;
use polypath_types::PathId;

/// What address handles share a path for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UdKey {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) options: PathOptions,
}

/// The paths of address handles, by key and the other way round.
#[derive(Clone, Debug, Default)]
pub(crate) struct UdPaths {
    by_key: BTreeMap<UdKey, PathId>,
    keys: BTreeMap<PathId, UdKey>,
    /// What stands in for a path to a multicast group while its link is down.
    stand_ins: BTreeMap<PathId, PathId>,
}

impl UdPaths {
    /// The paths that handles have asked for, without most of those that stand in for one.
    pub(crate) fn len(&self) -> usize {
        self.keys.len().saturating_sub(self.stand_ins.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn get(&self, key: &UdKey) -> Option<PathId> {
        self.by_key.get(key).copied()
    }

    /// The path is of handles, and is found by what they share it for.
    pub(crate) fn contains(&self, path: PathId) -> bool {
        self.keys.get(&path).is_some_and(|key| self.by_key.get(key) == Some(&path))
    }

    /// What a path is shared for, if it is of handles.
    pub(crate) fn key_of(&self, path: PathId) -> Option<UdKey> {
        self.keys.get(&path).copied()
    }

    pub(crate) fn stand_in(&self, path: PathId) -> Option<PathId> {
        self.stand_ins.get(&path).copied()
    }

    pub(crate) fn set_stand_in(&mut self, path: PathId, by: PathId) {
        self.stand_ins.insert(path, by);
    }

    pub(crate) fn take_stand_in(&mut self, path: PathId) -> Option<PathId> {
        self.stand_ins.remove(&path)
    }

    pub(crate) fn insert(&mut self, key: UdKey, path: PathId) {
        self.by_key.insert(key, path);
        self.keys.insert(path, key);
    }

    pub(crate) fn remove(&mut self, path: PathId) {
        if let Some(key) = self.keys.remove(&path) {
            self.by_key.remove(&key);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = PathId> + '_ {
        self.keys.keys().copied()
    }

    /// The paths between two addresses, and their options.
    pub(crate) fn between(
        &self,
        (local, remote): Pair,
    ) -> impl Iterator<Item = (PathOptions, PathId)> + '_ {
        let first = UdKey { local, remote, options: PathOptions::default() };
        let between = move |key: &UdKey| (key.local, key.remote) == (local, remote);
        let found = self.by_key.range(first..).take_while(move |(key, _)| between(key));
        found.map(|(key, path)| (key.options, *path))
    }

    /// # Errors
    /// The two directions do not agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = self.keys.keys().find(|path| !self.contains(**path));
        let known = |path: &PathId| self.keys.contains_key(path);
        if let Some((path, by)) =
            self.stand_ins.iter().find(|(path, by)| !known(path) || !known(by))
        {
            return Err(format!("{by:?} stands in for {path:?}, and one of them is gone"));
        }
        match wrong {
            Some(path) => Err(format!("{path:?} is not found by its key")),
            None if self.by_key.len() != self.keys.len() => {
                Err("paths of address handles and their keys differ in number".to_owned())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_by_its_key_and_among_those_between_its_ends() {
        let key = |n: u8, hop_limit| {
            let (local, remote) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, n]));
            UdKey { local, remote, options: PathOptions { hop_limit, ..PathOptions::default() } }
        };
        let mut paths = UdPaths::default();
        for (n, k) in [key(2, 0), key(2, 9), key(3, 0)].into_iter().enumerate() {
            paths.insert(k, PathId(n as u32));
        }
        let between = |paths: &UdPaths, n| {
            let UdKey { local, remote, .. } = key(n, 0);
            paths.between((local, remote)).map(|(_, path)| path.0).collect::<Vec<_>>()
        };
        assert_eq!(paths.get(&key(2, 9)), Some(PathId(1)));
        assert_eq!((between(&paths, 2), between(&paths, 3)), (vec![0, 1], vec![2]));
        assert_eq!(paths.check(), Ok(()));
        paths.remove(PathId(0));
        paths.remove(PathId(7));
        assert_eq!((paths.get(&key(2, 0)), paths.len()), (None, 2));
        assert_eq!(between(&paths, 2), [1]);
        assert_eq!(paths.check(), Ok(()));
    }
}
