//! A set of sequence numbers, kept as the few ranges that it consists of.
//!
//! Numbers that arrive out of order nearly always form a handful of long runs. So a look-up is a
//! binary search over the runs, and an addition mostly makes the last run longer.

use std::collections::VecDeque;

/// The most ranges of a set. A full set takes nothing that would begin another one, because each
/// change may have to move all ranges behind it.
pub(crate) const MAX_RANGES: usize = 1024;

/// The numbers from `start` up to, but not including, `end`.
pub(crate) type Range = core::ops::Range<u64>;

/// The set: ranges in order that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    list: VecDeque<Range>,
}

impl Ranges {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The number of ranges.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.list.iter()
    }

    /// The ranges that end after `seq`, in order.
    pub(crate) fn iter_from(&self, seq: u64) -> impl Iterator<Item = &Range> {
        self.list.range(self.list.partition_point(|r| r.end <= seq)..)
    }

    /// The range that `seq` is in.
    pub(crate) fn containing(&self, seq: u64) -> Option<Range> {
        self.iter_from(seq).next().filter(|r| r.start <= seq).cloned()
    }

    /// Adds `new`, which must not be empty, and calls `fresh` with each part of it that was not
    /// there. Returns false and changes nothing if the set has [`MAX_RANGES`] and would get one
    /// more.
    pub(crate) fn insert(&mut self, new: Range, mut fresh: impl FnMut(Range)) -> bool {
        debug_assert!(new.start < new.end);
        if let Some(last) = self.list.back_mut()
            && last.end == new.start
        {
            last.end = new.end;
            fresh(new);
            return true;
        }
        // The ranges that it overlaps or touches become one with it.
        let first = self.list.partition_point(|r| r.end < new.start);
        let after = self.list.partition_point(|r| r.start <= new.end);
        if first == after {
            if self.list.len() >= MAX_RANGES {
                return false;
            }
            self.list.insert(first, new.clone());
            fresh(new);
            return true;
        }
        let mut from = new.start;
        for r in self.list.range(first..after) {
            if from < r.start {
                fresh(from..r.start);
            }
            from = from.max(r.end);
        }
        if from < new.end {
            fresh(from..new.end);
        }
        let start = self.list[first].start.min(new.start);
        self.list[first] = start..from.max(new.end);
        self.list.drain(first + 1..after);
        true
    }

    /// Removes one number.
    pub(crate) fn remove(&mut self, seq: u64) {
        let at = self.list.partition_point(|r| r.end <= seq);
        let Some(r) = self.list.get_mut(at).filter(|r| r.start <= seq) else { return };
        let (before, after) = (r.start..seq, seq + 1..r.end);
        match (before.is_empty(), after.is_empty()) {
            (true, true) => {
                self.list.remove(at);
            }
            (true, false) => *r = after,
            (false, true) => *r = before,
            (false, false) => {
                *r = before;
                self.list.insert(at + 1, after);
            }
        }
    }

    /// Removes all numbers before `to`.
    pub(crate) fn trim(&mut self, to: u64) {
        while let Some(r) = self.list.front_mut() {
            if r.end > to {
                r.start = r.start.max(to);
                break;
            }
            self.list.pop_front();
        }
    }

    /// Removes all numbers, and frees the memory except that for a few ranges.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.list.shrink_to(4);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn check(set: &Ranges, model: &BTreeSet<u64>) {
        let all: Vec<u64> = set.iter().flat_map(Clone::clone).collect();
        assert!(all.iter().eq(model), "{set:?}");
        let apart = |(a, b): (&Range, &Range)| a.end < b.start;
        assert!(set.iter().zip(set.iter().skip(1)).all(apart), "{set:?}");
        assert!(set.iter().all(|r| r.start < r.end), "{set:?}");
    }

    #[test]
    fn it_is_the_set_that_was_put_in_whatever_the_order() {
        let mut state = 1u64;
        let mut below = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let (mut set, mut model) = (Ranges::default(), BTreeSet::new());
            for _ in 0..100 {
                match below(8) {
                    0 => {
                        let to = below(200);
                        set.trim(to);
                        model = model.split_off(&to);
                    }
                    1 => {
                        let seq = below(200);
                        set.remove(seq);
                        model.remove(&seq);
                    }
                    _ => {
                        let from = below(200);
                        let new = from..from + 1 + below(20);
                        let mut fresh = Vec::new();
                        assert!(set.insert(new.clone(), |r| fresh.extend(r)));
                        let expected: Vec<u64> = new.filter(|s| model.insert(*s)).collect();
                        assert_eq!(fresh, expected);
                    }
                }
                check(&set, &model);
                let seq = below(220);
                assert_eq!(set.containing(seq).is_some(), model.contains(&seq));
            }
        }
    }

    #[test]
    fn it_does_not_grow_without_limit_but_takes_what_makes_a_range_longer() {
        let mut set = Ranges::default();
        for i in 0..MAX_RANGES as u64 {
            assert!(set.insert(i * 10..i * 10 + 1, |_| {}));
        }
        let before: Vec<Range> = set.iter().cloned().collect();
        assert!(!set.insert(5..6, |_| panic!("it was not taken")));
        assert!(set.iter().eq(&before));
        assert!(set.insert(1..2, |_| {}));
        assert!(set.insert(2..10, |_| {}), "two become one");
        assert_eq!(set.len(), MAX_RANGES - 1);
        assert_eq!(set.containing(10), Some(0..11));
    }
}
