//! The real libibverbs, which gets all calls that are not ours.
//!
//! It is reached by an explicit handle. `RTLD_NEXT` would not work, because it only searches the
//! global scope, and libibverbs often comes with a plug-in that was loaded with `RTLD_LOCAL`.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

use crate::guard::set_errno;
use crate::layout::{Pointer, ibv_context};
use crate::ours::{is_our_context, is_our_device};
use crate::{dl, log};

/// How a call is recognised as ours or another provider's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerTest {
    /// By the first argument, which is a device.
    Device,
    /// By the first argument, which is a context.
    Context,
    /// By the first argument, which is an object that begins with its context.
    Object,
    /// Not at all: it is ours, and our function forwards calls that are not.
    Ours,
    /// Not at all: it is the real library's.
    Real,
}

/// A C function of any signature.
#[derive(Clone, Copy)]
pub(crate) struct Code(pub(crate) *const c_void);

// SAFETY: this is an address of code, which is never written through.
unsafe impl Sync for Code {}

/// One exported symbol.
pub(crate) struct Symbol {
    pub(crate) name: &'static CStr,
    pub(crate) version: &'static CStr,
    pub(crate) kind: OwnerTest,
    /// The function for our objects.
    pub(crate) ours: Code,
    /// The function that is used if the real library does not have it.
    pub(crate) missing: Code,
    /// The real library's function, which is looked up at its first use.
    pub(crate) real: AtomicPtr<c_void>,
}

/// A handle of the real library; null if there is none.
fn handle() -> Pointer {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let known = HANDLE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let name = c"libibverbs.so.1".as_ptr();
    // SAFETY: the name is valid. `RTLD_NOLOAD` comes first, so that a library that the program has
    // already loaded is used.
    let handle = unsafe {
        let loaded = dl::real_dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if loaded.is_null() {
            dl::real_dlopen(name, libc::RTLD_NOW | libc::RTLD_LOCAL)
        } else {
            loaded
        }
    };
    if handle.is_null() {
        log::line(format_args!(
            "no libibverbs.so.1 on this machine: only Polypath's devices are available"
        ));
    }
    HANDLE.store(handle, Ordering::Release);
    handle
}

/// The real library's function of this name and version, null if it has none.
pub(crate) fn lookup(name: &CStr, version: &CStr) -> Pointer {
    let handle = handle();
    if handle.is_null() {
        return null_mut();
    }
    // SAFETY: the handle is never closed, and both names are C strings.
    unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) }
}

/// The real library's function for an entry, or the entry's replacement.
fn real(entry: &Symbol) -> *const c_void {
    let known = entry.real.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = lookup(entry.name, entry.version);
    if found.is_null() {
        return entry.missing.0;
    }
    entry.real.store(found, Ordering::Relaxed);
    found
}

/// Decides where a call goes. The trampolines call it with the call's first argument.
///
/// # Safety
/// `first` is null, or of the kind that `entry.kind` says.
pub(crate) unsafe extern "C" fn route(first: *const c_void, entry: &Symbol) -> *const c_void {
    let ours = match entry.kind {
        OwnerTest::Ours => true,
        OwnerTest::Real => false,
        // SAFETY: the first argument of a function about devices is null, or the device of any
        // provider.
        OwnerTest::Device => unsafe { is_our_device(first.cast()) },
        // SAFETY: the first argument of a function about contexts is null, or the context of any
        // provider.
        OwnerTest::Context => unsafe { is_our_context(first.cast()) },
        OwnerTest::Object if first.is_null() => false,
        // SAFETY: every object of the verbs API begins with its context.
        OwnerTest::Object => unsafe { is_our_context(*first.cast::<*const ibv_context>()) },
    };
    if ours { entry.ours.0 } else { real(entry) }
}

/// Converts an address to a function of type `F`.
pub(crate) fn as_function<F: Copy>(address: Pointer) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<Pointer>()) };
    // SAFETY: `F` is a function pointer with the signature of the public header (only the macro
    // below and parent domains' allocators use this), and the address is not null.
    (!address.is_null()).then(|| unsafe { core::mem::transmute_copy(&address) })
}

/// A typed function of the real library; `None` if it has none.
macro_rules! real_fn {
    ($name:literal, $version:literal, fn($($arg:ty),*) $(-> $ret:ty)?) => {{
        let address = $crate::forward::lookup($name, $version);
        $crate::forward::as_function::<unsafe extern "C-unwind" fn($($arg),*) $(-> $ret)?>(address)
    }};
}
pub(crate) use real_fn;

/// Replaces a function that returns an error number.
pub(crate) extern "C" fn refuse_errno() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Replaces a function that returns -1 with `errno`.
pub(crate) extern "C" fn refuse_minus_one() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Replaces a function that returns a negative error number of pointer size.
pub(crate) extern "C" fn refuse_negative() -> isize {
    -(libc::EOPNOTSUPP as isize)
}

/// Replaces a function that returns an object.
pub(crate) extern "C" fn refuse_null() -> Pointer {
    set_errno(libc::EOPNOTSUPP);
    null_mut()
}

/// Replaces a function that returns nothing, or 0.
pub(crate) extern "C" fn refuse_silently() -> usize {
    0
}

/// Replaces a function that returns a text.
pub(crate) extern "C" fn refuse_text() -> *const c_char {
    c"unknown".as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn dummy() {}

    #[test]
    fn null_objects_go_to_the_stand_in_and_not_to_us() {
        let entry = Symbol {
            name: c"ibv_no_such_function",
            version: c"IBVERBS_1.1",
            kind: OwnerTest::Object,
            ours: Code(dummy as *const c_void),
            missing: Code(refuse_errno as *const c_void),
            real: AtomicPtr::new(null_mut()),
        };
        // SAFETY: null is allowed.
        let target = unsafe { route(core::ptr::null(), &entry) };
        assert_eq!(target, refuse_errno as *const c_void);
    }
}
