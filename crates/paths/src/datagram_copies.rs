//! Datagrams that are sent by two paths, and taken once.
//!
//! Towards a peer with the policy `redundant`, each datagram to a lane that says it drops copies goes by two
//! paths of the association. Both copies carry a number that the two lanes count, and the receiver takes the
//! first one that it sees of each number. Peers that say nothing of it, plain ones and multicast groups would
//! give their programs both copies. So they get one.

use core::net::IpAddr;

use crate::association::Association;
use crate::id::AssociationId;
use crate::manager::PathManager;
use crate::path::{Path, Role};
use crate::policy::AnyPolicy;
use crate::seen::Seen;
use crate::types::PathState;
use polypath_types::{DatagramCopies, PathId, PathKind};
use polypath_wire::packet::Packet;

impl PathManager {
    /// The two paths by which a datagram to this queue pair is sent, by the path of an address handle. `None`
    /// if it is sent once, where [`ud_route_to`](PathManager::ud_route_to) says.
    #[inline]
    pub fn ud_twins(&self, path: PathId, remote_qpn: u32) -> Option<[PathId; 2]> {
        if self.sends_twice { self.find_ud_twins(path, (remote_qpn >> 16) as u8) } else { None }
    }

    #[cold]
    fn find_ud_twins(&self, path: PathId, slot: u8) -> Option<[PathId; 2]> {
        let key = self.ud.key_of(path).filter(|key| key.options.multipath)?;
        let ends = (key.local, key.remote);
        let number = self.lane_pairs.by_key.get(&(ends, slot))?;
        let peer = self.peers.get(self.qps.get(number)?.peer)?;
        let a = self.associations.get(peer.association?)?;
        let redundant = matches!(peer.policy, AnyPolicy::Redundant(_));
        if !redundant || !a.confirmed || !a.remote_abilities.drops_copies {
            return None;
        }
        // The path of the handle goes first, so that the receiver sees the address that was meant, as long
        // as that path is as good as others.
        let rank = |(_, id): (_, PathId)| {
            let p = self.paths.get(id).filter(|p| p.usable() && p.address.kind == PathKind::Udp)?;
            let between = (p.address.local, p.address.remote);
            Some((p.state != PathState::Up, between != ends, p.rtt.shortest(), between, id))
        };
        let (false, .., between, first) = a.paths().filter_map(rank).min()? else { return None };
        let others = a.paths().filter_map(rank).filter(|&(.., id)| id != first);
        let twin =
            others.min_by_key(|&(suspect, _, rtt, other, id)| (suspect, other == between, rtt, id));
        Some([first, twin?.4])
    }

    /// Gives a datagram, which goes by these two paths, the number that tells its copies from others. `None`
    /// if the paths are not of one association any more; it is then sent by the first one alone.
    pub fn number_datagram(&mut self, paths: [PathId; 2]) -> Option<DatagramCopies> {
        let [one, other] = paths.map(|path| {
            let p = self.paths.get(path)?;
            Some((p.association()?, p.tag()?))
        });
        let ((index, one), (same, other)) = (one?, other?);
        let a = self.associations.get_mut(index).filter(|_| index == same)?;
        let association = a.remote_number?;
        let number = a.datagrams_sent;
        a.datagrams_sent = number.wrapping_add(1);
        Some(DatagramCopies { tags: [one, other], association, number })
    }

    /// Whether a datagram that was sent by two paths has come by another one before. To be asked once for
    /// each that comes: it takes note of them.
    pub fn is_datagram_copy(&mut self, src: IpAddr, packet: &Packet<'_>) -> bool {
        let Some(mp) = packet.headers.mp else { return false };
        let slot = packet.headers.deth.map_or(0, |deth| deth.src_qpn >> 16);
        let a = self.associations.by_number(mp.offset).and_then(|a| self.associations.get_mut(a));
        let theirs = |a: &&mut Association| {
            let announced = a.remote_addresses.iter().any(|address| address.ip == src);
            let anchored = a.anchors.iter().any(|(_, remote)| *remote == src);
            u32::from(a.remote_slot) == slot && (announced || anchored)
        };
        let Some(a) = a.filter(theirs) else {
            // The sender does not know yet that this end has forgotten the association.
            return mp.is_copy();
        };
        match &mut a.datagrams_seen {
            Some(seen) => !seen.take(mp.msg),
            None => {
                a.datagrams_seen = Some(Box::new(Seen::new(mp.msg)));
                false
            }
        }
    }
}

impl Path {
    fn association(&self) -> Option<AssociationId> {
        match self.role {
            Role::Member { association, .. } => Some(association),
            _ => None,
        }
    }
}
