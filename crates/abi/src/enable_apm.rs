//! `rdma_enable_apm`, which librdmacm had in the one kernel and library that migrated connections by
//! themselves, and does not have today. Programs find it by `dlsym`.

use core::ffi::{c_int, c_void};

use crate::guard::set_errno;

/// `rdma_set_option(3)`.
type SetOption = unsafe extern "C" fn(*mut c_void, c_int, c_int, *const c_void, usize) -> c_int;

/// `RDMA_OPTION_ID`, at which the option below shipped, with a value of one byte.
const LEVEL_ID: c_int = 0;
/// `RDMA_OPTION_IB_APM`.
const IB_APM: c_int = 2;

/// Lets the connection of an id, or those of a listener, migrate between paths: the same as
/// `rdma_set_option` with `RDMA_OPTION_IB_APM`. `alt_path_type` is 0 (`RDMA_ALT_PATH_NONE`) to turn it off;
/// other values, which name what the alternate path should differ in, mean the best one.
///
/// Returns 0, or −1 with `errno`: that of the option, or `ENOSYS` if the program has no librdmacm.
///
/// # Safety
/// `id` is what librdmacm takes for a `struct rdma_cm_id`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn rdma_enable_apm(
    id: *mut c_void,
    alt_path_type: c_int,
) -> c_int {
    // SAFETY: the name is a string, and the search has no other conditions.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"rdma_set_option".as_ptr()) };
    if found.is_null() {
        set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: this is the type of the function of this name.
    let set_option: SetOption = unsafe { core::mem::transmute(found) };
    let value = u8::from(alt_path_type != 0);
    // SAFETY: `id` is as the caller says, and the value is one byte.
    unsafe { set_option(id, LEVEL_ID, IB_APM, (&raw const value).cast(), 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::errno;

    #[test]
    fn a_program_without_librdmacm_is_told_so() {
        set_errno(0);
        // SAFETY: nobody looks at the id.
        let result = unsafe { rdma_enable_apm(core::ptr::null_mut(), 1) };
        assert_eq!((result, errno()), (-1, libc::ENOSYS));
    }
}
