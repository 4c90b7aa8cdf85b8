//! The settings of a process in the environment. The library and `polypath doctor` use the same
//! code, so that they agree.

use std::time::Duration;

use polypath_topology::BondingError;
pub use polypath_topology::{AffinityRule, Bonding, Policy, Reselect};
use serde::{Deserialize, Serialize};

/// The largest number of lanes in an engine.
pub const LANES_MAX: usize = 32;

/// How long a lane's thread polls before it sleeps, if `POLYPATH_BUSY_POLL` is not set.
pub const BUSY_POLL_DEFAULT: Duration = Duration::from_micros(100);
/// The largest value of that time.
pub const BUSY_POLL_MAX: Duration = Duration::from_millis(1);

/// How often connections are moved at most, so that they are spread evenly over the ports, if
/// `POLYPATH_APM` says no time; and the least and the greatest time that it may say.
const BALANCE_DEFAULT: Duration = Duration::from_secs(10);
const BALANCE_MIN: Duration = Duration::from_secs(1);
const BALANCE_MAX: Duration = Duration::from_secs(3600);

/// The number of bytes of each packet that `POLYPATH_PCAP` keeps, from the IP header on: at least
/// all headers, and at most everything.
const SNAP_LEN_MIN: u32 = 128;
const SNAP_LEN_MAX: u32 = 65_535;

/// The environment variables that Polypath knows.
pub const VARIABLES: &[&str] = &[
    "POLYPATH_APM",
    "POLYPATH_BUSY_POLL",
    "POLYPATH_BROKER_BIN",
    "POLYPATH_CONFIG",
    "POLYPATH_DEVICE",
    "POLYPATH_FAULT",
    "POLYPATH_LANES",
    "POLYPATH_LIBRARY",
    "POLYPATH_LOG",
    "POLYPATH_MP",
    "POLYPATH_PCAP",
    "POLYPATH_RDMA_CM",
    "POLYPATH_SNAPLEN",
];

/// An invalid setting. The text says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// `POLYPATH_LANES`.
    #[error("POLYPATH_LANES is `{0}`: write a number from 1 to {LANES_MAX}")]
    Lanes(String),
    /// `POLYPATH_BUSY_POLL`.
    #[error(
        "POLYPATH_BUSY_POLL is `{0}`: write microseconds from 0 (never) to {most}",
        most = BUSY_POLL_MAX.as_micros()
    )]
    BusyPoll(String),
    /// `POLYPATH_MP`.
    #[error("POLYPATH_MP: {0}")]
    Bonding(BondingError),
    /// An item of `POLYPATH_FAULT`.
    #[error("POLYPATH_FAULT: `{item}` is not understood; write {write}")]
    Fault {
        /// The item.
        item: String,
        /// A valid one.
        write: &'static str,
    },
    /// `POLYPATH_SNAPLEN`.
    #[error(
        "POLYPATH_SNAPLEN is `{0}`: write how many bytes of each packet to keep, from {SNAP_LEN_MIN} to \
         {SNAP_LEN_MAX}"
    )]
    SnapLen(String),
    /// `POLYPATH_APM`.
    #[error(
        "POLYPATH_APM is `{0}`: write on, off, balance, or balance=SECONDS from 1 to {most}, or unset it",
        most = BALANCE_MAX.as_secs()
    )]
    Apm(String),
    /// `POLYPATH_RDMA_CM`.
    #[error(
        "POLYPATH_RDMA_CM is `{0}`: write polypath, kernel or both (by source address), or unset it"
    )]
    RdmaCm(String),
}

/// The connection managers that serve librdmacm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaCm {
    /// Only Polypath.
    Polypath,
    /// Only the kernel.
    Kernel,
    /// Both. The device that has the source address decides.
    Both,
}

/// Parses `POLYPATH_MP`: `key=value` joined by commas; delays are in milliseconds.
///
/// # Errors
/// [`SettingError::Bonding`].
pub fn bonding(text: &str) -> Result<Bonding, SettingError> {
    Bonding::parse(text).map_err(SettingError::Bonding)
}

/// Parses `POLYPATH_RDMA_CM`; `None` if it is empty, so that the available devices decide.
///
/// # Errors
/// [`SettingError::RdmaCm`].
pub fn rdma_cm(text: &str) -> Result<Option<RdmaCm>, SettingError> {
    match text {
        "" => Ok(None),
        "polypath" => Ok(Some(RdmaCm::Polypath)),
        "kernel" => Ok(Some(RdmaCm::Kernel)),
        "both" => Ok(Some(RdmaCm::Both)),
        other => Err(SettingError::RdmaCm(other.to_owned())),
    }
}

/// What `POLYPATH_APM` says of connections of rdma_cm whose program did not ask for migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Apm {
    /// They stay on their path.
    #[default]
    Off,
    /// They migrate to an alternate path.
    On,
    /// They do, and are also spread evenly over the ports.
    Balance {
        /// The shortest time between two occasions on which connections are moved for that.
        interval: Duration,
    },
}

impl Apm {
    /// Whether connections migrate at all.
    pub fn migrates(self) -> bool {
        self != Self::Off
    }

    /// The shortest time between two occasions on which connections are moved, so that they are spread
    /// evenly; `None` if they are not.
    pub fn balance_interval(self) -> Option<Duration> {
        match self {
            Self::Balance { interval } => Some(interval),
            Self::Off | Self::On => None,
        }
    }
}

/// Parses `POLYPATH_APM`; it is off if it is empty.
///
/// # Errors
/// [`SettingError::Apm`].
pub fn apm(text: &str) -> Result<Apm, SettingError> {
    let interval = match text {
        "" | "off" => return Ok(Apm::Off),
        "on" => return Ok(Apm::On),
        "balance" => Some(BALANCE_DEFAULT),
        other => other
            .strip_prefix("balance=")
            .and_then(|seconds| seconds.parse().ok())
            .map(Duration::from_secs)
            .filter(|interval| (BALANCE_MIN..=BALANCE_MAX).contains(interval)),
    };
    let wrong = || SettingError::Apm(text.to_owned());
    interval.map(|interval| Apm::Balance { interval }).ok_or_else(wrong)
}

/// Parses `POLYPATH_LANES`: the number of lanes, 1 to [`LANES_MAX`]; 1 if it is empty.
///
/// # Errors
/// [`SettingError::Lanes`].
pub fn lanes(text: &str) -> Result<usize, SettingError> {
    match text {
        "" => Ok(1),
        text => text
            .parse()
            .ok()
            .filter(|lanes| (1..=LANES_MAX).contains(lanes))
            .ok_or_else(|| SettingError::Lanes(text.to_owned())),
    }
}

/// Parses `POLYPATH_BUSY_POLL`: microseconds, 0 to 1000; 100 if it is empty.
///
/// # Errors
/// [`SettingError::BusyPoll`].
pub fn busy_poll(text: &str) -> Result<Duration, SettingError> {
    if text.is_empty() {
        return Ok(BUSY_POLL_DEFAULT);
    }
    let time = text.parse().ok().map(Duration::from_micros).filter(|time| *time <= BUSY_POLL_MAX);
    time.ok_or_else(|| SettingError::BusyPoll(text.to_owned()))
}

/// Parses `POLYPATH_SNAPLEN`: bytes of each packet, 128 to 65535; everything if it is empty.
///
/// # Errors
/// [`SettingError::SnapLen`].
pub fn snap_len(text: &str) -> Result<u32, SettingError> {
    if text.is_empty() {
        return Ok(SNAP_LEN_MAX);
    }
    let len = text.parse().ok().filter(|len| (SNAP_LEN_MIN..=SNAP_LEN_MAX).contains(len));
    len.ok_or_else(|| SettingError::SnapLen(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_before_sleep_is_bounded_and_can_be_switched_off() {
        assert_eq!(busy_poll("").unwrap(), BUSY_POLL_DEFAULT);
        assert_eq!(busy_poll("0").unwrap(), Duration::ZERO);
        assert_eq!(busy_poll("1000").unwrap(), BUSY_POLL_MAX);
        for wrong in ["1001", "-1", "100us", "soon"] {
            let error = busy_poll(wrong).unwrap_err().to_string();
            assert!(error.contains("from 0 (never) to 1000"), "{error}");
        }
    }

    #[test]
    fn a_capture_keeps_all_headers_and_at_most_everything() {
        assert_eq!((snap_len(""), snap_len("128")), (Ok(SNAP_LEN_MAX), Ok(128)));
        for wrong in ["127", "65536", "-1", "all"] {
            assert!(snap_len(wrong).unwrap_err().to_string().contains("from 128 to 65535"));
        }
    }

    #[test]
    fn lanes_are_counted_from_1_to_32() {
        assert_eq!((lanes(""), lanes("1"), lanes("32")), (Ok(1), Ok(1), Ok(32)));
        for wrong in ["0", "33", "-1", "many"] {
            assert!(lanes(wrong).unwrap_err().to_string().contains("1 to 32"));
        }
    }

    #[test]
    fn migration_is_off_on_or_balances() {
        assert_eq!(["", "off", "on"].map(apm), [Ok(Apm::Off), Ok(Apm::Off), Ok(Apm::On)]);
        let every = |seconds| Ok(Apm::Balance { interval: Duration::from_secs(seconds) });
        let given = ["balance", "balance=1", "balance=3600"].map(apm);
        assert_eq!(given, [every(10), every(1), every(3600)]);
        for text in ["yes", "balance=", "balance=0", "balance=3601", "balance=-1", "balance=1s"] {
            let error = apm(text).unwrap_err().to_string();
            assert!(
                error.contains("write on, off, balance, or balance=SECONDS from 1 to 3600"),
                "{error}"
            );
        }
    }

    #[test]
    fn librdmacm_is_served_by_polypath_the_kernel_or_both() {
        assert_eq!(rdma_cm(""), Ok(None));
        assert_eq!(rdma_cm("polypath"), Ok(Some(RdmaCm::Polypath)));
        assert_eq!(rdma_cm("kernel"), Ok(Some(RdmaCm::Kernel)));
        assert_eq!(rdma_cm("both"), Ok(Some(RdmaCm::Both)));
        let said = rdma_cm("Kernel").unwrap_err().to_string();
        assert!(said.contains("`Kernel`: write polypath, kernel or both"), "{said}");
    }
}
