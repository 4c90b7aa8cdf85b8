//! Settings of a process, from its environment.

use std::time::Duration;

use polypath_verbs::{Error, Result};

use crate::process::MAX_LANES;

/// How long a lane's thread polls before it sleeps, if `POLYPATH_BUSY_POLL` does not say, and at most.
const BUSY_POLL_DEFAULT: Duration = Duration::from_micros(100);
const BUSY_POLL_MAX: Duration = Duration::from_millis(1);

/// What the environment says.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `POLYPATH_DEVICE`: which devices the program sees.
    pub(crate) device: String,
    /// `POLYPATH_LANES`: how many lanes, 1 to 32; 1 by default.
    lanes: usize,
    /// `POLYPATH_MP`: settings of the mp device, `key=value` joined by commas, named as Linux
    /// bonding names them: primary, primary_reselect, updelay, downdelay (ms).
    pub(crate) bonding: Bonding,
    /// `POLYPATH_BUSY_POLL`: how long a lane's thread polls before it sleeps, where packets follow each
    /// other closely and a processor is idle; µs, 0 to 1000, 100 by default.
    pub(crate) busy_poll: Duration,
}

/// Settings of the mp device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bonding {
    /// Name of the interface to prefer.
    pub(crate) primary: Option<String>,
    /// When to go back to it.
    pub(crate) reselect: Option<Reselect>,
    /// How long a path must answer before it is used again.
    pub(crate) updelay: Option<Duration>,
    /// How long a path whose link went down is still used.
    pub(crate) downdelay: Option<Duration>,
}

/// `primary_reselect` of Linux bonding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reselect {
    Always,
    Better,
    Failure,
}

impl Config {
    pub(crate) fn from_env() -> Result<Self> {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        let lanes = match text("POLYPATH_LANES").as_str() {
            "" => 1,
            n => n.parse().ok().filter(|n| (1..=MAX_LANES).contains(n)).ok_or_else(|| {
                Error::invalid(format!(
                    "POLYPATH_LANES is `{n}`: write a number from 1 to {MAX_LANES}"
                ))
            })?,
        };
        Ok(Self {
            device: text("POLYPATH_DEVICE"),
            lanes,
            bonding: Bonding::parse(&text("POLYPATH_MP"))?,
            busy_poll: busy_poll(&text("POLYPATH_BUSY_POLL"))?,
        })
    }

    /// The lane that a queue pair made by this thread lives on: by the CPU the thread runs on.
    #[allow(unsafe_code)]
    pub(crate) fn lane_for_this_thread(&self) -> usize {
        if self.lanes == 1 {
            return 0;
        }
        // SAFETY: sched_getcpu() takes and touches nothing.
        usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0) % self.lanes
    }
}

fn busy_poll(text: &str) -> Result<Duration> {
    if text.is_empty() {
        return Ok(BUSY_POLL_DEFAULT);
    }
    let time = text.parse().ok().map(Duration::from_micros).filter(|time| *time <= BUSY_POLL_MAX);
    time.ok_or_else(|| {
        let most = BUSY_POLL_MAX.as_micros();
        Error::invalid(format!(
            "POLYPATH_BUSY_POLL is `{text}`: write microseconds from 0 (never) to {most}"
        ))
    })
}

impl Bonding {
    fn parse(text: &str) -> Result<Self> {
        let mut bonding = Self::default();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let bad = || {
                Error::invalid(format!(
                    "POLYPATH_MP: `{item}` is not understood; write primary=eth0, \
                     primary_reselect=always|better|failure, updelay=MS or downdelay=MS"
                ))
            };
            let (key, value) = item.split_once('=').ok_or_else(bad)?;
            let ms = || value.parse().map(Duration::from_millis).map_err(|_| bad());
            match key {
                "primary" => bonding.primary = Some(value.to_owned()),
                "primary_reselect" => {
                    bonding.reselect = Some(match value {
                        "always" => Reselect::Always,
                        "better" => Reselect::Better,
                        "failure" => Reselect::Failure,
                        _ => return Err(bad()),
                    });
                }
                "updelay" => bonding.updelay = Some(ms()?),
                "downdelay" => bonding.downdelay = Some(ms()?),
                _ => return Err(bad()),
            }
        }
        Ok(bonding)
    }
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
            let error = busy_poll(wrong).unwrap_err();
            assert!(error.reason.contains("from 0 (never) to 1000"), "{}", error.reason);
        }
    }

    #[test]
    fn settings_have_the_names_of_linux_bonding() {
        let b = Bonding::parse("primary=eth1, primary_reselect=failure,updelay=200").unwrap();
        assert_eq!(b.primary.as_deref(), Some("eth1"));
        assert_eq!(b.reselect, Some(Reselect::Failure));
        assert_eq!(b.updelay, Some(Duration::from_millis(200)));
        assert!(Bonding::parse("updelay=soon").unwrap_err().reason.contains("updelay=MS"));
    }
}
