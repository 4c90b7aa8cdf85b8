//! Memory regions as the verbs know them.

use std::sync::Arc;

use polypath_verbs::{Access, Error, MemoryRegion, MrRequest, PagesRequest, Result};

use crate::context_inner::ContextInner;
use crate::memory::{DmaBuf, MemoryTable, PageList, PageRange, Region};

/// A handle of a memory region. There may be several of one region (`ibv_import_mr`); whoever
/// deregisters it first, does.
#[derive(Debug)]
pub(crate) struct Mr {
    context: Arc<ContextInner>,
    key: u32,
    /// A null region is no peer's.
    rkey: u32,
    len: usize,
}

impl Mr {
    /// Registers by `make`, which is given the context's table.
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

    /// As [`Mr::register`], with this key.
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

    /// A region of pages.
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

    /// `ibv_reg_dmabuf_mr`. The ways to register that mean something to a DMA-BUF are few.
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
            // The old domain has a user less, or the new one never got one.
            (Ok(old), Some(_)) => self.context.release_pd(old.pd()),
            (Err(_), Some(pd)) => self.context.release_pd(pd),
            (_, None) => {}
        }
        done.map(drop)
    }

    fn deregister(&self) -> Result<()> {
        let lanes = &self.context.lanes;
        // What a lane has checked and not yet sent is sent before it gives its lock back.
        let gone = self.context.memory.deregister(self.key, || lanes.barrier())?;
        self.context.release_pd(gone.pd());
        Ok(())
    }
}
