//! The invariant CRC: the last 4 bytes of every packet (IBTA 7.8.1; RoCEv2 annex A17.3.3).
//!
//! It is a CRC-32 over 8 bytes of ones, the IP header, the UDP header and the UDP payload. Fields that
//! may change on the way are replaced by ones: IPv4 type of service, time to live and checksum; IPv6
//! traffic class, flow label and hop limit; the UDP checksum; byte 4 of the BTH. It *does* cover the
//! IPv4 identification and flags (DF is always set).
//!
//! # The identification
//!
//! A receiver on a UDP socket can't see the identification. But a CRC is linear: identification `id`
//! changes the CRC by a 32-bit value that depends only on `id` and on the number of bytes that follow.
//! So `id` can be computed from the difference between the CRC for identification 0 and the received
//! one ([`FlowCrc::verify`]): multiplied by the inverse of xᵏ modulo the CRC's polynomial, the
//! difference must be a polynomial of a degree below 16. A random corruption then passes with a chance
//! of 1 in 65536, instead of 1 in 2³² with a known identification. Also, only with a known
//! identification is every burst of up to 32 wrong bits found. A receiver passes a guess of the
//! identification because that is faster (segments of a UDP_SEGMENT send count up). The guess does not
//! make the check stronger, because every other identification is accepted as well.
//!
//! # Cost
//!
//! [`FlowCrc`] keeps the CRC of all bytes before the BTH. Four table look-ups add the length and the
//! identification. The rest is computed by crc32fast, whose SIMD path takes 16 bytes at a time.

use core::net::{IpAddr, Ipv6Addr};

use crc32fast::Hasher;

use crate::{ICRC_LEN, ROCE_PORT};

/// The addresses and ports that the ICRC covers.
///
/// IPv4 addresses mapped into IPv6, as a dual-stack socket returns them, count as IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Sender's address.
    pub src: IpAddr,
    /// Receiver's address.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port, normally [`ROCE_PORT`].
    pub dst_port: u16,
}

impl Flow {
    /// Creates a flow to the RoCE port.
    pub const fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Self {
        Self { src, dst, src_port, dst_port: ROCE_PORT }
    }
}

const UDP_HEADER_LEN: usize = 8;
const IPV4_HEADER_LEN: usize = 20;

/// A flow's part of the ICRC, computed once for all its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowCrc {
    /// CRC of the bytes before the BTH, with zero in the length and identification fields.
    base: u32,
    v4: bool,
}

impl FlowCrc {
    /// Computes what all packets of `flow` have in common.
    pub fn new(flow: &Flow) -> Self {
        let udp = |b: &mut [u8]| {
            b[..2].copy_from_slice(&flow.src_port.to_be_bytes());
            b[2..4].copy_from_slice(&flow.dst_port.to_be_bytes());
            b[6..8].fill(0xff); // checksum
        };
        match (flow.src.to_canonical(), flow.dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut b = [0; 8 + IPV4_HEADER_LEN + UDP_HEADER_LEN];
                b[..8].fill(0xff);
                let ip = &mut b[8..28];
                ip[0] = 0x45;
                ip[1] = 0xff; // type of service
                ip[6] = 0x40; // don't fragment
                ip[8] = 0xff; // time to live
                ip[9] = 17;
                ip[10..12].fill(0xff); // checksum
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                udp(&mut b[28..]);
                Self { base: crc32fast::hash(&b), v4: true }
            }
            _ => {
                let mut b = [0; 8 + 40 + UDP_HEADER_LEN];
                b[..8].fill(0xff);
                let ip = &mut b[8..48];
                ip[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]); // class, flow label
                ip[6] = 17;
                ip[7] = 0xff; // hop limit
                ip[8..24].copy_from_slice(&as_v6(flow.src).octets());
                ip[24..40].copy_from_slice(&as_v6(flow.dst).octets());
                udp(&mut b[48..]);
                Self { base: crc32fast::hash(&b), v4: false }
            }
        }
    }

    /// Whether the flow is IPv4, so that its ICRC depends on the identification.
    #[inline]
    pub const fn is_ipv4(&self) -> bool {
        self.v4
    }

    /// Begins the ICRC of a packet. Its UDP payload, ICRC included, has `udp_payload_len` bytes, and
    /// its IPv4 header has identification `id` (ignored for IPv6).
    #[inline]
    pub fn start(&self, udp_payload_len: usize, id: u16) -> Icrc {
        // A length that does not fit into a datagram can't be sent, so its CRC has no meaning.
        let udp_len = (udp_payload_len + UDP_HEADER_LEN) as u16;
        let mut crc = self.base ^ UDP_LEN.of(udp_len);
        if self.v4 {
            crc ^= IPV4_LEN.of(udp_len.wrapping_add(IPV4_HEADER_LEN as u16));
            crc ^= IPV4_ID.of(id);
        } else {
            crc ^= IPV6_LEN.of(udp_len);
        }
        Icrc { hasher: Hasher::new_with_initial(crc) }
    }

    /// The ICRC of a whole packet. `udp_payload` reaches from the BTH to the last byte of padding.
    #[inline]
    pub fn compute(&self, id: u16, udp_payload: &[u8]) -> [u8; 4] {
        let mut icrc = self.start(udp_payload.len() + ICRC_LEN, id);
        icrc.headers(udp_payload);
        icrc.finish()
    }

    /// Checks a whole UDP payload, whose last 4 bytes are the ICRC. Returns the identification that it
    /// was sent with (always 0 for IPv6), or `None` if it is corrupt.
    ///
    /// `guess` is tried first; a right guess is fastest. Pass the index in the batch for segments of
    /// one receive, or the last packet's identification plus one, or 0 if nothing better is known.
    #[inline]
    pub fn verify(&self, udp_payload: &[u8], guess: u16) -> Option<u16> {
        let (body, sent) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
        self.identify(self.compute(guess, body), *sent, body.len(), guess)
    }

    /// Like [`compute`](Self::compute), but covers the packet twice; see
    /// [`verify_twice`](Self::verify_twice).
    fn compute_twice(&self, id: u16, udp_payload: &[u8]) -> [u8; 4] {
        let mut icrc = self.start(udp_payload.len() + ICRC_LEN, id);
        icrc.headers(udp_payload);
        icrc.update(udp_payload);
        icrc.finish()
    }

    /// Like [`verify`](Self::verify), for packets that Linux' rxe sends as FLUSH. Their ICRC covers
    /// everything from the BTH on twice, the second time without masking. (rxe's table of opcodes does
    /// not say where the payload of a FLUSH begins, so rxe takes the whole packet for payload; seen
    /// with Linux 6.12.) rxe expects the same of FLUSH packets that it receives.
    pub fn verify_twice(&self, udp_payload: &[u8], guess: u16) -> Option<u16> {
        let (body, sent) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
        self.identify(self.compute_twice(guess, body), *sent, 2 * body.len(), guess)
    }

    /// The identification with which a packet was sent, or `None` if it is corrupt. `computed` is the
    /// ICRC for identification `guess`, `sent` the received one; `n` covered bytes follow the UDP
    /// header.
    #[inline]
    fn identify(&self, computed: [u8; 4], sent: [u8; 4], n: usize, guess: u16) -> Option<u16> {
        let diff = u32::from_le_bytes(computed) ^ u32::from_le_bytes(sent);
        if diff == 0 {
            return Some(if self.v4 { guess } else { 0 });
        }
        if !self.v4 {
            return None;
        }
        // The effect of the difference of the two identifications, moved back to the place of the
        // field.
        let unshifted = UNSHIFT_HIGH.get(n >> 8)?.times(UNSHIFT_LOW[n & 0xff].times(diff));
        if unshifted & 0xffff != 0 {
            return None;
        }
        Some(((unshifted >> 16) as u16).swap_bytes() ^ guess)
    }
}

/// The ICRC of one packet, computed piece by piece: first [`headers`](Self::headers), then
/// [`update`](Self::update) for the payload and its padding.
#[derive(Debug, Clone)]
pub struct Icrc {
    hasher: Hasher,
}

impl Icrc {
    /// Begins the ICRC of a packet of `flow` with identification 0. Its UDP payload, ICRC included, has
    /// `udp_payload_len` bytes. A sender of many packets keeps a [`FlowCrc`] instead.
    pub fn new(flow: &Flow, udp_payload_len: usize) -> Self {
        FlowCrc::new(flow).start(udp_payload_len, 0)
    }

    /// Adds the packet from the BTH on: all headers, or all headers and payload. Must be called exactly
    /// once, first, with at least the BTH. A shorter input is added as it is.
    #[inline]
    pub fn headers(&mut self, headers: &[u8]) {
        let mut start = [0; BLOCK];
        let run = headers.len().min(BLOCK);
        start[..run].copy_from_slice(&headers[..run]);
        start[BTH_RESV8A] = 0xff;
        self.hasher.update(&start[..run]);
        if let Some(rest) = headers.get(BLOCK..) {
            self.hasher.update(rest);
        }
    }

    /// Adds the bytes that follow the headers.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The ICRC as it is sent, in wire order.
    #[inline]
    pub fn finish(self) -> [u8; 4] {
        // The CRC's first transmitted bit is the lowest of its first byte: little-endian.
        self.hasher.finalize().to_le_bytes()
    }
}

/// The ICRC of a packet of `flow` with identification `id`. `udp_payload` is everything between the UDP
/// header and the ICRC.
pub fn compute(flow: &Flow, id: u16, udp_payload: &[u8]) -> [u8; 4] {
    FlowCrc::new(flow).compute(id, udp_payload)
}

/// Whether the ICRC at the end of `udp_payload` is right for some IPv4 identification.
pub fn verify(flow: &Flow, udp_payload: &[u8]) -> bool {
    FlowCrc::new(flow).verify(udp_payload, 0).is_some()
}

/// The offset of the BTH's byte with the congestion bits, which counts as ones.
const BTH_RESV8A: usize = 4;

/// The number of bytes that are copied to mask the BTH: what crc32fast's SIMD path takes at a time.
const BLOCK: usize = 16;

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Polynomials over GF(2) modulo the CRC's, in the CRC's own bit order: the highest bit is the
/// coefficient of x⁰.
mod poly {
    /// The CRC-32 polynomial without x³².
    const P: u32 = 0xedb8_8320;
    pub(super) const ONE: u32 = 1 << 31;

    /// Multiplication by x.
    pub(super) const fn times_x(a: u32) -> u32 {
        (a >> 1) ^ (P & (a & 1).wrapping_neg())
    }

    /// Division by x, which is always possible because the polynomial's constant term is 1.
    pub(super) const fn over_x(a: u32) -> u32 {
        let odd = (a >> 31).wrapping_neg();
        ((a ^ (P & odd)) << 1) | (odd & 1)
    }

    /// Multiplication.
    pub(super) const fn mul(a: u32, b: u32) -> u32 {
        Factor::new(b).times(a)
    }

    /// A polynomial that is prepared for multiplication: its product with every single bit. A
    /// multiplication is then a sum of some of 32 words, which the compiler turns into SIMD.
    pub(super) struct Factor([u32; 32]);

    impl Factor {
        pub(super) const fn new(f: u32) -> Self {
            let mut products = [0; 32];
            let (mut shifted, mut bit) = (f, 32);
            while bit > 0 {
                bit -= 1;
                products[bit] = shifted;
                shifted = times_x(shifted);
            }
            Self(products)
        }

        #[inline]
        pub(super) const fn times(&self, a: u32) -> u32 {
            let (mut sum, mut bit) = (0, 0);
            while bit < 32 {
                sum ^= self.0[bit] & ((a >> bit) & 1).wrapping_neg();
                bit += 1;
            }
            sum
        }
    }

    /// x to the power of `n`, positive or negative.
    pub(super) const fn x_to(n: i32) -> u32 {
        let (mut p, mut i) = (ONE, n);
        while i > 0 {
            p = times_x(p);
            i -= 1;
        }
        while i < 0 {
            p = over_x(p);
            i += 1;
        }
        p
    }

    /// A table of `first` times the powers 0 to 255 of `step`.
    pub(super) const fn powers(first: u32, step: u32) -> [Factor; 256] {
        let step = Factor::new(step);
        let mut table = [const { Factor([0; 32]) }; 256];
        let (mut power, mut i) = (first, 0);
        while i < 256 {
            table[i] = Factor::new(power);
            power = step.times(power);
            i += 1;
        }
        table
    }
}

/// The change that a 16-bit field makes in the CRC of the bytes before the BTH, as a table for each of
/// its bytes.
struct Field([[u32; 256]; 2]);

impl Field {
    /// The tables of a big-endian field that `after` bytes follow.
    const fn new(after: i32) -> Self {
        // A byte adds its 8 bits, lowest first, times x³² for the CRC and x⁸ for each byte after it.
        let (high, low) = (poly::x_to(32 + 8 * (after + 1)), poly::x_to(32 + 8 * after));
        let mut tables = [[0; 256]; 2];
        let mut v = 0;
        while v < 256 {
            let bits = (v as u32) << 24;
            tables[0][v] = poly::mul(bits, high);
            tables[1][v] = poly::mul(bits, low);
            v += 1;
        }
        Self(tables)
    }

    #[inline]
    const fn of(&self, v: u16) -> u32 {
        self.0[0][(v >> 8) as usize] ^ self.0[1][(v & 0xff) as usize]
    }
}

static UDP_LEN: Field = Field::new(2);
static IPV4_LEN: Field = Field::new(24);
static IPV4_ID: Field = Field::new(IPV4_ID_AFTER);
static IPV6_LEN: Field = Field::new(42);

/// The number of bytes between the identification and the BTH.
const IPV4_ID_AFTER: i32 = 22;

/// Factors that undo any number of bytes: x^−(8k) for k from 0 to 255, times the factor that moves the
/// identification's effect from the BTH back to its field; and x^−(8·256·k). Each table has 32 KiB, but
/// a flow has few lengths, and each length needs two entries of 128 bytes.
static UNSHIFT_LOW: [poly::Factor; 256] =
    poly::powers(poly::x_to(-(32 + 8 * IPV4_ID_AFTER)), poly::x_to(-8));
static UNSHIFT_HIGH: [poly::Factor; 256] = poly::powers(poly::ONE, poly::x_to(-8 * 256));

#[cfg(test)]
mod tests {
    use super::*;

    fn v4() -> Flow {
        Flow::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 0xc123)
    }

    fn v6() -> Flow {
        Flow::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0xffff)
    }

    /// Computes the ICRC by its definition, byte by byte.
    fn by_definition(flow: &Flow, id: u16, body: &[u8]) -> [u8; 4] {
        let udp_len = (body.len() + 12) as u16;
        let mut b = vec![0xff; 8];
        match (flow.src, flow.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                b.extend([0x45, 0xff]);
                b.extend((udp_len + 20).to_be_bytes());
                b.extend(id.to_be_bytes());
                b.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
                b.extend(src.octets());
                b.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                b.extend([0x6f, 0xff, 0xff, 0xff]);
                b.extend(udp_len.to_be_bytes());
                b.extend([17, 0xff]);
                b.extend(src.octets());
                b.extend(dst.octets());
            }
            _ => unreachable!(),
        }
        b.extend(flow.src_port.to_be_bytes());
        b.extend(flow.dst_port.to_be_bytes());
        b.extend(udp_len.to_be_bytes());
        b.extend([0xff, 0xff]);
        let at = b.len();
        b.extend(body);
        b[at + 4] = 0xff;
        crc32fast::hash(&b).to_le_bytes()
    }

    fn body(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + len) as u8).collect()
    }

    #[test]
    fn short_cuts_give_what_the_definition_gives() {
        for flow in [v4(), v6()] {
            for len in (12..=150).chain([240, 1036, 4108, 65000]) {
                for id in [0, 1, 0xff, 0x100, 0xbeef] {
                    let b = body(len);
                    assert_eq!(compute(&flow, id, &b), by_definition(&flow, id, &b), "{len} {id}");
                    let mut pieces = FlowCrc::new(&flow).start(len + 4, id);
                    pieces.headers(&b[..12]);
                    pieces.update(&b[12..]);
                    assert_eq!(pieces.finish(), by_definition(&flow, id, &b));
                }
            }
        }
    }

    #[test]
    fn identification_is_found_back_whatever_the_length() {
        let crc = FlowCrc::new(&v4());
        for len in [12, 13, 255, 256, 257, 4108, 9000, 65000] {
            for id in [0u16, 1, 2, 63, 255, 256, 0x8000, 0xffff] {
                let mut b = body(len);
                b.extend(by_definition(&v4(), id, &b));
                for guess in [0, id, id.wrapping_sub(1)] {
                    assert_eq!(crc.verify(&b, guess), Some(id), "{len} {id} {guess}");
                }
                b[len / 2] ^= 0x10;
                assert_eq!(crc.verify(&b, 0), None);
            }
        }
    }

    #[test]
    fn a_flush_of_linux_rxe_is_covered_twice() {
        // Linux 6.12 sent this packet from 10.0.0.3, port 65266, with identification 0x056b.
        let flush = [
            0x1c, 0x00, 0xff, 0xff, 0x00, 0xf4, 0x15, 0x9a, 0x80, 0xf6, 0x1c, 0x12, // BTH
            0x00, 0x00, 0x00, 0x01, // FETH
            0x00, 0x00, 0x55, 0xda, 0xe8, 0x8f, 0xe0, 0x00, 0x9a, 0xf6, 0xa3, 0x9b, 0x00, 0x00,
            0x13, 0x88, // RETH
            0xc7, 0xee, 0xd7, 0x23,
        ];
        let addresses = ["10.0.0.3", "10.0.0.1"].map(|ip| ip.parse().unwrap());
        let crc = FlowCrc::new(&Flow::new(addresses[0], addresses[1], 65266));
        assert_eq!(crc.verify(&flush, 0), None);
        for guess in [0, 0x056a, 0x056b] {
            assert_eq!(crc.verify_twice(&flush, guess), Some(0x056b));
        }
        assert_eq!(crc.compute_twice(0x056b, &flush[..32]), flush[32..]);
        let mut corrupt = flush;
        corrupt[20] ^= 1;
        assert_eq!(crc.verify_twice(&corrupt, 0), None);
    }

    #[test]
    fn ipv6_has_no_identification_to_hide_behind() {
        let mut b = body(64);
        b.extend(by_definition(&v6(), 0, &b));
        assert_eq!(FlowCrc::new(&v6()).verify(&b, 77), Some(0));
        b[1] ^= 1;
        assert!(!verify(&v6(), &b));
    }

    #[test]
    fn mapped_addresses_count_as_ipv4() {
        let mapped = Flow {
            src: "::ffff:10.0.0.1".parse().unwrap(),
            dst: "::ffff:10.0.0.2".parse().unwrap(),
            ..v4()
        };
        assert_eq!(FlowCrc::new(&mapped), FlowCrc::new(&v4()));
    }

    #[test]
    fn congestion_bits_may_change_on_the_way() {
        let mut b = body(64);
        b.extend(compute(&v4(), 0, &b));
        b[4] ^= 0xc0;
        assert!(verify(&v4(), &b));
    }

    #[test]
    fn short_input_is_refused_not_read() {
        for len in 0..16 {
            let _ = FlowCrc::new(&v4()).verify(&body(len), 0);
            let _ = FlowCrc::new(&v6()).verify(&body(len), 0);
        }
        assert_eq!(FlowCrc::new(&v4()).verify(&[1, 2, 3], 0), None);
        let _ = FlowCrc::new(&v4()).verify(&body(70_000), 0);
    }
}
