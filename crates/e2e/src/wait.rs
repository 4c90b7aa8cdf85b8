//! Waits for states that are not announced.

use crate::Error;
use std::time::{Duration, Instant};

/// The time between two checks of a state.
const INTERVAL: Duration = Duration::from_millis(2);

/// Checks a state until `ready` returns a value.
///
/// # Errors
/// [`Error::Timeout`] naming `what` if it did not within `limit`. An error of `ready` is returned at
/// once.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if start.elapsed() >= limit {
            return Err(Error::Timeout { what: what.to_owned(), limit, context: String::new() });
        }
        std::thread::park_timeout(INTERVAL);
    }
}

/// Lets time pass while programs run: the length of a fault, or of the calm before and after it, is
/// part of the test. It must not be used to wait for something; use [`until`] for that.
pub fn pass(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
        std::thread::park_timeout(left);
    }
}
