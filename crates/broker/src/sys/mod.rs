//! System calls behind safe functions: the only unsafe code of the crate.

pub(crate) mod epoll;
pub(crate) mod ethtool;
pub(crate) mod netlink;
pub(crate) mod packet;
pub(crate) mod process;
pub(crate) mod tcp;
pub(crate) mod udp;

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes ownership of a descriptor that a system call just returned, or of its error.
fn own(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Converts a result of −1 into the error that it stands for.
fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a non-blocking call failed only because it would have to wait.
pub(crate) fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Makes a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}
