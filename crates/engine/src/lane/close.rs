//! The end of a lane whose engine closes: its queue pairs fail, its thread ends, its socket is closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polypath_verbs::Error;

use crate::lane::{Lane, State, still_io, still_paths};
use crate::notify::lock;

impl Lane {
    /// Closes the lane: what is posted is flushed with an error, the queue pairs are gone, and nobody
    /// receives or sends here any more. When it returns, the lane's thread has ended and its sockets
    /// are closed.
    pub(crate) fn close(&self) {
        self.drain();
        self.closed.store(true, Ordering::Release);
        {
            let mut state = self.wait();
            let State { core, io, .. } = &mut *state;
            let indexes: Vec<u16> = core.qps().iter().map(|(index, _)| index).collect();
            for index in indexes {
                core.fail(index, io);
                core.remove(index, io);
            }
        }
        self.sleeper.wake();
        // It polls the socket, so it goes first. What it has panicked of, if it has, was said.
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        let mut state = self.wait();
        // An event that moderation defers would wait for a lane that does not come.
        state.io.deferrals.run(Duration::MAX);
        // Without peers there is nothing to probe, and who polls on finds nothing to do.
        *state = State::new(still_paths(self.slot), still_io(), None);
    }

    /// Whether the engine has closed the lane: then it takes no queue pair. To be asked with the lane
    /// entered, since it may close before that.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// What a verb is told whose queue pair is not there.
    #[cold]
    pub(crate) fn gone(&self) -> Error {
        if self.is_closed() {
            Error::new(libc::ENODEV, "the engine that the queue pair belongs to is closed")
        } else {
            Error::invalid("the queue pair has been destroyed")
        }
    }
}
