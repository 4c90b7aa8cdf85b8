//! C library functions that search for files themselves: `glob`, `ftw`, `nftw`.
//!
//! They open directories inside the C library, without calling [`super::files`]. `glob` accepts
//! functions for opening and listing, so it gets ours. The walks are sent to our directory, and the
//! program's function gets the path that each file represents.

use core::ffi::{c_char, c_int, c_void};
use std::cell::Cell;

use libc::{DIR, dirent64};

use super::files::{lstat, opendir, stat};
use super::{Next, next};
use crate::paths;

/// glibc's `GLOB_ALTDIRFUNC`: the structure has functions for opening and listing.
const ALTDIRFUNC: c_int = 1 << 9;

/// glibc's `glob_t`.
#[repr(C)]
struct Glob {
    count: usize,
    found: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: Option<unsafe extern "C-unwind" fn(*mut DIR)>,
    readdir: Option<unsafe extern "C-unwind" fn(*mut DIR) -> *mut dirent64>,
    opendir: Option<unsafe extern "C-unwind" fn(*const c_char) -> *mut DIR>,
    lstat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut c_void) -> c_int>,
    stat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut c_void) -> c_int>,
}

unsafe extern "C-unwind" fn close_stream(stream: *mut DIR) {
    // SAFETY: this is our stream, which glob got from `opendir`.
    unsafe { libc::closedir(stream) };
}

unsafe extern "C-unwind" fn read_stream(stream: *mut DIR) -> *mut dirent64 {
    // SAFETY: this is our open stream, which glob got from `opendir`.
    unsafe { libc::readdir64(stream) }
}

/// `struct FTW`: where a file's name begins in its path, and how deep the file is.
#[repr(C)]
struct Ftw {
    base: c_int,
    level: c_int,
}

/// The function that glob calls for directories that it can't read; it is passed on unchanged.
type OnError = Option<unsafe extern "C-unwind" fn(*const c_char, c_int) -> c_int>;

/// Defines `glob` and `glob64`, which are the same where files have 64-bit sizes anyway.
macro_rules! glob {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            pattern: *const c_char,
            flags: c_int,
            on_error: OnError,
            result: *mut Glob,
        ) -> c_int {
            // SAFETY: the caller promises that `result` is a glob_t. Its functions are used only
            // with ALTDIRFUNC, and have the signatures that glob uses.
            unsafe {
                let ours =
                    flags & ALTDIRFUNC == 0 && !result.is_null() && paths::may_match(pattern);
                let mut flags = flags;
                if ours {
                    flags |= ALTDIRFUNC;
                    (*result).closedir = Some(close_stream);
                    (*result).readdir = Some(read_stream);
                    (*result).opendir = Some(opendir);
                    (*result).lstat = Some(lstat);
                    (*result).stat = Some(stat);
                }
                let status = next!(
                    $c_name,
                    fn(*const c_char, c_int, OnError, *mut Glob) -> c_int,
                    (pattern, flags, on_error, result)
                );
                if ours {
                    (*result).flags &= !ALTDIRFUNC;
                }
                status
            }
        }
    };
}

glob!(glob, c"glob");
glob!(glob64, c"glob64");

type Visit = unsafe extern "C-unwind" fn(*const c_char, *const c_void, c_int) -> c_int;
type VisitPlace =
    unsafe extern "C-unwind" fn(*const c_char, *const c_void, c_int, *mut Ftw) -> c_int;

thread_local! {
    /// The program's function for the walk that runs in this thread.
    static VISIT: Cell<Option<Visit>> = const { Cell::new(None) };
    static VISIT_PLACE: Cell<Option<VisitPlace>> = const { Cell::new(None) };
}

/// Calls the program's function with the path that one of our files represents, which is the end of
/// the file's real path.
unsafe extern "C-unwind" fn visit(
    path: *const c_char,
    status: *const c_void,
    kind: c_int,
) -> c_int {
    let Some(program) = VISIT.get() else { return -1 };
    // SAFETY: the C library's promises to its callback are passed on. A walk that the program
    // starts inside of this one has its own function, and restores ours.
    unsafe { program(path.add(paths::hidden(path)), status, kind) }
}

/// The same, with the place in the tree.
unsafe extern "C-unwind" fn visit_place(
    path: *const c_char,
    status: *const c_void,
    kind: c_int,
    place: *mut Ftw,
) -> c_int {
    let Some(program) = VISIT_PLACE.get() else { return -1 };
    // SAFETY: the same as above. The place is a structure of this call.
    unsafe {
        let hidden = paths::hidden(path);
        let mut shown = Ftw { base: (*place).base, level: (*place).level };
        shown.base -= c_int::try_from(hidden).unwrap_or(0);
        program(path.add(hidden), status, kind, &mut shown)
    }
}

/// Restores the previous value, even if the program's function unwinds.
struct Before<T: 'static>(&'static std::thread::LocalKey<Cell<Option<T>>>, Option<T>);

impl<T> Drop for Before<T> {
    fn drop(&mut self) {
        self.0.set(self.1.take());
    }
}

/// Defines `ftw` and `ftw64`.
macro_rules! ftw {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            program: Option<Visit>,
            descriptors: c_int,
        ) -> c_int {
            // SAFETY: this calls the C library's function with the program's arguments. A path is
            // null or a string.
            unsafe {
                let other = paths::redirect(path);
                let Some(ours) = other.as_ref().filter(|_| program.is_some()) else {
                    return next!(
                        $c_name,
                        fn(*const c_char, Option<Visit>, c_int) -> c_int,
                        (path, program, descriptors)
                    );
                };
                let _before = Before(&VISIT, VISIT.replace(program));
                next!(
                    $c_name,
                    fn(*const c_char, Option<Visit>, c_int) -> c_int,
                    (ours.as_ptr(), Some(visit), descriptors)
                )
            }
        }
    };
}

ftw!(ftw, c"ftw");
ftw!(ftw64, c"ftw64");

/// Defines `nftw` and `nftw64`.
macro_rules! nftw {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            program: Option<VisitPlace>,
            descriptors: c_int,
            flags: c_int,
        ) -> c_int {
            // SAFETY: this calls the C library's function with the program's arguments. A path is
            // null or a string.
            unsafe {
                let other = paths::redirect(path);
                let Some(ours) = other.as_ref().filter(|_| program.is_some()) else {
                    return next!(
                        $c_name,
                        fn(*const c_char, Option<VisitPlace>, c_int, c_int) -> c_int,
                        (path, program, descriptors, flags)
                    );
                };
                let _before = Before(&VISIT_PLACE, VISIT_PLACE.replace(program));
                let result = next!(
                    $c_name,
                    fn(*const c_char, Option<VisitPlace>, c_int, c_int) -> c_int,
                    (ours.as_ptr(), Some(visit_place), descriptors, flags)
                );
                paths::moved();
                result
            }
        }
    };
}

nftw!(nftw, c"nftw");
nftw!(nftw64, c"nftw64");
