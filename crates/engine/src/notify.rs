//! A queue of notices that a thread can wait for with `poll(2)`. It has an eventfd in semaphore
//! mode that counts the notices. Each read of 8 bytes allows one [`NoticeQueue::take`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

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
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, queue: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
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

/// Adds one to an eventfd.
pub(crate) fn signal(fd: &OwnedFd) {
    // It can only fail if 2^64 notices are pending.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Takes one count from an eventfd (all counts, if it is not a semaphore), if there is any. It
/// never waits.
pub(crate) fn drain_one(fd: &OwnedFd) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)) == Ok(1) {
        // It is readable. The value that is read is not needed.
        let _ = rustix::io::read(fd, &mut [0; 8]);
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
