//! Objects that programs hold.

use core::sync::atomic::AtomicU32;

use libc::{c_int, pthread_cond_t, pthread_mutex_t, size_t};

use super::{Pointer, assert_layout, ibv_context};

/// Protection domain.
#[repr(C)]
pub(crate) struct ibv_pd {
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

/// Memory region.
#[repr(C)]
pub(crate) struct ibv_mr {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) addr: Pointer,
    pub(crate) length: size_t,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// Memory window.
#[repr(C)]
pub(crate) struct ibv_mw {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) rkey: u32,
    pub(crate) handle: u32,
    pub(crate) mw_type: c_int,
}

/// Address handle.
#[repr(C)]
pub(crate) struct ibv_ah {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
}

/// Thread domain.
#[repr(C)]
pub(crate) struct ibv_td {
    pub(crate) context: *mut ibv_context,
}

/// Device memory.
#[repr(C)]
pub(crate) struct ibv_dm {
    pub(crate) context: *mut ibv_context,
    pub(crate) memcpy_to_dm: Pointer,
    pub(crate) memcpy_from_dm: Pointer,
    pub(crate) comp_mask: u32,
    pub(crate) handle: u32,
}

/// XRC domain.
#[repr(C)]
pub(crate) struct ibv_xrcd {
    pub(crate) context: *mut ibv_context,
}

/// Completion channel.
#[repr(C)]
pub(crate) struct ibv_comp_channel {
    pub(crate) context: *mut ibv_context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// Completion queue. `mutex` protects the counters, as in upstream's.
#[repr(C)]
pub(crate) struct ibv_cq {
    pub(crate) context: *mut ibv_context,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq_context: Pointer,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// Extended completion queue: begins as [`ibv_cq`].
#[repr(C)]
pub(crate) struct ibv_cq_ex {
    pub(crate) base: ibv_cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Pointer,
    pub(crate) next_poll: Pointer,
    pub(crate) end_poll: Pointer,
    pub(crate) read_opcode: Pointer,
    pub(crate) read_vendor_err: Pointer,
    pub(crate) read_byte_len: Pointer,
    pub(crate) read_imm_data: Pointer,
    pub(crate) read_qp_num: Pointer,
    pub(crate) read_src_qp: Pointer,
    pub(crate) read_wc_flags: Pointer,
    pub(crate) read_slid: Pointer,
    pub(crate) read_sl: Pointer,
    pub(crate) read_dlid_path_bits: Pointer,
    pub(crate) read_completion_ts: Pointer,
    pub(crate) read_cvlan: Pointer,
    pub(crate) read_flow_tag: Pointer,
    pub(crate) read_tm_info: Pointer,
    pub(crate) read_completion_wallclock_ns: Pointer,
}

/// Shared receive queue.
#[repr(C)]
pub(crate) struct ibv_srq {
    pub(crate) context: *mut ibv_context,
    pub(crate) srq_context: Pointer,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) handle: u32,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// Queue pair.
#[repr(C)]
pub(crate) struct ibv_qp {
    pub(crate) context: *mut ibv_context,
    pub(crate) qp_context: Pointer,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    /// Programs read it, while the library writes it from several threads.
    pub(crate) state: AtomicU32,
    pub(crate) qp_type: c_int,
    pub(crate) mutex: pthread_mutex_t,
    pub(crate) cond: pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// Extended queue pair. `wr_flush` came with rdma-core 47.
#[repr(C)]
pub(crate) struct ibv_qp_ex {
    pub(crate) base: ibv_qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: u32,
    pub(crate) wr_atomic_cmp_swp: Pointer,
    pub(crate) wr_atomic_fetch_add: Pointer,
    pub(crate) wr_bind_mw: Pointer,
    pub(crate) wr_local_inv: Pointer,
    pub(crate) wr_rdma_read: Pointer,
    pub(crate) wr_rdma_write: Pointer,
    pub(crate) wr_rdma_write_imm: Pointer,
    pub(crate) wr_send: Pointer,
    pub(crate) wr_send_imm: Pointer,
    pub(crate) wr_send_inv: Pointer,
    pub(crate) wr_send_tso: Pointer,
    pub(crate) wr_set_ud_addr: Pointer,
    pub(crate) wr_set_xrc_srqn: Pointer,
    pub(crate) wr_set_inline_data: Pointer,
    pub(crate) wr_set_inline_data_list: Pointer,
    pub(crate) wr_set_sge: Pointer,
    pub(crate) wr_set_sge_list: Pointer,
    pub(crate) wr_start: Pointer,
    pub(crate) wr_complete: Pointer,
    pub(crate) wr_abort: Pointer,
    pub(crate) wr_atomic_write: Pointer,
    pub(crate) wr_flush: Pointer,
}

/// Asynchronous event.
#[repr(C)]
pub(crate) struct ibv_async_event {
    /// A pointer to the object, or in its first four bytes the port number.
    pub(crate) element: Pointer,
    pub(crate) event_type: u32,
}

assert_layout! {
    ibv_pd 16 { handle 8 }
    ibv_mr 48 { pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40 }
    ibv_mw 32 { pd 8, rkey 16, handle 20, mw_type 24 }
    ibv_ah 24 { pd 8, handle 16 }
    ibv_td 8 {}
    ibv_dm 32 { memcpy_to_dm 8, memcpy_from_dm 16, comp_mask 24, handle 28 }
    ibv_xrcd 8 {}
    ibv_comp_channel 16 { fd 8, refcnt 12 }
    ibv_cq 128 {
        channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72, comp_events_completed 120,
        async_events_completed 124
    }
    ibv_cq_ex 288 {
        comp_mask 128, status 132, wr_id 136, start_poll 144, read_opcode 168, read_qp_num 200,
        read_wc_flags 216, read_completion_ts 248, read_tm_info 272, read_completion_wallclock_ns 280
    }
    ibv_srq 128 { srq_context 8, pd 16, handle 24, mutex 32, cond 72, events_completed 120 }
    ibv_qp 160 {
        qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48, qp_num 52, state 56,
        qp_type 60, mutex 64, cond 104, events_completed 152
    }
    ibv_qp_ex 360 {
        comp_mask 160, wr_id 168, wr_flags 176, wr_atomic_cmp_swp 184, wr_bind_mw 200,
        wr_rdma_read 216, wr_rdma_write_imm 232, wr_send 240, wr_send_tso 264, wr_set_ud_addr 272,
        wr_set_inline_data 288, wr_set_sge 304, wr_start 320, wr_complete 328, wr_abort 336,
        wr_atomic_write 344, wr_flush 352
    }
    ibv_async_event 16 { element 0, event_type 8 }
}
