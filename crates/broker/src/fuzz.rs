//! The entry for fuzzing messages on the broker's socket.

use std::net::IpAddr;
use std::time::Duration;

use polypath_cm::{ClientId, Cm, CmConfig, Device, Environment, FileId, Route, RouteQuery};
use polypath_ipc::message::{self, Push, Reply, Request};
use polypath_topology::{PathSelector, Selection};
use polypath_wire::Psn;

use crate::mad_streams::{Inbox, Known, Outbox};
use crate::qp1::build_body;
use crate::streams::{FIXED, Preamble, preamble};

/// A host with one device at 10.0.0.1 and a route to everywhere.
struct OneDevice;

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

fn device() -> Device {
    Device {
        node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, 1],
        ibdev_index: 2,
        port_num: 1,
        gid_index: 1,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
        active_mtu: 3,
        ack_delay: 15,
    }
}

impl Environment for OneDevice {
    fn route(&mut self, _: ClientId, query: &RouteQuery) -> Option<Route> {
        Some(Route { source: query.source.unwrap_or(ADDRESS), ifindex: 2 })
    }

    fn device_for(&mut self, _: ClientId, _: IpAddr, _: Option<u32>) -> Option<(Device, u32)> {
        Some((device(), 2))
    }

    fn any_device(&mut self, _: ClientId) -> Option<(Device, IpAddr, u32)> {
        Some((device(), ADDRESS, 2))
    }

    fn is_local(&mut self, address: IpAddr, _: Option<u32>) -> bool {
        address == ADDRESS
    }

    fn multicast_join(&mut self, _: ClientId, _: u32, _: IpAddr) -> Result<(), i32> {
        Ok(())
    }

    fn multicast_leave(&mut self, _: ClientId, _: u32, _: IpAddr) {}
}

/// Takes a preamble from what a stranger sends, in pieces. Returns how many bytes belong to it.
pub fn fuzz_preamble(bytes: &[u8], piece: usize) -> usize {
    let (mut got, mut at) = (Preamble::new(), 0);
    while at < bytes.len() {
        match got.read() {
            Ok(None) => {}
            Ok(Some(called)) => {
                let again = preamble(called.slot, called.by, &called.opening);
                assert_eq!(again.as_deref(), Some(&bytes[..at]), "it is as long as it says");
                break;
            }
            Err(_) => break,
        }
        let room = got.room();
        assert!(!room.is_empty() && at < FIXED + message::OPENING_MAX);
        let len = room.len().min(bytes.len() - at).min(piece.max(1));
        room[..len].copy_from_slice(&bytes[at..at + len]);
        got.arrived(len);
        at += len;
    }
    at
}

/// Takes messages of a connection manager from what a peer's broker sends, in pieces, until it sends
/// something else. Returns how many there were. Those that are taken are framed again as they came.
pub fn fuzz_mad_stream(bytes: &[u8], piece: usize) -> usize {
    let (mut inbox, mut known, mut outbox) =
        (Inbox::new(), Known::default(), Outbox::new(Vec::new()));
    let (mut at, mut begin, mut taken) = (0, 0, 0);
    while at < bytes.len() {
        let room = inbox.room();
        assert!(!room.is_empty());
        let len = room.len().min(bytes.len() - at).min(piece.max(1));
        room[..len].copy_from_slice(&bytes[at..at + len]);
        inbox.arrived(len);
        at += len;
        match inbox.take() {
            Ok(None) => {}
            Ok(Some(mad)) => {
                let frame = &bytes[begin..at];
                let psn = Psn::new(u32::from_be_bytes([0, frame[13], frame[14], frame[15]]));
                assert!(outbox.push(&build_body(psn, &mad)));
                let again: Vec<u8> = outbox.next().to_vec();
                outbox.sent(again.len());
                assert_eq!(again[frame.len() - mad.len()..], frame[frame.len() - mad.len()..]);
                assert_eq!((again.len(), &again[..4]), (frame.len(), &frame[..4]));
                known.add(&mad);
                (begin, taken) = (at, taken + 1);
            }
            Err(_) => break,
        }
    }
    taken
}

/// Handles a datagram as if a client had sent it: decodes it as every type of message, and lets the
/// connection manager execute the commands in it. It must never panic, and what was decoded must be
/// the same after encoding and decoding it again.
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok(request) = message::decode::<Request>(bytes) {
        if let Ok(again) = message::encode(&request) {
            assert_eq!(message::decode::<Request>(&again).ok(), Some(request.clone()));
        }
        execute(request);
    }
    let _ = message::decode::<Reply>(bytes);
    let _ = message::decode::<Push>(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(selection) = Selection::parse(text) {
            assert_eq!(Selection::parse(&selection.to_string()), Ok(selection));
        }
        if let Ok(selector) = text.parse::<PathSelector>() {
            assert_eq!(selector.to_string().parse(), Ok(selector));
        }
    }
}

fn execute(request: Request) {
    match request {
        Request::CmCommand { bytes, .. } => {
            let mut cm = Cm::new(CmConfig::default(), || 4);
            cm.open_file(FileId(1), ClientId(1));
            let _ = cm.command(Duration::from_secs(1), FileId(1), &bytes, &mut OneDevice);
            while cm.poll_event_of(FileId(1)).is_some() || cm.poll_mad().is_some() {}
            cm.close_file(Duration::from_secs(2), FileId(1), &mut OneDevice);
        }
        Request::StatusReport { status, .. } => {
            for part in status.into_parts() {
                assert!(message::encode(&part).is_ok());
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polypath_wire::cm::{CmMad, Rtu};

    #[test]
    fn messages_are_taken_until_one_is_changed() {
        let rtu = Rtu { local_comm_id: 1, remote_comm_id: 2, private_data: [3; 224] };
        let mut outbox = Outbox::new(Vec::new());
        let body = build_body(Psn::new(7), &CmMad::new(5, rtu).to_bytes());
        (0..9).for_each(|_| assert!(outbox.push(&body)));
        let mut bytes = outbox.next().to_vec();
        assert_eq!(fuzz_mad_stream(&bytes, 100), 9);
        bytes[4 * 280 + 5] = 0xff;
        bytes[4 * 280] = 0xff;
        assert_eq!(fuzz_mad_stream(&bytes, 100), 4);
    }

    #[test]
    fn every_single_byte_and_many_random_messages_are_survived() {
        for byte in 0..=255 {
            fuzz_message(&[byte]);
        }
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        for round in 0..20_000 {
            let mut bytes: Vec<u8> = (0..round % 64).map(|_| next()).collect();
            if let Some(first) = bytes.first_mut() {
                *first %= 16;
            }
            fuzz_message(&bytes);
        }
    }
}
