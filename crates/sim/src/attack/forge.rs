//! Makes packets that no queue pair has sent.

use core::net::IpAddr;

use polypath_paths::message::HELLO_QKEY;
use polypath_wire::bth::Bth;
use polypath_wire::ext::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, MpHeader, MpSack, NakCode, Reth,
    Syndrome, XrcEth,
};
use polypath_wire::icrc::{Flow, FlowCrc};
use polypath_wire::opcode::{Opcode, Service};
use polypath_wire::packet::{Headers, Packet, pad_for};
use polypath_wire::psn::Psn;

use super::service_bits;
use crate::datagram::Datagram;
use crate::io::QKEY;
use crate::io::{KEY, NO_KEY};
use crate::rng::Rng;
use polypath_transport::QpType;

/// The queue pair that a packet is for, and the truth about its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) service: QpType,
    pub(crate) multipath: bool,
    /// The source address that the packet claims.
    pub(crate) from: IpAddr,
    /// The address that it is sent to.
    pub(crate) to: IpAddr,
    pub(crate) qpn: u32,
    /// The number of the queue pair at the other end.
    pub(crate) peer_qpn: u32,
    pub(crate) mtu: u32,
    /// The size of the target host's memory in bytes.
    pub(crate) memory: u64,
    /// PSNs of the peer's requests: the first, one past those that are surely executed, and one past
    /// those that may have been sent.
    pub(crate) requests: [Psn; 3],
    /// PSNs of the target's own requests: the first, one past those that are surely answered, and one
    /// past those that may have been sent.
    pub(crate) answers: [Psn; 3],
}

/// Whether the attacker guesses the numbers of a packet wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guess {
    /// The PSN, the path's numbers and the Q_Key are wrong.
    Wrong,
    /// They are right.
    Right,
}

/// A PSN distance that is farther ahead than a reorder buffer reaches, and than requests get until the
/// packet arrives.
const FAR: u64 = 1 << 17;

impl Target {
    /// Draws a PSN that is not expected: behind, or far ahead.
    fn wrong(&self, of: [Psn; 3], rng: &mut Rng) -> Psn {
        let [first, done, sent] = of;
        let executed = done.diff(first).max(0) as u64;
        match rng.below(5) {
            // Before the first PSN, which was never sent.
            0 => first.add(0xff_ffff - rng.below(64) as u32),
            1 => first.add(0xff_ffff - rng.below((1 << 22) - 64) as u32),
            2 if executed > 0 => first.add(rng.below(executed) as u32),
            _ => sent.add((FAR + rng.below(FAR)) as u32),
        }
    }

    fn right(&self, of: [Psn; 3], rng: &mut Rng) -> Psn {
        let [first, _, sent] = of;
        first.add(rng.below(sent.diff(first).max(0) as u64 + 4) as u32)
    }
}

/// Makes a packet of any opcode for the target.
pub(crate) fn guess(target: &Target, guess: Guess, rng: &mut Rng) -> Datagram {
    let bits = service_bits(target.service);
    let opcode = match rng.below(20) {
        // An opcode of another service, or of none.
        0..=2 => Opcode(rng.below(256) as u8),
        3 => Opcode::CNP,
        4 => hello(target),
        5..=7 => {
            [Opcode::MP_PROBE, Opcode::MP_PROBE_REPLY, Opcode::MP_CONTROL][rng.below(3) as usize]
        }
        8..=10 if target.multipath => Opcode(rng.below(32) as u8).to_mp(),
        11..=13 => Opcode(Opcode::RC_READ_REQUEST.0 | bits),
        _ => Opcode(rng.below(32) as u8 | bits),
    };
    let opcode = if guess == Guess::Wrong { tame(target, opcode) } else { opcode };
    let sequence = if opcode.base().is_response() { target.answers } else { target.requests };
    let psn = match guess {
        Guess::Wrong => target.wrong(sequence, rng),
        Guess::Right => target.right(sequence, rng),
    };
    let mut headers = headers(target, opcode, psn, rng);
    if guess == Guess::Wrong
        && let Some(deth) = &mut headers.deth
        && deth.qkey != HELLO_QKEY
    {
        deth.qkey = QKEY ^ (1 + rng.below(0xffff) as u32);
    }
    let mtu = u64::from(target.mtu);
    let mut payload = match rng.below(3) {
        0 => Vec::new(),
        1 => noise(rng.below(mtu + 1), rng),
        _ => noise(mtu, rng),
    };
    if opcode.is_mp_management() {
        payload = noise(16 + rng.below(30) * 4, rng);
    }
    headers.bth.pad = pad_for(payload.len());
    seal(target, headers.packet(&payload), rng)
}

/// Replaces a UC opcode by one of RC: UC accepts any PSN that begins a message, so with the peer's
/// address no number would be wrong.
fn tame(target: &Target, opcode: Opcode) -> Opcode {
    let uc = target.service == QpType::Uc && opcode.service() == Service::Uc;
    if uc { Opcode::RC_SEND_ONLY } else { opcode }
}

/// The opcode of a HELLO, whose Q_Key tells it from other datagrams.
fn hello(_: &Target) -> Opcode {
    Opcode::UD_SEND_ONLY
}

/// Makes all headers that the opcode needs.
fn headers(target: &Target, opcode: Opcode, psn: Psn, rng: &mut Rng) -> Headers {
    let lane = opcode.is_mp_management();
    let dest_qpn = if lane { target.qpn & 0xff_0000 } else { target.qpn };
    let bth = Bth { dest_qpn, psn, ack_req: rng.chance(700), ..Bth::new(opcode) };
    let mut h = Headers::new(Bth { solicited: rng.chance(200), ..bth });
    let rkey = if rng.chance(500) { KEY } else { NO_KEY };
    let va = rng.below(target.memory);
    h.mp = opcode.has_mp_header().then(|| MpHeader {
        path_id: rng.below(9) as u8,
        generation: 0x100 + rng.below(0x4000) as u16,
        msg: rng.below(200) as u32,
        offset: rng.below(1 << 14) as u32,
        recv: rng.below(200) as u32,
        timestamp: rng.bits() as u32,
        ..MpHeader::default()
    });
    h.xrc = opcode.has_xrceth().then(|| XrcEth { srqn: rng.below(1 << 24) as u32 });
    h.deth = opcode.has_deth().then(|| Deth {
        qkey: if rng.chance(500) { QKEY } else { HELLO_QKEY },
        src_qpn: target.peer_qpn,
    });
    h.feth = opcode
        .has_feth()
        .then(|| Feth { placement: rng.below(4) as u8, selectivity: rng.below(3) as u8 });
    h.reth = opcode.has_reth().then(|| {
        let len = match rng.below(6) {
            0 => u32::MAX,
            1 => 1 << 31,
            2 => 1 << 22,
            // A range of PSNs from behind the expected one to beyond it.
            3 => rng.below(300) as u32 * target.mtu,
            _ => rng.below(u64::from(target.mtu) * 4) as u32,
        };
        Reth { va, rkey, len }
    });
    h.atomic = opcode.has_atomic_eth().then(|| AtomicEth {
        va: va & !7,
        rkey,
        swap_add: rng.bits(),
        compare: rng.below(4),
    });
    h.aeth = opcode.has_aeth().then(|| {
        let syndrome = match rng.below(8) {
            0 => Syndrome::RnrNak { timer: rng.below(32) as u8 },
            1 => Syndrome::Nak(NakCode::PsnSequence),
            2 => Syndrome::Nak(NakCode::InvalidRequest),
            3 => Syndrome::Nak(NakCode::RemoteAccess),
            4 => Syndrome::Nak(NakCode::RemoteOperational),
            _ => Syndrome::ACK,
        };
        Aeth { syndrome, msn: rng.below(1 << 24) as u32 }
    });
    h.atomic_ack = opcode.has_atomic_ack().then(|| AtomicAckEth { original: rng.bits() });
    h.imm = opcode.has_imm().then(|| ImmDt((rng.bits() as u32).to_be_bytes()));
    h.ieth = opcode.has_ieth().then(|| Ieth { rkey: rng.bits() as u32 });
    h.sack = opcode.has_sack().then(|| MpSack(rng.bits()));
    h
}

fn noise(len: u64, rng: &mut Rng) -> Vec<u8> {
    (0..len).map(|_| rng.bits() as u8).collect()
}

/// Makes a datagram with a right ICRC, which an attacker can compute.
fn seal(target: &Target, mut bytes: Vec<u8>, rng: &mut Rng) -> Datagram {
    let flow = Flow::new(target.from, target.to, 0xc000 | rng.below(0x4000) as u16);
    let id = rng.bits() as u16;
    bytes.extend(FlowCrc::new(&flow).compute(id, &bytes));
    Datagram {
        flow,
        id,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        bytes,
        corrupted: false,
        forged: true,
        sent: core::time::Duration::MAX,
    }
}

/// Changes something in a packet that was seen, and computes a right ICRC.
pub(crate) fn garble(seen: &Datagram, rng: &mut Rng) -> Datagram {
    let mut forged = Datagram { forged: true, ..seen.clone() };
    let end = forged.bytes.len() - polypath_wire::ICRC_LEN;
    let mut bytes = forged.bytes[..end].to_vec();
    match Packet::parse(&forged.bytes) {
        Ok(packet) if rng.chance(700) => {
            let mut h = packet.headers;
            let payload = packet.payload;
            for _ in 0..=rng.below(2) {
                change(&mut h, rng);
            }
            bytes = h.packet(payload);
        }
        _ => {
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.bits() as u8;
            }
            if rng.chance(200) {
                bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            }
        }
    }
    bytes.extend(FlowCrc::new(&forged.flow).compute(forged.id, &bytes));
    forged.bytes = bytes;
    forged
}

fn change(h: &mut Headers, rng: &mut Rng) {
    let small = rng.below(300) as u32;
    match rng.below(10) {
        0..=2 => h.bth.psn = h.bth.psn.add(small),
        3 => h.bth.psn = h.bth.psn.add(0xff_ffff - small),
        4 => h.bth.ack_req = !h.bth.ack_req,
        5 => {
            if let Some(reth) = &mut h.reth {
                reth.len = [0, 1, 4097, 1 << 20, 1 << 31, u32::MAX][rng.below(6) as usize];
                reth.rkey = if rng.chance(500) { KEY } else { NO_KEY };
            }
        }
        6 => {
            if let Some(aeth) = &mut h.aeth {
                aeth.syndrome = match rng.below(4) {
                    0 => Syndrome::RnrNak { timer: 1 },
                    1 => Syndrome::Nak(NakCode::PsnSequence),
                    2 => Syndrome::Nak(NakCode::RemoteAccess),
                    _ => Syndrome::ACK,
                };
            }
        }
        7 => {
            if let Some(mp) = &mut h.mp {
                mp.msg = mp.msg.wrapping_add(small);
                mp.offset = mp.offset.wrapping_add(small);
                mp.recv = mp.recv.wrapping_sub(small);
                mp.timestamp = rng.bits() as u32;
            }
        }
        8 => {
            if let Some(sack) = &mut h.sack {
                *sack = MpSack(rng.bits());
            }
        }
        _ => {
            // Another opcode that has the same headers.
            let opcode = Opcode(h.bth.opcode.0 & 0xe0 | rng.below(32) as u8);
            let old = core::mem::replace(&mut h.bth.opcode, opcode);
            if !h.fit_opcode() {
                h.bth.opcode = old;
            }
        }
    }
}
