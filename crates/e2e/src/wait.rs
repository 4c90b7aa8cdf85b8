//! Waits for states that are not announced.

use crate::Error;
use std::time::{Duration, Instant};

/// The time between two checks of a state.
const INTERVAL: Duration = Duration::from_millis(2);

/// The longest time between two looks at the clock that counts.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// What is left of a time limit. If the whole machine stands still for a minute, as virtual machines do that
/// are moved or saved, the clock goes on, but nobody had the time to do what is waited for. So a long pause
/// between two looks counts only as [`LOOK_MAX`].
#[derive(Debug)]
pub(crate) struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { left: limit, looked: Instant::now() }
    }

    /// What is left now. The caller looks again before [`LOOK_MAX`] has passed.
    pub(crate) fn left(&mut self) -> Duration {
        self.left_at(Instant::now())
    }

    fn left_at(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.looked).min(LOOK_MAX);
        self.looked = now;
        self.left = self.left.saturating_sub(passed);
        self.left
    }
}

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
    let mut patience = Patience::new(limit);
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if patience.left().is_zero() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_machine_counts_little() {
        let limit = Duration::from_secs(60);
        let mut patience = Patience::new(limit);
        let mut now = patience.looked;
        for second in 1..=20 {
            now += Duration::from_secs(1);
            assert_eq!(patience.left_at(now), limit - Duration::from_secs(second));
        }
        now += Duration::from_secs(3600);
        assert_eq!(patience.left_at(now), Duration::from_secs(35));
        for _ in 0..7 {
            now += LOOK_MAX;
            patience.left_at(now);
        }
        assert!(patience.left_at(now).is_zero());
    }
}
