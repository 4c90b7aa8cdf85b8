//! A lane's own look at the table.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use polypath_transport::{Access, Fault, Segment, Sge};

use super::region::Grant;
use super::table::{MemoryTable, NO_DATA};

/// Keys that a view remembers. A power of two.
const CACHE: usize = 64;

/// The table with a cache of checked keys for one lane: no lock and no shared cache line written on
/// the data path. It is not [`Sync`]; the lane's lock guards it.
pub struct MemoryView {
    table: Arc<MemoryTable>,
    generation: Cell<u64>,
    cache: [Cell<Option<Grant>>; CACHE],
}

impl MemoryView {
    /// A view with nothing remembered.
    pub fn new(table: Arc<MemoryTable>) -> Self {
        let generation = Cell::new(table.generation());
        Self { table, generation, cache: [const { Cell::new(None) }; CACHE] }
    }

    /// What it looks at.
    pub fn table(&self) -> &Arc<MemoryTable> {
        &self.table
    }

    #[inline]
    fn find(&self, key: u32) -> Result<Grant, Fault> {
        // Before the cache is read, and before the table is: a change that comes between is seen as
        // a later generation the next time.
        let now = self.table.generation();
        if now != self.generation.get() {
            self.cache.iter().for_each(|slot| slot.set(None));
            self.generation.set(now);
        }
        let slot = &self.cache[(key >> 8) as usize % CACHE];
        match slot.get() {
            Some(grant) if grant.key == key => Ok(grant),
            _ => {
                let grant = self.table.find(key)?;
                slot.set(Some(grant));
                Ok(grant)
            }
        }
    }

    /// As [`MemoryTable::resolve`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn resolve(&self, pd: u32, sge: Sge, access: Access) -> Result<Segment, Fault> {
        if sge.len == 0 {
            return Ok(NO_DATA);
        }
        self.find(sge.lkey)?.local(pd, sge.addr, sge.len, access)
    }

    /// As [`MemoryTable::resolve_remote`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn resolve_remote(
        &self,
        pd: u32,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<Segment, Fault> {
        if len == 0 {
            return Ok(NO_DATA);
        }
        self.find(rkey)?.remote(pd, qpn, va, len, access)
    }
}

impl fmt::Debug for MemoryView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryView").field("table", &self.table).finish_non_exhaustive()
    }
}
