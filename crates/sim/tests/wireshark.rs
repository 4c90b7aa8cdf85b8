//! Wireshark can read traces. The test needs tshark; without it, only the file's structure is checked.

use std::path::PathBuf;
use std::process::Command;

use polypath_sim::{Case, Fate, Record, Simulation, Trace, pcapng};
use polypath_wire::Packet;

struct TempFile(PathBuf);

impl TempFile {
    fn new(v6: bool, bytes: &[u8]) -> Self {
        let path =
            std::env::temp_dir().join(format!("polypath-sim-{}-{v6}.pcapng", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The first seed, from 0 on, with a case that is wanted, and in which a packet does not simply arrive; and
/// its trace.
fn traced(wanted: impl Fn(&Case) -> bool) -> (Case, Trace) {
    let run = |case: Case| {
        let (result, trace) = Simulation::new(&case).with_trace(Trace::whole()).run();
        result.unwrap();
        (case, trace.unwrap())
    };
    let simply = |packet: &Record| matches!(packet.fate, Fate::Arrives(_));
    let suits = |(_, trace): &(Case, Trace)| trace.packets().any(|packet| !simply(packet));
    (0..).map(Case::draw).filter(wanted).map(run).find(suits).unwrap()
}

fn tshark(file: &TempFile, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&file.0).args(["-T", "fields", "-E", "separator=|"]);
    command.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    for f in fields {
        command.args(["-e", f]);
    }
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().map(|l| l.split('|').map(str::to_owned).collect()).collect()
}

fn read_by_tshark(v6: bool) {
    // The case needs plain queue pairs, so that Wireshark knows all opcodes, and something that goes
    // wrong.
    let (case, trace) = traced(|case| {
        case.v6 == v6 && !case.faults.is_empty() && case.pairs.iter().all(|p| !p.multipath)
    });
    let mut bytes = Vec::new();
    pcapng::write(&trace, case.links.len(), &mut bytes).unwrap();
    assert_eq!(bytes.len() % 4, 0);
    let there = Command::new("tshark").arg("--version").output().is_ok_and(|o| o.status.success());
    if !there {
        say("SKIPPED: simulated packets in Wireshark: tshark is not installed");
        return;
    }
    let file = TempFile::new(v6, &bytes);
    let version = if v6 { "ipv6" } else { "ip" };
    let (src, dst) = (format!("{version}.src"), format!("{version}.dst"));
    let fields = [
        "frame.time_epoch",
        "frame.interface_name",
        &src,
        &dst,
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "udp.checksum.status",
        "frame.comment",
    ];
    let lines = tshark(&file, &fields);
    let packets: Vec<_> = trace.packets().collect();
    assert_eq!(lines.len(), packets.len());
    let mut dropped = 0;
    for (line, packet) in lines.iter().zip(packets) {
        let [time, interface, src, dst, opcode, psn, checksum, comment] = &line[..] else {
            panic!("{line:?}");
        };
        let (seconds, fraction) = time.split_once('.').unwrap();
        let nanoseconds: u128 = format!("{seconds}{fraction:0<9}").parse().unwrap();
        assert_eq!(nanoseconds, packet.at.as_nanos());
        match packet.link {
            Some(link) => assert_eq!(*interface, format!("link{link}")),
            None => assert_eq!(interface, "no link"),
        }
        let flow = &packet.datagram.flow;
        assert_eq!((src.parse(), dst.parse()), (Ok(flow.src), Ok(flow.dst)));
        assert_eq!(checksum, "1", "the UDP checksum is right");
        let simply = matches!(packet.fate, Fate::Arrives(_));
        let fate = packet.fate.to_string();
        assert_eq!(*comment, if simply { "" } else { &fate });
        dropped += u32::from(!simply);
        if let (false, Ok(p)) = (packet.datagram.corrupted, Packet::parse(&packet.datagram.bytes)) {
            assert_eq!(opcode.parse(), Ok(p.headers.bth.opcode.0));
            assert_eq!(psn.parse(), Ok(p.headers.bth.psn.get()));
        }
    }
    assert!(dropped > 0);
}

#[test]
fn wireshark_reads_a_trace_over_ipv4() {
    read_by_tshark(false);
}

#[test]
fn wireshark_reads_a_trace_over_ipv6() {
    read_by_tshark(true);
}

/// Prints a line that is seen although the test passes, unlike that of `println!`.
fn say(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
}
