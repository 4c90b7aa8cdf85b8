//! Completion channels.

use std::any::Any;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use polypath_verbs::{Attend, CompletionChannel};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::drive::{Attended, Drive};
use crate::notify::NoticeQueue;
use crate::standing;

/// The number of times that a queue may be armed without a thread that waits as [`CompletionChannel::attend`]
/// says. After that the program is taken to wait in another way, as by `poll(2)`.
const ARMS: u32 = 16;
const NO_LANE: u32 = u32::MAX;

/// A completion channel: the tokens of completion queues that have an event.
#[derive(Debug)]
pub(crate) struct Channel {
    notices: NoticeQueue<u64>,
    /// The lanes of its completion queues' engine.
    engine_lanes: OnceLock<Arc<dyn Drive>>,
    /// Those of them that feed its completion queues, by their bits.
    lanes: AtomicU64,
    /// The number of times that its queues were armed since a thread stood in for a lane's, or [`ARMS`].
    arms: AtomicU32,
    /// The lane whose thread must serve a reader of this channel, or [`NO_LANE`].
    served_by: AtomicU32,
}

impl Channel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            notices: NoticeQueue::new()?,
            engine_lanes: OnceLock::new(),
            lanes: AtomicU64::new(0),
            arms: AtomicU32::new(ARMS),
            served_by: AtomicU32::new(NO_LANE),
        })
    }

    /// Notes that these lanes feed a completion queue of this channel.
    pub(crate) fn feed(&self, engine_lanes: &Arc<dyn Drive>, lanes: u64) {
        self.engine_lanes.get_or_init(|| engine_lanes.clone());
        self.lanes.fetch_or(lanes, Ordering::Relaxed);
    }

    /// Notes that a queue is armed. Returns whether the thread that waits for the event will most likely
    /// stand in for the lane's thread, which need not be told then.
    pub(crate) fn arms(&self) -> bool {
        let arms = self.arms.load(Ordering::Relaxed);
        if arms < ARMS {
            self.arms.store(arms + 1, Ordering::Relaxed);
        }
        arms < ARMS
    }

    pub(crate) fn notify(&self, token: u64) {
        self.notices.push(token);
    }

    /// Drops the undelivered events of a completion queue that is gone.
    pub(crate) fn forget(&self, token: u64) {
        self.notices.forget(|t| *t == token);
    }

    /// The only lane that feeds it, if it is only one: more have more sockets than a thread waits for here.
    fn lane(&self) -> Option<(&Arc<dyn Drive>, u32)> {
        let lanes = self.lanes.load(Ordering::Relaxed);
        let lane = lanes.is_power_of_two().then(|| lanes.trailing_zeros())?;
        Some((self.engine_lanes.get()?, lane))
    }

    /// Stands in for a lane's thread, if there is nothing to read yet.
    fn stand_in(&self) -> Attended {
        let blocks = |fd| !fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        match self.lane() {
            Some((lanes, lane)) if self.notices.is_empty() && blocks(self.notices.as_fd()) => {
                standing::attend(lanes, lane, &|| !self.notices.is_empty())
            }
            _ => Attended::Refused,
        }
    }

    /// Notes whether a reader may be waiting whom the lane's thread must serve.
    fn is_read(&self, is_read: bool) {
        let lane = self.lane().map_or(NO_LANE, |(_, lane)| if is_read { lane } else { NO_LANE });
        let before = self.served_by.swap(lane, Ordering::Relaxed);
        if before != lane
            && let Some(lanes) = self.engine_lanes.get()
        {
            lanes.others(before, -1);
            lanes.others(lane, 1);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.is_read(false);
    }
}

impl CompletionChannel for Channel {
    fn fd(&self) -> RawFd {
        self.notices.fd()
    }
    fn take(&self) -> Option<u64> {
        self.notices.take()
    }
    fn attend(&self) -> Attend {
        self.is_read(false);
        let attended = self.stand_in();
        if attended != Attended::Refused {
            self.arms.store(0, Ordering::Relaxed);
        }
        if let Attended::Wait { descriptor, timeout } = attended {
            return Attend::Wait { descriptor, timeout };
        }
        standing::leave();
        self.is_read(self.notices.is_empty());
        Attend::Read
    }
    fn leave(&self) {
        standing::leave();
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
