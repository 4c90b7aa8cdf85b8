//! A queue of notices that a thread can wait for with `poll(2)`. It has an eventfd in semaphore
//! mode that counts the notices. Each read of 8 bytes allows one [`NoticeQueue::take`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notices that wait to be taken.
#[derive(Debug)]
pub(crate) struct NoticeQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> NoticeQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { fd: event_fd(libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC)?, queue: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, notice: T) {
        lock(&self.queue).push_back(notice);
        signal(&self.fd);
    }

    pub(crate) fn take(&self) -> Option<T> {
        lock(&self.queue).pop_front()
    }

    /// Drops the notices that `stale` picks, and their counts.
    pub(crate) fn forget(&self, stale: impl Fn(&T) -> bool) {
        let gone = {
            let mut queue = lock(&self.queue);
            let before = queue.len();
            queue.retain(|n| !stale(n));
            before - queue.len()
        };
        for _ in 0..gone {
            drain_one(&self.fd);
        }
    }
}

/// A new eventfd.
#[allow(unsafe_code)]
pub(crate) fn event_fd(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: eventfd() takes plain numbers and touches no memory of ours.
    let fd = unsafe { libc::eventfd(0, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to an eventfd.
#[allow(unsafe_code)]
pub(crate) fn signal(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: this reads 8 bytes from `one`, which lives during the call. It can only fail if 2^64
    // notices are pending.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Takes one count from an eventfd (all counts, if it is not a semaphore), if there is any. It
/// never waits.
#[allow(unsafe_code)]
pub(crate) fn drain_one(fd: &OwnedFd) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut count = 0u64;
    // SAFETY: `poll` is one valid pollfd; the read writes 8 bytes to `count`.
    unsafe {
        if libc::poll(&raw mut poll, 1, 0) == 1 {
            libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_is_readable_once() {
        let queue = NoticeQueue::new().unwrap();
        queue.push(1);
        queue.push(2);
        queue.push(3);
        queue.forget(|n| *n == 2);
        drain_one(&queue.fd);
        assert_eq!(queue.take(), Some(1));
        drain_one(&queue.fd);
        assert_eq!(queue.take(), Some(3));
        assert_eq!(queue.take(), None);
    }
}
