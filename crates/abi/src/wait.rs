//! Counts acknowledged events, as programs expect of libibverbs: an object is destroyed only when
//! every event that was delivered for it was acknowledged.

use libc::{c_int, pthread_cond_t, pthread_mutex_t};

// These are declared here instead of in libc, because waiting is a cancellation point.
unsafe extern "C-unwind" {
    pub(crate) fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int;
    pub(crate) fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int;
    fn pthread_cond_wait(cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int;
    fn pthread_cond_signal(cond: *mut pthread_cond_t) -> c_int;
}

/// The public fields of an object that count its events.
#[derive(Clone, Copy)]
pub(crate) struct Counter {
    pub(crate) mutex: *mut pthread_mutex_t,
    pub(crate) cond: *mut pthread_cond_t,
    pub(crate) completed: *mut u32,
}

impl Counter {
    /// Acknowledges `count` events.
    ///
    /// # Safety
    /// The object lives.
    pub(crate) unsafe fn acknowledge(self, count: u32) {
        // SAFETY: the caller promises it. The mutex protects the counter.
        unsafe {
            pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(count);
            pthread_cond_signal(self.cond);
            pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits until `given` events are acknowledged. This is a cancellation point, like upstream's.
    ///
    /// # Safety
    /// The object lives, and no more events are delivered for it.
    pub(crate) unsafe fn wait(self, given: u32) {
        // SAFETY: the same. Nothing here needs to be dropped on cancellation.
        unsafe {
            pthread_mutex_lock(self.mutex);
            while self.completed.read_volatile() != given {
                pthread_cond_wait(self.cond, self.mutex);
            }
            pthread_mutex_unlock(self.mutex);
        }
    }
}
