//! A table whose entries are named by small numbers.

use core::marker::PhantomData;
use std::collections::VecDeque;

use crate::id::Index;

/// Entries of type `T`, found by names of type `I`. A number is re-used late, so that a name that has
/// outlived its entry is likely to find nothing.
#[derive(Clone, Debug)]
pub(crate) struct Slab<I, T> {
    items: Vec<Option<T>>,
    free: VecDeque<u32>,
    limit: usize,
    names: PhantomData<I>,
}

/// So many numbers must be free before one of them is used again.
const RESERVE: usize = 64;

impl<I: Index, T> Slab<I, T> {
    /// `limit`: the most items at a time.
    pub(crate) fn new(limit: usize) -> Self {
        Self { items: Vec::new(), free: VecDeque::new(), limit, names: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Adds an item and returns its name; `None` if the table is full.
    pub(crate) fn insert(&mut self, item: T) -> Option<I> {
        if self.is_full() {
            return None;
        }
        if self.free.len() > RESERVE
            && let Some(index) = self.free.pop_front()
        {
            self.items[index as usize] = Some(item);
            return Some(I::new(index));
        }
        let index = u32::try_from(self.items.len()).ok()?;
        self.items.push(Some(item));
        Some(I::new(index))
    }

    pub(crate) fn remove(&mut self, index: I) -> Option<T> {
        let item = self.items.get_mut(index.number() as usize)?.take();
        if item.is_some() {
            self.free.push_back(index.number());
        }
        item
    }

    #[inline]
    pub(crate) fn get(&self, index: I) -> Option<&T> {
        self.items.get(index.number() as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: I) -> Option<&mut T> {
        self.items.get_mut(index.number() as usize)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.iter_from(I::new(0))
    }

    /// The items from number `from` on, in the order of their numbers.
    pub(crate) fn iter_from(&self, from: I) -> impl Iterator<Item = (I, &T)> {
        let items = self.items.iter().enumerate().skip(from.number() as usize);
        items.filter_map(|(i, t)| Some((I::new(i as u32), t.as_ref()?)))
    }

    /// # Errors
    /// The list of free numbers does not agree with the empty entries.
    pub(crate) fn check(&self) -> Result<(), String> {
        let empty = self.items.iter().filter(|item| item.is_none()).count();
        let is_empty = |i: &u32| matches!(self.items.get(*i as usize), Some(None));
        let mut free: Vec<u32> = self.free.iter().copied().filter(is_empty).collect();
        free.sort_unstable();
        free.dedup();
        if free.len() == self.free.len() && free.len() == empty {
            return Ok(());
        }
        Err(format!("{empty} numbers are not in use, {:?} are free", self.free))
    }

    pub(crate) fn indexes(&self) -> Vec<I> {
        self.iter().map(|(i, _)| i).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_types::PathId;

    #[test]
    fn numbers_are_not_reused_soon_and_the_limit_holds() {
        let mut slab: Slab<PathId, u8> = Slab::new(100);
        let first = slab.insert(1).unwrap();
        assert_eq!(slab.remove(first), Some(1));
        assert_eq!(slab.remove(first), None);
        assert_ne!(slab.insert(2), Some(first));
        while slab.insert(3).is_some() {}
        assert_eq!(slab.len(), 100);
        assert!(slab.get(first).is_none());
    }
}
