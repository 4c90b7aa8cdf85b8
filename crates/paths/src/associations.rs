//! The associations of a lane, and the indexes that find them.

use std::collections::{BTreeMap, BTreeSet};

use crate::association::Association;
use crate::id::AssociationId;
use crate::key::{Nonce, Random};
use crate::select::Pair;
use crate::slab::Slab;

/// The bits of an association's number that hold its index in the table.
const INDEX_MASK: u32 = 0xffff;

/// All associations. They are found by their names, by the numbers by which peers address them, by the
/// peers' nonces, and by the addresses between which they have paths.
#[derive(Clone, Debug)]
pub(crate) struct Associations {
    table: Slab<AssociationId, Association>,
    by_nonce: BTreeMap<(u64, Nonce), AssociationId>,
    by_ends: BTreeSet<(Pair, AssociationId)>,
}

impl Associations {
    /// `limit`: the most associations at a time.
    pub(crate) fn new(limit: usize) -> Self {
        Self { table: Slab::new(limit), by_nonce: BTreeMap::new(), by_ends: BTreeSet::new() }
    }

    #[inline]
    pub(crate) fn get(&self, index: AssociationId) -> Option<&Association> {
        self.table.get(index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: AssociationId) -> Option<&mut Association> {
        self.table.get_mut(index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AssociationId, &Association)> {
        self.table.iter()
    }

    pub(crate) fn indexes(&self) -> Vec<AssociationId> {
        self.table.indexes()
    }

    /// The association that its peer addresses by `number`.
    pub(crate) fn by_number(&self, number: u32) -> Option<AssociationId> {
        let index = AssociationId(number & INDEX_MASK);
        (self.table.get(index)?.number == number).then_some(index)
    }

    /// The association with the lane of this instance, by that lane's nonce.
    pub(crate) fn by_nonce(&self, instance: u64, nonce: Nonce) -> Option<AssociationId> {
        self.by_nonce.get(&(instance, nonce)).copied()
    }

    /// The associations that have a path between these addresses.
    pub(crate) fn between(&self, ends: Pair) -> impl Iterator<Item = AssociationId> + '_ {
        let (first, last) = (AssociationId(0), AssociationId(u32::MAX));
        self.by_ends.range((ends, first)..=(ends, last)).map(|(_, index)| *index)
    }

    /// Adds an association and gives it a number that nobody can guess. Returns `None` if the table is
    /// full.
    pub(crate) fn insert(&mut self, a: Association, random: &mut Random) -> Option<AssociationId> {
        let remote = (a.remote_instance, a.remote_nonce);
        let index = self.table.insert(a)?;
        let number = (random.u32() & !INDEX_MASK) | (index.0 & INDEX_MASK);
        if let Some(a) = self.table.get_mut(index) {
            // 0 stands for "none yet".
            a.number = if number == 0 { 1 << 31 } else { number };
        }
        self.by_nonce.insert(remote, index);
        Some(index)
    }

    pub(crate) fn remove(&mut self, index: AssociationId) -> Option<Association> {
        let a = self.table.remove(index)?;
        self.by_nonce.remove(&(a.remote_instance, a.remote_nonce));
        for &ends in &a.ends {
            self.by_ends.remove(&(ends, index));
        }
        Some(a)
    }

    /// Records that the paths of an association lead between the pairs `current` now. Returns the pairs
    /// from before, or `None` if there is no such association.
    pub(crate) fn set_ends(&mut self, index: AssociationId, current: &[Pair]) -> Option<Vec<Pair>> {
        let a = self.table.get_mut(index)?;
        let before = core::mem::replace(&mut a.ends, current.to_vec());
        for ends in before.iter().filter(|ends| !current.contains(ends)) {
            self.by_ends.remove(&(*ends, index));
        }
        for ends in current.iter().filter(|ends| !before.contains(ends)) {
            self.by_ends.insert((*ends, index));
        }
        Some(before)
    }

    /// # Errors
    /// The indexes do not agree with the associations.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.table.check()?;
        for (of, &index) in &self.by_nonce {
            let a = self.table.get(index);
            if a.is_none_or(|a| (a.remote_instance, a.remote_nonce) != *of) {
                return Err(format!("{index:?} is known by a nonce that is not its peer's"));
            }
        }
        for (ends, index) in &self.by_ends {
            if self.table.get(*index).is_none_or(|a| !a.ends.contains(ends)) {
                return Err(format!("{index:?} is known by {ends:?}, where it has no path"));
            }
        }
        for (index, a) in self.table.iter() {
            if let Some(ends) = a.ends.iter().find(|ends| !self.by_ends.contains(&(**ends, index)))
            {
                return Err(format!("{index:?} is not known by its path between {ends:?}"));
            }
            if self.by_nonce(a.remote_instance, a.remote_nonce) != Some(index) {
                return Err(format!("{index:?} is not known by its peer's nonce"));
            }
            if self.by_number(a.number) != Some(index) {
                return Err(format!("{index:?} is not known by its number"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;
    use polypath_types::PeerId;

    fn association(nonce: u8) -> Association {
        let remote = (7, Nonce([nonce; 16]));
        Association::new((1, Nonce([0; 16])), remote, 2, PeerId(0))
    }

    fn ends(n: u8) -> Pair {
        (IpAddr::from([10, 0, n, 1]), IpAddr::from([10, 0, n, 2]))
    }

    #[test]
    fn an_association_is_known_by_its_number_its_nonce_and_its_paths_until_it_is_gone() {
        let mut all = Associations::new(2);
        let mut random = Random::new([3; 16]);
        let one = all.insert(association(1), &mut random).unwrap();
        let two = all.insert(association(2), &mut random).unwrap();
        assert!(all.insert(association(3), &mut random).is_none());
        assert_eq!(all.by_nonce(7, Nonce([3; 16])), None, "one that found no room leaves nothing");
        let number = all.get(two).unwrap().number;
        assert_ne!(number, 0);
        assert_eq!(all.by_number(number), Some(two));
        assert_eq!(all.by_number(number ^ 1 << 20), None, "an index alone is not enough");
        assert_eq!(all.set_ends(one, &[ends(1), ends(2)]), Some(vec![]));
        assert_eq!(all.set_ends(two, &[ends(2)]), Some(vec![]));
        assert_eq!(all.between(ends(2)).collect::<Vec<_>>(), [one, two]);
        assert_eq!(all.set_ends(one, &[ends(1), ends(3)]), Some(vec![ends(1), ends(2)]));
        assert_eq!(all.between(ends(2)).collect::<Vec<_>>(), [two]);
        assert_eq!(all.check(), Ok(()));
        all.remove(two).unwrap();
        assert_eq!((all.by_number(number), all.by_nonce(7, Nonce([2; 16]))), (None, None));
        assert_eq!(all.between(ends(2)).count(), 0);
        assert_eq!(all.check(), Ok(()));
    }
}
