//! Every packet that Linux rxe sent in the captures of `tests/vectors` is parsed, checked and built
//! again, byte for byte.

mod common;

use std::collections::BTreeMap;

use common::{Captured, read, vectors};
use polypath_wire::cm::{
    CmMad, CmMessage, CmaHeader, PortSpace, RejectReason, Rejected, SidrStatus,
};
use polypath_wire::cm::{CmService, port_of};
use polypath_wire::ext::{NakCode, SackBlock, Syndrome};
use polypath_wire::icrc::FlowCrc;
use polypath_wire::packet::pad_for;
use polypath_wire::{MAX_HEADERS_LEN, Opcode, Packet, Psn, QP1_QKEY};

/// The contents of `STAT.txt` about a file.
struct Expected {
    name: String,
    packets: usize,
    icrc_bad: usize,
    opcodes: BTreeMap<String, usize>,
}

fn expected() -> Vec<Expected> {
    let text = std::fs::read_to_string(vectors().join("STAT.txt")).unwrap();
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, packets, "pkts", "icrc-bad", bad, opcodes @ ..] = &words[..] else {
                panic!("STAT.txt: {line}");
            };
            let count = |w: &&str| {
                let (name, n) = w.split_once('*').unwrap();
                (name.to_owned(), n.parse().unwrap())
            };
            Expected {
                name: (*name).to_owned(),
                packets: packets.parse().unwrap(),
                icrc_bad: bad.parse().unwrap(),
                opcodes: opcodes.iter().map(count).collect(),
            }
        })
        .collect()
}

/// All packets of all files, each with the name of its file.
fn all() -> impl Iterator<Item = (String, Captured)> {
    expected()
        .into_iter()
        .flat_map(|e| read(&vectors().join(&e.name)).into_iter().map(move |c| (e.name.clone(), c)))
}

#[test]
fn every_file_is_listed_and_every_listed_file_is_there() {
    let mut there: Vec<String> = std::fs::read_dir(vectors())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.ends_with(".pcap"))
        .collect();
    there.sort();
    let mut listed: Vec<String> = expected().into_iter().map(|e| e.name).collect();
    listed.sort();
    assert_eq!(there, listed);
}

#[test]
fn packets_opcodes_and_wrong_icrcs_are_counted_as_expected() {
    for e in expected() {
        let packets = read(&vectors().join(&e.name));
        let mut opcodes = BTreeMap::new();
        let mut bad = 0;
        for c in &packets {
            let packet = Packet::parse(&c.udp_payload)
                .unwrap_or_else(|err| panic!("{} #{}: {err}", e.name, c.number));
            *opcodes.entry(packet.opcode().to_string()).or_insert(0) += 1;
            // The link corrupts IP headers, too. Those packets never reach a UDP socket.
            let intact = c.ip_intact && FlowCrc::new(&c.flow).verify(&c.udp_payload, 0).is_some();
            bad += usize::from(!intact);
        }
        assert_eq!(packets.len(), e.packets, "{}", e.name);
        assert_eq!(opcodes, e.opcodes, "{}", e.name);
        assert_eq!(bad, e.icrc_bad, "{}", e.name);
    }
}

#[test]
fn identification_comes_back_from_the_icrc_and_the_icrc_from_the_identification() {
    let mut bad = 0;
    for (name, c) in all().filter(|(_, c)| c.ip_intact) {
        let at = || format!("{name} #{}", c.number);
        let crc = FlowCrc::new(&c.flow);
        let (body, sent) = c.udp_payload.split_last_chunk::<4>().unwrap();
        if crc.compute(c.id, body) != *sent {
            bad += 1;
            assert_eq!(crc.verify(&c.udp_payload, c.id), None, "{}", at());
            continue;
        }
        assert_eq!(crc.verify(&c.udp_payload, 0), Some(c.id), "{}", at());
        assert_eq!(crc.verify(&c.udp_payload, c.id), Some(c.id), "{}", at());
    }
    assert_eq!(bad, 6, "of the 8 corrupt packets of rxe_corrupt_send 2 have a corrupt IP header");
}

#[test]
fn headers_and_padding_are_rebuilt_byte_for_byte() {
    for (name, c) in all() {
        let packet = Packet::parse(&c.udp_payload).unwrap();
        let mut out = [0; MAX_HEADERS_LEN];
        let n = packet.headers.emit(&mut out);
        assert_eq!(n, packet.headers.len());
        assert!(packet.headers.fit_opcode());
        assert_eq!(out[..n], c.udp_payload[..n], "{name} #{}: {packet}", c.number);
        assert_eq!(packet.headers.bth.pad, pad_for(packet.payload.len()), "{name} #{}", c.number);
        let len = n + packet.payload.len() + usize::from(packet.headers.bth.pad) + 4;
        assert_eq!(len, c.udp_payload.len());
    }
}

/// The CM messages of a file, in order.
fn mads(name: &str) -> Vec<CmMad> {
    read(&vectors().join(name))
        .iter()
        .filter_map(|c| {
            let packet = Packet::parse(&c.udp_payload).unwrap();
            (packet.headers.bth.dest_qpn == 1).then(|| CmMad::parse(packet.payload).unwrap())
        })
        .collect()
}

#[test]
fn connection_management_messages_are_rebuilt_byte_for_byte() {
    let mut counts = BTreeMap::new();
    for (name, c) in all() {
        let packet = Packet::parse(&c.udp_payload).unwrap();
        if packet.headers.bth.dest_qpn != 1 {
            continue;
        }
        let deth = packet.headers.deth.expect("QP1 is a datagram queue pair");
        assert_eq!((deth.qkey, deth.src_qpn), (QP1_QKEY, 1));
        let mad =
            CmMad::parse(packet.payload).unwrap_or_else(|e| panic!("{name} #{}: {e}", c.number));
        assert_eq!(mad.to_bytes(), packet.payload, "{name} #{}: {mad}", c.number);
        *counts.entry(mad.message.name()).or_insert(0) += 1;
    }
    let want = [
        ("DREP", 18),
        ("DREQ", 18),
        ("REJ", 2),
        ("REP", 17),
        ("REQ", 21),
        ("RTU", 17),
        ("SIDR_REP", 1),
        ("SIDR_REQ", 1),
    ];
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), want);
}

#[test]
fn rping_connects_with_the_fields_that_it_was_given() {
    let mads = mads("rxe_cm_rping.pcap");
    let [CmMessage::Req(req), CmMessage::Rep(rep), CmMessage::Rtu(rtu), ..] =
        [mads[0].message, mads[1].message, mads[2].message]
    else {
        panic!("REQ, REP, RTU: {mads:?}");
    };
    assert_eq!(port_of(req.service_id), Some((PortSpace::Tcp, 7174)));
    assert_eq!(req.service, CmService::Rc);
    assert_eq!((req.local_qpn, req.starting_psn.get()), (0x54, 0xdd4488));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.mtu), (7, 7, 5));
    assert_eq!((req.max_cm_retries, req.local_cm_response_timeout), (15, 20));
    assert_eq!((req.primary.flow_label, req.primary.hop_limit), (0x60c5a, 64));
    assert_eq!((req.primary.ack_timeout, req.alternate), (17, None));
    let ip = CmaHeader::parse(&req.private_data).unwrap();
    assert_eq!(ip.source().to_string(), "10.77.0.2:46380");
    assert_eq!(ip.dst.to_string(), "10.77.0.1");
    assert_eq!(req.primary.local_gid.to_ip(), ip.src);
    assert_eq!(req.primary.remote_gid.to_ip(), ip.dst);
    assert_eq!((rep.remote_comm_id, rep.starting_psn.get()), (req.local_comm_id, 0x663988));
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert!(mads[..3].iter().all(|m| m.tid == mads[0].tid), "one transaction");
}

#[test]
fn rejection_and_service_resolution_say_what_they_say() {
    let rejected = mads("rxe_cm_reject_nolistener.pcap");
    let CmMessage::Rej(rej) = rejected[1].message else { panic!("{rejected:?}") };
    assert_eq!((rej.rejected, rej.reason), (Rejected::Req, RejectReason::InvalidServiceId));
    let sidr = mads("rxe_cm_udaddy_sidr.pcap");
    let [CmMessage::SidrReq(req), CmMessage::SidrRep(rep)] = [sidr[0].message, sidr[1].message]
    else {
        panic!("{sidr:?}")
    };
    assert_eq!(port_of(req.service_id), Some((PortSpace::Udp, 7174)));
    assert_eq!(CmaHeader::parse(&req.private_data).unwrap().src_port, 0xa7f6);
    assert_eq!((rep.request_id, rep.status), (req.request_id, SidrStatus::Success));
    assert_eq!((rep.qpn, rep.qkey), (0x59, 0x0123_4567));
}

#[test]
fn refusals_carry_the_syndrome_of_their_name() {
    let last_ack = |name: &str| {
        let packets = read(&vectors().join(name));
        let syndromes: Vec<Syndrome> = packets
            .iter()
            .filter_map(|c| Packet::parse(&c.udp_payload).unwrap().headers.aeth)
            .map(|a| a.syndrome)
            .collect();
        syndromes
    };
    for (name, code) in [
        ("rxe_nak_write_rkey.pcap", NakCode::RemoteAccess),
        ("rxe_nak_read_rkey.pcap", NakCode::RemoteAccess),
        ("rxe_nak_recv_too_small.pcap", NakCode::RemoteOperational),
        ("rxe_reorder_send.pcap", NakCode::PsnSequence),
    ] {
        assert!(last_ack(name).contains(&Syndrome::Nak(code)), "{name}: {:?}", last_ack(name));
    }
    assert!(
        last_ack("rxe_rc_rnr.pcap").iter().any(|s| matches!(s, Syndrome::RnrNak { .. })),
        "{:?}",
        last_ack("rxe_rc_rnr.pcap")
    );
}

#[test]
fn blocks_of_an_acknowledgement_are_those_of_the_wire_format() {
    let bytes = [0, 0xff, 0xff, 0xfe, 0, 0, 0, 3, 0, 0, 0x12, 0x34, 0, 1, 0, 0];
    let list = [(0xff_fffe, 3), (0x1234, 0x1_0000)]
        .map(|(first, count)| SackBlock { first: Psn::new(first), count });
    assert_eq!(list.map(|b| b.to_bytes()).as_flattened(), bytes);
    assert!(SackBlock::list(&bytes).unwrap().iter().eq(list));

    let refused = |bytes: &[u8]| SackBlock::list(bytes).unwrap_err().to_string();
    assert_eq!(refused(&bytes[..12]), "SACK block: truncated: expected at least 8 bytes, got 4");
    assert_eq!(
        refused(&[bytes; 17].as_flattened()[..264]),
        "SACK blocks: too long: expected at most 256 bytes, got 264"
    );
    for wrong in [[1, 0, 0, 0, 0, 0, 0, 1], [0; 8], [0, 0, 0, 0, 0, 0x80, 0, 0]] {
        assert!(refused(&wrong).contains("a PSN and a count from 1 to 2^23 - 1"), "{wrong:?}");
    }
}

#[test]
fn a_packet_reads_like_a_line_of_a_trace() {
    let packets = read(&vectors().join("rxe_rc_write_only.pcap"));
    let line = Packet::parse(&packets[0].udp_payload).unwrap().to_string();
    assert!(line.starts_with("RC.WriteOnly qpn 0x"), "{line}");
    assert!(line.contains(" rkey ") && line.contains(" dlen ") && line.contains(" len "), "{line}");
    assert_eq!(Packet::parse(&packets[1].udp_payload).unwrap().opcode(), Opcode::RC_ACK);
}
