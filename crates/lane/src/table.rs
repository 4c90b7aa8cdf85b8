//! The queue pairs of a lane by number.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeSet;

use polypath_transport::QueuePair;
use polypath_types::PeerId;

/// Queue pairs in a page of the table.
const PAGE: usize = 256;

/// A queue pair, what its owner keeps beside it, and what the lane knows of it.
///
/// The flags tell in which of the lane's lists it is; [`crate::Lane::check`] compares both.
#[derive(Clone, Debug)]
pub struct Entry<Q> {
    /// The queue pair.
    pub qp: QueuePair,
    /// What the owner of the lane keeps beside it.
    pub own: Q,
    /// Whom it is connected with.
    pub(crate) peer: Option<PeerId>,
    /// The earliest of its deadlines among the lane's timers.
    pub(crate) timer: Option<Duration>,
    /// In the list of those whose deadline is to be looked at.
    pub(crate) stale: bool,
    /// In the queue of those that have something to send.
    pub(crate) queued: bool,
    /// In the list of those that owe an acknowledgement.
    pub(crate) owes_ack: bool,
    /// Waits until a window opens.
    pub(crate) blocked: bool,
    /// In the list of those that wait for that; some there may have been told to go on.
    pub(crate) waits: bool,
}

impl<Q> Entry<Q> {
    pub(crate) fn new(qp: QueuePair, own: Q) -> Self {
        Self {
            qp,
            own,
            peer: None,
            timer: None,
            stale: false,
            queued: false,
            owes_ack: false,
            blocked: false,
            waits: false,
        }
    }

    /// Whom it is connected with; UD queue pairs, and those not yet connected: nobody.
    pub fn peer(&self) -> Option<PeerId> {
        self.peer
    }
}

type Page<Q> = [Option<Box<Entry<Q>>>; PAGE];

/// Queue pairs by the lower 16 bits of their numbers; the upper 8 are the lane's slot. Index 0 is the
/// lane's own address and never a queue pair.
#[derive(Clone)]
pub struct QpTable<Q> {
    slot: u8,
    pages: Vec<Option<Box<Page<Q>>>>,
    /// The indexes in use: pages are mostly empty.
    used: BTreeSet<u16>,
}

impl<Q> QpTable<Q> {
    pub(crate) fn new(slot: u8) -> Self {
        let pages = core::iter::repeat_with(|| None).take(PAGE).collect();
        Self { slot, pages, used: BTreeSet::new() }
    }

    /// The index within its lane of a queue pair number.
    #[expect(clippy::cast_possible_truncation, reason = "the lower 16 bits are the index")]
    #[inline]
    pub const fn index_of(qpn: u32) -> u16 {
        qpn as u16
    }

    /// The number of the queue pair with that index.
    #[inline]
    pub fn number(&self, index: u16) -> u32 {
        u32::from(self.slot) << 16 | u32::from(index)
    }

    /// The queue pair with that index.
    #[inline]
    pub fn get_mut(&mut self, index: u16) -> Option<&mut Entry<Q>> {
        let page = self.pages[usize::from(index) / PAGE].as_deref_mut()?;
        page[usize::from(index) % PAGE].as_deref_mut()
    }

    /// The queue pair with that index.
    #[inline]
    pub fn get(&self, index: u16) -> Option<&Entry<Q>> {
        self.pages[usize::from(index) / PAGE].as_deref()?[usize::from(index) % PAGE].as_deref()
    }

    /// The queue pair with that number, if it is of this lane.
    #[inline]
    pub fn by_qpn(&self, qpn: u32) -> Option<&Entry<Q>> {
        if qpn >> 16 == u32::from(self.slot) { self.get(Self::index_of(qpn)) } else { None }
    }

    /// The same, to be changed.
    #[inline]
    pub fn by_qpn_mut(&mut self, qpn: u32) -> Option<&mut Entry<Q>> {
        if qpn >> 16 == u32::from(self.slot) { self.get_mut(Self::index_of(qpn)) } else { None }
    }

    /// Whether a queue pair can have that index.
    pub fn is_free(&self, index: u16) -> bool {
        index != 0 && self.get(index).is_none()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// All queue pairs, by index.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Entry<Q>)> {
        self.used.iter().filter_map(|&index| Some((index, self.get(index)?)))
    }

    /// Those with that index and above, by index: for those who look in slices.
    pub fn iter_from(&self, from: u16) -> impl Iterator<Item = (u16, &Entry<Q>)> {
        self.used.range(from..).filter_map(|&index| Some((index, self.get(index)?)))
    }

    pub(crate) fn insert(&mut self, index: u16, entry: Entry<Q>) {
        let page = self.pages[usize::from(index) / PAGE]
            .get_or_insert_with(|| Box::new([const { None }; PAGE]));
        page[usize::from(index) % PAGE] = Some(Box::new(entry));
        self.used.insert(index);
    }

    pub(crate) fn remove(&mut self, index: u16) -> Option<Box<Entry<Q>>> {
        let page = self.pages[usize::from(index) / PAGE].as_deref_mut()?;
        let entry = page[usize::from(index) % PAGE].take();
        self.used.remove(&index);
        entry
    }
}

/// Only the queue pairs that there are.
impl<Q: fmt::Debug> fmt::Debug for QpTable<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
