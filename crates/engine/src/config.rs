//! Settings of a process, from its environment.

use std::time::Duration;

use polypath_ipc::settings::{self, Bonding, SettingError};
use polypath_verbs::{Error, Result};

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

impl Config {
    pub(crate) fn from_env() -> Result<Self> {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        let wrong = |error: SettingError| Error::invalid(error.to_string());
        Ok(Self {
            device: text("POLYPATH_DEVICE"),
            lanes: settings::lanes(&text("POLYPATH_LANES")).map_err(wrong)?,
            bonding: Bonding::parse(&text("POLYPATH_MP")).map_err(wrong)?,
            busy_poll: settings::busy_poll(&text("POLYPATH_BUSY_POLL")).map_err(wrong)?,
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
