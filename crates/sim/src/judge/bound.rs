//! Chooses the memory windows that the next work request of an end uses, and the time when it may be
//! posted.

use core::time::Duration;

use super::pair::Pair;
use super::window::{By, Keys};
use crate::case::{OpKind, Wrong};

/// The longest time for which a work request that makes a window invalid waits for the peer to be in
/// the middle of a message.
const MID_MESSAGE: Duration = Duration::from_millis(20);

impl Pair {
    /// The time when end `e` wants to post its next work request, or `None` if it has none or no room.
    pub(crate) fn due(&self, e: usize) -> Option<Duration> {
        let at = self.directions[e].due()?;
        let op = &self.directions[e].ops[self.directions[e].next_to_post()];
        let waits = op.kind == OpKind::LocalInv && !self.directions[1 - e].is_in_between();
        Some(if waits { at + MID_MESSAGE } else { at })
    }

    /// Chooses the windows that the next work request of end `e` is to use. Most requests use a window
    /// if they can. Some requests that tolerate it use a window that may be made invalid at any moment.
    pub(super) fn choose_windows(&mut self, e: usize) -> Keys {
        let direction = &self.directions[e];
        let op = &direction.ops[direction.next_to_post()];
        let (kind, len, chance) = (op.kind, op.len, op.fill >> 41);
        let mut keys = Keys::default();
        match op.wrong {
            Some(Wrong::Key) => keys.gone = self.windows[1 - e].latest(|_, w| w.gone),
            Some(_) => {}
            None if chance & 3 == 0 => {}
            None if kind == OpKind::LocalInv => {
                let user = &self.directions[1 - e];
                keys.victim =
                    self.windows[e].plan_invalidation(By::Owner, |key| !user.relies_on(key));
            }
            None if kind == OpKind::SendInv => {
                keys.victim = self.windows[1 - e].plan_invalidation(By::Peer, |_| true);
            }
            None if kind.takes_window() && len > 0 => {
                let risky = kind.may_lose_window() && chance >> 2 & 7 == 0;
                let theirs = &self.windows[1 - e];
                keys.memory = theirs.latest(|_, w| !w.gone && (risky || w.invalidation.is_none()));
            }
            None => {}
        }
        keys
    }
}
