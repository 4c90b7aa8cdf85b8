//! A process with queue pairs of every kind, and datagrams from anybody: bytes, captured packets,
//! packets aimed at a queue pair's number, sequence numbers and keys, from right and wrong addresses,
//! with right and wrong ICRC; beside them a peer that agrees on multi-path and an application that
//! posts, polls, and forgets to.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use polypath_engine::fuzz::{AREA, PSN, QPS, Rig, ip};
use polypath_wire::ext::MpHeader;
use polypath_wire::{Bth, Opcode, Packet, Psn};

mod input;

use input::Input;

const STEPS_MAX: usize = 128;

/// Gives a packet the numbers that a peer would know or guess.
fn aim(rig: &Rig, at: usize, psn: i8, bytes: &mut Vec<u8>) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let mut headers = packet.headers;
    let payload = packet.payload.to_vec();
    headers.bth = Bth {
        dest_qpn: rig.qpn(at),
        psn: Psn::new(PSN.wrapping_add_signed(i32::from(psn))),
        pkey: 0xffff,
        ..headers.bth
    };
    if let Some(reth) = &mut headers.reth {
        (reth.rkey, reth.va) = (rig.rkey(), reth.va % (AREA as u64 + 64));
    }
    if let Some(atomic) = &mut headers.atomic {
        (atomic.rkey, atomic.va) = (rig.rkey(), atomic.va % (AREA as u64 + 64));
    }
    if let Some(deth) = &mut headers.deth {
        deth.qkey = 0x1111;
    }
    let pad = usize::from(headers.bth.pad);
    bytes.clear();
    bytes.resize(headers.len(), 0);
    headers.emit(bytes);
    bytes.extend(payload);
    bytes.resize(bytes.len() + pad + 4, 0);
}

/// The headers of an opcode filled from the input, so that all kinds are reached without a capture.
fn build(opcode: Opcode, path: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Bth::new(opcode).to_bytes().to_vec();
    if opcode.has_mp_header() {
        // Right version, and a path that exists once there is an association.
        bytes.extend([MpHeader::VERSION << 4, path, 0, 1]);
    }
    bytes.extend(rest);
    bytes.resize(bytes.len().next_multiple_of(4).max(Bth::LEN + 4) + 4, 0);
    bytes
}

fuzz_target!(|data: &[u8]| {
    let mut rig = Rig::new();
    let mut input = Input(data);
    for _ in 0..STEPS_MAX {
        if input.0.is_empty() {
            break;
        }
        let op = input.u8();
        let at = usize::from(op >> 4) % QPS;
        match op % 8 {
            0 | 1 => {
                let (how, psn, opcode, len) =
                    (input.u8(), input.u8() as i8, input.u8(), input.u8());
                let rest = input.take(usize::from(len) * 8);
                let mut bytes = match op % 8 {
                    0 => rest,
                    _ => build(Opcode(opcode), how >> 6 & 1, &rest),
                };
                if how & 1 != 0 {
                    aim(&rig, at, psn, &mut bytes);
                }
                let host = if how & 2 != 0 { 1 } else { how >> 4 & 3 };
                let link = how >> 3 & 1;
                rig.datagram(ip(link, host), ip(link, 0), &mut bytes, how & 4 != 0);
            }
            2 => {
                let n = u64::from(input.u8());
                rig.pass(Duration::from_micros(n * n * n));
            }
            3 => {
                let (kind, size) = (input.u8(), input.u8());
                rig.post_send(at, kind, if matches!(kind % 9, 5 | 6 | 8) { 8 } else { u32::from(size) * 32 });
            }
            4 => {
                rig.poll();
            }
            5 => {
                rig.post_recv(at);
            }
            6 => rig.talk(&mut |_| true),
            _ => {
                // A control packet is lost, or changed on its way.
                let (what, bits) = (input.u8(), input.u8());
                rig.talk(&mut |out| {
                    if let Some(byte) = out.packet.get_mut(usize::from(what)) {
                        *byte ^= bits;
                    }
                    bits != 0
                });
            }
        }
    }
    rig.pass(Duration::from_secs(20));
    rig.poll();
});
