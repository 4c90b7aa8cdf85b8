//! The keys of one open device.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, PoisonError};

use polypath_transport::{Access, Fault, FlushScope, RemoteAccess, RemoteKey, Sge};
use polypath_verbs::{Error, Result};

use crate::sync::{AtomicU64, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::names::{NameHasher, free_name, given_name, key_of, name_of, refuse_nameless};
use super::page_list;
use super::region::{Backing, Grant, Keeper, Region};
use super::segment::Segment;
use super::window::{BindInfo, Bound, STAGED_BINDS_MAX, Window, WindowType};
use super::{null, probe, signals};

/// The largest number of regions of one open device. Regions and windows are few compared with the
/// 2^24 names, so that a random name is free at almost every first try.
pub const REGIONS_MAX: usize = 1 << 20;

/// The largest number of windows of one open device.
pub const WINDOWS_MAX: usize = 1 << 16;

const EFAULT: i32 = 14;
const EBADF: i32 = 9;

/// The memory regions and windows of one open device.
///
/// It may be used from any thread at any time. Checks take a read lock; a user with many checks
/// keeps a [`KeyCache`](super::KeyCache).
#[derive(Debug, Default)]
pub struct MemoryTable {
    names: RwLock<Names>,
    /// The number of windows among the names. It changes only under the write lock.
    windows: AtomicUsize,
    generation: AtomicU64,
    /// Whether nothing can be added any more. It changes only under the write lock.
    closed: AtomicBool,
}

type Names = HashMap<u32, Named, BuildHasherDefault<NameHasher>>;

#[derive(Debug)]
enum Named {
    Region(Arc<Region>),
    Window(Window),
}

impl MemoryTable {
    /// A table without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// A number that changes whenever a key is given less or different rights.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Registers `len` bytes at `addr`. Work requests address them from `iova` on (from 0 with
    /// `ZERO_BASED`). Address 0 and length `usize::MAX` with `ON_DEMAND` is the whole address
    /// space.
    ///
    /// # Errors
    /// `EINVAL` for remote write rights without `LOCAL_WRITE`, or a range that wraps; `EFAULT` if
    /// the memory is missing, or may not be accessed this way; `ENOMEM` for more than
    /// [`REGIONS_MAX`].
    pub fn register(
        &self,
        pd: u32,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Region>> {
        self.insert(new_grant(pd, addr, len, iova, access)?, None)
    }

    /// Does the same as [`MemoryTable::register`], with a key that peers may already know.
    ///
    /// # Errors
    /// Those of that method; `EADDRINUSE` if another region or window has a key with that name;
    /// `EINVAL` if the name is 0.
    pub fn register_with_key(
        &self,
        pd: u32,
        (addr, len): (usize, usize),
        iova: u64,
        access: Access,
        key: u32,
    ) -> Result<Arc<Region>> {
        refuse_nameless(key)?;
        let grant = Grant { key, ..new_grant(pd, addr, len, iova, access)? };
        self.insert(grant, None)
    }

    /// Does the same as [`MemoryTable::register`] for memory that `keeper` keeps until the region
    /// is deregistered. The region can't be reregistered.
    ///
    /// # Errors
    /// Those of that method.
    pub fn register_kept(
        &self,
        pd: u32,
        (addr, len): (usize, usize),
        iova: u64,
        access: Access,
        keeper: Keeper,
    ) -> Result<Arc<Region>> {
        self.insert(new_grant(pd, addr, len, iova, access)?, Some(keeper))
    }

    /// Registers a null region of any address and length: local reads return zeroes, local writes
    /// have no effect.
    ///
    /// # Errors
    /// `ENOMEM` for more than [`REGIONS_MAX`], or if there is not enough address space.
    pub fn register_null(&self, pd: u32) -> Result<Arc<Region>> {
        if !null::prepare() {
            return Err(Error::no_memory("no address space for a null memory region"));
        }
        let grant = Grant {
            key: 0,
            pd,
            base: 0,
            start: 0,
            len: u64::MAX,
            access: Access::LOCAL_WRITE,
            qpn: None,
            window: false,
            backing: Backing::Null,
        };
        self.insert(grant, None)
    }

    /// Adds a region. If its key is 0, it gets a new one.
    pub(super) fn insert(&self, grant: Grant, keeper: Option<Keeper>) -> Result<Arc<Region>> {
        signals::install();
        let mut names = self.write();
        self.check_open()?;
        if names.len() - self.windows.load(Ordering::Relaxed) >= REGIONS_MAX {
            return Err(Error::no_memory("too many memory regions on one open device"));
        }
        let (name, key) = match grant.key {
            0 => free_name(|name| names.contains_key(&name))?,
            key => given_name(key, |name| names.contains_key(&name))?,
        };
        let grant = Grant { key, ..grant };
        let region = Arc::new(Region { grant, keeper, windows: AtomicU32::new(0) });
        names.insert(name, Named::Region(Arc::clone(&region)));
        Ok(region)
    }

    /// Changes a region; `None` keeps a property. The key stays the same. `range` is address,
    /// length and iova. `barrier` takes every lane's lock once, as for [`MemoryTable::deregister`].
    /// Returns the region as it was before.
    ///
    /// # Errors
    /// `EBUSY` while windows are bound to it; `EINVAL` if there is no such region, or its memory is
    /// not the program's (device memory, a DMA-BUF, a null region); and those of
    /// [`MemoryTable::register`]. The region is then unchanged.
    pub fn reregister(
        &self,
        key: u32,
        pd: Option<u32>,
        range: Option<(usize, usize, u64)>,
        access: Option<Access>,
        barrier: impl FnOnce(),
    ) -> Result<Arc<Region>> {
        let old = self.region(key).ok_or_else(no_region)?;
        if old.is_fixed() {
            return Err(Error::invalid("only regions of the program's memory can be changed"));
        }
        let (addr, len, iova) =
            range.unwrap_or_else(|| (old.addr(), old.len() as usize, old.iova()));
        let grant = new_grant(
            pd.unwrap_or_else(|| old.pd()),
            addr,
            len,
            iova,
            access.unwrap_or_else(|| old.access()),
        )?;
        let grant = Grant { key, ..grant };
        let region = Arc::new(Region { grant, keeper: None, windows: AtomicU32::new(0) });
        {
            let mut names = self.write();
            match names.get_mut(&name_of(key)) {
                Some(Named::Region(current)) if Arc::ptr_eq(current, &old) => {
                    refuse_bound(current)?;
                    *current = Arc::clone(&region);
                }
                _ => return Err(no_region()),
            }
            self.changed();
        }
        barrier();
        Ok(old)
    }

    /// Removes a region. `barrier` must take and release every lane's lock once. It is called when
    /// no new access can begin, and when it has returned, no earlier access is left. Returns the
    /// region as it was before.
    ///
    /// # Errors
    /// `EBUSY` while windows are bound to it; `EINVAL` if there is no such region.
    pub fn deregister(&self, key: u32, barrier: impl FnOnce()) -> Result<Arc<Region>> {
        let region = {
            let mut names = self.write();
            match names.entry(name_of(key)) {
                MapEntry::Occupied(entry) => match entry.get() {
                    Named::Region(region) if region.key() == key => {
                        refuse_bound(region)?;
                        let region = Arc::clone(region);
                        entry.remove();
                        self.changed();
                        region
                    }
                    _ => return Err(no_region()),
                },
                MapEntry::Vacant(_) => return Err(no_region()),
            }
        };
        barrier();
        Ok(region)
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(EBADF, "the device was closed"));
        }
        Ok(())
    }

    /// Removes everything for good, because the device is closed. `barrier` is the same as for
    /// [`MemoryTable::deregister`]. Returns the protection domain of each region and window that it
    /// had.
    pub fn close(&self, barrier: impl FnOnce()) -> Vec<u32> {
        let gone = {
            let mut names = self.write();
            self.closed.store(true, Ordering::Relaxed);
            self.windows.store(0, Ordering::Relaxed);
            self.changed();
            std::mem::take(&mut *names)
        };
        barrier();
        let pd = |named: &Named| match named {
            Named::Region(region) => region.pd(),
            Named::Window(window) => window.pd,
        };
        gone.values().map(pd).collect()
    }

    /// The region that a key names.
    pub fn region(&self, key: u32) -> Option<Arc<Region>> {
        match self.read().get(&name_of(key)) {
            Some(Named::Region(region)) if region.key() == key => Some(Arc::clone(region)),
            _ => None,
        }
    }

    /// Whether any region or window belongs to the protection domain.
    pub fn uses_pd(&self, pd: u32) -> bool {
        self.read().values().any(|named| match named {
            Named::Region(region) => region.pd() == pd,
            Named::Window(window) => window.pd == pd,
        })
    }

    /// The number of regions and windows.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether there are no regions and windows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Allocates an unbound window. Returns its number and its first rkey.
    ///
    /// # Errors
    /// `ENOMEM` for more than [`WINDOWS_MAX`].
    pub fn alloc_window(&self, pd: u32, kind: WindowType) -> Result<(u32, u32)> {
        let mut names = self.write();
        self.check_open()?;
        if self.windows.load(Ordering::Relaxed) >= WINDOWS_MAX {
            return Err(Error::no_memory("too many memory windows on one open device"));
        }
        let (name, key) = free_name(|name| names.contains_key(&name))?;
        let window =
            Window { pd, kind, key, bound: None, staged: std::collections::VecDeque::new() };
        names.insert(name, Named::Window(window));
        self.windows.fetch_add(1, Ordering::Relaxed);
        Ok((name, key))
    }

    /// Removes a window, whether it is bound or not. `barrier` is the same as for
    /// [`MemoryTable::deregister`].
    ///
    /// # Errors
    /// `EINVAL` if there is no such window.
    pub fn dealloc_window(&self, window: u32, barrier: impl FnOnce()) -> Result<()> {
        {
            let mut names = self.write();
            let MapEntry::Occupied(entry) = names.entry(window) else { return Err(no_window()) };
            if !matches!(entry.get(), Named::Window(_)) {
                return Err(no_window());
            }
            if let Named::Window(window) = entry.remove() {
                release(window.bound);
                self.windows.fetch_sub(1, Ordering::Relaxed);
            }
            self.changed();
        }
        barrier();
        Ok(())
    }

    /// The protection domain of a window.
    pub fn window_pd(&self, window: u32) -> Option<u32> {
        match self.read().get(&window) {
            Some(Named::Window(window)) => Some(window.pd),
            _ => None,
        }
    }

    /// Stores the parameters of a bind that is being posted, until [`MemoryTable::bind`] executes
    /// it. Returns the rkey that the window will get, of which only the low 8 bits are those of `key` (IBTA
    /// 10.6.7.2).
    ///
    /// # Errors
    /// `EINVAL` if there is no such window, or it belongs to another protection domain; `ENOMEM` for more
    /// than [`STAGED_BINDS_MAX`].
    pub fn stage_bind(&self, window: u32, key: RemoteKey, info: BindInfo) -> Result<u32> {
        let mut names = self.write();
        let Some(Named::Window(w)) = names.get_mut(&window) else { return Err(no_window()) };
        if w.pd != key.pd {
            return Err(Error::invalid("the window is of another protection domain"));
        }
        let rkey = key_of(window, key.rkey as u8);
        if w.staged.len() >= STAGED_BINDS_MAX {
            return Err(Error::no_memory("too many posted binds of one window"));
        }
        w.staged.push_back((key.qpn, rkey, info));
        Ok(rkey)
    }

    /// Removes the queue pair's latest staged bind with `key`, because it was not posted after all.
    pub fn unstage_bind(&self, window: u32, qpn: u32, key: u32) {
        if let Some(Named::Window(w)) = self.write().get_mut(&window)
            && let Some(at) = w.staged.iter().rposition(|&(q, k, _)| (q, k) == (qpn, key))
        {
            w.staged.remove(at);
        }
    }

    /// Removes the queue pair's oldest staged bind with `key`, because it was flushed.
    pub fn cancel_bind(&self, window: u32, qpn: u32, key: u32) {
        if let Some(Named::Window(w)) = self.write().get_mut(&window)
            && let Some(at) = w.staged.iter().position(|&(q, k, _)| (q, k) == (qpn, key))
        {
            w.staged.remove(at);
        }
    }

    /// Executes the queue pair's oldest staged bind of `window` with `key`.
    ///
    /// # Errors
    /// Nothing is staged, the protection domain is another one, the window is of type 2 and already
    /// bound, or the region does not allow the bind.
    pub fn bind(&self, window: u32, key: RemoteKey) -> core::result::Result<(), Fault> {
        let RemoteKey { pd, qpn, rkey: key } = key;
        let mut names = self.write();
        let Some(Named::Window(w)) = names.get_mut(&window) else { return Err(Fault::Key) };
        let at = w.staged.iter().position(|&(q, k, _)| (q, k) == (qpn, key)).ok_or(Fault::Key)?;
        let (_, _, info) = w.staged.remove(at).ok_or(Fault::Key)?;
        if w.pd != pd {
            return Err(Fault::Key);
        }
        // A type 2 window must be invalidated before it is bound again (o10-37.2.30), and is never bound to
        // nothing. Its user chooses the last byte of its key, and may choose the one that it has.
        if w.kind == WindowType::Type2 && w.bound.is_some() {
            return Err(Fault::Key);
        }
        let bound = if info.len == 0 {
            if w.kind == WindowType::Type2 {
                return Err(Fault::Range);
            }
            None
        } else {
            let Some(Named::Region(region)) = names.get(&name_of(info.region)) else {
                return Err(Fault::Key);
            };
            let region = Arc::clone(region);
            if region.key() != info.region {
                return Err(Fault::Key);
            }
            let Some(Named::Window(w)) = names.get(&window) else { return Err(Fault::Key) };
            let grant = w.grant(qpn, key, &region, &info)?;
            Some(Bound { region, grant })
        };
        if let Some(bound) = &bound {
            bound.region.windows.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(Named::Window(w)) = names.get_mut(&window) {
            w.key = key;
            release(std::mem::replace(&mut w.bound, bound));
        }
        self.changed();
        Ok(())
    }

    /// Invalidates a type 2 window's key (SEND with invalidate, local invalidate). The keys of
    /// ordinary regions and type 1 windows can't be invalidated (IBTA 10.6.6).
    ///
    /// The lane that executes the invalidation calls this. Accesses under the key that other lanes
    /// have in progress end with their current turn.
    ///
    /// # Errors
    /// The key is not of this protection domain, not of this queue pair, or its window is not
    /// bound.
    pub fn invalidate(&self, key: RemoteKey) -> core::result::Result<(), Fault> {
        let RemoteKey { pd, qpn, rkey } = key;
        let mut names = self.write();
        match names.get_mut(&name_of(rkey)) {
            Some(Named::Window(w)) if w.pd == pd && w.key == rkey => {
                if w.kind == WindowType::Type1 {
                    return Err(Fault::Rights);
                }
                if w.bound.as_ref().is_none_or(|bound| bound.grant.qpn != Some(qpn)) {
                    return Err(Fault::Key);
                }
                release(w.bound.take());
                self.changed();
                Ok(())
            }
            Some(Named::Region(region)) if region.pd() == pd && region.key() == rkey => {
                Err(Fault::Rights)
            }
            _ => Err(Fault::Key),
        }
    }

    /// Whether a window is bound to a queue pair, or a bind is posted to it and not yet executed.
    pub fn has_windows_of(&self, qpn: u32) -> bool {
        let holds = |named: &Named| match named {
            Named::Window(w) => {
                let bound = w.bound.as_ref().is_some_and(|bound| bound.grant.qpn == Some(qpn));
                bound || w.staged.iter().any(|&(q, ..)| q == qpn)
            }
            Named::Region(_) => false,
        };
        self.windows.load(Ordering::Relaxed) > 0 && self.read().values().any(holds)
    }

    /// Invalidates all type 2 windows that are bound to a queue pair, which is being destroyed, and
    /// removes its staged binds: a program may destroy it before it posts them.
    pub fn forget_qp(&self, qpn: u32) {
        // Most programs have no windows, and some have a hundred thousand regions to search. A
        // window that is bound to this queue pair was allocated long ago, so the counter shows it.
        if self.windows.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut names = self.write();
        let mut changed = false;
        for named in names.values_mut() {
            let Named::Window(w) = named else { continue };
            w.staged.retain(|&(q, ..)| q != qpn);
            if w.bound.as_ref().is_some_and(|bound| bound.grant.qpn == Some(qpn)) {
                release(w.bound.take());
                changed = true;
            }
        }
        if changed {
            self.changed();
        }
    }

    /// Checks a local scatter/gather element. `access` is `LOCAL_WRITE` if the element will be
    /// written, and empty if it is only read. An element without bytes is always valid.
    ///
    /// # Errors
    /// The key, the rights or the range are wrong.
    pub fn resolve(
        &self,
        pd: u32,
        sge: Sge,
        access: Access,
    ) -> core::result::Result<Segment, Fault> {
        if sge.len == 0 {
            return Ok(Segment::EMPTY);
        }
        self.find(sge.lkey)?.local(pd, sge.addr, sge.len, access)
    }

    /// Checks a peer's request to a queue pair. With `REMOTE_ATOMIC` the memory is 8-aligned.
    ///
    /// # Errors
    /// The key, the rights or the range are wrong.
    pub fn resolve_remote(&self, access: &RemoteAccess) -> core::result::Result<Segment, Fault> {
        if access.len == 0 {
            return Ok(Segment::EMPTY);
        }
        self.find(access.key.rkey)?.remote(access)
    }

    /// Checks a peer's FLUSH to a queue pair. Even a FLUSH of no bytes needs a valid key.
    ///
    /// # Errors
    /// The key, the rights or the range are wrong.
    pub fn check_flush(
        &self,
        key: RemoteKey,
        scope: FlushScope,
        rights: Access,
    ) -> core::result::Result<(), Fault> {
        self.find(key.rkey)?.flush(key, scope, rights)
    }

    /// The current rights of a key.
    pub(super) fn find(&self, key: u32) -> core::result::Result<Grant, Fault> {
        let grant = match self.read().get(&name_of(key)) {
            Some(Named::Region(region)) => region.grant,
            Some(Named::Window(Window { bound: Some(bound), .. })) => bound.grant,
            _ => return Err(Fault::Key),
        };
        if grant.key == key { Ok(grant) } else { Err(Fault::Key) }
    }

    /// Notes a change. Call this under the write lock, so that a thread that sees the new
    /// generation also sees the change.
    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    // A panic under the lock can't leave the map inconsistent, because all changes are single
    // operations.
    fn read(&self) -> RwLockReadGuard<'_, Names> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Names> {
        self.names.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the rights, and that addresses do not wrap. Returns the address of the first byte.
pub(super) fn check_range(len: usize, iova: u64, access: Access) -> Result<u64> {
    let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::invalid("REMOTE_WRITE and REMOTE_ATOMIC want LOCAL_WRITE too"));
    }
    let start = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    if start.checked_add(len as u64).is_none() {
        return Err(Error::invalid("the range wraps around the address space"));
    }
    Ok(start)
}

/// Checks a registration. The caller fills in the key.
fn new_grant(pd: u32, addr: usize, len: usize, iova: u64, access: Access) -> Result<Grant> {
    let on_demand = access.contains(Access::ON_DEMAND);
    let everything = on_demand && addr == 0 && len == usize::MAX;
    let start = check_range(if everything { 0 } else { len }, iova, access)?;
    // The range must be in the process. Addresses of page lists are not.
    let end = addr.checked_add(len).filter(|end| !page_list::is_listed(*end as u64));
    if end.is_none() && !everything {
        return Err(Error::invalid("the range wraps around the address space"));
    }
    if !on_demand && !probe::accessible(addr, len, access.contains(Access::LOCAL_WRITE)) {
        return Err(Error::new(
            EFAULT,
            "part of the range is not mapped, or is read-only and LOCAL_WRITE was asked for",
        ));
    }
    Ok(Grant {
        key: 0,
        pd,
        base: addr as u64,
        start,
        len: len as u64,
        access,
        qpn: None,
        window: false,
        backing: if on_demand { Backing::OnDemand } else { Backing::Resident },
    })
}

fn refuse_bound(region: &Region) -> Result<()> {
    match region.windows() {
        0 => Ok(()),
        n => Err(Error::busy(format!("{n} memory windows are bound to the region"))),
    }
}

fn release(bound: Option<Bound>) {
    if let Some(bound) = bound {
        bound.region.windows.fetch_sub(1, Ordering::Relaxed);
    }
}

fn no_region() -> Error {
    Error::invalid("no such memory region")
}

fn no_window() -> Error {
    Error::invalid("no such memory window")
}
