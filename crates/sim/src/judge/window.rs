//! Memory windows that one end has bound. Its peer reads and writes with them until they are made
//! invalid.

use std::collections::BTreeMap;

use crate::io::NO_KEY;

/// The end that makes a window invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The owner, by a local work request.
    Owner,
    /// The peer, by a SEND with invalidate.
    Peer,
}

/// A memory window that was bound.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The end that has posted a work request that makes it invalid.
    pub(super) invalidation: Option<By>,
    /// Whether it is not valid any more.
    pub(super) gone: bool,
}

/// The memory windows of one end, by rkey.
#[derive(Debug, Default)]
pub(crate) struct Windows(BTreeMap<u32, Window>);

/// Keys of memory windows that a work request is to use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keys {
    /// The window with which it accesses the peer's memory.
    pub(crate) memory: Option<u32>,
    /// The window that it makes invalid.
    pub(crate) victim: Option<u32>,
    /// A window that is not valid any more.
    pub(crate) gone: Option<u32>,
}

impl Keys {
    /// A key that is not valid: that of a former window, if there is one.
    pub(crate) fn wrong(&self) -> u32 {
        self.gone.unwrap_or(NO_KEY)
    }
}

impl Windows {
    /// Notes that a window was bound.
    pub(crate) fn bound(&mut self, rkey: u32) {
        self.0.insert(rkey, Window::default());
    }

    /// Notes that a window is not valid any more, and returns the end that was to make it invalid.
    /// Returns `None` if no window has this key, or if no end was to make it invalid.
    pub(crate) fn invalidated(&mut self, rkey: u32) -> Option<By> {
        let window = self.0.get_mut(&rkey)?;
        window.gone = true;
        window.invalidation
    }

    /// The key of the window bound last (the highest key) for which `fits` is true.
    pub(super) fn latest(&self, fits: impl Fn(u32, &Window) -> bool) -> Option<u32> {
        self.0.iter().rev().find(|(key, window)| fits(**key, window)).map(|(key, _)| *key)
    }

    /// Chooses the latest valid window that `fits`, and notes that `by` will make it invalid.
    pub(super) fn plan_invalidation(&mut self, by: By, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let rkey = self.latest(|key, w| !w.gone && w.invalidation.is_none() && fits(key))?;
        self.0.get_mut(&rkey)?.invalidation = Some(by);
        Some(rkey)
    }
}
