//! All data by one path; the others stand by. Linux bonding calls it `active-backup`.

use super::{Choice, PathSet, Policy};
use crate::config::PrimaryReselect;
use crate::path::Path;
use crate::slab::Slab;
use crate::types::PathState;
use polypath_types::PathId;

/// The path in use, or that was in use when the last one died.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveBackup {
    active: PathId,
}

impl ActiveBackup {
    pub(crate) fn new(path: PathId) -> Self {
        Self { active: path }
    }
}

impl Policy for ActiveBackup {
    #[inline]
    fn main(&self) -> PathId {
        self.active
    }

    #[inline]
    fn pick(&mut self, _: &Slab<PathId, Path>) -> PathId {
        self.active
    }

    #[inline]
    fn uses(&self, path: PathId) -> bool {
        self.active == path
    }

    fn reselect(&mut self, set: &PathSet<'_>) -> Choice {
        let active = self.active;
        // Lower is better. During an outage only a path that answered will do.
        let rank = |path: PathId| {
            let state = match set.state(path)? {
                PathState::Up => 0,
                PathState::Suspect if !set.outage => 1,
                _ => return None,
            };
            Some((state, !set.is_primary(path), path != active, path != set.own, path))
        };
        let best = set.members.iter().filter_map(|p| rank(*p)).min();
        let Some((best_state, not_primary, .., best)) = best else { return Choice::NoPath };
        let stays = !set.outage && set.members.contains(&active) && rank(active).is_some();
        if !stays {
            return Choice::Move(best);
        }
        let back = best != active
            && best_state == 0
            && !not_primary
            && !set.is_primary(active)
            && match set.config.primary_reselect {
                PrimaryReselect::Always => true,
                PrimaryReselect::Better => set.speed_mbps(best) > set.speed_mbps(active),
                PrimaryReselect::Failure => false,
            };
        if back { Choice::Prefer(best) } else { Choice::Stay }
    }

    fn set_main(&mut self, path: PathId) {
        self.active = path;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::LocalAddresses;
    use crate::config::{Config, LocalAddress, Primary};
    use crate::path::Role;
    use crate::types::PathAddress;

    /// Paths from 10.0.N.1 in these states, N from 0 on, over interfaces of N gigabits per second.
    struct Set {
        paths: Slab<PathId, Path>,
        members: Vec<PathId>,
        local: LocalAddresses,
        config: Config,
    }

    impl Set {
        fn new(states: &[PathState]) -> Self {
            let config = Config::default();
            let (mut paths, mut list) = (Slab::new(8), Vec::new());
            let mut members = Vec::new();
            for (n, &state) in (0u8..).zip(states) {
                let ip = |host| core::net::IpAddr::from([10, 0, n, host]);
                let address = PathAddress {
                    local: ip(1),
                    remote: ip(2),
                    ifindex: u32::from(n) + 2,
                    source_port: 0xc000,
                    traffic_class: 0,
                    hop_limit: 64,
                    flow_label: 0,
                };
                let mut path = Path::new(address, Role::Datagram, &config);
                path.state = state;
                members.push(paths.insert(path).unwrap());
                list.push(LocalAddress {
                    ip: ip(1),
                    prefix_len: 24,
                    ifindex: u32::from(n) + 2,
                    link_up: true,
                    usable: true,
                    speed_mbps: u32::from(n) * 1000,
                });
            }
            let mut local = LocalAddresses::default();
            local.set(&list);
            Self { paths, members, local, config }
        }

        fn reselect(&self, active: usize, outage: bool) -> Choice {
            let set = PathSet {
                members: &self.members,
                own: self.members[0],
                outage,
                paths: &self.paths,
                local: &self.local,
                config: &self.config,
            };
            ActiveBackup::new(self.members[active]).reselect(&set)
        }
    }

    #[test]
    fn data_stays_while_its_path_can_carry_it() {
        let set = Set::new(&[PathState::Up, PathState::Suspect, PathState::Up]);
        assert_eq!(set.reselect(1, false), Choice::Stay);
        assert_eq!(set.reselect(2, false), Choice::Stay);
    }

    #[test]
    fn data_moves_to_the_best_that_is_left_and_first_to_the_peers_own() {
        let set = Set::new(&[PathState::Up, PathState::Dead, PathState::Up]);
        assert_eq!(set.reselect(1, false), Choice::Move(set.members[0]));
        let set = Set::new(&[PathState::Suspect, PathState::Dead, PathState::Up]);
        assert_eq!(set.reselect(1, false), Choice::Move(set.members[2]));
        let set = Set::new(&[PathState::Suspect, PathState::Down, PathState::Recovering]);
        assert_eq!(set.reselect(1, false), Choice::Move(set.members[0]));
    }

    #[test]
    fn an_outage_ends_on_a_path_that_answered_only() {
        let set = Set::new(&[PathState::Suspect, PathState::Probing, PathState::Dead]);
        assert_eq!(set.reselect(0, true), Choice::NoPath);
        let set = Set::new(&[PathState::Suspect, PathState::Up, PathState::Dead]);
        assert_eq!(set.reselect(0, true), Choice::Move(set.members[1]));
        let set = Set::new(&[PathState::Up, PathState::Up, PathState::Dead]);
        assert_eq!(set.reselect(1, true), Choice::Move(set.members[1]), "it was in use");
    }

    #[test]
    fn the_primary_is_preferred_as_the_settings_say() {
        let mut set = Set::new(&[PathState::Up, PathState::Up, PathState::Up]);
        set.config.primary = Some(Primary::Interface(3));
        for (reselect, active, want) in [
            (PrimaryReselect::Always, 0, Choice::Prefer(set.members[1])),
            (PrimaryReselect::Always, 2, Choice::Prefer(set.members[1])),
            (PrimaryReselect::Better, 0, Choice::Prefer(set.members[1])),
            (PrimaryReselect::Better, 2, Choice::Stay),
            (PrimaryReselect::Failure, 0, Choice::Stay),
            (PrimaryReselect::Always, 1, Choice::Stay),
        ] {
            set.config.primary_reselect = reselect;
            assert_eq!(set.reselect(active, false), want, "{reselect:?} from {active}");
        }
    }
}
