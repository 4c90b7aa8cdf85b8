//! A cache of the keys that one user of the table has used recently.

use std::cell::Cell;
use std::fmt;

use polypath_transport::{Access, Fault, RemoteAccess, Sge};

use super::region::Grant;
use super::segment::Segment;
use super::table::MemoryTable;

/// The number of keys that are remembered. It must be a power of two.
const CACHE: usize = 16;

/// A cache of checked keys in front of a [`MemoryTable`]. With it, the data path takes no lock and
/// writes no shared cache line. It belongs to one queue pair or lane, is not [`Sync`], and is
/// always used with the same table.
pub struct KeyCache {
    generation: Cell<u64>,
    grants: [Cell<Option<Grant>>; CACHE],
}

impl KeyCache {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self { generation: Cell::new(0), grants: [const { Cell::new(None) }; CACHE] }
    }

    #[inline]
    fn find(&self, table: &MemoryTable, key: u32) -> Result<Grant, Fault> {
        // This is read before the cache and the table are. So a change that happens in between
        // shows up as a later generation the next time.
        let now = table.generation();
        if now != self.generation.get() {
            self.grants.iter().for_each(|slot| slot.set(None));
            self.generation.set(now);
        }
        let slot = &self.grants[(key >> 8) as usize % CACHE];
        match slot.get() {
            Some(grant) if grant.key == key => Ok(grant),
            _ => {
                let grant = table.find(key)?;
                slot.set(Some(grant));
                Ok(grant)
            }
        }
    }

    /// Does the same as [`MemoryTable::resolve`].
    ///
    /// # Errors
    /// Those of that method.
    #[inline]
    pub fn resolve(
        &self,
        table: &MemoryTable,
        pd: u32,
        sge: Sge,
        access: Access,
    ) -> Result<Segment, Fault> {
        if sge.len == 0 {
            return Ok(Segment::EMPTY);
        }
        self.find(table, sge.lkey)?.local(pd, sge.addr, sge.len, access)
    }

    /// Does the same as [`MemoryTable::resolve_remote`].
    ///
    /// # Errors
    /// Those of that method.
    #[inline]
    pub fn resolve_remote(
        &self,
        table: &MemoryTable,
        access: &RemoteAccess,
    ) -> Result<Segment, Fault> {
        if access.len == 0 {
            return Ok(Segment::EMPTY);
        }
        self.find(table, access.key.rkey)?.remote(access)
    }
}

impl Default for KeyCache {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for KeyCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyCache").field("generation", &self.generation).finish_non_exhaustive()
    }
}
