//! The sleep of a lane's own thread, with a waker of locks.

pub(crate) mod waker {
    use std::cell::Cell;
    use std::io;
    use std::os::fd::RawFd;
    use std::time::Duration;

    use loom::sync::{Condvar, Mutex};

    /// Sleeps so long are taken to be for ever: who is not woken is found as a deadlock.
    pub(crate) const FOR_EVER: Duration = Duration::from_millis(100);

    #[derive(Debug)]
    pub(crate) struct Waker {
        woken: Mutex<bool>,
        changed: Condvar,
        /// Short sleeps are taken to be for ever too, unless they end by the socket.
        patient: bool,
    }

    thread_local! {
        static PATIENT: Cell<bool> = const { Cell::new(false) };
    }

    /// In this thread's models from now on, only a wake-up or a packet ends a short sleep.
    pub(crate) fn be_patient() {
        PATIENT.set(true);
    }

    impl Waker {
        pub(crate) fn new() -> io::Result<Self> {
            let patient = PATIENT.get();
            Ok(Self { woken: Mutex::new(false), changed: Condvar::new(), patient })
        }

        pub(crate) fn wake(&self) {
            *self.woken.lock().unwrap() = true;
            self.changed.notify_one();
        }

        pub(crate) fn wait(&self, socket: Option<RawFd>, timeout: Duration) -> bool {
            let for_ever = timeout >= FOR_EVER || (self.patient && socket.is_none());
            let mut woken = self.woken.lock().unwrap();
            while !*woken && for_ever {
                woken = self.changed.wait(woken).unwrap();
            }
            *woken
        }

        pub(crate) fn clear(&self) {
            *self.woken.lock().unwrap() = false;
        }
    }
}

#[path = "../../crates/engine/src/lane/busy_poll.rs"]
pub(crate) mod busy_poll;
#[path = "../../crates/engine/src/lane/collect.rs"]
pub(crate) mod collect;
#[path = "../../crates/engine/src/lane/deeds.rs"]
pub(crate) mod deeds;
#[path = "../../crates/engine/src/lane/sleeper.rs"]
pub(crate) mod sleeper;
#[path = "../../crates/engine/src/lane/stand_in.rs"]
pub(crate) mod stand_in;
#[path = "../../crates/engine/src/lane/trust.rs"]
mod trust;
#[path = "../../crates/engine/src/lane/watch.rs"]
pub(crate) mod watch;
