//! Functions of the C library that this library stands in for.
//!
//! Each looks whether the path or descriptor is one of ours and else calls the next function of its
//! name, whatever library that is in. They are exported without a version, which satisfies programs
//! that were linked against any version of the C library's.
//!
//! `open` and its like take a mode only sometimes; in the calling conventions of Linux a third
//! argument that was not given is harmless to pass on.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::{paths, ucma};

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
    ($name:literal, fn($($type:ty),*) -> $ret:ty, ($($arg:expr),*)) => {{
        static NEXT: Next = Next::new($name);
        let function = NEXT.get();
        core::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $ret>(
            function,
        )($($arg),*)
    }};
}

/// Whether a path is that of the CM device.
unsafe fn is_cm(path: *const c_char) -> bool {
    // SAFETY: a C string, or null.
    !path.is_null() && unsafe { ucma::is_path(path) }
}

/// A function that opens a path.
macro_rules! opener {
    ($name:ident, $c_name:literal, ($($dir:ident: $dir_type:ty)?), ($($mode:ident: $mode_type:ty)?)) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            $($dir: $dir_type,)? path: *const c_char, flags: c_int $(, $mode: $mode_type)?
        ) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                if is_cm(path) {
                    return ucma::open(flags);
                }
                let other = paths::redirect(path);
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                next!($c_name, fn($($dir_type,)? *const c_char, c_int $(, $mode_type)?) -> c_int,
                    ($($dir,)? path, flags $(, $mode)?))
            }
        }
    };
}

opener!(open, c"open", (), (mode: mode_t));
opener!(open64, c"open64", (), (mode: mode_t));
opener!(openat, c"openat", (dir: c_int), (mode: mode_t));
opener!(openat64, c"openat64", (dir: c_int), (mode: mode_t));
opener!(__open_2, c"__open_2", (), ());
opener!(__open64_2, c"__open64_2", (), ());
opener!(__openat_2, c"__openat_2", (dir: c_int), ());
opener!(__openat64_2, c"__openat64_2", (dir: c_int), ());

/// A function that takes a path, and perhaps a directory or version before it.
macro_rules! by_path {
    ($name:ident, $c_name:literal, ($($before:ident: $before_type:ty)?), ($($arg:ident: $type:ty),*) -> $ret:ty) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            $($before: $before_type,)? path: *const c_char $(, $arg: $type)*
        ) -> $ret {
            // SAFETY: the caller's promise.
            unsafe {
                let other = paths::redirect(path);
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                next!($c_name, fn($($before_type,)? *const c_char $(, $type)*) -> $ret,
                    ($($before,)? path $(, $arg)*))
            }
        }
    };
}

by_path!(fopen, c"fopen", (), (mode: *const c_char) -> *mut FILE);
by_path!(fopen64, c"fopen64", (), (mode: *const c_char) -> *mut FILE);
by_path!(opendir, c"opendir", (), () -> *mut DIR);
by_path!(stat, c"stat", (), (status: *mut c_void) -> c_int);
by_path!(stat64, c"stat64", (), (status: *mut c_void) -> c_int);
by_path!(lstat, c"lstat", (), (status: *mut c_void) -> c_int);
by_path!(lstat64, c"lstat64", (), (status: *mut c_void) -> c_int);
by_path!(__xstat, c"__xstat", (version: c_int), (status: *mut c_void) -> c_int);
by_path!(__xstat64, c"__xstat64", (version: c_int), (status: *mut c_void) -> c_int);
by_path!(__lxstat, c"__lxstat", (version: c_int), (status: *mut c_void) -> c_int);
by_path!(__lxstat64, c"__lxstat64", (version: c_int), (status: *mut c_void) -> c_int);
by_path!(fstatat, c"fstatat", (dir: c_int), (status: *mut c_void, flags: c_int) -> c_int);
by_path!(fstatat64, c"fstatat64", (dir: c_int), (status: *mut c_void, flags: c_int) -> c_int);
by_path!(statx, c"statx", (dir: c_int), (flags: c_int, mask: u32, status: *mut c_void) -> c_int);
by_path!(access, c"access", (), (mode: c_int) -> c_int);
by_path!(faccessat, c"faccessat", (dir: c_int), (mode: c_int, flags: c_int) -> c_int);
by_path!(readlink, c"readlink", (), (text: *mut c_char, size: size_t) -> ssize_t);
by_path!(readlinkat, c"readlinkat", (dir: c_int), (text: *mut c_char, size: size_t) -> ssize_t);
by_path!(realpath, c"realpath", (), (resolved: *mut c_char) -> *mut c_char);
by_path!(__realpath_chk, c"__realpath_chk", (), (resolved: *mut c_char, size: size_t) -> *mut c_char);

/// A function that tells about a descriptor.
macro_rules! by_descriptor {
    ($name:ident, $c_name:literal, ($($version:ident: $version_type:ty)?)) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            $($version: $version_type,)? fd: c_int, status: *mut libc::stat
        ) -> c_int {
            // SAFETY: the caller's promise; after success the structure is filled in (and the 64-bit
            // one is the same).
            unsafe {
                let result = next!($c_name, fn($($version_type,)? c_int, *mut libc::stat) -> c_int,
                    ($($version,)? fd, status));
                if result == 0 && ucma::maybe(fd) && ucma::is_open(fd) {
                    ucma::disguise(&mut *status);
                }
                result
            }
        }
    };
}

by_descriptor!(fstat, c"fstat", ());
by_descriptor!(fstat64, c"fstat64", ());
by_descriptor!(__fxstat, c"__fxstat", (version: c_int));
by_descriptor!(__fxstat64, c"__fxstat64", (version: c_int));

/// A function that writes to a descriptor.
macro_rules! writer {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            fd: c_int,
            buffer: *const c_void,
            length: size_t,
        ) -> ssize_t {
            // SAFETY: the caller's promise.
            unsafe {
                if ucma::maybe(fd)
                    && let Some(result) = ucma::write(fd, buffer, length)
                {
                    return result;
                }
                next!($c_name, fn(c_int, *const c_void, size_t) -> ssize_t, (fd, buffer, length))
            }
        }
    };
}

writer!(write, c"write");
writer!(__write, c"__write");
