//! Memory regions of verbs.

use std::sync::Arc;

use polypath_verbs::{Access, Error, MemoryRegion, MrRequest, PagesRequest, Result};

use crate::context_inner::ContextInner;
use crate::memory::{DmaBuf, MemoryTable, PageList, PageRange, Region};

/// A handle of a memory region. A region may have several handles (`ibv_import_mr`), and the first
/// one that deregisters it ends it.
#[derive(Debug)]
pub(crate) struct Mr {
    context: Arc<ContextInner>,
    key: u32,
    /// The remote key. A null region has none that peers could use.
    rkey: u32,
    len: usize,
}

impl Mr {
    /// Creates a region with `make`, which gets the context's table.
    pub(crate) fn make(
        context: &Arc<ContextInner>,
        pd: u32,
        make: impl FnOnce(&MemoryTable) -> Result<Arc<Region>>,
    ) -> Result<Self> {
        context.use_pd(pd)?;
        let region = make(&context.memory).inspect_err(|_| context.release_pd(pd))?;
        Ok(Self::of(context, &region))
    }

    fn of(context: &Arc<ContextInner>, region: &Region) -> Self {
        let key = region.key();
        let is_null = region.is_fixed() && !region.is_kept();
        let len = usize::try_from(region.len()).unwrap_or(usize::MAX);
        Self { context: context.clone(), key, rkey: if is_null { 0 } else { key }, len }
    }

    /// `ibv_reg_mr` and its relatives.
    pub(crate) fn register(context: &Arc<ContextInner>, request: &MrRequest) -> Result<Self> {
        let MrRequest { pd, addr, len, iova, access } = *request;
        Self::make(context, pd, |memory| memory.register(pd, addr, len, iova, access))
    }

    /// Does the same as [`Mr::register`], with this key.
    pub(crate) fn register_with_key(
        context: &Arc<ContextInner>,
        request: &MrRequest,
        key: u32,
    ) -> Result<Self> {
        let MrRequest { pd, addr, len, iova, access } = *request;
        Self::make(context, pd, |memory| {
            memory.register_with_key(pd, (addr, len), iova, access, key)
        })
    }

    /// Registers a region that consists of pages.
    pub(crate) fn register_pages(
        context: &Arc<ContextInner>,
        request: &PagesRequest<'_>,
    ) -> Result<Self> {
        let PagesRequest { pd, pages, page_size, offset, len, iova, access, key } = *request;
        Self::make(context, pd, |memory| {
            let pages = PageList::new(pages, page_size)?;
            memory.register_pages(pd, pages, PageRange { offset, len, iova }, access, key)
        })
    }

    /// Implements `ibv_reg_dmabuf_mr`. Only few access flags make sense for a DMA-BUF.
    pub(crate) fn register_dmabuf(
        context: &Arc<ContextInner>,
        request: &MrRequest,
        fd: i32,
        offset: u64,
    ) -> Result<Self> {
        const ALLOWED: Access = Access::LOCAL_WRITE
            .union(Access::REMOTE_WRITE)
            .union(Access::REMOTE_READ)
            .union(Access::REMOTE_ATOMIC)
            .union(Access::RELAXED_ORDERING);
        const PAGE: u64 = 4096;
        let MrRequest { pd, len, iova, access, .. } = *request;
        if !ALLOWED.contains(access) {
            return Err(Error::invalid("access flags that a DMA-BUF can't have"));
        }
        if iova % PAGE != offset % PAGE {
            return Err(Error::invalid("iova and offset differ within a page"));
        }
        Self::make(context, pd, |memory| {
            let mapped = DmaBuf::map(fd, offset, len, access.contains(Access::LOCAL_WRITE))?;
            let range = (mapped.addr(), len);
            memory.register_kept(pd, range, iova, access, Box::new(mapped))
        })
    }

    /// `ibv_import_mr`: another handle of a region of the protection domain.
    pub(crate) fn import(context: &Arc<ContextInner>, pd: u32, handle: u32) -> Result<Self> {
        let region = context.memory.region(handle).filter(|region| region.pd() == pd);
        let region = region
            .ok_or_else(|| Error::invalid("no such memory region in this protection domain"))?;
        Ok(Self::of(context, &region))
    }
}

impl MemoryRegion for Mr {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn len(&self) -> usize {
        self.len
    }

    #[allow(unsafe_code)]
    unsafe fn reregister(
        &self,
        pd: Option<u32>,
        range: Option<(usize, usize, u64)>,
        access: Option<Access>,
    ) -> Result<()> {
        if let Some(pd) = pd {
            self.context.use_pd(pd)?;
        }
        let lanes = &self.context.lanes;
        let done = self.context.memory.reregister(self.key, pd, range, access, || lanes.barrier());
        match (&done, pd) {
            // Either the old domain loses a user, or the new one does not get one.
            (Ok(old), Some(_)) => self.context.release_pd(old.pd()),
            (Err(_), Some(pd)) => self.context.release_pd(pd),
            (_, None) => {}
        }
        done.map(drop)
    }

    fn deregister(&self) -> Result<()> {
        let lanes = &self.context.lanes;
        // A lane sends what it has checked before it releases its lock.
        let gone = self.context.memory.deregister(self.key, || lanes.barrier())?;
        self.context.release_pd(gone.pd());
        Ok(())
    }
}
