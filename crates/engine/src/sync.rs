//! The locks and atomics whose interaction the model checker checks. `loom/` replaces them with its
//! own.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
