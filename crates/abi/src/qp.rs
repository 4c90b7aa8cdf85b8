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
use crate::pd::PdTie;
use crate::wait::Counter;

/// A queue pair. All are created in the extended form.
#[repr(C)]
pub(crate) struct CQp {
    pub(crate) public: UnsafeCell<ibv_qp_ex>,
    /// Room for function pointers that future headers may add. They lead to a refusal.
    pub(crate) spare: [usize; 16],
    pub(crate) inner: Arc<dyn QueuePair>,
    pub(crate) token: u64,
    pub(crate) async_given: AtomicU32,
    pub(crate) qp_type: QpType,
    pub(crate) pd: Option<u32>,
    pub(crate) _pd: Option<PdTie>,
    pub(crate) init: ibv_qp_init_attr,
    /// Whether it was created for `ibv_wr_*`.
    pub(crate) extended: bool,
    pub(crate) builder: Builder,
    pub(crate) tie: Tie,
}

// SAFETY: the public structure is the first field, and `wrap` passes C its address.
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

    /// The state of `ibv_wr_*`.
    pub(crate) fn builder(&self) -> &Builder {
        &self.builder
    }

    /// Notes that an asynchronous event is delivered.
    pub(crate) fn async_given(&self) {
        self.async_given.fetch_add(1, Ordering::Relaxed);
    }

    /// The counter of acknowledged events.
    ///
    /// # Safety
    /// `qp` is one of ours.
    pub(crate) unsafe fn async_counter(qp: *mut ibv_qp) -> Counter {
        // SAFETY: the caller promises that the object lives, and these are its fields.
        unsafe {
            Counter {
                mutex: &raw mut (*qp).mutex,
                cond: &raw mut (*qp).cond,
                completed: &raw mut (*qp).events_completed,
            }
        }
    }

    /// Shows a state in the field that programs read without a call.
    pub(crate) fn show_state(&self, state: QpState) {
        // SAFETY: this is an atomic field of a live allocation.
        unsafe { (*self.public.get()).base.state.store(state as u32, Ordering::Relaxed) };
    }
}

/// A queue pair of ours.
///
/// # Safety
/// `qp` must be one of ours, not destroyed.
pub(crate) unsafe fn qp_of<'a>(qp: *const ibv_qp) -> &'a CQp {
    debug_assert_eq!(offset_of!(CQp, public), 0);
    // SAFETY: our queue pairs begin with the public structure.
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
        // SAFETY: it is null, or a structure of integers, which can be read whatever it contains.
        let attr = unsafe { attr.as_ref() };
        let (attr, mask) = attributes(attr.ok_or_else(|| null_argument("attr"))?, mask)?;
        qp.inner.modify(&attr, mask)?;
        if mask.contains(QpAttrMask::STATE) {
            qp.show_state(attr.state);
        }
        Ok(())
    })
}

/// Implements `ibv_query_qp`. It returns every attribute, whatever was requested.
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
    // SAFETY: the trampoline passes only our queue pairs. The wait for events is outside of the
    // guard, where nothing needs to be dropped. After it nobody else uses the queue pair.
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

/// Implements `ibv_qp_to_qp_ex`: null unless it was created with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`.
pub(crate) extern "C-unwind" fn qp_to_qp_ex(qp: Ours<CQp>) -> *mut ibv_qp_ex {
    if qp.extended { qp.public().cast() } else { core::ptr::null_mut() }
}

/// Implements `ibv_query_qp_data_in_order`: later data may be placed before earlier data.
pub(crate) extern "C-unwind" fn query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_int,
    _flags: u32,
) -> c_int {
    0
}

/// Implements `ibv_query_ece`: there are no vendor options. It does not return "vendor 0", because
/// programs take success to mean that there are options to agree on (rdma-core's own tests do).
pub(crate) extern "C-unwind" fn query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::errno_of("ibv_query_ece", || guard::unsupported("there are no vendor options"))
}

/// `ibv_set_ece`.
pub(crate) extern "C-unwind" fn set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::errno_of("ibv_set_ece", || guard::unsupported("there are no vendor options"))
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
