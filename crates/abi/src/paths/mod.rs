//! Hard-coded paths: what programs read of a device under `/sys` and `/dev`.
//!
//! Some programs do not ask libibverbs but read files: UCX wants a character device by the device's
//! name, NCCL a GID's type, perftest the NUMA node, libibumad everything, the tests of rdma-core the
//! network interface. A path of one of our devices leads to a directory of made-up files ([`tree`]);
//! all others, those of real devices among them, are left alone. What programs are told of that
//! directory's own place is turned back ([`shown`]).

mod counters;
mod directories;
mod shown;
mod text;
mod tree;

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU8, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::guard;
pub(crate) use shown::{hidden, show, show_bytes};
pub(crate) use tree::has_real_devices;

/// First bytes of all paths that are looked at: one comparison tells most others.
const CLASS: &[u8] = b"/sys/class/";
const DEVICES: &[u8] = b"/sys/devices/virtual/polypath";
const DEV: &[u8] = b"/dev/infiniband";

/// The path to open instead, for one of ours. `None` for all others.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub(crate) unsafe fn redirect(path: *const c_char) -> Option<CString> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; the comparison ends at the string's end.
    unsafe {
        match (*path).cast_unsigned() {
            b'/' if begins(path, CLASS) || begins(path, DEV) || begins(path, DEVICES) => {
                elsewhere(CStr::from_ptr(path).to_bytes())
            }
            b'/' | 0 => None,
            _ if is_near() => elsewhere(&joined(CStr::from_ptr(path).to_bytes())?),
            _ => None,
        }
    }
}

/// The same for a path that may be relative to an open directory.
///
/// # Safety
/// As [`redirect`].
#[inline]
pub(crate) unsafe fn redirect_from(dir: c_int, path: *const c_char) -> Option<CString> {
    // SAFETY: null or a C string, whose first byte can be read.
    unsafe {
        if dir != libc::AT_FDCWD && !path.is_null() && (*path).cast_unsigned() != b'/' {
            return None;
        }
        redirect(path)
    }
}

/// Whether a place that [`redirect`] gave is that of a device node, which is there to be opened for
/// writing too. Files under `/sys` are not.
pub(crate) fn is_node(place: &CStr) -> bool {
    // SAFETY: a C string.
    let hidden = unsafe { hidden(place.as_ptr()) };
    place.to_bytes()[hidden..].starts_with(b"/dev/")
}

/// Whether a pattern can match files of ours.
///
/// # Safety
/// `pattern` is null or a C string.
pub(crate) unsafe fn may_match(pattern: *const c_char) -> bool {
    if pattern.is_null() {
        return false;
    }
    // SAFETY: not null, so a C string.
    let pattern = unsafe { CStr::from_ptr(pattern) }.to_bytes();
    match pattern.first() {
        Some(b'/') => {
            let first = pattern[1..].split(|&byte| byte == b'/').next().unwrap_or_default();
            matches!(first, b"sys" | b"dev") || first.iter().any(|byte| b"*?[{\\".contains(byte))
        }
        Some(b'{') => true,
        _ => is_near(),
    }
}

/// Whether a C string begins so.
///
/// # Safety
/// `path` is a C string.
#[inline]
unsafe fn begins(path: *const c_char, prefix: &[u8]) -> bool {
    for (at, &byte) in prefix.iter().enumerate() {
        // SAFETY: no byte after one that differs is looked at, and the terminating NUL differs.
        if unsafe { *path.add(at) }.cast_unsigned() != byte {
            return false;
        }
    }
    true
}

/// Real directories above ours: from there, relative paths lead to ours.
const ABOVE: [&[u8]; 6] =
    [b"/", b"/dev", b"/sys", b"/sys/class", b"/sys/devices", b"/sys/devices/virtual"];

/// Where the process is: not looked yet, or one of the two below.
static WHERE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const FAR: u8 = 1;
/// In one of [`ABOVE`].
const NEAR: u8 = 2;

/// Whether relative paths may lead to files of ours. One load, after the first time.
#[inline]
fn is_near() -> bool {
    match WHERE.load(Ordering::Relaxed) {
        FAR => false,
        NEAR => true,
        _ => look_around(),
    }
}

/// The process's directory may be another now.
pub(crate) fn moved() {
    WHERE.store(UNKNOWN, Ordering::Relaxed);
}

#[cold]
fn look_around() -> bool {
    let near = ABOVE.iter().any(|above| near_is(above));
    WHERE.store(if near { NEAR } else { FAR }, Ordering::Relaxed);
    near
}

/// Calls `use_it` with the process's directory, by system call: past our own stand-in.
fn with_directory<T>(use_it: impl FnOnce(&[u8]) -> T) -> T {
    let saved = guard::errno();
    let mut place = [0_u8; 256];
    // SAFETY: as many bytes as are told may be written.
    let got = unsafe { libc::syscall(libc::SYS_getcwd, place.as_mut_ptr(), place.len()) };
    guard::set_errno(saved);
    // The length that the kernel tells includes the NUL. What is longer is none of interest.
    let length = usize::try_from(got).map_or(0, |got| got.saturating_sub(1));
    use_it(&place[..length.min(place.len())])
}

/// Whether this is the process's directory.
fn near_is(directory: &[u8]) -> bool {
    with_directory(|place| place == directory)
}

/// A relative path made absolute.
#[cold]
fn joined(path: &[u8]) -> Option<Vec<u8>> {
    let mut path = path;
    while let Some(rest) = path.strip_prefix(b"./") {
        path = rest;
    }
    with_directory(|place| {
        let mut whole = place.to_vec();
        if whole != b"/" {
            whole.push(b'/');
        }
        whole.extend(path);
        let ours = [CLASS, DEV, DEVICES].iter().any(|start| whole.starts_with(start));
        ours.then_some(whole)
    })
}

/// The slow part of [`redirect`].
#[cold]
fn elsewhere(path: &[u8]) -> Option<CString> {
    if !may_be_ours(path) {
        return None;
    }
    let saved = guard::errno();
    let found = guard::run(None, || tree::find(path));
    guard::set_errno(saved);
    found
}

/// Whether a path can be one of a device of ours, by its form.
fn may_be_ours(path: &[u8]) -> bool {
    // Programs climb out of a directory of ours only to places that are not ours.
    if path.windows(4).any(|part| part == b"/../") || path.len() > 512 {
        return false;
    }
    let below = |root: &[u8]| match path.strip_prefix(root) {
        Some(rest) => rest.is_empty() || rest[0] == b'/',
        None => false,
    };
    // The list of verbs devices itself is not ours: the real libibverbs reads it to find devices
    // that its providers drive, and would complain that nobody drives ours.
    let verbs = b"/sys/class/infiniband_verbs/uverbs";
    below(b"/sys/class/infiniband")
        || (path.starts_with(verbs) && path.len() > verbs.len())
        || below(b"/sys/class/misc/rdma_cm")
        || below(DEVICES)
        || below(DEV)
}

/// For the fork handlers of [`crate::lock`].
pub(crate) fn lock_for_fork() {
    tree::TREE.raw_lock();
}

/// For the fork handlers of [`crate::lock`].
pub(crate) fn unlock_after_fork() {
    tree::TREE.raw_unlock();
}

/// Whether a file is there, past our own stand-ins.
fn exists(path: &CStr) -> bool {
    // SAFETY: a C string.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0 }
}

/// A path as a C string.
fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_devices_are_looked_up() {
        for ours in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/mp0/node_type",
            "/sys/class/infiniband_verbs/uverbs900/ibdev",
            "/sys/class/misc/rdma_cm/abi_version",
            "/sys/devices/virtual/polypath/mp0",
            "/dev/infiniband/uverbs900",
        ] {
            assert!(may_be_ours(ours.as_bytes()), "{ours}");
        }
        for other in [
            "/sys/class/infiniband_verbs",
            "/sys/class/infiniband_verbs/",
            "/sys/class/infiniband_verbs/abi_version",
            "/sys/class/infinibandx",
            "/sys/class/infiniband/../net",
            "/sys/class/net/eth0",
            "/sys/devices/virtual/net/lo",
            "/dev/infinibandx",
        ] {
            assert!(!may_be_ours(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn short_paths_are_not_read_beyond_their_end() {
        for path in [c"", c"/", c"/sys/class", c"/dev/infinib", c"/etc/passwd", c"x"] {
            // SAFETY: C strings.
            assert_eq!(unsafe { redirect(path.as_ptr()) }, None);
        }
    }

    #[test]
    fn patterns_that_can_reach_ours_are_told_from_others() {
        // SAFETY: C strings.
        let may = |pattern: &CStr| unsafe { may_match(pattern.as_ptr()) };
        for pattern in [c"/sys/class/*/mp0", c"/dev/infiniband/*", c"/s*/class", c"{/sys,/dev}/*"] {
            assert!(may(pattern), "{pattern:?}");
        }
        for pattern in [c"/etc/*", c"/home/*/x", c"/"] {
            assert!(!may(pattern), "{pattern:?}");
        }
    }
}
