//! A held lane lock. Events that were noted meanwhile are written to the log after the lock is
//! released, because making their text takes time, and writing may wait for the reader of the log.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::lane::State;
use crate::lane::noted::Unwritten;
use crate::notify::lock;

/// The lane's lock, which is held until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    // Fields are dropped in this order: first the lock is released, then the log is written.
    state: MutexGuard<'a, State>,
    unwritten: Option<Box<Unwritten>>,
}

impl<'a> Held<'a> {
    fn new(state: MutexGuard<'a, State>) -> Self {
        Self { state, unwritten: None }
    }

    /// Waits for the lock, even if it is poisoned.
    pub(super) fn take(state: &'a Mutex<State>) -> Self {
        Self::new(lock(state))
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock`].
    #[inline]
    pub(super) fn try_take(state: &'a Mutex<State>) -> Result<Self, TryLockError<Self>> {
        match state.try_lock() {
            Ok(state) => Ok(Self::new(state)),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(poisoned)) => {
                Err(PoisonError::new(Self::new(poisoned.into_inner())).into())
            }
        }
    }
}

impl Deref for Held<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.unwritten = self.state.io.journal.take_unwritten();
    }
}
