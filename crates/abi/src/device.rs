//! The device list: real devices first, followed by ours.

use core::ffi::c_char;
use core::mem::offset_of;
use core::ptr::null_mut;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::collections::HashMap;
use std::sync::Arc;

use libc::c_int;
use polypath_verbs::{Context, Device, Error, Result};

use crate::forward::real_fn;
use crate::layout::{ibv_device, verbs_device};
use crate::lock::Lock;
use crate::ours::{Object, Ours};
use crate::rdmanl::Aside;
use crate::{guard, log, ours};

/// The largest number of devices that a process is ever shown. Devices are never freed, because
/// programs keep pointers to them.
const DEVICES_MAX: usize = 256;

/// The largest number of device lists that a program holds at a time.
const LISTS_MAX: usize = 4096;

/// One of our devices.
#[repr(C)]
pub(crate) struct CDevice {
    verbs: verbs_device,
    /// `verbs.sysfs` points here. The real `ibv_import_device()` looks for a device number there.
    sysfs: [u64; 512],
    /// The traits' device, in the process that created this.
    inner: Arc<dyn Device>,
    maker: u32,
}

impl CDevice {
    /// Opens the device. A child that inherited this structure opens its own device.
    pub(crate) fn open(&self) -> Result<Arc<dyn Context>> {
        if self.maker == std::process::id() {
            return self.inner.open();
        }
        match source()?.into_iter().find(|device| device.info().name == self.name()) {
            Some(device) => device.open(),
            None => Err(Error::new(
                libc::ENODEV,
                "the device no longer exists since the process forked",
            )),
        }
    }

    fn name(&self) -> &str {
        &self.inner.info().name
    }
}

/// An address in a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Address(usize);

/// Devices and lists.
pub(crate) struct Registry {
    /// Every device that was ever shown, by name and GUID.
    devices: Vec<(String, u64, Address)>,
    /// The lists that programs hold, each with the real library's list that is part of it.
    lists: Option<HashMap<Address, Address>>,
}

/// What the process has been shown.
pub(crate) static REGISTRY: Lock<Registry> =
    Lock::new(Registry { devices: Vec::new(), lists: None });

// SAFETY: the public structure is the first field, and devices are never freed.
unsafe impl Object for CDevice {
    type Public = ibv_device;
}

/// One of our devices.
///
/// # Safety
/// `device` must be one of ours.
pub(crate) unsafe fn of<'a>(device: *const ibv_device) -> &'a CDevice {
    debug_assert_eq!(offset_of!(CDevice, verbs), 0);
    // SAFETY: our devices begin with the public structure and are never freed.
    unsafe { &*device.cast() }
}

/// Copies text into a field of fixed size, which always ends in NUL.
fn put<const N: usize>(field: &mut [c_char; N], text: &str) {
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

fn make(inner: Arc<dyn Device>) -> *mut CDevice {
    let layout = Layout::new::<CDevice>();
    // SAFETY: the layout is not empty. Everything but `inner` may be zero, and `inner` is written
    // before anything else uses the device.
    unsafe {
        let device: *mut CDevice = alloc_zeroed(layout).cast();
        if device.is_null() {
            handle_alloc_error(layout);
        }
        (&raw mut (*device).inner).write(inner);
        (&raw mut (*device).maker).write(std::process::id());
        let sysfs = (&raw mut (*device).sysfs).cast();
        let name = (*device).name().to_owned();
        let public = &mut (*device).verbs;
        public.sysfs = sysfs;
        public.device.ops[0] = ours::mark();
        public.device.node_type = 1; // IBV_NODE_CA
        public.device.transport_type = 0; // IBV_TRANSPORT_IB
        put(&mut public.device.name, &name);
        let uverbs = format!("uverbs{}", (*device).inner.info().uverbs);
        put(&mut public.device.dev_name, &uverbs);
        put(&mut public.device.dev_path, &format!("/sys/class/infiniband_verbs/{uverbs}"));
        put(&mut public.device.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        device
    }
}

/// Our current devices as C structures.
fn ours() -> Result<Vec<Address>> {
    let now = source()?;
    let mut registry = REGISTRY.lock();
    let mut list = Vec::with_capacity(now.len());
    for device in now {
        let info = device.info();
        let known = registry.devices.iter().find(|d| d.0 == info.name && d.1 == info.node_guid);
        let address = match known {
            Some(known) => known.2,
            None if registry.devices.len() == DEVICES_MAX => continue,
            None => {
                let entry = (info.name.clone(), info.node_guid);
                let address = Address(make(device).expose_provenance());
                registry.devices.push((entry.0, entry.1, address));
                address
            }
        };
        list.push(address);
    }
    Ok(list)
}

/// The source of all devices.
pub(crate) fn source() -> Result<Vec<Arc<dyn Device>>> {
    #[cfg(not(test))]
    let devices = polypath_engine::devices();
    #[cfg(test)]
    let devices = Ok(crate::double::devices());
    devices
}

/// The real library's list and its length; null if there is none.
fn real_list() -> (*mut *mut ibv_device, usize) {
    let get =
        real_fn!(c"ibv_get_device_list", c"IBVERBS_1.1", fn(*mut c_int) -> *mut *mut ibv_device);
    let mut count = 0;
    let Some(get) = get else { return (null_mut(), 0) };
    let _aside = Aside::new();
    // SAFETY: `count` is a valid place.
    let list = unsafe { get(&mut count) };
    let count = if list.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    (list, count)
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `count` is null or writable.
pub(crate) unsafe extern "C-unwind" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let (real, real_count) = real_list();
    let list = guard::pointer("ibv_get_device_list", || {
        // If the broker can't be reached, the real devices must still be shown.
        let ours = ours().unwrap_or_else(|error| {
            log::no_devices(&error.reason);
            Vec::new()
        });
        let total = real_count + ours.len();
        let layout = list_layout(total);
        // SAFETY: the layout is not empty. Zero is the terminating null.
        let list: *mut *mut ibv_device = unsafe { alloc_zeroed(layout) }.cast();
        if list.is_null() {
            return Err(Error::no_memory("no memory for the device list"));
        }
        // SAFETY: the list has `total` entries and the null; the real list has `real_count`
        // entries.
        unsafe {
            core::ptr::copy_nonoverlapping(real, list, if real.is_null() { 0 } else { real_count });
            for (at, device) in ours.iter().enumerate() {
                *list.add(real_count + at) = core::ptr::with_exposed_provenance_mut(device.0);
            }
        }
        let mut registry = REGISTRY.lock();
        let lists = registry.lists.get_or_insert_default();
        if lists.len() == LISTS_MAX {
            return Err(Error::no_memory(
                "the program holds too many device lists: free them by ibv_free_device_list()",
            ));
        }
        lists.insert(Address(list.expose_provenance()), Address(real.expose_provenance()));
        if !count.is_null() {
            // SAFETY: it is not null, so the caller promises room for a number.
            unsafe { *count = c_int::try_from(total).unwrap_or(c_int::MAX) };
        }
        Ok(list)
    });
    if list.is_null() && !real.is_null() {
        free_real_list(real);
    }
    list
}

fn list_layout(entries: usize) -> Layout {
    Layout::array::<*mut ibv_device>(entries + 1).unwrap_or(Layout::new::<*mut ibv_device>())
}

fn free_real_list(list: *mut *mut ibv_device) {
    let free = real_fn!(c"ibv_free_device_list", c"IBVERBS_1.1", fn(*mut *mut ibv_device));
    if let Some(free) = free {
        // SAFETY: the list came from the real library, and is freed once.
        unsafe { free(list) };
    }
}

/// `ibv_free_device_list`.
///
/// # Safety
/// `list` is null, or a list from `ibv_get_device_list` that is not freed.
pub(crate) unsafe extern "C-unwind" fn free_device_list(list: *mut *mut ibv_device) {
    let key = Address(list.expose_provenance());
    let known = REGISTRY.lock().lists.as_mut().and_then(|lists| lists.remove(&key));
    let Some(Address(real)) = known else {
        if !list.is_null() {
            free_real_list(list);
        }
        return;
    };
    // SAFETY: our lists end in null and were allocated with the layout of their length.
    unsafe {
        let mut entries = 0;
        while !(*list.add(entries)).is_null() {
            entries += 1;
        }
        std::alloc::dealloc(list.cast(), list_layout(entries));
    }
    let real: *mut *mut ibv_device = core::ptr::with_exposed_provenance_mut(real);
    if !real.is_null() {
        free_real_list(real);
    }
}

/// `ibv_get_device_name`.
///
/// # Safety
/// `device` is one of ours.
pub(crate) unsafe extern "C-unwind" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the trampoline passes only our devices, which are never freed.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_index`.
pub(crate) extern "C-unwind" fn get_device_index(device: Ours<CDevice>) -> c_int {
    guard::run(-1, || c_int::try_from(device.inner.info().index).unwrap_or(-1))
}

/// Implements `ibv_get_device_guid`. The result is in network order.
pub(crate) extern "C-unwind" fn get_device_guid(device: Ours<CDevice>) -> u64 {
    guard::run(0, || device.inner.info().node_guid.to_be())
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use super::*;

    #[test]
    fn our_devices_are_listed_once_and_keep_their_address() {
        let mut count = 0;
        // SAFETY: `count` is a valid place, and lists are freed once.
        unsafe {
            let first = get_device_list(&mut count);
            assert!(count >= 1);
            let device = *first.add(usize::try_from(count).unwrap() - 1);
            assert!(ours::is_our_device(device));
            let name = CStr::from_ptr(get_device_name(device));
            assert_eq!(name, c"roce0");
            let second = get_device_list(null_mut());
            assert_eq!(*second.add(usize::try_from(count).unwrap() - 1), device);
            free_device_list(first);
            free_device_list(second);
            assert_eq!(get_device_index(Ours::new(device)), 4);
            assert_eq!(get_device_guid(Ours::new(device)), 0x0250_56ff_fe00_0001_u64.to_be());
        }
    }

    #[test]
    fn what_is_read_behind_a_device_is_ours_to_read() {
        // SAFETY: a list that is freed after use.
        unsafe {
            let list = get_device_list(null_mut());
            let mut at = 0;
            while !ours::is_our_device(*list.add(at)) {
                at += 1;
            }
            let device: *const verbs_device = (*list.add(at)).cast();
            assert!((*device).ops.is_null());
            assert!(!(*device).sysfs.is_null());
            free_device_list(list);
        }
    }
}
