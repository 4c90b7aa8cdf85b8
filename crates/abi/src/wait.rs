//! Counting acknowledged events, as programs expect of libibverbs: an object is destroyed only when
//! every event that was given out for it has been acknowledged.

use libc::{c_int, pthread_cond_t, pthread_mutex_t};

// Declared here, and not taken from libc, because waiting is a cancellation point.
unsafe extern "C-unwind" {
    pub(crate) fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int;
    pub(crate) fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int;
    fn pthread_cond_wait(cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int;
    fn pthread_cond_signal(cond: *mut pthread_cond_t) -> c_int;
}

/// The public fields of an object that its events are counted with.
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
        // SAFETY: the caller's promise; the counter is guarded by the mutex.
        unsafe {
            pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(count);
            pthread_cond_signal(self.cond);
            pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits until `given` events are acknowledged. A cancellation point, as upstream's is.
    ///
    /// # Safety
    /// The object lives, and no more events are given out for it.
    pub(crate) unsafe fn wait(self, given: u32) {
        // SAFETY: as above. Nothing is alive here that would have to be dropped on cancellation.
        unsafe {
            pthread_mutex_lock(self.mutex);
            while self.completed.read_volatile() != given {
                pthread_cond_wait(self.cond, self.mutex);
            }
            pthread_mutex_unlock(self.mutex);
        }
    }
}
