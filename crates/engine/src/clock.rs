//! Time in the form that the protocol cores need.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time since the first call in this process.
#[cfg(not(fuzzing))]
pub(crate) fn now() -> Duration {
    origin().0.elapsed()
}

/// The fuzzer's time. It stands still until [`pass`] moves it, so that an input always has the same
/// effect.
#[cfg(fuzzing)]
pub(crate) fn now() -> Duration {
    Duration::from_nanos(PASSED.load(std::sync::atomic::Ordering::Relaxed))
}

#[cfg(fuzzing)]
static PASSED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1_000_000_000);

/// Lets the fuzzer's time pass.
#[cfg(fuzzing)]
pub(crate) fn pass(time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    PASSED.fetch_add(nanos, std::sync::atomic::Ordering::Relaxed);
}

/// The `CLOCK_REALTIME` in nanoseconds at a time of [`now`], for the timestamps of completions.
pub(crate) fn realtime_ns(at: Duration) -> u64 {
    u64::try_from((origin().1 + at).as_nanos()).unwrap_or(u64::MAX)
}

fn origin() -> &'static (Instant, Duration) {
    static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
    ORIGIN.get_or_init(|| {
        (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    })
}
