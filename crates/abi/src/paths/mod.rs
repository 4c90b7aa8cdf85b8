//! Hard-coded paths: what programs read of a device under `/sys` and `/dev`.
//!
//! Some programs do not ask libibverbs but read files: UCX wants a character device by the device's
//! name, NCCL a GID's type, perftest the NUMA node, the tests of rdma-core the network interface. A
//! path of one of our devices leads to a directory of made-up files ([`tree`]); all others, those of
//! real devices among them, are left alone.

mod text;
mod tree;

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::guard;

/// First bytes of all paths that are looked at: one comparison tells all others.
const CLASS: &[u8] = b"/sys/class/";
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
    unsafe { if begins(path, CLASS) || begins(path, DEV) { elsewhere(path) } else { None } }
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

/// The slow part of [`redirect`].
///
/// # Safety
/// `path` is a C string.
#[cold]
unsafe fn elsewhere(path: *const c_char) -> Option<CString> {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
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
        || below(DEV)
}

/// For the fork handlers of [`crate::lock`].
pub(crate) fn lock_for_fork() {
    tree::ROOT.raw_lock();
}

/// For the fork handlers of [`crate::lock`].
pub(crate) fn unlock_after_fork() {
    tree::ROOT.raw_unlock();
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
            "/dev/infinibandx",
        ] {
            assert!(!may_be_ours(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn short_paths_are_not_read_beyond_their_end() {
        for path in [c"", c"/", c"/sys/class", c"/dev/infinib", c"/etc/passwd"] {
            // SAFETY: C strings.
            assert_eq!(unsafe { redirect(path.as_ptr()) }, None);
        }
    }
}
