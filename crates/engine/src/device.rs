//! The properties of a device that uses lanes.

use polypath_topology::{DeviceSpec, Selection, Table, devices};
use polypath_verbs::{DeviceAttr, DeviceInfo};

use crate::limits::{
    MAX_AH, MAX_CQ, MAX_CQE, MAX_DM_BYTES, MAX_INLINE, MAX_PD, MAX_QP_PER_LANE, MAX_QP_WR,
    MAX_RD_ATOMIC, MAX_SGE, MAX_SRQ, MAX_SRQ_WR,
};
use crate::memory::{REGIONS_MAX, WINDOWS_MAX};

/// The device of that name, according to the current table.
pub(crate) fn find(table: &Table, selection: &Selection, name: &str) -> Option<DeviceSpec> {
    devices(table, selection).into_iter().find(|spec| spec.name == name)
}

/// The part of a device that programs see before they open it.
pub(crate) fn info(spec: &DeviceSpec, table: &Table) -> DeviceInfo {
    DeviceInfo {
        name: spec.name.clone(),
        node_guid: spec.node_guid,
        index: spec.index,
        uverbs: spec.uverbs,
        interfaces: spec.interfaces(table).map(|port| port.name.clone()).collect(),
    }
}

// `enum ibv_device_cap_flags`.
const CAP_BAD_PKEY_CNTR: u32 = 1 << 1;
const CAP_BAD_QKEY_CNTR: u32 = 1 << 2;
const CAP_AUTO_PATH_MIG: u32 = 1 << 4;
const CAP_CURR_QP_STATE_MOD: u32 = 1 << 7;
const CAP_PORT_ACTIVE_EVENT: u32 = 1 << 10;
const CAP_SYS_IMAGE_GUID: u32 = 1 << 11;
const CAP_RC_RNR_NAK_GEN: u32 = 1 << 12;
const CAP_SRQ_RESIZE: u32 = 1 << 13;
const CAP_MEM_WINDOW: u32 = 1 << 17;
const CAP_XRC: u32 = 1 << 20;
const CAP_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
const CAP_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;

/// `ibv_query_device`. `ports`: how many the device has.
pub(crate) fn attributes(info: &DeviceInfo, ports: u8) -> DeviceAttr {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let max_qp = number(MAX_QP_PER_LANE);
    DeviceAttr {
        fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
        node_guid: info.node_guid,
        sys_image_guid: info.node_guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        // As with Linux rxe, the vendor is unknown, so that no program applies a vendor's quirks.
        vendor_id: 0xff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp,
        max_qp_wr: MAX_QP_WR,
        device_cap_flags: CAP_BAD_PKEY_CNTR
            | CAP_BAD_QKEY_CNTR
            | CAP_AUTO_PATH_MIG
            | CAP_CURR_QP_STATE_MOD
            | CAP_PORT_ACTIVE_EVENT
            | CAP_SYS_IMAGE_GUID
            | CAP_RC_RNR_NAK_GEN
            | CAP_SRQ_RESIZE
            | CAP_MEM_WINDOW
            | CAP_XRC
            | CAP_MEM_MGT_EXTENSIONS
            | CAP_MEM_WINDOW_TYPE_2B,
        max_sge: MAX_SGE,
        max_sge_rd: MAX_SGE,
        max_cq: MAX_CQ,
        max_cqe: MAX_CQE,
        max_mr: number(REGIONS_MAX),
        max_pd: MAX_PD,
        max_qp_rd_atom: MAX_RD_ATOMIC,
        max_res_rd_atom: MAX_RD_ATOMIC * max_qp,
        max_qp_init_rd_atom: MAX_RD_ATOMIC,
        atomic_cap: 1,
        max_mw: number(WINDOWS_MAX),
        max_mcast_grp: 8192,
        max_mcast_qp_attach: 56,
        max_ah: MAX_AH,
        max_srq: MAX_SRQ,
        max_srq_wr: MAX_SRQ_WR,
        max_srq_sge: MAX_SGE,
        max_pkeys: 1,
        local_ca_ack_delay: polypath_topology::LOCAL_CA_ACK_DELAY,
        phys_port_cnt: ports,
        max_inline: MAX_INLINE,
        max_dm_size: MAX_DM_BYTES,
    }
}
