//! The table of device memory that an open device has allocated.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use crate::memory::DeviceBytes;

/// The device memory of an open device.
#[derive(Debug, Default)]
pub(crate) struct DmTable(pub(crate) Mutex<Allocated>);

/// The allocations.
#[derive(Debug, Default)]
pub(crate) struct Allocated {
    pub(crate) by_handle: HashMap<u32, Arc<Memory>>,
    /// The total size in bytes.
    pub(crate) bytes: u64,
    /// The handle that was given last.
    pub(crate) last: u32,
}

/// One allocation.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: DeviceBytes,
    /// The number of its memory regions.
    pub(crate) regions: AtomicU32,
}
