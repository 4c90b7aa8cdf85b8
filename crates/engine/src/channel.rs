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
}

impl Channel {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            notices: NoticeQueue::new()?,
            engine_lanes: OnceLock::new(),
            lanes: AtomicU64::new(0),
            arms: AtomicU32::new(ARMS),
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

    /// Whether a read of the descriptor blocks.
    fn blocks(&self) -> bool {
        let flags = || fcntl_getfl(self.notices.as_fd());
        self.notices.is_empty() && !flags().is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
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
        let lanes = self.lanes.load(Ordering::Relaxed);
        let Some(engine_lanes) = self.engine_lanes.get().filter(|_| self.blocks()) else {
            standing::leave();
            return Attend::Read;
        };
        // Several lanes have more sockets than a thread waits for here.
        let attended = match lanes.is_power_of_two() {
            true => {
                let has_event = || !self.notices.is_empty();
                standing::attend(engine_lanes, lanes.trailing_zeros(), &has_event)
            }
            false => Attended::Refused,
        };
        match attended {
            Attended::Refused => standing::read(engine_lanes, lanes),
            Attended::Event | Attended::Wait { .. } => self.arms.store(0, Ordering::Relaxed),
        }
        match attended {
            Attended::Wait { descriptor, timeout } => Attend::Wait { descriptor, timeout },
            Attended::Event | Attended::Refused => Attend::Read,
        }
    }
    fn leave(&self) {
        standing::leave();
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
