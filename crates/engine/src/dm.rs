//! Device memory (`man 3 ibv_alloc_dm`): memory that programs access by copies and by regions of
//! it, but not by address. Here it is memory of the process. The limit applies to each open device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polypath_verbs::{Access, DeviceMemory, Error, MemoryRegion, Result};

use crate::context_inner::ContextInner;
use crate::dm_table::Memory;
use crate::limits::{MAX_DM, MAX_DM_BYTES};
use crate::memory::DeviceBytes;
use crate::mr::Mr;
use crate::notify::lock;

/// The alignment of copies and regions in bytes, as on the hardware that has device memory.
const ALIGNMENT: u64 = 4;

/// The keeper in a region of device memory: it counts the region as a user.
#[derive(Debug)]
struct InUse(Arc<Memory>);

impl InUse {
    fn new(memory: &Arc<Memory>) -> Self {
        memory.regions.fetch_add(1, Ordering::AcqRel);
        Self(memory.clone())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.regions.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A handle. One allocation may have several (`ibv_import_dm`).
#[derive(Debug)]
pub(crate) struct Dm {
    context: Arc<ContextInner>,
    memory: Arc<Memory>,
    handle: u32,
}

impl Dm {
    /// `ibv_alloc_dm`.
    pub(crate) fn alloc(context: &Arc<ContextInner>, len: u64, log_align: u32) -> Result<Self> {
        let bytes = usize::try_from(len).map_err(|_| too_much())?;
        let mut table = lock(&context.dm.0);
        let left = MAX_DM_BYTES - table.bytes;
        if len > left || table.by_handle.len() >= MAX_DM {
            return Err(too_much());
        }
        let bytes = DeviceBytes::new(bytes, log_align)?;
        let memory = Arc::new(Memory { bytes, regions: AtomicU32::new(0) });
        while table.last == 0 || table.by_handle.contains_key(&table.last) {
            table.last = table.last.wrapping_add(1);
        }
        let handle = table.last;
        table.by_handle.insert(handle, memory.clone());
        table.bytes += len;
        table.last = handle.wrapping_add(1);
        Ok(Self { context: context.clone(), memory, handle })
    }

    /// `ibv_import_dm`.
    pub(crate) fn import(context: &Arc<ContextInner>, handle: u32) -> Result<Self> {
        let memory = lock(&context.dm.0).by_handle.get(&handle).cloned();
        let memory = memory.ok_or_else(|| Error::invalid("no such device memory"))?;
        Ok(Self { context: context.clone(), memory, handle })
    }
}

fn too_much() -> Error {
    Error::no_memory("not enough device memory is left: free some, or allocate less")
}

fn check(aligned: bool) -> Result<()> {
    match aligned {
        true => Ok(()),
        false => Err(Error::new(libc::EFAULT, "device memory is accessed in units of four bytes")),
    }
}

fn outside() -> Error {
    Error::new(libc::EFAULT, "the range is not within the device memory")
}

impl DeviceMemory for Dm {
    fn handle(&self) -> u32 {
        self.handle
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        check((offset | data.len() as u64).is_multiple_of(ALIGNMENT))?;
        self.memory.bytes.write(offset, data).then_some(()).ok_or_else(outside)
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        check((offset | data.len() as u64).is_multiple_of(ALIGNMENT))?;
        self.memory.bytes.read(offset, data).then_some(()).ok_or_else(outside)
    }

    fn register(
        &self,
        pd: u32,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>> {
        const ALLOWED: Access = Access::LOCAL_WRITE
            .union(Access::REMOTE_WRITE)
            .union(Access::REMOTE_READ)
            .union(Access::REMOTE_ATOMIC)
            .union(Access::ZERO_BASED)
            .union(Access::RELAXED_ORDERING);
        if !access.contains(Access::ZERO_BASED) || !ALLOWED.contains(access) {
            return Err(Error::invalid("a region of device memory is zero-based"));
        }
        let room = self.memory.bytes.len();
        let offset = usize::try_from(offset).ok().filter(|offset| {
            offset.checked_add(len).is_some_and(|end| end <= room)
                && (*offset as u64).is_multiple_of(ALIGNMENT)
        });
        let offset =
            offset.ok_or_else(|| Error::invalid("the region is not within the device memory"))?;
        let mr = Mr::make(&self.context, pd, |memory| {
            let range = (self.memory.bytes.addr() + offset, len);
            memory.register_kept(pd, range, 0, access, Box::new(InUse::new(&self.memory)))
        })?;
        Ok(Arc::new(mr))
    }

    fn free(&self) -> Result<()> {
        let mut table = lock(&self.context.dm.0);
        let Some(memory) = table.by_handle.get(&self.handle) else {
            return Err(Error::invalid("no such device memory: it was freed"));
        };
        match memory.regions.load(Ordering::Acquire) {
            0 => {
                table.bytes -= memory.bytes.len() as u64;
                table.by_handle.remove(&self.handle);
                Ok(())
            }
            n => Err(Error::busy(format!("{n} memory regions of the device memory are left"))),
        }
    }
}
