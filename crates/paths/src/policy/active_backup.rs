//! All data uses one path; the others stand by. Linux bonding calls this `active-backup`.

use super::{Choice, PathSet, Policy};
use crate::config::PrimaryReselect;
use crate::types::PathState;
use polypath_types::PathId;

/// The main path carries everything. This is what a policy does by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveBackup;

impl Policy for ActiveBackup {}

/// Decides which path is the main one: it stays while it can carry data and no other is preferred.
pub(super) fn choose(set: &PathSet<'_>) -> Choice {
    let main = set.main();
    // Lower is better. During an outage only a path that answered is taken.
    let rank = |path: PathId| {
        let state = match set.state(path)? {
            PathState::Up => 0,
            PathState::Suspect if !set.is_outage() => 1,
            _ => return None,
        };
        let preferred = (set.is_tcp(path), !set.is_local(path), !set.is_primary(path));
        Some((state, preferred, path != main, path != set.own(), path))
    };
    let best = set.all_members().filter_map(rank).min();
    let Some((best_state, (.., not_primary), .., best)) = best else { return Choice::NoPath };
    let stays =
        !set.is_outage() && set.all_members().any(|path| path == main) && rank(main).is_some();
    if !stays {
        return Choice::Move(best);
    }
    // Nothing that the settings say of interfaces speaks against shared memory, or for TCP.
    let better = set.is_local(best) && !set.is_local(main) || !set.is_tcp(best) && set.is_tcp(main);
    if best_state == 0 && better {
        return Choice::Prefer(best);
    }
    let back = best != main
        && best_state == 0
        && !set.is_local(main)
        && !not_primary
        && !set.is_primary(main)
        && match set.config().primary_reselect {
            PrimaryReselect::Always => true,
            PrimaryReselect::Better => set.speed_mbps(best) > set.speed_mbps(main),
            PrimaryReselect::Failure => false,
        };
    if back { Choice::Prefer(best) } else { Choice::Stay }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::LocalAddresses;
    use crate::association::Association;
    use crate::associations::Associations;
    use crate::config::{Config, LocalAddress, Primary};
    use crate::id::{AssociationId, PathNumber};
    use crate::key::{Nonce, Random};
    use crate::path::{Path, Role};
    use crate::slab::Slab;
    use crate::types::PathAddress;
    use polypath_types::PeerId;

    /// Paths from 10.0.N.1 in the given states, N from 0 on, over interfaces of N gigabits per second.
    struct Set {
        paths: Slab<PathId, Path>,
        members: Vec<PathId>,
        associations: Associations,
        association: AssociationId,
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
                    kind: polypath_types::PathKind::Udp,
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
            let nonces = [1, 2].map(|n| (n, Nonce([n as u8; 16])));
            let mut a = Association::new(nonces[0], nonces[1], 2, PeerId(0));
            for (n, path) in (0..).zip(&members) {
                a.paths[PathNumber(n)] = Some(*path);
            }
            let mut associations = Associations::new(1);
            let association = associations.insert(a, &mut Random::new([0; 16])).unwrap();
            Self { paths, members, associations, association, local, config }
        }

        fn reselect(&self, active: usize, outage: bool) -> Choice {
            let set = PathSet {
                association: Some(self.association),
                own: self.members[0],
                main: self.members[active],
                outage,
                associations: &self.associations,
                paths: &self.paths,
                local: &self.local,
                config: &self.config,
                now: core::time::Duration::ZERO,
            };
            ActiveBackup.reselect(&set)
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
