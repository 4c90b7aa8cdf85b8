//! How many frames may leave a port: the limit of the transmit machine (IEEE 802.1AX-2014, clause 6.4.16).

use core::time::Duration;

/// The interval in which at most [`PER_INTERVAL`] LACPDUs leave a port: Fast_Periodic_Time.
const INTERVAL: Duration = Duration::from_secs(1);

/// LACPDUs, and marker responses, of a port per [`INTERVAL`]. Slow protocols together must stay below 10.
const PER_INTERVAL: usize = 3;

/// When the last frames left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window([Option<Duration>; PER_INTERVAL]);

impl Window {
    /// The time from which the next frame may leave.
    pub(crate) fn open_at(&self) -> Duration {
        self.0[0].map_or(Duration::ZERO, |oldest| oldest + INTERVAL)
    }

    pub(crate) fn record(&mut self, now: Duration) {
        self.0.rotate_left(1);
        self.0[PER_INTERVAL - 1] = Some(now);
    }
}
