//! The sleep of a lane's own thread, with a bell of locks.

pub(crate) mod bell {
    use std::cell::Cell;
    use std::io;
    use std::os::fd::RawFd;
    use std::time::Duration;

    use loom::sync::{Condvar, Mutex};

    /// Sleeps so long are taken to be for ever: who is not woken is found as a deadlock.
    pub(crate) const FOR_EVER: Duration = Duration::from_millis(100);

    #[derive(Debug)]
    pub(crate) struct Bell {
        rung: Mutex<bool>,
        heard: Condvar,
        /// Short sleeps are taken to be for ever too, unless they end by the socket.
        patient: bool,
    }

    thread_local! {
        static PATIENT: Cell<bool> = const { Cell::new(false) };
    }

    /// In this thread's models from now on, only the bell or a packet ends a short sleep.
    pub(crate) fn be_patient() {
        PATIENT.set(true);
    }

    impl Bell {
        pub(crate) fn new() -> io::Result<Self> {
            let patient = PATIENT.get();
            Ok(Self { rung: Mutex::new(false), heard: Condvar::new(), patient })
        }

        pub(crate) fn ring(&self) {
            *self.rung.lock().unwrap() = true;
            self.heard.notify_one();
        }

        pub(crate) fn wait(&self, socket: Option<RawFd>, timeout: Duration) -> bool {
            let for_ever = timeout >= FOR_EVER || (self.patient && socket.is_none());
            let mut rung = self.rung.lock().unwrap();
            while !*rung && for_ever {
                rung = self.heard.wait(rung).unwrap();
            }
            *rung
        }

        pub(crate) fn clear(&self) {
            *self.rung.lock().unwrap() = false;
        }
    }
}

#[path = "../../crates/engine/src/lane/busy_poll.rs"]
pub(crate) mod busy_poll;
#[path = "../../crates/engine/src/lane/collect.rs"]
pub(crate) mod collect;
#[path = "../../crates/engine/src/lane/sleeper.rs"]
pub(crate) mod sleeper;
