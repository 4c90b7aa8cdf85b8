//! Reads a lane's state, and takes its recorded events.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::lane::journal::Messenger;
use crate::lane::noted::Noted;
use crate::lane::{Lane, State};

/// How often a reader lets other threads go first before it insists.
const LOOK_PATIENCE: usize = 64;

impl Lane {
    /// Reads the lane's state and changes nothing. Threads that have work in the lane go first. A
    /// reader that looks at a part at a time lets them in between the parts.
    pub(crate) fn look<R>(&self, work: impl FnOnce(&State) -> R) -> R {
        for _ in 0..LOOK_PATIENCE {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        work(&self.wait())
    }

    /// The number of its queue pairs.
    pub(crate) fn queue_pairs(&self) -> usize {
        self.look(|state| state.core.qps().len())
    }

    /// Sends events to the broker from now on.
    pub(crate) fn tell_by(&self, messenger: Arc<Messenger>) {
        self.wait().io.journal.tell_by(messenger);
    }

    /// Takes events that the broker was not told yet, and the number of those lost before them.
    pub(crate) fn take_untold(&self, most: usize) -> (Vec<Noted>, u64) {
        self.wait().io.journal.take_untold(most)
    }

    /// Whether the broker is to be told something of the paths of queue pairs.
    pub(crate) fn has_path_news(&self) -> bool {
        !self.wait().io.paths.is_empty()
    }

    /// Puts back events that could not be sent.
    pub(crate) fn put_back_untold(&self, events: Vec<Noted>, lost: u64) {
        self.wait().io.journal.put_back_untold(events, lost);
    }
}
