//! Locks of the whole process that work across `fork()`: see [`crate::fork`].

use core::cell::UnsafeCell;
use core::mem::zeroed;
use core::ops::{Deref, DerefMut};

use libc::pthread_mutex_t;

use crate::wait::{pthread_mutex_lock, pthread_mutex_unlock};

/// A value behind a mutex of the C library.
pub(crate) struct Lock<T> {
    raw: UnsafeCell<pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only with the mutex held.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value until this is dropped.
pub(crate) struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// An unlocked lock.
    pub(crate) const fn new(value: T) -> Self {
        // SAFETY: zero is an unlocked mutex.
        Self { raw: UnsafeCell::new(unsafe { zeroed() }), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. It is not re-entrant.
    pub(crate) fn lock(&self) -> Held<'_, T> {
        self.raw_lock();
        Held(self)
    }

    /// Locks without a guard, for the fork handlers.
    pub(crate) fn raw_lock(&self) {
        // SAFETY: the mutex is in a static, or in a test's frame that outlives its use.
        unsafe { pthread_mutex_lock(self.raw.get()) };
    }

    /// Unlocks what [`Self::raw_lock`] locked.
    pub(crate) fn raw_unlock(&self) {
        // SAFETY: the same mutex, which this thread has locked.
        unsafe { pthread_mutex_unlock(self.raw.get()) };
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this borrow is exclusive.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.raw_unlock();
    }
}
