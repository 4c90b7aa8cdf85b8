//! A frozen queue pair that somebody has made up: a real one from the middle of its work, with bytes
//! written over, put in and taken out, or bytes from nowhere. Magic number, version and checksum are made
//! right, as those who mean harm would.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use polypath_transport::{
    PeerId, QpType, QueuePair, SendData, SendFlags, SendOp, SendWr,
};

#[path = "../../crates/transport/tests/scenarios/host.rs"]
#[allow(dead_code, unreachable_pub)]
mod host;
mod input;
#[path = "../../crates/transport/tests/scenarios/pair.rs"]
#[allow(dead_code, unreachable_pub)]
mod pair;

use host::PD;
use input::Input;
use pair::{ALL, Pair, Setup};

/// Magic number and version.
const HEAD: usize = 6;
const CHANGES_MAX: usize = 64;

/// A pair in the middle of its work.
fn busy(mode: u8) -> Pair {
    let setup = Setup {
        qp_type: match mode & 3 {
            0 | 1 => QpType::Rc,
            2 => QpType::Uc,
            _ => QpType::Ud,
        },
        mtu: 256,
        paths: 2,
        multipath: mode & 4 != 0,
        reach: if mode & 8 != 0 { polypath_transport::REACH } else { 0 },
        min_rnr_timer: 20,
        ..Setup::default()
    };
    let mut pair = Pair::new(setup);
    for node in &mut pair.nodes {
        for _ in 0..4 {
            node.recv(7, 0x4000, 1024);
        }
        let (va, rkey) = (0x8000, ALL);
        let ops = [
            (SendOp::Send, 700),
            (SendOp::Write { va, rkey }, 3000),
            (SendOp::Read { va, rkey }, 3000),
            (SendOp::FetchAdd { va, rkey, add: 1 }, 8),
            (SendOp::Send, 200),
        ];
        for (op, len) in ops {
            let sges = [pair::sge(0, len)];
            let data = SendData::Sges(&sges);
            let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data, ud: None };
            // Services that do not have the operation refuse it.
            let _ = node.qp.post_send(&wr);
        }
    }
    pair.run_for(Duration::from_micros(u64::from(mode >> 4) * 40));
    pair
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mode = input.u8();
    let mut pair = busy(mode);
    let (now, node) = (pair.now, &mut pair.nodes[0]);
    let fresh = QueuePair::new(*node.qp.config());
    let mut bytes = std::mem::replace(&mut node.qp, fresh).freeze(now, &mut node.host);
    bytes.truncate(bytes.len() - 4);
    for _ in 0..CHANGES_MAX {
        if input.0.is_empty() {
            break;
        }
        let (kind, at, value) = (input.u8(), [input.u8(), input.u8()], input.u8());
        let room = bytes.len() - HEAD;
        let at = HEAD + usize::from(u16::from_be_bytes(at)) % room.max(1);
        match kind % 8 {
            0 if room > 0 => drop(bytes.drain(at..)),
            1 => bytes.extend(input.take(usize::from(value))),
            2 => bytes.insert(at, value),
            3 if room > 0 => drop(bytes.remove(at)),
            _ if room > 0 => bytes[at] = value,
            _ => {}
        }
    }
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_be_bytes());

    let node = &mut pair.nodes[0];
    node.host.made_up = true;
    let _ = QueuePair::frozen_config(&bytes);
    let thawed = QueuePair::thaw(&bytes, PD, now, &mut node.host);
    let Ok(mut qp) = thawed else {
        assert_eq!(node.host.early, 0, "nothing stays reserved");
        return;
    };
    assert_eq!(qp.check(), Ok(()));
    qp.set_peer(PeerId(1));
    node.qp = qp;
    // It may do nonsense, but does not fall over.
    pair.run_for(Duration::from_millis(20));
    assert_eq!(pair.nodes[0].qp.check(), Ok(()));
    let node = &mut pair.nodes[0];
    let fresh = QueuePair::new(*node.qp.config());
    let again = std::mem::replace(&mut node.qp, fresh).freeze(pair.now, &mut node.host);
    let whole = QueuePair::thaw(&again, PD, pair.now, &mut node.host);
    assert!(whole.is_ok(), "what it freezes to thaws: {whole:?}");
});
