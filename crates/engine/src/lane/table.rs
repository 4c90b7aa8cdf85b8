//! The queue pairs of a lane by number.

use polypath_transport::QpConfig;
use polypath_transport::QueuePair;
use polypath_verbs::{Error, Result};

use crate::lane::{Attached, Entry};
use crate::limits::MAX_QP_PER_LANE;

/// Queue pairs by the lower 16 bits of their number; the upper 8 are the lane's slot. Index 0 is
/// the lane's own address and never a queue pair.
#[derive(Debug)]
pub(crate) struct QpTable {
    slot: u8,
    entries: Vec<Option<Box<Entry>>>,
    used: usize,
}

impl QpTable {
    pub(crate) fn new(slot: u8) -> Self {
        Self { slot, entries: std::iter::repeat_with(|| None).take(1 << 16).collect(), used: 0 }
    }

    /// The index within its lane of a queue pair number.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) const fn index_of(qpn: u32) -> u16 {
        qpn as u16
    }

    pub(crate) fn get_mut(&mut self, index: u16) -> Option<&mut Entry> {
        self.entries[usize::from(index)].as_deref_mut()
    }

    pub(crate) fn get(&self, index: u16) -> Option<&Entry> {
        self.entries[usize::from(index)].as_deref()
    }

    /// The queue pair with that number, if it is of this lane.
    pub(crate) fn by_qpn(&mut self, qpn: u32) -> Option<&mut Entry> {
        if qpn >> 16 != u32::from(self.slot) {
            return None;
        }
        self.get_mut(Self::index_of(qpn))
    }

    /// Adds a queue pair under an unpredictable free number.
    pub(crate) fn insert(
        &mut self,
        config: impl FnOnce(u32) -> QpConfig,
        mut attached: Attached,
    ) -> Result<u32> {
        if self.used >= MAX_QP_PER_LANE {
            return Err(Error::no_memory(format!(
                "a lane has at most {MAX_QP_PER_LANE} queue pairs"
            )));
        }
        let index = loop {
            let mut bytes = [0; 2];
            getrandom::fill(&mut bytes).map_err(|e| {
                Error::new(libc::EIO, format!("the system gives no random numbers: {e}"))
            })?;
            let index = u16::from_ne_bytes(bytes);
            // At least a quarter of the numbers is free: this ends soon.
            if index != 0 && self.entries[usize::from(index)].is_none() {
                break index;
            }
        };
        let qpn = u32::from(self.slot) << 16 | u32::from(index);
        attached.qpn = qpn;
        self.entries[usize::from(index)] = Some(Box::new(Entry {
            core: QueuePair::new(config(qpn)),
            attached,
            peer: None,
            timer: None,
            stale: false,
            queued: false,
            owes_ack: false,
            blocked: false,
        }));
        self.used += 1;
        Ok(qpn)
    }

    /// Whether there are none.
    #[cfg(any(test, fuzzing))]
    pub(crate) const fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(crate) fn remove(&mut self, index: u16) -> Option<Box<Entry>> {
        let entry = self.entries[usize::from(index)].take();
        self.used -= usize::from(entry.is_some());
        entry
    }

    /// All queue pairs.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten().map(Box::as_ref)
    }

    /// The indexes in use.
    pub(crate) fn indexes(&self) -> Vec<u16> {
        (0..=u16::MAX).zip(&self.entries).filter(|(_, e)| e.is_some()).map(|(i, _)| i).collect()
    }
}
