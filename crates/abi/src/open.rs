//! Opens and closes devices, and builds the tables that the headers' inline functions call through.

use core::ffi::c_void;
use core::mem::zeroed;
use core::ptr::null_mut;
use std::sync::Arc;

use libc::c_int;

use crate::context::{CContext, EventObject, Opened, of, untie};
use crate::forward::{refuse_errno, refuse_null, refuse_silently};
use crate::layout::{Pointer, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::qp::qp_of;
use crate::{
    buffer, cq, cq_make, device, dm, guard, identity, memory, pd, post, post_recv, qp_make, query,
    srq, xrc,
};

/// The number of completion vectors of a context. Interrupts are threads here, so more vectors
/// would have no effect.
const COMP_VECTORS: c_int = 1;

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
        post_recv: slot!(post_recv::post_recv),
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
        create_cq_ex: slot!(cq_make::create_cq_ex),
        private: null_mut(),
        query_device_ex: slot!(query::query_device_ex),
        destroy_flow: number,
        placeholder2: number,
        create_flow: object,
        placeholder1: object,
        open_qp: slot!(qp_make::open_qp),
        create_qp_ex: slot!(qp_make::create_qp_ex),
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
        // SAFETY: the trampoline passes only our devices, which are never freed.
        let inner = unsafe { device::of(device) }.open()?;
        let (cmd_fd, identity) = identity::command_fd()?;
        let opened = Opened::new(device, inner, identity);
        identity::remember(identity, &opened);
        Ok(wrap(opened, cmd_fd))
    })
}

/// Creates the C structure of an open device. Closing it closes `cmd_fd`.
pub(crate) fn wrap(opened: Arc<Opened>, cmd_fd: c_int) -> *mut ibv_context {
    // SAFETY: zero is a valid initial value of a pthread mutex, and of all other fields.
    let mut public: ibv_context = unsafe { zeroed() };
    public.device = opened.device();
    public.ops = operations();
    public.async_fd = opened.inner().async_fd();
    public.num_comp_vectors = COMP_VECTORS;
    public.abi_compat = core::ptr::without_provenance_mut(usize::MAX);
    public.cmd_fd = cmd_fd;
    CContext::leak(opened, extended(public))
}

/// Shuts an open device down after its last context was closed. As when the kernel loses the last
/// descriptor, every queue pair is destroyed and every key is invalidated, so that no peer accesses
/// memory that the program believes to be its own again. The program can still destroy the objects
/// that it has.
fn shut(opened: &Opened) {
    identity::forget(opened.identity());
    let queue_pairs: Vec<_> = {
        let live = opened.live();
        let inner = |target: &EventObject| match *target {
            // SAFETY: the objects in the table live as long as its lock is held.
            EventObject::Qp(qp) => Some(unsafe { qp_of(qp) }.inner().clone()),
            EventObject::Cq(_) | EventObject::Srq(_) => None,
        };
        live.values().filter_map(inner).collect()
    };
    for queue_pair in queue_pairs {
        // A queue pair that another thread is destroying right now is gone as well.
        let _ = queue_pair.destroy();
    }
    opened.inner().close();
}

/// Implements `ibv_close_device`. Peers can access nothing of it any more, see [`shut`]. Objects
/// that the program did not destroy keep what their destruction needs, see
/// [`Tie`](crate::context::Tie).
///
/// # Safety
/// `context` is one of ours and not closed yet.
pub(crate) unsafe extern "C-unwind" fn close_device(context: *mut ibv_context) -> c_int {
    guard::minus_one("ibv_close_device", || {
        // SAFETY: the caller promises that the context is open, so its tie exists, and the
        // descriptor is the context's own.
        unsafe {
            let this = of(context);
            if this.opened().is_last_closed() {
                shut(this.opened());
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
        // SAFETY: this is our context. Pointers are read as bytes.
        unsafe {
            let ops: [usize; 32] = core::mem::transmute((*context).ops);
            assert!(ops.iter().all(|&slot| slot != 0));
            let verbs = of(context).verbs();
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
        // SAFETY: these are our objects, each freed once, in the order of programs that have no
        // order.
        unsafe {
            let opened = Arc::downgrade(of(context).opened());
            let pd = pd::alloc_pd(context);
            let channel = channel::create_comp_channel(context);
            let cq = cq_make::create_cq(context, 1, null_mut(), channel, 0);
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
