//! Devices and contexts.

use libc::{c_char, c_int, pthread_mutex_t, size_t};

use super::{Pointer, assert_layout};

/// A device, as programs see it.
#[repr(C)]
pub(crate) struct ibv_device {
    /// rdma-core never uses it; ours contain a mark, see [`crate::device`].
    pub(crate) ops: [Pointer; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; 64],
    pub(crate) dev_name: [c_char; 64],
    pub(crate) dev_path: [c_char; 256],
    pub(crate) ibdev_path: [c_char; 256],
}

/// The structure that rdma-core has around every `ibv_device`. `mlx5dv_is_supported()` and similar
/// functions read `ops` of any device, and `ibv_import_device()` follows `sysfs`.
#[repr(C)]
pub(crate) struct verbs_device {
    pub(crate) device: ibv_device,
    pub(crate) ops: Pointer,
    pub(crate) refcount: c_int,
    pub(crate) entry: [Pointer; 2],
    pub(crate) sysfs: Pointer,
    pub(crate) core_support: u64,
}

/// The table of functions that the headers' inline functions call.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_context_ops {
    pub(crate) compat_query_device: Pointer,
    pub(crate) compat_query_port: Pointer,
    pub(crate) compat_alloc_pd: Pointer,
    pub(crate) compat_dealloc_pd: Pointer,
    pub(crate) compat_reg_mr: Pointer,
    pub(crate) compat_rereg_mr: Pointer,
    pub(crate) compat_dereg_mr: Pointer,
    pub(crate) alloc_mw: Pointer,
    pub(crate) bind_mw: Pointer,
    pub(crate) dealloc_mw: Pointer,
    pub(crate) compat_create_cq: Pointer,
    pub(crate) poll_cq: Pointer,
    pub(crate) req_notify_cq: Pointer,
    pub(crate) compat_cq_event: Pointer,
    pub(crate) compat_resize_cq: Pointer,
    pub(crate) compat_destroy_cq: Pointer,
    pub(crate) compat_create_srq: Pointer,
    pub(crate) compat_modify_srq: Pointer,
    pub(crate) compat_query_srq: Pointer,
    pub(crate) compat_destroy_srq: Pointer,
    pub(crate) post_srq_recv: Pointer,
    pub(crate) compat_create_qp: Pointer,
    pub(crate) compat_query_qp: Pointer,
    pub(crate) compat_modify_qp: Pointer,
    pub(crate) compat_destroy_qp: Pointer,
    pub(crate) post_send: Pointer,
    pub(crate) post_recv: Pointer,
    pub(crate) compat_create_ah: Pointer,
    pub(crate) compat_destroy_ah: Pointer,
    pub(crate) compat_attach_mcast: Pointer,
    pub(crate) compat_detach_mcast: Pointer,
    pub(crate) compat_async_event: Pointer,
}

/// An open device.
#[repr(C)]
pub(crate) struct ibv_context {
    pub(crate) device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) abi_compat: Pointer,
}

/// The structure around an `ibv_context`; new fields are added at its front.
#[repr(C)]
pub(crate) struct verbs_context {
    pub(crate) free_buf: Pointer,
    pub(crate) alloc_buf: Pointer,
    pub(crate) dm_export_dmabuf_fd: Pointer,
    pub(crate) reg_mr_ex: Pointer,
    pub(crate) dealloc_dmah: Pointer,
    pub(crate) alloc_dmah: Pointer,
    pub(crate) query_port: Pointer,
    pub(crate) advise_mr: Pointer,
    pub(crate) alloc_null_mr: Pointer,
    pub(crate) read_counters: Pointer,
    pub(crate) attach_counters_point_flow: Pointer,
    pub(crate) create_counters: Pointer,
    pub(crate) destroy_counters: Pointer,
    pub(crate) reg_dm_mr: Pointer,
    pub(crate) alloc_dm: Pointer,
    pub(crate) free_dm: Pointer,
    pub(crate) modify_flow_action_esp: Pointer,
    pub(crate) destroy_flow_action: Pointer,
    pub(crate) create_flow_action_esp: Pointer,
    pub(crate) modify_qp_rate_limit: Pointer,
    pub(crate) alloc_parent_domain: Pointer,
    pub(crate) dealloc_td: Pointer,
    pub(crate) alloc_td: Pointer,
    pub(crate) modify_cq: Pointer,
    pub(crate) post_srq_ops: Pointer,
    pub(crate) destroy_rwq_ind_table: Pointer,
    pub(crate) create_rwq_ind_table: Pointer,
    pub(crate) destroy_wq: Pointer,
    pub(crate) modify_wq: Pointer,
    pub(crate) create_wq: Pointer,
    pub(crate) query_rt_values: Pointer,
    pub(crate) create_cq_ex: Pointer,
    pub(crate) private: Pointer,
    pub(crate) query_device_ex: Pointer,
    pub(crate) destroy_flow: Pointer,
    pub(crate) placeholder2: Pointer,
    pub(crate) create_flow: Pointer,
    pub(crate) placeholder1: Pointer,
    pub(crate) open_qp: Pointer,
    pub(crate) create_qp_ex: Pointer,
    pub(crate) get_srq_num: Pointer,
    pub(crate) create_srq_ex: Pointer,
    pub(crate) open_xrcd: Pointer,
    pub(crate) close_xrcd: Pointer,
    pub(crate) placeholder3: u64,
    /// The size of this structure in bytes, which programs check before they use a slot.
    pub(crate) sz: size_t,
    pub(crate) context: ibv_context,
}

assert_layout! {
    ibv_device 664 { node_type 16, transport_type 20, name 24, dev_name 88, dev_path 152, ibdev_path 408 }
    verbs_device 712 { ops 664, refcount 672, entry 680, sysfs 696, core_support 704 }
    ibv_context_ops 256 {
        alloc_mw 56, bind_mw 64, dealloc_mw 72, poll_cq 88, req_notify_cq 96, post_srq_recv 160,
        post_send 200, post_recv 208
    }
    ibv_context 328 { ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, mutex 280, abi_compat 320 }
    verbs_context 696 {
        query_port 48, create_cq_ex 248, private 256, query_device_ex 264, create_qp_ex 312,
        get_srq_num 320, create_srq_ex 328, close_xrcd 344, sz 360, context 368
    }
}
