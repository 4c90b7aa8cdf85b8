//! Passes datagrams to the lane.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polypath_lane::{Arrival, Refusal, Taken};
use polypath_topology::{Selection, Table};
use polypath_wire::packet::Packet;

use crate::lane::State;
use crate::media::Received;
use crate::media::udp::Receiver;

/// Handles one datagram.
#[inline]
pub(super) fn datagram(state: &mut State, received: &Received<'_>) {
    let counters = &mut state.io.counters;
    counters.received_packets += 1;
    counters.received_bytes += received.datagram.len() as u64;
    if !received.verify() {
        state.io.drops.icrc_wrong += 1;
        return;
    }
    if received.parse_with(|packet| dispatch(state, packet, received)).is_err() {
        state.io.drops.malformed += 1;
    }
    state.handled();
}

/// Passes a packet to the lane, and a multicast packet to each queue pair that listens.
#[inline]
fn dispatch(state: &mut State, packet: &Packet<'_>, received: &Received<'_>) {
    let arrival = Arrival {
        src: received.src,
        dst: received.dst,
        kind: received.kind,
        src_port: received.src_port,
        traffic_class: received.traffic_class,
        hop_limit: received.hop_limit,
        flow_label: 0,
        len: received.datagram.len(),
    };
    match state.core.handle_packet(&arrival, packet, &mut state.io) {
        Ok(Taken::QueuePair) => {}
        // The path manager counts packets that it rejects.
        Ok(Taken::Control(_)) => state.io.counters.control_received += 1,
        Ok(Taken::Multicast) => {
            let listeners = state.groups.listeners(received.dst, received.ifindex);
            if listeners.is_empty() {
                refused(state, packet, Refusal::UnknownQp);
            }
            // By which interface it came first, if one may listen there, too.
            let mut first = None;
            if listeners.iter().any(|(_, others)| !others.is_empty()) {
                let src_qpn = packet.headers.deth.map_or(0, |deth| deth.src_qpn);
                let (now, psn) = (state.core.now(), packet.headers.bth.psn);
                let sender = (received.src, received.dst, src_qpn);
                first = state.groups.copies.first_copy(now, sender, psn, received.ifindex);
            }
            for (index, others) in listeners {
                if first.is_some_and(|first| others.contains(&first)) {
                    state.io.drops.group_copies += 1;
                    continue;
                }
                if let Err(refusal) = state.core.deliver(index, &arrival, packet, &mut state.io) {
                    refused(state, packet, refusal);
                }
            }
        }
        Err(refusal) => refused(state, packet, refusal),
    }
}

/// Counts a packet that was rejected.
#[cold]
fn refused(state: &mut State, packet: &Packet<'_>, refusal: Refusal) {
    let drops = &mut state.io.drops;
    match refusal {
        Refusal::UnknownQp => drops.unknown_qp += 1,
        Refusal::WrongSource => drops.wrong_source += 1,
        Refusal::Copy => drops.datagram_copies += 1,
        Refusal::WrongPkey => {
            drops.wrong_pkey += 1;
            if let Some(entry) = state.core.qps().by_qpn(packet.headers.bth.dest_qpn) {
                entry.own.context.violations.pkey.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl State {
    /// Tells the receiver whether IPv4 packets can have only one destination.
    pub(super) fn learn_sole_ipv4(&mut self, table: &Table, selection: &Selection) {
        let Some(udp) = self.udp_receiver() else { return };
        // If this fails, packets report their destination, which works too.
        let _ = udp.set_sole_ipv4(crate::path_settings::sole_ipv4(table, selection));
    }

    /// The slot's socket, if it is not wrapped. A wrapped socket always reports everything.
    pub(super) fn udp_receiver(&mut self) -> Option<&mut Receiver> {
        self.receivers.as_mut()?.udp.as_mut()
    }

    /// The slot's socket, which joins multicast groups.
    pub(crate) fn slot_socket(&self) -> Option<RawFd> {
        self.receivers.as_ref()?.socket
    }
}
