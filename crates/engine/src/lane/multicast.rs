//! Multicast: the groups that the lane's socket has joined on each interface, and the queue pairs
//! that receive from them.
//!
//! The kernel delivers a multicast datagram to every socket that joined the group on the interface
//! that the datagram arrived on. So each lane's socket joins once for all its queue pairs. Queue
//! pairs of a lane may belong to different devices, and each receives only from its device's
//! interfaces. When a device gains interfaces, its queue pairs join there, too.

use std::collections::HashMap;
use std::net::IpAddr;

use polypath_verbs::{Error, Result};

use super::group_copies::GroupCopies;
use super::memberships::Memberships;
use super::{Lane, State};

/// A queue pair in a group.
#[derive(Debug)]
struct Member {
    index: u16,
    /// The interfaces on which the socket has joined for it.
    interfaces: Vec<u32>,
}

/// The groups of a lane.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: HashMap<IpAddr, Vec<Member>>,
    /// The number of queue pairs for which the socket has joined a group on an interface.
    joined: HashMap<(IpAddr, u32), u32>,
    memberships: Memberships,
    pub(super) copies: GroupCopies,
}

impl Groups {
    /// The queue pairs that receive what arrived for a group on an interface, and each of the interfaces that
    /// it listens on beside that one.
    pub(crate) fn listeners(&self, group: IpAddr, ifindex: u32) -> Vec<(u16, Vec<u32>)> {
        let members = self.members.get(&group).map(Vec::as_slice).unwrap_or_default();
        let hears = |member: &&Member| member.interfaces.contains(&ifindex);
        let others = |member: &Member| {
            member.interfaces.iter().copied().filter(|other| *other != ifindex).collect()
        };
        members.iter().filter(hears).map(|member| (member.index, others(member))).collect()
    }

    /// Adds a queue pair on those of the interfaces that `membership` can join. `membership` is
    /// called only for interfaces that were not joined for another queue pair.
    fn join(
        &mut self,
        group: IpAddr,
        index: u16,
        interfaces: &[u32],
        mut membership: impl FnMut(&mut Memberships, u32) -> Result<()>,
    ) -> Result<()> {
        let mut mine = Vec::new();
        let mut refused = Error::new(libc::ENODEV, "the device has no interface now");
        for &ifindex in interfaces {
            if !self.joined.contains_key(&(group, ifindex))
                && let Err(error) = membership(&mut self.memberships, ifindex)
            {
                refused = error;
                continue;
            }
            *self.joined.entry((group, ifindex)).or_insert(0) += 1;
            mine.push(ifindex);
        }
        if mine.is_empty() {
            return Err(refused);
        }
        self.members.entry(group).or_default().push(Member { index, interfaces: mine });
        Ok(())
    }

    /// Has each queue pair in the groups of those interfaces that its device has now. `interfaces`: of a
    /// queue pair. `membership` joins or leaves a group on an interface, and says whether that was done.
    fn follow(
        &mut self,
        interfaces: impl Fn(u16) -> Vec<u32>,
        mut membership: impl FnMut(&mut Memberships, IpAddr, u32, bool) -> bool,
    ) {
        let Self { members, joined, memberships, .. } = self;
        for (&group, members) in members {
            for member in members {
                let now = interfaces(member.index);
                for gone in member.interfaces.extract_if(.., |ifindex| !now.contains(ifindex)) {
                    if is_last(joined, (group, gone)) {
                        membership(memberships, group, gone, false);
                    }
                }
                for ifindex in now {
                    if member.interfaces.contains(&ifindex) {
                        continue;
                    }
                    // What can't be joined yet is tried again at the next change.
                    if joined.contains_key(&(group, ifindex))
                        || membership(memberships, group, ifindex, true)
                    {
                        *joined.entry((group, ifindex)).or_insert(0) += 1;
                        member.interfaces.push(ifindex);
                    }
                }
            }
        }
    }

    /// Forgets on which interfaces the socket has joined, because there will be another socket.
    pub(super) fn forget_interfaces(&mut self) {
        self.joined.clear();
        self.memberships = Memberships::default();
        self.members.values_mut().flatten().for_each(|member| member.interfaces.clear());
    }

    /// Removes a queue pair. Returns the interfaces on which no other queue pair is in the group.
    fn leave(&mut self, group: IpAddr, index: u16) -> Vec<u32> {
        let Some(members) = self.members.get_mut(&group) else { return Vec::new() };
        let Some(at) = members.iter().position(|member| member.index == index) else {
            return Vec::new();
        };
        let mut last = members.swap_remove(at).interfaces;
        if members.is_empty() {
            self.members.remove(&group);
        }
        last.retain(|ifindex| is_last(&mut self.joined, (group, *ifindex)));
        last
    }
}

/// A queue pair leaves a group on an interface. Returns whether no other one is there.
fn is_last(joined: &mut HashMap<(IpAddr, u32), u32>, at: (IpAddr, u32)) -> bool {
    let Some(users) = joined.get_mut(&at) else { return false };
    *users -= 1;
    let unused = *users == 0;
    if unused {
        joined.remove(&at);
    }
    unused
}

impl State {
    /// Attaches a queue pair to a group on these interfaces.
    pub(crate) fn join(&mut self, group: IpAddr, index: u16, interfaces: &[u32]) -> Result<()> {
        let socket = self.slot_socket();
        self.groups.join(group, index, interfaces, |memberships, ifindex| {
            let Some(socket) = socket else { return Ok(()) };
            memberships.join(socket, group, ifindex).map_err(|e| {
                Error::new(
                    e.raw_os_error().unwrap_or(libc::EIO),
                    format!("cannot join {group} on interface {ifindex}: {e}"),
                )
            })
        })
    }

    /// Detaches a queue pair from a group.
    pub(crate) fn leave(&mut self, group: IpAddr, index: u16) {
        let socket = self.slot_socket();
        for ifindex in self.groups.leave(group, index) {
            if let Some(socket) = socket {
                // The membership ended with the interface if that is gone.
                let _ = self.groups.memberships.leave(socket, group, ifindex);
            }
        }
    }
}

impl Lane {
    /// The interfaces of devices have changed: queue pairs join their groups on new ones.
    pub(crate) fn follow_groups(&self) {
        if !self.has_failed() {
            self.enter(|state| {
                let socket = state.slot_socket();
                let State { core, groups, .. } = state;
                let interfaces = |index| {
                    let entry = core.qps().get(index);
                    entry.map_or_else(Vec::new, |e| e.own.context.spec().members().collect())
                };
                groups.follow(interfaces, |memberships, group, ifindex, join| {
                    let Some(socket) = socket else { return true };
                    let done = match join {
                        true => memberships.join(socket, group, ifindex),
                        false => memberships.leave(socket, group, ifindex),
                    };
                    done.is_ok()
                });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> IpAddr {
        [239, 1, 2, 3].into()
    }

    fn listeners(groups: &Groups, ifindex: u32) -> Vec<u16> {
        groups.listeners(group(), ifindex).into_iter().map(|(index, _)| index).collect()
    }

    /// Joins, and returns the interfaces on which the socket had to join.
    fn join(groups: &mut Groups, index: u16, interfaces: &[u32]) -> Vec<u32> {
        let mut asked = Vec::new();
        let done = groups.join(group(), index, interfaces, |_, ifindex| {
            asked.push(ifindex);
            Ok(())
        });
        done.unwrap();
        asked
    }

    #[test]
    fn queue_pairs_of_two_devices_hear_each_its_own_interface() {
        let mut groups = Groups::default();
        assert_eq!(join(&mut groups, 1, &[2]), [2]);
        assert_eq!(join(&mut groups, 2, &[3]), [3], "the other device's interface joins too");
        assert_eq!(join(&mut groups, 3, &[2, 3]), [0; 0]);
        assert_eq!(listeners(&groups, 2), [1, 3]);
        assert_eq!(listeners(&groups, 3), [2, 3]);
        assert_eq!(listeners(&groups, 4), [0; 0]);
        assert_eq!(groups.listeners(group(), 3), [(2, vec![]), (3, vec![2])]);
    }

    #[test]
    fn the_last_queue_pair_of_an_interface_takes_its_membership_along() {
        let mut groups = Groups::default();
        join(&mut groups, 1, &[2]);
        join(&mut groups, 2, &[3]);
        join(&mut groups, 3, &[2, 3]);
        assert_eq!(groups.leave(group(), 1), [0; 0]);
        assert_eq!(groups.leave(group(), 3), [2]);
        assert_eq!(groups.leave(group(), 3), [0; 0]);
        assert_eq!(listeners(&groups, 3), [2]);
        assert_eq!(groups.leave(group(), 2), [3]);
        assert!(groups.members.is_empty() && groups.joined.is_empty());
    }

    #[test]
    fn groups_follow_the_interfaces_of_their_devices() {
        let mut groups = Groups::default();
        join(&mut groups, 1, &[2]);
        join(&mut groups, 2, &[2, 3]);
        let follow = |groups: &mut Groups, ones: &[u32], able: bool| {
            let (ones, mut done) = (ones.to_vec(), Vec::new());
            let interfaces = |index| if index == 1 { ones.clone() } else { vec![2, 3] };
            groups.follow(interfaces, |_, _, ifindex, join| {
                done.push((ifindex, join));
                able
            });
            done
        };
        assert_eq!(follow(&mut groups, &[2, 3, 4], false), [(4, true)], "3 is joined already");
        assert_eq!((listeners(&groups, 3), listeners(&groups, 4)), (vec![1, 2], vec![]));
        assert_eq!(follow(&mut groups, &[2, 3, 4], true), [(4, true)]);
        assert_eq!(listeners(&groups, 4), [1]);
        assert_eq!(follow(&mut groups, &[2, 3, 4], true), []);
        assert_eq!(follow(&mut groups, &[3], true), [(4, false)], "another one listens on 2");
        assert_eq!(listeners(&groups, 2), [2]);
        assert_eq!(groups.leave(group(), 1), [0; 0]);
        assert_eq!(groups.leave(group(), 2), [2, 3]);
        assert!(groups.members.is_empty() && groups.joined.is_empty());
    }

    #[test]
    fn another_socket_joins_all_groups_again() {
        let mut groups = Groups::default();
        join(&mut groups, 1, &[2, 3]);
        groups.forget_interfaces();
        assert_eq!(listeners(&groups, 2), [0; 0]);
        let mut done = Vec::new();
        groups.follow(
            |_| vec![3, 4],
            |_, _, ifindex, join| {
                done.push((ifindex, join));
                true
            },
        );
        assert_eq!(
            done,
            [(3, true), (4, true)],
            "nothing is left that the new socket never joined"
        );
        assert_eq!(groups.leave(group(), 1), [3, 4]);
    }

    #[test]
    fn an_interface_that_cannot_join_does_not_keep_others_from_it() {
        let mut groups = Groups::default();
        let refuse_3 = |_: &mut Memberships, ifindex| match ifindex {
            3 => Err(Error::new(libc::ENODEV, "gone")),
            _ => Ok(()),
        };
        groups.join(group(), 1, &[2, 3], refuse_3).unwrap();
        assert!(groups.join(group(), 2, &[3], refuse_3).is_err());
        assert!(groups.join(group(), 2, &[], refuse_3).is_err());
        assert_eq!(listeners(&groups, 2), [1]);
        assert_eq!(listeners(&groups, 3), [0; 0]);
        assert_eq!(groups.leave(group(), 1), [2]);
        assert!(groups.members.is_empty() && groups.joined.is_empty());
    }
}
