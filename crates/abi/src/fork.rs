//! Handles the locks of the whole process at `fork()`.
//!
//! A child has only the thread that forked, so a lock that another thread held would stay locked
//! forever. So all locks are taken before a fork, in a fixed order, and released on both sides.

use libc::c_int;

use crate::{broker, buffer, device, identity, paths, rdmanl, ucma};

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> c_int;
}

extern "C" fn register() {
    // SAFETY: the library is never unloaded, so the handlers stay valid.
    unsafe { pthread_atfork(prepare, release, child) };
}

/// The dynamic linker runs this when the library is loaded, before any lock is taken.
// SAFETY: the section is a list of pointers to such functions.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

extern "C" fn prepare() {
    device::REGISTRY.raw_lock();
    ucma::IDS.raw_lock();
    ucma::FILES.raw_lock();
    rdmanl::SOCKETS.raw_lock();
    paths::lock_for_fork();
    broker::CLIENT.raw_lock();
    ucma::OWN.raw_lock();
    buffer::BUFFERS.raw_lock();
    identity::CONTEXTS.raw_lock();
}

extern "C" fn release() {
    identity::CONTEXTS.raw_unlock();
    buffer::BUFFERS.raw_unlock();
    ucma::OWN.raw_unlock();
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
                // The fork below waits for the lock, so this thread can only continue after it.
                drop(ids);
                forked.wait();
            });
            held.wait();
            // SAFETY: the child only takes a lock and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(ucma::IDS.lock());
                // SAFETY: this ends the child without running the test harness.
                unsafe { libc::_exit(7) };
            }
            forked.wait();
            let mut status = 0;
            // SAFETY: this is our child.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(libc::WEXITSTATUS(status), 7);
        });
    }
}
