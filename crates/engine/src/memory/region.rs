//! The objects behind keys.

use std::sync::atomic::{AtomicU32, Ordering};

use polypath_transport::{Access, Fault, FlushScope, RemoteAccess, RemoteKey};

use super::segment::Segment;
use super::{null, probe};

/// A value that keeps memory as long as it lives.
pub type Keeper = Box<dyn std::fmt::Debug + Send + Sync>;

/// The kind of memory behind a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// Pages that were present at registration.
    Resident,
    /// Pages that may be absent, so check them before each access.
    OnDemand,
    /// No memory: reads return zeroes, writes have no effect.
    Null,
}

/// A memory region, with the properties of its last registration.
#[derive(Debug)]
pub struct Region {
    pub(super) grant: Grant,
    /// A value that must live as long as the region is registered.
    pub(super) keeper: Option<Keeper>,
    /// The number of windows that are bound to it. It changes only under the table's write lock.
    pub(super) windows: AtomicU32,
}

impl Region {
    /// The key, local and remote.
    pub fn key(&self) -> u32 {
        self.grant.key
    }

    /// Protection domain.
    pub fn pd(&self) -> u32 {
        self.grant.pd
    }

    /// The address of the first byte in the process. For a page list, it is an address that only
    /// accesses understand.
    pub fn addr(&self) -> usize {
        self.grant.base as usize
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.grant.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.grant.len == 0
    }

    /// Address that work requests use for the first byte.
    pub fn iova(&self) -> u64 {
        self.grant.start
    }

    /// The access rights, local and remote.
    pub fn access(&self) -> Access {
        self.grant.access
    }

    /// Whether it can't be reregistered, because its memory is not the program's.
    pub fn is_fixed(&self) -> bool {
        self.keeper.is_some() || self.grant.backing == Backing::Null
    }

    /// Whether it keeps its memory alive.
    pub fn is_kept(&self) -> bool {
        self.keeper.is_some()
    }

    /// The number of memory windows that are bound to it.
    pub fn windows(&self) -> u32 {
        self.windows.load(Ordering::Relaxed)
    }
}

/// The rights of a valid key. It has everything that a check needs, and is small enough to be
/// copied into a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) key: u32,
    pub(super) pd: u32,
    /// The address of the first byte in the process.
    pub(super) base: u64,
    /// The address that requests use for the first byte.
    pub(super) start: u64,
    /// The length in bytes.
    pub(super) len: u64,
    pub(super) access: Access,
    /// The only queue pair that may use it (for type 2 windows).
    pub(super) qpn: Option<u32>,
    /// Whether it is a window's key: peers may use it, but local work requests may not.
    pub(super) window: bool,
    pub(super) backing: Backing,
}

impl Grant {
    /// Checks a range and converts it to an address of the process.
    #[inline]
    fn range(&self, va: u64, len: u32, write: bool) -> Result<Segment, Fault> {
        let offset = va.wrapping_sub(self.start);
        // The `offset` of an address before the start wraps to a huge number. So it is rejected
        // like those beyond the end.
        if offset > self.len || u64::from(len) > self.len - offset {
            return Err(Fault::Range);
        }
        let addr = self.base.wrapping_add(offset);
        match self.backing {
            Backing::Resident => Ok(Segment::checked(addr, len)),
            Backing::OnDemand if probe::present(addr as usize, len as usize, write) => {
                Ok(Segment::checked(addr, len))
            }
            Backing::OnDemand => Err(Fault::Range),
            Backing::Null => match null::address(write) {
                Some(addr) => Ok(Segment::checked(addr, len)),
                None => Err(Fault::Range),
            },
        }
    }

    /// Checks a local scatter/gather element.
    #[inline]
    pub(super) fn local(
        &self,
        pd: u32,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<Segment, Fault> {
        if self.pd != pd || self.window {
            return Err(Fault::Key);
        }
        if !self.access.contains(access) {
            return Err(Fault::Rights);
        }
        self.range(va, len, access.contains(Access::LOCAL_WRITE))
    }

    /// Whether requests of that protection domain to that queue pair may use the key.
    #[inline]
    fn is_for(&self, key: RemoteKey) -> bool {
        self.pd == key.pd && self.qpn.is_none_or(|bound| bound == key.qpn)
    }

    /// Checks a peer's FLUSH. It accesses no memory, so pages need not be present.
    pub(super) fn flush(
        &self,
        key: RemoteKey,
        scope: FlushScope,
        rights: Access,
    ) -> Result<(), Fault> {
        if !self.is_for(key) {
            return Err(Fault::Key);
        }
        if !self.access.contains(rights) {
            return Err(Fault::Rights);
        }
        match scope {
            FlushScope::Region => Ok(()),
            FlushScope::Range { va, len } => {
                let offset = va.wrapping_sub(self.start);
                let within = offset <= self.len && u64::from(len) <= self.len - offset;
                if within { Ok(()) } else { Err(Fault::Range) }
            }
        }
    }

    /// Checks a peer's request.
    #[inline]
    pub(super) fn remote(&self, access: &RemoteAccess) -> Result<Segment, Fault> {
        let RemoteAccess { key, va, len, rights } = *access;
        if !self.is_for(key) {
            return Err(Fault::Key);
        }
        if !self.access.contains(rights) {
            return Err(Fault::Rights);
        }
        let write = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let segment = self.range(va, len, write)?;
        // The virtual address is aligned (the transport checks it), but the region may not be.
        if rights.contains(Access::REMOTE_ATOMIC) && !segment.start().is_multiple_of(8) {
            return Err(Fault::Range);
        }
        Ok(segment)
    }
}
