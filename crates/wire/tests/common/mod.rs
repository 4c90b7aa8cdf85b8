#![allow(dead_code)] // Not every user of this file needs every field.
//! Reads RoCEv2 packets out of a classic pcap file: Ethernet, VLAN, IPv4 and IPv6, UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use polypath_wire::ROCE_PORT;
use polypath_wire::icrc::Flow;

/// A RoCEv2 packet of a capture.
pub(crate) struct Captured {
    /// The number in the file, from 1, as Wireshark counts.
    pub(crate) number: usize,
    pub(crate) flow: Flow,
    /// The IPv4 identification; 0 for IPv6.
    pub(crate) id: u16,
    /// Whether the IPv4 header's checksum is right. An IP stack drops the packet otherwise.
    pub(crate) ip_intact: bool,
    /// The bytes from the BTH to the ICRC.
    pub(crate) udp_payload: Vec<u8>,
}

pub(crate) fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// Reads all RoCEv2 packets of a file. Anything else in it fails the test.
pub(crate) fn read(path: &Path) -> Vec<Captured> {
    let file = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(file[..4], 0xa1b2_c3d4_u32.to_le_bytes(), "{}: little-endian pcap", path.display());
    assert_eq!(le32(&file, 20), 1, "{}: Ethernet", path.display());
    let mut at = 24;
    let mut packets = Vec::new();
    while at < file.len() {
        let (captured, original) = (le32(&file, at + 8), le32(&file, at + 12));
        assert_eq!(captured, original, "{}: whole frames", path.display());
        let frame = &file[at + 16..at + 16 + captured as usize];
        let number = packets.len() + 1;
        packets.push(roce(number, frame).unwrap_or_else(|| {
            panic!("{}: frame {number} is not RoCEv2", path.display());
        }));
        at += 16 + captured as usize;
    }
    packets
}

fn roce(number: usize, frame: &[u8]) -> Option<Captured> {
    let mut at = 12;
    let mut ethertype = be16(frame, at)?;
    while ethertype == 0x8100 {
        at += 4;
        ethertype = be16(frame, at)?;
    }
    let ip = frame.get(at + 2..)?;
    let (src, dst, id, ip_intact, udp) = match ethertype {
        0x0800 => {
            let addr = |at| IpAddr::V4(Ipv4Addr::from_bits(be32(ip, at)));
            (addr(12), addr(16), be16(ip, 4)?, sums_up(&ip[..20]), &ip[20..])
        }
        0x86dd => {
            let addr = |at: usize| {
                let bytes: [u8; 16] = ip[at..at + 16].try_into().unwrap();
                IpAddr::V6(Ipv6Addr::from(bytes))
            };
            (addr(8), addr(24), 0, true, &ip[40..])
        }
        _ => return None,
    };
    let (src_port, dst_port) = (be16(udp, 0)?, be16(udp, 2)?);
    if dst_port != ROCE_PORT {
        return None;
    }
    let len = usize::from(be16(udp, 4)?);
    Some(Captured {
        number,
        flow: Flow { src, dst, src_port, dst_port },
        id,
        ip_intact,
        udp_payload: udp.get(8..len)?.to_vec(),
    })
}

/// Whether the 16-bit words of an IPv4 header add up to all ones (RFC 791).
fn sums_up(header: &[u8]) -> bool {
    let sum: u32 =
        (0..header.len()).step_by(2).map(|at| u32::from(be16(header, at).unwrap())).sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

fn le32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

fn be16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(b.get(at..at + 2)?.try_into().unwrap()))
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(b[at..at + 4].try_into().unwrap())
}
