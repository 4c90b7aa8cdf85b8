//! The connections of a lane by one medium: where they come in, and where it is told that one is wanted or
//! over. Connections are channels of shared memory, or TCP streams.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::notify::lock;

/// The most connections that are found ready at a time.
const READY_MAX: usize = 16;

/// A way to one other lane.
pub(crate) trait Connection {
    /// What it leads to. A lane has one connection for each.
    type Ends: Copy + PartialEq;
    /// The most connections of a lane, and the most that are wanted at a time.
    const MAX: usize;

    fn ends(&self) -> Self::Ends;
    /// A number by which it is told from others among those that are [`ready`](Connections::ready), if that
    /// is asked.
    fn number(&self) -> u64 {
        0
    }
    /// What becomes readable when something arrives, or it ends.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Gives it up. `why` is for the log, if it writes that.
    fn end(&self, why: &str);
}

/// The connections of a lane. The medium's halves take new ones from here, because each half has state of its
/// own for them.
#[derive(Debug)]
pub(crate) struct Connections<C: Connection> {
    /// Readable while one of their descriptors is. It is made for the first, because most lanes have none.
    readable: OnceLock<OwnedFd>,
    all: Mutex<Vec<Arc<C>>>,
    /// Counts the connections that came and went.
    version: AtomicU32,
    /// Whether the lane is closed. It changes with `all` locked.
    closed: AtomicBool,
    /// Those that are wanted, and those that are over.
    wanted: Mutex<Vec<C::Ends>>,
    over: Mutex<Vec<C::Ends>>,
    /// Whether there are any of the latter.
    has_over: AtomicBool,
}

impl<C: Connection> Connections<C> {
    pub(super) fn new() -> Self {
        Self {
            readable: OnceLock::new(),
            all: Mutex::default(),
            version: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            wanted: Mutex::default(),
            over: Mutex::default(),
            has_over: AtomicBool::new(false),
        }
    }

    /// A descriptor that is readable while one of a connection is; -1 before the first.
    pub(super) fn fd(&self) -> RawFd {
        self.readable.get().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Adds a connection. It takes the place of an earlier one with the same ends.
    ///
    /// # Errors
    /// There are too many, the lane is closed, or no more descriptors can be watched.
    pub(crate) fn add(&self, connection: C) -> io::Result<()> {
        let mut all = lock(&self.all);
        if self.closed.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        if let Some(earlier) = all.iter().position(|other| other.ends() == connection.ends()) {
            let earlier = all.remove(earlier);
            earlier.end("another one takes its place");
            self.forget(&earlier);
        }
        if all.len() >= C::MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        // The lock is held, so nobody else makes it meanwhile.
        let readable = match self.readable.get() {
            Some(readable) => readable,
            None => {
                let made = epoll::create(CreateFlags::CLOEXEC)?;
                self.readable.get_or_init(|| made)
            }
        };
        let (data, flags) = (EventData::new_u64(connection.number()), EventFlags::IN);
        epoll::add(readable, connection.descriptor(), data, flags)?;
        all.push(Arc::new(connection));
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Gives a connection up.
    pub(super) fn remove(&self, connection: &Arc<C>, why: &str) {
        connection.end(why);
        let mut all = lock(&self.all);
        let before = all.len();
        all.retain(|other| !Arc::ptr_eq(other, connection));
        if all.len() < before {
            self.forget(connection);
            lock(&self.over).push(connection.ends());
            self.has_over.store(true, Ordering::Relaxed);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Gives up the connection with these ends, if there is one.
    #[cold]
    pub(crate) fn give_up(&self, ends: C::Ends) {
        let found = self.all().iter().find(|connection| connection.ends() == ends).cloned();
        if let Some(connection) = found {
            self.remove(&connection, "it cannot be waited for");
        }
    }

    /// Gives all connections up. Others may come.
    pub(crate) fn remove_all(&self, why: &str) {
        let all = self.all().clone();
        all.iter().for_each(|connection| self.remove(connection, why));
    }

    /// Ends all connections, and takes no more: the lane is closed.
    pub(crate) fn close(&self) {
        let all = {
            let mut all = lock(&self.all);
            self.closed.store(true, Ordering::Relaxed);
            core::mem::take(&mut *all)
        };
        for connection in all {
            connection.end("the lane is closed");
            self.forget(&connection);
        }
    }

    /// Stops watching the descriptor. Closing it would not be enough, because a child may have it, too.
    fn forget(&self, connection: &C) {
        if let Some(readable) = self.readable.get() {
            // It fails only if it is not watched.
            let _ = epoll::delete(readable, connection.descriptor());
        }
    }

    /// The numbers of connections whose descriptor is readable, or of some if there are many.
    pub(super) fn ready(&self) -> impl Iterator<Item = u64> {
        const NONE: epoll::Event =
            epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [NONE; READY_MAX];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let got = self.readable.get().map(|r| epoll::wait(r, &mut events[..], Some(&now)));
        let count = got.and_then(Result::ok).unwrap_or(0);
        events.into_iter().take(count).map(|event| event.data.u64())
    }

    /// How often connections came and went. If that differs from what it was, look at them again.
    #[inline]
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Arc<C>>> {
        lock(&self.all)
    }

    /// Notes that a connection with these ends is wanted. More than [`Connection::MAX`] are asked for again
    /// later.
    pub(crate) fn want(&self, ends: C::Ends) {
        let mut wanted = lock(&self.wanted);
        if !wanted.contains(&ends) && wanted.len() < C::MAX {
            wanted.push(ends);
        }
    }

    /// The connections that are wanted since the last call.
    pub(crate) fn take_wanted(&self) -> Vec<C::Ends> {
        core::mem::take(&mut lock(&self.wanted))
    }

    /// The connections that are over since the last call, and were not replaced.
    #[inline]
    pub(crate) fn take_over(&self) -> Vec<C::Ends> {
        // It is set with the lane's lock held, as this is called.
        if self.has_over.load(Ordering::Relaxed) { self.take_all_over() } else { Vec::new() }
    }

    #[cold]
    fn take_all_over(&self) -> Vec<C::Ends> {
        self.has_over.store(false, Ordering::Relaxed);
        let over = core::mem::take(&mut *lock(&self.over));
        let all = lock(&self.all);
        over.into_iter().filter(|ends| all.iter().all(|c| c.ends() != *ends)).collect()
    }
}
