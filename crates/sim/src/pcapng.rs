//! Writes traces as pcapng files, for Wireshark.
//!
//! A file has an interface for each simulated link, and one for packets that no link took. Packets are
//! raw IP packets. The virtual time counts from 1970 on, in nanoseconds. Each packet that did not
//! simply arrive has a comment with its fate.

use core::time::Duration;
use std::io::{self, Write};

use polypath_wire::ip::IpFields;
use polypath_wire::pcapng::{interface, packet, section};

use crate::datagram::Datagram;
use crate::trace::{Fate, Trace};

/// Writes a trace of a run with `links` links.
///
/// # Errors
/// The errors of `out`.
pub fn write(trace: &Trace, links: usize, out: &mut impl Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    section(&mut bytes);
    for link in 0..=links {
        let name = if link < links { format!("link{link}") } else { "no link".to_owned() };
        interface(&mut bytes, &name, 0);
    }
    for record in trace.packets() {
        let kept = ip_packet(&record.datagram);
        let comment = match record.fate {
            Fate::Arrives(_) => String::new(),
            fate => fate.to_string(),
        };
        let link = record.link.unwrap_or(links) as u32;
        packet(&mut bytes, link, nanoseconds(record.at), &kept, kept.len() as u32, &comment);
        out.write_all(&bytes)?;
        bytes.clear();
    }
    out.write_all(&bytes)
}

fn nanoseconds(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

/// The IP packet that carries a datagram.
fn ip_packet(datagram: &Datagram) -> Vec<u8> {
    let &Datagram { flow, id, traffic_class, hop_limit, flow_label, .. } = datagram;
    IpFields { flow, id, traffic_class, hop_limit, flow_label }.packet(&datagram.bytes)
}
