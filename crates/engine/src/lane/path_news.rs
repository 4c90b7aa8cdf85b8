//! Records the path manager's decisions for the user.

use polypath_paths::{PathAddress, PathEvent, PathId, PathKind, PathManager, Reason};
use polypath_telemetry::{Event, InterfaceName, Micros, MigrationCause, PathName, Qpn};
use polypath_transport::{MigrationNews, PeerId};
use polypath_verbs::Error;

use crate::lane::LaneIo;
use crate::lane::path_book::Untold;

impl LaneIo {
    /// Records an event of the path manager.
    pub(super) fn note_path_event(&mut self, paths: &PathManager, event: &PathEvent) {
        if let PathEvent::ChannelWanted { slot } = *event
            && let Some(exchange) = &self.exchange
        {
            exchange.want(slot);
            self.journal.call();
        }
        if let PathEvent::StreamWanted { ends } = *event
            && let Some(streams) = &self.streams
        {
            streams.want(ends);
            self.journal.call();
        }
        let name = |path| self.name_of(paths, path);
        let remote = |peer: PeerId| {
            let unknown = std::net::Ipv4Addr::UNSPECIFIED.into();
            paths.remote_of(peer).unwrap_or(unknown)
        };
        let event = match *event {
            // An association begins or ends; nothing has failed.
            PathEvent::ActiveChanged { reason: Reason::Association, .. } => return,
            // Nothing has moved, and nothing is held, if all have migrated to another path, or keep this
            // one in reserve.
            PathEvent::ActiveChanged { peer, from: None, .. }
            | PathEvent::NoPath { peer }
            | PathEvent::PeerLost { peer }
                if paths.qpns_of(peer).next().is_none() =>
            {
                return;
            }
            PathEvent::ActiveChanged { peer, from, to, reason } => {
                let (peer, from, to) = (remote(peer), from.map(name), name(to));
                Event::FailOver { peer, from, to, reason }
            }
            PathEvent::NoPath { peer } => Event::NoPath { peer: remote(peer) },
            PathEvent::PeerLost { peer } => Event::PeerLost { peer: remote(peer) },
            PathEvent::Resumed { peer, blackout, reason } => {
                let blackout_us = Micros(u64::try_from(blackout.as_micros()).unwrap_or(u64::MAX));
                Event::TrafficResumed { peer: remote(peer), blackout_us, reason }
            }
            PathEvent::PathDead { path, reason } => Event::PathGivenUp { path: name(path), reason },
            PathEvent::Detour { qpn, from, to } => {
                Event::Detour { qpn: Qpn(qpn), from: name(from), to: name(to) }
            }
            PathEvent::PathAlive { path } => Event::PathUp { path: name(path) },
            PathEvent::Repathed { path, from, to } => {
                Event::PathRepathed { path: name(path), from, to }
            }
            PathEvent::PortChanged { path, from } => {
                self.port_changed(path, &from);
                return;
            }
            PathEvent::MultipathAgreed { .. }
            | PathEvent::WindowOpened { .. }
            | PathEvent::PathHeard { .. }
            | PathEvent::Moved { .. }
            | PathEvent::ChannelWanted { .. }
            | PathEvent::StreamWanted { .. }
            | PathEvent::Overflow => return,
        };
        self.note(event);
    }

    /// Tells the broker and its users that a queue pair gets no alternate path.
    pub(crate) fn refuse_alternate(&mut self, qpn: u32, error: &Error) {
        self.paths.tell(qpn, Untold::Failed);
        self.note(Event::AlternateRefused { qpn: Qpn(qpn), text: error.to_string() });
    }

    /// Records what happened to the two paths of a queue pair.
    pub(super) fn note_migration(&mut self, paths: &PathManager, qpn: u32, news: MigrationNews) {
        let both = paths.both_paths(qpn);
        let alternate = both[1].map(|path| self.name_of(paths, path));
        // The path set of a multi-path peer is none of the connection manager's business.
        if news == MigrationNews::PathSet || !paths.is_agreed(qpn) {
            self.paths.note(qpn, news);
            self.journal.call();
        }
        let qpn = Qpn(qpn);
        self.note(match news {
            MigrationNews::Migrated(cause) => self.migrated(paths, qpn, both, cause),
            MigrationNews::Moved { from, to, cause } => {
                self.migrated(paths, qpn, [from, to].map(Some), cause)
            }
            MigrationNews::PathSet => return,
            MigrationNews::Armed => Event::MigrationArmed { qpn, alternate },
            MigrationNews::Failed => Event::MigrationFailed { qpn, alternate },
            MigrationNews::AlternateLost => Event::AlternateLost { qpn, alternate },
            // For the connection manager, which may know another path; the peer may only be late.
            MigrationNews::Unproven => return,
        });
    }

    /// The event of a migration from the first path to the second.
    fn migrated(
        &self,
        paths: &PathManager,
        qpn: Qpn,
        both: [Option<PathId>; 2],
        cause: MigrationCause,
    ) -> Event {
        let port = |path| self.known_address(paths, path).map(|address| address.source_port);
        let [from, to] = both.map(|path| path.map(|path| self.name_of(paths, path)));
        match (from, both.map(|path| path.and_then(port))) {
            (Some(path), [Some(from_port), Some(to_port)])
                if from == to && from_port != to_port =>
            {
                Event::MigratedToPort { qpn, path, from: from_port, to: to_port, cause }
            }
            _ => Event::Migrated { qpn, from, to, cause },
        }
    }

    /// The address of a path. If the path has left the set, it is the one that packets were last sent by
    /// under its number.
    fn known_address<'a>(
        &'a self,
        paths: &'a PathManager,
        path: PathId,
    ) -> Option<&'a PathAddress> {
        paths.path(path).or_else(|| self.last_address(path)).or_else(|| paths.former_address(path))
    }

    /// The name of a path. If its address is not known, the number takes the interface's place.
    fn name_of(&self, paths: &PathManager, path: PathId) -> PathName {
        self.known_address(paths, path).map_or_else(
            || PathName {
                local: std::net::Ipv4Addr::UNSPECIFIED.into(),
                remote: std::net::Ipv4Addr::UNSPECIFIED.into(),
                interface: InterfaceName::of_number("#", path.0),
            },
            |address| self.path_name(address),
        )
    }

    /// The name of the path with this address.
    pub(super) fn path_name(&self, address: &PathAddress) -> PathName {
        let PathAddress { local, remote, ifindex, kind, .. } = *address;
        let interface = match kind {
            PathKind::Udp => self.interface(self.own_port(address).unwrap_or(ifindex)),
            PathKind::Tcp { .. } => self.interface(ifindex),
            PathKind::Local { .. } => InterfaceName::new(polypath_topology::LOCAL),
        };
        PathName { local, remote, interface }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::lane::{still_io, still_paths};

    #[test]
    fn a_migration_names_the_ports_if_nothing_else_differs() {
        let (mut io, mut paths) = (still_io(), still_paths(7));
        let now = io.now;
        let mut path = |last, flow_label| {
            let (local, remote) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, last));
            let options = polypath_paths::PathOptions { flow_label, ..Default::default() };
            let path = paths.ud_path(now, local.into(), remote.into(), options).unwrap();
            (path, paths.path(path).unwrap().source_port)
        };
        let [(from, from_port), (to, to_port), (far, _)] = [path(2, 1), path(2, 2), path(3, 1)];
        for to in [to, far] {
            let news = MigrationNews::Moved { from, to, cause: MigrationCause::Software };
            io.note_migration(&paths, 7, news);
        }
        let said = io.journal.notes().map(|noted| noted.news.to_string()).collect::<Vec<_>>();
        let remote = |last| IpAddr::from([10, 0, 0, last]).to_string();
        let ports = format!("from source port {from_port} to {to_port} of ");
        assert!(said[0].contains(&ports) && said[0].contains(&remote(2)), "{said:?}");
        assert!(!said[1].contains("port") && said[1].contains(&remote(3)), "{said:?}");
    }
}
