//! What wakes the lane's own thread: a packet in its socket, or somebody who rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::notify::{event_fd, signal};

/// Rung by any thread, heard by one; a ring that nobody waits for is heard by the next wait.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        event_fd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).map(Self)
    }

    /// Readable when it has rung.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn ring(&self) {
        signal(&self.0);
    }

    /// Waits until it has rung or the socket, if one is given, has something; false after the timeout.
    #[allow(unsafe_code)]
    pub(crate) fn wait(&self, socket: Option<RawFd>, timeout: Duration) -> bool {
        // Negative descriptors are ignored.
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list = [entry(self.0.as_raw_fd()), entry(socket.unwrap_or(-1))];
        let ts = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: `list` holds two valid entries, `ts` is valid, no signal mask is given.
        unsafe { libc::ppoll(list.as_mut_ptr(), 2, &raw const ts, core::ptr::null()) > 0 }
    }

    /// Forgets that it has rung.
    #[allow(unsafe_code)]
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: writes at most 8 bytes to `count`; the descriptor does not block.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}
