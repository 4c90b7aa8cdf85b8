//! Memory regions as the verbs know them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polypath_verbs::{Access, MemoryRegion, MrRequest, Result};

use crate::context::Shared;

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    context: Arc<Shared>,
    key: u32,
    pd: AtomicU32,
}

impl Mr {
    pub(crate) fn register(context: &Arc<Shared>, request: &MrRequest) -> Result<Self> {
        context.use_pd(request.pd)?;
        let MrRequest { pd, addr, len, iova, access } = *request;
        let region = context
            .memory
            .register(pd, addr, len, iova, access)
            .inspect_err(|_| context.release_pd(pd))?;
        Ok(Self { context: context.clone(), key: region.key(), pd: AtomicU32::new(pd) })
    }
}

impl MemoryRegion for Mr {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }

    fn reregister(
        &self,
        pd: Option<u32>,
        range: Option<(usize, usize, u64)>,
        access: Option<Access>,
    ) -> Result<()> {
        if let Some(pd) = pd {
            self.context.use_pd(pd)?;
        }
        let lanes = &self.context.process.lanes;
        let done = self.context.memory.reregister(self.key, pd, range, access, || lanes.barrier());
        if let Some(pd) = pd {
            let gone = if done.is_ok() { self.pd.swap(pd, Ordering::Relaxed) } else { pd };
            self.context.release_pd(gone);
        }
        done.map(drop)
    }

    fn deregister(&self) -> Result<()> {
        let lanes = &self.context.process.lanes;
        // What a lane has checked and not yet sent is sent before it gives its lock back.
        self.context.memory.deregister(self.key, || lanes.barrier())?;
        self.context.release_pd(self.pd.load(Ordering::Relaxed));
        Ok(())
    }
}
