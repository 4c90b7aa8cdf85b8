//! Queries of devices, ports and GID tables.

use core::mem::{MaybeUninit, offset_of, size_of, zeroed};
use core::ptr::copy_nonoverlapping;

use libc::{c_char, c_int, size_t};
use polypath_engine::DEFAULT_PKEY;
use polypath_verbs::{DeviceAttr, Error, PortAttr, Result};

use crate::context::{CContext, checked};
use crate::guard::{self, null_argument};
use crate::layout::{
    Pointer, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_port_attr, ibv_values_ex,
};
use crate::ours::Ours;

/// `IBV_GID_TYPE_ROCE_V2`.
const GID_TYPE_ROCE_V2: u32 = 2;

/// `IBV_GID_TYPE_SYSFS_ROCE_V2` of the private `ibv_query_gid_type()`.
const GID_TYPE_SYSFS_ROCE_V2: u32 = 1;

/// `IBV_LINK_LAYER_ETHERNET`.
const LINK_LAYER_ETHERNET: u8 = 2;

/// `IBV_QPF_GRH_REQUIRED`: addresses need a GRH.
const FLAG_GRH_REQUIRED: u8 = 1;

/// `IBV_PORT_CM_SUP` and `IBV_PORT_IP_BASED_GIDS`.
const PORT_CAPS: u32 = 1 << 16 | 1 << 26;

/// Bits of `enum ib_uverbs_device_cap_flags` beyond 32: FLUSH to global visibility, ATOMIC WRITE.
/// Memory is not persistent, so FLUSH to persistence (bit 39) is missing.
const EXTENDED_CAPS: u64 = 1 << 38 | 1 << 40;

/// ODP, and regions of the whole address space (`IBV_ODP_SUPPORT_IMPLICIT`).
const ODP_SUPPORT: u64 = 1 | 1 << 1;

/// ODP of connected queue pairs: send, receive, write, read, atomic, SRQ receive, FLUSH, ATOMIC
/// WRITE. The processor moves the data, so any page may be absent until it is accessed.
const ODP_RC: u32 = 0xff;

/// ODP of datagrams: send, receive, SRQ receive.
const ODP_UD: u32 = 0x23;

/// The completion clock counts nanoseconds: its rate in kHz.
const CLOCK_KHZ: u64 = 1_000_000;

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(attr: &DeviceAttr) -> ibv_device_attr {
    let mut fw_ver: [c_char; 64] = [0; 64];
    for (to, from) in fw_ver[..63].iter_mut().zip(attr.fw_ver.bytes()) {
        *to = from.cast_signed();
    }
    ibv_device_attr {
        fw_ver,
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.sys_image_guid.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: attr.device_cap_flags,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        atomic_cap: attr.atomic_cap,
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_mcast_grp.saturating_mul(attr.max_mcast_qp_attach)),
        max_ah: int(attr.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    }
}

/// `ibv_query_device`.
pub(crate) extern "C-unwind" fn query_device(
    context: Ours<CContext>,
    attr: Option<&mut MaybeUninit<ibv_device_attr>>,
) -> c_int {
    guard::errno_of("ibv_query_device", || {
        let attr = attr.ok_or_else(|| null_argument("device_attr"))?;
        attr.write(device_attr(&context.inner().attributes()));
        Ok(())
    })
}

/// Writes as much of a structure as the program has room for. If the program's structure is longer,
/// the rest is zeroed.
///
/// # Safety
/// `to` has room for `size` bytes.
unsafe fn write_sized<T>(full: &T, to: *mut u8, size: usize) {
    let known = size_of::<T>();
    // SAFETY: `size` bytes are written in total, and there is room for them. `full` has `known`
    // bytes.
    unsafe {
        copy_nonoverlapping(core::ptr::from_ref(full).cast::<u8>(), to, size.min(known));
        to.add(size.min(known)).write_bytes(0, size.saturating_sub(known));
    }
}

/// `ibv_query_device_ex`'s slot: writes as much of the structure as the program has.
///
/// # Safety
/// As the headers call it: `context` is null or any provider's, `attr` is null or has `size` bytes.
pub(crate) unsafe extern "C-unwind" fn query_device_ex(
    context: *mut ibv_context,
    input: Option<&u32>,
    attr: *mut ibv_device_attr_ex,
    size: size_t,
) -> c_int {
    guard::errno_of("ibv_query_device_ex", || {
        if attr.is_null() || size < size_of::<ibv_device_attr>() {
            return Err(Error::invalid("ibv_device_attr_ex is too small"));
        }
        // The input begins with its mask.
        if input.is_some_and(|mask| *mask != 0) {
            return Err(Error::invalid("ibv_query_device_ex_input has an unknown comp_mask"));
        }
        // SAFETY: `context` is null or the context of any provider, as `checked` requires, and the
        // headers promise that `attr` has `size` bytes. Zero is valid for every field of the
        // structure.
        unsafe {
            let inner = checked(context)?.inner().attributes();
            let mut full: ibv_device_attr_ex = zeroed();
            full.orig_attr = device_attr(&inner);
            full.device_cap_flags_ex = u64::from(inner.device_cap_flags) | EXTENDED_CAPS;
            full.odp_general_caps = ODP_SUPPORT;
            full.odp_rc_caps = ODP_RC;
            full.odp_ud_caps = ODP_UD;
            full.xrc_odp_caps = ODP_RC;
            full.completion_timestamp_mask = u64::MAX;
            full.hca_core_clock = CLOCK_KHZ;
            full.max_cq_count = u16::MAX;
            full.max_cq_period = u16::MAX;
            full.max_dm_size = inner.max_dm_size;
            full.phys_port_cnt_ex = u32::from(inner.phys_port_cnt);
            write_sized(&full, attr.cast(), size);
        }
        Ok(())
    })
}

/// Converts bytes to an `enum ibv_mtu`, rounding down.
pub(crate) fn mtu_code(bytes: u32) -> u32 {
    match bytes {
        0..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        4096.. => 5,
    }
}

fn port_attr(attr: &PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state as u32,
        max_mtu: mtu_code(attr.max_mtu),
        active_mtu: mtu_code(attr.active_mtu),
        gid_tbl_len: int(attr.gid_tbl_len),
        port_cap_flags: PORT_CAPS,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey,
        qkey_viol_cntr: attr.qkey_violations,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: attr.phys_state,
        link_layer: LINK_LAYER_ETHERNET,
        flags: FLAG_GRH_REQUIRED,
        port_cap_flags2: 0,
        active_speed_ex: 0,
    }
}

/// `ibv_query_port`'s slot.
///
/// # Safety
/// As the headers call it: `context` is null or any provider's, `attr` is null or has `size` bytes.
pub(crate) unsafe extern "C-unwind" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: size_t,
) -> c_int {
    guard::errno_of("ibv_query_port", || {
        if attr.is_null() {
            return Err(null_argument("port_attr"));
        }
        // SAFETY: `context` is null or the context of any provider, as `checked` requires, and the
        // headers promise that `attr` has `size` bytes.
        unsafe {
            let full = port_attr(&checked(context)?.inner().query_port(port)?);
            write_sized(&full, attr.cast(), size);
        }
        Ok(())
    })
}

/// The exported `ibv_query_port`, whose structure ends before `port_cap_flags2`.
///
/// # Safety
/// `attr` is null or has room for the old structure.
pub(crate) unsafe extern "C-unwind" fn query_port_compat(
    context: Ours<CContext>,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    let size = offset_of!(ibv_port_attr, port_cap_flags2);
    guard::errno_of("ibv_query_port", || {
        if attr.is_null() {
            return Err(null_argument("port_attr"));
        }
        let full = port_attr(&context.inner().query_port(port)?);
        // SAFETY: every program has at least the old structure, which is `size` bytes long.
        unsafe { write_sized(&full, attr.cast(), size) };
        Ok(())
    })
}

/// Implements `ibv_query_port_speed`, in units of 100 Mbit/s.
pub(crate) extern "C-unwind" fn query_port_speed(
    context: Ours<CContext>,
    port: u32,
    speed: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    guard::errno_of("ibv_query_port_speed", || {
        let port = u8::try_from(port).map_err(|_| Error::invalid("no such port"))?;
        let speed = speed.ok_or_else(|| null_argument("port_speed"))?;
        speed.write(u64::from(context.inner().query_port(port)?.speed_mbps / 100));
        Ok(())
    })
}

fn index_of(index: c_int) -> Result<u32> {
    u32::try_from(index).map_err(|_| Error::invalid("a negative index"))
}

/// Implements `ibv_query_gid`. An empty entry is all zero.
pub(crate) extern "C-unwind" fn query_gid(
    context: Ours<CContext>,
    port: u8,
    index: c_int,
    gid: Option<&mut MaybeUninit<ibv_gid>>,
) -> c_int {
    guard::minus_one("ibv_query_gid", || {
        let gid = gid.ok_or_else(|| null_argument("gid"))?;
        let entry = context.inner().gid(port, index_of(index)?)?;
        gid.write(entry.map_or([0; 16], |entry| entry.gid));
        Ok(0)
    })
}

/// Implements `ibv_query_pkey`, in network order.
pub(crate) extern "C-unwind" fn query_pkey(
    context: Ours<CContext>,
    port: u8,
    index: c_int,
    pkey: Option<&mut MaybeUninit<u16>>,
) -> c_int {
    guard::minus_one("ibv_query_pkey", || {
        let pkey = pkey.ok_or_else(|| null_argument("pkey"))?;
        let attr = context.inner().query_port(port)?;
        if index_of(index)? >= u32::from(attr.pkey_tbl_len) {
            return Err(Error::invalid("the index is beyond the P_Key table: use 0"));
        }
        pkey.write(DEFAULT_PKEY.to_be());
        Ok(0)
    })
}

/// Implements `ibv_get_pkey_index`. `pkey` is in network order.
pub(crate) extern "C-unwind" fn get_pkey_index(
    context: Ours<CContext>,
    port: u8,
    pkey: u16,
) -> c_int {
    guard::minus_one("ibv_get_pkey_index", || {
        context.inner().query_port(port)?;
        if pkey == DEFAULT_PKEY.to_be() { Ok(0) } else { Err(Error::invalid("no such P_Key")) }
    })
}

fn gid_entry(entry: &polypath_verbs::GidEntry, port: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: entry.gid,
        gid_index: entry.index,
        port_num: port,
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.ifindex,
    }
}

/// Implements `_ibv_query_gid_ex`. An empty entry gives `ENODATA`.
///
/// # Safety
/// `entry` is null or has room for `size` bytes.
pub(crate) unsafe extern "C-unwind" fn query_gid_ex(
    context: Ours<CContext>,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: size_t,
) -> c_int {
    guard::errno_of("ibv_query_gid_ex", || {
        if entry.is_null() || size < size_of::<ibv_gid_entry>() {
            return Err(Error::invalid("ibv_gid_entry is too small"));
        }
        if flags != 0 {
            return guard::unsupported("ibv_query_gid_ex() has no flags yet");
        }
        let number = u8::try_from(port).map_err(|_| Error::invalid("no such port"))?;
        let found = context.inner().gid(number, index)?;
        let found = found.ok_or_else(|| Error::new(libc::ENODATA, "this GID entry is empty"))?;
        // SAFETY: the header passes the size of the entry.
        unsafe { write_sized(&gid_entry(&found, port), entry.cast(), size) };
        Ok(())
    })
}

/// Implements `_ibv_query_gid_table`. Returns the number of entries, or a negative error number.
///
/// # Safety
/// `entries` is null or has room for `max` entries of `size` bytes.
pub(crate) unsafe extern "C-unwind" fn query_gid_table(
    context: Ours<CContext>,
    entries: Pointer,
    max: size_t,
    flags: u32,
    size: size_t,
) -> isize {
    let mut count = 0;
    let errno = guard::errno_of("ibv_query_gid_table", || {
        if entries.is_null() || size < size_of::<ibv_gid_entry>() {
            return Err(Error::invalid("ibv_gid_entry is too small"));
        }
        if flags != 0 {
            return guard::unsupported("ibv_query_gid_table() has no flags yet");
        }
        let table = context.inner().gid_table();
        if table.len() > max {
            return Err(Error::invalid("the GID table has more entries than there is room for"));
        }
        for (at, entry) in table.iter().enumerate() {
            // SAFETY: there is room for `max` entries of `size` bytes, and `at < max`.
            unsafe {
                let place = entries.cast::<u8>().add(at * size);
                write_sized(&gid_entry(entry, entry.port.into()), place, size);
            }
        }
        count = table.len().cast_signed();
        Ok(())
    });
    if errno == 0 { count } else { -(errno as isize) }
}

/// The private `ibv_query_gid_type`, which `ibv_devinfo` and pyverbs use.
pub(crate) extern "C-unwind" fn query_gid_type(
    context: Ours<CContext>,
    port: u8,
    index: u32,
    kind: Option<&mut MaybeUninit<u32>>,
) -> c_int {
    guard::minus_one("ibv_query_gid_type", || {
        let kind = kind.ok_or_else(|| null_argument("type"))?;
        context.inner().gid(port, index)?;
        kind.write(GID_TYPE_SYSFS_ROCE_V2);
        Ok(0)
    })
}

/// The function in `ibv_query_rt_values_ex`'s slot. It returns the current value of the completion
/// clock.
///
/// # Safety
/// It is called as the headers do: `context` is null or the context of any provider, and `values`
/// is null or writable with its mask filled in.
pub(crate) unsafe extern "C-unwind" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    const RAW_CLOCK: u32 = 1;
    guard::errno_of("ibv_query_rt_values_ex", || {
        if values.is_null() {
            return Err(null_argument("values"));
        }
        // SAFETY: `values` is not null, so the headers promise that its mask can be read and its
        // fields written. No reference is made to fields that the program did not fill in.
        unsafe {
            let asked = (*values).comp_mask;
            if asked & !RAW_CLOCK != 0 {
                return Err(Error::invalid("ibv_values_ex has an unknown comp_mask"));
            }
            if asked & RAW_CLOCK != 0 {
                // Hardware also returns the whole counter in tv_nsec.
                let now = checked(context)?.inner().clock_ns();
                (*values).raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now.cast_signed() };
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::double;
    use crate::open::close_device;

    #[test]
    fn the_exported_query_port_leaves_newer_fields_alone() {
        let context = double::open();
        let mut attr = ibv_port_attr { port_cap_flags2: 0x5a5a, ..Default::default() };
        // SAFETY: this is our context, and a whole structure.
        unsafe {
            let ours = Ours::new(context);
            assert_eq!(query_port_compat(ours, 1, &mut attr), 0);
            assert_eq!(attr.port_cap_flags2, 0x5a5a);
            assert_eq!((attr.state, attr.active_mtu, attr.link_layer), (4, 3, 2));
            assert_eq!(query_port(context, 1, &mut attr, 56), 0);
            assert_eq!(attr.port_cap_flags2, 0);
            assert_eq!(query_port(context, 2, &mut attr, 56), libc::EINVAL);
            close_device(context);
        }
    }

    #[test]
    fn query_device_ex_writes_no_more_than_there_is_room_for() {
        let context = double::open();
        let mut room = [0xa5_u64; 60];
        let attr = room.as_mut_ptr().cast();
        // SAFETY: this is our context, and the sizes are within the room.
        unsafe {
            assert_eq!(query_device_ex(context, None, attr, 264), 0);
            assert_eq!(room[33], 0xa5);
            assert_eq!(query_device_ex(context, None, attr, 400), 0);
            assert_eq!((room[33], room[50]), (u64::MAX, 0xa5));
            assert_eq!(query_device_ex(context, None, attr, 416), 0);
            assert_eq!((room[50], room[52]), (0, 0xa5));
            assert_eq!(query_device_ex(context, None, attr, 8), libc::EINVAL);
            close_device(context);
        }
    }

    #[test]
    fn empty_gids_are_zero_or_enodata() {
        let context = double::open();
        let (mut gid, mut entry) = (MaybeUninit::new([1; 16]), ibv_gid_entry::default());
        // SAFETY: this is our context, and whole structures.
        unsafe {
            let ours = || Ours::new(context);
            assert_eq!(query_gid(ours(), 1, 7, Some(&mut gid)), 0);
            assert_eq!(gid.assume_init(), [0; 16]);
            assert_eq!(query_gid_ex(ours(), 1, 7, &mut entry, 0, 32), libc::ENODATA);
            assert_eq!(query_gid_ex(ours(), 1, 0, &mut entry, 0, 32), 0);
            assert_eq!((entry.gid_type, entry.port_num), (2, 1));
            assert_eq!(query_gid(ours(), 1, -1, Some(&mut gid)), -1);
            assert_eq!(guard::errno(), libc::EINVAL);
            close_device(context);
        }
    }

    #[test]
    fn too_small_a_gid_table_is_refused() {
        let context = double::open();
        let mut table = [ibv_gid_entry::default(); 4];
        // SAFETY: this is our context, and four entries.
        unsafe {
            let place = table.as_mut_ptr().cast();
            let ours = || Ours::new(context);
            assert_eq!(query_gid_table(ours(), place, 1, 0, 32), -(libc::EINVAL as isize));
            assert_eq!(query_gid_table(ours(), place, 4, 0, 32), 2);
            assert_eq!(table[1].gid_index, 1);
            close_device(context);
        }
    }
}
