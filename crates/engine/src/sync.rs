//! The locks and atomics whose interplay is checked by the model checker: `loom/` puts its own in their
//! place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
