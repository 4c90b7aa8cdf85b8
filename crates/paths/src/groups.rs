//! Datagrams to multicast groups. A group has no paths that prove themselves, so all that is known of the
//! way there is the link that a datagram leaves by. If that one is down, the datagram leaves by another
//! one: members listen on all links of a multi-path device.

use core::net::IpAddr;
use core::time::Duration;

use polypath_types::PathId;

use crate::bytes::is_link_local;
use crate::manager::PathManager;
use crate::path::Path;

impl PathManager {
    /// Where a datagram to a group goes now, by the path of an address handle.
    pub(crate) fn group_route(&mut self, now: Duration, path: PathId) -> PathId {
        let usable = |this: &Self, path| this.paths.get(path).is_some_and(Path::usable);
        if usable(self, path) {
            self.release_stand_in(path);
            return path;
        }
        let key = self.ud.key_of(path).filter(|key| key.options.multipath && self.config.multipath);
        let Some(key) = key else { return path };
        if let Some(other) = self.ud.stand_in(path).filter(|other| usable(self, *other)) {
            return other;
        }
        let suits = |ip: &IpAddr| {
            let same = (ip.is_ipv4(), is_link_local(*ip))
                == (key.local.is_ipv4(), is_link_local(key.local));
            same && !ip.is_loopback() && self.local.fault(*ip, key.remote).is_none()
        };
        let Some(local) = self.local.list().iter().map(|a| a.ip).find(suits) else { return path };
        self.release_stand_in(path);
        let Ok(other) = self.ud_path(now, local, key.remote, key.options) else { return path };
        // It is usable, so it needs none itself. Two that stood in for each other would never end.
        self.release_stand_in(other);
        self.ud.set_stand_in(path, other);
        other
    }

    /// What stood in for a path is not needed any more.
    pub(crate) fn release_stand_in(&mut self, path: PathId) {
        if let Some(other) = self.ud.take_stand_in(path) {
            self.release_ud(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, LaneIdentity, LocalAddress, PathOptions};

    const NOW: Duration = Duration::ZERO;
    const GROUP: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(239, 1, 2, 3));

    fn ip(net: u8) -> IpAddr {
        [10, 0, net, 1].into()
    }

    fn links(paths: &mut PathManager, up: [bool; 3]) {
        let list = [0, 1, 2].map(|n| LocalAddress {
            ip: ip(n),
            prefix_len: 24,
            ifindex: u32::from(n) + 2,
            link_up: up[usize::from(n)],
            usable: true,
            speed_mbps: 0,
        });
        paths.set_local(NOW, &list);
        assert_eq!(paths.check(), Ok(()));
    }

    fn manager() -> PathManager {
        let lane = LaneIdentity { instance: 1, slot: 1 };
        let mut paths = PathManager::new(Config::default(), lane, [0; 16]);
        links(&mut paths, [true; 3]);
        paths
    }

    /// The address that a datagram to the group leaves by.
    fn leaves_by(paths: &mut PathManager, path: PathId) -> IpAddr {
        let by = paths.ud_route_to(NOW, path, 0xff_ffff);
        assert_eq!(paths.check(), Ok(()));
        paths.path(by).unwrap().local
    }

    #[test]
    fn what_is_for_a_group_leaves_by_a_link_that_is_up() {
        let mut paths = manager();
        let [own, plain] = [true, false].map(|multipath| {
            let options = PathOptions { multipath, ..PathOptions::default() };
            paths.ud_path(NOW, ip(0), GROUP, options).unwrap()
        });
        for (up, by) in [
            ([true, true, true], 0),
            ([false, true, true], 1),
            ([false, false, true], 2),
            ([false, true, true], 2),
            ([true, true, true], 0),
            ([false, false, false], 0),
            ([false, true, false], 1),
        ] {
            links(&mut paths, up);
            assert_eq!((leaves_by(&mut paths, own), leaves_by(&mut paths, plain)), (ip(by), ip(0)));
        }
        paths.release_ud(own);
        paths.release_ud(plain);
        assert_eq!((paths.check(), paths.path_ids().count()), (Ok(()), 0));
    }

    /// Each stands in for the other one in turn, and is in use itself.
    #[test]
    fn paths_that_stand_in_for_each_other_end_with_their_handles() {
        let mut paths = manager();
        let path = |paths: &mut PathManager, n| {
            let options = PathOptions { multipath: true, ..PathOptions::default() };
            paths.ud_path(NOW, ip(n), GROUP, options).unwrap()
        };
        let own = [0, 1].map(|n| path(&mut paths, n));
        for round in 0..4 {
            let up = round % 2 == 0;
            links(&mut paths, [up, !up, false]);
            let by = ip(u8::from(!up));
            // Sometimes only one of them is used.
            for (n, own) in own.into_iter().enumerate() {
                if round < 2 || n == round % 2 {
                    assert_eq!(leaves_by(&mut paths, own), by, "round {round}, {n}");
                }
            }
        }
        for own in own {
            paths.release_ud(own);
        }
        assert_eq!((paths.check(), paths.path_ids().count()), (Ok(()), 0));
    }
}
