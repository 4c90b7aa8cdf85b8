//! Two connection managers with applications and a network, all in the hands of the fuzzer: it writes
//! commands to the device, well-formed or not, sends MADs of its own and changed ones of theirs.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use polypath_cm::{CmConfig, MadAddress};
use polypath_wire::mad::MadHeader;

#[path = "../../crates/cm/tests/common/mod.rs"]
mod common;
mod input;

use common::{Client, PS_TCP, PS_UDP, Param, World, v4};
use input::Input;

const STEPS_MAX: usize = 256;

/// What a well-behaved pair of programs would do next: gets connections far enough to be attacked.
fn behave(w: &mut World, clients: &[Client; 2], what: u8, ids: &mut Vec<u32>) {
    let port = 7174;
    let id = ids.last().copied().unwrap_or(0);
    match what % 8 {
        0 => {
            let space = if what & 8 == 0 { PS_TCP } else { PS_UDP };
            if let Ok(id) = w.try_create(clients[1], 1, space, 2) {
                let _ = w.bind(clients[1], id, (v4(1), port).into());
                let _ = w.listen(clients[1], id, 4);
            }
        }
        1 => {
            let space = if what & 8 == 0 { PS_TCP } else { PS_UDP };
            if let Ok(id) = w.try_create(clients[0], 2, space, 2) {
                ids.push(id);
                let _ = w.resolve_addr(clients[0], id, None, (v4(1), port).into());
            }
        }
        2 => drop(w.resolve_route(clients[0], id)),
        3 => drop(w.connect(clients[0], id, &Param::new(0x11, b"private"))),
        4 => {
            if let Some(event) = w.try_event(clients[1]) {
                let _ = w.accept(clients[1], event.id, 9, &Param::new(0x22, b"yes"));
            }
        }
        5 => drop(w.confirm(clients[0], id)),
        6 => drop(w.disconnect(clients[0], id)),
        _ => drop(w.destroy(clients[usize::from(what >> 3 & 1)], id)),
    }
}

fuzz_target!(|data: &[u8]| {
    let config = CmConfig {
        max_ids: 64,
        max_ids_per_file: 48,
        max_connections: 64,
        max_events_per_file: 32,
        max_queued_mads: 64,
        ..CmConfig::default()
    };
    let mut w = World::with_config(2, 1, &config);
    let clients = [w.open(0, 1), w.open(1, 1)];
    let mut ids = Vec::new();
    let mut input = Input(data);
    for _ in 0..STEPS_MAX {
        if input.0.is_empty() {
            break;
        }
        let op = input.u8();
        let host = usize::from(op >> 3 & 1);
        match op % 6 {
            0 => behave(&mut w, &clients, input.u8(), &mut ids),
            1 => {
                let ms = u64::from(input.u8());
                w.run_for(Duration::from_millis(ms * ms));
            }
            2 => {
                // A command with a right header and any payload.
                let (cmd, len, room) = (input.u8(), input.u8(), input.u8());
                let mut payload = input.take(usize::from(len));
                // Small numbers are ids that exist.
                if let (Some(id), Some(slot)) = (ids.last(), payload.get_mut(..4)) {
                    if op & 0x10 != 0 {
                        slot.copy_from_slice(&id.to_ne_bytes());
                    }
                }
                payload.resize(usize::from(len) * (1 + usize::from(op >> 6)), 0);
                let _ = w.write(clients[host], u32::from(cmd), &payload, u16::from(room), &[]);
            }
            3 => {
                // Any bytes at all.
                let len = usize::from(input.u8());
                let bytes = input.take(len);
                let (now, file) = (w.now, clients[host].file);
                let host = &mut w.hosts[host];
                let _ = host.cm.command(now, file, &bytes, &mut host.env);
            }
            4 => {
                // A MAD with a right header and any content.
                let (attr, len) = (input.u8(), input.u8());
                let mut mad = MadHeader::cm(u16::from(attr % 16) + 0x10, 7).to_bytes().to_vec();
                mad.extend(input.take(usize::from(len)));
                mad.resize(256, 0);
                inject(&mut w, host, &mad);
            }
            _ => {
                // One of theirs, changed, sent to either.
                let (which, at, bits) = (input.u8(), input.u8(), input.u8());
                if w.sent.is_empty() {
                    continue;
                }
                let mut mad = w.sent[usize::from(which) % w.sent.len()].mad;
                mad[usize::from(at)] ^= bits;
                inject(&mut w, host, &mad);
            }
        }
        assert!(w.hosts.iter().all(|h| h.cm.connection_count() <= config.max_connections));
        // The world keeps all that was sent; the fuzzer needs only the last.
        if w.sent.len() > 64 {
            w.sent.drain(..32);
        }
    }
    for client in clients {
        w.close(client);
    }
    w.run_for(Duration::from_secs(600));
});

fn inject(w: &mut World, to: usize, mad: &[u8]) {
    let from = MadAddress { local: v4(to), remote: v4(1 - to), ifindex: 2, source_qpn: 1 };
    let now = w.now;
    let host = &mut w.hosts[to];
    host.cm.handle_mad(now, from, mad, &mut host.env);
    w.run_for(Duration::ZERO);
}
