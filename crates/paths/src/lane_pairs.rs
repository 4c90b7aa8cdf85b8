//! Lanes that exchange datagrams. Where two lanes have connected queue pairs, these make an association,
//! which knows ways around a dead path for datagrams, too. Where they have none, the first datagram makes
//! one: the two lanes shake hands as for a queue pair, by number 0 of each, which is no queue pair's.
//!
//! In the tables such a pair of lanes is an entry like a queue pair, with a number that none can have. It
//! ends when no datagram was sent for a while; an end that sends none itself keeps it for as long as the
//! other end does. A peer that does not answer is a plain one, as for queue pairs.

use std::collections::BTreeMap;

use crate::id::Qpn;
use crate::select::Pair;

/// The most pairs of lanes that a lane begins, and the most that it has because others have begun them.
/// With more, datagrams go by the addresses of their handles only.
const MAX_LANE_PAIRS: usize = 64;
/// The first number that no queue pair can have: they have 24 bits.
const FIRST_NUMBER: u32 = 1 << 24;

impl Qpn {
    /// Whether it stands for a pair of lanes.
    pub(crate) fn is_lane_pair(self) -> bool {
        self.0 >= FIRST_NUMBER
    }
}

/// Number 0 of a lane.
pub(crate) const fn lane_number(slot: u8) -> u32 {
    (slot as u32) << 16
}

/// Whether packets to this number are for the lane itself.
pub(crate) const fn is_lane_number(qpn: u32) -> bool {
    qpn & 0xffff == 0
}

/// The lanes that datagrams have gone to, by their slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met([u64; 4]);

impl Met {
    /// Adds a lane. Returns whether it is a new one.
    #[inline]
    pub(crate) fn add(&mut self, slot: u8) -> bool {
        let (word, bit) = (&mut self.0[usize::from(slot >> 6)], 1 << (slot & 63));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub(crate) fn remove(&mut self, slot: u8) {
        self.0[usize::from(slot >> 6)] &= !(1 << (slot & 63));
    }
}

/// What two lanes are told apart from others by, as seen from here.
pub(crate) type Key = (Pair, u8);

/// The pairs of lanes that exchange datagrams.
#[derive(Clone, Debug, Default)]
pub(crate) struct LanePairs {
    pub(crate) by_key: BTreeMap<Key, Qpn>,
    pub(crate) all: BTreeMap<Qpn, LanePair>,
    next: u32,
    /// There was no room for one that would have begun here.
    pub(crate) full: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LanePair {
    pub(crate) key: Key,
    /// This end sends datagrams.
    pub(crate) begun_here: bool,
    /// Its association has ended: the next datagram begins another one.
    pub(crate) lost: bool,
}

impl LanePairs {
    pub(crate) fn insert(&mut self, key: Key, begun_here: bool) -> Option<Qpn> {
        if self.all.values().filter(|l| l.begun_here == begun_here).count() >= MAX_LANE_PAIRS {
            self.full |= begun_here;
            return None;
        }
        let number = Qpn(FIRST_NUMBER + self.next);
        // Few live at a time, so a number is free long before it comes again.
        self.next = (self.next + 1) % FIRST_NUMBER;
        self.by_key.insert(key, number);
        self.all.insert(number, LanePair { key, begun_here, lost: false });
        Some(number)
    }

    pub(crate) fn remove(&mut self, number: Qpn) -> Option<Key> {
        let LanePair { key, .. } = self.all.remove(&number)?;
        self.by_key.remove(&key);
        Some(key)
    }

    /// # Errors
    /// The two directions do not agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        let found = self.all.iter().all(|(number, l)| self.by_key.get(&l.key) == Some(number));
        if found && self.all.len() == self.by_key.len() {
            return Ok(());
        }
        Err(format!("{:?} are found by {:?}", self.all, self.by_key))
    }
}
