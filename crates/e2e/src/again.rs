//! Second attempts, so that one program that fails on a busy machine does not lose a whole measurement or
//! demonstration.
//!
//! A failure is said in any case, by a line that begins with `UNSTABLE:`: it is a bug to look into.

use crate::Error;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of second attempts of one process. What fails more often is broken.
const MOST: usize = 3;

/// Calls `attempt`, and once more if it fails.
///
/// # Errors
/// The error of the second attempt; or of the first, if there were [`MOST`] second attempts before.
pub fn twice<T>(attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    static SPENT: AtomicUsize = AtomicUsize::new(0);
    twice_within(&SPENT, |error| crate::say!("UNSTABLE: {error}"), attempt)
}

fn twice_within<T>(
    spent: &AtomicUsize,
    tell: impl FnOnce(&Error),
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    attempt().or_else(|error| {
        if spent.fetch_add(1, Ordering::Relaxed) >= MOST {
            return Err(error);
        }
        tell(&error);
        attempt()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(times: usize) -> impl FnMut() -> Result<usize, Error> {
        let mut calls = 0;
        move || {
            calls += 1;
            if calls <= times { Err(Error::Missing(format!("call {calls}"))) } else { Ok(calls) }
        }
    }

    /// The outcome of so many failures, and what was said.
    fn outcome(spent: &AtomicUsize, failures: usize) -> (Result<usize, String>, Option<String>) {
        let mut said = None;
        let tell = |error: &Error| said = Some(error.to_string());
        let outcome = twice_within(spent, tell, failing(failures));
        (outcome.map_err(|error| error.to_string()), said)
    }

    #[test]
    fn one_failure_is_made_good_and_two_are_not() {
        let spent = AtomicUsize::new(0);
        assert_eq!(outcome(&spent, 0), (Ok(1), None));
        assert_eq!(outcome(&spent, 1), (Ok(2), Some("call 1".to_owned())));
        assert_eq!(outcome(&spent, 2), (Err("call 2".to_owned()), Some("call 1".to_owned())));
    }

    #[test]
    fn a_run_has_few_second_attempts() {
        let spent = AtomicUsize::new(0);
        assert_eq!(outcome(&spent, 0).0, Ok(1), "a success spends none");
        for _ in 0..MOST {
            assert_eq!(outcome(&spent, 1).0, Ok(2));
        }
        assert_eq!(outcome(&spent, 1), (Err("call 1".to_owned()), None));
    }
}
