//! Hard-coded paths: files under `/sys` and `/dev` in which programs look for a device.
//!
//! Some programs read files instead of calling libibverbs: UCX needs a character device with the
//! device's name, NCCL a GID's type, perftest the NUMA node, libibumad everything, and the tests of
//! rdma-core the network interface. A path of one of our devices leads to a directory of made-up
//! files ([`tree`]). All others, including those of real devices, are left alone. Where programs
//! would learn the place of that directory, it is converted back ([`shown`]).

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

use rustix::fs::Access;

use crate::guard;
pub(crate) use shown::{hidden, show, show_bytes};
pub(crate) use tree::has_real_devices;

/// The first bytes of all paths that are checked. One comparison excludes most others.
const CLASS: &[u8] = b"/sys/class/";
const DEVICES: &[u8] = b"/sys/devices/virtual/polypath";
const DEV: &[u8] = b"/dev/infiniband";

/// The path to open instead of one of ours; `None` for all others.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub(crate) unsafe fn redirect(path: *const c_char) -> Option<CString> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller promises it. The comparison ends at the string's end.
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
    // SAFETY: it is null or a C string, whose first byte can be read.
    unsafe {
        if dir != libc::AT_FDCWD && !path.is_null() && (*path).cast_unsigned() != b'/' {
            return None;
        }
        redirect(path)
    }
}

/// Whether a place from [`redirect`] is that of a device node, which may also be opened for
/// writing. Files under `/sys` may not.
pub(crate) fn is_node(place: &CStr) -> bool {
    // SAFETY: it is a C string.
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
    // SAFETY: it is not null, so it is a C string.
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

/// Whether a C string begins with a prefix.
///
/// # Safety
/// `path` is a C string.
#[inline]
unsafe fn begins(path: *const c_char, prefix: &[u8]) -> bool {
    for (at, &byte) in prefix.iter().enumerate() {
        // SAFETY: nothing is read after the first byte that differs, and the terminating NUL
        // differs.
        if unsafe { *path.add(at) }.cast_unsigned() != byte {
            return false;
        }
    }
    true
}

/// The real directories above ours, from which relative paths lead to ours.
const ABOVE: [&[u8]; 6] =
    [b"/", b"/dev", b"/sys", b"/sys/class", b"/sys/devices", b"/sys/devices/virtual"];

/// The process's directory: not checked yet, or one of the two states below.
static WHERE: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const FAR: u8 = 1;
/// The directory is one of [`ABOVE`].
const NEAR: u8 = 2;

/// Whether relative paths may lead to our files. After the first time, this is one load.
#[inline]
fn is_near() -> bool {
    match WHERE.load(Ordering::Relaxed) {
        FAR => false,
        NEAR => true,
        _ => look_around(),
    }
}

/// Notes that the process's directory may have changed.
pub(crate) fn moved() {
    WHERE.store(UNKNOWN, Ordering::Relaxed);
}

#[cold]
fn look_around() -> bool {
    let near = ABOVE.iter().any(|above| near_is(above));
    WHERE.store(if near { NEAR } else { FAR }, Ordering::Relaxed);
    near
}

/// Calls `use_it` with the process's directory. It uses a system call, so that our own replacement
/// is not involved.
fn with_directory<T>(use_it: impl FnOnce(&[u8]) -> T) -> T {
    let saved = guard::errno();
    let mut place = [0_u8; 256];
    // SAFETY: the kernel may write as many bytes as it is told.
    let got = unsafe { libc::syscall(libc::SYS_getcwd, place.as_mut_ptr(), place.len()) };
    guard::set_errno(saved);
    // The kernel's length includes the NUL. Longer paths are of no interest.
    let length = usize::try_from(got).map_or(0, |got| got.saturating_sub(1));
    use_it(&place[..length.min(place.len())])
}

/// Whether this is the process's directory.
fn near_is(directory: &[u8]) -> bool {
    with_directory(|place| place == directory)
}

/// Makes a relative path absolute.
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
    let climbs = climbs_out_of_ours(path);
    if !climbs && !may_be_ours(path) {
        return None;
    }
    guard::run(None, || match climbs {
        true => climb(path),
        false => tree::find(path),
    })
}

/// Whether a path leads to a directory of ours and up from there. What is above it depends on where the links
/// of our directories lead, and most places above do not exist below ours.
fn climbs_out_of_ours(path: &[u8]) -> bool {
    let up = path.windows(3).position(|part| part == b"/..");
    up.is_some_and(|at| matches!(path.get(at + 3), None | Some(b'/')) && may_be_ours(&path[..at]))
}

/// The place of a path that climbs: of ours, or the kernel's.
fn climb(path: &[u8]) -> Option<CString> {
    let mut whole = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if whole.is_empty() => {}
            b".." => {
                whole = tree::resolved(&whole)?;
                whole.truncate(whole.iter().rposition(|&byte| byte == b'/')?);
            }
            name => {
                whole.push(b'/');
                whole.extend(name);
            }
        }
    }
    let ours = if may_be_ours(&whole) { tree::find(&whole) } else { None };
    ours.or_else(|| CString::new(if whole.is_empty() { b"/".to_vec() } else { whole }).ok())
}

/// Whether the form of a path allows it to be one of our devices'.
fn may_be_ours(path: &[u8]) -> bool {
    if path.windows(4).any(|part| part == b"/../") || path.len() > 512 {
        return false;
    }
    let below = |root: &[u8]| match path.strip_prefix(root) {
        Some(rest) => rest.is_empty() || rest[0] == b'/',
        None => false,
    };
    // The list of verbs devices itself is not ours. The real libibverbs reads it to find devices
    // for its providers, and would complain that no provider drives ours.
    let verbs = b"/sys/class/infiniband_verbs/uverbs";
    below(b"/sys/class/infiniband")
        || (path.starts_with(verbs) && path.len() > verbs.len())
        || below(b"/sys/class/misc/rdma_cm")
        || below(DEVICES)
        || below(DEV)
}

/// Takes the lock, for the fork handlers of [`crate::lock`].
pub(crate) fn lock_for_fork() {
    tree::TREE.raw_lock();
}

/// Releases the lock, for the fork handlers of [`crate::lock`].
pub(crate) fn unlock_after_fork() {
    tree::TREE.raw_unlock();
}

/// Whether a file exists; our own replacements are not involved.
fn exists(path: &CStr) -> bool {
    rustix::fs::access(path, Access::EXISTS).is_ok()
}

/// A path as a C string.
fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_climbing_that_begins_below_ours_is_followed() {
        for ours in [
            "/sys/class/infiniband/..",
            "/sys/class/infiniband/../net",
            "/sys/class/infiniband/mp0/../../numa_node",
        ] {
            assert!(climbs_out_of_ours(ours.as_bytes()), "{ours}");
        }
        for other in ["/sys/class/net/../infiniband", "/sys/class/infiniband/..x", "/sys/.."] {
            assert!(!climbs_out_of_ours(other.as_bytes()), "{other}");
        }
    }

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
