//! Turns captures into seeds for the fuzz targets: one packet of each kind, and every MAD, from each
//! file.
//!
//! `cargo run -p polypath-wire --example pcap_corpus -- OUTDIR FILE.pcap…`

use std::collections::BTreeSet;
use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

use polypath_wire::{Gid, Packet};

#[path = "../tests/common/mod.rs"]
mod common;

fn main() -> Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let Some(out) = args.next() else {
        eprintln!("usage: pcap_corpus OUTDIR FILE.pcap...");
        std::process::exit(2);
    };
    for target in ["packet_parse", "cm_mad_parse", "icrc_verify", "receive_path"] {
        fs::create_dir_all(out.join(target))?;
    }
    for file in args {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut seen = BTreeSet::new();
        for c in common::read(&file) {
            let Ok(packet) = Packet::parse(&c.udp_payload) else { continue };
            let is_mad = packet.headers.bth.dest_qpn == 1;
            // Every MAD is kept; of other packets, one of each kind.
            if !seen.insert(packet.opcode().0) && !is_mad {
                continue;
            }
            let seed = format!("{name}-{}", c.number);
            write(&out, "packet_parse", &seed, &c.udp_payload)?;
            if let Ok(len) = u8::try_from(c.udp_payload.len().div_ceil(8)) {
                // The fuzz target reads this as a datagram for the first queue pair, followed by a
                // poll.
                let mut input = vec![0, 0b0111, 0, 0, len];
                input.extend(&c.udp_payload);
                input.resize(5 + usize::from(len) * 8, 0);
                input.push(4);
                write(&out, "receive_path", &seed, &input)?;
            }
            if is_mad {
                write(&out, "cm_mad_parse", &seed, packet.payload)?;
            }
            let mut input = vec![u8::from(c.flow.src.is_ipv6())];
            input.extend(c.id.to_be_bytes());
            input.extend(Gid::from_ip(c.flow.src).0);
            input.extend(Gid::from_ip(c.flow.dst).0);
            input.extend(c.flow.src_port.to_be_bytes());
            input.extend(&c.udp_payload);
            write(&out, "icrc_verify", &seed, &input)?;
        }
    }
    Ok(())
}

fn write(out: &Path, target: &str, seed: &str, bytes: &[u8]) -> Result<()> {
    fs::write(out.join(target).join(seed), bytes)
}
