//! A device for the tests of this crate. It records the calls it gets, and moves no data.

use core::ptr::null_mut;
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polypath_verbs::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::cq::destroy_cq;
use crate::cq_make::create_cq;
use crate::device::{free_device_list, get_device_list};
use crate::layout::{ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_init_attr};
use crate::open::{close_device, open_device};
use crate::ours::is_our_device;
use crate::pd::{alloc_pd, dealloc_pd};
use crate::qp::destroy_qp;
use crate::qp_make::create_qp;

/// One device, `roce0`.
pub(crate) fn devices() -> Vec<Arc<dyn Device>> {
    let info = DeviceInfo {
        name: "roce0".into(),
        node_guid: 0x0250_56ff_fe00_0001,
        index: 4,
        uverbs: 1000,
        interfaces: vec!["eth0".into()],
    };
    vec![Arc::new(Double { info })]
}

/// Opens the device through the C functions.
pub(crate) fn open() -> *mut ibv_context {
    // SAFETY: the list is freed once, after its device was opened.
    unsafe {
        let list = get_device_list(null_mut());
        let mut at = 0;
        while !is_our_device(*list.add(at)) {
            at += 1;
        }
        let context = open_device(*list.add(at));
        assert!(!context.is_null());
        free_device_list(list);
        context
    }
}

/// Adds a completion to a queue, and raises an event if the queue is armed.
pub(crate) fn complete(cq: &Arc<dyn CompletionQueue>, wr_id: u64) {
    let cq: &Queue = cq.as_any().downcast_ref().unwrap();
    let completion = Completion {
        wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        vendor_err: 0,
        byte_len: 20,
        imm: None,
        invalidated_rkey: None,
        qpn: 17,
        src_qpn: 0,
        grh: Some(NetworkHeader::Ipv4),
        solicited: false,
    };
    cq.entries.lock().unwrap().push_back(Wc { completion, timestamp: 1 });
    if let Some(channel) = &cq.channel {
        let channel: &Channel = channel.as_any().downcast_ref().unwrap();
        channel.events.lock().unwrap().push_back(cq.token);
        channel.fd.raise();
    }
}

/// Raises an asynchronous event.
pub(crate) fn raise(context: &Arc<dyn Context>, event: AsyncEvent) {
    POSTED_EVENTS.lock().unwrap().push_back((context.async_fd(), event));
    let one = 1_u64;
    // SAFETY: eight bytes to an eventfd.
    unsafe { libc::write(context.async_fd(), (&raw const one).cast(), 8) };
}

static POSTED_EVENTS: Mutex<VecDeque<(RawFd, AsyncEvent)>> = Mutex::new(VecDeque::new());

/// A queue pair of the test device, with everything that it needs.
pub(crate) struct Kit {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
}

impl Kit {
    /// Creates a queue pair with room for this many sends.
    pub(crate) fn new(room: u32) -> Self {
        let context = open();
        // SAFETY: objects of ours.
        unsafe {
            let pd = alloc_pd(context);
            let cq = create_cq(context, 4, null_mut(), null_mut(), 0);
            let mut init: ibv_qp_init_attr = core::mem::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, 2);
            init.cap.max_send_wr = room;
            let qp = create_qp(pd, &mut init);
            assert!(!qp.is_null());
            Self { context, pd, cq, qp }
        }
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        // SAFETY: the objects of above, each freed once.
        unsafe {
            assert_eq!(destroy_qp(self.qp), 0);
            assert_eq!(destroy_cq(self.cq), 0);
            assert_eq!(dealloc_pd(self.pd), 0);
            close_device(self.context);
        }
    }
}

/// The requests that were posted to the kit's queue pair or staged in its context, as text.
pub(crate) fn posted(kit: &Kit) -> Vec<String> {
    // SAFETY: the kit's context lives.
    let fd = unsafe { (*kit.context).async_fd };
    let all = POSTED.lock().unwrap();
    all.iter().filter(|(context, _)| *context == fd).map(|(_, text)| text.clone()).collect()
}

static POSTED: Mutex<Vec<(RawFd, String)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Eventfd(OwnedFd);

impl Eventfd {
    fn new() -> Self {
        Self(eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC).unwrap())
    }

    fn raise(&self) {
        assert_eq!(rustix::io::write(&self.0, &1_u64.to_ne_bytes()), Ok(8));
    }
}

#[derive(Debug)]
struct Double {
    info: DeviceInfo,
}

impl Device for Double {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn open(&self) -> Result<Arc<dyn Context>> {
        let events = Eventfd::new();
        // Another context may have used this number before.
        let fd = events.0.as_raw_fd();
        POSTED.lock().unwrap().retain(|(context, _)| *context != fd);
        Ok(Arc::new(Opened { events, pds: AtomicU32::new(0) }))
    }
}

#[derive(Debug)]
struct Opened {
    events: Eventfd,
    pds: AtomicU32,
}

fn gid(index: u32) -> GidEntry {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&[10, 0, 0, index as u8 + 1]);
    GidEntry { port: 1, gid, index, ip: std::net::IpAddr::from(gid), ifindex: 4 }
}

impl Context for Opened {
    fn attributes(&self) -> DeviceAttr {
        DeviceAttr {
            fw_ver: "1".into(),
            node_guid: 1,
            sys_image_guid: 1,
            max_mr_size: u64::MAX,
            page_size_cap: 4096,
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: 8,
            max_qp_wr: 64,
            device_cap_flags: 0,
            max_sge: 4,
            max_sge_rd: 4,
            max_cq: 8,
            max_cqe: 64,
            max_mr: 8,
            max_pd: 8,
            max_qp_rd_atom: 16,
            max_res_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            atomic_cap: 1,
            max_mw: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_ah: 8,
            max_srq: 8,
            max_srq_wr: 64,
            max_srq_sge: 4,
            max_pkeys: 1,
            local_ca_ack_delay: 15,
            phys_port_cnt: 1,
            max_inline: 256,
            max_dm_size: 64,
        }
    }
    fn query_port(&self, port: u8) -> Result<PortAttr> {
        if port != 1 {
            return Err(Error::invalid("no such port"));
        }
        Ok(PortAttr {
            state: PortState::Active,
            max_mtu: 4096,
            active_mtu: 1024,
            gid_tbl_len: 16,
            max_msg_sz: 1 << 30,
            pkey_tbl_len: 1,
            active_width: 1,
            active_speed: 1,
            phys_state: 5,
            speed_mbps: 10_000,
            qkey_violations: 0,
            bad_pkey: 0,
        })
    }
    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        self.query_port(port)?;
        Ok((index < 2).then(|| gid(index)))
    }
    fn gid_table(&self) -> Vec<GidEntry> {
        vec![gid(0), gid(1)]
    }
    fn async_fd(&self) -> RawFd {
        self.events.0.as_raw_fd()
    }
    fn take_async_event(&self) -> Option<AsyncEvent> {
        let mut events = POSTED_EVENTS.lock().unwrap();
        let at = events.iter().position(|e| e.0 == self.async_fd())?;
        events.remove(at).map(|e| e.1)
    }
    fn clock_ns(&self) -> u64 {
        5
    }
    fn alloc_pd(&self) -> Result<u32> {
        Ok(self.pds.fetch_add(1, Ordering::Relaxed))
    }
    fn dealloc_pd(&self, _pd: u32) -> Result<()> {
        Ok(())
    }
    unsafe fn reg_mr(&self, request: &MrRequest) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Region(request.len)))
    }
    fn reg_dmabuf_mr(
        &self,
        request: &MrRequest,
        _fd: RawFd,
        _offset: u64,
    ) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Region(request.len)))
    }
    fn alloc_null_mr(&self, _pd: u32) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Region(usize::MAX)))
    }
    fn alloc_dm(&self, len: u64, _log_align: u32) -> Result<Arc<dyn DeviceMemory>> {
        Ok(Arc::new(Bytes(Mutex::new(vec![0; len as usize]))))
    }
    fn import_pd(&self, pd: u32) -> Result<()> {
        if pd < self.pds.load(Ordering::Relaxed) { Ok(()) } else { Err(Error::invalid("no")) }
    }
    fn import_mr(&self, _pd: u32, _handle: u32) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Region(64)))
    }
    fn import_dm(&self, _handle: u32) -> Result<Arc<dyn DeviceMemory>> {
        self.alloc_dm(64, 0)
    }
    fn alloc_mw(&self, _pd: u32, _mw_type: u8) -> Result<(u32, u32)> {
        Ok((3, 0x100))
    }
    fn dealloc_mw(&self, _mw: u32) -> Result<()> {
        Ok(())
    }
    fn stage_bind(&self, _pd: u32, _qpn: u32, mw: u32, rkey: u32, _bind: &MwBind) -> Result<u32> {
        POSTED.lock().unwrap().push((self.async_fd(), format!("stage {mw} {rkey:#x}")));
        Ok(rkey)
    }
    fn unstage_bind(&self, _qpn: u32, mw: u32, _rkey: u32) {
        POSTED.lock().unwrap().push((self.async_fd(), format!("unstage {mw}")));
    }
    fn create_ah(&self, pd: u32, attr: &AhAttr) -> Result<Arc<AddressHandle>> {
        Ok(Arc::new(AddressHandle { pd, attr: *attr, resolved: AtomicU64::new(0), place: None }))
    }
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        Ok(Arc::new(Channel {
            fd: Eventfd::new(),
            events: Mutex::default(),
            attends: AtomicBool::new(false),
        }))
    }
    fn create_cq(&self, request: &CqRequest) -> Result<Arc<dyn CompletionQueue>> {
        Ok(Arc::new(Queue {
            entries: Mutex::default(),
            channel: request.channel.clone(),
            token: request.token,
        }))
    }
    fn create_srq(&self, request: &SrqRequest) -> Result<Arc<dyn SharedReceiveQueue>> {
        Ok(Arc::new(Shared(request.attr)))
    }
    fn create_qp(&self, request: &QpRequest) -> Result<Arc<dyn QueuePair>> {
        if request.max_send_wr > 64 {
            return Err(Error::invalid("too many"));
        }
        Ok(Arc::new(Pair { room: request.max_send_wr as usize, context: self.async_fd() }))
    }
}

#[derive(Debug)]
struct Bytes(Mutex<Vec<u8>>);

impl DeviceMemory for Bytes {
    fn handle(&self) -> u32 {
        9
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut bytes = self.0.lock().unwrap();
        let range = bytes.get_mut(offset as usize..).and_then(|b| b.get_mut(..data.len()));
        range.map(|range| range.copy_from_slice(data)).ok_or_else(|| Error::new(libc::EFAULT, "no"))
    }
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let bytes = self.0.lock().unwrap();
        let range = bytes.get(offset as usize..).and_then(|b| b.get(..data.len()));
        range.map(|range| data.copy_from_slice(range)).ok_or_else(|| Error::new(libc::EFAULT, "no"))
    }
    fn register(
        &self,
        _pd: u32,
        _offset: u64,
        len: usize,
        _access: Access,
    ) -> Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(Region(len)))
    }
    fn free(&self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Region(usize);

impl MemoryRegion for Region {
    fn lkey(&self) -> u32 {
        1
    }
    fn rkey(&self) -> u32 {
        2
    }
    fn len(&self) -> usize {
        self.0
    }
    unsafe fn reregister(
        &self,
        _pd: Option<u32>,
        _range: Option<(usize, usize, u64)>,
        _access: Option<Access>,
    ) -> Result<()> {
        Ok(())
    }
    fn deregister(&self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Channel {
    fd: Eventfd,
    events: Mutex<VecDeque<u64>>,
    attends: AtomicBool,
}

/// Lets whoever waits for an event of this channel wait as [`CompletionChannel::attend`] says, until it
/// leaves.
pub(crate) fn be_attended(channel: &Arc<dyn CompletionChannel>) {
    let channel: &Channel = channel.as_any().downcast_ref().unwrap();
    channel.attends.store(true, Ordering::SeqCst);
}

/// Whether nobody has left it since.
pub(crate) fn is_attended(channel: &Arc<dyn CompletionChannel>) -> bool {
    let channel: &Channel = channel.as_any().downcast_ref().unwrap();
    channel.attends.load(Ordering::SeqCst)
}

impl CompletionChannel for Channel {
    fn attend(&self) -> Attend {
        let waits = self.attends.load(Ordering::SeqCst) && self.events.lock().unwrap().is_empty();
        let timeout = Duration::from_secs(60);
        if waits { Attend::Wait { descriptor: -1, timeout } } else { Attend::Read }
    }
    fn leave(&self) {
        self.attends.store(false, Ordering::SeqCst);
    }
    fn fd(&self) -> RawFd {
        self.fd.0.as_raw_fd()
    }
    fn take(&self) -> Option<u64> {
        self.events.lock().unwrap().pop_front()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct Queue {
    entries: Mutex<VecDeque<Wc>>,
    channel: Option<Arc<dyn CompletionChannel>>,
    token: u64,
}

impl CompletionQueue for Queue {
    fn poll(&self, limit: usize, sink: &mut dyn FnMut(&Wc)) -> Result<usize> {
        let mut entries = self.entries.lock().unwrap();
        let count = limit.min(entries.len());
        entries.drain(..count).for_each(|wc| sink(&wc));
        Ok(count)
    }
    fn arm(&self, _solicited_only: bool) -> Result<()> {
        Ok(())
    }
    fn resize(&self, cqe: u32) -> Result<u32> {
        Ok(cqe)
    }
    fn capacity(&self) -> u32 {
        64
    }
    fn moderate(&self, _count: u16, _period_us: u16) -> Result<()> {
        Ok(())
    }
    fn destroy(&self) -> Result<()> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Debug)]
struct Shared(SrqAttr);

impl SharedReceiveQueue for Shared {
    fn post_recv(&self, _list: &[RecvWr]) -> core::result::Result<(), PostFailure> {
        Ok(())
    }
    fn modify(&self, _max_wr: Option<u32>, _limit: Option<u32>) -> Result<()> {
        Ok(())
    }
    fn query(&self) -> SrqAttr {
        self.0
    }
    fn number(&self) -> u32 {
        5
    }
    fn destroy(&self) -> Result<()> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Accepts up to `room` sends in one list.
#[derive(Debug)]
struct Pair {
    room: usize,
    context: RawFd,
}

impl QueuePair for Pair {
    fn number(&self) -> u32 {
        17
    }
    fn modify(&self, _attr: &QpAttr, _mask: QpAttrMask) -> Result<()> {
        Ok(())
    }
    fn query(&self) -> Result<QpAttr> {
        Ok(QpAttr {
            path_mtu: 1024,
            port_num: 1,
            max_send_wr: self.room as u32,
            max_recv_wr: 8,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 256,
            ..QpAttr::new(QpState::Rts)
        })
    }
    fn post_send(
        &self,
        list: &[SendRequest<'_>],
        all_or_nothing: bool,
    ) -> core::result::Result<(), PostFailure> {
        let full = || PostFailure { index: self.room, error: Error::no_memory("full") };
        if all_or_nothing && list.len() > self.room {
            return Err(full());
        }
        let mut posted = POSTED.lock().unwrap();
        for (at, request) in list.iter().enumerate() {
            if at == self.room {
                return Err(full());
            }
            let data = match request.data {
                SendData::Sges(list) => format!("{} sges", list.len()),
                SendData::Inline(bytes) => format!("inline {bytes:?}"),
            };
            let text = format!("{} {:?} {data}", request.wr_id, request.op);
            posted.push((self.context, text));
        }
        Ok(())
    }
    fn post_recv(&self, _list: &[RecvWr]) -> core::result::Result<(), PostFailure> {
        Ok(())
    }
    fn attach_multicast(&self, _gid: [u8; 16]) -> Result<()> {
        Ok(())
    }
    fn detach_multicast(&self, _gid: [u8; 16]) -> Result<()> {
        Ok(())
    }
    fn destroy(&self) -> Result<()> {
        Ok(())
    }
}
