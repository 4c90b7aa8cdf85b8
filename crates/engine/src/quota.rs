//! Limits on the number of objects of each kind on an open device.
//!
//! The limits that `ibv_query_device` reports are enforced. So a program that leaks objects gets
//! `ENOMEM` before the system kills it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use polypath_verbs::{Error, Result};

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Quota {
    used: AtomicU32,
    most: u32,
    what: &'static str,
}

/// Permission for one object. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Quota>);

impl Quota {
    pub(crate) fn new(most: u32, what: &'static str) -> Arc<Self> {
        Arc::new(Self { used: AtomicU32::new(0), most, what })
    }

    /// Takes a permit for one more object.
    ///
    /// # Errors
    /// `ENOMEM` if the limit is reached.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Permit> {
        // This is only a number, which orders no other memory access.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                (used < self.most).then_some(used + 1)
            })
            .map(|_| Permit(self.clone()))
            .map_err(|_| {
                let Self { most, what, .. } = &**self;
                Error::no_memory(format!("an open device has at most {most} {what}"))
            })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_too_many_is_enomem_and_a_permit_given_back_is_free() {
        let quota = Quota::new(2, "things");
        let (one, _two) = (quota.take().unwrap(), quota.take().unwrap());
        let error = quota.take().unwrap_err();
        assert_eq!(error.errno, libc::ENOMEM);
        assert!(error.to_string().contains("2 things"), "{error}");
        drop(one);
        assert!(quota.take().is_ok());
    }

    #[test]
    fn threads_together_take_no_more_than_there_are() {
        let quota = Quota::new(100, "things");
        let taken = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..50).filter_map(|_| quota.take().ok()).collect::<Vec<_>>())
                })
                .collect();
            takers.into_iter().flat_map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(taken.len(), 100);
    }
}
