//! Locks of the whole process, which survive `fork()`.
//!
//! A child has only the thread that forked: a lock that another thread held then would stay locked
//! for ever. So all locks here are taken before a fork, in one order, and released on both sides.

use core::cell::UnsafeCell;
use core::mem::zeroed;
use core::ops::{Deref, DerefMut};
use std::sync::Once;

use libc::{c_int, pthread_mutex_t};

use crate::wait::{pthread_mutex_lock, pthread_mutex_unlock};
use crate::{broker, buffer, device, import, paths, rdmanl, ucma};

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

/// A value behind a mutex of the C library.
pub(crate) struct Lock<T> {
    raw: UnsafeCell<pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only with the mutex held.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value, until it is dropped.
pub(crate) struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// An unlocked lock.
    pub(crate) const fn new(value: T) -> Self {
        // SAFETY: zero is an unlocked mutex.
        Self { raw: UnsafeCell::new(unsafe { zeroed() }), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock. Not re-entrant.
    pub(crate) fn lock(&self) -> Held<'_, T> {
        register();
        self.raw_lock();
        Held(self)
    }

    /// Locks without a guard, for the fork handlers.
    pub(crate) fn raw_lock(&self) {
        // SAFETY: a mutex in a static, or in a test's frame that outlives its use.
        unsafe { pthread_mutex_lock(self.raw.get()) };
    }

    /// Unlocks what [`Self::raw_lock`] locked.
    pub(crate) fn raw_unlock(&self) {
        // SAFETY: as above; locked by this thread.
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
        // SAFETY: the lock is held, and borrowed once.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.raw_unlock();
    }
}

/// Registers the fork handlers, once.
fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: the library is never unloaded, so the handlers stay valid.
    ONCE.call_once(|| unsafe {
        pthread_atfork(prepare, release, child);
    });
}

extern "C" fn prepare() {
    device::REGISTRY.raw_lock();
    ucma::IDS.raw_lock();
    ucma::FILES.raw_lock();
    rdmanl::SOCKETS.raw_lock();
    paths::lock_for_fork();
    broker::CLIENT.raw_lock();
    buffer::BUFFERS.raw_lock();
    import::CONTEXTS.raw_lock();
}

extern "C" fn release() {
    import::CONTEXTS.raw_unlock();
    buffer::BUFFERS.raw_unlock();
    broker::CLIENT.raw_unlock();
    paths::unlock_after_fork();
    rdmanl::SOCKETS.raw_unlock();
    ucma::FILES.raw_unlock();
    ucma::IDS.raw_unlock();
    device::REGISTRY.raw_unlock();
}

extern "C" fn child() {
    release();
    crate::guard::run((), ucma::forked);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_another_thread_held_is_free_in_the_child() {
        let (held, forked) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let ids = ucma::IDS.lock();
                held.wait();
                // The fork below waits for the lock, so it can't be held until after it.
                drop(ids);
                forked.wait();
            });
            held.wait();
            // SAFETY: the child only takes a lock and leaves.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(ucma::IDS.lock());
                // SAFETY: ends the child without running the test harness.
                unsafe { libc::_exit(7) };
            }
            forked.wait();
            let mut status = 0;
            // SAFETY: our child.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(libc::WEXITSTATUS(status), 7);
        });
    }
}
