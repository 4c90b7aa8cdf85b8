//! C library functions that open, list or examine what a path names.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr::null_mut;

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use super::{Next, next};
use crate::{guard, paths, ucma};

/// Whether a path is that of the CM device.
unsafe fn is_cm(path: *const c_char) -> bool {
    // SAFETY: a C string, or null.
    !path.is_null() && unsafe { ucma::is_path(path) }
}

/// Defines a function that opens a path.
macro_rules! opener {
    (@from) => { libc::AT_FDCWD };
    (@from $dir:ident) => { $dir };
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
            // SAFETY: this calls the C library's function with the program's arguments. A path is
            // null or a string.
            unsafe {
                if is_cm(path) {
                    return ucma::open(flags);
                }
                let from: c_int = opener!(@from $($dir)?);
                let other = paths::redirect_from(from, path);
                let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
                if writes && other.as_ref().is_some_and(|place| !paths::is_node(place)) {
                    guard::set_errno(libc::EACCES);
                    return -1;
                }
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

/// Defines a function that takes a path, possibly after another argument that is not about paths.
macro_rules! by_path {
    (
        $vis:vis $name:ident, $c_name:literal,
        ($($before:ident: $before_type:ty)?), ($($arg:ident: $type:ty),*) -> $ret:ty
    ) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        $vis unsafe extern "C-unwind" fn $name(
            $($before: $before_type,)? path: *const c_char $(, $arg: $type)*
        ) -> $ret {
            // SAFETY: this calls the C library's function with the program's arguments. A path is
            // null or a string.
            unsafe {
                let other = paths::redirect(path);
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                next!($c_name, fn($($before_type,)? *const c_char $(, $type)*) -> $ret,
                    ($($before,)? path $(, $arg)*))
            }
        }
    };
}

/// Defines a function that takes a directory and a path, possibly after a version.
macro_rules! at_path {
    (
        $name:ident, $c_name:literal,
        ($($before:ident: $before_type:ty)?), ($($arg:ident: $type:ty),*) -> $ret:ty
    ) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            $($before: $before_type,)? dir: c_int, path: *const c_char $(, $arg: $type)*
        ) -> $ret {
            // SAFETY: this calls the C library's function with the program's arguments. A path is
            // null or a string.
            unsafe {
                let other = paths::redirect_from(dir, path);
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                next!($c_name, fn($($before_type,)? c_int, *const c_char $(, $type)*) -> $ret,
                    ($($before,)? dir, path $(, $arg)*))
            }
        }
    };
}

by_path!(pub(super) opendir, c"opendir", (), () -> *mut DIR);
by_path!(pub(super) stat, c"stat", (), (status: *mut c_void) -> c_int);
by_path!(stat64, c"stat64", (), (status: *mut c_void) -> c_int);
by_path!(pub(super) lstat, c"lstat", (), (status: *mut c_void) -> c_int);
by_path!(lstat64, c"lstat64", (), (status: *mut c_void) -> c_int);
by_path!(__xstat, c"__xstat", (version: c_int), (status: *mut c_void) -> c_int);
by_path!(__xstat64, c"__xstat64", (version: c_int), (status: *mut c_void) -> c_int);
by_path!(__lxstat, c"__lxstat", (version: c_int), (status: *mut c_void) -> c_int);
by_path!(__lxstat64, c"__lxstat64", (version: c_int), (status: *mut c_void) -> c_int);
at_path!(fstatat, c"fstatat", (), (status: *mut c_void, flags: c_int) -> c_int);
at_path!(fstatat64, c"fstatat64", (), (status: *mut c_void, flags: c_int) -> c_int);
at_path!(statx, c"statx", (), (flags: c_int, mask: u32, status: *mut c_void) -> c_int);
by_path!(access, c"access", (), (mode: c_int) -> c_int);
at_path!(faccessat, c"faccessat", (), (mode: c_int, flags: c_int) -> c_int);
by_path!(eaccess, c"eaccess", (), (mode: c_int) -> c_int);
by_path!(euidaccess, c"euidaccess", (), (mode: c_int) -> c_int);
by_path!(statfs, c"statfs", (), (status: *mut c_void) -> c_int);
by_path!(statfs64, c"statfs64", (), (status: *mut c_void) -> c_int);
by_path!(statvfs, c"statvfs", (), (status: *mut c_void) -> c_int);
by_path!(statvfs64, c"statvfs64", (), (status: *mut c_void) -> c_int);
by_path!(pathconf, c"pathconf", (), (name: c_int) -> c_long);
by_path!(inotify_add_watch, c"inotify_add_watch", (fd: c_int), (mask: u32) -> c_int);
by_path!(getxattr, c"getxattr", (), (name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t);
by_path!(lgetxattr, c"lgetxattr", (), (name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t);
by_path!(listxattr, c"listxattr", (), (list: *mut c_char, size: size_t) -> ssize_t);
by_path!(llistxattr, c"llistxattr", (), (list: *mut c_char, size: size_t) -> ssize_t);
at_path!(__fxstatat, c"__fxstatat", (version: c_int), (status: *mut c_void, flags: c_int) -> c_int);
at_path!(__fxstatat64, c"__fxstatat64", (version: c_int), (status: *mut c_void, flags: c_int) -> c_int);

/// The selection and comparison functions of `scandir`, which are passed on unchanged.
type Select = Option<unsafe extern "C-unwind" fn(*const c_void) -> c_int>;
type Compare = Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int>;

by_path!(scandir, c"scandir", (), (list: *mut c_void, select: Select, compare: Compare) -> c_int);
by_path!(scandir64, c"scandir64", (), (list: *mut c_void, select: Select, compare: Compare) -> c_int);

/// Defines `scandirat` and `scandirat64`.
macro_rules! scandirat {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            dir: c_int,
            path: *const c_char,
            list: *mut c_void,
            select: Select,
            compare: Compare,
        ) -> c_int {
            // SAFETY: this calls the C library's function with the program's arguments. A path is
            // null or a string.
            unsafe {
                let other = paths::redirect_from(dir, path);
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                next!(
                    $c_name,
                    fn(c_int, *const c_char, *mut c_void, Select, Compare) -> c_int,
                    (dir, path, list, select, compare)
                )
            }
        }
    };
}

scandirat!(scandirat, c"scandirat");
scandirat!(scandirat64, c"scandirat64");

/// Defines `fopen` and `fopen64`.
macro_rules! fopen {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the caller promises it. A mode is a C string of at least one character.
            unsafe {
                let other = paths::redirect(path);
                if other.as_ref().is_some_and(|place| !paths::is_node(place)) && !mode.is_null() {
                    let mode = CStr::from_ptr(mode).to_bytes();
                    if !mode.starts_with(b"r") || mode.contains(&b'+') {
                        guard::set_errno(libc::EACCES);
                        return null_mut();
                    }
                }
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                next!($c_name, fn(*const c_char, *const c_char) -> *mut FILE, (path, mode))
            }
        }
    };
}

fopen!(fopen, c"fopen");
fopen!(fopen64, c"fopen64");
