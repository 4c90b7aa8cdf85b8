//! Memory windows that one end has bound, by which its peer reads and writes until they are made invalid.

use core::time::Duration;
use std::collections::BTreeMap;

use super::pair::Pair;
use crate::case::{Kind, Wrong};
use crate::io::NO_KEY;

/// For so long, what makes a window invalid waits for the peer to be in the middle of a message.
const AMBUSH: Duration = Duration::from_millis(20);

/// Who makes a window invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Its owner, by a local work request.
    Owner,
    /// The peer, by a SEND.
    Peer,
}

/// A window, from when it was bound.
#[derive(Debug, Default)]
struct Window {
    /// A work request that makes it invalid is posted.
    doomed: Option<By>,
    /// It is not valid any more.
    gone: bool,
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
        window.doomed
    }

    /// The latest window that `fits`.
    fn latest(&self, fits: impl Fn(u32, &Window) -> bool) -> Option<u32> {
        self.0.iter().rev().find(|(key, window)| fits(**key, window)).map(|(key, _)| *key)
    }

    fn doom(&mut self, by: By, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let rkey = self.latest(|key, w| !w.gone && w.doomed.is_none() && fits(key))?;
        self.0.get_mut(&rkey)?.doomed = Some(by);
        Some(rkey)
    }
}

impl Pair {
    /// When end `e` wants to post, if there is room.
    pub(crate) fn due(&self, e: usize) -> Option<Duration> {
        let at = self.flows[e].due()?;
        let op = &self.flows[e].ops[self.flows[e].next_to_post()];
        let waits = op.kind == Kind::LocalInv && !self.flows[1 - e].is_in_between();
        Some(if waits { at + AMBUSH } else { at })
    }

    /// The windows that the next work request of end `e` is to use. Most requests use one if they can;
    /// some of those that bear it, one that may be made invalid any moment.
    pub(super) fn choose_windows(&mut self, e: usize) -> Keys {
        let flow = &self.flows[e];
        let op = &flow.ops[flow.next_to_post()];
        let (kind, len, chance) = (op.kind, op.len, op.fill >> 41);
        let mut keys = Keys::default();
        match op.wrong {
            Some(Wrong::Key) => keys.gone = self.windows[1 - e].latest(|_, w| w.gone),
            Some(_) => {}
            None if chance & 3 == 0 => {}
            None if kind == Kind::LocalInv => {
                let user = &self.flows[1 - e];
                keys.victim = self.windows[e].doom(By::Owner, |key| !user.relies_on(key));
            }
            None if kind == Kind::SendInv => {
                keys.victim = self.windows[1 - e].doom(By::Peer, |_| true);
            }
            None if kind.takes_window() && len > 0 => {
                let risky = kind.may_lose_window() && chance >> 2 & 7 == 0;
                let theirs = &self.windows[1 - e];
                keys.memory = theirs.latest(|_, w| !w.gone && (risky || w.doomed.is_none()));
            }
            None => {}
        }
        keys
    }
}
