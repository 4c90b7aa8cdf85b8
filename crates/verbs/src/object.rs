//! Devices, contexts and the objects that a context creates.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::Arc;

use polypath_types::{
    Access, AhAttr, Completion, QpAttr, QpAttrMask, QpType, RecvWr, SendData, SendFlags, SendOp,
};

use crate::{AddressHandle, AsyncEvent, DeviceAttr, DeviceInfo, Error, GidEntry, PortAttr, Result};

/// A device that can be opened.
pub trait Device: Send + Sync + Debug {
    /// What it is.
    fn info(&self) -> &DeviceInfo;
    /// Opens it (`ibv_open_device`).
    fn open(&self) -> Result<Arc<dyn Context>>;
}

/// An error for what a device does not have.
fn lacks<T>(what: &str) -> Result<T> {
    Err(Error::unsupported(format!("this device has no {what}")))
}

/// An open device. Protection domains and memory windows are plain numbers of the context.
///
/// A device says what it is and how it tells events; it implements the verbs that it has. Each of the
/// others answers `EOPNOTSUPP` and names what the device lacks, as rdma-core's dummy operations do, so
/// a new verb with such a body touches no device that lacks it.
pub trait Context: Send + Sync + Debug {
    /// The device was closed (`ibv_close_device` of the last one who had it open). Its queue pairs have
    /// been destroyed. What it has registered is deregistered, windows are gone, and nothing more can be
    /// registered; the program may still destroy what it has left.
    fn close(&self) {}
    /// `ibv_query_device`.
    fn attributes(&self) -> DeviceAttr;
    /// `ibv_query_port`; ports count from 1.
    fn query_port(&self, port: u8) -> Result<PortAttr>;
    /// `ibv_query_gid_ex`; `Ok(None)`: the entry is empty.
    fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>>;
    /// All entries in use.
    fn gid_table(&self) -> Vec<GidEntry>;
    /// Asynchronous events: becomes readable (an eventfd in semaphore mode: one 8-byte read an
    /// event, then [`Context::take_async_event`]).
    fn async_fd(&self) -> RawFd;
    /// The next asynchronous event.
    fn take_async_event(&self) -> Option<AsyncEvent>;
    /// Nanoseconds of the clock that completions are stamped with (`CLOCK_REALTIME`).
    fn clock_ns(&self) -> u64;

    /// `ibv_alloc_pd`.
    fn alloc_pd(&self) -> Result<u32> {
        lacks("protection domains")
    }
    /// `ibv_dealloc_pd`; `EBUSY` while in use.
    fn dealloc_pd(&self, _pd: u32) -> Result<()> {
        lacks("protection domains")
    }
    /// `ibv_reg_mr` and its relatives.
    ///
    /// # Safety
    /// Until [`MemoryRegion::deregister`] returns, this device reads and writes the range, as work requests
    /// and the peers that know its keys ask, and it tells nobody when. So nothing in the range may be
    /// what a Rust program relies on to stay as it is: no reference to it is held but those of cells
    /// and atomics. The range need not be mapped: an access to what is not fails with a completion.
    #[allow(unsafe_code)]
    unsafe fn reg_mr(&self, _request: &MrRequest) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions")
    }
    /// As [`Context::reg_mr`], with a key that the program gives, because its peers or its guest know it
    /// already, as after a migration. It is lkey and rkey. `EADDRINUSE`: something of this context has one
    /// that differs in the last 8 bits at most. `EINVAL`: keys below 0x100 are nobody's.
    ///
    /// # Safety
    /// As of [`Context::reg_mr`].
    #[allow(unsafe_code)]
    unsafe fn reg_mr_with_key(
        &self,
        _request: &MrRequest,
        _key: u32,
    ) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions with given keys")
    }
    /// Registers a region that is made of pages, which lie anywhere in the process, in the order of the
    /// list: as a driver registers the scattered pages of a guest. Peers and work requests see one range.
    /// `EINVAL`: the pages are not aligned, or do not have the range; `EFAULT`: one of them is not there.
    /// Else as of [`Context::reg_mr_with_key`].
    ///
    /// # Safety
    /// As of [`Context::reg_mr`], for each page.
    #[allow(unsafe_code)]
    unsafe fn reg_pages(&self, _request: &PagesRequest<'_>) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions of page lists")
    }
    /// `ibv_reg_dmabuf_mr`: `len` bytes from `offset` of the DMA-BUF behind `fd`; `addr` of the
    /// request means nothing.
    fn reg_dmabuf_mr(
        &self,
        _request: &MrRequest,
        _fd: RawFd,
        _offset: u64,
    ) -> Result<Arc<dyn MemoryRegion>> {
        lacks("regions of DMA-BUFs")
    }
    /// `ibv_alloc_null_mr`: local reads give zeros, local writes vanish; its rkey is 0.
    fn alloc_null_mr(&self, _pd: u32) -> Result<Arc<dyn MemoryRegion>> {
        lacks("null memory region")
    }
    /// `ibv_alloc_dm`: `len` zeroed bytes, aligned to `1 << log_align`.
    fn alloc_dm(&self, _len: u64, _log_align: u32) -> Result<Arc<dyn DeviceMemory>> {
        lacks("memory of its own")
    }
    /// `ibv_import_pd`: `EINVAL` if there is no such protection domain.
    fn import_pd(&self, _pd: u32) -> Result<()> {
        lacks("protection domains to import")
    }
    /// `ibv_import_mr`: another handle of a region of this protection domain, by its lkey. Whoever
    /// deregisters it first, does.
    fn import_mr(&self, _pd: u32, _handle: u32) -> Result<Arc<dyn MemoryRegion>> {
        lacks("memory regions to import")
    }
    /// `ibv_import_dm`: another handle, by [`DeviceMemory::handle`].
    fn import_dm(&self, _handle: u32) -> Result<Arc<dyn DeviceMemory>> {
        lacks("memory of its own")
    }
    /// `ibv_alloc_mw`: gives the window's number and rkey. `mw_type` is 1 or 2.
    fn alloc_mw(&self, _pd: u32, _mw_type: u8) -> Result<(u32, u32)> {
        lacks("memory windows")
    }
    /// `ibv_dealloc_mw`.
    fn dealloc_mw(&self, _mw: u32) -> Result<()> {
        lacks("memory windows")
    }
    /// Says what a bind that is about to be posted to queue pair `qpn` ([`SendOp::BindMw`] with the
    /// same `mw` and `rkey`) asks for.
    fn stage_bind(&self, _pd: u32, _qpn: u32, _mw: u32, _rkey: u32, _bind: &MwBind) -> Result<()> {
        lacks("memory windows")
    }
    /// Takes back [`Context::stage_bind`]: the post was refused.
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
    /// `ibv_open_qp`: another handle to an XRC target of the domain. `token` comes back in events.
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
    /// Continues a queue pair that [`QueuePair::freeze`] ended, in whatever context, engine, process or
    /// host, under its number and with its sizes. What it works with here is in the request: before, the
    /// program registers its memory under the same keys ([`Context::reg_mr_with_key`]). `EINVAL`: the
    /// bytes are no frozen queue pair, or one of another kind than the request is for. Else as of
    /// [`Context::create_qp_with_number`]. After an error the bytes are as good as before.
    fn thaw_qp(&self, _request: &ThawRequest, _frozen: &[u8]) -> Result<Arc<dyn QueuePair>> {
        lacks("queue pairs that can be frozen")
    }
    /// As [`Context::create_qp`], with a number that the program gives, because its peers or its guest know
    /// it already, as after a migration. `EADDRINUSE`: the number is in use, or is one of those that
    /// another process has. `EADDRNOTAVAIL`: no queue pair of the device ever has that number. `EINVAL`: the
    /// number is reserved (0, 1, 0xffffff) or has more than 24 bits.
    fn create_qp_with_number(
        &self,
        _request: &QpRequest,
        _number: u32,
    ) -> Result<Arc<dyn QueuePair>> {
        lacks("queue pairs with given numbers")
    }
}

/// What to register.
#[derive(Clone, Copy, Debug)]
pub struct MrRequest {
    /// Protection domain.
    pub pd: u32,
    /// Address in the process.
    pub addr: usize,
    /// Bytes; 0 is allowed and gives a region that nothing can be accessed in.
    pub len: usize,
    /// Address that work requests use for the first byte.
    pub iova: u64,
    /// Rights.
    pub access: Access,
}

/// What to register of pages.
#[derive(Clone, Copy, Debug)]
pub struct PagesRequest<'a> {
    /// Protection domain.
    pub pd: u32,
    /// Addresses in the process of the pages, in their order; multiples of their size.
    pub pages: &'a [usize],
    /// Bytes of each page: a power of two, at least 4096.
    pub page_size: usize,
    /// Where the region begins in the first page.
    pub offset: usize,
    /// Bytes; the pages have at least `offset + len`.
    pub len: usize,
    /// Address that work requests use for the first byte. Atomics want it to lie as `offset` does,
    /// modulo 8.
    pub iova: u64,
    /// Rights; without `ON_DEMAND`.
    pub access: Access,
    /// A key that somebody knows already; `None`: any.
    pub key: Option<u32>,
}

/// What a memory window is bound to (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug)]
pub struct MwBind {
    /// rkey of the region.
    pub region: u32,
    /// First byte, as the region's addresses count.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
}

/// A memory region.
pub trait MemoryRegion: Send + Sync + Debug {
    /// Key for local work requests.
    fn lkey(&self) -> u32;
    /// Key for peers.
    fn rkey(&self) -> u32;
    /// Bytes, as they were when this handle was made.
    fn len(&self) -> usize;
    /// Whether nothing can be accessed in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// `ibv_rereg_mr`: `None` keeps what is.
    ///
    /// # Safety
    /// As of [`Context::reg_mr`], for the new range.
    #[allow(unsafe_code)]
    unsafe fn reregister(
        &self,
        _pd: Option<u32>,
        _range: Option<(usize, usize, u64)>,
        _access: Option<Access>,
    ) -> Result<()> {
        lacks("way to register a region again: deregister it and register another")
    }
    /// `ibv_dereg_mr`: when it returns, nothing touches the memory any more. `EBUSY` while
    /// windows are bound to it.
    fn deregister(&self) -> Result<()>;
}

/// Device memory (`man 3 ibv_alloc_dm`). Offsets and lengths are multiples of four.
pub trait DeviceMemory: Send + Sync + Debug {
    /// What [`Context::import_dm`] knows it by.
    fn handle(&self) -> u32;
    /// `ibv_memcpy_to_dm`; `EFAULT` outside of it.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// `ibv_memcpy_from_dm`; `EFAULT` outside of it.
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<()>;
    /// `ibv_reg_dm_mr`; `access` has `ZERO_BASED`. `EINVAL` outside of it.
    fn register(
        &self,
        pd: u32,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>>;
    /// `ibv_free_dm`; `EBUSY` while there are regions of it.
    fn free(&self) -> Result<()>;
}

/// A completion channel: readable when a completion queue has an event (an eventfd in semaphore
/// mode: read 8 bytes for each event, then [`CompletionChannel::take`]).
pub trait CompletionChannel: Send + Sync + Debug {
    /// The eventfd. `O_NONBLOCK` is the application's to set.
    fn fd(&self) -> RawFd;
    /// The token of the completion queue that has the next event.
    fn take(&self) -> Option<u64>;
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// What to create a completion queue with.
#[derive(Clone, Debug)]
pub struct CqRequest {
    /// Fewest entries.
    pub cqe: u32,
    /// Where its events go.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// Comes back in events.
    pub token: u64,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    pub ignore_overrun: bool,
}

/// A completion with its time.
#[derive(Clone, Copy, Debug)]
pub struct Wc {
    /// The completion.
    pub completion: Completion,
    /// When it was generated: nanoseconds, see [`Context::clock_ns`].
    pub timestamp: u64,
}

/// A completion queue.
pub trait CompletionQueue: Send + Sync + Debug {
    /// Takes up to `limit` completions and hands each to `sink`, in order; drives the device's
    /// lanes first when there is none. Gives how many. An error if the queue has overrun.
    fn poll(&self, limit: usize, sink: &mut dyn FnMut(&Wc)) -> Result<usize>;
    /// `ibv_req_notify_cq`.
    fn arm(&self, solicited_only: bool) -> Result<()>;
    /// `ibv_resize_cq`: gives the new size. `EINVAL` if it holds more than that.
    fn resize(&self, _cqe: u32) -> Result<u32> {
        lacks("completion queues that can be resized")
    }
    /// Entries it can hold.
    fn capacity(&self) -> u32;
    /// `ibv_modify_cq` moderation: an armed queue's event comes when `count` completions that it
    /// is for have come, or when the first of them is `period_us` old, whichever is first. It is not
    /// held back for a failed completion, nor when half of the entries are taken. Off, as at first,
    /// if `count` is below 2 or the period 0.
    fn moderate(&self, _count: u16, _period_us: u16) -> Result<()> {
        lacks("moderation of completion events")
    }
    /// `ibv_destroy_cq`; `EBUSY` while queue pairs use it.
    fn destroy(&self) -> Result<()>;
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// Which XRC domain to open (`struct ibv_xrcd_init_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrcdRequest {
    /// Device and inode number of the file that stands for the domain; `None`: a domain of one's own.
    pub file: Option<(u64, u64)>,
    /// Make it if it is not there (`O_CREAT`); always done without a file.
    pub create: bool,
    /// Refuse it if it is there already (`O_EXCL`).
    pub exclusive: bool,
}

/// A handle to an XRC domain: what its targets receive goes to its shared receive queues.
pub trait XrcDomain: Send + Sync + Debug {
    /// `ibv_close_xrcd`; `EBUSY` while anything was made with this handle.
    fn close(&self) -> Result<()>;
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// What makes a shared receive queue one of XRC.
#[derive(Clone, Debug)]
pub struct XrcSrq {
    /// Domain.
    pub domain: Arc<dyn XrcDomain>,
    /// Where its receives complete.
    pub cq: Arc<dyn CompletionQueue>,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Most outstanding receives.
    pub max_wr: u32,
    /// Most elements of a scatter list.
    pub max_sge: u32,
    /// Event when fewer than this are left; 0: none.
    pub limit: u32,
}

/// What to create a shared receive queue with.
#[derive(Clone, Debug)]
pub struct SrqRequest {
    /// Protection domain.
    pub pd: u32,
    /// Sizes.
    pub attr: SrqAttr,
    /// Of XRC.
    pub xrc: Option<XrcSrq>,
    /// Comes back in events.
    pub token: u64,
}

/// A shared receive queue.
pub trait SharedReceiveQueue: Send + Sync + Debug {
    /// Posts receives in order.
    fn post_recv(&self, list: &[RecvWr]) -> core::result::Result<(), PostFailure>;
    /// `ibv_modify_srq`: new size and/or limit.
    fn modify(&self, _max_wr: Option<u32>, _limit: Option<u32>) -> Result<()> {
        lacks("shared receive queues that can be modified")
    }
    /// `ibv_query_srq`.
    fn query(&self) -> SrqAttr;
    /// `ibv_get_srq_num`.
    fn number(&self) -> u32;
    /// `ibv_destroy_srq`; `EBUSY` while queue pairs use it. One of XRC may go at any time: its
    /// number is then unknown to the targets of its domain.
    fn destroy(&self) -> Result<()>;
    /// The device's own type.
    fn as_any(&self) -> &dyn Any;
}

/// What to create a queue pair with (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct QpRequest {
    /// All but XRC targets have one.
    pub pd: Option<u32>,
    pub qp_type: QpType,
    /// All but XRC targets have one.
    pub send_cq: Option<Arc<dyn CompletionQueue>>,
    /// All but XRC queue pairs have one.
    pub recv_cq: Option<Arc<dyn CompletionQueue>>,
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// XRC targets only.
    pub xrcd: Option<Arc<dyn XrcDomain>>,
    pub sq_sig_all: bool,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline: u32,
    /// Comes back in events.
    pub token: u64,
}

/// What a frozen queue pair works with where it is continued.
#[derive(Clone, Debug)]
pub struct ThawRequest {
    /// Protection domain, in place of the one that it had.
    pub pd: u32,
    /// Where its sends complete.
    pub send_cq: Option<Arc<dyn CompletionQueue>>,
    /// Where its receives complete; all but XRC queue pairs have one.
    pub recv_cq: Option<Arc<dyn CompletionQueue>>,
    /// If it had one, it needs one.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// Comes back in events.
    pub token: u64,
}

/// Where a UD send goes.
#[derive(Clone, Copy, Debug)]
pub struct UdTarget<'a> {
    /// Address handle.
    pub ah: &'a Arc<AddressHandle>,
    /// Remote queue pair.
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
    /// UD only.
    pub ud: Option<UdTarget<'a>>,
    /// XRC only: number of the peer's shared receive queue.
    pub xrc_srqn: u32,
}

/// A list of work requests was not accepted from `index` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostFailure {
    /// The first that was not accepted.
    pub index: usize,
    /// Why that one was not accepted.
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
    /// Posts sends in order; with `all_or_nothing` none is posted if one can't be
    /// (`ibv_wr_complete`).
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
    /// Ends the queue pair, as [`QueuePair::destroy`] does, and gives it as bytes with a version, for
    /// [`Context::thaw_qp`]. To its peer that is a pause: it asks again for as long as its timers and
    /// retries say, and what was in flight is sent again. Work requests that have not completed go
    /// along, those of the receive queue included; completions that were generated stay in the
    /// completion queues, and so do events. `EBUSY`, and the queue pair stays as it is: multicast groups,
    /// memory windows that are bound to it or about to be, or datagrams that have not left. `EOPNOTSUPP`:
    /// an XRC target, which its domain has.
    fn freeze(&self) -> Result<Vec<u8>> {
        lacks("queue pairs that can be frozen")
    }
    /// `ibv_destroy_qp`: its completions leave the completion queues.
    fn destroy(&self) -> Result<()>;
}
