//! `tools/wireshark/polypath.lua` shows Polypath's packets as they were built, and leaves standard
//! packets to Wireshark. The tests need tshark; without it they check nothing.

mod common;

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use polypath_wire::ext::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, MpHeader, MpSack, NakCode, Reth,
    SackBlock, Syndrome, XrcEth,
};
use polypath_wire::icrc::{Flow, compute};
use polypath_wire::packet::pad_for;
use polypath_wire::{Bth, Headers, Opcode, Psn};

/// A classic pcap file of Ethernet frames.
fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        out.extend(word.to_le_bytes());
    }
    let flow = flow();
    for (i, p) in packets.iter().enumerate() {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) else { unreachable!() };
        frame.extend([0x45, 0]);
        frame.extend((p.len() as u16 + 28).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(src.octets());
        frame.extend(dst.octets());
        frame.extend(flow.src_port.to_be_bytes());
        frame.extend(flow.dst_port.to_be_bytes());
        frame.extend((p.len() as u16 + 8).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(p);
        for word in [i as u32, 0, frame.len() as u32, frame.len() as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(frame);
    }
    out
}

fn flow() -> Flow {
    Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 0xc001)
}

fn packet(mut headers: Headers, payload: &[u8]) -> Vec<u8> {
    headers.bth.pad = pad_for(payload.len());
    let mut p = vec![0; headers.len()];
    headers.emit(&mut p);
    p.extend(payload);
    p.resize(p.len() + usize::from(headers.bth.pad), 0);
    p.extend(compute(&flow(), 0, &p));
    p
}

fn headers(opcode: Opcode) -> Headers {
    let bth = Bth { dest_qpn: 0x01_0203, psn: Psn::new(0xff_fffe), ..Bth::new(opcode) };
    Headers {
        mp: opcode.has_mp_header().then_some(MpHeader {
            flags: 0,
            path_id: 3,
            generation: 7,
            msg: 11,
            offset: 4096,
            recv: 5,
            timestamp: 123_456,
        }),
        xrc: opcode.has_xrceth().then_some(XrcEth { srqn: 0x06_0708 }),
        deth: opcode.has_deth().then_some(Deth { qkey: 0x11, src_qpn: 0x33_4455 }),
        feth: opcode.has_feth().then_some(Feth { placement: 1, selectivity: 0 }),
        reth: opcode.has_reth().then_some(Reth { va: 0x1000, rkey: 0xabc, len: 9000 }),
        atomic: opcode.has_atomic_eth().then_some(AtomicEth {
            va: 0x1000,
            rkey: 0xabc,
            swap_add: 1,
            compare: 2,
        }),
        aeth: opcode
            .has_aeth()
            .then_some(Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn: 6 }),
        atomic_ack: opcode.has_atomic_ack().then_some(AtomicAckEth { original: 42 }),
        imm: opcode.has_imm().then_some(ImmDt([1, 2, 3, 4])),
        ieth: opcode.has_ieth().then_some(Ieth { rkey: 0xabc }),
        // Two packets have arrived: the second and the third after the missing one.
        sack: opcode.has_sack().then_some(MpSack(0b110)),
        ..Headers::new(bth)
    }
}

fn address(out: &mut Vec<u8>, last: u8) {
    out.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
    out.extend([24, 0, 0, 1]);
}

/// A HELLO with two addresses, as described in docs/wire.md.
fn hello() -> Vec<u8> {
    let mut p = b"PPTH".to_vec();
    p.extend([1, 1, 9, 2]);
    p.extend([0x11; 8]); // instance
    p.extend([0x22; 32]); // nonces
    for word in [0x09_0001, 0x08_0002, 0, 65536, 0x3_1805, 4_u32] {
        p.extend(word.to_be_bytes());
    }
    address(&mut p, 1);
    address(&mut p, 2);
    p.extend([0; 16]);
    let bth = Bth { dest_qpn: 0x08_0002, ..Bth::new(Opcode::UD_SEND_ONLY) };
    let deth = Deth { qkey: 0x8050_4f4c, src_qpn: 0x09_0001 };
    packet(Headers { deth: Some(deth), ..Headers::new(bth) }, &p)
}

/// A probe or control packet of a kind, with two path states and a body.
fn control(opcode: Opcode, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut p = vec![1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, kind, 0, 2, 0];
    p.extend(77_u64.to_be_bytes());
    for word in [88, 0, 4, 6_u32] {
        p.extend(word.to_be_bytes());
    }
    p.extend([0, 1, 0, 9, 1, 3, 0, 9]);
    p.extend(body);
    p.extend([0xee; 16]);
    packet(Headers::new(Bth { dest_qpn: 0x09_0000, ..Bth::new(opcode) }), &p)
}

/// The output of tshark for some fields, a line for each packet.
fn tshark(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/polypath.lua");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(file);
    command.args(["-T", "fields", "-E", "separator=|"]);
    for f in fields {
        command.args(["-e", f]);
    }
    let out = command.output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !errors.contains("Lua"), "{errors}");
    String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|l| l.split('|').map(str::to_owned).collect())
        .collect()
}

fn has_tshark() -> bool {
    let there = Command::new("tshark").arg("--version").output().is_ok_and(|o| o.status.success());
    if !there {
        say("SKIPPED: the dissector: tshark is not installed");
    }
    there
}

struct TempFile(std::path::PathBuf);

impl TempFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("polypath-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn every_multi_path_packet_is_shown_with_its_fields() {
    if !has_tshark() {
        return;
    }
    let opcodes: Vec<Opcode> = (0xc0..=0xdf).map(Opcode).filter(|o| o.has_mp_header()).collect();
    let packets: Vec<Vec<u8>> = opcodes.iter().map(|o| packet(headers(*o), b"payload")).collect();
    let file = TempFile::new("data.pcap", &pcap(&packets));
    let fields = [
        "_ws.col.Info",
        "polypath.psn",
        "polypath.path",
        "polypath.generation",
        "polypath.offset",
        "polypath.timestamp",
        "polypath.payload",
        "polypath.icrc",
        "polypath.va",
        "polypath.imm",
        "polypath.sack",
        "polypath.msn",
        "polypath.placement",
        "_ws.expert.message",
    ];
    let lines = tshark(&file.0, &fields);
    assert_eq!(lines.len(), opcodes.len());
    for ((o, p), line) in opcodes.iter().zip(&packets).zip(lines) {
        let [
            info,
            psn,
            path,
            generation,
            offset,
            timestamp,
            payload,
            icrc,
            va,
            imm,
            sack,
            msn,
            placement,
            expert,
        ] = &line[..]
        else {
            panic!("{o}: {line:?}");
        };
        assert!(info.starts_with(&format!("{o} QP=0x010203 PSN=16777214 path=3.7")), "{o}: {info}");
        assert_eq!([psn, path, generation], ["16777214", "3", "7"], "{o}");
        assert_eq!([offset, timestamp, payload], ["4096", "123456", "7061796c6f6164"], "{o}");
        let sent = u32::from_be_bytes(*p.last_chunk().unwrap());
        assert_eq!(*icrc, format!("0x{sent:08x}"), "{o}");
        assert_eq!(!va.is_empty(), o.has_reth() || o.has_atomic_eth(), "{o}");
        assert_eq!(*imm, if o.has_imm() { "0x01020304" } else { "" }, "{o}");
        assert_eq!(*sack, if o.has_sack() { "0x0000000000000006" } else { "" }, "{o}");
        assert_eq!(*msn, if o.has_aeth() { "6" } else { "" }, "{o}");
        assert_eq!(*placement, if o.has_feth() { "1" } else { "" }, "{o}");
        assert_eq!(expert.contains("PSN sequence error"), o.has_aeth(), "{o}: {expert}");
        assert!(!expert.contains("short"), "{o}: {expert}");
    }
}

#[test]
fn blocks_of_an_acknowledgement_are_shown_with_their_fields() {
    if !has_tshark() {
        return;
    }
    let mut ack = headers(Opcode::MP_ACK);
    ack.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 6 });
    let list = [(0xff_fffd, 5), (9, 70_000)]
        .map(|(first, count)| SackBlock { first: Psn::new(first), count }.to_bytes());
    let file = TempFile::new("blocks.pcap", &pcap(&[packet(ack, list.as_flattened())]));
    let fields = [
        "_ws.col.Info",
        "polypath.block.first",
        "polypath.block.count",
        "polypath.payload",
        "_ws.expert.message",
    ];
    let lines = tshark(&file.0, &fields);
    let info =
        "MP.Ack QP=0x010203 PSN=16777214 path=3.7 len=16 (ACK, arrived beyond: 2, blocks: 2)";
    assert_eq!(lines, [[info, "16777213,9", "5,70000", "", ""]]);
    let out = Command::new("tshark")
        .arg("-X")
        .arg(format!(
            "lua_script:{}/../../tools/wireshark/polypath.lua",
            env!("CARGO_MANIFEST_DIR")
        ))
        .args(["-V", "-r"])
        .arg(&file.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("Arrived out of order (PSN 16777213 to 1)"), "{text}");
}

#[test]
fn handshake_probes_and_control_are_shown_with_their_fields() {
    if !has_tshark() {
        return;
    }
    let mut addresses = vec![0, 0, 0, 4, 1, 0, 0, 0];
    address(&mut addresses, 7);
    let mut table = vec![0, 0, 0, 6, 1, 0, 0, 0, 2, 5, 0, 3];
    table.extend([0xfd; 16]);
    table.extend([0xfc; 16]);
    let packets = [
        hello(),
        control(Opcode::MP_PROBE, 0, &[]),
        control(Opcode::MP_PROBE_REPLY, 0, &[]),
        control(Opcode::MP_CONTROL, 1, &addresses),
        control(Opcode::MP_CONTROL, 2, &table),
        control(Opcode::MP_CONTROL, 3, &[]),
        control(Opcode::MP_CONTROL, 4, &[]),
    ];
    let file = TempFile::new("control.pcap", &pcap(&packets));
    let lines = tshark(
        &file.0,
        &[
            "_ws.col.Info",
            "polypath.address",
            "polypath.sequence",
            "polypath.mac",
            "_ws.expert.message",
            "polypath.reach",
            "polypath.ports",
            "polypath.port_index",
        ],
    );
    let mac = "ee".repeat(16);
    let want = [
        ("HELLO QP=0x080002 (2 addresses)", "::ffff:10.0.0.1,::ffff:10.0.0.2", ""),
        ("MP.Probe QP=0x090000 path=2.3 (number 88)", "", "77"),
        ("MP.ProbeReply QP=0x090000 path=2.3 (number 88)", "", "77"),
        ("MP.Control ADDRESSES QP=0x090000 path=2.3 (0 up, 1 dead)", "::ffff:10.0.0.7", "77"),
        (
            "MP.Control TABLE QP=0x090000 path=2.3 (0 up, 1 dead)",
            "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd,fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc",
            "77",
        ),
        ("MP.Control NOTICE QP=0x090000 path=2.3 (0 up, 1 dead)", "", "77"),
        ("MP.Control BYE QP=0x090000 path=2.3 (0 up, 1 dead)", "", "77"),
    ];
    assert_eq!(lines.len(), want.len());
    for (line, (info, address, sequence)) in lines.iter().zip(want) {
        assert_eq!(line[..3], [info, address, sequence]);
        assert!(line[3] == mac || sequence.is_empty());
        assert_eq!(line[4], "", "{info}");
        let announced = if sequence.is_empty() { ["24", "3"] } else { ["", ""] };
        assert_eq!(line[5..7], announced, "{info}");
        assert_eq!(line[7], if info.contains("TABLE") { "5" } else { "" }, "{info}");
    }
}

#[test]
fn standard_packets_are_left_to_wireshark() {
    if !has_tshark() {
        return;
    }
    let lines = tshark(
        &common::vectors().join("rxe_cm_rping.pcap"),
        &["infiniband.bth.opcode", "polypath.opcode"],
    );
    assert_eq!(lines.len(), 29);
    for line in lines {
        assert!(!line[0].is_empty() && line[1].is_empty(), "{line:?}");
    }
}

/// Wireshark 4.0 knows XRC's opcodes, but shows what follows the BTH as bytes.
#[test]
fn xrc_packets_have_the_opcodes_that_wireshark_knows() {
    if !has_tshark() {
        return;
    }
    let names = [
        (Opcode::RC_SEND_FIRST, "SEND First"),
        (Opcode::RC_SEND_ONLY_IMM, "SEND Only with Immediate"),
        (Opcode::RC_SEND_ONLY_INV, "SEND Only with Invalidate"),
        (Opcode::RC_WRITE_MIDDLE, "RDMA WRITE Middle"),
        (Opcode::RC_WRITE_LAST_IMM, "RDMA WRITE Last with Immediate"),
        (Opcode::RC_READ_REQUEST, "RDMA READ Request"),
        (Opcode::RC_READ_RESPONSE_ONLY, "RDMA READ response Only"),
        (Opcode::RC_ACK, "Acknowledge"),
        (Opcode::RC_ATOMIC_ACK, "ATOMIC Acknowledge"),
        (Opcode::RC_CMP_SWAP, "CmpSwap"),
        (Opcode::RC_FETCH_ADD, "FetchAdd"),
    ];
    let packets: Vec<_> = names.iter().map(|(o, _)| packet(headers(o.to_xrc()), &[])).collect();
    let file = TempFile::new("xrc.pcap", &pcap(&packets));
    let fields = ["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn"];
    let lines = tshark(&file.0, &fields);
    let out = Command::new("tshark").args(["-V", "-r"]).arg(&file.0).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let shown: Vec<&str> = text.lines().filter(|l| l.trim_start().starts_with("Opcode:")).collect();
    assert_eq!((lines.len(), shown.len()), (names.len(), names.len()));
    for (((o, name), line), shown) in names.iter().zip(lines).zip(shown) {
        assert_eq!(line, [(o.0 | 0xa0).to_string(), "0x010203".into(), "16777214".into()]);
        let name = format!("Opcode: Extended Reliable Connection (XRC) - {name} (");
        assert!(shown.trim_start().starts_with(&name), "{shown}");
    }
    // The number of the queue follows the BTH first, in the low 24 bits.
    assert_eq!(packets[0][Bth::LEN..][..4], [0, 6, 7, 8]);
}

#[test]
fn a_packet_that_is_cut_short_is_said_to_be() {
    if !has_tshark() {
        return;
    }
    let whole = packet(headers(Opcode::RC_WRITE_ONLY.to_mp()), &[]);
    let cuts: Vec<Vec<u8>> = (16..whole.len()).map(|n| whole[..n].to_vec()).collect();
    let file = TempFile::new("cut.pcap", &pcap(&cuts));
    for line in tshark(&file.0, &["_ws.expert.message"]) {
        assert!(line[0].contains("Packet is too short"), "{line:?}");
    }
}

/// Prints a line that is seen although the test passes, unlike that of `println!`.
fn say(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
}
