//! epoll(7), level-triggered.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// The number of events that are taken per wait.
const BATCH: usize = 64;

/// The events to wait for. A hang-up is always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Something to read.
    Read,
    /// Only room to write, because no more requests are read from a client that does not take its
    /// answers.
    Write,
    /// Something to read, or room to write.
    Both,
    /// Only the other end's hang-up.
    HangUp,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
            Self::Both => EventFlags::IN | EventFlags::OUT,
            Self::HangUp => EventFlags::RDHUP,
        }
    }
}

/// An event of a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// The token that it was registered with.
    pub(crate) token: u64,
    /// Whether there is something to read.
    pub(crate) readable: bool,
    /// Whether there is room to write.
    pub(crate) writable: bool,
    /// Whether the other end hung up, or the descriptor is broken.
    pub(crate) hung_up: bool,
}

/// A set of descriptors to wait for.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor. Closing it removes it from the set, unless it was duplicated.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64, what: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(token), what.flags())?)
    }

    pub(crate) fn change(&self, fd: BorrowedFd<'_>, token: u64, what: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(token), what.flags())?)
    }

    /// Removes a descriptor. What another process has a duplicate of has to be removed before it is closed:
    /// otherwise it stays in the set, and nothing can remove it any more (epoll(7), questions 6 and 7).
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits for events for at most `timeout` (forever if `None`). Returns none after the time-out.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Event>> {
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); BATCH];
        let timeout = timeout.map(in_milliseconds);
        match epoll::wait(&self.0, &mut room, timeout.as_ref()) {
            Ok((events, _)) => Ok(events.iter().map(event).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The kernel counts whole milliseconds here. They are rounded up, because waking early would only
/// mean waiting again.
fn in_milliseconds(timeout: Duration) -> Timespec {
    let rounded = timeout.as_nanos().div_ceil(1_000_000);
    let rounded = i32::try_from(rounded).unwrap_or(i32::MAX);
    Timespec { tv_sec: (rounded / 1000).into(), tv_nsec: i64::from(rounded % 1000) * 1_000_000 }
}

fn event(raw: &epoll::Event) -> Event {
    let epoll::Event { flags, data } = *raw;
    Event {
        token: data.u64(),
        readable: flags.contains(EventFlags::IN),
        writable: flags.contains(EventFlags::OUT),
        hung_up: flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn timeouts_are_rounded_up() {
        let rounded = |timeout| Duration::try_from(in_milliseconds(timeout)).unwrap();
        assert_eq!(rounded(Duration::ZERO), Duration::ZERO);
        assert_eq!(rounded(Duration::from_nanos(1)), Duration::from_millis(1));
        assert_eq!(rounded(Duration::from_micros(1500)), Duration::from_millis(2));
        assert_eq!(rounded(Duration::from_micros(1_234_999)), Duration::from_millis(1235));
        assert_eq!(rounded(Duration::MAX), Duration::from_millis(i32::MAX as u64));
    }

    #[test]
    fn what_happens_to_a_descriptor_comes_with_its_token() {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let set = Epoll::new().unwrap();
        set.add(near.as_fd(), 7, Interest::Both).unwrap();
        let all = set.wait(None).unwrap();
        assert_eq!(
            (all.len(), all[0].token, all[0].readable, all[0].writable),
            (1, 7, false, true)
        );
        set.change(near.as_fd(), 8, Interest::Read).unwrap();
        assert!(set.wait(Some(Duration::ZERO)).unwrap().is_empty());
        drop(far);
        let gone = set.wait(None).unwrap()[0];
        assert_eq!((gone.token, gone.readable, gone.hung_up), (8, true, true));
    }

    #[test]
    fn a_descriptor_that_another_process_has_too_is_forgotten_when_it_is_removed() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let set = Epoll::new().unwrap();
        set.add(near.as_fd(), 7, Interest::Both).unwrap();
        let _duplicate = near.try_clone().unwrap();
        set.remove(near.as_fd()).unwrap();
        drop(near);
        assert!(set.wait(Some(Duration::ZERO)).unwrap().is_empty());
    }
}
