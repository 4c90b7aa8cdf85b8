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
mod lane;
#[path = "../../crates/engine/src/memory/mod.rs"]
mod memory;
pub mod models;

/// What the engine's `sync` is made of here.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(crate) use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
}
