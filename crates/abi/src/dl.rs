//! `dlopen("libibverbs.so…")` opens this library, for programs that load libibverbs and look up its
//! functions by name and version (NCCL, Python's ctypes, plug-ins).
//!
//! Every other `dlopen` is passed on by a jump, so that the caller's return address does not
//! change: the C library uses it to find the `DT_RUNPATH` and `$ORIGIN` that apply.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;

/// The next `dlopen` after ours. [`check`] looks it up before the jump.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn real() -> *mut c_void {
    let known = REAL.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is valid.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    REAL.store(found, Ordering::Relaxed);
    found
}

/// Calls the C library's `dlopen`.
///
/// # Safety
/// The same as for `dlopen`.
pub(crate) unsafe fn real_dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    let found = real();
    if found.is_null() {
        return null_mut();
    }
    // SAFETY: this is the C library's function of that signature.
    unsafe {
        core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void>(
            found,
        )(name, flags)
    }
}

/// Whether a path names libibverbs itself (not a provider, not librdmacm).
fn is_libibverbs(path: &[u8]) -> bool {
    let name = path.rsplit(|&c| c == b'/').next().unwrap_or(path);
    let Some(rest) = name.strip_prefix(b"libibverbs.so") else { return false };
    rest.is_empty() || rest.starts_with(b".")
}

/// The path of this library; null if it is unknown.
fn own_path() -> *const c_char {
    static PATH: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
    let known = PATH.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: dladdr fills in a zeroed Dl_info. The address belongs to this library, and the
    // returned name lives as long as the library, which is never unloaded.
    let path = unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(own_path as *const c_void, &mut info) == 0 {
            return null();
        }
        info.dli_fname
    };
    PATH.store(path.cast_mut(), Ordering::Relaxed);
    path
}

/// The name to load instead, or null. Also sets [`REAL`].
///
/// # Safety
/// `name` is null or a C string.
#[cfg_attr(test, expect(dead_code))]
unsafe extern "C" fn check(name: *const c_char) -> *const c_char {
    real();
    if name.is_null() {
        return null();
    }
    // SAFETY: it is not null, so `dlopen` got a C string.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    if is_libibverbs(path) { own_path() } else { null() }
}

/// The exported `dlopen`.
///
/// # Safety
/// The same as for the C library's `dlopen`.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlopen(_name: *const c_char, _flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {check}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "cmovnz rdi, rax",
        "jmp qword ptr [rip + {real}]",
        check = sym check,
        real = sym REAL,
    )
}

#[cfg(test)]
mod tests {
    use super::is_libibverbs;

    #[test]
    fn only_libibverbs_itself_is_taken_over() {
        for path in ["libibverbs.so", "libibverbs.so.1", "/usr/lib/libibverbs.so.1.14.44.0"] {
            assert!(is_libibverbs(path.as_bytes()), "{path}");
        }
        for path in ["librdmacm.so.1", "libibverbs/librxe-rdmav34.so", "libibverbs.sox", "", "/"] {
            assert!(!is_libibverbs(path.as_bytes()), "{path}");
        }
    }
}
