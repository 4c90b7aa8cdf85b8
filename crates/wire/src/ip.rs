//! Builds the IP and UDP headers around a RoCEv2 packet, as captures show them.

use core::net::IpAddr;

use crate::icrc::Flow;

/// The fields of one packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields {
    /// The addresses and UDP ports.
    pub flow: Flow,
    /// The identification of the IPv4 header, which the ICRC covers.
    pub id: u16,
    /// The traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// The TTL or hop limit.
    pub hop_limit: u8,
    /// The IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

impl IpFields {
    /// The whole IP packet with this UDP payload, which has at most 65,487 bytes.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let udp_len = payload.len() as u16 + 8;
        let mut out = Vec::with_capacity(48 + payload.len());
        let mut pseudo = 17 + u32::from(udp_len);
        match (self.flow.src, self.flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                out.extend([0x45, self.traffic_class]);
                out.extend((udp_len + 20).to_be_bytes());
                out.extend(self.id.to_be_bytes());
                out.extend([0x40, 0, self.hop_limit, 17, 0, 0]); // don't fragment
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
                let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
                out.extend(first.to_be_bytes());
                out.extend(udp_len.to_be_bytes());
                out.extend([17, self.hop_limit]);
                out.extend(v6(src));
                out.extend(v6(dst));
                pseudo += sum(&out[8..40]);
            }
        }
        let udp = out.len();
        out.extend(self.flow.src_port.to_be_bytes());
        out.extend(self.flow.dst_port.to_be_bytes());
        out.extend(udp_len.to_be_bytes());
        out.extend([0, 0]);
        out.extend(payload);
        let checksum = !fold(pseudo + sum(&out[udp..]));
        let checksum = if checksum == 0 { 0xffff } else { checksum };
        out[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        out
    }
}

/// The sum of the 16-bit words (RFC 1071). A packet has too few words for it to overflow.
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
