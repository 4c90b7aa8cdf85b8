//! Locks of the whole process that work across `fork()`: see [`crate::fork`].

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use libc::pthread_mutex_t;

use crate::wait::{pthread_mutex_lock, pthread_mutex_unlock};

/// A mutex of the C library without a value. It must not move while it is locked.
pub(crate) struct RawLock(UnsafeCell<pthread_mutex_t>);

// SAFETY: the C library's functions may be called by several threads.
unsafe impl Send for RawLock {}
// SAFETY: the same.
unsafe impl Sync for RawLock {}

impl RawLock {
    /// An unlocked lock.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }

    /// Waits for the lock. Not re-entrant.
    pub(crate) fn lock(&self) {
        // SAFETY: this is an initialised mutex.
        unsafe { pthread_mutex_lock(self.0.get()) };
    }

    /// Unlocks the lock, which this thread has locked.
    pub(crate) fn unlock(&self) {
        // SAFETY: the same, and callers unlock only what their thread locked.
        unsafe { pthread_mutex_unlock(self.0.get()) };
    }
}

/// A value behind a mutex of the C library.
pub(crate) struct Lock<T> {
    raw: RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only with the mutex held.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value until this is dropped.
pub(crate) struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// An unlocked lock.
    pub(crate) const fn new(value: T) -> Self {
        Self { raw: RawLock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. It is not re-entrant.
    pub(crate) fn lock(&self) -> Held<'_, T> {
        self.raw_lock();
        Held(self)
    }

    /// Locks without a guard, for the fork handlers.
    pub(crate) fn raw_lock(&self) {
        self.raw.lock();
    }

    /// Unlocks what [`Self::raw_lock`] locked.
    pub(crate) fn raw_unlock(&self) {
        self.raw.unlock();
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
