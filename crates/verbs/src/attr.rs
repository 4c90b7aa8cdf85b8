//! What devices, ports and GID tables say of themselves.

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

use polypath_types::AhAttr;

/// What is known of a device before it is opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `roce0`, `mp0`, …
    pub name: String,
    /// Node GUID, host byte order (the C ABI shows it in network order).
    pub node_guid: u64,
    /// Unique and stable (`ibv_get_device_index`).
    pub index: u32,
    /// Number of its file, `/dev/infiniband/uverbsN`, that no real device has.
    pub uverbs: u32,
    /// Names of the member interfaces; the first is the one that sysfs shows as `device/net`.
    pub interfaces: Vec<String>,
}

/// `struct ibv_device_attr` and what its extended form adds; fields as there.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct DeviceAttr {
    pub fw_ver: String,
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    /// `IBV_ATOMIC_HCA` = 1.
    pub atomic_cap: u32,
    pub max_mw: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    /// Most bytes of inline data.
    pub max_inline: u32,
    /// Bytes of device memory; 0: there is none.
    pub max_dm_size: u64,
}

/// `enum ibv_port_state`; same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum PortState {
    Down = 1,
    Init = 2,
    Armed = 3,
    Active = 4,
}

/// `struct ibv_port_attr`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PortAttr {
    pub state: PortState,
    /// Bytes.
    pub max_mtu: u32,
    /// Bytes; follows the MTU of the interfaces.
    pub active_mtu: u32,
    pub gid_tbl_len: u32,
    pub max_msg_sz: u32,
    pub pkey_tbl_len: u16,
    /// As `enum` codes of the verbs API.
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    /// Mbit/s, all paths together.
    pub speed_mbps: u32,
    pub qkey_violations: u32,
    pub bad_pkey: u32,
}

/// `struct ibv_gid_entry`; always RoCE v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: [u8; 16],
    /// Its place in the table.
    pub index: u32,
    /// The address it stands for.
    pub ip: IpAddr,
    /// Interface that has it.
    pub ifindex: u32,
}

/// An address handle.
#[derive(Debug)]
pub struct AddressHandle {
    /// Protection domain.
    pub pd: u32,
    /// What it was made of.
    pub attr: AhAttr,
    /// The device's own: what it resolved the address to (0: not yet).
    pub resolved: AtomicU64,
    /// The device's own: its place among those that there may be.
    pub place: Option<Box<dyn Any + Send + Sync>>,
}
