//! The channels of a lane: where they come in, and what the lane's thread does with them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::channel::Channel;
use crate::notify::lock;

/// The most channels of a lane: one to each slot.
const CHANNELS_MAX: usize = 254;

/// The channels of a lane. Its halves take new ones from here, because only they may use a ring's ends.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Readable while one of the bells is.
    bells: OwnedFd,
    channels: Mutex<Vec<Arc<Channel>>>,
    /// Counts the channels that came and went.
    version: AtomicU32,
    /// Whether the lane is closed. It changes with `channels` locked.
    closed: AtomicBool,
    /// Slots to which a channel is wanted, and those whose channel is over.
    news: Mutex<News>,
    /// Whether there are any of the latter.
    has_over: AtomicBool,
}

#[derive(Debug, Default)]
struct News {
    wanted: Vec<u8>,
    over: Vec<u8>,
}

impl Exchange {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            bells: epoll::create(CreateFlags::CLOEXEC)?,
            channels: Mutex::default(),
            version: AtomicU32::new(0),
            news: Mutex::default(),
            closed: AtomicBool::new(false),
            has_over: AtomicBool::new(false),
        })
    }

    /// A descriptor that is readable while a bell rings.
    pub(super) fn fd(&self) -> RawFd {
        self.bells.as_raw_fd()
    }

    /// Adds a channel. It takes the place of an earlier one to the same slot.
    ///
    /// # Errors
    /// There are too many, or no more descriptors can be watched.
    pub(crate) fn add(&self, channel: Channel) -> io::Result<()> {
        let mut channels = lock(&self.channels);
        if self.closed.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ESHUTDOWN));
        }
        let earlier = channels.iter().position(|other| other.slot == channel.slot);
        if let Some(earlier) = earlier {
            let earlier = channels.remove(earlier);
            earlier.end();
            self.forget(&earlier);
        }
        if channels.len() >= CHANNELS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        epoll::add(&self.bells, channel.bell(), EventData::new_u64(0), EventFlags::IN)?;
        channels.push(Arc::new(channel));
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Gives a channel up.
    pub(super) fn remove(&self, channel: &Arc<Channel>) {
        channel.end();
        let mut channels = lock(&self.channels);
        let before = channels.len();
        channels.retain(|other| !Arc::ptr_eq(other, channel));
        if channels.len() < before {
            self.forget(channel);
            lock(&self.news).over.push(channel.slot);
            self.has_over.store(true, Ordering::Relaxed);
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Ends all channels, and takes no more: the lane is closed.
    pub(crate) fn close(&self) {
        let channels = {
            let mut channels = lock(&self.channels);
            self.closed.store(true, Ordering::Relaxed);
            core::mem::take(&mut *channels)
        };
        for channel in channels {
            channel.end();
            self.forget(&channel);
        }
    }

    /// Stops watching the bell. Closing it would not be enough, because a child may have it, too.
    fn forget(&self, channel: &Channel) {
        // It fails only if it is not watched.
        let _ = epoll::delete(&self.bells, channel.bell());
    }

    /// How often channels came. If that differs from what it was, look at [`Exchange::all`].
    #[inline]
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// All channels.
    pub(super) fn all(&self) -> Vec<Arc<Channel>> {
        lock(&self.channels).clone()
    }

    /// Notes that the lane's thread is about to sleep. Returns false if there is something to read, so that
    /// it must not.
    pub(crate) fn arm(&self) -> bool {
        let channels = lock(&self.channels);
        let quiet = |channel: &Arc<Channel>| !channel.works() || channel.arm();
        channels.iter().all(quiet)
    }

    /// Notes that it is awake.
    pub(crate) fn disarm(&self) {
        lock(&self.channels).iter().filter(|channel| channel.works()).for_each(|c| c.disarm());
    }

    /// Whether there is something to read.
    pub(crate) fn has_more(&self) -> bool {
        lock(&self.channels).iter().any(|channel| channel.works() && channel.has_more())
    }

    /// Notes that a channel to this slot is wanted.
    pub(crate) fn want(&self, slot: u8) {
        let mut news = lock(&self.news);
        if !news.wanted.contains(&slot) {
            news.wanted.push(slot);
        }
    }

    /// The slots to which channels are wanted since the last call.
    pub(crate) fn take_wanted(&self) -> Vec<u8> {
        core::mem::take(&mut lock(&self.news).wanted)
    }

    /// The slots whose channels are over since the last call, and were not replaced.
    #[inline]
    pub(crate) fn take_over(&self) -> Vec<u8> {
        // It is set with the lane's lock held, as this is called.
        if self.has_over.load(Ordering::Relaxed) { self.take_all_over() } else { Vec::new() }
    }

    #[cold]
    fn take_all_over(&self) -> Vec<u8> {
        self.has_over.store(false, Ordering::Relaxed);
        let over = core::mem::take(&mut lock(&self.news).over);
        let channels = lock(&self.channels);
        over.into_iter().filter(|slot| channels.iter().all(|c| c.slot != *slot)).collect()
    }
}
