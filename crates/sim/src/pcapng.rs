//! Traces as pcapng files (draft-ietf-opsawg-pcapng), for Wireshark.
//!
//! An interface for each simulated link, and one for what no link would take; raw IP packets; virtual
//! time, from 1970 on, in nanoseconds; a comment on each packet that did not simply arrive.

use core::net::IpAddr;
use core::time::Duration;
use std::io::{self, Write};

use crate::datagram::Datagram;
use crate::trace::{Fate, Trace};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Packets begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;
const OPTION_COMMENT: u16 = 1;
const OPTION_NAME: u16 = 2;
const OPTION_TIME_RESOLUTION: u16 = 9;

/// Writes a trace of a run on `links` links.
///
/// # Errors
/// Those of `out`.
pub fn write(trace: &Trace, links: usize, out: &mut impl Write) -> io::Result<()> {
    let mut section = Vec::new();
    section.extend(0x1a2b_3c4d_u32.to_le_bytes());
    section.extend([1, 0, 0, 0]); // version 1.0
    section.extend(u64::MAX.to_le_bytes()); // of unknown length
    block(out, SECTION_HEADER, &section)?;
    for link in 0..=links {
        let name = if link < links { format!("link{link}") } else { "no link".to_owned() };
        let mut interface = Vec::new();
        interface.extend(LINKTYPE_RAW.to_le_bytes());
        interface.extend([0; 6]); // reserved; any snapshot length
        option(&mut interface, OPTION_NAME, name.as_bytes());
        option(&mut interface, OPTION_TIME_RESOLUTION, &[9]);
        option(&mut interface, 0, &[]);
        block(out, INTERFACE, &interface)?;
    }
    for record in trace.packets() {
        let packet = ip_packet(&record.datagram);
        let time = nanoseconds(record.at);
        let interface = record.link.unwrap_or(links) as u32;
        let mut body = Vec::with_capacity(packet.len() + 64);
        body.extend(interface.to_le_bytes());
        body.extend(((time >> 32) as u32).to_le_bytes());
        body.extend((time as u32).to_le_bytes());
        let len = packet.len() as u32;
        body.extend(len.to_le_bytes());
        body.extend(len.to_le_bytes());
        body.extend(&packet);
        pad(&mut body);
        if !matches!(record.fate, Fate::Arrives(_)) {
            option(&mut body, OPTION_COMMENT, record.fate.to_string().as_bytes());
            option(&mut body, 0, &[]);
        }
        block(out, ENHANCED_PACKET, &body)?;
    }
    Ok(())
}

fn nanoseconds(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let len = (body.len() as u32 + 12).to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&len)?;
    out.write_all(body)?;
    out.write_all(&len)
}

/// The IP packet that carries a datagram.
pub fn ip_packet(datagram: &Datagram) -> Vec<u8> {
    let flow = &datagram.flow;
    let udp_len = datagram.bytes.len() as u16 + 8;
    let mut out = Vec::with_capacity(48 + datagram.bytes.len());
    let mut pseudo = 17 + u32::from(udp_len);
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out.extend([0x45, datagram.traffic_class]);
            out.extend((udp_len + 20).to_be_bytes());
            out.extend(datagram.id.to_be_bytes());
            out.extend([0x40, 0, datagram.hop_limit, 17, 0, 0]); // don't fragment
            out.extend(src.octets());
            out.extend(dst.octets());
            let checksum = !fold(sum(&out));
            out[10..12].copy_from_slice(&checksum.to_be_bytes());
            pseudo += sum(&out[12..20]);
        }
        (src, dst) => {
            let v6 = |ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            let first = 6 << 28 | u32::from(datagram.traffic_class) << 20 | datagram.flow_label;
            out.extend(first.to_be_bytes());
            out.extend(udp_len.to_be_bytes());
            out.extend([17, datagram.hop_limit]);
            out.extend(v6(src));
            out.extend(v6(dst));
            pseudo += sum(&out[8..40]);
        }
    }
    let udp = out.len();
    out.extend(flow.src_port.to_be_bytes());
    out.extend(flow.dst_port.to_be_bytes());
    out.extend(udp_len.to_be_bytes());
    out.extend([0, 0]);
    out.extend(&datagram.bytes);
    let checksum = !fold(pseudo + sum(&out[udp..]));
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    out[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    out
}

/// The sum of the 16-bit words (RFC 1071); a packet has too few for it to overflow.
fn sum(bytes: &[u8]) -> u32 {
    let word = |c: &[u8]| u32::from(c[0]) << 8 | u32::from(c.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
