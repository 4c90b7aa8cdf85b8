//! C library functions whose descriptor may be one of our replacements.

use core::ffi::{c_int, c_void};

use libc::{size_t, ssize_t};

use super::{Next, next};
use crate::{rdmanl, ucma};

/// Defines a function that returns information about a descriptor.
macro_rules! by_descriptor {
    ($name:ident, $c_name:literal, ($($version:ident: $version_type:ty)?)) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            $($version: $version_type,)? fd: c_int, status: *mut libc::stat
        ) -> c_int {
            // SAFETY: the caller promises it. On success the structure is filled in (the 64-bit one
            // is the same).
            unsafe {
                let result = next!($c_name, fn($($version_type,)? c_int, *mut libc::stat) -> c_int,
                    ($($version,)? fd, status));
                if result == 0 && ucma::maybe(fd) && ucma::is_open(fd) {
                    ucma::disguise(&mut *status);
                }
                result
            }
        }
    };
}

by_descriptor!(fstat, c"fstat", ());
by_descriptor!(fstat64, c"fstat64", ());
by_descriptor!(__fxstat, c"__fxstat", (version: c_int));
by_descriptor!(__fxstat64, c"__fxstat64", (version: c_int));

/// Defines a function that writes to a descriptor.
macro_rules! writer {
    ($name:ident, $c_name:literal) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C-unwind" fn $name(
            fd: c_int,
            buffer: *const c_void,
            length: size_t,
        ) -> ssize_t {
            // SAFETY: the program promises the C library that `buffer` has `length` bytes. If the
            // file is one of ours, a command in it has the form of the kernel's ABI.
            unsafe {
                if ucma::maybe(fd)
                    && let Some(result) = ucma::write(fd, buffer, length)
                {
                    return result;
                }
                if rdmanl::maybe(fd)
                    && let Some(result) = rdmanl::send(fd, buffer, length)
                {
                    return result;
                }
                next!($c_name, fn(c_int, *const c_void, size_t) -> ssize_t, (fd, buffer, length))
            }
        }
    };
}

writer!(write, c"write");
writer!(__write, c"__write");

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: this is the C library's function, which takes any numbers.
    unsafe {
        if family == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA && rdmanl::wanted() {
            return rdmanl::open(kind);
        }
        next!(c"socket", fn(c_int, c_int, c_int) -> c_int, (family, kind, protocol))
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program promises the C library's function that `buffer` has `length` bytes.
    unsafe {
        if rdmanl::maybe(fd)
            && let Some(result) = rdmanl::send(fd, buffer, length)
        {
            return result;
        }
        next!(
            c"send",
            fn(c_int, *const c_void, size_t, c_int) -> ssize_t,
            (fd, buffer, length, flags)
        )
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const libc::sockaddr,
    address_length: libc::socklen_t,
) -> ssize_t {
    // SAFETY: the program promises the C library's function that `buffer` has `length` bytes.
    unsafe {
        if rdmanl::maybe(fd)
            && let Some(result) = rdmanl::send(fd, buffer, length)
        {
            return result;
        }
        next!(
            c"sendto",
            fn(
                c_int,
                *const c_void,
                size_t,
                c_int,
                *const libc::sockaddr,
                libc::socklen_t,
            ) -> ssize_t,
            (fd, buffer, length, flags, address, address_length)
        )
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: `message` and its parts are as the C library's function requires.
    unsafe {
        if rdmanl::maybe(fd)
            && let Some(result) = rdmanl::send_message(fd, message)
        {
            return result;
        }
        next!(c"sendmsg", fn(c_int, *const libc::msghdr, c_int) -> ssize_t, (fd, message, flags))
    }
}
