//! Memory windows that one end has bound, by which its peer reads and writes until they are made invalid.

use std::collections::BTreeMap;

use crate::io::NO_KEY;

/// The end that makes a window invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Its owner, by a local work request.
    Owner,
    /// The peer, by a SEND.
    Peer,
}

/// A window, from when it was bound.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The end that has posted a work request that makes it invalid.
    pub(super) invalidation: Option<By>,
    /// Whether it is not valid any more.
    pub(super) gone: bool,
}

/// The memory windows of one end by key.
#[derive(Debug, Default)]
pub(crate) struct Windows(BTreeMap<u32, Window>);

/// Keys of memory windows that a work request is to use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keys {
    /// By this it gets at the peer's memory.
    pub(crate) memory: Option<u32>,
    /// This it makes invalid.
    pub(crate) victim: Option<u32>,
    /// This was valid once.
    pub(crate) gone: Option<u32>,
}

impl Keys {
    /// A key that is of nothing, or not any more.
    pub(crate) fn wrong(&self) -> u32 {
        self.gone.unwrap_or(NO_KEY)
    }
}

impl Windows {
    /// A window was bound.
    pub(crate) fn bound(&mut self, rkey: u32) {
        self.0.insert(rkey, Window::default());
    }

    /// A window is not valid any more: gives whose doing that is. None: no window has that key.
    pub(crate) fn invalidated(&mut self, rkey: u32) -> Option<By> {
        let window = self.0.get_mut(&rkey)?;
        window.gone = true;
        window.invalidation
    }

    /// The latest window that `fits`.
    pub(super) fn latest(&self, fits: impl Fn(u32, &Window) -> bool) -> Option<u32> {
        self.0.iter().rev().find(|(key, window)| fits(**key, window)).map(|(key, _)| *key)
    }

    pub(super) fn plan_invalidation(&mut self, by: By, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let rkey = self.latest(|key, w| !w.gone && w.invalidation.is_none() && fits(key))?;
        self.0.get_mut(&rkey)?.invalidation = Some(by);
        Some(rkey)
    }
}
