//! Queue pairs.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{QpAttrMask, QpState, QpType, QueuePair, Result};

use crate::context::{Tie, of};
use crate::convert::{attributes, c_attributes, capacities};
use crate::draft::Builder;
use crate::guard::{self, null_argument};
use crate::layout::{ibv_ece, ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr};
use crate::wait::Counter;

/// A queue pair. Every one is made in the extended shape.
#[repr(C)]
pub(crate) struct CQp {
    pub(crate) public: UnsafeCell<ibv_qp_ex>,
    /// For function pointers that future headers may add: they lead to a refusal.
    pub(crate) spare: [usize; 16],
    pub(crate) inner: Arc<dyn QueuePair>,
    pub(crate) token: u64,
    pub(crate) async_given: AtomicU32,
    pub(crate) qp_type: QpType,
    pub(crate) pd: Option<u32>,
    pub(crate) init: ibv_qp_init_attr,
    /// Whether it was made for `ibv_wr_*`.
    pub(crate) extended: bool,
    pub(crate) builder: Builder,
    pub(crate) _tie: Tie,
}

impl CQp {
    /// The traits' queue pair.
    pub(crate) fn inner(&self) -> &Arc<dyn QueuePair> {
        &self.inner
    }

    /// The C structure.
    pub(crate) fn public(&self) -> *mut ibv_qp_ex {
        self.public.get()
    }

    /// The transport service.
    pub(crate) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// The traits' number of the protection domain, if there is one.
    pub(crate) fn pd_number(&self) -> Option<u32> {
        self.pd
    }

    /// What `ibv_wr_*` work with.
    pub(crate) fn builder(&self) -> &Builder {
        &self.builder
    }

    /// An asynchronous event is given out.
    pub(crate) fn async_given(&self) {
        self.async_given.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts acknowledged events.
    ///
    /// # Safety
    /// `qp` is one of ours.
    pub(crate) unsafe fn async_counter(qp: *mut ibv_qp) -> Counter {
        // SAFETY: the caller's promise.
        unsafe {
            Counter {
                mutex: &raw mut (*qp).mutex,
                cond: &raw mut (*qp).cond,
                completed: &raw mut (*qp).events_completed,
            }
        }
    }

    /// Shows a state where programs look at it without a call.
    pub(crate) fn show_state(&self, state: QpState) {
        // SAFETY: an atomic field of a live allocation.
        unsafe { (*self.public.get()).base.state.store(state as u32, Ordering::Relaxed) };
    }
}

/// A queue pair of ours.
///
/// # Safety
/// `qp` must be one of ours, not destroyed.
pub(crate) unsafe fn qp_of<'a>(qp: *const ibv_qp) -> &'a CQp {
    debug_assert_eq!(offset_of!(CQp, public), 0);
    // SAFETY: ours begin with the public structure.
    unsafe { &*qp.cast() }
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` is one of ours; `attr` is null or readable.
pub(crate) unsafe extern "C-unwind" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *const ibv_qp_attr,
    mask: c_int,
) -> c_int {
    guard::errno_of("ibv_modify_qp", || {
        // SAFETY: the caller's promise.
        let (this, attr) = unsafe { (qp_of(qp), attr.as_ref()) };
        let (attr, mask) = attributes(attr.ok_or_else(|| null_argument("attr"))?, mask)?;
        this.inner.modify(&attr, mask)?;
        if mask.contains(QpAttrMask::STATE) {
            this.show_state(attr.state);
        }
        Ok(())
    })
}

/// `ibv_query_qp`: gives every attribute, whatever was asked for.
///
/// # Safety
/// `qp` is one of ours; `attr` and `init` are null or writable.
pub(crate) unsafe extern "C-unwind" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard::errno_of("ibv_query_qp", || {
        if attr.is_null() || init.is_null() {
            return Err(null_argument("attr or init_attr"));
        }
        // SAFETY: the caller's promise.
        unsafe {
            let this = qp_of(qp);
            let now = this.inner.query()?;
            this.show_state(now.state);
            attr.write(c_attributes(&now));
            init.write(ibv_qp_init_attr { cap: capacities(&now), ..this.init });
        }
        Ok(())
    })
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// `qp` is one of ours.
pub(crate) unsafe extern "C-unwind" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let mut given = 0;
    // SAFETY: the caller's promise. The events are waited for outside of the guard, with nothing
    // alive; then nobody else knows the queue pair.
    unsafe {
        let errno = guard::errno_of("ibv_destroy_qp", || {
            let this = qp_of(qp);
            let done = this.inner.destroy();
            if !of((*qp).context).is_shut() {
                done?;
            }
            of((*qp).context).live().remove(&this.token);
            given = this.async_given.load(Ordering::Acquire);
            Ok(())
        });
        if errno != 0 {
            return errno;
        }
        CQp::async_counter(qp).wait(given);
        guard::run(libc::EIO, || {
            let this = Box::from_raw(qp.cast::<CQp>());
            debug_assert!(this.spare.iter().all(|&slot| slot == this.spare[0]));
            0
        })
    }
}

/// `ibv_qp_to_qp_ex`: null unless it was made with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
///
/// # Safety
/// `qp` is one of ours.
pub(crate) unsafe extern "C-unwind" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the caller's promise.
    if unsafe { qp_of(qp) }.extended { qp.cast() } else { core::ptr::null_mut() }
}

/// `ibv_query_qp_data_in_order`: data may be placed before what comes before it is there.
///
/// # Safety
/// None needed.
pub(crate) unsafe extern "C-unwind" fn query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_int,
    _flags: u32,
) -> c_int {
    0
}

/// `ibv_query_ece`: we have no options of any vendor. Not "vendor 0": programs take success as
/// options to agree upon (rdma-core's own tests do).
///
/// # Safety
/// None needed.
pub(crate) unsafe extern "C-unwind" fn query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::errno_of("ibv_query_ece", || guard::unsupported("no options of any vendor"))
}

/// `ibv_set_ece`.
///
/// # Safety
/// None needed.
pub(crate) unsafe extern "C-unwind" fn set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::errno_of("ibv_set_ece", || guard::unsupported("no options of any vendor"))
}

/// Attaches to a multicast group, or detaches.
///
/// # Safety
/// `qp` is one of ours; `gid` is null or readable.
unsafe fn multicast(qp: *mut ibv_qp, gid: *const ibv_gid, attach: bool) -> Result<()> {
    // SAFETY: the caller's promise.
    let (qp, gid) = unsafe { (qp_of(qp), *gid.as_ref().ok_or_else(|| null_argument("gid"))?) };
    if attach { qp.inner.attach_multicast(gid) } else { qp.inner.detach_multicast(gid) }
}

/// `ibv_attach_mcast`.
///
/// # Safety
/// `qp` is one of ours; `gid` is null or readable.
pub(crate) unsafe extern "C-unwind" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller's promise.
    guard::errno_of("ibv_attach_mcast", || unsafe { multicast(qp, gid, true) })
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// `qp` is one of ours; `gid` is null or readable.
pub(crate) unsafe extern "C-unwind" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: the caller's promise.
    guard::errno_of("ibv_detach_mcast", || unsafe { multicast(qp, gid, false) })
}
