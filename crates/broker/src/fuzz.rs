//! The entry for fuzzing messages on the broker's socket.

use std::net::IpAddr;
use std::time::Duration;

use polypath_cm::{ClientId, Cm, CmConfig, Device, Environment, FileId, Route, RouteQuery};
use polypath_ipc::message::{self, Push, Reply, Request};
use polypath_topology::{PathSelector, Selection};

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
            while cm.poll_event().is_some() || cm.poll_mad().is_some() {}
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
