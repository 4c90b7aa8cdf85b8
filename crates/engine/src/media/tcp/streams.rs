//! The streams of a lane: where they come in, and where it is told that one is wanted or over.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use polypath_paths::StreamEnds;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::stream::Stream;
use crate::notify::lock;

/// The most streams of a lane.
const STREAMS_MAX: usize = 64;
/// The most that are wanted at a time; more are asked for again later.
const WANTED_MAX: usize = 64;

/// The streams of a lane.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Readable while one of them is.
    readable: OwnedFd,
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Counts the streams that came and went.
    version: AtomicU32,
    /// Whether the lane is closed. It changes with `streams` locked.
    closed: AtomicBool,
    news: Mutex<News>,
    has_over: AtomicBool,
}

#[derive(Debug, Default)]
struct News {
    wanted: Vec<StreamEnds>,
    over: Vec<StreamEnds>,
}

impl Streams {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            readable: epoll::create(CreateFlags::CLOEXEC)?,
            streams: Mutex::default(),
            version: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            news: Mutex::default(),
            has_over: AtomicBool::new(false),
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.readable.as_raw_fd()
    }

    /// Adds a stream. It takes the place of an earlier one between the same ends.
    ///
    /// # Errors
    /// There are too many, the lane is closed, or no more descriptors can be watched.
    pub(crate) fn add(&self, stream: Stream) -> io::Result<()> {
        let mut streams = lock(&self.streams);
        if self.closed.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        if let Some(earlier) = streams.iter().position(|other| other.ends == stream.ends) {
            let earlier = streams.remove(earlier);
            earlier.end("another one takes its place");
            self.forget(&earlier);
        }
        if streams.len() >= STREAMS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        epoll::add(&self.readable, stream.socket(), EventData::new_u64(0), EventFlags::IN)?;
        streams.push(Arc::new(stream));
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Whether there is a stream between these ends.
    pub(crate) fn has(&self, ends: StreamEnds) -> bool {
        lock(&self.streams).iter().any(|stream| stream.ends == ends && stream.works())
    }

    /// Gives a stream up.
    pub(super) fn remove(&self, stream: &Arc<Stream>, why: &str) {
        stream.end(why);
        let mut streams = lock(&self.streams);
        let before = streams.len();
        streams.retain(|other| !Arc::ptr_eq(other, stream));
        if streams.len() < before {
            self.forget(stream);
            lock(&self.news).over.push(stream.ends);
            self.has_over.store(true, Ordering::Relaxed);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Ends all streams, and takes no more: the lane is closed.
    pub(crate) fn close(&self) {
        let streams = {
            let mut streams = lock(&self.streams);
            self.closed.store(true, Ordering::Relaxed);
            core::mem::take(&mut *streams)
        };
        for stream in streams {
            stream.end("the lane is closed");
            self.forget(&stream);
        }
    }

    /// Stops watching the socket. Closing it would not be enough, because a child may have it, too.
    fn forget(&self, stream: &Stream) {
        // It fails only if it is not watched.
        let _ = epoll::delete(&self.readable, stream.socket());
    }

    /// How often streams came. If that differs from what it was, look at [`Streams::all`].
    #[inline]
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn all(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).clone()
    }

    /// Notes that a stream between these ends is wanted.
    pub(crate) fn want(&self, ends: StreamEnds) {
        let mut news = lock(&self.news);
        if !news.wanted.contains(&ends) && news.wanted.len() < WANTED_MAX {
            news.wanted.push(ends);
        }
    }

    /// The streams that are wanted since the last call.
    pub(crate) fn take_wanted(&self) -> Vec<StreamEnds> {
        core::mem::take(&mut lock(&self.news).wanted)
    }

    /// The streams that are over since the last call, and were not replaced.
    #[inline]
    pub(crate) fn take_over(&self) -> Vec<StreamEnds> {
        // It is set with the lane's lock held, as this is called.
        if self.has_over.load(Ordering::Relaxed) { self.take_all_over() } else { Vec::new() }
    }

    #[cold]
    fn take_all_over(&self) -> Vec<StreamEnds> {
        self.has_over.store(false, Ordering::Relaxed);
        let over = core::mem::take(&mut lock(&self.news).over);
        over.into_iter().filter(|ends| !self.has(*ends)).collect()
    }
}
