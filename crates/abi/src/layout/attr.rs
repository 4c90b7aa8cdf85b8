//! Attributes of devices, ports and objects.

use libc::{c_char, c_int, size_t};

use super::{Pointer, assert_layout, ibv_comp_channel, ibv_cq, ibv_pd, ibv_srq, ibv_td, ibv_xrcd};

/// A GID in network order.
pub(crate) type ibv_gid = [u8; 16];

/// Route part of an address.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

/// Address of an address handle or a connection.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// A GRH as it is stored before a received datagram, in network order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_grh {
    pub(crate) version_tclass_flow: u32,
    pub(crate) paylen: u16,
    pub(crate) next_hdr: u8,
    pub(crate) hop_limit: u8,
    pub(crate) sgid: ibv_gid,
    pub(crate) dgid: ibv_gid,
}

/// Sizes of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `ibv_create_qp`'s argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: Pointer,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
}

/// `ibv_create_qp_ex`'s argument. `comp_mask` is where [`ibv_qp_init_attr`] has padding.
#[repr(C)]
pub(crate) struct ibv_qp_init_attr_ex {
    pub(crate) qp_context: Pointer,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: Pointer,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// Attributes of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// Sizes and limit of a shared receive queue.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `ibv_create_srq`'s argument.
#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: Pointer,
    pub(crate) attr: ibv_srq_attr,
}

/// `ibv_open_xrcd`'s argument.
#[repr(C)]
pub(crate) struct ibv_xrcd_init_attr {
    pub(crate) comp_mask: u32,
    pub(crate) fd: c_int,
    pub(crate) oflags: c_int,
}

/// `ibv_open_qp`'s argument.
#[repr(C)]
pub(crate) struct ibv_qp_open_attr {
    pub(crate) comp_mask: u32,
    pub(crate) qp_num: u32,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) qp_context: Pointer,
    pub(crate) qp_type: c_int,
}

/// `ibv_create_srq_ex`'s argument.
#[repr(C)]
pub(crate) struct ibv_srq_init_attr_ex {
    pub(crate) srq_context: Pointer,
    pub(crate) attr: ibv_srq_attr,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: u32,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) tm_cap: [u32; 2],
}

/// `ibv_create_cq_ex`'s argument.
#[repr(C)]
pub(crate) struct ibv_cq_init_attr_ex {
    pub(crate) cqe: u32,
    pub(crate) cq_context: Pointer,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut ibv_pd,
}

/// `ibv_modify_cq`'s argument.
#[repr(C)]
pub(crate) struct ibv_modify_cq_attr {
    pub(crate) attr_mask: u32,
    pub(crate) cq_count: u16,
    pub(crate) cq_period: u16,
}

/// `ibv_alloc_parent_domain`'s argument.
#[repr(C)]
pub(crate) struct ibv_parent_domain_init_attr {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) td: *mut ibv_td,
    pub(crate) comp_mask: u32,
    pub(crate) alloc: Pointer,
    pub(crate) free: Pointer,
    pub(crate) pd_context: Pointer,
}

/// `ibv_reg_mr_ex`'s argument. Fields that `comp_mask` does not name may be missing.
#[repr(C)]
pub(crate) struct ibv_mr_init_attr {
    pub(crate) length: size_t,
    pub(crate) access: c_int,
    pub(crate) comp_mask: u64,
    pub(crate) iova: u64,
    pub(crate) addr: Pointer,
    pub(crate) fd: c_int,
    pub(crate) fd_offset: u64,
    pub(crate) dmah: Pointer,
    /// A buffer from `ibv_alloc_buf`.
    pub(crate) buf: Pointer,
}

/// `ibv_alloc_dm`'s argument.
#[repr(C)]
pub(crate) struct ibv_alloc_dm_attr {
    pub(crate) length: size_t,
    pub(crate) log_align_req: u32,
    pub(crate) comp_mask: u32,
}

/// `ibv_query_rt_values_ex`'s argument.
#[repr(C)]
pub(crate) struct ibv_values_ex {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}

/// Extended connection establishment.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
    pub(crate) comp_mask: u32,
}

/// Device attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: u32,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// Extended device attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_device_attr_ex {
    pub(crate) orig_attr: ibv_device_attr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_general_caps: u64,
    pub(crate) odp_rc_caps: u32,
    pub(crate) odp_uc_caps: u32,
    pub(crate) odp_ud_caps: u32,
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) tso_caps: [u32; 2],
    pub(crate) rss_caps: [u64; 4],
    pub(crate) max_wq_type_rq: u32,
    pub(crate) packet_pacing_caps: [u32; 3],
    pub(crate) raw_packet_caps: u32,
    pub(crate) tm_caps: [u32; 5],
    pub(crate) max_cq_count: u16,
    pub(crate) max_cq_period: u16,
    pub(crate) max_dm_size: u64,
    pub(crate) pci_atomic_caps: [u16; 3],
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}

/// Port attributes. `active_speed_ex` came with rdma-core 50.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: u32,
    pub(crate) max_mtu: u32,
    pub(crate) active_mtu: u32,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
    pub(crate) active_speed_ex: u32,
}

/// GID table entry.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_gid_entry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

assert_layout! {
    ibv_alloc_dm_attr 16 { log_align_req 8, comp_mask 12 }
    ibv_global_route 24 { flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22 }
    ibv_ah_attr 32 { dlid 24, sl 26, src_path_bits 27, static_rate 28, is_global 29, port_num 30 }
    ibv_grh 40 { paylen 4, next_hdr 6, hop_limit 7, sgid 8, dgid 24 }
    ibv_qp_cap 20 {}
    ibv_qp_init_attr 64 { send_cq 8, srq 24, cap 32, qp_type 52, sq_sig_all 56 }
    ibv_qp_init_attr_ex 136 {
        comp_mask 60, pd 64, xrcd 72, create_flags 80, max_tso_header 84, rwq_ind_tbl 88,
        rx_hash_conf 96, source_qpn 120, send_ops_flags 128
    }
    ibv_qp_attr 144 {
        qp_access_flags 32, cap 36, ah_attr 56, alt_ah_attr 88, pkey_index 120, en_sqd_async_notify 124,
        min_rnr_timer 128, port_num 129, alt_timeout 134, rate_limit 136
    }
    ibv_xrcd_init_attr 12 { fd 4, oflags 8 }
    ibv_qp_open_attr 32 { qp_num 4, xrcd 8, qp_context 16, qp_type 24 }
    ibv_srq_attr 12 {}
    ibv_srq_init_attr 24 { attr 8 }
    ibv_srq_init_attr_ex 64 { attr 8, comp_mask 20, srq_type 24, pd 32, xrcd 40, cq 48, tm_cap 56 }
    ibv_cq_init_attr_ex 56 {
        cq_context 8, channel 16, comp_vector 24, wc_flags 32, comp_mask 40, flags 44, parent_domain 48
    }
    ibv_modify_cq_attr 8 { cq_count 4, cq_period 6 }
    ibv_parent_domain_init_attr 48 { td 8, comp_mask 16, alloc 24, free 32, pd_context 40 }
    ibv_mr_init_attr 72 {
        access 8, comp_mask 16, iova 24, addr 32, fd 40, fd_offset 48, dmah 56, buf 64
    }
    ibv_values_ex 24 { raw_clock 8 }
    ibv_ece 12 { options 4, comp_mask 8 }
    ibv_device_attr 232 {
        node_guid 64, vendor_id 96, max_qp 108, device_cap_flags 116, atomic_cap 164, max_pkeys 224,
        phys_port_cnt 227
    }
    ibv_device_attr_ex 400 {
        comp_mask 232, odp_general_caps 240, completion_timestamp_mask 264, hca_core_clock 272,
        device_cap_flags_ex 280, tso_caps 288, rss_caps 296, max_wq_type_rq 328,
        packet_pacing_caps 332, raw_packet_caps 344, tm_caps 348, max_cq_count 368, max_dm_size 376,
        pci_atomic_caps 384, xrc_odp_caps 392, phys_port_cnt_ex 396
    }
    ibv_port_attr 56 {
        gid_tbl_len 12, pkey_tbl_len 32, active_width 43, link_layer 46, flags 47, port_cap_flags2 48,
        active_speed_ex 52
    }
    ibv_gid_entry 32 { gid_index 16, port_num 20, gid_type 24, ndev_ifindex 28 }
}
