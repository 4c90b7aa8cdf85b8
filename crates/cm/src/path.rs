//! The path between two GIDs, as path records and CM messages describe it.

use crate::abi::qp_attr::AhAttr;
use crate::env::Device;
use serde::{Deserialize, Serialize};

/// Life time of a packet on Ethernet as an exponent: 4.096 µs × 2^16 is 0.27 s, as in Linux since
/// 5.19.
pub(crate) const PACKET_LIFE_TIME: u8 = 16;

/// Hop limit of everything that the connection manager sets up: Linux's default for IP.
pub(crate) const HOP_LIMIT: u8 = 64;

/// A path from a local GID to a remote one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Path {
    pub(crate) service_id: u64,
    pub(crate) sgid: [u8; 16],
    pub(crate) dgid: [u8; 16],
    /// 20 bits.
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) pkey: u16,
    pub(crate) sl: u8,
    /// `enum ibv_mtu`.
    pub(crate) mtu: u8,
    /// `enum ibv_rate`; 0 is the port's own rate.
    pub(crate) rate: u8,
    /// Exponent of 4.096 µs.
    pub(crate) packet_life_time: u8,
}

impl Path {
    /// The address vector that a queue pair of a device uses on this path.
    pub(crate) fn ah_attr(&self, device: &Device) -> AhAttr {
        AhAttr {
            dgid: self.dgid,
            flow_label: self.flow_label,
            sgid_index: device.gid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            sl: self.sl,
            static_rate: self.rate,
            port_num: device.port_num,
        }
    }
}

/// The exponent of a time-out of 4.096 µs × 2^delay + 2 × 4.096 µs × 2^life. An exponent larger by
/// one doubles the time, so this is the larger of the two exponents, plus one if the other term is
/// at least half as large (IBTA 12.7.34).
pub(crate) fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let life = packet_life_time.saturating_add(1);
    let timeout = if life >= ack_delay {
        life.saturating_add(u8::from(ack_delay >= life - 1))
    } else {
        ack_delay.saturating_add(u8::from(life >= ack_delay - 1))
    };
    timeout.min(31)
}

/// 4.096 µs × 2^exponent, rounded to whole milliseconds as Linux does.
pub(crate) fn iba_time(exponent: u8) -> core::time::Duration {
    core::time::Duration::from_millis(1 << exponent.min(31).saturating_sub(8))
}

/// A flow label that spreads connections over paths: a hash of the ports, as in Linux.
pub(crate) fn flow_label(source_port: u16, destination_port: u16) -> u32 {
    (u32::from(source_port) * 31 + u32::from(destination_port)) & 0xf_ffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn the_ack_timeout_of_rxe_is_seventeen() {
        // rxe's ca_ack_delay of 15 and Ethernet's life time, as in the captured REQs.
        assert_eq!(ack_timeout(15, 16), 17);
        assert_eq!(ack_timeout(16, 16), 18);
        assert_eq!(ack_timeout(20, 16), 20);
        assert_eq!(ack_timeout(0, 0), 2);
        assert_eq!(ack_timeout(31, 31), 31);
    }

    #[test]
    fn times_are_rounded_to_powers_of_two_milliseconds() {
        assert_eq!(iba_time(20), Duration::from_millis(4096));
        assert_eq!(iba_time(3), Duration::from_millis(1));
        assert_eq!(iba_time(255), Duration::from_millis(1 << 23));
    }

    #[test]
    fn the_flow_label_is_that_of_the_captures() {
        assert_eq!(flow_label(0xa042, 0x1d2f), 0x3852d);
    }
}
