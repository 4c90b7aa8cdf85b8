//! Closes a lane with its engine: its queue pairs fail, its thread ends, its socket is closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polypath_verbs::Error;

use crate::lane::{Lane, State, still_io, still_paths};
use crate::notify::lock;

impl Lane {
    /// Closes the lane: posted requests are flushed with an error, the queue pairs are gone, and
    /// nothing is received or sent any more. When it returns, the lane's thread has ended and its
    /// sockets are closed.
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
        // The thread polls the socket, so it must end first. If it panicked, the panic was already
        // reported.
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        let mut state = self.wait();
        // Raise deferred events now, because no lane will raise them later.
        state.io.deferrals.run(Duration::MAX);
        // Without peers there is nothing to probe, and a thread that still polls finds nothing to
        // do.
        *state = State::new(still_paths(self.slot), still_io(), None);
        if let Some(exchange) = &self.exchange {
            exchange.close();
        }
        if let Some(streams) = &self.streams {
            streams.close();
        }
    }

    /// Whether the engine has closed the lane, which then accepts no queue pair. Call this inside
    /// the lane, because the lane may close before you enter it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The error of a verb whose queue pair is gone.
    #[cold]
    pub(crate) fn gone(&self) -> Error {
        if self.is_closed() {
            Error::new(libc::ENODEV, "the engine that the queue pair belongs to is closed")
        } else {
            Error::invalid("the queue pair has been destroyed")
        }
    }
}
