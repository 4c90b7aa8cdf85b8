//! C library functions that return or change where something is.
//!
//! The made-up files lie in our own directory, which programs must not see. So the C library's
//! answers about it are converted back to the path that it represents.

use core::ffi::{c_char, c_int};
use core::ptr::null_mut;

use libc::{size_t, ssize_t};

use super::{Next, next};
use crate::{guard, paths};

/// The longest path.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Defines `realpath` and similar functions.
macro_rules! resolver {
    ($name:ident, $c_name:literal, ($($arg:ident: $type:ty),*)) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(path: *const c_char $(, $arg: $type)*) -> *mut c_char {
            // SAFETY: the caller promises it. A result is a C string that the caller may change.
            unsafe {
                let other = paths::redirect(path);
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                let result =
                    next!($c_name, fn(*const c_char $(, $type)*) -> *mut c_char, (path $(, $arg)*));
                paths::show(result);
                result
            }
        }
    };
}

resolver!(realpath, c"realpath", (resolved: *mut c_char));
resolver!(__realpath_chk, c"__realpath_chk", (resolved: *mut c_char, size: size_t));
resolver!(canonicalize_file_name, c"canonicalize_file_name", ());

/// Defines `readlink` and similar functions.
macro_rules! reader {
    ($name:ident, $c_name:literal, ($($dir:ident)?), ($($arg:ident: $type:ty),*)) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            $($dir: c_int,)? path: *const c_char, text: *mut c_char, size: size_t $(, $arg: $type)*
        ) -> ssize_t {
            // SAFETY: the caller promises it. The returned number of bytes was written.
            unsafe {
                let from: c_int = reader!(@from $($dir)?);
                let other = paths::redirect_from(from, path);
                let path = other.as_ref().map_or(path, |other| other.as_ptr());
                let got = next!($c_name,
                    fn($(reader!(@type $dir),)? *const c_char, *mut c_char, size_t $(, $type)*) -> ssize_t,
                    ($($dir,)? path, text, size $(, $arg)*));
                match usize::try_from(got) {
                    Ok(length) => paths::show_bytes(text, length).cast_signed(),
                    Err(_) => got,
                }
            }
        }
    };
    (@from) => { libc::AT_FDCWD };
    (@from $dir:ident) => { $dir };
    (@type $dir:ident) => { c_int };
}

reader!(readlink, c"readlink", (), ());
reader!(__readlink_chk, c"__readlink_chk", (), (room: size_t));
reader!(readlinkat, c"readlinkat", (dir), ());
reader!(__readlinkat_chk, c"__readlinkat_chk", (dir), (room: size_t));

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    // SAFETY: `path` is what the program passes to `chdir`: null or a C string.
    unsafe {
        let other = paths::redirect(path);
        let path = other.as_ref().map_or(path, |other| other.as_ptr());
        let result = next!(c"chdir", fn(*const c_char) -> c_int, (path));
        paths::moved();
        result
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn fchdir(fd: c_int) -> c_int {
    // SAFETY: this is the C library's function, with the program's argument.
    unsafe {
        let result = next!(c"fchdir", fn(c_int) -> c_int, (fd));
        paths::moved();
        result
    }
}

/// The same as the C library's function. If the directory is one of ours, its real path may be too
/// long for the program's buffer although the path shown to the program is not.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn getcwd(text: *mut c_char, size: size_t) -> *mut c_char {
    // SAFETY: the caller promises it. A result is a C string that the caller may change.
    unsafe {
        let result = next!(c"getcwd", fn(*mut c_char, size_t) -> *mut c_char, (text, size));
        if !result.is_null() {
            paths::show(result);
            return result;
        }
        if text.is_null() || guard::errno() != libc::ERANGE {
            return result;
        }
        let mut whole = [0; PATH_MAX];
        let found = next!(
            c"getcwd",
            fn(*mut c_char, size_t) -> *mut c_char,
            (whole.as_mut_ptr(), PATH_MAX)
        );
        if found.is_null() {
            return null_mut();
        }
        paths::show(found);
        let length = libc::strlen(found) + 1;
        if length > size {
            guard::set_errno(libc::ERANGE);
            return null_mut();
        }
        core::ptr::copy_nonoverlapping(found, text, length);
        text
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn __getcwd_chk(
    text: *mut c_char,
    size: size_t,
    room: size_t,
) -> *mut c_char {
    // SAFETY: this is the C library's function, with the program's arguments. A result is the text,
    // which is changed in place.
    unsafe {
        let result = next!(
            c"__getcwd_chk",
            fn(*mut c_char, size_t, size_t) -> *mut c_char,
            (text, size, room)
        );
        paths::show(result);
        result
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn get_current_dir_name() -> *mut c_char {
    // SAFETY: a result is a C string that the caller may change.
    unsafe {
        let result = next!(c"get_current_dir_name", fn() -> *mut c_char, ());
        paths::show(result);
        result
    }
}
