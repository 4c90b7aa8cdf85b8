//! Options of an actor, named and defaulted as those of Linux bonding (Documentation/networking/bonding.rst).

use core::fmt;

use crate::pdu::Mac;

/// How often the partner should speak (`lacp_rate`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LacpRate {
    /// Every 30 seconds; a silent partner is given up after 90 to 93 seconds.
    #[default]
    Slow,
    /// Every second; a silent partner is given up after 3 to 6 seconds.
    Fast,
}

/// How the active aggregator is chosen (`ad_select`). Aggregators of more than individual ports, and those
/// with a partner, come first under each policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdSelect {
    /// The one with the most bandwidth; then it is kept as long as it has a link and a partner.
    #[default]
    Stable,
    /// The one with the most bandwidth, whenever that changes.
    Bandwidth,
    /// The one with the most ports whose links are up, whenever that changes.
    Count,
}

/// The options of an [`Actor`](crate::Actor).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The rate asked of the partner. Default: slow.
    pub lacp_rate: LacpRate,
    /// Whether to speak without being spoken to. Default: true.
    pub lacp_active: bool,
    /// The choice of the active aggregator. Default: stable.
    pub ad_select: AdSelect,
    /// The number of distributing ports that make the bond's carrier; 0 counts as 1. Default: 0.
    pub min_links: u16,
    /// The system's priority, 1 to 65535; lower has precedence. Default: 65535.
    pub ad_actor_sys_prio: u16,
    /// The system's address. It has no default here: the caller gives that of a port.
    pub ad_actor_system: Mac,
    /// The administrator's part of the key, 0 to 1023. Default: 0.
    pub ad_user_port_key: u16,
    /// Whether collecting and distributing begin together (coupled control), or distributing only when the
    /// partner collects (independent control). Default: true.
    pub coupled_control: bool,
    /// Whether a port without a partner must not carry traffic. Without, one such port works as a plain link,
    /// so that a host reaches a switch that is not configured yet. Default: false.
    pub lacp_strict: bool,
}

impl Config {
    /// The defaults, for a system with this address.
    #[must_use]
    pub fn new(system: Mac) -> Self {
        Self {
            lacp_rate: LacpRate::default(),
            lacp_active: true,
            ad_select: AdSelect::default(),
            min_links: 0,
            ad_actor_sys_prio: 65535,
            ad_actor_system: system,
            ad_user_port_key: 0,
            coupled_control: true,
            lacp_strict: false,
        }
    }

    /// # Errors
    /// [`ConfigError`] says which option is wrong.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.ad_actor_sys_prio == 0 {
            return Err(ConfigError::SystemPriority);
        }
        if self.ad_actor_system == [0; 6] || self.ad_actor_system[0] & 1 != 0 {
            return Err(ConfigError::System);
        }
        if self.ad_user_port_key > 1023 {
            return Err(ConfigError::UserPortKey);
        }
        Ok(())
    }
}

/// An option that no system can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// `ad_actor_sys_prio`.
    SystemPriority,
    /// `ad_actor_system`.
    System,
    /// `ad_user_port_key`.
    UserPortKey,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SystemPriority => "ad_actor_sys_prio must be between 1 and 65535",
            Self::System => {
                "ad_actor_system must be the address of one station, such as 02:00:00:00:00:01"
            }
            Self::UserPortKey => "ad_user_port_key must be between 0 and 1023",
        })
    }
}

impl core::error::Error for ConfigError {}

/// Speeds in Mbit/s in the order of Linux' `enum ad_link_speed_type`, which begins with 1.
const SPEEDS_MBPS: [u32; 17] = [
    1, 10, 100, 1_000, 2_500, 5_000, 10_000, 14_000, 20_000, 25_000, 40_000, 50_000, 56_000,
    100_000, 200_000, 400_000, 800_000,
];

/// A port's key, as Linux makes it: the administrator's part, the speed, the duplex bit. So ports of
/// different speeds are never aggregated.
///
/// A speed that is not in Linux' list counts as unknown, which is 0.
#[must_use]
pub fn port_key(user: u16, speed_mbps: u32, full_duplex: bool) -> u16 {
    let code = SPEEDS_MBPS.iter().position(|speed| *speed == speed_mbps).map_or(0, |at| at + 1);
    user << 6 | (code as u16) << 1 | u16::from(full_duplex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_linux() {
        // What /proc/net/bonding shows for 1 Gbit/s and 10 Gbit/s.
        assert_eq!(port_key(0, 1_000, true), 9);
        assert_eq!(port_key(0, 10_000, true), 15);
        assert_eq!(port_key(0, 10_000, false), 14);
        assert_eq!(port_key(1023, 800_000, true), 0xffc0 | 17 << 1 | 1);
        assert_eq!(port_key(1, 12_345, true), 65);
    }

    #[test]
    fn impossible_options_are_refused() {
        let good = Config::new([2, 0, 0, 0, 0, 1]);
        assert_eq!(good.check(), Ok(()));
        let with = |change: fn(&mut Config)| {
            let mut config = good.clone();
            change(&mut config);
            config.check()
        };
        assert_eq!(with(|c| c.ad_actor_sys_prio = 0), Err(ConfigError::SystemPriority));
        assert_eq!(with(|c| c.ad_actor_system = [0; 6]), Err(ConfigError::System));
        assert_eq!(with(|c| c.ad_actor_system[0] = 1), Err(ConfigError::System));
        assert_eq!(with(|c| c.ad_user_port_key = 1024), Err(ConfigError::UserPortKey));
    }
}
