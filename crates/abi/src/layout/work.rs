//! Work requests and completions.

use libc::{c_int, size_t};

use super::{Pointer, assert_layout, ibv_ah, ibv_mr, ibv_mw};

/// Scatter/gather element.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// One piece of inline data.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_data_buf {
    pub(crate) addr: Pointer,
    pub(crate) length: size_t,
}

/// `wr.rdma`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

/// `wr.atomic`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

/// `wr.ud`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

/// The union `wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union wr_union {
    pub(crate) rdma: wr_rdma,
    pub(crate) atomic: wr_atomic,
    pub(crate) ud: wr_ud,
}

/// The target of a memory window's bind.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind_info {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) mw_access_flags: u32,
}

/// `ibv_bind_mw`'s argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_mw_bind {
    pub(crate) wr_id: u64,
    pub(crate) send_flags: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// `bind_mw` of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_bind_mw {
    pub(crate) mw: *mut ibv_mw,
    pub(crate) rkey: u32,
    pub(crate) bind_info: ibv_mw_bind_info,
}

/// Send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    /// Immediate data in network order, or the key to invalidate in host order.
    pub(crate) imm_data: u32,
    pub(crate) wr: wr_union,
    pub(crate) remote_srqn: u32,
    pub(crate) bind_mw: wr_bind_mw,
}

/// Receive work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut Self,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

/// A completion, as `ibv_poll_cq` gives it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in network order, or the invalidated key in host order.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

assert_layout! {
    ibv_sge 16 { length 8, lkey 12 }
    ibv_data_buf 16 { length 8 }
    wr_rdma 16 { rkey 8 }
    wr_atomic 32 { compare_add 8, swap 16, rkey 24 }
    wr_ud 16 { remote_qpn 8, remote_qkey 12 }
    ibv_mw_bind_info 32 { addr 8, length 16, mw_access_flags 24 }
    ibv_mw_bind 48 { send_flags 8, bind_info 16 }
    ibv_send_wr 128 {
        next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36, wr 40, remote_srqn 72,
        bind_mw 80
    }
    ibv_recv_wr 32 { next 8, sg_list 16, num_sge 24 }
    ibv_wc 48 {
        status 8, opcode 12, vendor_err 16, byte_len 20, imm_data 24, qp_num 28, src_qp 32,
        wc_flags 36, pkey_index 40, slid 42, sl 44, dlid_path_bits 45
    }
}
