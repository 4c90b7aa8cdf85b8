//! The open files of the device, each with its queue of events.

use std::collections::{BTreeMap, VecDeque};

use crate::env::{ClientId, FileId};

/// The owner of events that are counted already: no id has this number.
pub(crate) const NOBODY: u32 = u32::MAX;

/// An event that waits to be taken.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    /// The id whose reported events it counts among.
    pub(crate) owner: u32,
    /// The multicast membership whose reported events it also counts among.
    pub(crate) membership: Option<u32>,
    /// The id of the new connection that a connection request announces.
    pub(crate) child: Option<u32>,
    /// The structure for the application.
    pub(crate) bytes: Vec<u8>,
    /// Its place among all events, which it gets in the queue.
    pub(crate) order: u64,
}

impl Queued {
    /// An event of an id.
    pub(crate) fn of(owner: u32, bytes: Vec<u8>) -> Self {
        Self { owner, membership: None, child: None, bytes, order: 0 }
    }
}

#[derive(Debug)]
struct File {
    client: ClientId,
    events: VecDeque<Queued>,
    /// How many of them each id has.
    owners: BTreeMap<u32, usize>,
    ids: usize,
}

impl File {
    fn push(&mut self, event: Queued) {
        *self.owners.entry(event.owner).or_default() += 1;
        self.events.push_back(event);
    }

    fn forget(&mut self, owner: u32) {
        if let Some(count) = self.owners.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&owner);
            }
        }
    }
}

/// Every open file.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: BTreeMap<FileId, File>,
    /// The number of events so far.
    pushed: u64,
}

impl FileTable {
    pub(crate) fn open(&mut self, file: FileId, client: ClientId) {
        let (events, owners) = (VecDeque::new(), BTreeMap::new());
        self.files.entry(file).or_insert(File { client, events, owners, ids: 0 });
    }

    pub(crate) fn close(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    pub(crate) fn client(&self, file: FileId) -> Option<ClientId> {
        self.files.get(&file).map(|f| f.client)
    }

    /// The number of ids of the file.
    pub(crate) fn id_count(&self, file: FileId) -> usize {
        self.files.get(&file).map_or(0, |f| f.ids)
    }

    pub(crate) fn id_added(&mut self, file: FileId) {
        if let Some(f) = self.files.get_mut(&file) {
            f.ids += 1;
        }
    }

    pub(crate) fn id_removed(&mut self, file: FileId) {
        if let Some(f) = self.files.get_mut(&file) {
            f.ids = f.ids.saturating_sub(1);
        }
    }

    /// The number of events that wait in the file.
    pub(crate) fn event_count(&self, file: FileId) -> usize {
        self.files.get(&file).map_or(0, |f| f.events.len())
    }

    /// The number of events that wait in all files.
    pub(crate) fn waiting_events(&self) -> usize {
        self.files.values().map(|f| f.events.len()).sum()
    }

    pub(crate) fn push(&mut self, file: FileId, event: Queued) {
        if let Some(f) = self.files.get_mut(&file) {
            self.pushed += 1;
            f.push(Queued { order: self.pushed, ..event });
        }
    }

    /// The files in which events wait.
    pub(crate) fn with_events(&self) -> Vec<FileId> {
        self.files.iter().filter(|(_, f)| !f.events.is_empty()).map(|(file, _)| *file).collect()
    }

    /// The events that wait in a file and count among those of an id.
    pub(crate) fn events_of(&self, file: FileId, owner: u32) -> impl Iterator<Item = &Queued> {
        let count = |f: &File| f.owners.get(&owner).copied().unwrap_or(0);
        let file = self.files.get(&file);
        let events = file.into_iter().flat_map(|f| &f.events);
        events.filter(move |event| event.owner == owner).take(file.map_or(0, count))
    }

    /// The next event of one file, which stays.
    pub(crate) fn first_of(&self, file: FileId) -> Option<&Queued> {
        self.files.get(&file)?.events.front()
    }

    /// Takes the next event of one file.
    pub(crate) fn pop_of(&mut self, file: FileId) -> Option<Queued> {
        let f = self.files.get_mut(&file)?;
        let event = f.events.pop_front()?;
        f.forget(event.owner);
        Some(event)
    }

    /// Takes out the waiting events that the test picks, in order.
    pub(crate) fn remove_events(
        &mut self,
        file: FileId,
        mut picks: impl FnMut(&Queued) -> bool,
    ) -> Vec<Queued> {
        let Some(f) = self.files.get_mut(&file) else { return Vec::new() };
        let mut removed = Vec::new();
        for event in core::mem::take(&mut f.events) {
            f.forget(event.owner);
            if picks(&event) {
                removed.push(event);
            } else {
                f.push(event);
            }
        }
        removed
    }
}
