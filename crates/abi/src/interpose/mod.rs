//! Functions of the C library that this library replaces.
//!
//! Each checks whether the path or descriptor is ours. If not, it calls the next function of its
//! name, in whichever library that is. They are exported without a version, which satisfies
//! programs that were linked against any version of the C library's functions.
//!
//! Calls inside the C library never come here. So where one of its functions opens, lists or walks
//! files, that function itself is replaced ([`walks`], [`places`]).
//!
//! `open` and similar functions take a mode only sometimes. In Linux's calling conventions it is
//! harmless to pass on a third argument that was not given.

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
        // SAFETY: the name is a C string.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // Functions that only old programs use have no default version any more.
            let version = c"GLIBC_2.2.5".as_ptr();
            // SAFETY: these are C strings.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version) };
        }
        if found.is_null() {
            // Every program that calls us was linked with the function, so it must exist somewhere.
            // SAFETY: this ends the process.
            unsafe { libc::abort() };
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the next function of a name. Use it only where the caller has promised that the C
/// library's function has this signature, and pass the caller's arguments.
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
