//! The responder answers captured requests of Linux rxe as rxe itself answered them: opcode, PSN,
//! syndrome, MSN, result and payload, in order.

use std::path::Path;
use std::time::Duration;

use polypath_transport::*;
use polypath_wire::Packet;
use polypath_wire::ext::{Aeth, AtomicAckEth};
use polypath_wire::opcode::{Opcode, Service};

use crate::captures::read;
use crate::host::{PD, SimHost};
use crate::pair::mask;

/// What a responder sent.
#[derive(Debug, PartialEq)]
struct Answer {
    opcode: Opcode,
    psn: u32,
    aeth: Option<Aeth>,
    atomic: Option<AtomicAckEth>,
    payload: Vec<u8>,
}

impl Answer {
    fn of(packet: &Packet<'_>) -> Self {
        Self {
            opcode: packet.opcode(),
            psn: packet.headers.bth.psn.get(),
            aeth: packet.headers.aeth,
            atomic: packet.headers.atomic_ack,
            payload: packet.payload.to_vec(),
        }
    }
}

/// What the requester is allowed to do.
#[derive(Clone, Copy, PartialEq)]
enum Rights {
    All,
    /// The queue pair is not enabled for READ.
    NotRead,
    /// No region has the key of the request.
    NoKey,
}

/// A responder that has everything the captured requests ask for; the answers show what its memory
/// contains.
fn responder(
    requests: &[Packet<'_>],
    answers: &[Packet<'_>],
    rights: Rights,
) -> (QueuePair, SimHost) {
    let mut host = SimHost::new(1);
    host.memory.resize(32 << 20, 0);
    let mut access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let mut mtu = 1024;
    for r in requests {
        if r.opcode().is_first() {
            mtu = r.payload.len() as u32;
        }
        if let Some(ieth) = r.headers.ieth {
            host.register(ieth.rkey, 0, 8, access);
        }
    }
    for a in answers {
        if a.opcode() == Opcode::RC_READ_RESPONSE_FIRST {
            mtu = a.payload.len() as u32;
        }
    }
    for r in requests.iter().filter(|_| rights != Rights::NoKey) {
        let Some((va, rkey)) = r
            .headers
            .reth
            .map(|h| (h.va, h.rkey))
            .or_else(|| r.headers.atomic.map(|h| (h.va, h.rkey)))
        else {
            continue;
        };
        host.register(rkey, 0, 32 << 20, access);
        let first = r.headers.bth.psn;
        for a in answers {
            let k = a.headers.bth.psn.diff(first);
            let at = va as usize + k.max(0) as usize * mtu as usize;
            let of_read = r.opcode().is_read_request()
                && a.opcode().is_read_response()
                && (0..(r.headers.reth.unwrap().len.div_ceil(mtu).max(1)) as i32).contains(&k);
            if of_read {
                host.memory[at..at + a.payload.len()].copy_from_slice(a.payload);
            } else if r.opcode().is_atomic()
                && k == 0
                && first == requests[0].headers.bth.psn
                && let Some(ack) = a.headers.atomic_ack
            {
                host.memory[at..at + 8].copy_from_slice(&ack.original.to_ne_bytes());
            }
        }
    }
    access |= Access::LOCAL_WRITE;
    if rights == Rights::NotRead {
        access &= !Access::REMOTE_READ;
    }
    host.register(1, 0, 32 << 20, access);
    let mut qp = QueuePair::new(QpConfig {
        qpn: 1,
        qp_type: QpType::Rc,
        pd: PD,
        sq_sig_all: false,
        srq: false,
        max_send_wr: 1,
        max_recv_wr: 100,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    });
    let mut attr = QpAttr::new(QpState::Init);
    attr.access = access;
    attr.port_num = 1;
    attr.ah.is_global = true;
    attr.path_mtu = mtu;
    attr.rq_psn = requests[0].headers.bth.psn.get();
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 14;
    for state in [QpState::Init, QpState::Rtr] {
        attr.state = state;
        qp.modify(&attr, mask(QpType::Rc, state), &mut host).unwrap();
    }
    qp.set_peer(PeerId(0));
    for _ in 0..100 {
        let sge = Sge { addr: 20 << 20, len: 1 << 20, lkey: 1 };
        qp.post_recv(RecvWr { wr_id: 0, sges: Sges::from_slice(&[sge]) }).unwrap();
    }
    (qp, host)
}

fn replay(name: &str, rights: Rights) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../wire/tests/vectors")
        .join(name)
        .with_extension("pcap");
    let captured = read(&file);
    let requester = captured[0].flow.src;
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    for c in &captured {
        let packet = Packet::parse(&c.udp_payload).unwrap();
        if packet.opcode().service() != Service::Rc {
            continue;
        }
        if c.flow.src == requester { requests.push(packet) } else { answers.push(packet) }
    }
    let expected: Vec<Answer> = answers.iter().map(Answer::of).collect();
    let (mut qp, mut host) = responder(&requests, &answers, rights);
    let mut got = Vec::new();
    for packet in &requests {
        qp.handle_packet(Duration::ZERO, packet, PathId(0), None, &mut host);
        while qp.poll_transmit(Duration::ZERO, &mut host) == TransmitState::More {}
        qp.flush_acks(&mut host);
        for (_, bytes) in host.out.drain(..) {
            got.push(Answer::of(&Packet::parse(&bytes).unwrap()));
        }
    }
    assert_eq!(got, expected, "{name}: {:?}", host.explanations);
}

/// Requests that succeed.
#[test]
fn requests_of_rxe_get_the_answers_of_rxe() {
    for name in [
        "send_0",
        "send_3b",
        "send_only",
        "send_2p",
        "send_3p",
        "send_8x",
        "send_imm",
        "send_3p_imm",
        "send_sol",
        "send_imm_sol",
        "send_inv",
        "send_v6",
        "send_tc_ecn",
        "write_0",
        "write_only",
        "write_2p",
        "write_4p",
        "write_imm",
        "write_imm_0",
        "write_4p_imm",
        "write_mtu256",
        "write_mtu512",
        "write_mtu2048",
        "write_mtu4096",
        "read_0",
        "read_only",
        "read_2p",
        "read_4p",
        "read_6x",
        "faa",
        "faa_2x",
        "cas",
        "fence",
        "psn_wrap",
        "flow_label",
        "srq_limit",
    ] {
        replay(&format!("rxe_rc_{name}"), Rights::All);
    }
}

/// What rxe refuses because of an invalid key, we refuse with the same NAK code.
#[test]
fn requests_that_rxe_refused_are_refused_the_same_way() {
    for name in ["read_rkey", "write_rkey", "write_oob", "write_4p_oob", "atomic_rkey"] {
        replay(&format!("rxe_nak_{name}"), Rights::NoKey);
    }
    replay("rxe_nak_read_acc", Rights::NotRead);
}
