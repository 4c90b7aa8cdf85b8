//! Plain queue pairs that left a port of a bond of the kernel's by which their peer was silent come back to
//! it.
//!
//! A plain peer answers no probes, so nothing but data tells whether the port carries again. So one of the
//! queue pairs that left it tries it with what it sends anyway: its path gets a source port that leads there.
//! If something that was sent since is acknowledged, the port carries, and all that left it are dealt anew
//! ([`dealing`](crate::dealing)). If nothing is for as long as it takes to leave a port, the path leaves it
//! again, and what is outstanding is asked for by the other port: it has lost some 20 ms. The next try is
//! twice as far away, up to about a minute.
//!
//! An end that only answers finds out by its peer asking again, which takes some of the peer's time-outs. It
//! tries more seldom, and takes the port for good when the peer's packets have come for a while without such
//! a question.

use core::time::Duration;

use polypath_types::{PathId, PeerId};

use crate::lag::Silence;
use crate::manager::PathManager;
use crate::path::Role;
use crate::peers::Peer;
use crate::select::Pair;
use crate::timers::Timer;

/// The first try of a port comes so long after it was left; each further one after twice as long, at most.
const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(64);
/// An end that only answers waits so many times as long.
const ANSWERS: u32 = 16;
/// It takes the port for good after so long without a question asked twice.
const PROVEN: Duration = Duration::from_secs(2);
/// Requests tell something for so long.
const LATELY: Duration = Duration::from_secs(16);

impl PathManager {
    /// Whether a peer was silent by this port of its bond, and nothing has shown that it is not any more.
    pub(crate) fn is_silent_by(&self, pair: Pair, port: u32) -> bool {
        self.silences.get(&(pair, port)).is_some_and(|silence| silence.lasts)
    }

    /// A peer is silent by the port of its bond that its plain queue pairs leave by: they leave by another
    /// one. Returns whether they did; if there is no bond, or no other port, nothing has changed.
    pub(crate) fn leave_silent_port(&mut self, peer: PeerId) -> bool {
        let now = self.clock.now();
        let Some(p) = self.peers.get(peer) else { return false };
        let (pair, Some(port)) = ((p.key.local, p.key.remote), p.leaves_by) else { return false };
        let Some(lag) = self.bond_of(p).cloned() else { return false };
        let others = lag.members.iter().filter(|other| other.usable && other.ifindex != port);
        if !lag.sends_by(port) || others.count() == 0 {
            return false;
        }
        match self.silences.get_mut(&(pair, port)) {
            Some(silence) if silence.lasts => {}
            Some(silence) if now.saturating_sub(silence.tried_at) < LAST * 2 => {
                (silence.lasts, silence.tried_at) = (true, now);
            }
            _ => {
                let silence = Silence { lasts: true, tried_at: now, wait: FIRST };
                self.silences.insert((pair, port), silence);
            }
        }
        // For others that leave by it, what they send from now on is a try.
        let others = self.peers.iter().filter(|(_, other)| {
            (other.key.local, other.key.remote, other.leaves_by) == (pair.0, pair.1, Some(port))
        });
        for (_, other) in others {
            if let Some(path) = self.paths.get_mut(other.own) {
                path.tried_since.get_or_insert(now);
            }
        }
        let mut to = self.least_loaded(&lag, pair, &self.peers.loads, None, Some(port));
        if let Some(silent) = to.filter(|to| self.is_silent_by(pair, *to)) {
            // All are: the one that was not tried for the longest time.
            let tried_at = |port: &u32| self.silences.get(&(pair, *port)).map(|s| s.tried_at);
            let ports = self.fit_ports(&lag, pair).into_iter().filter(|other| *other != port);
            to = ports.min_by_key(tried_at).or(Some(silent));
        }
        let Some(to) = to else { return false };
        self.leave_by(peer, to);
        self.try_later(peer);
        true
    }

    /// The plain queue pairs of a peer leave by this port of their bond from now on. If the peer was silent
    /// by it, that is a try.
    pub(crate) fn try_port(&mut self, peer: PeerId, port: u32) {
        let now = self.clock.now();
        let Some(p) = self.peers.get(peer) else { return };
        let silence = self.silences.get_mut(&((p.key.local, p.key.remote), port));
        let silence = silence.filter(|silence| silence.lasts);
        if let Some(path) = self.paths.get_mut(p.own) {
            path.tried_since = silence.is_some().then_some(now);
        }
        if let Some(silence) = silence {
            silence.tried_at = now;
        }
    }

    /// Sets when the peer tries a port by which it was silent, if there is one.
    pub(crate) fn try_later(&mut self, peer: PeerId) {
        let at = self.next_try(peer).map(|(at, _)| at);
        self.timers.set(Timer::Port(peer), at);
    }

    /// The next port to try, and when.
    fn next_try(&self, peer: PeerId) -> Option<(Duration, u32)> {
        let p = self.peers.get(peer)?;
        let (lag, pair) = (self.bond_of(p)?, (p.key.local, p.key.remote));
        let asks = self.has_asked(peer);
        let of_port = |port: u32| {
            let silence = self.silences.get(&(pair, port)).filter(|silence| silence.lasts)?;
            let wait = if asks { silence.wait } else { (silence.wait * ANSWERS).min(LAST * 2) };
            Some((silence.tried_at + wait, port))
        };
        let ports = lag.members.iter().filter(|port| port.usable).map(|port| port.ifindex);
        ports.filter(|port| p.leaves_by != Some(*port)).filter_map(of_port).min()
    }

    /// Whether it has sent requests lately, which tell whether they arrive.
    fn has_asked(&self, peer: PeerId) -> bool {
        let path = self.peers.get(peer).and_then(|p| self.paths.get(p.own));
        path.is_some_and(|path| {
            let lately = |at| self.clock.now().saturating_sub(at) < LATELY;
            path.outstanding_since.is_some() || path.last_progress.is_some_and(lately)
        })
    }

    /// Whether the peer's bond has another port, by which the peer was not silent.
    pub(crate) fn has_fit_port(&self, peer: PeerId) -> bool {
        let Some(p) = self.peers.get(peer) else { return false };
        let pair = (p.key.local, p.key.remote);
        let fit = self.bond_of(p).map(|lag| self.fit_ports(lag, pair)).unwrap_or_default();
        fit.iter().any(|port| Some(*port) != p.leaves_by && !self.is_silent_by(pair, *port))
    }

    /// Whether something was acknowledged after `since` that other plain queue pairs have sent to the same
    /// address by the same port of a bond.
    pub(crate) fn others_hear(&self, path: PathId, since: Duration) -> bool {
        let Some(Role::Plain { peer }) = self.paths.get(path).map(|p| p.role) else { return false };
        let Some(p) = self.peers.get(peer).filter(|p| p.leaves_by.is_some()) else { return false };
        let ends = |p: &Peer| (p.key.local, p.key.remote, p.leaves_by);
        let mut own = self.peers.iter().filter(|(_, other)| ends(other) == ends(p));
        own.any(|(_, other)| {
            let progress = self.paths.get(other.own).and_then(|path| path.last_progress);
            progress.is_some_and(|at| at > since)
        })
    }

    /// It is time to try a port, or to look what became of a try.
    pub(crate) fn port_due(&mut self, peer: PeerId) {
        if self.come_home(peer) {
            return;
        }
        let now = self.clock.now();
        let Some(p) = self.peers.get(peer) else { return };
        let (pair, own) = ((p.key.local, p.key.remote), p.own);
        let path = self.paths.get(own);
        if let Some(since) = path.and_then(|path| path.tried_since) {
            // Requests tell by themselves.
            let heard = path.is_some_and(|path| path.heard_at > since) && !self.has_asked(peer);
            if heard && now >= since + PROVEN {
                self.port_carries(own);
            } else {
                let silence = p.leaves_by.and_then(|port| self.silences.get(&(pair, port)));
                let wait = silence.map_or(LAST, |silence| silence.wait);
                self.timers.set(Timer::Port(peer), Some(now + wait.max(PROVEN)));
            }
            return;
        }
        match self.next_try(peer) {
            Some((at, port)) if at <= now => {
                self.leave_by(peer, port);
                if let Some(silence) = self.silences.get_mut(&(pair, port)) {
                    silence.wait = (silence.wait * 2).min(LAST);
                }
                self.timers.set(Timer::Port(peer), Some(now + PROVEN));
            }
            _ => self.try_later(peer),
        }
    }

    /// The peer of a plain path has answered by the port of the bond that the path tries: all that left it
    /// may use it again.
    #[cold]
    pub(crate) fn port_carries(&mut self, path: PathId) {
        let Some(p) = self.paths.get_mut(path) else { return };
        p.tried_since = None;
        let Role::Plain { peer } = p.role else { return };
        let Some(p) = self.peers.get(peer) else { return };
        let (pair, Some(port)) = ((p.key.local, p.key.remote), p.leaves_by) else { return };
        if let Some(silence) = self.silences.get_mut(&(pair, port)) {
            silence.lasts = false;
        }
        let others = self.peers.iter().filter(|(_, other)| {
            (other.key.local, other.key.remote, other.leaves_by) == (pair.0, pair.1, Some(port))
        });
        for (_, other) in others {
            if let Some(path) = self.paths.get_mut(other.own) {
                path.tried_since = None;
            }
        }
        let bond = self.local.ifindex_of(pair.0);
        self.deal(bond);
        self.try_later(peer);
    }

    /// Forgets what is known of ports that bonds do not send by any more, and of peers that are gone.
    pub(crate) fn forget_silences(&mut self) {
        let (local, peers) = (&self.local, &self.peers);
        self.silences.retain(|(pair, port), _| {
            let lag = local.lag(local.ifindex_of(pair.0));
            lag.is_some_and(|lag| lag.sends_by(*port)) && peers.are_between(*pair)
        });
    }
}
