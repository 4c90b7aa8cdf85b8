//! An open device: its objects, its memory, its events.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use polypath_topology::{DeviceSpec, Table};
use polypath_verbs::{
    AddressHandle, AhAttr, AsyncEvent, AsyncKind, CompletionChannel, CompletionQueue, Context,
    CqRequest, DeviceAttr, DeviceInfo, DeviceMemory, Element, Error, GidEntry, MemoryRegion,
    MrRequest, MwBind, PortAttr, QpRequest, QpType, QueuePair, Result, SharedReceiveQueue,
    SrqRequest, XrcDomain, XrcSrq, XrcdRequest,
};

use crate::channel::Channel;
use crate::clock;
use crate::cq::Cq;
use crate::dm::{Dm, DmTable};
use crate::engine::Inner;
use crate::events::Raise;
use crate::lanes::Lanes;
use crate::limits::{MAX_AH, MAX_CQ, MAX_PD, MAX_SRQ};
use crate::memory::{BindInfo, MemoryTable, WindowType};
use crate::mr::Mr;
use crate::notify::{NoticeQueue, lock};
use crate::qp::Qp;
use crate::quota::Quota;
use crate::srq::Srq;
use crate::target::XrcTarget;
use crate::xrc::{Membership, Xrcd};
use crate::{device, port};

/// Numbers of protection domains are the process's: XRC hands them from context to context, and none of
/// another engine is taken for one of ours.
static NEXT_PD: AtomicU32 = AtomicU32::new(1);

/// Packets for queue pairs of a context that were dropped for their keys.
#[derive(Debug, Default)]
pub(crate) struct KeyViolations {
    /// Datagrams with a wrong Q_Key (`qkey_viol_cntr`).
    pub(crate) qkey: AtomicU64,
    /// Packets with a wrong P_Key (`bad_pkey_cntr`).
    pub(crate) pkey: AtomicU64,
}

/// What all objects of a context share.
#[derive(Debug)]
pub(crate) struct ContextInner {
    pub(crate) engine: Arc<Inner>,
    pub(crate) info: DeviceInfo,
    spec: RwLock<Arc<DeviceSpec>>,
    pub(crate) memory: MemoryTable,
    pub(crate) dm: DmTable,
    events: NoticeQueue<AsyncEvent>,
    /// Users of each protection domain.
    pds: Mutex<HashMap<u32, u32>>,
    next_srq: AtomicU32,
    cqs: Arc<Quota>,
    srqs: Arc<Quota>,
    ahs: Arc<Quota>,
    pub(crate) violations: KeyViolations,
    /// The program has been told that the device is gone.
    gone: AtomicBool,
}

impl ContextInner {
    /// The device as it is now: members and GIDs.
    pub(crate) fn spec(&self) -> Arc<DeviceSpec> {
        self.spec.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Itself, as the objects of the context know it.
    fn owner(self: &Arc<Self>) -> Weak<dyn Raise> {
        let weak: Weak<Self> = Arc::downgrade(self);
        weak
    }

    /// An object is gone: its events are not delivered any more.
    pub(crate) fn forget_events(&self, element: Element) {
        self.events.forget(|e| e.element == element);
    }

    pub(crate) fn use_pd(&self, pd: u32) -> Result<()> {
        match lock(&self.pds).get_mut(&pd) {
            Some(users) => {
                *users += 1;
                Ok(())
            }
            None => Err(Error::invalid("no such protection domain in this context")),
        }
    }

    /// Whether there is such a protection domain; nothing holds on to it.
    fn check_pd(&self, pd: u32) -> Result<()> {
        self.use_pd(pd)?;
        self.release_pd(pd);
        Ok(())
    }

    pub(crate) fn release_pd(&self, pd: u32) {
        if let Some(users) = lock(&self.pds).get_mut(&pd) {
            *users = users.saturating_sub(1);
        }
    }

    /// Deregisters all memory, for good.
    fn close_memory(&self) {
        for pd in self.memory.close(|| self.engine.lanes.barrier()) {
            self.release_pd(pd);
        }
    }

    /// The engine is closed, and with it the device: the program is told, as of one that was taken out.
    pub(crate) fn engine_closed(&self) {
        self.close_memory();
        self.tell_gone(self.spec().is_active(&self.engine.table()));
    }

    /// The device is gone. As the kernel tells it: the port goes, and then the device, for good.
    fn tell_gone(&self, was_active: bool) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            if was_active {
                self.raise(AsyncEvent { kind: AsyncKind::PortErr, element: Element::Port(1) });
            }
            self.raise(AsyncEvent { kind: AsyncKind::DeviceFatal, element: Element::Device });
        }
    }

    /// Interfaces or addresses changed: new GIDs, and the events that hardware would raise.
    pub(crate) fn table_changed(&self, old: &Table, new: &Table) {
        let Some(spec) = device::find(&self.engine, new, &self.info.name) else {
            self.tell_gone(self.spec().is_active(old));
            return;
        };
        let before = core::mem::replace(
            &mut *self.spec.write().unwrap_or_else(std::sync::PoisonError::into_inner),
            Arc::new(spec.clone()),
        );
        let (was, is) = (before.is_active(old), spec.is_active(new));
        if was != is {
            let kind = if is { AsyncKind::PortActive } else { AsyncKind::PortErr };
            self.raise(AsyncEvent { kind, element: Element::Port(1) });
        }
        if before.gids != spec.gids {
            self.raise(AsyncEvent { kind: AsyncKind::GidChange, element: Element::Port(1) });
        }
    }
}

impl Raise for ContextInner {
    fn raise(&self, event: AsyncEvent) {
        self.events.push(event);
    }

    fn release_pd(&self, pd: u32) {
        Self::release_pd(self, pd);
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    shared: Arc<ContextInner>,
}

impl OpenDevice {
    pub(crate) fn open(
        engine: &Arc<Inner>,
        info: &DeviceInfo,
        spec: DeviceSpec,
    ) -> Result<Arc<Self>> {
        let events = NoticeQueue::new().map_err(|e| os_error(&e))?;
        let shared = Arc::new(ContextInner {
            engine: engine.clone(),
            info: info.clone(),
            spec: RwLock::new(Arc::new(spec)),
            memory: MemoryTable::new(),
            dm: DmTable::default(),
            events,
            pds: Mutex::default(),
            next_srq: AtomicU32::new(1),
            cqs: Quota::new(MAX_CQ, "completion queues"),
            srqs: Quota::new(MAX_SRQ, "shared receive queues"),
            ahs: Quota::new(MAX_AH, "address handles"),
            violations: KeyViolations::default(),
            gone: AtomicBool::new(false),
        });
        engine.register(&shared)?;
        Ok(Arc::new(Self { shared }))
    }

    fn check_port(port: u8) -> Result<()> {
        if port == 1 { Ok(()) } else { Err(Error::invalid("the device has one port, number 1")) }
    }
}

/// What makes a shared receive queue a member of an XRC domain.
fn membership(xrc: &XrcSrq, lanes: &Lanes) -> Result<Membership> {
    let (cq, xrcd) = (Cq::find(xrc.cq.as_ref(), lanes)?, Xrcd::find(xrc.domain.as_ref(), lanes)?);
    Ok(Membership { cq, xrcd })
}

pub(crate) fn os_error(e: &std::io::Error) -> Error {
    Error::new(e.raw_os_error().unwrap_or(libc::EIO), e.to_string())
}

impl Context for OpenDevice {
    fn attributes(&self) -> DeviceAttr {
        device::attributes(&self.shared.info)
    }

    fn close(&self) {
        self.shared.close_memory();
    }

    fn query_port(&self, port: u8) -> Result<PortAttr> {
        Self::check_port(port)?;
        let (spec, table) = (self.shared.spec(), self.shared.engine.table());
        Ok(port::attributes(&spec, &table, self.shared.engine.key_violations(&self.shared.info)))
    }

    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        Self::check_port(port)?;
        if index as usize >= polypath_topology::GID_TABLE_LEN {
            return Err(Error::invalid("the GID index is beyond the end of the table"));
        }
        Ok(self.gid_table().into_iter().find(|e| e.index == index))
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        let spec = self.shared.spec();
        (0u32..)
            .zip(&spec.gids)
            .filter(|(_, e)| !e.is_empty())
            .map(|(index, e)| GidEntry { gid: e.gid, index, ip: e.ip, ifindex: e.ifindex })
            .collect()
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
        let pd = NEXT_PD.fetch_add(1, Ordering::Relaxed);
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
        let lanes = &self.shared.engine.lanes;
        self.shared.memory.dealloc_window(mw, || lanes.barrier())?;
        if let Some(pd) = pd {
            self.shared.release_pd(pd);
        }
        Ok(())
    }

    fn stage_bind(&self, pd: u32, mw: u32, rkey: u32, bind: &MwBind) -> Result<()> {
        let info =
            BindInfo { region: bind.region, addr: bind.addr, len: bind.len, access: bind.access };
        self.shared.memory.stage_bind(pd, mw, rkey, info)
    }

    fn unstage_bind(&self, mw: u32, rkey: u32) {
        self.shared.memory.unstage_bind(mw, rkey);
    }

    fn create_ah(&self, pd: u32, attr: &AhAttr) -> Result<Arc<AddressHandle>> {
        crate::address::resolve(&self.shared.spec(), attr)?;
        // An address handle holds nothing of its protection domain, so it does not keep it alive.
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
        let lanes = self.shared.engine.lanes.clone();
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
            Some(xrc) => membership(xrc, &self.shared.engine.lanes).and_then(|membership| {
                membership.begin(&self.shared, |number, membership| {
                    Srq::new(request, number, owner, place, Some(membership))
                })
            }),
        };
        if srq.is_err() {
            self.shared.release_pd(request.pd);
        }
        Ok(srq?)
    }

    fn create_qp(&self, request: &QpRequest) -> Result<Arc<dyn QueuePair>> {
        if request.qp_type == QpType::XrcRecv {
            return Ok(XrcTarget::create(&self.shared, request)?);
        }
        Ok(Arc::new(Qp::create(&self.shared, request, None)?))
    }

    fn open_xrcd(&self, request: &XrcdRequest) -> Result<Arc<dyn XrcDomain>> {
        Ok(Xrcd::open(&self.shared, request)?)
    }

    fn open_qp(&self, domain: &dyn XrcDomain, qpn: u32, token: u64) -> Result<Arc<dyn QueuePair>> {
        let domain = Xrcd::find(domain, &self.shared.engine.lanes)?;
        Ok(XrcTarget::open(&self.shared, &domain, qpn, token)?)
    }
}
