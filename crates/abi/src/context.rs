//! Open devices: the structures that the headers' inline functions call through.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::{offset_of, zeroed};
use core::ptr::null_mut;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::c_int;
use polypath_verbs::{Context, Result};

use crate::cq::CCq;
use crate::forward::{is_our_context, refuse_errno, refuse_null, refuse_silently};
use crate::guard::{self, null_argument};
use crate::layout::{Pointer, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::qp::CQp;
use crate::srq::CSrq;
use crate::{buffer, cq, cq_ex, device, dm, import, memory, pd, post, qp, query, srq, xrc};

/// Completion vectors of a context: interrupts are threads here, more would mean nothing.
const COMP_VECTORS: c_int = 1;

/// An open device of ours, as a program sees it.
#[repr(C)]
pub(crate) struct CContext {
    /// Newer headers read fields before those that we know, after they have looked at `sz`; this
    /// keeps a program that does not look from reading what is not ours.
    headroom: [usize; 64],
    verbs: UnsafeCell<verbs_context>,
    opened: Arc<Opened>,
    /// Objects that are left, and one if it is not closed.
    ties: AtomicUsize,
}

/// What a context and those that were imported from it have in common.
pub(crate) struct Opened {
    device: *mut ibv_device,
    /// Contexts of it that are not closed.
    open: AtomicUsize,
    inner: Arc<dyn Context>,
    live: Mutex<HashMap<u64, Target>>,
    identity: import::Identity,
    process: u32,
}

// SAFETY: devices are never freed, and may be used by any thread.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Opened {
    /// Not a context that was opened before a fork, since its threads are not in the child.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Opened {
    /// Its last context was closed. As when the kernel loses the last descriptor of it: every queue pair
    /// is destroyed and every key is invalid, so that no peer reaches memory that the program believes to
    /// be its own again. What the program still has of its objects can be destroyed.
    fn shut(&self) {
        import::forget(self.identity);
        let queue_pairs: Vec<_> = {
            let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            let inner = |target: &Target| match *target {
                // SAFETY: what the table holds lives as long as its lock is held.
                Target::Qp(qp) => Some(unsafe { &*qp }.inner().clone()),
                Target::Cq(_) | Target::Srq(_) => None,
            };
            live.values().filter_map(inner).collect()
        };
        for queue_pair in queue_pairs {
            // One that another thread is destroying just now is gone as well.
            let _ = queue_pair.destroy();
        }
        self.inner.close();
    }
}

/// What a token of the traits stands for.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Cq(*mut CCq),
    Qp(*mut CQp),
    Srq(*mut CSrq),
}

// SAFETY: the objects may be used by any thread; the table only holds those that are not destroyed.
unsafe impl Send for Target {}

/// A guarded table of the objects that events may name.
pub(crate) type Live<'a> = MutexGuard<'a, HashMap<u64, Target>>;

/// A new token. They are never used twice, so that an event of an object that is gone finds nothing.
pub(crate) fn new_token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl CContext {
    /// The traits' context.
    pub(crate) fn inner(&self) -> &Arc<dyn Context> {
        &self.opened.inner
    }

    /// Whether the objects of one are those of the other: the same context, or one imported from it.
    pub(crate) fn shares_objects_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.opened, &other.opened)
    }

    /// The objects that events may name. An event is taken, looked up and counted under this lock,
    /// and an object leaves the table before its destruction waits for acknowledgements: so no
    /// event is given out that the wait would not see.
    pub(crate) fn live(&self) -> Live<'_> {
        self.opened.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its objects are gone, but for what the program has of them.
    pub(crate) fn is_shut(&self) -> bool {
        self.opened.open.load(Ordering::Acquire) == 0
    }

    /// The C structure.
    pub(crate) fn public(&self) -> *mut ibv_context {
        // SAFETY: a field of a live allocation; no reference is made.
        unsafe { &raw mut (*self.verbs.get()).context }
    }
}

/// A context of ours.
///
/// # Safety
/// `context` must be one of ours, not closed.
pub(crate) unsafe fn of<'a>(context: *const ibv_context) -> &'a CContext {
    let offset = offset_of!(CContext, verbs) + offset_of!(verbs_context, context);
    // SAFETY: contexts of ours lie inside of a `CContext`.
    unsafe { &*context.byte_sub(offset).cast() }
}

/// A context for a function that is called through the tables, by programs that may err.
///
/// # Safety
/// `context` must be null or a context of any provider.
pub(crate) unsafe fn checked<'a>(context: *const ibv_context) -> Result<&'a CContext> {
    // SAFETY: the caller's promise.
    unsafe {
        if is_our_context(context) { Ok(of(context)) } else { Err(null_argument("the context")) }
    }
}

/// Whether a context is one of ours: for objects that are arguments of something else.
///
/// # Safety
/// `context` must be null or a context of any provider.
pub(crate) unsafe fn is_usable(context: *const ibv_context) -> bool {
    // SAFETY: the caller's promise.
    unsafe { is_our_context(context) }
}

/// A slot's function as the tables hold it.
macro_rules! slot {
    ($function:path) => {
        $function as *const c_void as Pointer
    };
}

fn operations() -> ibv_context_ops {
    let number = slot!(refuse_errno);
    let object = slot!(refuse_null);
    ibv_context_ops {
        compat_query_device: slot!(query::query_device),
        compat_query_port: slot!(query::query_port_compat),
        compat_alloc_pd: object,
        compat_dealloc_pd: number,
        compat_reg_mr: object,
        compat_rereg_mr: number,
        compat_dereg_mr: number,
        alloc_mw: slot!(memory::alloc_mw),
        bind_mw: slot!(post::bind_mw),
        dealloc_mw: slot!(memory::dealloc_mw),
        compat_create_cq: object,
        poll_cq: slot!(cq::poll_cq),
        req_notify_cq: slot!(cq::req_notify_cq),
        compat_cq_event: slot!(refuse_silently),
        compat_resize_cq: number,
        compat_destroy_cq: number,
        compat_create_srq: object,
        compat_modify_srq: number,
        compat_query_srq: number,
        compat_destroy_srq: number,
        post_srq_recv: slot!(srq::post_srq_recv),
        compat_create_qp: object,
        compat_query_qp: number,
        compat_modify_qp: number,
        compat_destroy_qp: number,
        post_send: slot!(post::post_send),
        post_recv: slot!(post::post_recv),
        compat_create_ah: object,
        compat_destroy_ah: number,
        compat_attach_mcast: number,
        compat_detach_mcast: number,
        compat_async_event: slot!(refuse_silently),
    }
}

fn extended(context: ibv_context) -> verbs_context {
    let number = slot!(refuse_errno);
    let object = slot!(refuse_null);
    verbs_context {
        free_buf: slot!(buffer::free_buf),
        alloc_buf: slot!(buffer::alloc_buf),
        dm_export_dmabuf_fd: number,
        reg_mr_ex: slot!(buffer::reg_mr_ex),
        dealloc_dmah: number,
        alloc_dmah: object,
        query_port: slot!(query::query_port),
        advise_mr: slot!(memory::advise_mr),
        alloc_null_mr: slot!(memory::alloc_null_mr),
        read_counters: number,
        attach_counters_point_flow: number,
        create_counters: object,
        destroy_counters: number,
        reg_dm_mr: slot!(dm::reg_dm_mr),
        alloc_dm: slot!(dm::alloc_dm),
        free_dm: slot!(dm::free_dm),
        modify_flow_action_esp: number,
        destroy_flow_action: number,
        create_flow_action_esp: object,
        modify_qp_rate_limit: number,
        alloc_parent_domain: slot!(pd::alloc_parent_domain),
        dealloc_td: slot!(pd::dealloc_td),
        alloc_td: slot!(pd::alloc_td),
        modify_cq: slot!(cq::modify_cq),
        post_srq_ops: number,
        destroy_rwq_ind_table: number,
        create_rwq_ind_table: object,
        destroy_wq: number,
        modify_wq: number,
        create_wq: object,
        query_rt_values: slot!(query::query_rt_values),
        create_cq_ex: slot!(cq_ex::create_cq_ex),
        private: null_mut(),
        query_device_ex: slot!(query::query_device_ex),
        destroy_flow: number,
        placeholder2: number,
        create_flow: object,
        placeholder1: object,
        open_qp: slot!(qp::open_qp),
        create_qp_ex: slot!(qp::create_qp_ex),
        get_srq_num: slot!(srq::get_srq_num),
        create_srq_ex: slot!(srq::create_srq_ex),
        open_xrcd: slot!(xrc::open_xrcd),
        close_xrcd: slot!(xrc::close_xrcd),
        placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context,
    }
}

/// `ibv_open_device`.
///
/// # Safety
/// `device` is one of ours.
pub(crate) unsafe extern "C-unwind" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    guard::pointer("ibv_open_device", || {
        // SAFETY: the caller's promise.
        let inner = unsafe { device::of(device) }.open()?;
        let (cmd_fd, identity) = import::command_fd()?;
        let live = Mutex::new(HashMap::new());
        let process = std::process::id();
        let open = AtomicUsize::new(0);
        let opened = Arc::new(Opened { device, open, inner, live, identity, process });
        import::remember(identity, &opened);
        Ok(wrap(opened, cmd_fd))
    })
}

/// A C structure for an open device. It closes `cmd_fd` when it is closed.
pub(crate) fn wrap(opened: Arc<Opened>, cmd_fd: c_int) -> *mut ibv_context {
    // SAFETY: zero is a valid initial value of a pthread mutex, and of the rest.
    let mut public: ibv_context = unsafe { zeroed() };
    public.device = opened.device;
    public.ops = operations();
    public.async_fd = opened.inner.async_fd();
    public.num_comp_vectors = COMP_VECTORS;
    public.abi_compat = core::ptr::without_provenance_mut(usize::MAX);
    public.cmd_fd = cmd_fd;
    let verbs = UnsafeCell::new(extended(public));
    let ties = AtomicUsize::new(1);
    opened.open.fetch_add(1, Ordering::Relaxed);
    Box::leak(Box::new(CContext { headroom: [0; 64], verbs, opened, ties })).public()
}

/// What ties an object to its context. Programs should destroy objects before they close their
/// context, yet some close it first, and then destroy what is left (collectors of garbage have no
/// order): every call looks into the object's context, so it stays until its last object is gone.
pub(crate) struct Tie(*mut ibv_context);

impl Tie {
    /// # Safety
    /// `context` is one of ours.
    pub(crate) unsafe fn new(context: *mut ibv_context) -> Self {
        // SAFETY: the caller's promise.
        unsafe { of(context) }.ties.fetch_add(1, Ordering::Relaxed);
        Self(context)
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        // SAFETY: a context is there as long as it has ties, and this is one.
        unsafe { untie(self.0) };
    }
}

/// Takes a tie away; with the last one, the context.
///
/// # Safety
/// `context` is one of ours, and the tie was there.
unsafe fn untie(context: *mut ibv_context) {
    // SAFETY: the caller's promise; after the last tie nobody knows the context, and the box is the
    // one that `wrap` leaked.
    unsafe {
        let this = of(context);
        if this.ties.fetch_sub(1, Ordering::AcqRel) == 1 {
            let this = Box::from_raw(core::ptr::from_ref(this).cast_mut());
            debug_assert!(this.headroom.iter().all(|&word| word == 0));
        }
    }
}

/// `ibv_close_device`. Peers reach nothing of it any more, see [`Opened::shut`]; objects that the program
/// did not destroy keep what they need to be destroyed, see [`Tie`].
///
/// # Safety
/// `context` is one of ours and not closed yet.
pub(crate) unsafe extern "C-unwind" fn close_device(context: *mut ibv_context) -> c_int {
    guard::minus_one("ibv_close_device", || {
        // SAFETY: the caller's promise: the tie of an open context is there, and the descriptor is the
        // context's own.
        unsafe {
            let this = of(context);
            if this.opened.open.fetch_sub(1, Ordering::AcqRel) == 1 {
                this.opened.shut();
            }
            libc::close((*context).cmd_fd);
            (*context).cmd_fd = -1;
            untie(context);
        }
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{channel, double};

    #[test]
    fn every_slot_of_both_tables_is_filled() {
        let context = double::open();
        // SAFETY: a context of ours; pointers are read as bytes.
        unsafe {
            let ops: [usize; 32] = core::mem::transmute((*context).ops);
            assert!(ops.iter().all(|&slot| slot != 0));
            let verbs = of(context).verbs.get();
            let slots: [usize; 45] = verbs.cast::<[usize; 45]>().read();
            for (at, &slot) in slots.iter().enumerate() {
                let is_data = at == 32 || at == 44; // private, placeholder3
                assert_eq!(slot == 0, is_data, "slot {at}");
            }
            assert_eq!((*verbs).sz, size_of::<verbs_context>());
            assert_eq!((*context).abi_compat.addr(), usize::MAX);
            assert_eq!(close_device(context), 0);
        }
    }

    #[test]
    fn a_closed_context_stays_until_its_last_object_is_gone() {
        let context = double::open();
        // SAFETY: objects of ours, each freed once, as programs do it that have no order.
        unsafe {
            let opened = Arc::downgrade(&of(context).opened);
            let pd = pd::alloc_pd(context);
            let channel = channel::create_comp_channel(context);
            let cq = cq::create_cq(context, 1, null_mut(), channel, 0);
            let mr = memory::reg_mr(pd, null_mut(), 0, 0);
            assert_eq!(close_device(context), 0);
            assert_eq!(pd::dealloc_pd(pd), 0);
            assert_eq!((cq::destroy_cq(cq), channel::destroy_comp_channel(channel)), (0, 0));
            assert!(opened.upgrade().is_some());
            assert_eq!(memory::dereg_mr(mr), 0);
            assert!(opened.upgrade().is_none());
        }
    }
}
