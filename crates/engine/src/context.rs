//! An open device, which creates the objects of verbs.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use polypath_topology::DeviceSpec;
use polypath_transport::RemoteKey;
use polypath_verbs::{
    AddressHandle, AhAttr, AsyncEvent, CompletionChannel, CompletionQueue, Context, CqRequest,
    DeviceAttr, DeviceInfo, DeviceMemory, Error, GidEntry, MemoryRegion, MrRequest, MwBind,
    PagesRequest, PortAttr, QpRequest, QpType, QueuePair, Result, SharedReceiveQueue, SrqRequest,
    ThawRequest, XrcDomain, XrcSrq, XrcdRequest,
};

use crate::channel::Channel;
use crate::clock;
use crate::context_inner::ContextInner;
use crate::cq::Cq;
use crate::dm::Dm;
use crate::drive::Drive;
use crate::engine_inner::EngineInner;
use crate::error::os_error;
use crate::limits::MAX_PD;
use crate::memory::{BindInfo, WindowType};
use crate::mr::Mr;
use crate::notify::lock;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::xrc::target::XrcTarget;
use crate::xrc::{Membership, Xrcd};
use crate::{device, port};

/// The next number of a protection domain. Numbers are unique in the process, because XRC passes
/// them between contexts, and because one of another engine must not be mistaken for one of this
/// engine.
static NEXT_PD: AtomicU32 = AtomicU32::new(1);

/// The next number that the context has not `taken`. After 2^32 the numbers begin again at 1, and those
/// of other contexts may come twice.
fn free_pd(next: &AtomicU32, taken: impl Fn(u32) -> bool) -> u32 {
    loop {
        let pd = next.fetch_add(1, Ordering::Relaxed);
        if pd != 0 && !taken(pd) {
            return pd;
        }
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    engine: Arc<EngineInner>,
    shared: Arc<ContextInner>,
}

impl OpenDevice {
    pub(crate) fn open(
        engine: &Arc<EngineInner>,
        info: &DeviceInfo,
        spec: DeviceSpec,
    ) -> Result<Arc<Self>> {
        let shared = ContextInner::new(engine.lanes.driver(), info, spec)?;
        engine.register(&shared)?;
        Ok(Arc::new(Self { engine: engine.clone(), shared }))
    }

    fn make_qp(&self, request: &QpRequest, number: Option<u32>) -> Result<Arc<dyn QueuePair>> {
        let (engine, context) = (&self.engine, &self.shared);
        if request.qp_type == QpType::XrcRecv {
            return Ok(XrcTarget::create(engine, context, request, number)?);
        }
        Ok(Arc::new(Qp::create(engine, context, request, number, None)?))
    }
}

/// The membership of a shared receive queue in an XRC domain.
fn membership(xrc: &XrcSrq, lanes: &Arc<dyn Drive>) -> Result<Membership> {
    let (cq, xrcd) = (Cq::find(xrc.cq.as_ref(), lanes)?, Xrcd::find(xrc.domain.as_ref(), lanes)?);
    Ok(Membership { cq, xrcd })
}

impl Context for OpenDevice {
    fn attributes(&self) -> DeviceAttr {
        let ports = self.shared.spec().ports.len();
        device::attributes(&self.shared.info, u8::try_from(ports).unwrap_or(u8::MAX))
    }

    fn close(&self) {
        self.shared.close_memory();
    }

    fn query_port(&self, port: u8) -> Result<PortAttr> {
        let (spec, table) = (self.shared.spec(), self.engine.table());
        let violations = self.engine.key_violations(&self.shared.info);
        Ok(port::attributes(port::of(&spec, port)?, &table, violations))
    }

    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        port::of(&self.shared.spec(), port)?;
        if index as usize >= polypath_topology::GID_TABLE_LEN {
            return Err(Error::invalid("the GID index is beyond the end of the table"));
        }
        Ok(self.gid_table().into_iter().find(|e| (e.port, e.index) == (port, index)))
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        port::gids(&self.shared.spec())
    }

    fn async_fd(&self) -> RawFd {
        self.shared.events.fd()
    }

    fn take_async_event(&self) -> Option<AsyncEvent> {
        self.shared.events.take()
    }

    fn clock_ns(&self) -> u64 {
        clock::realtime_ns(clock::now())
    }

    fn alloc_pd(&self) -> Result<u32> {
        let mut pds = lock(&self.shared.pds);
        if pds.len() >= MAX_PD as usize {
            return Err(Error::no_memory("the device has no protection domains left"));
        }
        let pd = free_pd(&NEXT_PD, |pd| pds.contains_key(&pd));
        pds.insert(pd, 0);
        Ok(pd)
    }

    fn dealloc_pd(&self, pd: u32) -> Result<()> {
        let mut pds = lock(&self.shared.pds);
        match pds.get(&pd) {
            None => Err(Error::invalid("no such protection domain in this context")),
            Some(0) => {
                pds.remove(&pd);
                Ok(())
            }
            Some(n) => Err(Error::busy(format!("{n} objects still use the protection domain"))),
        }
    }

    #[allow(unsafe_code)]
    unsafe fn reg_mr(&self, request: &MrRequest) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Mr::register(&self.shared, request)?))
    }

    #[allow(unsafe_code)]
    unsafe fn reg_mr_with_key(
        &self,
        request: &MrRequest,
        key: u32,
    ) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Mr::register_with_key(&self.shared, request, key)?))
    }

    #[allow(unsafe_code)]
    unsafe fn reg_pages(&self, request: &PagesRequest<'_>) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Mr::register_pages(&self.shared, request)?))
    }

    fn reg_dmabuf_mr(
        &self,
        request: &MrRequest,
        fd: RawFd,
        offset: u64,
    ) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Mr::register_dmabuf(&self.shared, request, fd, offset)?))
    }

    fn alloc_null_mr(&self, pd: u32) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Mr::make(&self.shared, pd, |memory| memory.register_null(pd))?))
    }

    fn alloc_dm(&self, len: u64, log_align: u32) -> Result<Arc<dyn DeviceMemory>> {
        Ok(Arc::new(Dm::alloc(&self.shared, len, log_align)?))
    }

    fn import_pd(&self, pd: u32) -> Result<()> {
        self.shared.check_pd(pd)
    }

    fn import_mr(&self, pd: u32, handle: u32) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Mr::import(&self.shared, pd, handle)?))
    }

    fn import_dm(&self, handle: u32) -> Result<Arc<dyn DeviceMemory>> {
        Ok(Arc::new(Dm::import(&self.shared, handle)?))
    }

    fn alloc_mw(&self, pd: u32, mw_type: u8) -> Result<(u32, u32)> {
        self.shared.use_pd(pd)?;
        let kind = match mw_type {
            1 => WindowType::Type1,
            2 => WindowType::Type2,
            _ => {
                self.shared.release_pd(pd);
                return Err(Error::invalid("memory windows are of type 1 or 2"));
            }
        };
        self.shared.memory.alloc_window(pd, kind).inspect_err(|_| self.shared.release_pd(pd))
    }

    fn dealloc_mw(&self, mw: u32) -> Result<()> {
        let pd = self.shared.memory.window_pd(mw);
        let lanes = &self.shared.lanes;
        self.shared.memory.dealloc_window(mw, || lanes.barrier())?;
        if let Some(pd) = pd {
            self.shared.release_pd(pd);
        }
        Ok(())
    }

    fn stage_bind(&self, pd: u32, qpn: u32, mw: u32, rkey: u32, bind: &MwBind) -> Result<u32> {
        let info =
            BindInfo { region: bind.region, addr: bind.addr, len: bind.len, access: bind.access };
        self.shared.memory.stage_bind(mw, RemoteKey { pd, qpn, rkey }, info)
    }

    fn unstage_bind(&self, qpn: u32, mw: u32, rkey: u32) {
        self.shared.memory.unstage_bind(mw, qpn, rkey);
    }

    fn create_ah(&self, pd: u32, attr: &AhAttr) -> Result<Arc<AddressHandle>> {
        crate::address::resolve(&self.shared.spec(), attr)?;
        // An address handle uses nothing of its protection domain, so it does not keep it alive.
        self.shared.check_pd(pd)?;
        let place: Box<dyn std::any::Any + Send + Sync> = Box::new(self.shared.ahs.take()?);
        Ok(Arc::new(AddressHandle {
            pd,
            attr: *attr,
            resolved: AtomicU64::new(0),
            place: Some(place),
        }))
    }

    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        Ok(Arc::new(Channel::new().map_err(|e| os_error(&e))?))
    }

    fn create_cq(&self, request: &CqRequest) -> Result<Arc<dyn CompletionQueue>> {
        let place = self.shared.cqs.take()?;
        let lanes = self.shared.lanes.clone();
        Ok(Cq::new(request, self.shared.owner(), lanes, Some(place))?)
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<Arc<dyn SharedReceiveQueue>> {
        let place = self.shared.srqs.take()?;
        self.shared.use_pd(request.pd)?;
        let owner = self.shared.owner();
        let place = Some(place);
        let srq = match &request.xrc {
            None => {
                let number = self.shared.next_srq.fetch_add(1, Ordering::Relaxed);
                Srq::new(request, number, owner, place, None)
            }
            Some(xrc) => membership(xrc, &self.shared.lanes).and_then(|membership| {
                membership.begin(&self.shared, |number, membership| {
                    Srq::new(request, number, owner, place, Some(Box::new(membership)))
                })
            }),
        };
        if srq.is_err() {
            self.shared.release_pd(request.pd);
        }
        Ok(srq?)
    }

    fn create_qp(&self, request: &QpRequest) -> Result<Arc<dyn QueuePair>> {
        self.make_qp(request, None)
    }

    fn thaw_qp(&self, request: &ThawRequest, frozen: &[u8]) -> Result<Arc<dyn QueuePair>> {
        Ok(Arc::new(Qp::thaw(&self.engine, &self.shared, request, frozen)?))
    }

    fn create_qp_with_number(
        &self,
        request: &QpRequest,
        number: u32,
    ) -> Result<Arc<dyn QueuePair>> {
        self.make_qp(request, Some(number))
    }

    fn open_xrcd(&self, request: &XrcdRequest) -> Result<Arc<dyn XrcDomain>> {
        Ok(Xrcd::open(&self.engine.xrc_domains, &self.shared, request)?)
    }

    fn open_qp(&self, domain: &dyn XrcDomain, qpn: u32, token: u64) -> Result<Arc<dyn QueuePair>> {
        let domain = Xrcd::find(domain, &self.shared.lanes)?;
        Ok(XrcTarget::open(&self.shared, &domain, qpn, token)?)
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_in_use_is_not_given_again_when_the_numbers_are_used_up() {
        let next = AtomicU32::new(u32::MAX - 1);
        let mut taken = vec![1, 2];
        for wanted in [u32::MAX - 1, u32::MAX, 3] {
            let pd = free_pd(&next, |pd| taken.contains(&pd));
            assert_eq!(pd, wanted);
            taken.push(pd);
        }
    }
}
