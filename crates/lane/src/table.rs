//! The queue pairs of a lane, found by their numbers.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeSet;

use polypath_transport::QueuePair;
use polypath_types::PeerId;

/// The number of queue pairs in a page of the table.
const PAGE: usize = 256;

/// A queue pair with the data of its owner and the state that the lane keeps for it.
///
/// The flags say in which of the lane's lists it is; [`crate::Lane::check`] compares both.
#[derive(Clone, Debug)]
pub struct Entry<Q> {
    /// The queue pair.
    pub qp: QueuePair,
    /// The data that the owner of the lane keeps with it.
    pub own: Q,
    /// The peer that it is connected with.
    pub(crate) peer: Option<PeerId>,
    /// The earliest of its deadlines that is among the lane's timers.
    pub(crate) timer: Option<Duration>,
    /// It is in the list of queue pairs whose deadlines are to be checked.
    pub(crate) stale: bool,
    /// It is in the queue of those that have something to send.
    pub(crate) queued: bool,
    /// It is in the list of those that owe an acknowledgement.
    pub(crate) owes_ack: bool,
    /// It waits until a window opens.
    pub(crate) blocked: bool,
    /// It is in the list of those that wait for a window. Some of these may have been told to go
    /// on.
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

    /// The peer that it is connected with; `None` for UD queue pairs and those not yet connected.
    pub fn peer(&self) -> Option<PeerId> {
        self.peer
    }
}

type Page<Q> = [Option<Box<Entry<Q>>>; PAGE];

/// Queue pairs by the lower 16 bits of their numbers; the upper 8 are the lane's slot. Index 0 is
/// the lane's own address and never a queue pair.
#[derive(Clone)]
pub struct QpTable<Q> {
    slot: u8,
    pages: Vec<Option<Box<Page<Q>>>>,
    /// The indexes in use. They are kept because pages are mostly empty.
    used: BTreeSet<u16>,
}

impl<Q> QpTable<Q> {
    pub(crate) fn new(slot: u8) -> Self {
        let pages = core::iter::repeat_with(|| None).take(PAGE).collect();
        Self { slot, pages, used: BTreeSet::new() }
    }

    /// The index of a queue pair number within its lane.
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

    /// The queue pair with that number, if it belongs to this lane.
    #[inline]
    pub fn by_qpn(&self, qpn: u32) -> Option<&Entry<Q>> {
        if qpn >> 16 == u32::from(self.slot) { self.get(Self::index_of(qpn)) } else { None }
    }

    /// The same, for changes.
    #[inline]
    pub fn by_qpn_mut(&mut self, qpn: u32) -> Option<&mut Entry<Q>> {
        if qpn >> 16 == u32::from(self.slot) { self.get_mut(Self::index_of(qpn)) } else { None }
    }

    /// Whether that index is free for a queue pair.
    pub fn is_free(&self, index: u16) -> bool {
        index != 0 && self.get(index).is_none()
    }

    /// The number of queue pairs.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether there are no queue pairs.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// All queue pairs, by index.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Entry<Q>)> {
        self.used.iter().filter_map(|&index| Some((index, self.get(index)?)))
    }

    /// The queue pairs with that index and above, by index, for callers that look at a part at a
    /// time.
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

/// Shows only the queue pairs that exist.
impl<Q: fmt::Debug> fmt::Debug for QpTable<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
