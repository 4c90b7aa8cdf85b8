//! Threads of our own.

use std::io;

/// Starts a thread that takes no signals: those are the application's.
#[allow(unsafe_code)]
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: both sets are plain data on this stack; the caller's mask is restored below. The new
    // thread inherits the full mask, so that no signal can arrive before it could block them.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut old: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut());
        started.map(drop)
    }
}
