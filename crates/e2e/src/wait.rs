//! Waiting for a state that nobody announces.

use crate::Error;
use std::time::{Duration, Instant};

/// How often a state is looked at.
const INTERVAL: Duration = Duration::from_millis(2);

/// Looks at a state until `ready` answers with a value.
///
/// # Errors
/// [`Error::Timeout`] naming `what` when it did not within `limit`; any error of `ready`, at once.
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

/// Lets time pass while programs run: the length of a fault, or of the calm around it, is part of
/// what is shown. Never a way to wait for something; that is [`until`].
pub fn pass(time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
        std::thread::park_timeout(left);
    }
}
