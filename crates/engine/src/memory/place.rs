//! A place for mappings that tests remove again.

use std::ffi::c_void;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A place of 1 GiB in which the kernel maps nothing by itself. So what a test unmaps there stays
/// unmapped, whatever other threads map meanwhile. Use it with `MAP_FIXED_NOREPLACE`.
pub(crate) fn place() -> *mut c_void {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    without_provenance_mut(NEXT.fetch_add(1 << 30, Ordering::Relaxed))
}
