//! The channels of a lane, and what the lane's thread does with them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::channel::Channel;
use crate::media::connections::{Connection, Connections};

/// The channels of a lane. Its halves take new ones from here, because only they may use a ring's ends.
pub(crate) type Exchange = Connections<Channel>;

impl Connection for Channel {
    /// The slot of the other lane.
    type Ends = u8;
    /// One to each slot.
    const MAX: usize = 254;

    fn ends(&self) -> u8 {
        self.slot
    }

    fn number(&self) -> u64 {
        self.slot.into()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell()
    }

    fn end(&self, _why: &str) {
        self.end();
    }
}

impl Exchange {
    /// Notes that a thread is about to sleep until something arrives. Returns false if there is something to
    /// read, so that it must not.
    pub(crate) fn arm(&self) -> bool {
        let quiet = |channel: &Arc<Channel>| !channel.works() || channel.arm();
        self.all().iter().all(quiet)
    }

    /// Notes that it is awake, and hears the bells that were rung.
    pub(crate) fn disarm(&self) {
        let all = self.all();
        let working = || all.iter().filter(|channel| channel.works());
        working().for_each(|channel| channel.wake_up());
        if let [only] = &all[..] {
            // This asks the kernel once, and not for which one first.
            return working().for_each(|_| only.hear());
        }
        if !all.is_empty() {
            self.ready().for_each(|slot| {
                working().filter(|c| u64::from(c.slot) == slot).for_each(|c| c.hear());
            });
        }
    }

    /// Whether there is something to read.
    pub(crate) fn has_more(&self) -> bool {
        self.all().iter().any(|channel| channel.works() && channel.has_more())
    }
}
