//! Files of `polypath-engine`, compiled with the model checker's locks and atomics in place of the
//! standard library's, and the properties that their comments claim. Each model is run with every
//! interleaving of its threads, and with every value that the memory model lets a load see.
#![allow(dead_code, missing_docs, unused_imports)]

/// Time stands still: what the threads do depends on their interleaving alone.
mod clock {
    pub(crate) fn now() -> std::time::Duration {
        std::time::Duration::from_millis(1)
    }
}
#[path = "../../crates/engine/src/media/local/asleep.rs"]
mod asleep;
mod lane;
/// Shared memory, without the memory: what the lane's thread asks of it.
mod media {
    pub(crate) mod local {
        use loom::sync::Arc;

        use crate::asleep;
        use crate::sync::{AtomicU32, AtomicU64, Ordering};

        /// A ring's words, of which the reader has read nothing.
        #[derive(Debug)]
        pub(crate) struct Exchange {
            sleeps: AtomicU32,
            tail: AtomicU64,
            bell: Arc<crate::lane::waker::Waker>,
        }

        impl Exchange {
            pub(crate) fn new(bell: Arc<crate::lane::waker::Waker>) -> Self {
                Self { sleeps: AtomicU32::new(0), tail: AtomicU64::new(0), bell }
            }

            pub(crate) fn arm(&self) -> bool {
                asleep::may_sleep(&self.sleeps, &self.tail, 0)
            }

            pub(crate) fn disarm(&self) {
                self.sleeps.store(0, Ordering::Relaxed);
            }

            pub(crate) fn has_more(&self) -> bool {
                self.tail.load(Ordering::Acquire) != 0
            }

            /// What the other process does.
            pub(crate) fn write(&self) {
                self.tail.store(8, Ordering::Release);
                if asleep::must_ring(&self.sleeps) {
                    self.bell.wake();
                }
            }
        }
    }
}
#[path = "../../crates/engine/src/memory/mod.rs"]
mod memory;
pub mod models;

/// What the engine's `sync` is made of here.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
}
