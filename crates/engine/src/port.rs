//! The ports of a device, each of which represents its member interfaces.

use polypath_topology::{DeviceSpec, GID_TABLE_LEN, PortSpec, Table, width_and_speed};
use polypath_verbs::{Error, GidEntry, PortAttr, PortState, Result};

use crate::limits::MAX_MESSAGE;

/// The port of this number.
///
/// # Errors
/// `EINVAL` if the device has no such port.
pub(crate) fn of(spec: &DeviceSpec, number: u8) -> Result<&PortSpec> {
    spec.port(number).ok_or_else(|| {
        Error::invalid(match spec.ports.len() {
            1 => "the device has one port, number 1".to_owned(),
            count => format!("there is no port {number}: the device has ports 1 to {count}"),
        })
    })
}

/// The entries of the GID tables of all ports that are not empty.
pub(crate) fn gids(spec: &DeviceSpec) -> Vec<GidEntry> {
    let of = |(port, of): (u8, &PortSpec)| {
        let entry = |(index, e): (usize, &polypath_topology::GidEntry)| GidEntry {
            port,
            gid: e.gid,
            index: index as u32,
            ip: e.ip,
            ifindex: e.ifindex,
        };
        of.entries().map(entry).collect::<Vec<_>>()
    };
    spec.numbered_ports().flat_map(of).collect()
}

/// The attributes for `ibv_query_port`. `violations` are those of Q_Keys and P_Keys.
pub(crate) fn attributes(spec: &PortSpec, table: &Table, violations: (u32, u32)) -> PortAttr {
    let active = spec.is_active(table);
    let mbps = spec.speed_mbps(table);
    let (active_width, active_speed) = width_and_speed(mbps);
    PortAttr {
        state: if active { PortState::Active } else { PortState::Down },
        max_mtu: 4096,
        active_mtu: spec.roce_mtu(table),
        gid_tbl_len: GID_TABLE_LEN as u32,
        max_msg_sz: MAX_MESSAGE,
        pkey_tbl_len: 1,
        active_width,
        active_speed,
        // LinkUp and Disabled (IBTA 14.2.5.6).
        phys_state: if active { 5 } else { 3 },
        speed_mbps: mbps,
        qkey_violations: violations.0,
        bad_pkey: violations.1,
    }
}

#[cfg(test)]
mod tests {
    use polypath_wire::ext::{AtomicEth, ImmDt, MpHeader, Reth, XrcEth};
    use polypath_wire::{Bth, ICRC_LEN};

    /// The bytes of the headers of a packet with payload, and the ICRC.
    fn around(headers: &[usize]) -> u32 {
        const IPV6_AND_UDP: usize = 40 + 8;
        (IPV6_AND_UDP + Bth::LEN + headers.iter().sum::<usize>() + ICRC_LEN) as u32
    }

    #[test]
    fn a_full_packet_of_every_kind_fits_into_the_link_mtu() {
        let write = around(&[MpHeader::LEN, Reth::LEN, ImmDt::LEN]);
        let xrc_write = around(&[XrcEth::LEN, Reth::LEN, ImmDt::LEN]);
        assert_eq!(polypath_topology::OVERHEAD, write.max(xrc_write));
        // This packet has no payload, so it fits wherever the smallest path MTU does.
        assert!(around(&[MpHeader::LEN, AtomicEth::LEN]) <= polypath_topology::OVERHEAD + 256);
    }
}
