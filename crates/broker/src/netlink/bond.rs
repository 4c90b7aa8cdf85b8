//! What rtnetlink tells of bonds, teams and their ports (`IFLA_INFO_DATA`, `IFLA_INFO_SLAVE_DATA`; the
//! numbers are those of linux/if_link.h).

use super::attributes::{Reader, attributes};

const IFLA_BOND_MODE: u16 = 1;
const IFLA_BOND_ACTIVE_SLAVE: u16 = 2;
const IFLA_BOND_XMIT_HASH_POLICY: u16 = 14;
const IFLA_BOND_AD_INFO: u16 = 23;
const IFLA_BOND_AD_INFO_AGGREGATOR: u16 = 1;

const IFLA_BOND_SLAVE_STATE: u16 = 1;
const IFLA_BOND_SLAVE_MII_STATUS: u16 = 2;
const IFLA_BOND_SLAVE_AD_AGGREGATOR_ID: u16 = 6;
const IFLA_BOND_SLAVE_AD_ACTOR_OPER_PORT_STATE: u16 = 7;

const BOND_MODE_ACTIVEBACKUP: u8 = 1;
const BOND_MODE_8023AD: u8 = 4;
const BOND_LINK_UP: u8 = 0;
const BOND_STATE_ACTIVE: u8 = 0;

/// Collecting and distributing, of the state of a LACP port.
const CARRIES: u8 = 0x30;

/// A bond or team.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BondData {
    /// `None` for a team.
    pub(crate) mode: Option<u8>,
    pub(crate) xmit_hash_policy: u8,
    /// The index of the port that is used in modes with an active one; 0 if there is none.
    active: u32,
    /// The active aggregator, under 802.3ad.
    aggregator: Option<u16>,
}

/// A port of a bond. A team tells nothing of its ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlaveData {
    state: Option<u8>,
    mii_status: Option<u8>,
    aggregator: Option<u16>,
    actor_state: Option<u8>,
}

impl BondData {
    /// Reads the contents of `IFLA_INFO_DATA` of a bond.
    pub(super) fn parse(data: &[u8]) -> Self {
        let mut bond = Self { mode: Some(0), ..Self::default() };
        for (kind, value) in attributes(data, 0) {
            let value_of = Reader(value);
            match kind {
                IFLA_BOND_MODE => bond.mode = value_of.u8(0).or(bond.mode),
                IFLA_BOND_ACTIVE_SLAVE => bond.active = value_of.u32(0).unwrap_or(0),
                IFLA_BOND_XMIT_HASH_POLICY => {
                    bond.xmit_hash_policy = value_of.u8(0).unwrap_or_default();
                }
                IFLA_BOND_AD_INFO => {
                    let mut info = attributes(value, 0);
                    let aggregator = info.find(|(kind, _)| *kind == IFLA_BOND_AD_INFO_AGGREGATOR);
                    bond.aggregator = aggregator.and_then(|(_, value)| Reader(value).u16(0));
                }
                _ => {}
            }
        }
        bond
    }

    /// Whether a port of this index carries traffic, if it has a link. Under 802.3ad the kernel sends by the
    /// ports of the active aggregator whose state is active: those that distribute, or, while there is no
    /// partner, any.
    pub(crate) fn uses(&self, ifindex: u32, slave: &SlaveData) -> bool {
        let up = slave.mii_status.is_none_or(|status| status == BOND_LINK_UP);
        up && match self.mode {
            Some(BOND_MODE_ACTIVEBACKUP) => self.active == ifindex,
            Some(BOND_MODE_8023AD) => {
                let distributes = slave.actor_state.is_some_and(|it| it & CARRIES == CARRIES);
                let active = slave.state.map_or(distributes, |it| it == BOND_STATE_ACTIVE);
                slave.aggregator == self.aggregator && active
            }
            _ => true,
        }
    }
}

impl SlaveData {
    /// Reads the contents of `IFLA_INFO_SLAVE_DATA` of a bond's port.
    pub(super) fn parse(data: &[u8]) -> Self {
        let mut slave = Self::default();
        for (kind, value) in attributes(data, 0) {
            let value = Reader(value);
            match kind {
                IFLA_BOND_SLAVE_STATE => slave.state = value.u8(0),
                IFLA_BOND_SLAVE_MII_STATUS => slave.mii_status = value.u8(0),
                IFLA_BOND_SLAVE_AD_AGGREGATOR_ID => slave.aggregator = value.u16(0),
                IFLA_BOND_SLAVE_AD_ACTOR_OPER_PORT_STATE => slave.actor_state = value.u8(0),
                _ => {}
            }
        }
        slave
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    /// `IFLA_INFO_DATA` of a bond, in the kernel's order (bond_fill_info).
    fn bond(mode: u8, active: Option<u32>, hash: u8, aggregator: Option<u16>) -> BondData {
        let mut data = Vec::new();
        attribute(&mut data, IFLA_BOND_MODE, &[mode]);
        if let Some(active) = active {
            attribute(&mut data, IFLA_BOND_ACTIVE_SLAVE, &active.to_ne_bytes());
        }
        attribute(&mut data, 3, &100_u32.to_ne_bytes());
        attribute(&mut data, IFLA_BOND_XMIT_HASH_POLICY, &[hash]);
        if let Some(aggregator) = aggregator {
            let mut info = Vec::new();
            attribute(&mut info, IFLA_BOND_AD_INFO_AGGREGATOR, &aggregator.to_ne_bytes());
            attribute(&mut info, 2, &2_u16.to_ne_bytes());
            attribute(&mut data, IFLA_BOND_AD_INFO, &info);
        }
        // One of a newer kernel.
        attribute(&mut data, 200, &[1, 2, 3]);
        BondData::parse(&data)
    }

    /// `IFLA_INFO_SLAVE_DATA` of its port.
    fn slave(mii: u8, aggregator: u16, state: u8) -> SlaveData {
        let mut data = Vec::new();
        // A port that does not distribute is a backup.
        attribute(&mut data, IFLA_BOND_SLAVE_STATE, &[u8::from(state & 0x20 == 0)]);
        attribute(&mut data, IFLA_BOND_SLAVE_MII_STATUS, &[mii]);
        attribute(&mut data, 4, &[2, 0, 0, 0, 0, 1]);
        attribute(&mut data, IFLA_BOND_SLAVE_AD_AGGREGATOR_ID, &aggregator.to_ne_bytes());
        attribute(&mut data, IFLA_BOND_SLAVE_AD_ACTOR_OPER_PORT_STATE, &[state]);
        SlaveData::parse(&data)
    }

    #[test]
    fn the_active_port_of_active_backup_carries() {
        let bond = bond(1, Some(7), 0, None);
        assert_eq!((bond.mode, bond.xmit_hash_policy), (Some(1), 0));
        assert!(bond.uses(7, &slave(0, 0, 0)));
        assert!(!bond.uses(8, &slave(0, 0, 0)), "a backup");
        assert!(!bond.uses(7, &slave(2, 0, 0)), "down");
    }

    #[test]
    fn nothing_carries_without_an_active_port() {
        assert!(!bond(1, None, 0, None).uses(7, &slave(0, 0, 0)));
    }

    #[test]
    fn ports_of_the_active_aggregator_carry_once_they_distribute() {
        let bond = bond(4, None, 1, Some(1));
        assert_eq!((bond.mode, bond.xmit_hash_policy), (Some(4), 1));
        assert!(bond.uses(7, &slave(0, 1, 0x3f)));
        assert!(!bond.uses(7, &slave(0, 2, 0x3f)), "another aggregator");
        assert!(!bond.uses(7, &slave(0, 1, 0x1f)), "collects only");
        assert!(!bond.uses(7, &slave(2, 1, 0x3f)), "no link");
        assert!(!bond.uses(7, &SlaveData::parse(&[])), "nothing known of LACP");
        // Without a partner the kernel opens the ports of the active aggregator. What an older kernel leaves
        // unsaid follows from the state of LACP.
        let defaulted = SlaveData { state: Some(0), actor_state: Some(0x45), ..slave(0, 1, 0x3f) };
        assert!(bond.uses(7, &defaulted));
        let unsaid = |bits| SlaveData { state: None, ..slave(0, 1, bits) };
        assert!(bond.uses(7, &unsaid(0x3f)) && !bond.uses(7, &unsaid(0x1f)));
    }

    #[test]
    fn all_ports_with_a_link_carry_in_other_modes() {
        for mode in [0, 2, 3, 5, 6] {
            assert!(bond(mode, None, 0, None).uses(7, &slave(0, 0, 0)), "mode {mode}");
            assert!(!bond(mode, None, 0, None).uses(7, &slave(1, 0, 0)), "mode {mode}");
        }
        assert!(BondData::default().uses(7, &SlaveData::default()), "a team");
    }

    #[test]
    fn every_truncation_is_read_without_harm() {
        let mut data = Vec::new();
        attribute(&mut data, IFLA_BOND_MODE, &[4]);
        attribute(&mut data, IFLA_BOND_AD_INFO, &[6, 0, 1, 0, 1]);
        for len in 0..data.len() {
            BondData::parse(&data[..len]);
            SlaveData::parse(&data[..len]);
        }
        assert_eq!(BondData::parse(&[]).mode, Some(0), "the default of Linux");
    }
}
