//! Shared receive queues.

use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, zeroed};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{Error, Result, SharedReceiveQueue, SrqAttr, SrqRequest, XrcSrq};

use crate::context::{EventObject, Tie, checked, is_usable, new_token};
use crate::guard::{self, null_argument};
use crate::layout::{
    Pointer, ibv_context, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};
use crate::ours::{Object, Ours};
use crate::pd::{CPd, PdTie, pd_of};
use crate::post_recv::post_receives;
use crate::wait::Counter;
use crate::{cq, xrc};

/// A shared receive queue.
#[repr(C)]
pub(crate) struct CSrq {
    public: UnsafeCell<ibv_srq>,
    inner: Arc<dyn SharedReceiveQueue>,
    token: u64,
    async_given: AtomicU32,
    _pd: PdTie,
    tie: Tie,
}

// SAFETY: the public structure is the first field, and `make` passes C its address.
unsafe impl Object for CSrq {
    type Public = ibv_srq;
}

impl CSrq {
    /// The traits' queue.
    pub(crate) fn inner(&self) -> &Arc<dyn SharedReceiveQueue> {
        &self.inner
    }

    /// Notes that an asynchronous event is delivered.
    pub(crate) fn async_given(&self) {
        self.async_given.fetch_add(1, Ordering::Relaxed);
    }

    /// The counter of acknowledged events.
    ///
    /// # Safety
    /// `srq` is one of ours.
    pub(crate) unsafe fn async_counter(srq: *mut ibv_srq) -> Counter {
        // SAFETY: the caller promises that the object lives, and these are its fields.
        unsafe {
            Counter {
                mutex: &raw mut (*srq).mutex,
                cond: &raw mut (*srq).cond,
                completed: &raw mut (*srq).events_completed,
            }
        }
    }
}

/// A shared receive queue of ours.
///
/// # Safety
/// `srq` must be one of ours, not destroyed.
pub(crate) unsafe fn srq_of<'a>(srq: *const ibv_srq) -> &'a CSrq {
    // SAFETY: our queues begin with the public structure.
    unsafe { &*srq.cast() }
}

/// Checks a shared receive queue that is passed as an argument. Null means none.
///
/// # Safety
/// `srq` is null or of any provider.
pub(crate) unsafe fn argument<'a>(srq: *const ibv_srq) -> Result<Option<&'a CSrq>> {
    // SAFETY: the queue of any provider begins with its context, which identifies its provider.
    unsafe {
        if srq.is_null() {
            return Ok(None);
        }
        if !is_usable((*srq).context) {
            return Err(Error::invalid("the shared receive queue belongs to another device"));
        }
        Ok(Some(srq_of(srq)))
    }
}

/// Creates a queue and writes its actual sizes back.
fn make(
    pd: &CPd,
    srq_context: Pointer,
    attr: &mut ibv_srq_attr,
    xrc: Option<XrcSrq>,
) -> Result<*mut ibv_srq> {
    let token = new_token();
    let owner = pd.context();
    // Only ibv_modify_srq() arms the limit (man 3 ibv_create_srq).
    let wanted = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0 };
    let request = SrqRequest { pd: pd.number(), attr: wanted, xrc, token };
    let inner = owner.inner().create_srq(&request)?;
    let got = inner.query();
    (attr.max_wr, attr.max_sge) = (got.max_wr, got.max_sge);
    // SAFETY: zero is valid for every field of the structure, including the mutex.
    let mut public: ibv_srq = unsafe { zeroed() };
    public.context = owner.public();
    public.srq_context = srq_context;
    public.pd = pd.public();
    public.handle = inner.number();
    let srq = Box::into_raw(Box::new(CSrq {
        public: UnsafeCell::new(public),
        inner,
        token,
        async_given: AtomicU32::new(0),
        _pd: PdTie::new(pd),
        tie: Tie::new(owner),
    }));
    owner.live().insert(token, EventObject::Srq(srq.cast()));
    Ok(srq.cast())
}

/// `ibv_create_srq`.
pub(crate) extern "C-unwind" fn create_srq(
    pd: Ours<CPd>,
    attr: Option<&mut ibv_srq_init_attr>,
) -> *mut ibv_srq {
    guard::pointer("ibv_create_srq", || {
        let attr = attr.ok_or_else(|| null_argument("srq_init_attr"))?;
        make(&pd, attr.srq_context, &mut attr.attr, None)
    })
}

/// The function in `ibv_create_srq_ex`'s slot, for basic and XRC queues. There is no tag matching.
///
/// # Safety
/// As the headers call it.
pub(crate) unsafe extern "C-unwind" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const MASK_TYPE: u32 = 1;
    const MASK_PD: u32 = 2;
    const MASK_XRCD: u32 = 4;
    const MASK_CQ: u32 = 8;
    const TYPE_BASIC: u32 = 0;
    const TYPE_XRC: u32 = 1;
    guard::pointer("ibv_create_srq_ex", || {
        // SAFETY: the headers pass null or the context of any provider, as `checked` requires, and
        // null or attributes that may be read and written. Their objects belong to its device and
        // are present if the mask says so.
        unsafe {
            checked(context)?;
            let attr = attr.as_mut().ok_or_else(|| null_argument("srq_init_attr_ex"))?;
            let has_type = attr.comp_mask & MASK_TYPE != 0;
            let xrc = match if has_type { attr.srq_type } else { TYPE_BASIC } {
                TYPE_BASIC => None,
                TYPE_XRC if attr.comp_mask & (MASK_XRCD | MASK_CQ) != MASK_XRCD | MASK_CQ => {
                    return Err(Error::invalid(
                        "an XRC shared receive queue needs an XRC domain and a completion queue",
                    ));
                }
                TYPE_XRC => Some(XrcSrq {
                    domain: xrc::argument(attr.xrcd)?.inner().clone(),
                    cq: cq::argument(attr.cq)?.inner().clone(),
                }),
                _ => return guard::unsupported("tag matching is not supported"),
            };
            if attr.comp_mask & MASK_PD == 0 || attr.pd.is_null() {
                return Err(Error::invalid("a shared receive queue needs a protection domain"));
            }
            make(pd_of(attr.pd), attr.srq_context, &mut attr.attr, xrc)
        }
    })
}

/// `ibv_get_srq_num`'s slot, which the headers call through the queue's own context.
pub(crate) extern "C-unwind" fn get_srq_num(
    srq: Option<Ours<CSrq>>,
    number: Option<&mut MaybeUninit<u32>>,
) -> c_int {
    guard::errno_of("ibv_get_srq_num", || {
        let (Some(srq), Some(number)) = (srq, number) else {
            return Err(null_argument("srq or srq_num"));
        };
        number.write(srq.inner.number());
        Ok(())
    })
}

/// `ibv_modify_srq`.
///
/// # Safety
/// `attr` is null or an `ibv_srq_attr`, of which only the fields that `mask` names are filled in.
pub(crate) unsafe extern "C-unwind" fn modify_srq(
    srq: Ours<CSrq>,
    attr: *const ibv_srq_attr,
    mask: c_int,
) -> c_int {
    const MAX_WR: c_int = 1;
    const LIMIT: c_int = 2;
    guard::errno_of("ibv_modify_srq", || {
        // SAFETY: it is null, or a structure of integers, which can be read whatever it contains.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null_argument("srq_attr"))?;
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(Error::invalid("unknown bits in srq_attr_mask"));
        }
        let max_wr = (mask & MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & LIMIT != 0).then_some(attr.srq_limit);
        srq.inner.modify(max_wr, limit)
    })
}

/// `ibv_query_srq`.
pub(crate) extern "C-unwind" fn query_srq(
    srq: Ours<CSrq>,
    attr: Option<&mut MaybeUninit<ibv_srq_attr>>,
) -> c_int {
    guard::errno_of("ibv_query_srq", || {
        let attr = attr.ok_or_else(|| null_argument("srq_attr"))?;
        let SrqAttr { max_wr, max_sge, limit } = srq.inner.query();
        attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit: limit });
        Ok(())
    })
}

/// `ibv_destroy_srq`.
///
/// # Safety
/// `srq` is one of ours.
pub(crate) unsafe extern "C-unwind" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let mut given = 0;
    // SAFETY: the trampoline passes only our queues. The wait for events is outside of the guard,
    // where nothing needs to be dropped. After it nobody else uses the queue.
    unsafe {
        let errno = guard::errno_of("ibv_destroy_srq", || {
            let this = srq_of(srq);
            this.inner.destroy()?;
            this.tie.context().live().remove(&this.token);
            given = this.async_given.load(Ordering::Acquire);
            Ok(())
        });
        if errno != 0 {
            return errno;
        }
        CSrq::async_counter(srq).wait(given);
        guard::run(libc::EIO, || {
            drop(Box::from_raw(srq.cast::<CSrq>()));
            0
        })
    }
}

/// `ibv_post_srq_recv`'s slot.
///
/// # Safety
/// `list` is a list of work requests that say where their elements are. `bad` is null or writable.
pub(crate) unsafe extern "C-unwind" fn post_srq_recv(
    srq: Ours<CSrq>,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the headers promise that the list and `bad` are as `post_receives` requires.
    unsafe { post_receives("ibv_post_srq_recv", list, bad, |batch| srq.inner.post_recv(batch)) }
}
