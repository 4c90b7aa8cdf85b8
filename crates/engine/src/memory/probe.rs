//! Checks whether memory is present.

use std::ffi::c_void;
use std::sync::OnceLock;

/// The largest region in bytes whose pages are all touched at registration. For larger ones, the
/// time and the resident memory would cost more than later page faults. They are only looked up in
/// `/proc/self/maps`.
pub const POPULATE_MAX: usize = 1 << 30;

/// Whether a range can be read and, if `write`, written. Its pages are then resident (up to
/// [`POPULATE_MAX`]).
pub(super) fn accessible(addr: usize, len: usize, write: bool) -> bool {
    if len == 0 {
        return true;
    }
    if len <= POPULATE_MAX && can_populate() {
        populate(addr, len, write)
    } else {
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
        mapped(&maps, addr, len, write)
    }
}

/// Whether a range can now be read and, if `write`, written; for the data path.
pub(super) fn present(addr: usize, len: usize, write: bool) -> bool {
    accessible(addr, len, write)
}

/// Whether the kernel has `MADV_POPULATE_*`, which came with Linux 5.14.
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let probe = 0u8;
        populate(&raw const probe as usize, 1, false)
    })
}

fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: no pointers.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// Makes the kernel fault in all pages, as an access would.
fn populate(addr: usize, len: usize, write: bool) -> bool {
    let page = page_size();
    let start = addr & !(page - 1);
    let Some(end) = addr.checked_add(len).and_then(|end| end.checked_add(page - 1)) else {
        return false;
    };
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating changes no content and no mapping. Pages that are not mapped, or not
        // accessible this way, give an error.
        let rc =
            unsafe { libc::madvise(start as *mut c_void, (end & !(page - 1)) - start, advice) };
        if rc == 0 {
            return true;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            // A signal interrupted it, or memory is being moved. Starting again continues where it
            // stopped.
            Some(libc::EINTR | libc::EAGAIN) => {}
            _ => return false,
        }
    }
}

/// Whether the mappings listed in `maps` (the format of `/proc/self/maps`) cover the range.
pub(super) fn mapped(maps: &str, addr: usize, len: usize, write: bool) -> bool {
    let Some(end) = addr.checked_add(len) else { return false };
    let mut at = addr;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some((first, last)) = words.next().and_then(|w| w.split_once('-')) else { continue };
        let (Ok(first), Ok(last)) =
            (usize::from_str_radix(first, 16), usize::from_str_radix(last, 16))
        else {
            continue;
        };
        if last <= at {
            continue;
        }
        let rights = words.next().unwrap_or("");
        if first > at
            || !rights.starts_with('r')
            || (write && rights.as_bytes().get(1) != Some(&b'w'))
        {
            return false;
        }
        at = last;
        if at >= end {
            return true;
        }
    }
    false
}
