//! Wakes the lane's own thread when its socket has a packet, or another thread wants it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::notify::signal;

/// Any thread may wake it, and one thread waits. A wake-up that comes while no thread waits ends
/// the next wait.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// A descriptor that is readable after [`Waker::wake`].
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn wake(&self) {
        signal(&self.0);
    }

    /// Waits for [`Waker::wake`], or until the socket, if one is given, is readable. Returns false
    /// after the time-out.
    #[allow(unsafe_code)]
    pub(crate) fn wait(&self, socket: Option<RawFd>, timeout: Duration) -> bool {
        // `ppoll` ignores negative descriptors.
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list = [entry(self.0.as_raw_fd()), entry(socket.unwrap_or(-1))];
        let ts = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: `list` holds two valid entries, `ts` is valid, no signal mask is given.
        unsafe { libc::ppoll(list.as_mut_ptr(), 2, &raw const ts, core::ptr::null()) > 0 }
    }

    /// Forgets the wake-ups so far.
    pub(crate) fn clear(&self) {
        // It fails if there are none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}
