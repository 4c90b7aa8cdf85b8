//! C library functions that set the action of a signal, or the signals that a thread accepts.
//!
//! A fault of an access to registered memory comes to us first, whatever the program installs or
//! blocks later (`polypath_engine::memory::signals`). Until memory is registered, and for all other
//! signals, each function calls the next function of its name.

use core::mem::zeroed;

use libc::{c_int, sigaction as Action, sighandler_t, sigset_t};
use polypath_engine::memory::signals;

use super::{Next, next};

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const Action,
    old: *mut Action,
) -> c_int {
    // SAFETY: `new` and `old` are what the program passes to `sigaction`: each is null or a
    // structure.
    unsafe { signals::action(signal, new, old) }
}

/// Defines a function that sets a handler with certain flags.
macro_rules! setter {
    ($name:ident, $c_name:literal, $flags:expr) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the caller promises it. Zeroes are a value of the structure.
            unsafe {
                if !signals::is_kept(signal) {
                    return next!(
                        $c_name,
                        fn(c_int, sighandler_t) -> sighandler_t,
                        (signal, handler)
                    );
                }
                let (mut new, mut old): (Action, Action) = (zeroed(), zeroed());
                new.sa_sigaction = handler;
                new.sa_flags = $flags;
                signals::action(signal, &raw const new, &raw mut old);
                old.sa_sigaction
            }
        }
    };
}

setter!(signal, c"signal", libc::SA_RESTART);
setter!(bsd_signal, c"bsd_signal", libc::SA_RESTART);
setter!(sysv_signal, c"sysv_signal", libc::SA_RESETHAND | libc::SA_NODEFER);
setter!(__sysv_signal, c"__sysv_signal", libc::SA_RESETHAND | libc::SA_NODEFER);

/// Defines a function that sets the calling thread's mask.
macro_rules! masker {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            how: c_int,
            set: *const sigset_t,
            old: *mut sigset_t,
        ) -> c_int {
            // SAFETY: the sets are what the program passes to the C library's function: null or
            // sets.
            unsafe {
                signals::mask(how, set, |set| {
                    next!(
                        $c_name,
                        fn(c_int, *const sigset_t, *mut sigset_t) -> c_int,
                        (how, set, old)
                    )
                })
            }
        }
    };
}

masker!(sigprocmask, c"sigprocmask");
masker!(pthread_sigmask, c"pthread_sigmask");
