//! Devices, contexts and the objects that a context creates.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use polypath_types::{
    Access, AhAttr, Completion, QpAttr, QpAttrMask, QpType, RecvWr, SendData, SendFlags, SendOp,
};

use crate::{AddressHandle, AsyncEvent, DeviceAttr, DeviceInfo, Error, GidEntry, PortAttr, Result};

/// A device that can be opened.
pub trait Device: Send + Sync + Debug {
    /// The description of the device.
    fn info(&self) -> &DeviceInfo;
    /// Opens the device (`ibv_open_device`).
    fn open(&self) -> Result<Arc<dyn Context>>;
}

/// The error of a verb that the device does not have; `what` names what it lacks.
fn lacks<T>(what: &str) -> Result<T> {
    Err(Error::unsupported(format!("this device has no {what}")))
}

/// An open device. Protection domains and memory windows are plain numbers of the context.
///
/// A device has to describe itself and to report events. It implements the verbs that it has. Each of
/// the others fails with `EOPNOTSUPP` and names what the device lacks, as rdma-core's dummy operations
/// do, so that a new verb with such a default changes no device that lacks it.
pub trait Context: Send + Sync + Debug {
    /// The last user has closed the device (`ibv_close_device`), and its queue pairs have been
    /// destroyed. The context deregisters its memory regions, drops its memory windows and allows no
    /// further registration. The program may still destroy the objects that are left.
    fn close(&self) {}
    /// `ibv_query_device`.
    fn attributes(&self) -> DeviceAttr;
    /// `ibv_query_port`. Ports count from 1.
    fn query_port(&self, port: u8) -> Result<PortAttr>;
    /// `ibv_query_gid_ex`. `Ok(None)` means that the entry is empty.
    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>>;
    /// All entries of the GID table that are in use.
    fn gid_table(&self) -> Vec<GidEntry>;
    /// The file descriptor of asynchronous events: an eventfd in semaphore mode, which is readable
    /// while there are events. Read 8 bytes for each event, then call [`Context::take_async_event`].
    fn async_fd(&self) -> RawFd;
    /// Takes the next asynchronous event, if there is one.
    fn take_async_event(&self) -> Option<AsyncEvent>;
    /// The time in nanoseconds of the clock of completion timestamps (`CLOCK_REALTIME`).
    fn clock_ns(&self) -> u64;

    /// `ibv_alloc_pd`: returns the number of a new protection domain.
    fn alloc_pd(&self) -> Result<u32> {
        lacks("protection domains")
    }
    /// `ibv_dealloc_pd`. `EBUSY`: an object still uses it.
    fn dealloc_pd(&self, _pd: u32) -> Result<()> {
        lacks("protection domains")
    }
    /// `ibv_reg_mr` and its relatives.
    ///
    /// # Safety
    /// Until [`MemoryRegion::deregister`] returns, this device reads and writes the range at any time, for
    /// work requests and for peers that know its keys. A Rust program must therefore not rely on any
    /// value in the range: it may hold no reference to it except to cells and atomics. The range need not
    /// be mapped: a work request that accesses memory that is not mapped completes with an error.
    #[allow(unsafe_code)]
    unsafe fn reg_mr(&self, _request: &MrRequest) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions")
    }
    /// Like [`Context::reg_mr`], with a key that the program gives, because its peers or its guest know
    /// the key already, as after a migration. The key is lkey and rkey. `EADDRINUSE`: an object of this
    /// context has a key that differs from it in the last 8 bits at most. `EINVAL`: the key is below
    /// 0x100.
    ///
    /// # Safety
    /// The conditions of [`Context::reg_mr`].
    #[allow(unsafe_code)]
    unsafe fn reg_mr_with_key(
        &self,
        _request: &MrRequest,
        _key: u32,
    ) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions with given keys")
    }
    /// Registers a region that consists of pages anywhere in the process, in the order of the list, as
    /// a driver registers the scattered pages of a guest. Peers and work requests see one range.
    /// `EINVAL`: the pages are not aligned, or are too small for the range. `EFAULT`: a page is not
    /// mapped. Other errors are those of [`Context::reg_mr_with_key`].
    ///
    /// # Safety
    /// The conditions of [`Context::reg_mr`], for each page.
    #[allow(unsafe_code)]
    unsafe fn reg_pages(&self, _request: &PagesRequest<'_>) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions of page lists")
    }
    /// `ibv_reg_dmabuf_mr`: registers `len` bytes from `offset` of the DMA-BUF behind `fd`. `addr` of
    /// the request is ignored.
    fn reg_dmabuf_mr(
        &self,
        _request: &MrRequest,
        _fd: RawFd,
        _offset: u64,
    ) -> Result<Arc<dyn MemoryRegion>> {
        lacks("regions of DMA-BUFs")
    }
    /// `ibv_alloc_null_mr`: a region in which local reads return zeros and local writes are discarded.
    /// Its rkey is 0.
    fn alloc_null_mr(&self, _pd: u32) -> Result<Arc<dyn MemoryRegion>> {
        lacks("null memory region")
    }
    /// `ibv_alloc_dm`: allocates `len` zeroed bytes of device memory, aligned to `1 << log_align`.
    fn alloc_dm(&self, _len: u64, _log_align: u32) -> Result<Arc<dyn DeviceMemory>> {
        lacks("memory of its own")
    }
    /// `ibv_import_pd`. `EINVAL`: there is no such protection domain.
    fn import_pd(&self, _pd: u32) -> Result<()> {
        lacks("protection domains to import")
    }
    /// `ibv_import_mr`: another handle to a region of this protection domain; `handle` is its lkey. The
    /// first of its handles that is deregistered ends the region.
    fn import_mr(&self, _pd: u32, _handle: u32) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions to import")
    }
    /// `ibv_import_dm`: another handle to device memory; `handle` is [`DeviceMemory::handle`].
    fn import_dm(&self, _handle: u32) -> Result<Arc<dyn DeviceMemory>> {
        lacks("memory of its own")
    }
    /// `ibv_alloc_mw`: returns the window's number and rkey. `mw_type` is 1 or 2.
    fn alloc_mw(&self, _pd: u32, _mw_type: u8) -> Result<(u32, u32)> {
        lacks("memory windows")
    }
    /// `ibv_dealloc_mw`.
    fn dealloc_mw(&self, _mw: u32) -> Result<()> {
        lacks("memory windows")
    }
    /// Announces the parameters of a bind that is about to be posted to queue pair `qpn`. Returns the rkey
    /// that the window will get, for [`SendOp::BindMw`] with the same `mw`: only the low 8 bits of `rkey`
    /// are the program's, the others are the window's (IBTA 10.6.7.2).
    fn stage_bind(&self, _pd: u32, _qpn: u32, _mw: u32, _rkey: u32, _bind: &MwBind) -> Result<u32> {
        lacks("memory windows")
    }
    /// Takes back [`Context::stage_bind`], because the bind was not posted.
    fn unstage_bind(&self, _qpn: u32, _mw: u32, _rkey: u32) {}
    /// `ibv_create_ah`.
    fn create_ah(&self, _pd: u32, _attr: &AhAttr) -> Result<Arc<AddressHandle>> {
        lacks("address handles")
    }
    /// `ibv_create_comp_channel`.
    fn create_channel(&self) -> Result<Arc<dyn CompletionChannel>> {
        lacks("completion channels")
    }
    /// `ibv_create_cq`.
    fn create_cq(&self, _request: &CqRequest) -> Result<Arc<dyn CompletionQueue>> {
        lacks("completion queues")
    }
    /// `ibv_create_srq`.
    fn create_srq(&self, _request: &SrqRequest) -> Result<Arc<dyn SharedReceiveQueue>> {
        lacks("shared receive queues")
    }
    /// `ibv_open_xrcd`.
    fn open_xrcd(&self, _request: &XrcdRequest) -> Result<Arc<dyn XrcDomain>> {
        lacks("XRC")
    }
    /// `ibv_open_qp`: another handle to an XRC target of the domain. Events of this handle carry
    /// `token`.
    fn open_qp(
        &self,
        _domain: &dyn XrcDomain,
        _qpn: u32,
        _token: u64,
    ) -> Result<Arc<dyn QueuePair>> {
        lacks("XRC")
    }
    /// `ibv_create_qp`.
    fn create_qp(&self, _request: &QpRequest) -> Result<Arc<dyn QueuePair>> {
        lacks("queue pairs")
    }
    /// Continues a queue pair that [`QueuePair::freeze`] has ended, in any context, engine, process or
    /// host, with its number and sizes. The request names the objects that it uses here. Before, the
    /// program has to register its memory with the same keys ([`Context::reg_mr_with_key`]). `EINVAL`:
    /// the bytes are no frozen queue pair, or one of another type than the request is for. Other errors
    /// are those of [`Context::create_qp_with_number`]. After an error the bytes can be used again.
    fn thaw_qp(&self, _request: &ThawRequest, _frozen: &[u8]) -> Result<Arc<dyn QueuePair>> {
        lacks("queue pairs that can be frozen")
    }
    /// Like [`Context::create_qp`], with a number that the program gives, because its peers or its
    /// guest know the number already, as after a migration. `EADDRINUSE`: the number is in use, or
    /// belongs to another process. `EADDRNOTAVAIL`: queue pairs of the device never have that number.
    /// `EINVAL`: the number is reserved (0, 1, 0xffffff) or has more than 24 bits.
    fn create_qp_with_number(
        &self,
        _request: &QpRequest,
        _number: u32,
    ) -> Result<Arc<dyn QueuePair>> {
        lacks("queue pairs with given numbers")
    }
}

/// The parameters of a memory region.
#[derive(Clone, Copy, Debug)]
pub struct MrRequest {
    /// Protection domain.
    pub pd: u32,
    /// Address of the first byte in the process.
    pub addr: usize,
    /// Length in bytes. A region of length 0 is allowed; nothing in it can be accessed.
    pub len: usize,
    /// The address that work requests use for the first byte.
    pub iova: u64,
    /// Access rights.
    pub access: Access,
}

/// The parameters of a memory region that consists of pages.
#[derive(Clone, Copy, Debug)]
pub struct PagesRequest<'a> {
    /// Protection domain.
    pub pd: u32,
    /// The addresses of the pages in the process, in order. Each is a multiple of the page size.
    pub pages: &'a [usize],
    /// The page size in bytes: a power of two, at least 4096.
    pub page_size: usize,
    /// The offset of the region in the first page, in bytes.
    pub offset: usize,
    /// Length in bytes. The pages have at least `offset + len` bytes.
    pub len: usize,
    /// The address that work requests use for the first byte. For atomics it must equal `offset` modulo
    /// 8.
    pub iova: u64,
    /// Access rights, without `ON_DEMAND`.
    pub access: Access,
    /// A given key; `None` means any.
    pub key: Option<u32>,
}

/// The memory that a memory window is bound to (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
pub struct MwBind {
    /// rkey of the region.
    pub region: u32,
    /// Address of the first byte, in the addresses of the region.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a type 1 window.
    pub len: u64,
    /// The access rights of peers.
    pub access: Access,
}

/// A memory region.
pub trait MemoryRegion: Send + Sync + Debug {
    /// Key for local work requests.
    fn lkey(&self) -> u32;
    /// Key for peers.
    fn rkey(&self) -> u32;
    /// Length in bytes when this handle was made.
    fn len(&self) -> usize;
    /// Whether the region has length 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// `ibv_rereg_mr`. `None` keeps the present value. The range is address, length and first address
    /// for work requests.
    ///
    /// # Safety
    /// The conditions of [`Context::reg_mr`], for the new range.
    #[allow(unsafe_code)]
    unsafe fn reregister(
        &self,
        _pd: Option<u32>,
        _range: Option<(usize, usize, u64)>,
        _access: Option<Access>,
    ) -> Result<()> {
        lacks("way to register a region again: deregister it and register another")
    }
    /// `ibv_dereg_mr`. When it returns, the device no longer accesses the memory. `EBUSY`: windows are
    /// bound to the region.
    fn deregister(&self) -> Result<()>;
}

/// Device memory (`man 3 ibv_alloc_dm`). Offsets and lengths are multiples of four.
pub trait DeviceMemory: Send + Sync + Debug {
    /// The number by which [`Context::import_dm`] finds it.
    fn handle(&self) -> u32;
    /// `ibv_memcpy_to_dm`. `EFAULT`: the range is not inside the memory.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// `ibv_memcpy_from_dm`. `EFAULT`: the range is not inside the memory.
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<()>;
    /// `ibv_reg_dm_mr`. `access` contains `ZERO_BASED`. `EINVAL`: the range is not inside the memory.
    fn register(
        &self,
        pd: u32,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>>;
    /// `ibv_free_dm`. `EBUSY`: a region of it is registered.
    fn free(&self) -> Result<()>;
}

/// What a thread that wants the next event of a completion channel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attend {
    /// It reads the channel's eventfd, which may block.
    Read,
    /// It waits until the eventfd or this descriptor is readable, for at most this time, and asks again. A
    /// negative descriptor is not waited for.
    Wait {
        /// The other descriptor.
        descriptor: RawFd,
        /// The longest time.
        timeout: Duration,
    },
}

/// A completion channel. Its eventfd, in semaphore mode, is readable while completion queues have
/// events. Read 8 bytes for each event, then call [`CompletionChannel::take`].
pub trait CompletionChannel: Send + Sync + Debug {
    /// The eventfd. The application may set `O_NONBLOCK`.
    fn fd(&self) -> RawFd;
    /// Takes the next event: the token of its completion queue.
    fn take(&self) -> Option<u64>;
    /// Lets a thread that waits for an event do the device's work meanwhile, so that no other thread must be
    /// woken for it. Call it again after each wait, until it answers [`Attend::Read`]. Call
    /// [`CompletionChannel::leave`] after the read, or instead of it. A thread that ends need not.
    fn attend(&self) -> Attend {
        Attend::Read
    }
    /// Ends what [`CompletionChannel::attend`] began.
    fn leave(&self) {}
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// The parameters of a completion queue.
#[derive(Clone, Debug)]
pub struct CqRequest {
    /// The least number of entries.
    pub cqe: u32,
    /// The channel for its events.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// A number of the front end, which events carry.
    pub token: u64,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    pub ignore_overrun: bool,
}

/// A completion with its time.
#[derive(Clone, Copy, Debug)]
pub struct Wc {
    /// The completion.
    pub completion: Completion,
    /// The time when it was generated, in nanoseconds; see [`Context::clock_ns`].
    pub timestamp: u64,
}

/// A completion queue.
pub trait CompletionQueue: Send + Sync + Debug {
    /// Takes up to `limit` completions, passes each to `sink` in order, and returns how many they were.
    /// If there is none, it drives the device's lanes first. It fails if the queue has overrun.
    fn poll(&self, limit: usize, sink: &mut dyn FnMut(&Wc)) -> Result<usize>;
    /// `ibv_req_notify_cq`.
    fn arm(&self, solicited_only: bool) -> Result<()>;
    /// `ibv_resize_cq`: returns the new size. `EINVAL`: the queue holds more completions than that.
    fn resize(&self, _cqe: u32) -> Result<u32> {
        lacks("completion queues that can be resized")
    }
    /// The number of entries that it can hold.
    fn capacity(&self) -> u32;
    /// `ibv_modify_cq` with moderation: the event of an armed queue comes as soon as `count`
    /// completions that it waits for have come, or the first of them is `period_us` microseconds old. A
    /// failed completion, or half of the entries in use, causes it at once. There is no moderation, as
    /// at first, if `count` is below 2 or the period is 0.
    fn moderate(&self, _count: u16, _period_us: u16) -> Result<()> {
        lacks("moderation of completion events")
    }
    /// `ibv_destroy_cq`. `EBUSY`: queue pairs use it.
    fn destroy(&self) -> Result<()>;
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// The XRC domain to open (`struct ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcdRequest {
    /// Device and inode number of the file that identifies the domain; `None` means a new domain
    /// without a file.
    pub file: Option<(u64, u64)>,
    /// Whether to create the domain if it does not exist (`O_CREAT`). Without a file it is always
    /// created.
    pub create: bool,
    /// Whether to fail if the domain exists (`O_EXCL`).
    pub exclusive: bool,
}

/// A handle to an XRC domain. Messages for its targets go to its shared receive queues.
pub trait XrcDomain: Send + Sync + Debug {
    /// `ibv_close_xrcd`. `EBUSY`: an object that was made with this handle exists.
    fn close(&self) -> Result<()>;
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// The additional parameters of an XRC shared receive queue.
#[derive(Clone, Debug)]
pub struct XrcSrq {
    /// The XRC domain.
    pub domain: Arc<dyn XrcDomain>,
    /// The completion queue of its receives.
    pub cq: Arc<dyn CompletionQueue>,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// The largest number of outstanding receives.
    pub max_wr: u32,
    /// The largest number of elements of a scatter list.
    pub max_sge: u32,
    /// An event is raised when fewer receives than this are left; 0 means no event.
    pub limit: u32,
}

/// The parameters of a shared receive queue.
#[derive(Clone, Debug)]
pub struct SrqRequest {
    /// Protection domain.
    pub pd: u32,
    /// Sizes.
    pub attr: SrqAttr,
    /// The additional parameters of an XRC shared receive queue.
    pub xrc: Option<XrcSrq>,
    /// A number of the front end, which events carry.
    pub token: u64,
}

/// A shared receive queue.
pub trait SharedReceiveQueue: Send + Sync + Debug {
    /// Posts receives in order.
    fn post_recv(&self, list: &[RecvWr]) -> core::result::Result<(), PostFailure>;
    /// `ibv_modify_srq`: changes the size, the limit or both.
    fn modify(&self, _max_wr: Option<u32>, _limit: Option<u32>) -> Result<()> {
        lacks("shared receive queues that can be modified")
    }
    /// `ibv_query_srq`.
    fn query(&self) -> SrqAttr;
    /// `ibv_get_srq_num`.
    fn number(&self) -> u32;
    /// `ibv_destroy_srq`. `EBUSY`: queue pairs use it. An XRC shared receive queue may be destroyed at
    /// any time; the targets of its domain do not know its number any more then.
    fn destroy(&self) -> Result<()>;
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// The parameters of a queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct QpRequest {
    /// Protection domain. XRC targets have none.
    pub pd: Option<u32>,
    pub qp_type: QpType,
    /// The completion queue of its sends. XRC targets have none.
    pub send_cq: Option<Arc<dyn CompletionQueue>>,
    /// The completion queue of its receives. XRC queue pairs have none.
    pub recv_cq: Option<Arc<dyn CompletionQueue>>,
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// The XRC domain; for XRC targets only.
    pub xrcd: Option<Arc<dyn XrcDomain>>,
    pub sq_sig_all: bool,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
    /// A number of the front end, which events carry.
    pub token: u64,
}

/// The objects that a frozen queue pair uses when it is continued.
#[derive(Clone, Debug)]
pub struct ThawRequest {
    /// The protection domain, instead of its former one.
    pub pd: u32,
    /// The completion queue of its sends.
    pub send_cq: Option<Arc<dyn CompletionQueue>>,
    /// The completion queue of its receives. XRC queue pairs have none.
    pub recv_cq: Option<Arc<dyn CompletionQueue>>,
    /// The shared receive queue, if and only if it had one before.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// A number of the front end, which events carry.
    pub token: u64,
}

/// The destination of a UD send.
#[derive(Clone, Copy, Debug)]
pub struct UdTarget<'a> {
    /// Address handle.
    pub ah: &'a Arc<AddressHandle>,
    /// Remote queue pair number, 24 bits.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct SendRequest<'a> {
    pub wr_id: u64,
    pub op: SendOp,
    pub flags: SendFlags,
    pub data: SendData<'a>,
    /// The destination; for UD only.
    pub ud: Option<UdTarget<'a>>,
    /// The number of the peer's shared receive queue; for XRC only.
    pub xrc_srqn: u32,
}

/// A list of work requests was not accepted as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostFailure {
    /// The index of the first request that was not accepted.
    pub index: usize,
    /// The reason.
    pub error: Error,
}

/// A queue pair.
pub trait QueuePair: Send + Sync + Debug {
    /// Its number, 24 bits.
    fn number(&self) -> u32;
    /// `ibv_modify_qp`.
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()>;
    /// `ibv_query_qp`.
    fn query(&self) -> Result<QpAttr>;
    /// Posts sends in order. With `all_or_nothing`, either all are posted or none (`ibv_wr_complete`).
    fn post_send(
        &self,
        list: &[SendRequest<'_>],
        all_or_nothing: bool,
    ) -> core::result::Result<(), PostFailure>;
    /// Posts receives in order.
    fn post_recv(&self, list: &[RecvWr]) -> core::result::Result<(), PostFailure>;
    /// `ibv_attach_mcast`.
    fn attach_multicast(&self, _gid: [u8; 16]) -> Result<()> {
        lacks("multicast")
    }
    /// `ibv_detach_mcast`.
    fn detach_multicast(&self, _gid: [u8; 16]) -> Result<()> {
        lacks("multicast")
    }
    /// Makes it send by one member of a bond, from 1 on, while that carries
    /// (`polypath_modify_qp_lag_port`). `EINVAL`: there is no such member.
    fn set_lag_port(&self, _port: u8) -> Result<()> {
        lacks("bonded ports")
    }
    /// The member that was set, and the one that it last sent by; 0 for none
    /// (`polypath_query_qp_lag_port`).
    fn lag_ports(&self) -> Result<(u8, u8)> {
        lacks("bonded ports")
    }
    /// Ends the queue pair like [`QueuePair::destroy`], and returns it as bytes with a version, for
    /// [`Context::thaw_qp`]. For its peer this is a pause: the peer sends again for as long as its
    /// timers and retries allow, and packets that were in flight are sent again. The bytes contain the
    /// work requests that have not completed, also those of the receive queue. Completions that were
    /// generated stay in the completion queues, and so do events. `EBUSY`: it is attached to multicast
    /// groups, memory windows are bound to it or about to be, or datagrams have not been sent; it stays
    /// as it is. `EOPNOTSUPP`: it is an XRC target, which belongs to its domain.
    fn freeze(&self) -> Result<Vec<u8>> {
        lacks("queue pairs that can be frozen")
    }
    /// `ibv_destroy_qp`. Its completions are removed from the completion queues.
    fn destroy(&self) -> Result<()>;
}
