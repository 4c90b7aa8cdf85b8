//! What tests see of the hosts.

use polypath_paths::*;

use super::{Net, ip};

impl Net {
    pub(crate) fn agreed(&self) -> bool {
        (0..2).all(|h| self.has(h, |e| matches!(e, PathEvent::MultipathAgreed { .. })))
    }

    pub(crate) fn has(&self, host: usize, what: impl Fn(&PathEvent) -> bool) -> bool {
        self.hosts[host].events.iter().any(|(_, e)| what(e))
    }

    pub(crate) fn count(&self, host: usize, what: impl Fn(&PathEvent) -> bool) -> usize {
        self.hosts[host].events.iter().filter(|(_, e)| what(e)).count()
    }

    pub(crate) fn deaths(&self) -> usize {
        (0..2).map(|h| self.count(h, |e| matches!(e, PathEvent::PathDead { .. }))).sum()
    }

    /// The paths to the peer, in the order of their numbers.
    pub(crate) fn paths(&self, host: usize) -> Vec<PathStatus> {
        let mut paths = self.hosts[host].paths.status().peers[0].paths.clone();
        paths.sort_by_key(|path| path.tag.map(|tag| tag.id));
        paths
    }

    pub(crate) fn up_paths(&self, host: usize) -> usize {
        let status = self.hosts[host].paths.status();
        let up = |p: &&PathStatus| p.state == PathState::Up;
        status.peers[0].paths.iter().filter(up).count()
    }

    pub(crate) fn forget_events(&mut self) {
        for h in &mut self.hosts {
            h.events.clear();
        }
    }

    /// The link that a host sends on.
    pub(crate) fn active_link(&mut self, host: usize) -> Option<usize> {
        let h = &mut self.hosts[host];
        let route = h.paths.route(h.peer?)?;
        let local = h.paths.path(route.path)?.local;
        (0..self.links.len()).find(|l| ip(*l, host) == local)
    }

    /// Both ends know the same paths by the same numbers.
    pub(crate) fn assert_same_paths(&self) {
        let list = |h: usize| {
            let mut list: Vec<_> = self.hosts[h].paths.status().peers[0]
                .paths
                .iter()
                .map(|p| {
                    let a = p.address;
                    let ends = if h == 0 { (a.local, a.remote) } else { (a.remote, a.local) };
                    (p.tag, ends)
                })
                .collect();
            list.sort_by_key(|(tag, _)| tag.map(|t| t.id));
            list
        };
        assert_eq!(list(0), list(1));
    }

    pub(crate) fn refused(&self, host: usize, why: Refused) -> u64 {
        let r = self.hosts[host].paths.refusals();
        match why {
            Refused::Authentication => r.authentication,
            Refused::Replay => r.replay,
            Refused::Generation => r.generation,
            Refused::NoAssociation => r.no_association,
            Refused::UnknownSource => r.unknown_source,
            _ => panic!("not counted here"),
        }
    }
}
