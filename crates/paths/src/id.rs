//! Names of the tables' entries. Each table has a type of its own, so that a name from one table cannot
//! be used in another. Queue pairs know the names of peers and paths, too: [`PeerId`], [`PathId`].

use crate::types::MAX_PATHS;
use polypath_types::{PathId, PeerId};

/// Names an entry of a [`Slab`](crate::slab::Slab).
pub(crate) trait Index: Copy {
    /// The name of the entry with this number.
    fn new(number: u32) -> Self;

    /// The number of the entry.
    fn number(self) -> u32;
}

/// Names an association in the lane's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AssociationId(pub(crate) u32);

/// The number by which both ends of an association know one of its paths, below [`MAX_PATHS`]. A number
/// from a packet may have any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PathNumber(pub(crate) u8);

/// The number of a queue pair of this lane. The peer's queue pair numbers are plain `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Qpn(pub(crate) u32);

impl Index for AssociationId {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn number(self) -> u32 {
        self.0
    }
}

impl Index for PathId {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn number(self) -> u32 {
        self.0
    }
}

impl Index for PeerId {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn number(self) -> u32 {
        self.0
    }
}

impl core::fmt::LowerHex for Qpn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::LowerHex::fmt(&self.0, f)
    }
}

/// A table with one item for each number that a path can have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByNumber<T>([T; MAX_PATHS]);

impl<T: Copy> ByNumber<T> {
    /// The item for `number`; `None` if no path can have that number.
    #[inline]
    pub(crate) fn get(&self, number: PathNumber) -> Option<T> {
        self.0.get(usize::from(number.0)).copied()
    }

    /// All items, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PathNumber, T)> + Clone + use<T> {
        self.0.into_iter().enumerate().map(|(number, item)| (PathNumber(number as u8), item))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl<T> core::ops::Index<PathNumber> for ByNumber<T> {
    type Output = T;

    fn index(&self, number: PathNumber) -> &T {
        &self.0[usize::from(number.0)]
    }
}

impl<T> core::ops::IndexMut<PathNumber> for ByNumber<T> {
    fn index_mut(&mut self, number: PathNumber) -> &mut T {
        &mut self.0[usize::from(number.0)]
    }
}
