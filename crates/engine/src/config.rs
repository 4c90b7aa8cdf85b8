//! Settings of an engine, given by value or read from the environment.

use std::path::PathBuf;
use std::time::Duration;

use polypath_ipc::faults::Faults;
use polypath_ipc::settings::{self, Bonding, SettingError};
use polypath_topology::Selection;
use polypath_verbs::{Error, Result};

/// The configuration of an engine. The default is that of an empty environment.
///
/// ```
/// use polypath_engine::{Config, Selection};
///
/// let config = Config { devices: Selection::parse("roce:eth0").unwrap(), ..Config::default() };
/// assert_eq!(config.lanes, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The devices of the engine (`POLYPATH_DEVICE`).
    pub devices: Selection,
    /// The largest number of lanes, 1 to 32 (`POLYPATH_LANES`); 1 by default. Lanes are opened when
    /// first used.
    pub lanes: usize,
    /// Settings of the mp device (`POLYPATH_MP`: `key=value` joined by commas, with the names of
    /// Linux bonding: policy, affinity, cost, numa_node, primary, primary_reselect, updelay and
    /// downdelay in ms, hold in s, rendezvous, ecn, ports, local, tcp).
    pub bonding: Bonding,
    /// How long a lane's thread polls before it sleeps, if packets follow each other closely and a
    /// processor is idle (`POLYPATH_BUSY_POLL` in µs): 0 to 1 ms, 100 µs by default.
    pub busy_poll: Duration,
    /// Faults to inject into packets (`POLYPATH_FAULT`), to test a program; `None` for none.
    pub faults: Option<Faults>,
    /// The file that packets are written to; `None` for none.
    pub capture: Option<CaptureTo>,
}

/// A capture of an engine's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureTo {
    /// The file (`POLYPATH_PCAP`), in pcapng format. An existing file of that name is kept: the
    /// process id is then put before the extension of the new one.
    pub path: PathBuf,
    /// The number of bytes of each packet to keep, from the IP header on (`POLYPATH_SNAPLEN`): 128
    /// to 65535.
    pub snap_len: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: Selection::default(),
            lanes: 1,
            bonding: Bonding::default(),
            busy_poll: settings::BUSY_POLL_DEFAULT,
            faults: None,
            capture: None,
        }
    }
}

impl Config {
    /// Reads the configuration from the environment.
    ///
    /// # Errors
    /// `EINVAL` with the first variable that is invalid, and what to write instead.
    pub fn from_env() -> Result<Self> {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        let wrong = |error: SettingError| Error::invalid(error.to_string());
        let snap_len = settings::snap_len(&text("POLYPATH_SNAPLEN")).map_err(wrong)?;
        let pcap = std::env::var_os("POLYPATH_PCAP").filter(|path| !path.is_empty());
        Ok(Self {
            devices: Selection::parse(&text("POLYPATH_DEVICE"))
                .map_err(|error| Error::invalid(error.to_string()))?,
            lanes: settings::lanes(&text("POLYPATH_LANES")).map_err(wrong)?,
            bonding: settings::bonding(&text("POLYPATH_MP")).map_err(wrong)?,
            busy_poll: settings::busy_poll(&text("POLYPATH_BUSY_POLL")).map_err(wrong)?,
            faults: Faults::parse(&text("POLYPATH_FAULT")).map_err(wrong)?,
            capture: pcap.map(|path| CaptureTo { path: path.into(), snap_len }),
        })
    }

    /// Rejects settings that are out of range.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=settings::LANES_MAX).contains(&self.lanes) {
            return Err(Error::invalid(format!(
                "an engine has 1 to {} lanes, not {}",
                settings::LANES_MAX,
                self.lanes
            )));
        }
        if self.busy_poll > settings::BUSY_POLL_MAX {
            return Err(Error::invalid(format!(
                "a lane's thread polls for up to {:?} before it sleeps, not {:?}",
                settings::BUSY_POLL_MAX,
                self.busy_poll
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_refused_as_the_variable_is() {
        let refused = |config: Config| config.check().unwrap_err();
        for lanes in [0, 33] {
            assert_eq!(refused(Config { lanes, ..Config::default() }).errno, libc::EINVAL);
        }
        let busy_poll = Duration::from_micros(1001);
        assert_eq!(refused(Config { busy_poll, ..Config::default() }).errno, libc::EINVAL);
        Config::default().check().unwrap();
    }

    #[test]
    fn the_default_is_an_empty_environment() {
        let default = Config::default();
        assert_eq!(settings::lanes(""), Ok(default.lanes));
        assert_eq!(settings::busy_poll(""), Ok(default.busy_poll));
        assert_eq!(Bonding::parse(""), Ok(default.bonding));
        assert_eq!(Selection::parse(""), Ok(default.devices));
    }
}
