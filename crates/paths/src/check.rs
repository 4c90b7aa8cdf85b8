//! What must hold for the path manager's tables between any two calls, for simulators and tests.

use crate::manager::{MAX_CONTROL_QUEUE, MAX_EVENTS, PathManager};
use crate::path::{Path, Role};
use crate::peers::Peer;
use crate::timers::Timer;
use crate::types::PathState;
use polypath_types::{PathId, PeerId};

/// Returns an error unless the condition holds.
macro_rules! hold {
    ($so:expr, $($what:tt)+) => {
        if !$so {
            return Err(format!($($what)+));
        }
    };
}

impl PathManager {
    /// Whether an event waits to be taken: what depends on it is not so yet.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Checks whether the tables agree with each other. Takes time in proportion to their size.
    ///
    /// # Errors
    /// They do not agree; the text says how.
    pub fn check(&self) -> Result<(), String> {
        self.check_peers()?;
        self.check_associations()?;
        self.check_paths()?;
        self.timers.check()?;
        self.lane_pairs.check()?;
        for timer in self.timers.owners() {
            let there = match timer {
                Timer::Association(a) => self.associations.get(a).is_some(),
                Timer::Hello(qpn) | Timer::LanePair(qpn) => self.qps.contains_key(&qpn),
                Timer::Hold(peer) | Timer::Port(peer) => self.peers.get(peer).is_some(),
                Timer::DownDelay(path) | Timer::Stream(path) => self.paths.get(path).is_some(),
            };
            hold!(there, "{timer:?} is set, its owner is gone");
        }
        let (out, events) = self.queued();
        hold!(out <= MAX_CONTROL_QUEUE, "{out} control packets wait");
        hold!(events <= MAX_EVENTS + 1, "{events} events wait");
        Ok(())
    }

    fn check_peers(&self) -> Result<(), String> {
        self.peers.check()?;
        for (index, peer) in self.peers.iter() {
            for qpn in &peer.qpns {
                let qp = self.qps.get(qpn);
                hold!(
                    qp.is_some_and(|qp| qp.peer == index),
                    "queue pair {qpn:#x} is not of {index:?}"
                );
            }
            for qpn in &peer.reserved {
                let alternate = self.qps.get(qpn).and_then(|qp| qp.alternate);
                hold!(alternate == Some(index), "{index:?} is not the alternate of {qpn:#x}");
            }
            self.check_peer(index, peer)?;
        }
        for (qpn, qp) in &self.qps {
            let peer = self.peers.get(qp.peer);
            hold!(
                peer.is_some_and(|p| p.qpns.contains(qpn)),
                "queue pair {qpn:#x} is unknown to its peer {:?}",
                qp.peer
            );
            let alternate = qp.alternate.map(|peer| self.peers.get(peer));
            hold!(
                alternate.is_none_or(|p| p.is_some_and(|p| p.reserved.contains(qpn))),
                "queue pair {qpn:#x} is unknown to its alternate {:?}",
                qp.alternate
            );
        }
        Ok(())
    }

    /// What [`Peer`] promises.
    fn check_peer(&self, index: PeerId, peer: &Peer) -> Result<(), String> {
        hold!(self.paths.get(peer.own).is_some(), "the own path of {index:?} is gone");
        let Some(main) = self.paths.get(peer.main) else {
            return Err(format!("the main path of {index:?} is gone"));
        };
        let (association, pending) = (peer.association, peer.pending);
        for a in association.into_iter().chain(pending) {
            hold!(self.associations.get(a).is_some(), "an association of {index:?} is gone");
        }
        hold!(
            pending.is_none() || association != pending,
            "{index:?} has joined {pending:?}, and waits for it"
        );
        let of_association = match main.role {
            Role::Member { association: of, .. } => association == Some(of),
            Role::Plain { .. } | Role::Datagram => false,
        };
        hold!(
            peer.main == peer.own || of_association,
            "{index:?} of {association:?} uses a path that is {:?}",
            main.role
        );
        let left_set = association.is_some() && !of_association;
        let legal = match peer.outage {
            None => main.usable(),
            Some(_) => main.state != PathState::Up || left_set,
        };
        hold!(legal, "{index:?} has {:?}, its main path is {}", peer.outage, main.state);
        let timed = self.timers.owners().any(|timer| timer == Timer::Hold(index));
        hold!(timed == peer.is_held(), "{index:?} has {:?}, hold timer: {timed}", peer.outage);
        hold!(peer.plain || !peer.unheard, "{index:?} is unheard, and not taken for a plain one");
        hold!(
            !(peer.plain && association.is_some()),
            "{index:?} is known as plain, and has {association:?}"
        );
        hold!(
            !peer.qpns.is_empty() || !peer.reserved.is_empty() || association.is_some(),
            "{index:?} has neither queue pairs nor an association"
        );
        let load = self.load_of(peer);
        hold!(peer.load == load, "{index:?} counts for {:?}, and has {load:?}", peer.load);
        peer.own_policies.check()?;
        for qpn in peer.own_policies.owners() {
            hold!(peer.qpns.contains(&qpn), "the policy of {qpn:#x} is not of {index:?}");
        }
        hold!(
            peer.unagreed.is_subset(&peer.qpns),
            "{index:?} has {:?}, and no agreement for {:?}",
            peer.qpns,
            peer.unagreed
        );
        for (qpn, detour) in &peer.detours {
            hold!(peer.qpns.contains(qpn), "the detour of {qpn:#x} is not of {index:?}");
            let role = self.paths.get(detour.path).map(|path| path.role);
            hold!(
                matches!(role, Some(Role::Member { association: of, .. }) if association == Some(of)),
                "{qpn:#x} of {association:?} has a detour by a path that is {role:?}"
            );
        }
        Ok(())
    }

    fn check_associations(&self) -> Result<(), String> {
        self.associations.check()?;
        for (index, a) in self.associations.iter() {
            hold!(!a.confirmed || a.remote_window > 0, "{index:?} began without the peer's window");
            for &peer in &a.peers {
                let back = self.peers.get(peer).and_then(|p| p.association);
                hold!(back == Some(index), "{index:?} has {peer:?}, which has {back:?}");
            }
            for (id, path) in a.paths() {
                let role = self.paths.get(path).map(|p| p.role);
                let member = Role::Member { association: index, id };
                hold!(role == Some(member), "{path:?} is {role:?} instead of {member:?}");
            }
        }
        for (index, peer) in self.peers.iter() {
            let a = peer.association.and_then(|a| self.associations.get(a));
            hold!(
                a.is_none_or(|a| a.peers.contains(&index)),
                "{index:?} is unknown to its association"
            );
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), String> {
        self.paths.check()?;
        self.ud.check()?;
        for (index, path) in self.paths.iter() {
            let known = match path.role {
                Role::Datagram => self.ud.contains(index),
                Role::Plain { peer } => self.peers.get(peer).is_some_and(|p| p.own == index),
                Role::Member { association, id } => {
                    self.associations.get(association).is_some_and(|a| a.paths[id] == Some(index))
                }
            };
            hold!(known, "nobody knows {index:?}, {:?}", path.role);
            if path.role != Role::Datagram {
                let own = self.peers.iter().filter(|(_, p)| p.own == index).count();
                let member =
                    self.associations.iter().flat_map(|(_, a)| a.paths()).filter(|m| m.1 == index);
                let users = own + member.count();
                hold!(path.users as usize == users, "{index:?}: {} users, of {users}", path.users);
            }
            let redirect = path.redirect;
            hold!(
                redirect.is_none_or(|to| self.paths.get(to).is_some()),
                "{index:?} leads to {redirect:?}, which is gone"
            );
            check_path(path).map_err(|what| format!("{index:?}: {what}"))?;
        }
        Ok(())
    }

    /// Bytes that count against the window of a path.
    pub fn in_flight(&self, path: PathId) -> Option<u32> {
        Some(self.paths.get(path)?.congestion.in_flight())
    }

    /// The paths that may carry traffic.
    pub fn alive(&self) -> impl Iterator<Item = PathId> + '_ {
        self.paths.iter().filter(|(_, p)| p.usable()).map(|(i, _)| i)
    }

    /// All paths.
    pub fn path_ids(&self) -> impl Iterator<Item = PathId> + '_ {
        self.paths.iter().map(|(index, _)| index)
    }
}

/// What [`Path`] promises.
fn check_path(path: &Path) -> Result<(), String> {
    let (role, state) = (path.role, path.state);
    let legal = match (role, state) {
        (Role::Member { .. }, _) | (_, PathState::Up | PathState::Down) => true,
        (Role::Plain { .. } | Role::Datagram, _) => false,
    };
    hold!(legal, "{role:?} is {state}");
    let users = match role {
        Role::Plain { .. } => 1..=1,
        Role::Member { .. } => 1..=2,
        Role::Datagram => 1..=u32::MAX,
    };
    hold!(users.contains(&path.users), "{role:?} has {} users", path.users);
    let redirect = path.redirect;
    hold!(redirect.is_none() || role == Role::Datagram, "{role:?} leads to {redirect:?}");
    let explained = match state {
        PathState::Up | PathState::Suspect => path.reason.is_none(),
        PathState::Dead | PathState::Recovering | PathState::Down => path.reason.is_some(),
        PathState::Probing => true,
    };
    let twice = &path.twice;
    hold!(twice.is_consistent(), "what was sent by two paths does not add up: {twice:?}");
    let known = matches!(role, Role::Member { .. }) && path.usable();
    hold!(known || twice.bytes() == 0, "{} bytes wait for ever", twice.bytes());
    hold!(explained, "it is {state} because of {:?}", path.reason);
    Ok(())
}
