//! Functions of the C library that this library stands in for.
//!
//! Each looks whether the path or descriptor is one of ours and else calls the next function of its
//! name, whatever library that is in. They are exported without a version, which satisfies programs
//! that were linked against any version of the C library's.
//!
//! What the C library does inside of itself never comes by here: where one of its functions opens,
//! lists or walks, that function itself is stood in for ([`walks`], [`places`]).
//!
//! `open` and its like take a mode only sometimes; in the calling conventions of Linux a third
//! argument that was not given is harmless to pass on.

mod descriptors;
mod files;
mod places;
mod signals;
mod walks;

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, looked up at its first use.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    #[inline]
    fn get(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: a C string.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // What only old programs use has no default version any more.
            let version = c"GLIBC_2.2.5".as_ptr();
            // SAFETY: C strings.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version) };
        }
        if found.is_null() {
            // Nothing that calls us was linked without the function being somewhere.
            // SAFETY: ends the process.
            unsafe { libc::abort() };
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the next function of a name. To be used where the caller's promise holds: the C library's
/// function has the signature given here, and gets the caller's arguments.
macro_rules! next {
    ($name:literal, fn($($type:ty),* $(,)?) -> $ret:ty, ($($arg:expr),* $(,)?)) => {{
        static NEXT: Next = Next::new($name);
        let function = NEXT.get();
        core::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C-unwind" fn($($type),*) -> $ret>(
            function,
        )($($arg),*)
    }};
}
use next;
