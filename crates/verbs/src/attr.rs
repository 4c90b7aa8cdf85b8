//! The attributes of devices, ports and GID tables.

use std::any::Any;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

use polypath_types::AhAttr;

/// The description of a device, which is known before it is opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The name: `roce0`, `mp0`, …
    pub name: String,
    /// Node GUID in host byte order (the C ABI shows it in network byte order).
    pub node_guid: u64,
    /// A number that is unique and stays the same (`ibv_get_device_index`).
    pub index: u32,
    /// The number N of its file `/dev/infiniband/uverbsN`. No real device has it.
    pub uverbs: u32,
    /// Names of the member interfaces; the first is the one that sysfs shows as `device/net`.
    pub interfaces: Vec<String>,
}

/// `struct ibv_device_attr` and additions of its extended form. Fields without a description are as in
/// `ibv_query_device(3)`.
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
    /// Atomic capability; `IBV_ATOMIC_HCA` is 1.
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
    /// The largest number of bytes of inline data.
    pub max_inline: u32,
    /// The number of bytes of device memory; 0 means that there is none.
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

/// `struct ibv_port_attr`. Fields without a description are as in `ibv_query_port(3)`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PortAttr {
    pub state: PortState,
    /// The largest MTU in bytes.
    pub max_mtu: u32,
    /// The present MTU in bytes, which follows the MTU of the interfaces.
    pub active_mtu: u32,
    pub gid_tbl_len: u32,
    pub max_msg_sz: u32,
    pub pkey_tbl_len: u16,
    /// The width, and the following two fields, as codes of the verbs API.
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    /// The speed of all paths together in Mbit/s.
    pub speed_mbps: u32,
    pub qkey_violations: u32,
    pub bad_pkey: u32,
}

/// `struct ibv_gid_entry`. The type is always RoCE v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The port whose table it is in, from 1.
    pub port: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// Its index in the table.
    pub index: u32,
    /// The IP address that it stands for.
    pub ip: IpAddr,
    /// The index of the interface that has the address.
    pub ifindex: u32,
}

/// An address handle.
#[derive(Debug)]
pub struct AddressHandle {
    /// Protection domain.
    pub pd: u32,
    /// The attributes that it was made with.
    pub attr: AhAttr,
    /// Reserved for the device: what it resolved the address to; 0 means not yet.
    pub resolved: AtomicU64,
    /// Reserved for the device: the handle's share of the limit on address handles.
    pub place: Option<Box<dyn Any + Send + Sync>>,
}
