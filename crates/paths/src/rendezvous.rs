//! The rendezvous: where two ends find each other that have moved at the same time.
//!
//! An end that has moved tells the other its new addresses. If the other one has moved, too, nobody hears
//! that. Then both send it to a third host as well, whose address both were told before
//! ([`Config::rendezvous`](crate::Config::rendezvous)), and that host passes on what it gets from one to the
//! other. What it passes on is an ordinary packet of the association, with its authentication code and
//! sequence number, so it can hold packets back, and nothing else.

use core::net::{IpAddr, Ipv6Addr};

use polypath_types::PathKind;
use polypath_wire::packet::Packet;
use polypath_wire::relay::{RENDEZVOUS_QPN, Relay, Token};
use polypath_wire::{Bth, Opcode};

use crate::association::Association;
use crate::config::PathOptions;
use crate::id::{AssociationId, PathNumber};
use crate::key::{Ends, Key};
use crate::manager::PathManager;
use crate::message::Body;
use crate::types::Refused;

/// The local addresses that a packet is sent from. Which of them has a route to the rendezvous is not known.
const SOURCES_MAX: usize = 4;

impl PathManager {
    /// Sends a packet through the rendezvous, if there is one.
    pub(crate) fn send_by_rendezvous(&mut self, index: AssociationId, body: &Body) {
        let Some(rendezvous) = self.usage.rendezvous else { return };
        let Some(a) = self.associations.get(index) else { return };
        let Some(&(_, remote)) = a.anchors.first() else { return };
        let (key, slot, instance) = (a.key, a.remote_slot, self.lane.instance);
        let [from, to] = tokens(a);
        let fits = |ip: &IpAddr| {
            ip.is_ipv4() == rendezvous.is_ipv4() && self.local.fault(*ip, rendezvous).is_none()
        };
        let sources = self.local.list().iter().map(|local| local.ip).filter(fits);
        let sources: Vec<IpAddr> = sources.take(SOURCES_MAX).collect();
        // Each is another packet, because the receiver takes a sequence number once.
        for src in sources {
            let Some(frame) = self.frame(index, (PathNumber(0), 0), body.clone(), false) else {
                return;
            };
            let packet = frame.encode(slot, instance, &key, Ends { src, dst: remote });
            let answer_to = u32::from(self.lane.slot) << 16;
            let relay = Relay { answer_to, from, to, src, dst: remote, packet: &packet };
            let address = self.address(src, rendezvous, PathOptions::default(), slot.into());
            self.push_out(address, relay.encode(RENDEZVOUS_QPN));
        }
    }

    /// A packet that the rendezvous passed on.
    pub(crate) fn handle_relayed(&mut self, packet: &Packet<'_>) -> Result<(), Refused> {
        let own = u32::from(self.lane.slot) << 16;
        if packet.headers.bth.dest_qpn != own {
            return Err(Refused::NoAssociation);
        }
        let Relay { src, dst, packet, .. } =
            Relay::decode(packet.payload).ok_or(Refused::Malformed)?;
        // Nothing but news of the association is ever sent this way.
        if !Bth::parse(packet).is_ok_and(|bth| bth.opcode == Opcode::MP_CONTROL) {
            return Err(Refused::Malformed);
        }
        let handled =
            Packet::parse_body_with(packet, |p| self.handle_frame(src, dst, PathKind::Udp, p));
        handled.unwrap_or(Err(Refused::Malformed))
    }
}

/// The tokens of this end and the other one.
fn tokens(a: &Association) -> [Token; 2] {
    let nowhere = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let ends = Ends { src: nowhere, dst: nowhere };
    let token = |key: &Key, leads: bool| key.mac(0, Opcode::MP_RELAY.0, ends, &[leads.into()]);
    [token(&a.key, a.is_leader()), token(&a.key, !a.is_leader())]
}
