//! How many plain queue pairs leave by each port of the kernel's bonds.

use std::collections::BTreeMap;

use crate::select::Pair;

/// How many plain queue pairs leave by the ports of bonds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loads {
    by_pair: BTreeMap<(Pair, u32), usize>,
    by_port: BTreeMap<u32, usize>,
}

/// So many plain queue pairs leave by a port of a bond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Its addresses.
    pub(crate) pair: Pair,
    /// The index of the bond's port.
    pub(crate) port: u32,
    pub(crate) count: usize,
}

impl Loads {
    pub(crate) fn add(&mut self, load: Load) {
        let Load { pair, port, count } = load;
        if count > 0 {
            *self.by_pair.entry((pair, port)).or_default() += count;
            *self.by_port.entry(port).or_default() += count;
        }
    }

    pub(crate) fn take(&mut self, load: Load) {
        let Load { pair, port, count } = load;
        let less = |load: &mut usize| {
            *load = load.saturating_sub(count);
            *load == 0
        };
        if self.by_pair.get_mut(&(pair, port)).is_some_and(less) {
            self.by_pair.remove(&(pair, port));
        }
        if self.by_port.get_mut(&port).is_some_and(less) {
            self.by_port.remove(&port);
        }
    }

    /// Those between these addresses, and all.
    pub(crate) fn of(&self, pair: Pair, port: u32) -> (usize, usize) {
        let of_pair = self.by_pair.get(&(pair, port)).copied().unwrap_or(0);
        (of_pair, self.by_port.get(&port).copied().unwrap_or(0))
    }
}
