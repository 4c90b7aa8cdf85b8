//! Time as the protocol cores want it.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time since the first call in this process.
pub(crate) fn now() -> Duration {
    origin().0.elapsed()
}

/// `CLOCK_REALTIME` in nanoseconds at a moment of [`now`], as completions are stamped.
pub(crate) fn realtime_ns(at: Duration) -> u64 {
    u64::try_from((origin().1 + at).as_nanos()).unwrap_or(u64::MAX)
}

fn origin() -> &'static (Instant, Duration) {
    static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
    ORIGIN.get_or_init(|| {
        (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    })
}
