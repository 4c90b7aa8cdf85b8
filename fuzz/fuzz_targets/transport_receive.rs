//! Two connected queue pairs with work to do, and packets from anybody in between: with any opcode,
//! near or far from the expected sequence number, with any headers and payload.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use polypath_transport::{FlushScope, PathId, Placement, QpType, RecvWr, SendOp, Sges};
use polypath_wire::{Bth, Headers, Opcode, Packet, Psn};

#[path = "../../crates/transport/tests/scenarios/host.rs"]
#[allow(dead_code, unreachable_pub)]
mod host;
mod input;
#[path = "../../crates/transport/tests/scenarios/pair.rs"]
#[allow(dead_code, unreachable_pub)]
mod pair;

use input::Input;
use pair::{ALL, Pair, QPN, Setup};

const STEPS_MAX: usize = 256;

/// Posts some work at `side`; addresses and lengths stay small.
fn work(pair: &mut Pair, side: usize, kind: u8, size: u8) {
    let len = u32::from(size) * 32;
    let (va, rkey) = (0x8000, ALL);
    let op = match kind % 9 {
        0 => SendOp::Send,
        1 => SendOp::SendImm([1, 2, 3, 4]),
        2 => SendOp::Write { va, rkey },
        3 => SendOp::WriteImm { va, rkey, imm: [1, 2, 3, 4] },
        4 => SendOp::Read { va, rkey },
        5 => SendOp::FetchAdd { va, rkey, add: 1 },
        6 => SendOp::AtomicWrite { va, rkey },
        7 => SendOp::Flush {
            rkey,
            scope: FlushScope::Range { va, len },
            placement: Placement::GLOBAL,
        },
        _ => SendOp::CompareSwap { va, rkey, compare: 0, swap: 1 },
    };
    let len = match kind % 9 {
        5 | 6 | 8 => 8,
        7 => 0,
        _ => len,
    };
    let sges = [pair::sge(0, len)];
    let data = polypath_transport::SendData::Sges(if len == 0 { &[] } else { &sges });
    let wr = polypath_transport::SendWr {
        wr_id: 1,
        op,
        flags: polypath_transport::SendFlags::SIGNALED,
        data,
        ud: None,
    };
    // A queue that is full, or a queue pair in error, refuses; that is right.
    let _ = pair.nodes[side].qp.post_send(&wr);
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mode = input.u8();
    let setup = Setup {
        qp_type: match mode & 3 {
            0 | 1 if mode & 8 != 0 => QpType::XrcSend,
            0 | 1 => QpType::Rc,
            2 => QpType::Uc,
            _ => QpType::Ud,
        },
        mtu: 256,
        paths: 2,
        multipath: mode & 4 != 0,
        reach: if mode & 16 != 0 { polypath_transport::REACH } else { 0 },
        // 10.24 ms. A receiver that never posts is asked again for ever, and the seconds at the end must
        // not take millions of turns.
        min_rnr_timer: 20,
        ..Setup::default()
    };
    let mut pair = Pair::new(setup);
    if setup.qp_type == QpType::XrcSend {
        for srqn in 0..2 {
            let wr = RecvWr { wr_id: 7, sges: Sges::from_slice(&[pair::sge(0x4000, 1024)]) };
            pair.nodes[1].host.xrc.insert(srqn, vec![wr; 8].into());
        }
    } else {
        for side in 0..2 {
            for _ in 0..8 {
                pair.nodes[side].recv(7, 0x4000, 1024);
            }
        }
    }
    for _ in 0..STEPS_MAX {
        if input.0.is_empty() {
            break;
        }
        let op = input.u8();
        let side = usize::from(op >> 3 & 1);
        match op % 4 {
            0 => {
                let (kind, size) = (input.u8(), input.u8());
                work(&mut pair, side, kind, size);
            }
            1 => {
                let n = u64::from(input.u8());
                pair.run_for(Duration::from_micros(n * n));
            }
            _ => {
                let (opcode, psn, len) = (input.u8(), input.u8() as i8, input.u8());
                let opcode = Opcode(opcode);
                // What the peer expects from us lies near our first number, what it sent near its own.
                let base = if opcode.is_response() { setup.psn[side] } else { setup.psn[1 - side] };
                let bth = Bth {
                    dest_qpn: QPN[side],
                    psn: Psn::new(base.wrapping_add_signed(i32::from(psn))),
                    ack_req: op & 0x10 != 0,
                    solicited: op & 0x20 != 0,
                    ..Bth::new(opcode)
                };
                let mut bytes = bth.to_bytes().to_vec();
                if opcode.has_mp_header() {
                    // Right version, and a path that exists.
                    bytes.extend([0x10, op >> 6 & 1, 0, 1]);
                }
                if opcode.has_xrceth() {
                    // One of the two queues that are there, or one that is not.
                    bytes.extend([0, 0, 0, op >> 5 & 3]);
                }
                bytes.extend(input.take(usize::from(len)));
                bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
                let Ok(packet) = Packet::parse(&bytes) else { continue };
                debug_assert!(Headers::fit_opcode(&packet.headers));
                let node = &mut pair.nodes[side];
                let path = PathId(u32::from(op >> 6 & 1));
                let grh = [0; 40];
                node.qp.handle_packet(pair.now, &packet, path, Some(&grh), &mut node.host);
            }
        }
    }
    pair.run_for(Duration::from_secs(10));
});
