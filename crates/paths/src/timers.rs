//! Deadlines by owner.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::{AssociationId, Qpn};
use polypath_types::{PathId, PeerId};

/// What a deadline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Probes, trials, control messages of an association.
    Association(AssociationId),
    /// Handshake of a queue pair.
    Hello(Qpn),
    /// A peer without path: end of the hold time.
    Hold(PeerId),
    /// A path whose link is down: end of `downdelay`.
    DownDelay(PathId),
    /// A path without its TCP stream: when one is asked for again.
    Stream(PathId),
    /// A peer that left a port of a bond by which it was silent: when it tries the port again.
    Port(PeerId),
    /// Two lanes that exchange datagrams: when to look whether they still do.
    LanePair(Qpn),
}

/// One deadline at most per owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(Duration, Timer)>,
    of: BTreeMap<Timer, Duration>,
}

impl Timers {
    /// Sets, moves or (`None`) clears a deadline.
    pub(crate) fn set(&mut self, timer: Timer, at: Option<Duration>) {
        let old = match at {
            Some(at) => self.of.insert(timer, at),
            None => self.of.remove(&timer),
        };
        if old == at {
            return;
        }
        if let Some(old) = old {
            self.queue.remove(&(old, timer));
        }
        if let Some(at) = at {
            self.queue.insert((at, timer));
        }
    }

    /// Moves a deadline forward to `at` if it is later or absent.
    pub(crate) fn no_later(&mut self, timer: Timer, at: Duration) {
        if self.of.get(&timer).is_none_or(|old| *old > at) {
            self.set(timer, Some(at));
        }
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// The deadlines that are set, by what they belong to.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Timer> + '_ {
        self.of.keys().copied()
    }

    /// # Errors
    /// What is queued is not what is set.
    pub(crate) fn check(&self) -> Result<(), String> {
        let set: BTreeSet<_> = self.of.iter().map(|(timer, at)| (*at, *timer)).collect();
        if set == self.queue {
            return Ok(());
        }
        Err(format!("{:?} are set, {:?} are queued", self.of, self.queue))
    }

    /// Takes one that is due.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<Timer> {
        let &(at, timer) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.set(timer, None);
        Some(timer)
    }
}
