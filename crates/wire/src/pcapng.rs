//! Writes captures as pcapng files (draft-ietf-opsawg-pcapng), for Wireshark: raw IP packets, with
//! times in nanoseconds.
//!
//! These functions append to a file. It begins with one section. Then come interfaces, which are
//! numbered from 0 on, and packets of the interfaces before them.

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// The link type of packets that begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;
const OPTION_COMMENT: u16 = 1;
const OPTION_NAME: u16 = 2;
const OPTION_TIME_RESOLUTION: u16 = 9;

/// Appends the section that begins a file.
pub fn section(out: &mut Vec<u8>) {
    block(out, SECTION_HEADER, |body| {
        body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        body.extend([1, 0, 0, 0]); // version 1.0
        body.extend(u64::MAX.to_le_bytes()); // section length: unknown
    });
}

/// Appends an interface. `snap_len` is the largest number of bytes that are kept of a packet; 0 means
/// all.
pub fn interface(out: &mut Vec<u8>, name: &str, snap_len: u32) {
    block(out, INTERFACE, |body| {
        body.extend(LINKTYPE_RAW.to_le_bytes());
        body.extend([0; 2]); // reserved
        body.extend(snap_len.to_le_bytes());
        option(body, OPTION_NAME, name.as_bytes());
        option(body, OPTION_TIME_RESOLUTION, &[9]);
        option(body, 0, &[]);
    });
}

/// Appends a packet of an interface, at `time` in nanoseconds since 1970. `kept` are the bytes that
/// were kept, and `len` is the length of the whole packet. An empty comment is left out.
pub fn packet(out: &mut Vec<u8>, interface: u32, time: u64, kept: &[u8], len: u32, comment: &str) {
    block(out, ENHANCED_PACKET, |body| {
        body.extend(interface.to_le_bytes());
        body.extend(((time >> 32) as u32).to_le_bytes());
        body.extend((time as u32).to_le_bytes());
        body.extend((kept.len() as u32).to_le_bytes());
        body.extend(len.to_le_bytes());
        body.extend(kept);
        pad(body);
        if !comment.is_empty() {
            option(body, OPTION_COMMENT, comment.as_bytes());
            option(body, 0, &[]);
        }
    });
}

/// Pads to a multiple of four bytes. All blocks before have such a length, so this also pads the block.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out);
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let len = ((out.len() - start + 4) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&len);
    out.extend(len);
}
