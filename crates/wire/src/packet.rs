//! A whole packet: the headers that its opcode needs, and its payload.
//!
//! On the wire, in the UDP payload: BTH, MPH (multi-path packets only), XRCETH, DETH, FETH, RETH, AtomicETH,
//! AETH, AtomicAckETH, ImmDt, IETH, SACK (each only where the opcode has it, see [`Opcode`]), payload, 0 to
//! 3 bytes of padding, ICRC.

use core::fmt;

use crate::ICRC_LEN;
use crate::bth::Bth;
use crate::error::ParseError;
use crate::ext::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, MpHeader, MpSack, NakCode, Reth,
    Syndrome, XrcEth,
};
use crate::layout::Layout;
use crate::opcode::Opcode;

/// The largest number of bytes that headers take: those of a multi-path atomic.
pub const MAX_HEADERS_LEN: usize = Bth::LEN + MpHeader::LEN + AtomicEth::LEN;

/// All headers of a packet.
///
/// The opcode determines which of the optional headers a packet has. [`Headers::emit`] writes those
/// that are `Some`, and checks in debug builds that they are those of the opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Multi-path header.
    pub mp: Option<MpHeader>,
    /// XRC header.
    pub xrc: Option<XrcEth>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// FLUSH header.
    pub feth: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic request header.
    pub atomic: Option<AtomicEth>,
    /// ACK header.
    pub aeth: Option<Aeth>,
    /// Atomic answer header.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Key to invalidate.
    pub ieth: Option<Ieth>,
    /// Selective acknowledgement.
    pub sack: Option<MpSack>,
}

impl Headers {
    /// Creates headers with only a base transport header. Set the others that its opcode needs.
    #[inline]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            mp: None,
            xrc: None,
            deth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
            sack: None,
        }
    }

    /// Length of the headers in bytes: a multiple of 4, at most [`MAX_HEADERS_LEN`].
    #[inline]
    pub const fn len(&self) -> usize {
        let mut n = Bth::LEN;
        if self.mp.is_some() {
            n += MpHeader::LEN;
        }
        if self.xrc.is_some() {
            n += XrcEth::LEN;
        }
        if self.deth.is_some() {
            n += Deth::LEN;
        }
        if self.feth.is_some() {
            n += Feth::LEN;
        }
        if self.reth.is_some() {
            n += Reth::LEN;
        }
        if self.atomic.is_some() {
            n += AtomicEth::LEN;
        }
        if self.aeth.is_some() {
            n += Aeth::LEN;
        }
        if self.atomic_ack.is_some() {
            n += AtomicAckEth::LEN;
        }
        if self.imm.is_some() {
            n += ImmDt::LEN;
        }
        if self.ieth.is_some() {
            n += Ieth::LEN;
        }
        if self.sack.is_some() {
            n += MpSack::LEN;
        }
        n
    }

    /// Always false, because there is always a base transport header.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Whether exactly the headers that the opcode needs are there.
    pub const fn fit_opcode(&self) -> bool {
        let op = self.bth.opcode;
        self.mp.is_some() == op.has_mp_header()
            && self.xrc.is_some() == op.has_xrceth()
            && self.deth.is_some() == op.has_deth()
            && self.feth.is_some() == op.has_feth()
            && self.reth.is_some() == op.has_reth()
            && self.atomic.is_some() == op.has_atomic_eth()
            && self.aeth.is_some() == op.has_aeth()
            && self.atomic_ack.is_some() == op.has_atomic_ack()
            && self.imm.is_some() == op.has_imm()
            && self.ieth.is_some() == op.has_ieth()
            && self.sack.is_some() == op.has_sack()
    }

    /// Builds the packet with this payload: headers, payload and as much padding as the BTH says,
    /// without the ICRC. The vector has room for the ICRC.
    pub fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let pad = usize::from(self.bth.pad);
        let mut bytes = Vec::with_capacity(MAX_HEADERS_LEN + payload.len() + pad + ICRC_LEN);
        bytes.resize(MAX_HEADERS_LEN, 0);
        let len = self.emit(&mut bytes);
        bytes.truncate(len);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + pad, 0);
        bytes
    }

    /// Writes the headers to the front of `out`, and returns their length in bytes.
    ///
    /// # Panics
    /// If `out` is shorter than [`Headers::len`]; [`MAX_HEADERS_LEN`] always suffices.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        debug_assert!(self.fit_opcode(), "headers don't fit {}: {self:?}", self.bth.opcode);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&self.bth.to_bytes());
        if let Some(h) = &self.mp {
            put(&h.to_bytes());
        }
        if let Some(h) = &self.xrc {
            put(&h.to_bytes());
        }
        if let Some(h) = &self.deth {
            put(&h.to_bytes());
        }
        if let Some(h) = &self.feth {
            put(&h.to_bytes());
        }
        if let Some(h) = &self.reth {
            put(&h.to_bytes());
        }
        if let Some(h) = &self.atomic {
            put(&h.to_bytes());
        }
        if let Some(h) = &self.aeth {
            put(&h.to_bytes());
        }
        if let Some(h) = &self.atomic_ack {
            put(&h.original.to_be_bytes());
        }
        if let Some(h) = &self.imm {
            put(&h.0);
        }
        if let Some(h) = &self.ieth {
            put(&h.rkey.to_be_bytes());
        }
        if let Some(h) = &self.sack {
            put(&h.0.to_be_bytes());
        }
        at
    }

    /// Reads the headers from the front of `buf`. Anything may follow them.
    ///
    /// # Errors
    /// There are too few bytes, an unknown opcode or one of a service that is not implemented (RD), or
    /// a transport or multi-path header of another version.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<Self, ParseError> {
        let mut headers = Self::new(Bth::parse(buf)?);
        headers.parse_extended(buf)?;
        Ok(headers)
    }

    /// Reads from `buf` the headers after the base transport header, which was read already. Returns
    /// the rest of `buf`.
    #[inline]
    fn parse_extended<'a>(&mut self, buf: &'a [u8]) -> Result<&'a [u8], ParseError> {
        let h = self;
        let bth = h.bth;
        let op = bth.opcode;
        let layout = op.layout();
        if !layout.has(Layout::KNOWN) {
            return Err(ParseError::BadValue {
                what: "BTH opcode",
                expected: "an RC, UC, UD, XRC, CNP or multi-path operation",
                got: u64::from(op.0),
            });
        }
        if bth.tver != 0 {
            return Err(ParseError::BadValue {
                what: "BTH transport version",
                expected: "0",
                got: u64::from(bth.tver),
            });
        }
        let mut rest = &buf[Bth::LEN..];
        // Each branch has parsed, and so checked, the bytes that it skips.
        if layout.has(Layout::MP) {
            h.mp = Some(MpHeader::parse(rest)?);
            rest = &rest[MpHeader::LEN..];
        }
        if layout.has(Layout::XRC) {
            h.xrc = Some(XrcEth::parse(rest)?);
            rest = &rest[XrcEth::LEN..];
        }
        if layout.has(Layout::DETH) {
            h.deth = Some(Deth::parse(rest)?);
            rest = &rest[Deth::LEN..];
        }
        if layout.has(Layout::FETH) {
            h.feth = Some(Feth::parse(rest)?);
            rest = &rest[Feth::LEN..];
        }
        if layout.has(Layout::RETH) {
            h.reth = Some(Reth::parse(rest)?);
            rest = &rest[Reth::LEN..];
        }
        if layout.has(Layout::ATOMIC) {
            h.atomic = Some(AtomicEth::parse(rest)?);
            rest = &rest[AtomicEth::LEN..];
        }
        if layout.has(Layout::AETH) {
            h.aeth = Some(Aeth::parse(rest)?);
            rest = &rest[Aeth::LEN..];
        }
        if layout.has(Layout::ATOMIC_ACK) {
            h.atomic_ack = Some(AtomicAckEth::parse(rest)?);
            rest = &rest[AtomicAckEth::LEN..];
        }
        if layout.has(Layout::IMM) {
            h.imm = Some(ImmDt::parse(rest)?);
            rest = &rest[ImmDt::LEN..];
        }
        if layout.has(Layout::IETH) {
            h.ieth = Some(Ieth::parse(rest)?);
            rest = &rest[Ieth::LEN..];
        }
        if layout.has(Layout::SACK) {
            h.sack = Some(MpSack::parse(rest)?);
            rest = &rest[MpSack::LEN..];
        }
        Ok(rest)
    }
}

/// A packet as received: its headers and its payload without padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The headers; exactly those of the opcode.
    pub headers: Headers,
    /// The payload without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a UDP payload, which ends with the ICRC. The ICRC itself is not checked (see
    /// [`icrc`](crate::icrc)).
    ///
    /// # Errors
    /// The errors of [`Headers::parse`]; there is no room for an ICRC; the length is not a multiple of
    /// 4; there is more padding than payload.
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, ParseError> {
        Self::parse_with(udp_payload, |packet| *packet)
    }

    /// Parses a UDP payload and calls `f` with the packet. Returning the packet instead would cost
    /// another copy.
    ///
    /// # Errors
    /// The errors of [`Packet::parse`]. `f` is not called then.
    #[inline]
    pub fn parse_with<R>(
        udp_payload: &'a [u8],
        f: impl FnOnce(&Self) -> R,
    ) -> Result<R, ParseError> {
        let Some(body_len) = udp_payload.len().checked_sub(ICRC_LEN) else {
            return Err(ParseError::Truncated {
                what: "ICRC",
                expected: ICRC_LEN,
                got: udp_payload.len(),
            });
        };
        Self::parse_body_with(&udp_payload[..body_len], f)
    }

    /// Like [`Packet::parse_with`], for a packet without an ICRC: from the BTH to the end of its
    /// padding.
    ///
    /// # Errors
    /// The errors of [`Packet::parse`], except that there need be no ICRC.
    #[inline]
    pub fn parse_body_with<R>(body: &'a [u8], f: impl FnOnce(&Self) -> R) -> Result<R, ParseError> {
        let mut packet = Self { headers: Headers::new(Bth::parse(body)?), payload: &[] };
        let padded = packet.headers.parse_extended(body)?;
        if !body.len().is_multiple_of(4) {
            return Err(ParseError::BadValue {
                what: "packet length",
                expected: "a multiple of 4",
                got: body.len() as u64,
            });
        }
        let pad = usize::from(packet.headers.bth.pad);
        let Some(len) = padded.len().checked_sub(pad) else {
            return Err(ParseError::BadValue {
                what: "BTH pad count",
                expected: "no more than the payload",
                got: pad as u64,
            });
        };
        packet.payload = &padded[..len];
        Ok(f(&packet))
    }

    /// The packet's opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }
}

/// The number of bytes of padding that a payload of `len` bytes needs, 0 to 3.
#[inline]
pub const fn pad_for(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = &self.bth;
        write!(f, "{} qpn {:#08x} psn {}", b.opcode, b.dest_qpn, b.psn)?;
        for (set, name) in [
            (b.ack_req, " ackreq"),
            (b.solicited, " se"),
            (b.mig_req, " mig"),
            (b.fecn, " fecn"),
            (b.becn, " becn"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        if let Some(h) = &self.mp {
            write!(f, " path {}.{} msg {}+{}", h.path_id, h.generation, h.msg, h.offset)?;
            write!(f, " recv {} ts {}", h.recv, h.timestamp)?;
        }
        if let Some(h) = &self.xrc {
            write!(f, " srqn {:#08x}", h.srqn)?;
        }
        if let Some(h) = &self.deth {
            write!(f, " from {:#08x} qkey {:#x}", h.src_qpn, h.qkey)?;
        }
        if let Some(h) = &self.feth {
            write!(f, " placement {:#x} selectivity {}", h.placement, h.selectivity)?;
        }
        if let Some(h) = &self.reth {
            write!(f, " va {:#x} rkey {:#x} dlen {}", h.va, h.rkey, h.len)?;
        }
        if let Some(h) = &self.atomic {
            write!(f, " va {:#x} rkey {:#x} swap/add {:#x}", h.va, h.rkey, h.swap_add)?;
            write!(f, " compare {:#x}", h.compare)?;
        }
        if let Some(h) = &self.aeth {
            match h.syndrome {
                Syndrome::Ack { .. } => f.write_str(" ack")?,
                Syndrome::RnrNak { timer } => write!(f, " rnr-nak timer {timer}")?,
                Syndrome::Nak(code) => f.write_str(match code {
                    NakCode::PsnSequence => " nak psn-sequence",
                    NakCode::InvalidRequest => " nak invalid-request",
                    NakCode::RemoteAccess => " nak remote-access",
                    NakCode::RemoteOperational => " nak remote-operational",
                    NakCode::InvalidRdRequest => " nak invalid-rd-request",
                })?,
                Syndrome::Reserved(b) => write!(f, " syndrome {b:#04x}")?,
            }
            write!(f, " msn {}", h.msn)?;
        }
        if let Some(h) = &self.atomic_ack {
            write!(f, " original {:#x}", h.original)?;
        }
        if let Some(h) = &self.imm {
            write!(f, " imm {:#010x}", u32::from_be_bytes(h.0))?;
        }
        if let Some(h) = &self.ieth {
            write!(f, " inv {:#x}", h.rkey)?;
        }
        if let Some(h) = &self.sack {
            write!(f, " sack {:#x}", h.0)?;
        }
        Ok(())
    }
}

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} len {}", self.headers, self.payload.len())
    }
}
