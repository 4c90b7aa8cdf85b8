//! Wraps every function that C calls.
//!
//! No panic crosses the ABI: it becomes an errno (`EIO`). Nothing inside is a cancellation point,
//! because a thread that is cancelled (`pthread_cancel`) inside the engine would be unwound with
//! locks held. So cancellation is disabled meanwhile. The few functions that block on behalf of the
//! program ([`crate::channel`], [`crate::ucma`]) block outside of the guard, as cancellation
//! points.
//!
//! The system calls inside do not change the program's `errno`: librdmacm destroys what it has made when it
//! fails, and returns the `errno` that is there afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Once;

use libc::c_int;
use polypath_verbs::{Error, Result};

use crate::log;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const CANCEL_DISABLE: c_int = 1;

/// Keeps the thread from being cancelled while it lives, and restores `errno` at its end.
struct Inside {
    cancel_state: c_int,
    errno: c_int,
}

impl Inside {
    fn new() -> Self {
        let (mut cancel_state, errno) = (0, errno());
        // SAFETY: both arguments are valid. The state is restored when this is dropped.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut cancel_state) };
        Self { cancel_state, errno }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: the state came from the function itself, and the old one may be null.
        unsafe { pthread_setcancelstate(self.cancel_state, null_mut()) };
        set_errno(self.errno);
    }
}

/// Reports panics in our log only, because standard error belongs to the program.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| log::line(format_args!("internal error: {info}"))));
    });
}

/// Runs `body`. If it panics, returns `on_panic` instead. `errno` is as before.
pub(crate) fn run<T>(on_panic: T, body: impl FnOnce() -> T) -> T {
    quiet_panics();
    let _inside = Inside::new();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(_) => on_panic,
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library returns a valid pointer to the thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// The thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library returns a valid pointer to the thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Logs why a verb failed.
fn explain(verb: &str, error: &Error) {
    if log::enabled() {
        log::line(format_args!("{verb}: {error}"));
    }
}

/// Wraps verbs that return 0 or the error number, and also set `errno`.
pub(crate) fn errno_of(verb: &'static str, body: impl FnOnce() -> Result<()>) -> c_int {
    let errno = run(libc::EIO, || match body() {
        Ok(()) => 0,
        Err(error) => {
            explain(verb, &error);
            error.errno
        }
    });
    if errno != 0 {
        set_errno(errno);
    }
    errno
}

/// Wraps verbs that return a number, or -1 with `errno`.
pub(crate) fn minus_one(verb: &'static str, body: impl FnOnce() -> Result<c_int>) -> c_int {
    let mut value = 0;
    let errno = errno_of(verb, || {
        value = body()?;
        Ok(())
    });
    if errno == 0 { value } else { -1 }
}

/// Wraps verbs that return an object, or null with `errno`.
pub(crate) fn pointer<T>(verb: &'static str, body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    let mut value = null_mut();
    let errno = errno_of(verb, || {
        value = body()?;
        Ok(())
    });
    if errno == 0 { value } else { null_mut() }
}

/// The error for a null pointer in place of an object.
pub(crate) fn null_argument(what: &'static str) -> Error {
    Error::invalid(format!("{what} is a null pointer"))
}

/// `EOPNOTSUPP`.
pub(crate) fn unsupported<T>(what: &'static str) -> Result<T> {
    Err(Error::unsupported(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(errno_of("test", || panic!("planted")), libc::EIO);
        assert_eq!(errno(), libc::EIO);
        assert!(pointer::<u8>("test", || panic!("planted")).is_null());
        assert_eq!(minus_one("test", || panic!("planted")), -1);
    }

    #[test]
    fn a_success_leaves_errno_as_it_was() {
        set_errno(libc::ENOENT);
        let fails_inside = || {
            set_errno(libc::EAGAIN);
            Ok(0)
        };
        assert_eq!((minus_one("test", fails_inside), errno()), (0, libc::ENOENT));
        run((), || set_errno(libc::EAGAIN));
        assert_eq!(errno(), libc::ENOENT);
    }

    #[test]
    fn an_error_gives_its_errno_in_the_verbs_own_way() {
        let refuse = || Err(Error::busy("in use"));
        assert_eq!(errno_of("test", refuse), libc::EBUSY);
        assert_eq!(minus_one("test", || Err(Error::unsupported("no"))), -1);
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!(minus_one("test", || Ok(7)), 7);
    }
}
