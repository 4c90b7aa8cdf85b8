//! A queue of notices that a thread can wait for with `poll(2)`. It has a pipe with 8 bytes for each notice.
//! Each read of 8 bytes allows one [`NoticeQueue::take`].
//!
//! Programs see the end that is read. Like the kernel's descriptors, and unlike an eventfd, it is never
//! ready for writing: a program that waits for both would otherwise never sleep.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

/// Locks a mutex, even if a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notices that wait to be taken.
#[derive(Debug)]
pub(crate) struct NoticeQueue<T> {
    fd: OwnedFd,
    into: OwnedFd,
    /// A program that has closed its descriptor must not get SIGPIPE.
    _reader: OwnedFd,
    queue: Mutex<Queue<T>>,
}

#[derive(Debug)]
struct Queue<T> {
    notices: VecDeque<T>,
    /// The number of notices for which the pipe had no room. It has room for thousands.
    untold: usize,
}

impl<T> Queue<T> {
    /// Tells of the notices that the pipe has room for.
    fn catch_up(&mut self, into: &OwnedFd) {
        while self.untold > 0 && tell(into) {
            self.untold -= 1;
        }
    }
}

/// Tells of one notice, in as many bytes as are read for one. Returns false if the pipe has no room for them.
fn tell(into: &OwnedFd) -> bool {
    rustix::io::write(into, &[0; 8]).is_ok()
}

impl<T> NoticeQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let (fd, into) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&into, true)?;
        let reader = fd.try_clone()?;
        let queue = Queue { notices: VecDeque::new(), untold: 0 };
        Ok(Self { fd, into, _reader: reader, queue: Mutex::new(queue) })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).notices.is_empty()
    }

    pub(crate) fn push(&self, notice: T) {
        let behind = {
            let mut queue = lock(&self.queue);
            queue.notices.push_back(notice);
            queue.untold > 0
        };
        // A thread that wakes up needs the lock.
        if behind || !tell(&self.into) {
            let mut queue = lock(&self.queue);
            queue.untold += 1;
            queue.catch_up(&self.into);
        }
    }

    pub(crate) fn take(&self) -> Option<T> {
        let mut queue = lock(&self.queue);
        queue.catch_up(&self.into);
        queue.notices.pop_front()
    }

    /// Drops the notices that `stale` picks, and their counts.
    pub(crate) fn forget(&self, stale: impl Fn(&T) -> bool) {
        let mut queue = lock(&self.queue);
        let before = queue.notices.len();
        queue.notices.retain(|n| !stale(n));
        for _ in queue.notices.len()..before {
            match queue.untold {
                0 => drain_one(&self.fd),
                _ => queue.untold -= 1,
            }
        }
    }
}

/// Adds one to an eventfd.
pub(crate) fn signal(fd: &OwnedFd) {
    // It can only fail if 2^64 notices are pending.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// Takes what was told of one notice, or all counts of an eventfd, if there are any. It never waits.
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

    #[test]
    fn notices_that_the_pipe_has_no_room_for_are_told_later() {
        const MANY: usize = 20_000;
        let queue = NoticeQueue::new().unwrap();
        (0..MANY).for_each(|n| queue.push(n));
        assert!(lock(&queue.queue).untold > 0);
        queue.forget(|n| n % 2 == 1);
        let is_readable = || {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&queue.fd, PollFlags::IN)], Some(&now)) == Ok(1)
        };
        for n in 0..MANY / 2 {
            assert!(is_readable(), "{n}");
            drain_one(&queue.fd);
            assert_eq!(queue.take(), Some(2 * n));
        }
        assert!(!is_readable() && queue.take().is_none());
    }

    #[test]
    fn the_descriptor_is_never_ready_for_writing() {
        let queue = NoticeQueue::new().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = |queue: &NoticeQueue<u8>| {
            let mut list = [PollFd::new(&queue.fd, PollFlags::IN | PollFlags::OUT)];
            poll(&mut list, Some(&now)).unwrap();
            list[0].revents()
        };
        assert_eq!(ready(&queue), PollFlags::empty());
        queue.push(1);
        assert_eq!(ready(&queue), PollFlags::IN);
    }
}
