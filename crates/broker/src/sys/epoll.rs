//! epoll(7), level-triggered.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::{check, own};

/// Events taken per wait.
const BATCH: usize = 64;

/// What to wait for; hanging up is always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Something to read.
    Read,
    /// Room to write, and nothing else: whoever does not take answers gets no more questions in.
    Write,
    /// Something to read, or room to write.
    Both,
    /// Only that the other end hangs up.
    HangUp,
}

impl Interest {
    fn bits(self) -> u32 {
        let bits = match self {
            Self::Read => libc::EPOLLIN,
            Self::Write => libc::EPOLLOUT,
            Self::Both => libc::EPOLLIN | libc::EPOLLOUT,
            Self::HangUp => libc::EPOLLRDHUP,
        };
        bits.cast_unsigned()
    }
}

/// Something that happened to a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// What it was registered with.
    pub(crate) token: u64,
    /// There is something to read.
    pub(crate) readable: bool,
    /// There is room to write.
    pub(crate) writable: bool,
    /// The other end hung up, or the descriptor is broken.
    pub(crate) hung_up: bool,
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain integers.
        own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// Adds a descriptor. It leaves the set by itself when it is closed, if it was not duplicated.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64, what: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, what)
    }

    pub(crate) fn change(&self, fd: BorrowedFd<'_>, token: u64, what: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, what)
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        token: u64,
        what: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: what.bits(), u64: token };
        // SAFETY: `event` is valid for the call.
        check(unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event)
        })
    }

    /// Waits for events, at most for `timeout` (for ever if `None`); none if it ran out.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Event>> {
        let mut raw = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        let timeout = timeout.map_or(-1, milliseconds);
        // SAFETY: `raw` has room for BATCH events.
        let count = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), raw.as_mut_ptr(), BATCH as libc::c_int, timeout)
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted {
                Ok(Vec::new())
            } else {
                Err(error)
            };
        };
        Ok(raw[..count].iter().map(event).collect())
    }
}

/// Rounded up: waking early would only mean to wait once more.
fn milliseconds(timeout: Duration) -> libc::c_int {
    let rounded = timeout.as_nanos().div_ceil(1_000_000);
    libc::c_int::try_from(rounded).unwrap_or(libc::c_int::MAX)
}

fn event(raw: &libc::epoll_event) -> Event {
    let (bits, token) = (raw.events.cast_signed(), raw.u64);
    Event {
        token,
        readable: bits & libc::EPOLLIN != 0,
        writable: bits & libc::EPOLLOUT != 0,
        hung_up: bits & (libc::EPOLLHUP | libc::EPOLLRDHUP | libc::EPOLLERR) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_rounded_up() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_micros(1500)), 2);
        assert_eq!(milliseconds(Duration::MAX), libc::c_int::MAX);
    }
}
