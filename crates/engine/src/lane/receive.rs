//! From a datagram to the queue pair that it is for.

use std::sync::atomic::Ordering;

use polypath_paths::PathManager;
use polypath_transport::PathId;
use polypath_verbs::QpType;
use polypath_wire::grh::Grh;
use polypath_wire::packet::Packet;
use polypath_wire::{DEFAULT_PKEY, MULTICAST_QPN};

use crate::lane::table::QpTable;
use crate::lane::{LaneHost, State};
use crate::udp::Received;

/// Datagrams have no path of their own: nothing is acknowledged.
const NO_PATH: PathId = PathId(u32::MAX);

/// Handles one datagram.
pub(super) fn datagram(state: &mut State, received: &Received<'_>) {
    let counters = &mut state.io.counters;
    counters.received_packets += 1;
    counters.received_bytes += received.datagram.len() as u64;
    if !received.verify() {
        counters.icrc_wrong += 1;
        return;
    }
    if Packet::parse_with(received.datagram, |packet| dispatch(state, packet, received)).is_err() {
        state.io.counters.malformed += 1;
    }
}

/// Hands a packet to whom it is for.
#[inline]
fn dispatch(state: &mut State, packet: &Packet<'_>, received: &Received<'_>) {
    let counters = &mut state.io.counters;
    if PathManager::is_control(packet) {
        counters.control_received += 1;
        let now = state.io.now;
        // A refusal is counted there.
        let _ = state.io.paths.handle_control(now, received.src, received.dst, packet);
        return;
    }
    let bth = &packet.headers.bth;
    if bth.pkey & 0x7fff != DEFAULT_PKEY & 0x7fff {
        counters.wrong_pkey += 1;
        if let Some(entry) = state.qps.by_qpn(bth.dest_qpn) {
            entry.attached.context.violations.pkey.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    if bth.dest_qpn == MULTICAST_QPN {
        let listeners = state.groups.listeners(received.dst, received.ifindex);
        if listeners.is_empty() {
            counters.unknown_qp += 1;
        }
        for index in listeners {
            deliver(state, index, packet, received);
        }
        return;
    }
    if state.qps.by_qpn(bth.dest_qpn).is_none() {
        state.io.counters.unknown_qp += 1;
        return;
    }
    deliver(state, QpTable::index_of(bth.dest_qpn), packet, received);
}

fn deliver(state: &mut State, index: u16, packet: &Packet<'_>, received: &Received<'_>) {
    let Some(entry) = state.qps.get_mut(index) else { return };
    let now = state.io.now;
    let is_ud = entry.core.config().qp_type == QpType::Ud;
    let grh;
    let (from, grh) = if is_ud {
        grh = Grh {
            src: received.src,
            dst: received.dst,
            traffic_class: received.traffic_class,
            flow_label: 0,
            payload_len: u16::try_from(received.datagram.len()).unwrap_or(u16::MAX),
            hop_limit: received.hop_limit,
        }
        .to_bytes();
        (NO_PATH, Some(&grh))
    } else {
        let Some(peer) = entry.peer else {
            state.io.counters.wrong_source += 1;
            return;
        };
        let tag = packet
            .headers
            .mp
            .map(|mp| polypath_paths::PathTag { id: mp.path_id, generation: mp.generation });
        match state.io.paths.classify(
            peer,
            received.src,
            received.dst,
            tag,
            received.datagram.len(),
        ) {
            Ok(path) => (path, None),
            Err(_) => {
                state.io.counters.wrong_source += 1;
                return;
            }
        }
    };
    let mut host = LaneHost { attached: &entry.attached, io: &mut state.io };
    let violations = if is_ud { entry.core.counters().dropped_qkey } else { 0 };
    entry.core.handle_packet(now, packet, from, grh, &mut host);
    if is_ud {
        let violations = entry.core.counters().dropped_qkey - violations;
        entry.attached.context.violations.qkey.fetch_add(violations, Ordering::Relaxed);
    }
    // Answers do not wait for the window of requests.
    entry.blocked = false;
    state.note(index, false);
}
