//! Queue pairs.

use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{QpAttrMask, QpState, QpType, QueuePair};

use crate::context::{CContext, Tie};
use crate::convert::{attributes, c_attributes, capacities};
use crate::draft::Builder;
use crate::guard::{self, null_argument};
use crate::layout::{ibv_ece, ibv_gid, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr};
use crate::ours::{Object, Ours};
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
    pub(crate) tie: Tie,
}

// SAFETY: the public structure is the first field, and `wrap` gives C its address.
unsafe impl Object for CQp {
    type Public = ibv_qp;
}

impl CQp {
    /// The traits' queue pair.
    pub(crate) fn inner(&self) -> &Arc<dyn QueuePair> {
        &self.inner
    }

    /// Its context.
    pub(crate) fn context(&self) -> &CContext {
        self.tie.context()
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
        // SAFETY: the fields are those of an object that lives, by the promise of the caller.
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
/// `attr` is null or an `ibv_qp_attr`, of which only the fields that `mask` names are filled in.
pub(crate) unsafe extern "C-unwind" fn modify_qp(
    qp: Ours<CQp>,
    attr: *const ibv_qp_attr,
    mask: c_int,
) -> c_int {
    guard::errno_of("ibv_modify_qp", || {
        // SAFETY: null, or a structure of integers, which can be read whatever is in it.
        let attr = unsafe { attr.as_ref() };
        let (attr, mask) = attributes(attr.ok_or_else(|| null_argument("attr"))?, mask)?;
        qp.inner.modify(&attr, mask)?;
        if mask.contains(QpAttrMask::STATE) {
            qp.show_state(attr.state);
        }
        Ok(())
    })
}

/// `ibv_query_qp`: gives every attribute, whatever was asked for.
pub(crate) extern "C-unwind" fn query_qp(
    qp: Ours<CQp>,
    attr: Option<&mut MaybeUninit<ibv_qp_attr>>,
    _mask: c_int,
    init: Option<&mut MaybeUninit<ibv_qp_init_attr>>,
) -> c_int {
    guard::errno_of("ibv_query_qp", || {
        let (Some(attr), Some(init)) = (attr, init) else {
            return Err(null_argument("attr or init_attr"));
        };
        let now = qp.inner.query()?;
        qp.show_state(now.state);
        attr.write(c_attributes(&now));
        init.write(ibv_qp_init_attr { cap: capacities(&now), ..qp.init });
        Ok(())
    })
}

/// `ibv_destroy_qp`.
///
/// # Safety
/// `qp` is one of ours.
pub(crate) unsafe extern "C-unwind" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let mut given = 0;
    // SAFETY: the trampoline passes queue pairs of ours alone. The events are waited for outside of the
    // guard, with nothing alive; then nobody else knows the queue pair.
    unsafe {
        let errno = guard::errno_of("ibv_destroy_qp", || {
            let this = qp_of(qp);
            let done = this.inner.destroy();
            if !this.context().is_shut() {
                done?;
            }
            this.context().live().remove(&this.token);
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
pub(crate) extern "C-unwind" fn qp_to_qp_ex(qp: Ours<CQp>) -> *mut ibv_qp_ex {
    if qp.extended { qp.public().cast() } else { core::ptr::null_mut() }
}

/// `ibv_query_qp_data_in_order`: data may be placed before what comes before it is there.
pub(crate) extern "C-unwind" fn query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_int,
    _flags: u32,
) -> c_int {
    0
}

/// `ibv_query_ece`: we have no options of any vendor. Not "vendor 0": programs take success as
/// options to agree upon (rdma-core's own tests do).
pub(crate) extern "C-unwind" fn query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::errno_of("ibv_query_ece", || guard::unsupported("no options of any vendor"))
}

/// `ibv_set_ece`.
pub(crate) extern "C-unwind" fn set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::errno_of("ibv_set_ece", || guard::unsupported("no options of any vendor"))
}

/// `ibv_attach_mcast`.
pub(crate) extern "C-unwind" fn attach_mcast(
    qp: Ours<CQp>,
    gid: Option<&ibv_gid>,
    _lid: u16,
) -> c_int {
    guard::errno_of("ibv_attach_mcast", || {
        qp.inner.attach_multicast(*gid.ok_or_else(|| null_argument("gid"))?)
    })
}

/// `ibv_detach_mcast`.
pub(crate) extern "C-unwind" fn detach_mcast(
    qp: Ours<CQp>,
    gid: Option<&ibv_gid>,
    _lid: u16,
) -> c_int {
    guard::errno_of("ibv_detach_mcast", || {
        qp.inner.detach_multicast(*gid.ok_or_else(|| null_argument("gid"))?)
    })
}
