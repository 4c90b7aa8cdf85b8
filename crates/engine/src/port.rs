//! The one port of a device, made of its member interfaces.

use polypath_ipc::{DeviceSpec, Port, Table};
use polypath_verbs::{PortAttr, PortState};

use crate::limits::{GID_TABLE_LEN, MAX_MESSAGE};

/// Headers that a packet may have around its payload: IPv6, UDP, BTH, MPH, AtomicETH, ICRC.
const OVERHEAD: u32 = 40 + 8 + 12 + 20 + 28 + 4;

fn members<'a>(spec: &'a DeviceSpec, table: &'a Table) -> impl Iterator<Item = &'a Port> {
    spec.members.iter().filter_map(|ifindex| table.port(*ifindex))
}

/// Whether any member interface can carry packets.
pub(crate) fn is_active(spec: &DeviceSpec, table: &Table) -> bool {
    members(spec, table).any(|port| port.link_up)
}

/// The largest RoCE MTU that fits into an interface's.
fn roce_mtu(port: &Port) -> u32 {
    [4096, 2048, 1024, 512].into_iter().find(|mtu| mtu + OVERHEAD <= port.mtu).unwrap_or(256)
}

/// Width and speed codes for a rate (IBTA 14.2.5.6: width 1x = 1, 4x = 2; speed SDR 1, QDR 4,
/// FDR10 8, EDR 32), as the kernel's `ib_get_eth_speed` chooses them.
fn width_and_speed(mbps: u32) -> (u8, u8) {
    match mbps {
        0..=1000 => (1, 1),
        1001..=10_000 => (1, 4),
        10_001..=20_000 => (2, 2),
        20_001..=25_000 => (1, 32),
        25_001..=40_000 => (2, 8),
        _ => (2, 32),
    }
}

/// `ibv_query_port`.
pub(crate) fn attributes(spec: &DeviceSpec, table: &Table, qkey_violations: u64) -> PortAttr {
    let active = is_active(spec, table);
    let mbps = members(spec, table)
        .filter(|p| p.link_up)
        .map(|p| p.speed_mbps.unwrap_or(1000))
        .fold(0u32, u32::saturating_add);
    let (active_width, active_speed) = width_and_speed(mbps);
    PortAttr {
        state: if active { PortState::Active } else { PortState::Down },
        max_mtu: 4096,
        // Packets must fit through every member.
        active_mtu: members(spec, table).map(roce_mtu).min().unwrap_or(1024),
        gid_tbl_len: GID_TABLE_LEN,
        max_msg_sz: MAX_MESSAGE,
        pkey_tbl_len: 1,
        active_width,
        active_speed,
        // LinkUp and Disabled (IBTA 14.2.5.6).
        phys_state: if active { 5 } else { 3 },
        speed_mbps: mbps,
        qkey_violations: u32::try_from(qkey_violations).unwrap_or(u32::MAX),
        bad_pkey: 0,
    }
}
